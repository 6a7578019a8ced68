"""Gathering fused with aggregation: layer 1's input, or its output, for every row that needs a hidden state.

Leaf rows are 250 of a seed's 276; they are averaged or summed while they are read and never written. What is written
is what the first matrix product reads: [mean, own] beside each other for GraphSAGE, one sum for GIN, in the
product's own precision. From a projected table the same sum is the layer's output already. Attention, whose weights
depend on the rows, is `attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.tables.attention import ROWS_AHEAD, Attention, aggregate_attending, gather_attending
from gnnserve_worker.tables.table import NO_SCALES, NOTHING_BEHIND, RowsBehind, Table
from gnnserve_worker.tables.vectors import sum_rows, sum_weighted_rows


class Aggregator(Enum):
    """How a layer aggregates the rows of a node's neighbours."""

    MEAN = "mean"
    SUM = "sum"
    NORMALISED_SUM = "normalised sum"
    """A sum of the neighbours and the row itself, weighted by GCN's symmetric normalisation of the full graph
    (`sampling/normalised.py`)."""
    NONE = "no neighbours"
    """The row itself. Its samples have no neighbours, so that its kernels are those of sums."""
    ATTENTION = "attention"
    """A sum per head of the neighbours and the row itself, weighted by a softmax of scores of the two rows
    (`tables/attention.py`)."""


class Own(Enum):
    """How a node's own row is combined with its aggregated neighbours."""

    BESIDE = "beside"
    """The output is [neighbours, own], side by side."""
    ADDED = "added"
    """The output is neighbours + own_factor · own."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How a layer combines a node's neighbours and its own row, before its matrix products."""

    aggregator: Aggregator
    own: Own
    own_factor: float
    """Factor of the own row where it is added; unused with `Own.BESIDE`."""
    bias: np.ndarray
    """float32 [columns], added to the output; empty: there is none."""
    relu: bool
    """Whether negative numbers become 0, after the bias is added."""
    attention: Attention | None = None
    """Heads and score vectors of the aggregator ATTENTION; None with all others."""
    mean: bool = field(init=False)
    """Whether the sum is divided by the number of neighbours. This and the next three are the enums' choices as kernels
    take them, worked out once: a look-up of an enum's member takes longer than the call of a kernel."""
    stacked: bool = field(init=False)
    """Whether neighbours and own row stand side by side."""
    weighted: bool = field(init=False)
    """Whether the kernel reads the weights of the sample's edges."""
    plain: bool = field(init=False)
    """Whether rows are summed without weights."""
    passes_on: bool = field(init=False)
    """Whether a row comes out as it went in, so that float32 rows need not be copied."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", is_mean(self.aggregator))
        object.__setattr__(self, "weighted", is_weighted(self.aggregator))
        object.__setattr__(self, "stacked", is_stacked(self.own))
        object.__setattr__(self, "plain", is_plain(self.aggregator))
        is_as_it_is = not self.stacked and self.own_factor == 1.0 and not len(self.bias) and not self.relu
        object.__setattr__(self, "passes_on", self.aggregator is Aggregator.NONE and is_as_it_is)
        if is_attention(self.aggregator) != (self.attention is not None):
            raise ValueError(f"aggregator {self.aggregator.value}, with attention: {self.attention is not None}")

    @property
    def nbytes(self) -> int:
        return self.bias.nbytes + (0 if self.attention is None else self.attention.vectors.nbytes)

    def width(self, columns: int) -> int:
        """Columns of a row once `columns` of it are aggregated."""
        if self.attention is not None:
            return self.attention.heads * self.attention.head_columns(columns)
        return 2 * columns if self.stacked else columns


def is_mean(aggregator: Aggregator) -> bool:
    match aggregator:
        case Aggregator.MEAN:
            return True
        case Aggregator.SUM | Aggregator.NORMALISED_SUM | Aggregator.NONE | Aggregator.ATTENTION:
            return False
        case _:
            assert_never(aggregator)


def is_weighted(aggregator: Aggregator) -> bool:
    match aggregator:
        case Aggregator.MEAN | Aggregator.SUM | Aggregator.NONE | Aggregator.ATTENTION:
            return False
        case Aggregator.NORMALISED_SUM:
            return True
        case _:
            assert_never(aggregator)


def is_attention(aggregator: Aggregator) -> bool:
    match aggregator:
        case Aggregator.MEAN | Aggregator.SUM | Aggregator.NORMALISED_SUM | Aggregator.NONE:
            return False
        case Aggregator.ATTENTION:
            return True
        case _:
            assert_never(aggregator)


def is_plain(aggregator: Aggregator) -> bool:
    """Whether rows are summed without weights."""
    return not is_weighted(aggregator) and not is_attention(aggregator)


def is_stacked(own: Own) -> bool:
    match own:
        case Own.BESIDE:
            return True
        case Own.ADDED:
            return False
        case _:
            assert_never(own)


def gather(
    table: Table,
    columns: int,
    sample: NeighbourSample,
    aggregation: Aggregation,
    out: np.ndarray,
    behind: RowsBehind | None = None,
) -> None:
    """For each row of `sample`, what `aggregation` makes of the first `columns` of the table's rows.

    `out` is flat, float32 or the bits of bfloat16 (uint16): [rows · columns], or twice that when stacked. `behind`:
    rows that come after the table's.
    """
    rows, own = table.rows, table.own
    more = NOTHING_BEHIND if behind is None else behind
    if aggregation.plain:
        _gather(
            rows.values, rows.scales, own.values, own.scales, *more, columns,
            sample.nodes, sample.starts, sample.neighbours,
            aggregation.mean, aggregation.stacked, aggregation.own_factor, aggregation.bias, aggregation.relu, out,
        )  # fmt: skip
    elif aggregation.attention is not None:
        gather_attending(table, columns, sample, aggregation.attention, aggregation.bias, aggregation.relu, out, more)
    else:
        weights = weights_of(sample)
        _gather_weighted(
            rows.values, rows.scales, own.values, own.scales, *more, columns,
            sample.nodes, sample.starts, sample.neighbours,
            weights.of_neighbours, weights.of_itself, aggregation.bias, aggregation.relu, out,
        )  # fmt: skip


def aggregate(
    hidden: np.ndarray, sample: NeighbourSample, rows: int, aggregation: Aggregation, out: np.ndarray
) -> None:
    """Aggregate hidden states, float32 [rows of the sample, width], for the first `rows` rows."""
    if aggregation.plain:
        _aggregate(
            hidden, NO_SCALES, hidden.shape[1], rows, sample.starts, sample.children,
            aggregation.mean, aggregation.stacked, aggregation.own_factor, aggregation.bias, aggregation.relu, out,
        )  # fmt: skip
    elif aggregation.attention is not None:
        aggregate_attending(hidden, sample, rows, aggregation.attention, aggregation.bias, aggregation.relu, out)
    else:
        weights = weights_of(sample)
        _aggregate_weighted(
            hidden, NO_SCALES, hidden.shape[1], rows, sample.starts, sample.children,
            weights.of_neighbours, weights.of_itself, aggregation.bias, aggregation.relu, out,
        )  # fmt: skip


def weights_of(sample: NeighbourSample) -> SampleWeights:
    if sample.weights is None:
        raise ValueError("a sample without weights, for a layer that weighs neighbours (`sampling.normalised.weigh`)")
    return sample.weights


@kernel
def _gather(
    values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray,
    more_values: np.ndarray | None, more_scales: np.ndarray | None,
    more_own_values: np.ndarray | None, more_own_scales: np.ndarray | None, columns: int,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    mean: bool, stacked: bool, own_factor: float, bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    rows = len(nodes)
    width = 2 * columns if stacked else columns
    rows_read = (values, more_values)
    scales_read = (scales, more_scales)
    own_read = (own_values, more_own_values)
    own_scales_read = (own_scales, more_own_scales)
    for row in range(rows):
        ahead = row + ROWS_AHEAD
        if ahead < rows:
            prefetch_rows(values, scales, neighbours, starts[ahead], starts[ahead + 1], columns)
            prefetch_rows(own_values, own_scales, nodes, ahead, ahead + 1, columns)
        start = starts[row]
        stop = starts[row + 1]
        factor = 1.0 / (stop - start) if mean and stop > start else 1.0
        place = row * width
        node = np.int64(nodes[row])
        if stacked:
            sum_rows(out, place, columns, rows_read, scales_read, neighbours, start, stop, factor,
                     own_read, own_scales_read, node, 0.0, bias, relu)  # fmt: skip
            sum_rows(out, place + columns, columns, rows_read, scales_read, neighbours, 0, 0, 0.0,
                     own_read, own_scales_read, node, 1.0, bias, relu)  # fmt: skip
        else:
            sum_rows(out, place, columns, rows_read, scales_read, neighbours, start, stop, factor,
                     own_read, own_scales_read, node, own_factor, bias, relu)  # fmt: skip


@kernel
def _aggregate(
    hidden: np.ndarray, no_scales: np.ndarray, columns: int, rows: int, starts: np.ndarray, children: np.ndarray,
    mean: bool, stacked: bool, own_factor: float, bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    width = 2 * columns if stacked else columns
    for row in range(rows):
        start = starts[row]
        stop = starts[row + 1]
        factor = 1.0 / (stop - start) if mean and stop > start else 1.0
        place = row * width
        if stacked:
            sum_rows(out, place, columns, hidden, no_scales, children, start, stop, factor,
                     hidden, no_scales, row, 0.0, bias, relu)  # fmt: skip
            sum_rows(out, place + columns, columns, hidden, no_scales, children, 0, 0, 0.0,
                     hidden, no_scales, row, 1.0, bias, relu)  # fmt: skip
        else:
            sum_rows(out, place, columns, hidden, no_scales, children, start, stop, factor,
                     hidden, no_scales, row, own_factor, bias, relu)  # fmt: skip


@kernel
def _gather_weighted(
    values: np.ndarray, scales: np.ndarray, own_values: np.ndarray, own_scales: np.ndarray,
    more_values: np.ndarray | None, more_scales: np.ndarray | None,
    more_own_values: np.ndarray | None, more_own_scales: np.ndarray | None, columns: int,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    of_neighbours: np.ndarray, of_itself: np.ndarray, bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    rows = len(nodes)
    rows_read = (values, more_values)
    scales_read = (scales, more_scales)
    own_read = (own_values, more_own_values)
    own_scales_read = (own_scales, more_own_scales)
    for row in range(rows):
        ahead = row + ROWS_AHEAD
        if ahead < rows:
            prefetch_rows(values, scales, neighbours, starts[ahead], starts[ahead + 1], columns)
            prefetch_rows(own_values, own_scales, nodes, ahead, ahead + 1, columns)
        sum_weighted_rows(out, row * columns, columns, rows_read, scales_read, neighbours, starts[row], starts[row + 1],
                          1.0, own_read, own_scales_read, np.int64(nodes[row]), of_itself[row],
                          bias, relu, of_neighbours)  # fmt: skip


@kernel
def _aggregate_weighted(
    hidden: np.ndarray, no_scales: np.ndarray, columns: int, rows: int, starts: np.ndarray, children: np.ndarray,
    of_neighbours: np.ndarray, of_itself: np.ndarray, bias: np.ndarray, relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    for row in range(rows):
        sum_weighted_rows(out, row * columns, columns, hidden, no_scales, children, starts[row], starts[row + 1],
                          1.0, hidden, no_scales, row, of_itself[row],
                          bias, relu, of_neighbours)  # fmt: skip
