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
import operator
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import (
    BLOCK,
    choose_positions,
    list_begin,
    list_end,
    mix,
    prefetch,
    prefetch_bounds,
    room_for,
    scratch_bitmap,
    scratch_for,
    scratch_needed,
    scratch_table,
    stream,
)
from gnnserve_worker.kernels.view import SampleView, sample_seen

LAST_GENERATION = 2**31 - 64
"""Largest generation KnownNodes can store (32 bits). Each hop takes one; at the limit the table is cleared."""


class SampleWeights(msgspec.Struct, frozen=True):
    """Factors of a weighted sum over neighbours (`normalised.py`). Views of scratch, as the sample's own arrays."""

    of_neighbours: np.ndarray
    """float32, at least as many as `neighbours`, in their order."""
    of_itself: np.ndarray
    """float32, at least as many as rows."""


class SampledPayload(msgspec.Struct, frozen=True):
    """Payload of all edges that a sample drew by one relation (`payload.py`)."""

    edges: np.ndarray
    """Their places in `NeighbourSample.neighbours`, int64, ascending."""
    features: np.ndarray
    """float32 [edges, columns]"""
    times: np.ndarray
    """int64 [edges]; [0]: edges of the relation have no time."""


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
    segments: np.ndarray
    """Where the neighbours of each row by each relation begin in `neighbours`: int64 [rows · lists of a node + 1].
    Of one relation these are `starts`."""
    type_ends: np.ndarray
    """Where the rows of each type end in each hop: int64 [layers · types]. Of one type these are `ends`."""
    weights: SampleWeights | None = None
    """Where a layer weighs its neighbours."""
    views: np.ndarray | None = None
    """View of each row, int32 [ends[-1]]; None: it was sampled without any."""
    positions: np.ndarray | None = None
    """Where each of `neighbours` stands, int64 [starts[-1]]: a place in the graph's `indices`, or their number + k for
    the k-th entry that lists gain in the view. None: it was sampled without naming them."""
    payload: tuple[SampledPayload | None, ...] = ()
    """Features and times of its edges by each relation, where a network reads them; None: the relation has none."""


class KnownNodes:
    """A hash table for kernels (`row_of`): the row of each node met in the current generation."""

    def __init__(self) -> None:
        self.entries = np.zeros(0, dtype=np.int64)
        """Open-addressed; a word holds generation and node of an entry. An older generation counts as an empty
        entry."""
        self.rows = np.empty(0, dtype=np.int32)
        self.generation = np.zeros(1, dtype=np.int64)

    def reserve(self, count: int) -> None:
        """Make room for `count` different nodes."""
        if len(self.entries) < 2 * count:
            self.entries = np.zeros(2 * room_for(count), dtype=np.int64)
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
        self.positions = np.empty(0, dtype=np.int64)
        """Where neighbours stand, where samples name it."""
        self.seed_rows = np.empty(0, dtype=np.int32)
        self.views = np.empty(0, dtype=np.int32)
        """View of each row, where there is any."""
        self.edge_weights = np.empty(0, dtype=np.float32)
        """Weight of each neighbour, where samples have weights."""
        self.row_weights = np.empty(0, dtype=np.float32)
        self.ends = np.zeros(0, dtype=np.int64)
        self.offsets = np.empty(0, dtype=np.int64)
        self.bitmap = scratch_bitmap()
        self.table = scratch_table(1)
        self.known = KnownNodes()
        self.types = np.empty(0, dtype=np.int32)
        """Type of each row of the hop that is being made."""
        self.fresh = np.empty(0, dtype=np.int32)
        """Room to put rows into another order: three numbers for each."""
        self.segments = np.empty(1, dtype=np.int64)
        self.type_ends = np.zeros(0, dtype=np.int64)
        self.seed_room = 0
        """Seeds that there is room for. This and the next two say whether a sample must reserve anything at all."""
        self.fanout_room = 0
        """Largest fan-out that there is room for."""
        self.hop_room = 0

    def reserve(
        self, seeds: int, rows: int, edges: int, fanout: int, hops: int, *, has_views: bool, lists: int = 1
    ) -> None:
        """`lists`: how many a node has at most."""
        if len(self.seed_rows) < seeds:
            self.seed_rows = np.empty(room_for(seeds), dtype=np.int32)
            self.seeds = np.empty(len(self.seed_rows), dtype=np.int64)
        if len(self.nodes) < rows:
            self.nodes = np.empty(room_for(rows), dtype=np.int32)
            self.starts = np.empty(len(self.nodes) + 1, dtype=np.int64)
        if has_views and len(self.views) < len(self.nodes):
            self.views = np.empty(len(self.nodes), dtype=np.int32)
        self.known.reserve(rows)
        if len(self.neighbours) < edges:
            self.neighbours = np.empty(room_for(edges), dtype=np.int32)
            self.children = np.empty(len(self.neighbours), dtype=np.int32)
        if len(self.offsets) < BLOCK * lists * fanout:
            self.offsets = np.empty(BLOCK * lists * fanout, dtype=np.int64)
        # Apart from the offsets: nodes of fewer lists may need fewer of them for more neighbours.
        if len(self.table) < 2 * fanout:
            self.table = scratch_table(fanout)
        if len(self.ends) < hops:
            self.ends = np.zeros(hops, dtype=np.int64)
        self.seed_room, self.hop_room = len(self.seeds), len(self.ends)
        self.fanout_room = min(len(self.offsets) // BLOCK, len(self.table) // 2)

    def reserve_positions(self) -> np.ndarray:
        """Room for the position of each neighbour that there is room for."""
        if len(self.positions) < len(self.neighbours):
            self.positions = np.empty(len(self.neighbours), dtype=np.int64)
        return self.positions

    def reserve_weights(self, rows: int, edges: int) -> None:
        if len(self.edge_weights) < edges or len(self.row_weights) < rows:
            self.edge_weights = scratch_for(self.edge_weights, edges)
            self.row_weights = scratch_for(self.row_weights, rows)

    def reserve_types(self, lists: int, type_ends: int) -> None:
        """Make room for what samples of several relations have beside, as much as was reserved of the rest."""
        if len(self.types) < len(self.nodes):
            self.types = np.empty(len(self.nodes), dtype=np.int32)
            self.fresh = np.empty(3 * len(self.types), dtype=np.int32)
        if len(self.segments) < len(self.nodes) * lists + 1:
            self.segments = np.empty(len(self.nodes) * lists + 1, dtype=np.int64)
        if len(self.type_ends) < type_ends:
            self.type_ends = np.zeros(type_ends, dtype=np.int64)


class Sampler(Protocol):
    """Draws neighbours: `sample_neighbours` itself, where tables have a row of each node in a graph whose nodes have
    one list each, or `sample_relations`. It is chosen when a revision is opened, and both are called alike, so that no
    request asks which one it is. `fanouts`: of each layer, the same by every relation; or of each relation, its
    layers."""

    def __call__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        seeds: np.ndarray,
        fanouts: Any,
        key: int,
        scratch: Scratch,
        *,
        share: bool,
        view: SampleView | None = None,
        names_leaves: bool = False,
        names_positions: bool = False,
    ) -> NeighbourSample: ...  # pragma: no cover


def sample_neighbours(
    indptr: np.ndarray,
    indices: np.ndarray,
    seeds: np.ndarray,
    fanouts: tuple[int, ...],
    key: int,
    scratch: Scratch,
    *,
    share: bool,
    view: SampleView | None = None,
    names_leaves: bool = False,
    names_positions: bool = False,
) -> NeighbourSample:
    """Sample up to `fanouts[d]` distinct neighbours of every row of hop d; -1 takes all of them.

    `seeds` are node ids in range, int64. `share` gives a node that a hop meets twice one row. Equal keys draw the same
    sample. With a `view` ids may be those of overlay nodes, and what is sampled of them, and named so, is what each row
    sees. Leaves that only gain neighbours keep their stored name, unless `names_leaves`: their lists are not read.
    `names_positions`: whether the sample says where each neighbour stands, by which payload of edges is gathered.
    """
    count, (counts, hops, most) = len(seeds), _draws_of(fanouts)
    if most == 0:
        return _seeds_alone(seeds, hops, scratch, names_positions=names_positions)
    known, has_views = scratch.known, view is not None
    lacks_room = count > scratch.seed_room or most > scratch.fanout_room or hops > scratch.hop_room
    if lacks_room or has_views or known.generation[0] > LAST_GENERATION:
        scratch.reserve(count, count, 1, most, hops, has_views=has_views)
    while True:
        positions = scratch.reserve_positions() if names_positions else None
        scratch.seeds[:count] = seeds
        if view is None:
            rows, edges = _sample(
                indptr, indices, scratch.seeds[:count], counts, key, share,
                scratch.nodes, scratch.starts, scratch.neighbours, scratch.children, scratch.seed_rows, scratch.ends,
                scratch.offsets, scratch.bitmap, scratch.table, known.entries, known.rows, known.generation, positions,
            )  # fmt: skip
        else:
            rows, edges = _sample_seen(
                indptr, indices, count, counts, key, scratch, positions, view, share=share, names_leaves=names_leaves
            )
        if rows <= len(scratch.nodes) and edges <= len(scratch.neighbours):
            break
        scratch.reserve(count, rows, edges, most, hops, has_views=has_views)
    ends, starts = scratch.ends[:hops], scratch.starts[: rows + 1]
    return NeighbourSample(
        tuple(ends.tolist()), scratch.nodes[:rows], starts, scratch.neighbours[:edges], scratch.children,
        scratch.seed_rows[:count] if share else None, starts, ends,
        None, None if view is None else scratch.views[:rows], None if positions is None else positions[:edges],
    )  # fmt: skip


def _sample_seen(
    indptr: np.ndarray, indices: np.ndarray, seeds: int, counts: np.ndarray, key: int, scratch: Scratch,
    positions: np.ndarray | None, view: SampleView, *, share: bool, names_leaves: bool,
) -> tuple[int, int]:  # fmt: skip
    """As `_sample`, in the views that the seeds of `scratch` belong to."""
    known = scratch.known
    rows, edges = sample_seen(
        indptr, indices, scratch.seeds[:seeds], counts, key, share,
        scratch.nodes, scratch.starts, scratch.neighbours, scratch.children, scratch.seed_rows, scratch.ends,
        scratch.offsets, scratch.bitmap, scratch.table, known.entries, known.rows, known.generation, positions,
        scratch.views, view.packed, view.first_seed, names_leaves,
    )  # fmt: skip
    return int(rows), int(edges)


def _seeds_alone(seeds: np.ndarray, layers: int, scratch: Scratch, *, names_positions: bool) -> NeighbourSample:
    """A sample without neighbours, for networks of one row per node: no list is looked up."""
    count = len(seeds)
    scratch.reserve(count, count, 0, 1, layers, has_views=False)
    nodes, starts, ends = scratch.nodes[:count], scratch.starts[: count + 1], scratch.ends[:layers]
    nodes[...] = seeds
    starts.fill(0)
    ends.fill(count)
    return NeighbourSample(
        (count,) * layers, nodes, starts, scratch.neighbours[:0], scratch.children, None, starts, ends,
        positions=scratch.positions[:0] if names_positions else None,
    )  # fmt: skip


class _Draws(NamedTuple):
    counts: np.ndarray
    """Fan-out of each hop, int64."""
    hops: int
    most: int
    """Numbers that a node's draw is made in, at most, and at least 1; 0: no hop has neighbours."""


@cache
def _draws_of(fanouts: tuple[int, ...]) -> _Draws:
    return _Draws(np.array(fanouts, dtype=np.int64), len(fanouts), max(1, *fanouts) if any(fanouts) else 0)


@kernel
def _sample(
    indptr: np.ndarray, indices: np.ndarray, seeds: np.ndarray, fanouts: np.ndarray, key: int, share: bool,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, children: np.ndarray, seed_rows: np.ndarray,
    ends: np.ndarray, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray, positions: np.ndarray | None,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges that were sampled; where scratch is too small, a lower bound of those needed.

    What stands under `positions is None` is left out of the compiled code where there are some, and the other way
    round.
    """
    rows = place_seeds(seeds, share, nodes, seed_rows, known, known_rows, generation)
    _prefetch_lists(indptr, nodes, 0, min(rows, BLOCK))
    starts[0] = 0
    begin = 0
    edges = 0
    for depth in range(len(fanouts)):
        end = rows
        ends[depth] = end
        generation[0] += 1
        rows, edges = _sample_hop(
            indptr, indices, fanouts, depth, begin, end, rows, edges, key, share, nodes, starts, neighbours,
            children, offsets, bitmap, table, known, known_rows, generation[0], positions,
        )  # fmt: skip
        if rows > len(nodes) or edges > len(neighbours):
            return rows, edges
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
        row = row_of(seeds[i], rows, known, known_rows, generation[0])
        if row == rows:
            nodes[rows] = seeds[i]
            rows += 1
        seed_rows[i] = row
    return rows


@inlined
def row_of(node: int, rows: int, known: np.ndarray, known_rows: np.ndarray, generation: int) -> int:
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
def _sample_hop(
    indptr: np.ndarray, indices: np.ndarray, fanouts: np.ndarray, depth: int, begin: int, end: int,
    rows: int, edges: int, key: int, share: bool, nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    children: np.ndarray, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: int, positions: np.ndarray | None,
) -> tuple[int, int]:  # fmt: skip
    """Sample for rows begin to end - 1, block by block; rows and edges that there are then, or as `_sample` says. Not
    told apart further: a call with so many arrays for each block takes a twentieth of the whole."""
    fanout = fanouts[depth]
    for block in range(begin, end, BLOCK):
        stop = min(block + BLOCK, end)
        _prefetch_lists(indptr, nodes, stop, min(stop + BLOCK, end))
        # First draw for every node of the block and prefetch what was drawn; then read it.
        first_edge = edges
        for row in range(block, stop):
            first = list_begin(indptr, nodes[row])
            degree = list_end(indptr, nodes[row]) - first
            chosen = edges - first_edge
            if fanout >= 0 and fanout < degree:
                choose_positions(degree, fanout, stream(key, depth, nodes[row]), offsets, chosen, bitmap, table)
                for i in range(chosen, chosen + fanout):
                    offsets[i] = first + offsets[i]
                    prefetch(indices, offsets[i])
                edges += fanout
            else:
                prefetch(indices, first)
                for i in range(degree if fanout >= 0 else 0):
                    offsets[chosen + i] = first + i
                edges += degree
            starts[row + 1] = edges
        if edges > len(neighbours):
            return rows, scratch_needed(edges, fanouts, depth, end)
        for row in range(block, stop if fanout < 0 else block):
            first = list_begin(indptr, nodes[row]) - starts[row]
            for edge in range(starts[row], starts[row + 1]):
                neighbours[edge] = indices[first + edge]
                if positions is not None:
                    positions[edge] = first + edge
        for i in range(edges - first_edge if fanout >= 0 else 0):
            neighbours[first_edge + i] = indices[offsets[i]]
            if positions is not None:
                positions[first_edge + i] = offsets[i]
        if depth < len(fanouts) - 1:
            needed = rows + edges - first_edge
            if needed > len(nodes):
                return needed if share else scratch_needed(needed, fanouts, depth, end), edges
            rows = _add_rows(
                indptr, neighbours, first_edge, edges, share, nodes, children, rows, known, known_rows, generation
            )  # fmt: skip
    return rows, edges


@inlined
def _prefetch_lists(indptr: np.ndarray, nodes: np.ndarray, begin: int, end: int) -> None:
    for row in range(begin, end):
        prefetch_bounds(indptr, nodes[row])


@inlined
def _add_rows(
    indptr: np.ndarray, neighbours: np.ndarray, begin: int, end: int, share: bool, nodes: np.ndarray,
    children: np.ndarray, rows: int, known: np.ndarray, known_rows: np.ndarray, generation: int,
) -> int:  # fmt: skip
    """Add rows for neighbours begin to end - 1; how many rows there are then."""
    if not share:
        for edge in range(begin, end):
            node = neighbours[edge]
            prefetch_bounds(indptr, node)
            nodes[rows] = node
            children[edge] = rows
            rows += 1
        return rows
    for edge in range(begin, end):
        node = neighbours[edge]
        row = row_of(node, rows, known, known_rows, generation)
        if row == rows:
            nodes[rows] = node
            rows += 1
        children[edge] = row
    return rows


# How many nodes samples will have


def most_by_hop(fanouts: Sequence[int], seeds: int = 1) -> list[int]:
    """Most nodes that a sample has in each hop, seeds first. No fan-out is -1."""
    return list(accumulate(fanouts, operator.mul, initial=seeds))


def effective_nodes(indptr: np.ndarray) -> float:
    """Number of equally likely nodes that would collide as often as the ends of random edges do: 1 / Σ p²."""
    edges = int(indptr[-1])
    return edges * (edges / _sum_of_squares(indptr)) if edges else math.inf


def distinct_share(draws: int, nodes: float) -> float:
    """Expected share of `draws` out of `nodes` equally likely ones that are distinct."""
    if not draws or math.isinf(nodes):
        return 1.0
    return nodes * -math.expm1(-draws / nodes) / draws


@kernel
def _sum_of_squares(indptr: np.ndarray) -> float:
    total = 0.0
    for node in range(len(indptr) - 1):
        degree = np.float64(indptr[node + 1] - indptr[node])
        total += degree * degree
    return total
