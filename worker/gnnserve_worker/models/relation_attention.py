"""Layers that attend over the neighbours by each relation; `relation_means.py` has those by means.

A row of the table is the product of a relation with a node, and behind it what each head makes of it as a neighbour; a
node's own row is what each head makes of it as a reader, relation after relation. A later layer makes such rows of the
hidden states of each hop, and is then computed as the first one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.architecture import Heads
from gnnserve_worker.models.network import Activations, Linear, no_bias
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.attention import exponential, leaky
from gnnserve_worker.tables.table import NO_SCALES, NOTHING_BEHIND, RowsBehind, Table
from gnnserve_worker.tables.vectors import number_of, sum_weighted_columns

Source = np.ndarray | tuple[np.ndarray, np.ndarray | None]
"""Rows in one array, or in one and another behind it (`tables/vectors.py`)."""


@dataclass(frozen=True, slots=True)
class RelationAttention:
    """A `NetworkLayer`."""

    inputs: int
    columns: int
    """Width of the rows that are attended to."""
    reads: RelationTable
    heads: Heads
    biases: Mapping[int, np.ndarray]
    """Bias of each type that the layer has an output for, by place: float32 [outputs]."""
    relations: Mapping[int, Linear]
    """By relation, what makes rows of hidden states. Empty for the first layer, whose rows are in the table."""
    own: Mapping[int, Linear]
    """By type."""
    relu: bool
    outputs: int = field(init=False)
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False, default=False)
    finish: None = field(init=False, default=None)
    """Products of the first layer are in the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", self.heads.outputs)
        object.__setattr__(self, "bytes_per_row", 4 * self.columns)

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """See `NetworkLayer`."""
        heads, count = self.heads, len(sample.nodes)
        named = self.reads.name(sample, table.nodes, scratch).rows[: len(sample.neighbours)]
        out = scratch.hidden(count * heads.heads * heads.columns)
        rows, own = table.rows, table.own
        _attend_table(
            rows.values, rows.scales, own.values, own.scales, *(behind or NOTHING_BEHIND), sample.nodes, count,
            sample.segments, self.reads.stride, named, heads.heads, heads.columns, heads.negative_slope, no_bias(), out,
        )  # fmt: skip
        return self._finish(out, sample, len(sample.ends), scratch)

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """See `NetworkLayer`."""
        heads, reads, rows, columns = self.heads, self.reads, sample.ends[hops - 1], self.columns
        own = np.zeros((rows, columns), np.float32)
        blocks = _blocks(sample, reads.types, hops + 1)
        for hop in range(hops):
            for kind, product in self.own.items():
                begin, end = blocks[hop][kind]
                _apply(product, below[begin:end], own[begin:end])
        wanted = [
            (hop, place, *blocks[hop + 1][reads.sources[place]]) for hop in range(hops) for place in self.relations
        ]
        made = np.empty((max(1, sum(end - begin for _, _, begin, end in wanted)), columns), np.float32)
        moved = np.zeros((hops, len(reads.sources)), np.int64)
        first = 0
        for hop, place, begin, end in wanted:
            _apply(self.relations[place], below[begin:end], made[first : first + end - begin])
            moved[hop, place] = first - begin
            first += end - begin
        named = np.empty(len(sample.neighbours), np.int32)
        _name_made(reads.layout, sample.segments, sample.type_ends[: hops * reads.types], sample.children, moved, named)
        out = scratch.hidden(rows * heads.heads * heads.columns)
        _attend_hidden(
            made, own, NO_SCALES, rows, sample.segments, reads.stride, named, heads.heads, heads.columns,
            heads.negative_slope, no_bias(), out,
        )  # fmt: skip
        return self._finish(out, sample, hops, scratch)

    def _finish(self, sums: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """The layer's output, of the sums of its heads: averaged where it is the last layer, biases, ReLU."""
        heads, rows = self.heads, sample.ends[hops - 1]
        found = sums[: rows * heads.heads * heads.columns].reshape(rows, heads.heads, heads.columns)
        out = scratch.hidden(rows * self.outputs)
        shaped = out[: rows * self.outputs].reshape(rows, self.outputs)
        shaped[...] = found.mean(axis=1) if heads.averages else found.reshape(rows, self.outputs)
        for blocks in _blocks(sample, self.reads.types, hops):
            for kind, (begin, end) in enumerate(blocks):
                if kind in self.biases:
                    shaped[begin:end] += self.biases[kind]
                else:
                    shaped[begin:end] = 0
        if self.relu:
            np.maximum(shaped, 0, out=shaped)
        return out


def _blocks(sample: NeighbourSample, types: int, hops: int) -> list[list[tuple[int, int]]]:
    """Where the rows of each type begin and end in each hop."""
    ends = sample.type_ends[: hops * types].tolist()
    begins = [0, *ends[:-1]]
    pairs = list(zip(begins, ends, strict=True))
    return [pairs[hop * types : (hop + 1) * types] for hop in range(hops)]


def _apply(product: Linear, rows: np.ndarray, out: np.ndarray) -> None:
    if len(rows):
        product.apply(rows.reshape(-1), len(rows), out.reshape(-1))


@kernel
def _name_made(
    layout: np.ndarray, segments: np.ndarray, type_ends: np.ndarray, children: np.ndarray, moved: np.ndarray,
    named: np.ndarray,
) -> None:  # fmt: skip
    """For each child, the row that was made of it for its relation."""
    types, stride = layout[0], layout[1]
    relations_at = 3 + 2 * (types + 1) + types
    begin = 0
    for block in range(len(type_ends)):
        kind = block % types
        for slot in range(stride):
            relation = layout[relations_at + kind * stride + slot]
            if relation < 0:
                continue
            shift = moved[block // types, relation]
            for row in range(begin, type_ends[block]):
                for edge in range(segments[row * stride + slot], segments[row * stride + slot + 1]):
                    named[edge] = children[edge] + shift
        begin = type_ends[block]


@kernel
def _attend_table(
    values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray,
    more_values: np.ndarray | None, more_scales: np.ndarray | None,
    more_own_values: np.ndarray | None, more_own_scales: np.ndarray | None,
    nodes: np.ndarray, rows: int, segments: np.ndarray, stride: int, named: np.ndarray, heads: int, width: int,
    slope: float, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    longest = _longest(segments, rows, stride)
    weights = np.empty(heads * longest, dtype=np.float32)
    for row in range(rows):
        _attend((values, more_values), (scales, more_scales), (own_values, more_own_values),
                (own_scales, more_own_scales), row, np.int64(nodes[row]), segments, stride, named, heads, width, slope,
                no_bias, longest, weights, out)  # fmt: skip


@kernel
def _attend_hidden(
    made: np.ndarray, own: np.ndarray, no_scales: np.ndarray, rows: int, segments: np.ndarray, stride: int,
    named: np.ndarray, heads: int, width: int, slope: float, no_bias: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    longest = _longest(segments, rows, stride)
    weights = np.empty(heads * longest, dtype=np.float32)
    for row in range(rows):
        _attend(made, no_scales, own, no_scales, row, np.int64(row), segments, stride, named, heads, width, slope,
                no_bias, longest, weights, out)  # fmt: skip


@inlined
def _longest(segments: np.ndarray, rows: int, stride: int) -> int:
    """Neighbours of the row that has most, by all relations."""
    longest = 1
    for row in range(rows):
        longest = max(longest, segments[(row + 1) * stride] - segments[row * stride])
    return longest


@inlined
def _attend(
    values: Source, scales: Source, own_values: Source, own_scales: Source, row: int, own_row: np.int64,
    segments: np.ndarray, stride: int, named: np.ndarray, heads: int, width: int, slope: float, no_bias: np.ndarray,
    longest: int, weights: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """The sums of a row's heads beside each other. `weights`: room for heads · longest numbers."""
    start = segments[row * stride]
    stop = segments[(row + 1) * stride]
    for slot in range(stride):
        first = segments[row * stride + slot]
        last = segments[row * stride + slot + 1]
        if first == last:
            continue
        for head in range(heads):
            place = head * longest - start
            target = number_of(own_values, own_scales, own_row, slot * heads + head)
            largest = np.float32(-np.inf)
            for edge in range(first, last):
                score = number_of(values, scales, np.int64(named[edge]), heads * width + head)
                weights[place + edge] = leaky(score + target, slope)
                largest = max(largest, weights[place + edge])
            total = np.float32(0.0)
            for edge in range(first, last):
                weights[place + edge] = exponential(weights[place + edge] - largest)
                total += weights[place + edge]
            for edge in range(first, last):
                weights[place + edge] /= total
    for head in range(heads):
        sum_weighted_columns(out, (row * heads + head) * width, width, values, scales, named, start, stop, 1.0,
                             own_values, own_scales, own_row, 0.0, no_bias, False, weights, head * longest - start,
                             head * width)  # fmt: skip
