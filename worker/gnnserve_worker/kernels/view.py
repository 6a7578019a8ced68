"""The graph as the requests of a batch see it: the stored one, and on top of it what each of them brings along.

Stored nodes are called by their position, 0 to N - 1, and N + k is the batch's overlay node k. View 0 is the stored
graph alone; each request with an overlay, or with a seed of its own, has a view. A row of a sample belongs to one view:
in it the lists of overlay nodes are longer, and where a stored list names a node that is an overlay node of the view,
that one is meant.

All of it is one array, since handing ten small arrays to a kernel takes longer than what it does with them.

The kernels that draw neighbours in it do what those of `sampling/neighbours.py` do, which batches without a view run,
in the view that each row belongs to. A node of one view has a row of its own there, and a request with a key of its own
draws by that.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import (
    BLOCK,
    GOLDEN,
    choose_positions,
    list_begin,
    list_count,
    list_end,
    mix,
    prefetch,
    prefetch_bounds,
    scratch_needed,
    stream,
)

HEADER = 6
HAS_KEY, HAS_OVERLAY, HAS_OVERRIDES = 1, 2, 4
"""Flags of a view: whether its draws depend on a key of its own, whether it has overlay nodes, and whether any of them
stands for a stored node with other features."""


class SampleView(msgspec.Struct, frozen=True):
    packed: np.ndarray
    """int64: the numbers of seeds, views, overlay nodes, those of them with features, entries and slots, then what
    `unpack` returns. Writable, since a read-only array would compile the kernels a second time."""
    first_seed: int = 0
    """Position of the first of the seeds that are sampled among all of the batch."""

    def touches(self, part: slice) -> bool:
        """Whether any of that part of its seeds belongs to another view than 0."""
        first = HEADER + self.first_seed
        return bool(self.packed[first + part.start : first + part.stop].any())

    def of_seeds(self, part: slice) -> SampleView:
        """The view of a part of its seeds."""
        return SampleView(self.packed, self.first_seed + part.start)

    def of_places(self, places: np.ndarray) -> SampleView:
        """The view of its seeds at these places."""
        return self.of_others(self.packed[HEADER + self.first_seed + places])

    def of_others(self, views: np.ndarray) -> SampleView:
        """The view of other seeds: a batch's distinct ones, or nodes seen in it. `views`, int32: that of each."""
        seeds = int(self.packed[0])
        packed = np.concatenate((self.packed[:HEADER], views, self.packed[HEADER + seeds :]))
        packed[0] = len(views)
        return SampleView(packed)


@inlined
def packed_size(seeds: int, views: int, nodes: int, featured: int, entries: int, slots: int) -> int:
    return HEADER + seeds + 3 * views + 1 + nodes + featured + nodes + 1 + entries + slots


@inlined
def slots_of(nodes: int) -> int:
    """Slots in which a view finds so many stored nodes: a power of two, at least half of them empty; none for none."""
    slots = min(nodes, 2)
    while slots < 2 * nodes:
        slots *= 2
    return int(slots)


@inlined
def unpack(packed: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return parts of the array:

    - of each seed: its view
    - of each view: the key that its draws depend on in place of the batch's; its flags
    - of each view, and once more: where its slots begin
    - of each overlay node: its position in the stored graph, or -1. Those that have a row of features come first, in
      the order of these rows
    - of each overlay node with features: what its draws depend on beside key and depth, which is its position, or for
      a new node a number that no position is
    - of each overlay node, and once more: where the entries that its list gains begin
    - entries: positions, or N + k for overlay node k
    - slots: each view has an open-addressed hash table of its own, of the overlay nodes (N + k) that stand for stored
      ones in it; -1 where it is empty. What a request brings is small, and so is its table: it stays in a core's cache
      while the request's rows are sampled, which one table of a whole batch would not
    """
    seeds, views, nodes, featured, entries, slots = packed[0], packed[1], packed[2], packed[3], packed[4], packed[5]
    keys = HEADER + seeds
    flags = keys + views
    first_slots = flags + views
    origins = first_slots + views + 1
    streams = origins + nodes
    starts = streams + featured
    neighbours = starts + nodes + 1
    slots_begin = neighbours + entries
    return (
        packed[HEADER:keys], packed[keys:flags], packed[flags:first_slots], packed[first_slots:origins],
        packed[origins:streams], packed[streams:starts], packed[starts:neighbours], packed[neighbours:slots_begin],
        packed[slots_begin : slots_begin + slots],
    )  # fmt: skip


@inlined
def row_of_overlay(node: int, stored: int, origins: np.ndarray, streams: np.ndarray) -> int:
    """The row that is gathered for overlay node N + k: N + k where it is the k-th row of features, else the position
    whose features it keeps."""
    return int(node) if node - stored < len(streams) else int(origins[node - stored])


@inlined
def drawn_by(node: int, stored: int, origins: np.ndarray, streams: np.ndarray) -> int:
    """What the draws of overlay node N + k depend on beside key and depth."""
    place = node - stored
    return int(streams[place]) if place < len(streams) else int(origins[place])


@inlined
def first_slot(node: int, mask: int) -> int:
    """Where to begin to look for a stored node among so many slots less one."""
    return int(np.int64((np.uint64(node) * GOLDEN) >> np.uint64(32)) & mask)


@inlined
def read_whole_list(
    node: int, indptr: np.ndarray, indices: np.ndarray, origins: np.ndarray, extra_starts: np.ndarray,
    extra: np.ndarray, edge: int, neighbours: np.ndarray, positions: np.ndarray | None,
) -> None:  # fmt: skip
    """Write the stored entries, and those that the list gains, to `neighbours` from `edge` on, and where they stand to
    `positions`: places in `indices`, and behind those in `extra`."""
    stored = list_count(indptr)
    stands_for = node if node < stored else origins[node - stored]
    if stands_for >= 0:
        for place in range(list_begin(indptr, stands_for), list_end(indptr, stands_for)):
            neighbours[edge] = indices[place]
            if positions is not None:
                positions[edge] = place
            edge += 1
    if node >= stored:
        for place in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
            neighbours[edge] = extra[place]
            if positions is not None:
                positions[edge] = len(indices) + place
            edge += 1


@inlined
def seen_as(node: int, view: int, stored: int, first_slots: np.ndarray, slots: np.ndarray, origins: np.ndarray) -> int:
    """The stored node, or the overlay node that stands for it in that view."""
    begin = first_slots[view]
    mask = first_slots[view + 1] - begin - 1
    if mask < 0:
        return int(node)
    slot = first_slot(node, mask)
    while True:
        found = slots[begin + slot]
        if found < 0:
            return int(node)
        if origins[found - stored] == node:
            return int(found)
        slot = (slot + 1) & mask


# --- neighbours drawn in views


@kernel
def sample_seen(
    indptr: np.ndarray, indices: np.ndarray, seeds: np.ndarray, fanouts: np.ndarray, key: int, share: bool,
    nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray, children: np.ndarray, seed_rows: np.ndarray,
    ends: np.ndarray, offsets: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray, positions: np.ndarray | None,
    views: np.ndarray, packed: np.ndarray, first_seed: int, names_leaves: bool,
) -> tuple[int, int]:  # fmt: skip
    """Rows and edges that were sampled; where scratch is too small, a lower bound of those needed. `views` gets the
    view of each row; `first_seed` and `names_leaves` are as of `SampleView` and `sample_neighbours`."""
    rows = _place_seeds(
        seeds, share, nodes, seed_rows, known, known_rows, generation, views, unpack(packed)[0], first_seed
    )
    _prefetch_lists(indptr, nodes, 0, min(rows, BLOCK), list_count(indptr), unpack(packed)[4])
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
            views, packed, names_leaves,
        )  # fmt: skip
        if rows > len(nodes) or edges > len(neighbours):
            return rows, edges
        begin = end
    return rows, edges


@inlined
def _place_seeds(
    seeds: np.ndarray, share: bool, nodes: np.ndarray, seed_rows: np.ndarray,
    known: np.ndarray, known_rows: np.ndarray, generation: np.ndarray,
    views: np.ndarray, seed_views: np.ndarray, first_seed: int,
) -> int:  # fmt: skip
    """As `place_seeds`, each in its view: `seed_views` from `first_seed` on. `views` gets that of each row."""
    rows = 0
    generation[0] += 1
    for i in range(len(seeds)):
        row = rows
        if share:
            row = row_in_view(seeds[i], seed_views[first_seed + i], rows, known, known_rows, views, generation[0])
            seed_rows[i] = row
        if row == rows:
            nodes[rows] = seeds[i]
            views[rows] = seed_views[first_seed + i]
            rows += 1
    return rows


@inlined
def row_in_view(
    node: int, view: int, rows: int, known: np.ndarray, known_rows: np.ndarray, views: np.ndarray, generation: int
) -> int:
    """As `row_of`, for a node as it is in one view: it has a row in each."""
    mask = len(known) - 1
    word = (np.int64(generation) << np.int64(32)) | np.int64(node)
    slot = np.int64(mix(np.uint64(node) + np.uint64(view) * GOLDEN)) & mask
    while known[slot] >> np.int64(32) == generation:
        if known[slot] == word and views[known_rows[slot]] == view:
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
    views: np.ndarray, packed: np.ndarray, names_leaves: bool,
) -> tuple[int, int]:  # fmt: skip
    _, keys, flags, first_slots, origins, streams, extra_starts, extra, slots = unpack(packed)
    fanout, stored, last = fanouts[depth], list_count(indptr), len(fanouts) - 1
    for block in range(begin, end, BLOCK):
        stop, first_edge = min(block + BLOCK, end), edges
        _prefetch_lists(indptr, nodes, stop, min(stop + BLOCK, end), stored, origins)
        edges = _draw(
            indptr, indices, nodes, block, stop, edges, depth, fanout, key, offsets, bitmap, table, starts,
            views, stored, keys, flags, origins, streams, extra_starts,
        )  # fmt: skip
        if edges > len(neighbours):
            return rows, scratch_needed(edges, fanouts, depth, end)
        _read(
            indptr, indices, nodes, block, stop, fanout, offsets, starts, neighbours, positions, views, stored, flags,
            first_slots, origins, extra_starts, extra, slots, depth < last or names_leaves,
        )  # fmt: skip
        if depth < last:
            needed = rows + edges - first_edge
            if needed > len(nodes):
                return needed if share else scratch_needed(needed, fanouts, depth, end), edges
            rows = _add_rows(
                indptr, neighbours, block, stop, starts, share, nodes, children, rows, known, known_rows, generation,
                views, stored, origins,
            )  # fmt: skip
    return rows, edges


@inlined
def _prefetch_lists(
    indptr: np.ndarray, nodes: np.ndarray, begin: int, end: int, stored: int, origins: np.ndarray
) -> None:
    for row in range(begin, end):
        prefetch_bounds(indptr, _stored_list(nodes[row], stored, origins))


@inlined
def _draw(
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
def _read(
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
