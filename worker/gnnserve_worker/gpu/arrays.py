"""Arrays that kernels read and write: tensors in GPU memory or in pinned host memory, and how they are laid out.

Nothing here allocates after it was built: a batch of any size within its bucket uses the same arrays, so that all that
is done with them can be captured in a CUDA graph. Which array lies where is decided in `placement.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gnnserve_api.variants import Storage
from gnnserve_worker.sampling.neighbours import most_by_hop
from gnnserve_worker.tables.formats import TableFormat
from gnnserve_worker.tables.table import (
    Aggregation,
    Aggregator,
    AttentionVectors,
    Own,
    is_attention,
    is_mean,
    is_stacked,
    is_weighted,
)

VECTOR_BYTES: Final = 16
"""The most that one lane of a GPU reads with one instruction; rows begin at multiples of it, if they are as long."""
_SORTING_BYTES: Final = 24
"""Bytes that sorting a number and its place takes: another copy of both, rounded up by the allocator."""
MEASURED: Final = torch.device("meta")
"""Device of arrays without memory, which say how much others would take; no kernel is launched for them."""
PADDING: Final = -1
"""Stands in place of a node where there is none."""

_STORED: Final[Mapping[Storage, torch.dtype]] = {
    Storage.FLOAT32: torch.float32,
    Storage.FLOAT16: torch.float16,
    Storage.BFLOAT16: torch.bfloat16,
    Storage.INT8: torch.int8,
}
"""torch's own numbers for each of `tables.formats.FORMATS`."""
_ROW_DTYPES: Final = tuple(_STORED.values())


def tensor_over(array: np.ndarray, table_format: TableFormat | None = None) -> Tensor:
    """The array's own memory as a tensor, in C order. With `table_format`, the array holds rows in that format, and
    bits of a float16 or bfloat16 become such numbers.

    The tensor must not be written where the array must not be.
    """
    with warnings.catch_warnings():
        # A mapped file is read-only, which tensors cannot be.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        tensor = torch.from_numpy(array)
    return tensor if table_format is None else tensor.view(_STORED[table_format.storage])


@dataclass(frozen=True, slots=True)
class DeviceGraph:
    """Neighbour lists in CSR form, as `graph.store.Graph`; either array in GPU memory or in pinned host memory."""

    indptr: Tensor
    """int64 [nodes + 1], ascending; or int64 [nodes, 2], begin and end of each list, of a graph that changes. No node
    has 2^31 neighbours or more."""
    indices: Tensor
    """int32 [edges], or more of a graph that changes."""

    def __post_init__(self) -> None:
        _expect("indptr", self.indptr, torch.int64, list_step(self.indptr))
        _expect("indices", self.indices, torch.int32, 1)

    @property
    def nodes(self) -> int:
        """How many nodes have lists; of a graph that changes, those that there is room for."""
        return len(self.indptr) - (list_step(self.indptr) == 1)


def list_step(indptr: Tensor) -> int:
    """Numbers from the beginning of a list to that of the next node's: 1 where lists lie one behind the other, 2 where
    each has an end of its own."""
    return 2 if indptr.dim() == 2 else 1


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """A row per node, as `tables.table.Rows`."""

    values: Tensor
    """float32, float16, bfloat16 or int8 [nodes, stride], stride in columns with padding; in GPU memory or in pinned
    host memory. Rows of 16 bytes or more begin at multiples of 16 bytes, shorter ones at multiples of their length."""
    scales: Tensor | None
    """Scales of int8 rows, float32 [nodes], in GPU memory; or where the values are, of rows behind a table's."""

    def __post_init__(self) -> None:
        if self.values.dtype not in _ROW_DTYPES:
            raise ValueError(f"values are {self.values.dtype}, expected one of {', '.join(map(str, _ROW_DTYPES))}")
        _expect("values", self.values, self.values.dtype, 2)
        if (self.scales is not None) != (self.values.dtype == torch.int8):
            raise ValueError(f"{self.values.dtype} rows with scales: {self.scales is not None}; int8 rows have them")
        if self.scales is not None:
            _expect("scales", self.scales, torch.float32, 1)
        if self.values.data_ptr() % self.alignment_bytes:
            raise ValueError(
                f"values begin at {self.values.data_ptr():#x}, no multiple of {self.alignment_bytes} bytes"
            )

    @property
    def stride(self) -> int:
        """Columns from one row to the next."""
        return self.values.shape[1]

    @property
    def item_bytes(self) -> int:
        return self.values.element_size()

    @property
    def alignment_bytes(self) -> int:
        """Every row begins at a multiple of it; a power of two up to 16."""
        return math.gcd(VECTOR_BYTES, self.stride * self.item_bytes)


@dataclass(frozen=True, slots=True)
class DeviceTable:
    rows: DeviceRows
    own: DeviceRows
    """Rows of the nodes themselves: the very same as `rows` where the table's are."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """A feature cache as a kernel sees it: where blocks of columns of a node's row lie in GPU memory, if they do.

    Slot s is row s % slots_per_device of the pool of device s // slots_per_device. The directory changes while kernels
    run: an entry is read once for what it is used for.
    """

    directory: Tensor
    """int32 [blocks, nodes]: slots; -1 where a block is not there or must not be read now."""
    pools: Tensor
    """int64 [devices]: addresses of arrays [slots_per_device, block_columns] in the rows' dtype, each at a multiple of
    16 bytes."""
    slots_per_device: int
    block_columns: int
    """A multiple of 16 bytes; powers of two are read in the widest tiles."""
    accesses: Tensor
    """int32 [blocks, nodes]: row m - 1 counts reads of a node by variants that touch m blocks."""
    totals: Tensor
    """int64 [2]: blocks found and blocks not found."""

    def __post_init__(self) -> None:
        _expect("directory", self.directory, torch.int32, 2)
        _expect("pools", self.pools, torch.int64, 1)
        _expect("accesses", self.accesses, torch.int32, 2)
        _expect("totals", self.totals, torch.int64, 1)
        if self.directory.shape != self.accesses.shape:
            raise ValueError(f"directory is {list(self.directory.shape)}, accesses {list(self.accesses.shape)}")
        if self.pools.numel() * self.slots_per_device >= 2**31:
            raise ValueError(f"{self.pools.numel()} · {self.slots_per_device:,} slots, expected less than 2^31")


@dataclass(frozen=True, slots=True)
class PaddedTree:
    """Room for the trees of a bucket's seeds, level by level: every possible node has a place, whether it is used or
    not.

    Rows are the nodes that need a hidden state: seeds first, then hop 1, …; place i of a row's neighbours in `ids` is
    also the row of that neighbour, but for leaves, which have none. So rows are numbered as `NeighbourSample`'s are
    without sharing, where no node has fewer neighbours than the fan-out.
    """

    fanouts: tuple[int, ...]
    ends: tuple[int, ...]
    """Rows within d hops of the seeds, for d = 0 … layers - 1; then all places."""
    ids: Tensor
    """Node of each place, int32 [ends[-1]]; -1 where there is none."""
    counts: Tensor
    """Neighbours that a row has, from its first place on: int32 [rows]."""
    starts: Tensor
    """First place of a row's neighbours, int32 [rows]; always the same."""

    @staticmethod
    def allocate(seeds: int, fanouts: tuple[int, ...], device: torch.device) -> PaddedTree:
        """`seeds`: of the bucket, padding included. Fan-outs are at least 1, or all 0: no neighbours."""
        if seeds < 1 or not fanouts or (min(fanouts) < 1 and set(fanouts) != {0}):
            raise ValueError(
                f"a tree of {seeds} seeds with fan-outs {list(fanouts)}: expected at least one seed and fan-outs of at "
                "least 1; full neighbourhoods (-1) are served on the CPU"
            )
        widths = most_by_hop(fanouts, seeds)
        ends = tuple(accumulate(widths))
        if ends[-1] >= 2**31:
            raise ValueError(f"a tree of {ends[-1]:,} places, expected less than 2^31: smaller buckets or fan-outs")
        starts = np.concatenate(
            [
                end + fanout * np.arange(width, dtype=np.int32)
                for end, width, fanout in zip(ends[:-1], widths[:-1], fanouts, strict=True)
            ]
        )
        return PaddedTree(
            fanouts,
            ends,
            torch.full((ends[-1],), PADDING, dtype=torch.int32, device=device),
            torch.zeros(ends[-2], dtype=torch.int32, device=device),
            torch.from_numpy(starts).to(device),
        )

    @property
    def seeds(self) -> int:
        return self.ends[0]

    @property
    def rows(self) -> int:
        return self.ends[-2]

    def begin(self, depth: int) -> int:
        """First row of a depth."""
        return self.ends[depth - 1] if depth else 0

    def nodes(self, depth: int) -> Tensor:
        """int32 [rows of that depth]."""
        return self.ids[self.begin(depth) : self.ends[depth]]

    def neighbours(self, depth: int) -> Tensor:
        """int32 [rows of that depth, fan-out]: the nodes of the next depth."""
        return self.nodes(depth + 1).view(-1, self.fanouts[depth])

    def nbytes(self) -> int:
        return self.ids.nbytes + self.counts.nbytes + self.starts.nbytes


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """Rows that a chunk reads several times, where they were copied to, in GPU memory (`kernels/distinct.py`)."""

    values: Tensor
    """A table's numbers [slots, stride]; rows begin at multiples of 16 bytes."""
    slots: Tensor
    """int32 [places]: the slot with the row of each place's node; -1: it is read where it lies."""

    @property
    def stride(self) -> int:
        return self.values.shape[1]


@dataclass(frozen=True, slots=True)
class DistinctRoom:
    """A lane's room for such rows, and for finding them, in GPU memory."""

    values: Tensor
    """uint8 [bytes]"""
    sorted_ids: Tensor
    """int32 [places], as the others below: nodes of all places, ascending."""
    order: Tensor
    """int64: place of each of them."""
    marks: Tensor
    """int32: 1 at the first place of a node whose row is copied."""
    ranks: Tensor
    """int32: sums of the marks so far."""
    nodes: Tensor
    """int32: node of each slot."""
    slots: Tensor
    """int32"""
    counts: Tensor
    """int32 [2]: rows that were copied, and reads of them."""

    @staticmethod
    def allocate(places: int, value_bytes: int, device: torch.device) -> DistinctRoom:
        def numbers(count: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        return DistinctRoom(
            numbers(value_bytes, torch.uint8), numbers(places), numbers(places, torch.int64), numbers(places),
            numbers(places), numbers(places), numbers(places), numbers(2),
        )  # fmt: skip

    @staticmethod
    def bytes_for(places: int, value_bytes: int) -> int:
        """Bytes of it, with those that sorting takes beside it."""
        return value_bytes + places * (5 * 4 + 8 + _SORTING_BYTES)

    def cut(self, rows: DeviceRows, columns: int, places: int) -> DistinctRows:
        """Slots for these columns of the rows, as many as there is room for and a chunk can need."""
        row_bytes = distinct_row_bytes(columns, rows.item_bytes)
        count = min(places, len(self.values) // row_bytes)
        if not count:
            raise ValueError(f"{len(self.values):,} bytes for rows of {row_bytes:,}")
        values = self.values[: count * row_bytes].view(rows.values.dtype).view(count, -1)
        return DistinctRows(values, self.slots[:places])


def distinct_row_bytes(columns: int, item_bytes: int) -> int:
    """Bytes of a slot: a multiple of what a lane reads."""
    return -(-columns * item_bytes // VECTOR_BYTES) * VECTOR_BYTES


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """Weights that weighted sums over neighbours read of the graph, as `sampling/normalised.py` has it."""

    roots: Tensor
    """`inverse_roots`, float32 [nodes], in GPU memory."""
    indptr: Tensor
    """The graph's own: a neighbour list's length is part of a row's factor."""

    def __post_init__(self) -> None:
        _expect("roots", self.roots, torch.float32, 1)
        _expect("indptr", self.indptr, torch.int64, list_step(self.indptr))


@dataclass(frozen=True, slots=True)
class DeviceAttention:
    """`tables.attention.Attention` where kernels can read it."""

    heads: int
    negative_slope: float
    vectors: Tensor | None
    """float32 [2 · heads, columns] in GPU memory. None: rows end with the 2 · heads products."""

    @staticmethod
    def of(attention: AttentionVectors, device: torch.device) -> DeviceAttention:
        vectors = None
        if not attention.stored:
            vectors = torch.tensor(attention.vectors.reshape(2 * attention.heads, -1), device=device)
        return DeviceAttention(attention.heads, attention.negative_slope, vectors)

    def summed_columns(self, columns: int) -> int:
        """Leading columns that are summed, of rows of `columns`."""
        return columns if self.vectors is not None else columns - 2 * self.heads

    @property
    def groups(self) -> int:
        """How often those columns are summed: once for each head, or once where each head has columns of its own."""
        return self.heads if self.vectors is not None else 1


@dataclass(frozen=True, slots=True)
class Shares:
    """Factors of the rows in a sum, in GPU memory; places and rows are those of a tree."""

    of_neighbours: Tensor
    """float32 [places, heads]: the share that a place has in its row's sum."""
    of_itself: Tensor
    """float32 [rows, heads]."""

    @staticmethod
    def over(numbers: Tensor, rows: int, places: int, heads: int) -> Shares:
        """Shares in the first heads · (places + rows) of `numbers`, float32."""
        of_neighbours, of_itself = numbers[: heads * (places + rows)].split([heads * places, heads * rows])
        return Shares(of_neighbours.view(places, heads), of_itself.view(rows, heads))


@dataclass(frozen=True, slots=True)
class AttentionRoom:
    """Scratch memory of attention before rows are summed, on the GPU."""

    scores: Tensor
    """float32 [places, 2 · heads]: of a node as a neighbour, then as the one that attends (rows alone)."""
    shares: Shares


@dataclass(frozen=True, slots=True)
class DeviceAggregation:
    """`tables.table.Aggregation` with its bias where kernels can read it."""

    aggregator: Aggregator
    own: Own
    own_factor: float
    bias: Tensor | None
    """float32 [columns] in GPU memory."""
    relu: bool
    weights: DeviceWeights | None = None
    """Weights of neighbours; None where none are weighed."""
    attention: DeviceAttention | None = None
    """Attention; only with the aggregator ATTENTION."""

    def __post_init__(self) -> None:
        if is_weighted(self.aggregator) != (self.weights is not None):
            raise ValueError(f"a {self.aggregator.value} with weights: {self.weights is not None}")
        if is_attention(self.aggregator) != (self.attention is not None):
            raise ValueError(f"aggregator {self.aggregator.value}, with attention: {self.attention is not None}")

    def width(self, columns: int) -> int:
        """Columns of a row once `columns` of it are aggregated."""
        if self.attention is not None:
            return self.attention.groups * self.attention.summed_columns(columns)
        return 2 * columns if self.stacked else columns

    def heads_of(self, shares: Shares | None) -> int:
        """Heads whose shares are factors of the sums; 0: there are none. Shares may also be what neighbours weigh, in
        place of `weights`. ValueError: they do not belong to this aggregation."""
        if shares is None and self.attention is None:
            return 0
        if shares is None or (self.attention is None and self.weights is None):
            raise ValueError(f"aggregator {self.aggregator.value}, with shares: {shares is not None}")
        return 1 if self.attention is None else self.attention.heads

    @property
    def mean(self) -> bool:
        return is_mean(self.aggregator)

    @property
    def stacked(self) -> bool:
        return is_stacked(self.own)

    @staticmethod
    def of(aggregation: Aggregation, device: torch.device, weights: DeviceWeights | None = None) -> DeviceAggregation:
        """`weights`: of the graph, where it has any; taken where the aggregation reads them."""
        bias = torch.tensor(aggregation.bias, dtype=torch.float32, device=device) if len(aggregation.bias) else None
        return DeviceAggregation(
            aggregation.aggregator,
            aggregation.own,
            aggregation.own_factor,
            bias,
            aggregation.relu,
            weights if aggregation.weighted else None,
            None if aggregation.attention is None else DeviceAttention.of(aggregation.attention, device),
        )


def _expect(name: str, tensor: Tensor, dtype: torch.dtype, dimensions: int) -> None:
    if tensor.dtype != dtype or tensor.dim() != dimensions or not tensor.is_contiguous():
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)}, strides {list(tensor.stride())}; expected {dtype} of "
            f"{dimensions} dimensions in C order"
        )
