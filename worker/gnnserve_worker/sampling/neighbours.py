"""Neighbour sampling for serving: uniform without replacement, O(fan-out) per node whatever its degree.

A sample is a list of rows: the nodes that need a hidden state, seeds first, then hop 1, … Leaves get no row, because
the gather aggregates them while it reads them. A node that is drawn twice has two rows, or one where they are shared:
what a node draws depends on the key, the depth and the node alone, so that sharing changes nothing but the cost, and a
part of a batch draws what the whole would have drawn. A seed's own layer-1 mean reuses its hop-1 draw, as PyG does.

Reading a neighbour takes two steps that miss every cache: where a node's list begins, and the entry in it. Both are
prefetched a block of nodes ahead. All arrays are reused scratch memory (`Scratch`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_worker.growth import room_for
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.layout import list_begin, list_count, list_end, prefetch_bounds
from gnnserve_worker.kernels.primitives import (
    choose_positions,
    prefetch,
    scratch_bitmap,
    scratch_table,
    stream,
)
from gnnserve_worker.kernels.view import (
    HAS_KEY,
    HAS_OVERLAY,
    HAS_OVERRIDES,
    SampleView,
    drawn_by,
    read_whole_list,
    seen_as,
    unpack,
)
from gnnserve_worker.sampling.distinct import (
    LAST_GENERATION,
    KnownNodes,
    place_seeds,
    place_seeds_seen,
    row_in_view,
    row_of,
)

BLOCK = 32
"""Nodes whose positions are drawn before the first of their neighbours is read."""


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
        overlay = None if view is None else (scratch.views, view.packed, view.first_seed, names_leaves)
        scratch.seeds[:count] = seeds
        rows, edges = _sample(
            indptr, indices, scratch.seeds[:count], counts, key, share,
            scratch.nodes, scratch.starts, scratch.neighbours, scratch.children, scratch.seed_rows, scratch.ends,
            scratch.offsets, scratch.bitmap, scratch.table, known.entries, known.rows, known.generation, overlay,
            positions,
        )  # fmt: skip
        if rows <= len(scratch.nodes) and edges <= len(scratch.neighbours):
            break
        scratch.reserve(count, rows, edges, most, hops, has_views=has_views)
    ends, starts = scratch.ends[:hops], scratch.starts[: rows + 1]
    return NeighbourSample(
        tuple(ends.tolist()), scratch.nodes[:rows], starts, scratch.neighbours[:edges], scratch.children,
        scratch.seed_rows[:count] if share else None, starts, ends,
        None, None if view is None else scratch.views[:rows], None if positions is None else positions[:edges],
    )  # fmt: skip


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
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
    overlay: tuple[np.ndarray, np.ndarray, int, bool] | None, positions: np.ndarray | None,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges that were sampled; where scratch is too small, a lower bound of those needed.

    What stands under `overlay is None` is left out of the compiled code where there is one, and the other way round; so
    it is with `positions`.
    """
    if overlay is None:
        rows = place_seeds(seeds, share, nodes, seed_rows, known, known_rows, generation)
        _prefetch_lists(indptr, nodes, 0, min(rows, BLOCK))
    else:
        views, packed, first_seed, names_leaves = overlay
        rows = place_seeds_seen(
            seeds, share, nodes, seed_rows, known, known_rows, generation, views, unpack(packed)[0], first_seed
        )
        _prefetch_lists_seen(indptr, nodes, 0, min(rows, BLOCK), list_count(indptr), unpack(packed)[4])
    starts[0] = 0
    begin = 0
    edges = 0
    for depth in range(len(fanouts)):
        end = rows
        ends[depth] = end
        generation[0] += 1
        if overlay is None:
            rows, edges = _sample_hop(
                indptr, indices, fanouts, depth, begin, end, rows, edges, key, share, nodes, starts, neighbours,
                children, offsets, bitmap, table, known, known_rows, generation[0], positions,
            )  # fmt: skip
        else:
            rows, edges = _sample_hop_seen(
                indptr, indices, fanouts, depth, begin, end, rows, edges, key, share, nodes, starts, neighbours,
                children, offsets, bitmap, table, known, known_rows, generation[0], positions,
                views, packed, names_leaves,
            )  # fmt: skip
        if rows > len(nodes) or edges > len(neighbours):
            return rows, edges
        begin = end
    return rows, edges


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
            return rows, _at_least(edges, fanouts, depth, end)
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
                return needed if share else _at_least(needed, fanouts, depth, end), edges
            rows = _add_rows(
                indptr, neighbours, first_edge, edges, share, nodes, children, rows, known, known_rows, generation
            )  # fmt: skip
    return rows, edges


@inlined
def _sample_hop_seen(
    indptr: np.ndarray, indices: np.ndarray, fanouts: np.ndarray, depth: int, begin: int, end: int,
    rows: int, edges: int, key: int, share: bool, nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    children: np.ndarray, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: int, positions: np.ndarray | None,
    views: np.ndarray, packed: np.ndarray, names_leaves: bool,
) -> tuple[int, int]:  # fmt: skip
    _, keys, flags, first_slots, origins, streams, extra_starts, extra, slots = unpack(packed)
    fanout, stored, last = fanouts[depth], list_count(indptr), len(fanouts) - 1
    for block in range(begin, end, BLOCK):
        stop, first_edge = min(block + BLOCK, end), edges
        _prefetch_lists_seen(indptr, nodes, stop, min(stop + BLOCK, end), stored, origins)
        edges = _draw_seen(
            indptr, indices, nodes, block, stop, edges, depth, fanout, key, offsets, bitmap, table, starts,
            views, stored, keys, flags, origins, streams, extra_starts,
        )  # fmt: skip
        if edges > len(neighbours):
            return rows, _at_least(edges, fanouts, depth, end)
        _read_seen(
            indptr, indices, nodes, block, stop, fanout, offsets, starts, neighbours, positions, views, stored, flags,
            first_slots, origins, extra_starts, extra, slots, depth < last or names_leaves,
        )  # fmt: skip
        if depth < last:
            needed = rows + edges - first_edge
            if needed > len(nodes):
                return needed if share else _at_least(needed, fanouts, depth, end), edges
            rows = _add_rows_seen(
                indptr, neighbours, block, stop, starts, share, nodes, children, rows, known, known_rows, generation,
                views, stored, origins,
            )  # fmt: skip
    return rows, edges


# What ends in `_seen` does the same in the views of requests.


@inlined
def _prefetch_lists(indptr: np.ndarray, nodes: np.ndarray, begin: int, end: int) -> None:
    for row in range(begin, end):
        prefetch_bounds(indptr, nodes[row])


@inlined
def _prefetch_lists_seen(
    indptr: np.ndarray, nodes: np.ndarray, begin: int, end: int, stored: int, origins: np.ndarray
) -> None:
    for row in range(begin, end):
        prefetch_bounds(indptr, _stored_list(nodes[row], stored, origins))


@inlined
def _draw_seen(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, block: int, stop: int, edges: int, depth: int,
    fanout: int, key: int, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray, starts: np.ndarray,
    views: np.ndarray, stored: int, keys: np.ndarray, flags: np.ndarray, origins: np.ndarray, streams: np.ndarray,
    extra_starts: np.ndarray,
) -> int:  # fmt: skip
    """Draw for rows block to stop - 1 and prefetch what was drawn, whose places `offsets` gets where lists are not read
    whole; how many edges there are then."""
    first_edge = edges
    for row in range(block, stop):
        node = nodes[row]
        stands_for = _stored_list(node, stored, origins)
        first = 0
        listed = 0
        if stands_for >= 0:
            first = list_begin(indptr, stands_for)
            listed = list_end(indptr, stands_for) - first
        degree = listed
        extra_first = 0
        drawn_as = int(node)
        if node >= stored:
            extra_first = int(extra_starts[node - stored])
            degree += int(extra_starts[node - stored + 1]) - extra_first
            drawn_as = drawn_by(node, stored, origins, streams)
        chosen = edges - first_edge
        if fanout >= 0 and fanout < degree:
            view_key = keys[views[row]] if flags[views[row]] & HAS_KEY else key
            choose_positions(degree, fanout, stream(view_key, depth, drawn_as), offsets, chosen, bitmap, table)
            for i in range(chosen, chosen + fanout):
                offsets[i] = _offset_in_view(offsets[i], first, listed, extra_first)
                prefetch(indices, offsets[i])
            edges += fanout
        else:
            prefetch(indices, first)
            if fanout >= 0:
                for i in range(degree):
                    offsets[chosen + i] = _offset_in_view(i, first, listed, extra_first)
            edges += degree
        starts[row + 1] = edges
    return edges


@inlined
def _read_seen(
    indptr: np.ndarray, indices: np.ndarray, nodes: np.ndarray, block: int, stop: int, fanout: int,
    offsets: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, positions: np.ndarray | None,
    views: np.ndarray, stored: int, flags: np.ndarray, first_slots: np.ndarray, origins: np.ndarray,
    extra_starts: np.ndarray, extra: np.ndarray, slots: np.ndarray, names_all: bool,
) -> None:  # fmt: skip
    """Read what was drawn for rows block to stop - 1. `names_all`: whether nodes that only gain neighbours get the
    names that they have in the view, too."""
    first_edge = starts[block]
    for row in range(block, stop):
        view = views[row]
        if fanout < 0:
            read_whole_list(
                nodes[row], indptr, indices, origins, extra_starts, extra, starts[row], neighbours, positions
            )
        else:
            for edge in range(starts[row], starts[row + 1]):
                offset = offsets[edge - first_edge]
                neighbours[edge] = indices[offset] if offset >= 0 else extra[-1 - offset]
                if positions is not None:
                    positions[edge] = offset if offset >= 0 else len(indices) - 1 - offset
        if flags[view] & (HAS_OVERLAY if names_all else HAS_OVERRIDES):
            for edge in range(starts[row], starts[row + 1]):
                if neighbours[edge] < stored:
                    neighbours[edge] = seen_as(neighbours[edge], view, stored, first_slots, slots, origins)


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


@inlined
def _add_rows_seen(
    indptr: np.ndarray, neighbours: np.ndarray, begin: int, end: int, starts: np.ndarray, share: bool,
    nodes: np.ndarray, children: np.ndarray, rows: int, known: np.ndarray, known_rows: np.ndarray, generation: int,
    views: np.ndarray, stored: int, origins: np.ndarray,
) -> int:  # fmt: skip
    """Add rows for the neighbours of rows begin to end - 1, in the views of these; how many rows there are then."""
    for row in range(begin, end):
        view = views[row]
        for edge in range(starts[row], starts[row + 1]):
            node = neighbours[edge]
            child = rows
            if share:
                child = row_in_view(node, view, rows, known, known_rows, views, generation)
            children[edge] = child
            if child == rows:
                prefetch_bounds(indptr, _stored_list(node, stored, origins))
                nodes[rows] = node
                views[rows] = view
                rows += 1
    return rows


@inlined
def _stored_list(node: int, stored: int, origins: np.ndarray) -> int:
    """The stored node whose list a node has; -1: it is a new one."""
    return int(node) if node < stored else int(origins[node - stored])


@inlined
def _offset_in_view(position: int, first: int, listed: int, extra_first: int) -> int:
    """Where the neighbour at that position of a node's list is: in the stored list from `first` on, which has `listed`
    entries, or, as -1 - its place, among those that lists gain."""
    return first + position if position < listed else -1 - (extra_first + position - listed)


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
