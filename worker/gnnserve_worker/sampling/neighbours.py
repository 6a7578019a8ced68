"""Neighbour sampling for serving: uniform without replacement, O(fan-out) per node whatever its degree.

A sample is a list of rows: the nodes that need a hidden state, seeds first, then hop 1, … Leaves get no row, because
the gather aggregates them while it reads them. A node that is drawn twice has two rows, or one where they are shared:
what a node draws depends on the key, the depth and the node alone, so that sharing changes nothing but the cost, and a
part of a batch draws what the whole would have drawn. A seed's own layer-1 mean reuses its hop-1 draw, as PyG does.

Reading a neighbour takes two steps that miss every cache: where a node's list begins, and the entry in it. Both are
prefetched a block of nodes ahead. All arrays are reused scratch memory (`Scratch`).
"""

from __future__ import annotations

import math
from functools import cache

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.sampling.kernels import (
    choose_positions,
    mix,
    prefetch,
    scratch_bitmap,
    scratch_table,
    stream,
)

_BLOCK = 32
"""Nodes whose positions are drawn before the first of their neighbours is read."""
LAST_GENERATION = 2**31 - 64
"""Largest generation KnownNodes can store (32 bits). Each hop takes one; at the limit the table is cleared."""


class SampleWeights(msgspec.Struct, frozen=True):
    """Factors of a weighted sum over neighbours (`normalised.py`). Views of scratch, as the sample's own arrays."""

    of_neighbours: np.ndarray
    """float32, at least as many as `neighbours`, in their order."""
    of_itself: np.ndarray
    """float32, at least as many as rows."""


class NeighbourSample(msgspec.Struct, frozen=True):
    """Views into scratch memory, valid until the same scratch is used for another sample."""

    ends: tuple[int, ...]
    """Rows within d hops of the seeds, for d = 0 … layers − 1."""
    nodes: np.ndarray
    """Global id of each row, int32 [ends[-1]]."""
    starts: np.ndarray
    """Where the neighbours of each row begin in `neighbours`, int64 [ends[-1] + 1]."""
    neighbours: np.ndarray
    """Global ids, int32 [starts[-1]]."""
    children: np.ndarray
    """Row of each neighbour, int32, for the neighbours of all rows but those of the last hop."""
    seed_rows: np.ndarray | None
    """Row of each seed, int32; None: row i is seed i."""
    weights: SampleWeights | None = None
    """Where a layer weighs its neighbours."""


class KnownNodes:
    """A hash table for kernels (`_row_of`): the row of each node met in the current generation."""

    def __init__(self) -> None:
        self.entries = np.zeros(0, dtype=np.int64)
        """Open-addressed; a word holds generation and node of an entry. An older generation counts as an empty
        entry."""
        self.rows = np.empty(0, dtype=np.int32)
        self.generation = np.zeros(1, dtype=np.int64)

    def reserve(self, count: int) -> None:
        """Make room for `count` different nodes."""
        if len(self.entries) < 2 * count:
            self.entries = np.zeros(2 * grown(count), dtype=np.int64)
            self.rows = np.empty(len(self.entries), dtype=np.int32)
        elif self.generation[0] > LAST_GENERATION:
            self.entries.fill(0)
            self.generation[0] = 0


class Scratch:
    """Scratch memory that one thread samples into. It grows to the largest sample seen."""

    def __init__(self) -> None:
        self.seeds = np.empty(0, dtype=np.int64)
        """A writable copy of the seeds: a read-only array would compile the kernels a second time."""
        self.nodes = np.empty(0, dtype=np.int32)
        self.starts = np.empty(1, dtype=np.int64)
        self.neighbours = np.empty(0, dtype=np.int32)
        self.children = np.empty(0, dtype=np.int32)
        self.seed_rows = np.empty(0, dtype=np.int32)
        self.ends = np.zeros(8, dtype=np.int64)
        self.offsets = np.empty(0, dtype=np.int64)
        self.bitmap = scratch_bitmap()
        self.table = scratch_table(1)
        self.known = KnownNodes()

    def reserve(self, seeds: int, rows: int, edges: int, fanout: int) -> None:
        if len(self.seed_rows) < seeds:
            self.seed_rows = np.empty(grown(seeds), dtype=np.int32)
            self.seeds = np.empty(len(self.seed_rows), dtype=np.int64)
        if len(self.nodes) < rows:
            self.nodes = np.empty(grown(rows), dtype=np.int32)
            self.starts = np.empty(len(self.nodes) + 1, dtype=np.int64)
        self.known.reserve(rows)
        if len(self.neighbours) < edges:
            self.neighbours = np.empty(grown(edges), dtype=np.int32)
            self.children = np.empty(len(self.neighbours), dtype=np.int32)
        if len(self.offsets) < _BLOCK * fanout:
            self.offsets = np.empty(_BLOCK * fanout, dtype=np.int64)
            self.table = scratch_table(fanout)


def sample_neighbours(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    fanouts: tuple[int, ...],
    key: int,
    scratch: Scratch,
    *,
    share: bool,
) -> NeighbourSample:
    """Sample up to `fanouts[d]` distinct neighbours of every row of hop d; -1 takes all of them.

    `seeds` are node ids in range, int64. `share` gives a node that a hop meets twice one row. Equal keys draw the same
    sample.
    """
    rows, edges = len(seeds), 1
    counts = _as_array(fanouts)
    while True:
        scratch.reserve(len(seeds), rows, edges, max(1, *fanouts))
        known = scratch.known
        scratch.seeds[: len(seeds)] = seeds
        rows, edges = _sample(
            indptr, indices, scratch.seeds[: len(seeds)], counts, key, share,
            scratch.nodes, scratch.starts, scratch.neighbours, scratch.children, scratch.seed_rows, scratch.ends,
            scratch.offsets, scratch.bitmap, scratch.table, known.entries, known.rows, known.generation,
        )  # fmt: skip
        if rows <= len(scratch.nodes) and edges <= len(scratch.neighbours):
            break
    ends = tuple(scratch.ends[: len(fanouts)].tolist())
    return NeighbourSample(
        ends, scratch.nodes[:rows], scratch.starts[: rows + 1], scratch.neighbours[:edges], scratch.children,
        scratch.seed_rows[: len(seeds)] if share else None,
    )  # fmt: skip


@cache
def _as_array(fanouts: tuple[int, ...]) -> np.ndarray:
    return np.array(fanouts, dtype=np.int64)


def effective_nodes(indptr: np.ndarray) -> float:
    """Number of equally likely nodes that would collide as often as the ends of random edges do: 1 / Σ p²."""
    edges = int(indptr[-1])
    return edges * (edges / _sum_of_squares(indptr)) if edges else math.inf


def distinct_share(draws: int, nodes: float) -> float:
    """Expected share of `draws` out of `nodes` equally likely ones that are distinct."""
    if not draws or math.isinf(nodes):
        return 1.0
    return nodes * -math.expm1(-draws / nodes) / draws


def grown(count: int) -> int:
    """The next power of two, so that scratch memory is rarely allocated again."""
    return 1 << max(6, (count - 1).bit_length())


@kernel
def _sample(
    indptr: np.ndarray, indices: np.ndarray, seeds: np.ndarray, fanouts: np.ndarray, key: int, share: bool,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, children: np.ndarray, seed_rows: np.ndarray,
    ends: np.ndarray, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges that were sampled; where scratch is too small, a lower bound of those needed."""
    rows = place_seeds(seeds, share, nodes, seed_rows, known, known_rows, generation)
    for row in range(min(rows, _BLOCK)):
        prefetch(indptr, nodes[row])
    starts[0] = 0
    begin = 0
    edges = 0
    last = len(fanouts) - 1
    for depth in range(len(fanouts)):
        fanout = fanouts[depth]
        end = rows
        ends[depth] = end
        generation[0] += 1
        block = begin
        while block < end:
            stop = min(block + _BLOCK, end)
            for row in range(stop, min(stop + _BLOCK, end)):
                prefetch(indptr, nodes[row])
            # First draw for every node of the block and prefetch what was drawn; then read it.
            first_edge = edges
            for row in range(block, stop):
                node = nodes[row]
                first = int(indptr[node])
                degree = int(indptr[node + 1]) - first
                chosen = edges - first_edge
                if fanout < 0:
                    prefetch(indices, first)
                    edges += degree
                elif fanout < degree:
                    choose_positions(degree, fanout, stream(key, depth, node), offsets, chosen, bitmap, table)
                    for i in range(chosen, chosen + fanout):
                        offset = first + offsets[i]
                        offsets[i] = offset
                        prefetch(indices, offset)
                    edges += fanout
                else:
                    prefetch(indices, first)
                    for i in range(degree):
                        offsets[chosen + i] = first + i
                    edges += degree
                starts[row + 1] = edges
            if edges > len(neighbours):
                return rows, _at_least(edges, fanouts, depth, end)
            if fanout < 0:
                for row in range(block, stop):
                    first = int(indptr[nodes[row]]) - starts[row]
                    for edge in range(starts[row], starts[row + 1]):
                        neighbours[edge] = indices[first + edge]
            else:
                for i in range(edges - first_edge):
                    neighbours[first_edge + i] = indices[offsets[i]]
            if depth < last:
                if not share:
                    if rows + edges - first_edge > len(nodes):
                        return _at_least(rows + edges - first_edge, fanouts, depth, end), edges
                    for edge in range(first_edge, edges):
                        node = neighbours[edge]
                        prefetch(indptr, node)
                        nodes[rows] = node
                        children[edge] = rows
                        rows += 1
                else:
                    if rows + edges - first_edge > len(nodes):
                        return rows + edges - first_edge, edges
                    for edge in range(first_edge, edges):
                        node = neighbours[edge]
                        row = _row_of(node, rows, known, known_rows, generation[0])
                        if row == rows:
                            nodes[rows] = node
                            rows += 1
                        children[edge] = row
            block = stop
        begin = end
    return rows, edges


@inlined
def place_seeds(
    seeds: np.ndarray, share: bool, nodes: np.ndarray, seed_rows: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
) -> int:  # fmt: skip
    if not share:
        for i in range(len(seeds)):
            nodes[i] = seeds[i]
        return len(seeds)
    generation[0] += 1
    rows = 0
    for i in range(len(seeds)):
        row = _row_of(seeds[i], rows, known, known_rows, generation[0])
        if row == rows:
            nodes[rows] = seeds[i]
            rows += 1
        seed_rows[i] = row
    return rows


@inlined
def _row_of(node: int, rows: int, known: np.ndarray, known_rows: np.ndarray, generation: int) -> int:
    """The node's row in this generation; a node met for the first time gets row `rows`."""
    mask = len(known) - 1
    word = (np.int64(generation) << np.int64(32)) | np.int64(node)
    slot = np.int64(mix(np.uint64(node))) & mask
    while known[slot] >> np.int64(32) == generation:
        if known[slot] == word:
            return int(known_rows[slot])
        slot = (slot + 1) & mask
    known[slot] = word
    known_rows[slot] = rows
    return rows


@inlined
def _at_least(count: int, fanouts: np.ndarray, depth: int, rows: int) -> int:
    """Scratch for the whole sample where fan-outs bound it, so that it grows once and not hop by hop."""
    total = 0
    width = rows
    for d in range(depth, len(fanouts)):
        if fanouts[d] < 0:
            return 2 * count
        width *= fanouts[d]
        total += width
    # Fan-outs may be far above the degrees: do not trust the bound alone.
    return max(count, min(rows + total, 64 * count))


@kernel
def _sum_of_squares(indptr: np.ndarray) -> float:
    total = 0.0
    for node in range(len(indptr) - 1):
        degree = np.float64(indptr[node + 1] - indptr[node])
        total += degree * degree
    return total
