"""Tables: what variants gather from, a row per node; and gathering fused with aggregation.

A features table holds columns in rank order, most important first, so a k× variant reads the first ⌊f/k⌋ entries of
the same row: one table, no copies, and switching variant moves no data. (Selecting columns out of full rows would touch
every cache line and be slower than not pruning at all.) A projected table holds X·W of the first layer, because means
and sums commute with linear maps: rows are as wide as the hidden layer and the first matrix product is gone.

Leaf rows are 250 of a seed's 276; they are averaged or summed while they are read and never written. What is written
is what the first matrix product reads: [mean, own] beside each other for GraphSAGE, one sum for GIN, in the
product's own precision. From a projected table the same sum is the layer's output already. Attention, whose weights
depend on the rows, is `attention.py`.

Files are mapped, in huge pages where the kernel grants them: with 4 KiB pages a random row costs a page walk as well.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, NamedTuple, Protocol, assert_never

import numpy as np

from gnnserve_api.files.repository import TableKind
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Features
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import prefetch_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.tables.formats import TableFormat
from gnnserve_worker.tables.vectors import sum_rows, sum_weighted_rows

_WRITE_BYTES = 16 * 1024 * 1024
"""Bytes of one write. With at least a huge page, the page cache keeps the file in huge pages."""


class WritableRows(NamedTuple):
    values: np.ndarray
    scales: np.ndarray


@dataclass(frozen=True, slots=True)
class Rows:
    """One matrix with a row per node."""

    format: TableFormat
    values: np.ndarray
    """[nodes, columns and padding] in C order, of the format's dtype."""
    scales: np.ndarray
    """float32 [nodes] where the format has scales, else empty."""
    written: WritableRows | None = None
    """The same memory to write to, where changes may; None: it is read alone."""


@dataclass(frozen=True, slots=True)
class Table:
    kind: TableKind
    columns: int
    """Columns that hold features or products, without padding."""
    rows: Rows
    own: Rows
    """Rows that are read of a node itself, in the same format. They are the same object as `rows` unless the first
    layer has separate weights for the node itself."""

    @property
    def format(self) -> TableFormat:
        return self.rows.format

    @property
    def storage(self) -> Storage:
        return self.rows.format.storage

    @property
    def nodes(self) -> int:
        return len(self.rows.values)

    @property
    def projected(self) -> bool:
        return self.kind == "projected"


NO_SCALES = np.zeros(0, dtype=np.float32)


class RowsBehind(NamedTuple):
    """Rows that are read as if they stood behind a table's, in its format and as wide, from row N on: those of
    neighbours, and those of nodes themselves. They are made by `models/rows.py`. None: there are none."""

    values: np.ndarray | None
    scales: np.ndarray | None
    own_values: np.ndarray | None
    own_scales: np.ndarray | None


NOTHING_BEHIND = RowsBehind(None, None, None, None)


# Files


def map_array(path: Path) -> np.ndarray:
    """A read-only array over a .npy file, in huge pages where the kernel has them for files.

    ValueError: not a .npy file of the numbers that a repository holds. OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = read_header(file)
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    # A plain array over the mapping: np.memmap's own class costs microseconds at every slice.
    count = int(np.prod(header.shape))
    return np.frombuffer(mapped, dtype=header.dtype, count=count, offset=header.bytes).reshape(header.shape)


class ArrayHeader(NamedTuple):
    """Header of a .npy file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    bytes: int
    """Where the numbers begin."""


def read_header(file: BinaryIO) -> ArrayHeader:
    """ValueError: not a .npy file of the numbers that a repository holds, or too short."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of the .npy format than 1.0")
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except (TokenError, SyntaxError, TypeError) as error:  # raised by Python's parser, which numpy calls
        raise ValueError(f"damaged header: {error}") from error
    if fortran_order or dtype.hasobject:
        raise ValueError(f"expected numbers in C order, found {dtype} in {'Fortran' if fortran_order else 'C'} order")
    header = ArrayHeader(shape, dtype, file.tell())
    wanted_bytes = header.bytes + int(np.prod(shape)) * dtype.itemsize
    found_bytes = os.fstat(file.fileno()).st_size
    if found_bytes < wanted_bytes:
        raise ValueError(f"{found_bytes:,} bytes, expected {wanted_bytes:,} for {dtype} {list(shape)}")
    return header


def write_rows(
    path: Path, blocks: Iterable[np.ndarray], nodes: int, columns: int, table_format: TableFormat
) -> np.ndarray | None:
    """Write float32 blocks of rows, which add up to [nodes, columns]. Returns the scales, if the format has any.

    Through a plain file, whose full disk is an OSError; writing to a mapping would end the process. ValueError as
    `TableFormat.encode`.
    """
    padded = table_format.padded_columns(columns)
    scales = []
    with path.open("xb", buffering=_WRITE_BYTES) as file:
        path.chmod(0o444)
        np.lib.format.write_array_header_1_0(
            file, {"descr": table_format.dtype.str, "fortran_order": False, "shape": (nodes, padded)}
        )
        for block in blocks:
            values, block_scales = table_format.encode(np.ascontiguousarray(block, dtype=np.float32))
            if padded > columns:
                values = np.pad(values, ((0, 0), (0, padded - columns)))
            file.write(np.ascontiguousarray(values).data)
            if block_scales is not None:
                scales.append(block_scales)
    return np.concatenate(scales) if scales else None


def copy_rows(path: Path, rows: Rows, nodes: np.ndarray) -> None:
    """Write the rows of these nodes (int64) as another table of the same format, without their scales."""
    with path.open("xb", buffering=_WRITE_BYTES) as file:
        path.chmod(0o444)
        shape = (len(nodes), *rows.values.shape[1:])
        header = {"descr": rows.values.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        step = max(1, _WRITE_BYTES // (rows.values.shape[1] * rows.values.itemsize))
        for start in range(0, len(nodes), step):
            file.write(rows.values[nodes[start : start + step]].data)


def feature_blocks(features: Features, columns: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the rows of `features[:, columns]` in float32, dense even if features are sparse, some MB at a time."""
    order = np.asarray(columns, dtype=np.int64)
    source = features if isinstance(features, np.ndarray) else features[:, order]
    for rows in _blocks(features):
        block = source[rows]
        yield block[:, order] if isinstance(block, np.ndarray) else block.toarray()


def projected_blocks(features: Features, weight: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of features · weight, some megabytes at a time. `weight` is float32 [columns, outputs]."""
    for rows in _blocks(features):
        yield np.asarray(features[rows] @ weight, dtype=np.float32)


def _blocks(features: Features) -> Iterator[slice]:
    nodes, width = features.shape
    step = max(1, _WRITE_BYTES // max(1, 4 * width))
    for start in range(0, nodes, step):
        yield slice(start, min(start + step, nodes))


# Gathering

ROWS_AHEAD = 2
"""Rows by which gathering prefetches ahead. Further ahead, rows are evicted again before they are read."""


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


class AttentionVectors(Protocol):
    """Heads and score vectors of attention: `attention.Attention`."""

    @property
    def heads(self) -> int: ...  # pragma: no cover

    @property
    def negative_slope(self) -> float:
        """Slope of the leaky ReLU below 0."""
        ...  # pragma: no cover

    @property
    def vectors(self) -> np.ndarray:
        """float32 [2 · heads · columns], or empty where rows end with 2 · heads products."""
        ...  # pragma: no cover

    @property
    def stored(self) -> bool:
        """Whether rows end with these products."""
        ...  # pragma: no cover

    def head_columns(self, columns: int) -> int:
        """Columns that one head sums, of rows of `columns`."""
        ...  # pragma: no cover

    def gather(
        self, table: Table, columns: int, sample: NeighbourSample, bias: np.ndarray, relu: bool, out: np.ndarray,
        behind: RowsBehind,
    ) -> None: ...  # fmt: skip  # pragma: no cover

    def aggregate(
        self, hidden: np.ndarray, sample: NeighbourSample, rows: int, bias: np.ndarray, relu: bool, out: np.ndarray
    ) -> None: ...  # pragma: no cover


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
    attention: AttentionVectors | None = None
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
        aggregation.attention.gather(table, columns, sample, aggregation.bias, aggregation.relu, out, more)
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
        aggregation.attention.aggregate(hidden, sample, rows, aggregation.bias, aggregation.relu, out)
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
