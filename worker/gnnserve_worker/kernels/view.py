"""The graph as the requests of a batch see it: the stored one, and on top of it what each of them brings along.

Stored nodes are called by their position, 0 to N - 1, and N + k is the batch's overlay node k. View 0 is the stored
graph alone; each request with an overlay, or with a seed of its own, has a view. A row of a sample belongs to one view:
in it the lists of overlay nodes are longer, and where a stored list names a node that is an overlay node of the view,
that one is meant.

All of it is one array, since handing ten small arrays to a kernel takes longer than what it does with them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined
from gnnserve_worker.kernels.primitives import GOLDEN, list_begin, list_count, list_end

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
