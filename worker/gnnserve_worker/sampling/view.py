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
from gnnserve_worker.sampling.kernels import GOLDEN, slot_of
from gnnserve_worker.sampling.lists import list_begin, list_count, list_end

HEADER = 5
HAS_KEY, HAS_OVERLAY, HAS_OVERRIDES = 1, 2, 4
"""Flags of a view: whether its draws depend on a key of its own, whether it has overlay nodes, and whether any of them
stands for a stored node with other features."""


class SampleView(msgspec.Struct, frozen=True):
    packed: np.ndarray
    """int64: the numbers of seeds, views, overlay nodes, entries and slots, then what `unpack` returns. Writable, since
    a read-only array would compile the kernels a second time."""
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


def packed_size(seeds: int, views: int, nodes: int, entries: int, slots: int) -> int:
    return HEADER + seeds + 2 * views + 3 * nodes + nodes + 1 + entries + 2 * slots + filter_size(slots)


def filter_size(slots: int) -> int:
    """Words of the filter before the hash table: 16 bits a slot."""
    return max(1, slots // 4)


@inlined
def unpack(packed: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return parts of the array:

    - of each seed: its view
    - of each view: the key that its draws depend on in place of the batch's; its flags
    - of each overlay node: its position in the stored graph, or -1; what its draws depend on beside key and depth,
      which is its position, or for a new node a number that no position is; the row that is gathered for it, which is
      a position if it keeps its features, else N + the place of its features
    - of each overlay node, and once more: where the entries that its list gains begin
    - entries: positions, or N + k for overlay node k
    - an open-addressed hash table, as keys (view << 32 | position, -1 where it is empty) and as the overlay nodes
      (N + k) that stand for stored ones in that view
    - a bit for each key in that table: most stored nodes are in no overlay, and a bit that is 0 says so at once
    """
    seeds, views, nodes, entries, slots = packed[0], packed[1], packed[2], packed[3], packed[4]
    keys = HEADER + seeds
    flags = keys + views
    origins = flags + views
    streams = origins + nodes
    rows = streams + nodes
    starts = rows + nodes
    neighbours = starts + nodes + 1
    found_keys = neighbours + entries
    found_nodes = found_keys + slots
    return (
        packed[HEADER:keys], packed[keys:flags], packed[flags:origins], packed[origins:streams], packed[streams:rows],
        packed[rows:starts], packed[starts:neighbours], packed[neighbours:found_keys], packed[found_keys:found_nodes],
        packed[found_nodes : found_nodes + slots], packed[found_nodes + slots :],
    )  # fmt: skip


@inlined
def filter_bit(key: int, words: int) -> int:
    """The bit of a key among those of the filter."""
    return int((np.uint64(key) * GOLDEN) >> np.uint64(40)) & (64 * words - 1)


@inlined
def read_whole_list(
    node: int, indptr: np.ndarray, indices: np.ndarray, origins: np.ndarray, extra_starts: np.ndarray,
    extra: np.ndarray, edge: int, neighbours: np.ndarray,
) -> None:  # fmt: skip
    """Write the stored entries, and those that the list gains, to `neighbours` from `edge` on."""
    stored = list_count(indptr)
    stands_for = node if node < stored else origins[node - stored]
    if stands_for >= 0:
        for place in range(list_begin(indptr, stands_for), list_end(indptr, stands_for)):
            neighbours[edge] = indices[place]
            edge += 1
    if node >= stored:
        for place in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
            neighbours[edge] = extra[place]
            edge += 1


@inlined
def seen_as(node: int, view: int, found_keys: np.ndarray, found_nodes: np.ndarray, bits: np.ndarray) -> int:
    """The stored node, or the overlay node that stands for it in that view."""
    key = (np.int64(view) << np.int64(32)) | np.int64(node)
    bit = filter_bit(int(key), len(bits))
    if not (bits[bit >> 6] >> (bit & 63)) & 1:
        return int(node)
    slot = slot_of(int(key), found_keys)
    return int(found_nodes[slot]) if found_keys[slot] == key else int(node)
