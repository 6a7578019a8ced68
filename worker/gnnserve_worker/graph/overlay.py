"""An overlay: the nodes, edges and features that one request brings along, arranged for sampling.

The graph is not changed. Stored nodes are called by their position, 0 to N - 1, and N + k is overlay node k: a node
that the graph has not seen, or a stored one that has other features or more neighbours in this request. Overlay nodes
have a list of the neighbours that they gain; a stored one keeps those that it has. Edges become entries of these lists
by the rules that the source's own edges followed.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from gnnserve_api.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.kernels.lists import list_begin, list_count, list_end
from gnnserve_worker.kernels.primitives import slot_of

PACKED_HEADER = 5
"""Numbers that `Overlay.packed` begins with."""
_SHORT = 24
"""Lists up to here are sorted by insertion."""


class Overlay(msgspec.Struct, frozen=True):
    """What one request brings, checked and arranged. Overlay nodes are in this order: new ones, stored ones with other
    features, stored ones that only gain neighbours."""

    new_nodes: int
    features: np.ndarray
    """float32 [new nodes and those with other features, features], in C order: as in the source, before
    normalisation."""
    packed: np.ndarray
    """int64: the numbers of overlay nodes, of entries, of overlay nodes with features, of stored nodes among these, and
    of all stored ones; then what the properties return. One array, since each more takes time to make, with all that
    joining it with others needs to know."""
    nodes: int
    """Number of overlay nodes."""
    edges: int
    """Number of entries that lists gain: an edge that goes both ways counts twice."""
    stride: int = 1
    """Nodes that `packed` has for each one: more than 1 where a node has several lists (`typed_overlay.py`)."""
    stand_ins: np.ndarray | None = None
    """For each row of `features`, the number of the stored node whose rows of tables its node has, -1: they are made of
    the features. int64; None: all are made of features."""

    @property
    def origins(self) -> np.ndarray:
        """Position of each overlay node in the stored graph, -1 for a new one: int64 [nodes]."""
        return self.packed[PACKED_HEADER : PACKED_HEADER + self.nodes]

    @property
    def starts(self) -> np.ndarray:
        """Where the entries that each node's list gains begin in `neighbours`: int64 [nodes + 1]."""
        return self.packed[PACKED_HEADER + self.nodes : PACKED_HEADER + 1 + 2 * self.nodes]

    @property
    def neighbours(self) -> np.ndarray:
        """Positions, or N + k for overlay node k: int64 [edges]."""
        return self.packed[PACKED_HEADER + 1 + 2 * self.nodes :]


class _Choices(msgspec.Struct, frozen=True):
    """Rules as the kernel takes them."""

    both_ways: bool
    is_reversed: bool
    merges: bool
    keeps_loops: bool


@cache
def _choices(rules: EdgeRules) -> _Choices:
    return _Choices(
        rules.direction is Direction.UNDIRECTED,
        rules.direction is Direction.REVERSED,
        rules.duplicates is Duplicates.MERGE,
        rules.self_loops is SelfLoops.KEEP,
    )


def arrange_overlay(
    graph: Graph,
    rules: EdgeRules,
    features: np.ndarray,
    overridden: np.ndarray,
    edges: np.ndarray,
    seeds: np.ndarray,
) -> tuple[Overlay, np.ndarray]:
    """Arrange an overlay; returns it, and the seeds in its numbering (int64).

    `features`: float32 [new nodes and overridden, features]. `overridden`: distinct positions of stored nodes, int64.
    `edges`: (source, target), int64 [edges, 2], and `seeds`, int64: positions, or N + k for the k-th new node. All are
    in range; nothing is checked.
    """
    choices, new_nodes = _choices(rules), len(features) - len(overridden)
    most = 2 * len(edges) if choices.both_ways else len(edges)
    packed = np.empty(PACKED_HEADER + 1 + 2 * (len(features) + most) + most, dtype=np.int64)
    features = np.ascontiguousarray(features, np.float32)
    # Copies: a read-only array, as it comes out of a body, would compile the kernels a second time.
    arranged = np.array(seeds, np.int64)
    nodes, entries = _arrange(
        graph.indptr, graph.indices, new_nodes, np.array(overridden, np.int64), np.array(edges, np.int64),
        arranged, choices.both_ways, choices.is_reversed, choices.merges, choices.keeps_loops, packed,
    )  # fmt: skip
    return Overlay(new_nodes, features, packed[: PACKED_HEADER + 1 + 2 * nodes + entries], nodes, entries), arranged


def number_overlay(ids: np.ndarray, features: np.ndarray, new_nodes: int, ends: int, nodes: int) -> bool:
    """Number ids of a graph whose nodes are called by position: -1 - k becomes N + k, in place. False where anything is
    wrong; then nothing is changed. One call, since a small request would spend more on each of several checks.

    `ids`: int64, those of nodes asked for and of edges, then from `ends` on those of overridden nodes, which must be
    stored ones and distinct. `features`: float32, which must be finite.
    """
    return bool(_number(ids, features, new_nodes, ends, nodes))


@brief_kernel
def _number(ids: np.ndarray, features: np.ndarray, new_nodes: int, ends: int, nodes: int) -> bool:
    for i in range(len(ids)):
        if ids[i] >= nodes or ids[i] < (-new_nodes if i < ends else 0):
            return False
    for i in range(len(features)):
        if not np.isfinite(features[i]):
            return False
    if len(ids) - ends > 1:
        overridden = np.sort(ids[ends:])
        for i in range(1, len(overridden)):
            if overridden[i] == overridden[i - 1]:
                return False
    for i in range(ends):
        if ids[i] < 0:
            ids[i] = nodes - 1 - ids[i]
    return True


@brief_kernel
def _arrange(
    indptr: np.ndarray, indices: np.ndarray, new_nodes: int, overridden: np.ndarray, edges: np.ndarray,
    seeds: np.ndarray, both_ways: bool, is_reversed: bool, merges: bool, keeps_loops: bool, packed: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Fill in `packed`, and number the seeds. Returns the numbers of overlay nodes and entries."""
    stored = list_count(indptr)
    most = 2 * len(edges) if both_ways else len(edges)
    stored_ends = 0
    for i in range(len(edges)):
        stored_ends += (edges[i, 0] < stored) + (edges[i, 1] < stored)
    size = 2
    while size < 2 * (len(overridden) + stored_ends):
        size *= 2
    keys = np.full(size, -1, dtype=np.int64)
    places = np.empty(size, dtype=np.int64)
    origins = packed[PACKED_HEADER:]
    origins[:new_nodes] = -1
    count = new_nodes
    for i in range(len(overridden)):
        count += _place(overridden[i], count, keys, places, origins) == count
    # Each entry as (reader, sender): whose list gains it, and the node that is listed.
    readers = np.empty(most, dtype=np.int64)
    senders = np.empty(most, dtype=np.int64)
    entries = 0
    for i in range(len(edges)):
        sender = edges[i, 1] if is_reversed else edges[i, 0]
        reader = edges[i, 0] if is_reversed else edges[i, 1]
        if sender == reader and not keeps_loops:
            continue
        readers[entries], senders[entries] = reader, sender
        entries += 1
        if both_ways and sender != reader:
            readers[entries], senders[entries] = sender, reader
            entries += 1
    for entry in range(entries):
        if readers[entry] < stored:
            readers[entry] = _place(readers[entry], count, keys, places, origins)
            count += readers[entry] == count
        else:
            readers[entry] -= stored
    starts = packed[PACKED_HEADER + count : PACKED_HEADER + 1 + 2 * count]
    starts[:] = 0
    for entry in range(entries):
        starts[readers[entry] + 1] += 1
    for k in range(count):
        starts[k + 1] += starts[k]
    ends = starts[:count].copy()
    neighbours = packed[PACKED_HEADER + 1 + 2 * count :]
    for entry in range(entries):
        neighbours[ends[readers[entry]]] = senders[entry]
        ends[readers[entry]] += 1
    kept = 0
    for k in range(count):
        first = starts[k]
        starts[k] = kept
        # In order, so that what is drawn does not depend on the order of the edges in the request.
        _sort(neighbours[first : ends[k]])
        origin = origins[k]
        before = -1
        for entry in range(first, ends[k]):
            sender = neighbours[entry]
            if merges and before == sender:
                continue
            before = sender
            if merges and origin >= 0 and sender < stored and _lists(indptr, indices, origin, sender):
                continue
            place = _find(sender, keys, places) if sender < stored else -1
            neighbours[kept] = sender if place < 0 else stored + place
            kept += 1
    starts[count] = kept
    for i in range(len(seeds)):
        place = _find(seeds[i], keys, places) if seeds[i] < stored else -1
        if place >= 0:
            seeds[i] = stored + place
    packed[0] = count
    packed[1] = kept
    packed[2] = new_nodes + len(overridden)
    packed[3] = len(overridden)
    packed[4] = count - new_nodes
    return count, kept


@inlined
def _sort(numbers: np.ndarray) -> None:
    if len(numbers) > _SHORT:
        numbers.sort()
        return
    for i in range(1, len(numbers)):
        number = numbers[i]
        place = i
        while place > 0 and numbers[place - 1] > number:
            numbers[place] = numbers[place - 1]
            place -= 1
        numbers[place] = number


@inlined
def _place(node: int, place: int, keys: np.ndarray, places: np.ndarray, origins: np.ndarray) -> int:
    """The place of a stored node among the overlay nodes, which is `place` where it had none."""
    slot = slot_of(node, keys)
    if keys[slot] == node:
        return int(places[slot])
    keys[slot] = node
    places[slot] = place
    origins[place] = node
    return place


@inlined
def _find(node: int, keys: np.ndarray, places: np.ndarray) -> int:
    """The place of a stored node among the overlay nodes; -1: it is none."""
    slot = slot_of(node, keys)
    return int(places[slot]) if keys[slot] == node else -1


@inlined
def _lists(indptr: np.ndarray, indices: np.ndarray, node: int, neighbour: int) -> bool:
    """Whether the node's list, which is ascending, has the neighbour."""
    low = list_begin(indptr, node)
    end = list_end(indptr, node)
    high = end
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < neighbour:
            low = middle + 1
        else:
            high = middle
    return bool(low < end and indices[low] == neighbour)
