"""Attention over a row's neighbours and the row itself, as torch_geometric's GATConv has it:

    e(j → i) = LeakyReLU(a_src · W x(j) + a_dst · W x(i)),   α(j → i) = softmax of e(j → i) over j

for each head, over the sampled neighbours and i itself, which counts once whether it is in its own list or not. The
sum of a head, Σ α(j → i) x(j), is made of what the layer reads and multiplied by W afterwards, since sums commute with
linear maps; a_src · W is one vector per head. A projected table stores W x and, behind it, both products of every
head.

Two passes over a row's neighbours, heads inside: the second one finds the rows in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import NO_SCALES, ROWS_AHEAD, RowsBehind, Table
from gnnserve_worker.tables.vectors import dot_row, number_of, sum_weighted_columns

_LEAST_EXPONENT = np.float32(-87.0)
"""Below it exp is 0 in float32, but for numbers without full precision."""
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


Source = np.ndarray | tuple[np.ndarray, np.ndarray | None]
"""Rows in one array, or in one and another behind it (`vectors.py`)."""


@dataclass(frozen=True, slots=True)
class Attention:
    heads: int
    negative_slope: float
    """Slope of the leaky ReLU below 0."""
    vectors: np.ndarray
    """float32 [2 · heads · columns]: what a row is multiplied by as a neighbour, head by head, then as the node itself.
    Empty where rows end with these 2 · heads products."""

    @property
    def stored(self) -> bool:
        return len(self.vectors) == 0

    def head_columns(self, columns: int) -> int:
        """Columns that one head sums, of rows of `columns`."""
        return columns // self.heads - 2 if self.stored else columns

    def gather(
        self, table: Table, columns: int, sample: NeighbourSample, bias: np.ndarray, relu: bool, out: np.ndarray,
        behind: RowsBehind,
    ) -> None:  # fmt: skip
        """For each row of `sample` the heads' sums beside each other, [rows, heads · head_columns], from the table and
        the rows behind it."""
        rows, own = table.rows, table.own
        _gather(
            rows.values, rows.scales, own.values, own.scales, *behind, columns,
            sample.nodes, sample.starts, sample.neighbours,
            self.heads, self.head_columns(columns), self.stored, self.vectors, self.negative_slope, bias, relu, out,
        )  # fmt: skip

    def aggregate(
        self, hidden: np.ndarray, sample: NeighbourSample, rows: int, bias: np.ndarray, relu: bool, out: np.ndarray
    ) -> None:
        """The same from hidden states, float32 [rows of the sample, width], for the first `rows` rows."""
        columns = hidden.shape[1]
        _aggregate(
            hidden, NO_SCALES, columns, rows, sample.nodes, sample.starts, sample.neighbours, sample.children,
            self.heads, self.head_columns(columns), self.stored, self.vectors, self.negative_slope, bias, relu, out,
        )  # fmt: skip


@kernel
def _gather(
    values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray,
    more_values: np.ndarray | None, more_scales: np.ndarray | None,
    more_own_values: np.ndarray | None, more_own_scales: np.ndarray | None, columns: int,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    heads: int, width: int, stored: bool, vectors: np.ndarray, slope: float,
    bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    rows = len(nodes)
    longest = _longest(starts, rows)
    weights = np.empty(heads * longest, dtype=np.float32)
    of_row = np.empty(3 * heads, dtype=np.float32)
    for row in range(rows):
        ahead = row + ROWS_AHEAD
        if ahead < rows:
            prefetch_rows(values, scales, neighbours, starts[ahead], starts[ahead + 1], columns)
            prefetch_rows(own_values, own_scales, nodes, ahead, ahead + 1, columns)
        _attend((values, more_values), (scales, more_scales), (own_values, more_own_values),
                (own_scales, more_own_scales), columns, row, np.int64(nodes[row]), nodes[row],
                starts, neighbours, neighbours, heads, width, stored, vectors, slope, bias, relu,
                longest, weights, of_row, out)  # fmt: skip


@kernel
def _aggregate(
    hidden: np.ndarray, no_scales: np.ndarray, columns: int, rows: int,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, children: np.ndarray,
    heads: int, width: int, stored: bool, vectors: np.ndarray, slope: float,
    bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    longest = _longest(starts, rows)
    weights = np.empty(heads * longest, dtype=np.float32)
    of_row = np.empty(3 * heads, dtype=np.float32)
    for row in range(rows):
        _attend(hidden, no_scales, hidden, no_scales, columns, row, np.int64(row), nodes[row],
                starts, neighbours, children, heads, width, stored, vectors, slope, bias, relu,
                longest, weights, of_row, out)  # fmt: skip


@inlined
def _longest(starts: np.ndarray, rows: int) -> int:
    """Neighbours of the row that has most."""
    longest = 0
    for row in range(rows):
        longest = max(longest, starts[row + 1] - starts[row])
    return longest


@inlined
def _attend(
    values: Source, scales: Source, own_values: Source, own_scales: Source, columns: int,
    row: int, own_row: np.int64, node: int, starts: np.ndarray, neighbours: np.ndarray, ids: np.ndarray,
    heads: int, width: int, stored: bool, vectors: np.ndarray, slope: float, bias: np.ndarray, relu: bool,
    longest: int, weights: np.ndarray, of_row: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """One row: `ids` are the rows of `values` that are its neighbours; `neighbours` their node ids, among which `node`
    itself counts for nothing. `weights` has room for heads · longest numbers, `of_row` for 3 · heads: what each head
    makes of the node as a target, its score for the node itself, and the largest score."""
    start = starts[row]
    count = starts[row + 1] - start
    for head in range(heads):
        if stored:
            target = number_of(own_values, own_scales, own_row, heads * (width + 1) + head)
            itself = number_of(own_values, own_scales, own_row, heads * width + head)
        else:
            target = dot_row(own_values, own_scales, own_row, columns, vectors, (heads + head) * columns)
            itself = dot_row(own_values, own_scales, own_row, columns, vectors, head * columns)
        of_row[head] = target
        of_row[heads + head] = leaky(itself + target, slope)
        of_row[2 * heads + head] = of_row[heads + head]
    for edge in range(count):
        source = np.int64(ids[start + edge])
        if neighbours[start + edge] == node:
            for head in range(heads):
                weights[head * longest + edge] = -np.inf
            continue
        for head in range(heads):
            if stored:
                score = number_of(values, scales, source, heads * width + head)
            else:
                score = dot_row(values, scales, source, columns, vectors, head * columns)
            score = leaky(score + of_row[head], slope)
            weights[head * longest + edge] = score
            of_row[2 * heads + head] = max(of_row[2 * heads + head], score)
    place = row * heads * width
    for head in range(heads):
        first = head * longest
        largest = of_row[2 * heads + head]
        for edge in range(first, first + count):
            weights[edge] = exponential(weights[edge] - largest)
        of_itself = exponential(of_row[heads + head] - largest)
        total = of_itself
        for edge in range(first, first + count):
            total += weights[edge]
        sum_weighted_columns(out, place + head * width, width, values, scales, ids, start, start + count,
                             np.float32(1.0) / total, own_values, own_scales, own_row, of_itself / total,
                             bias, relu, weights, first - start, head * width if stored else 0)  # fmt: skip


@inlined
def leaky(number: float, slope: float) -> np.float32:
    return np.float32(number if number > 0.0 else number * np.float32(slope))


@inlined
def exponential(number: float) -> np.float32:
    """exp of a number that is at most 0, to 2 units in the last place; a loop of it becomes vectors, which one of the
    library's exp does not. Below -87 it is 0."""
    whole = np.floor(number * _LOG2_E + np.float32(0.5))
    rest = number - whole * _LN2_HIGH - whole * _LN2_LOW
    series = np.float32(1.9875691500e-4) * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + np.float32(1.0)
    power = np.int32((np.int32(max(whole, np.float32(-126.0))) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(series * power) if number > _LEAST_EXPONENT else np.float32(0.0)
