"""An overlay: the nodes, edges and features that one request brings along, arranged for sampling.

The graph is not changed. Stored nodes are called by their number, 0 to N - 1, and N + k is the k-th new node of the
request. Overlay nodes are those that the graph has not seen, and stored ones that have other features or more
neighbours in this request; a stored one keeps the neighbours that it has. In what is arranged an overlay node has a
list of what it gains for each slot, `stride` of them (`kernels/layout.py`), so that the j-th one is called N + j ·
stride there: over a graph of one type, which has one list for each node, N + j. Edges become entries of these lists by
the rules of their relation, by which the source's own edges became lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_worker.graph.relation_lists import TypePlaces
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import brief_kernel, inlined
from gnnserve_worker.kernels.layout import type_of, unpack_layout
from gnnserve_worker.kernels.primitives import list_begin, list_end, slot_of

PACKED_HEADER = 5
"""Numbers that `Overlay.packed` begins with."""
_SHORT = 24
"""Lists up to here are sorted by insertion."""
ALL_OF_FIRST = np.zeros(0, np.int64)
"""In place of types of new nodes, and of relations of edges: all are of the first one."""


class EdgeRows(msgspec.Struct, frozen=True):
    """Features and times of the edges that a request brings: a row for each of them, in their order."""

    features: np.ndarray
    """float32 [edges, columns of the relation that has most]; what is behind a relation's own columns is not read."""
    times: np.ndarray
    """int64 [edges]; [0]: no relation's edges have a time."""


class OverlayPayload(msgspec.Struct, frozen=True):
    """Payload of the edges that a request brings, or of those of all requests of a batch, by the entries of lists."""

    edges: EdgeRows
    rows: np.ndarray
    """The row of `edges` of each entry that lists gain: int64 [entries]; -1 where the request brings no payload."""
    replaced: np.ndarray
    """Stored entries whose edge is brought again, where equal ones count once: list of an overlay node, the stored node
    that is read, and the row of `edges` that it has in place of its own. int64 [n, 3]. The entry is not told by its
    position, which changes may move before it is read."""


class Overlay(msgspec.Struct, frozen=True):
    """Overlay of one request, checked and arranged. Overlay nodes are in this order: new ones, stored ones with other
    features, stored ones that only gain neighbours."""

    new_nodes: int
    features: np.ndarray
    """float32 [new nodes and those with other features, columns of the widest type], in C order: as in the source,
    before normalisation."""
    packed: np.ndarray
    """int64: the numbers of lists of overlay nodes, of entries, of lists of overlay nodes with features, of stored
    nodes among these, and of all stored ones; then what the properties return. One array, since each more takes time to
    make, with all that joining it with others needs to know."""
    nodes: int
    """Number of lists of overlay nodes: `stride` for each of them."""
    edges: int
    """Number of entries that lists gain: an edge that goes both ways counts twice."""
    stride: int = 1
    """Lists of an overlay node: more than 1 where nodes of a type read several relations."""
    stand_ins: np.ndarray | None = None
    """For each row of `features`, the number of the stored node whose rows of tables its node has, -1: they are made of
    the features. int64; None: all are made of features."""
    payload: OverlayPayload | None = None
    """None: no edge has any."""

    @property
    def origins(self) -> np.ndarray:
        """The stored node that each overlay node stands for, by its number; for a new one -1 - its type. It stands at
        the first of the node's lists, and -1 at the others: int64 [nodes]."""
        return self.packed[PACKED_HEADER : PACKED_HEADER + self.nodes]

    @property
    def starts(self) -> np.ndarray:
        """Where the entries that each list gains begin in `neighbours`: int64 [nodes + 1]."""
        return self.packed[PACKED_HEADER + self.nodes : PACKED_HEADER + 1 + 2 * self.nodes]

    @property
    def neighbours(self) -> np.ndarray:
        """Numbers of stored nodes, or N + j · `stride` for overlay node j: int64 [edges]."""
        return self.packed[PACKED_HEADER + 1 + 2 * self.nodes :]


@dataclass(frozen=True, slots=True)
class OverlayArranger:
    """Arranges overlays over one graph."""

    graph: Graph
    places: TypePlaces
    readings: np.ndarray
    """`_pack_readings` of its relations."""
    stride: int
    most_entries: int
    """Most entries that one edge becomes."""

    def arrange(
        self, features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray,
        new_types: np.ndarray = ALL_OF_FIRST, relations: np.ndarray = ALL_OF_FIRST,
        payload: EdgeRows | None = None,
    ) -> tuple[Overlay, np.ndarray]:  # fmt: skip
        """Arrange an overlay; returns it, and the seeds in its numbering (int64).

        `features`: float32 [new nodes and overridden, columns of the widest type], in this order. `overridden`:
        distinct numbers of stored nodes, int64. `edges`: (source, target), int64 [edges, 2], and `seeds`, int64:
        numbers, or N + k for the k-th new node. `new_types`, `relations`: places of the types of new nodes, and of the
        relations of edges, int64, writable; empty: all are of the first one. `payload`: that of the
        edges, where any relation of the graph has some. All are in range and of the right types; nothing is checked.
        """
        stride, new_nodes = self.stride, len(features) - len(overridden)
        most = self.most_entries * len(edges)
        packed = np.empty(PACKED_HEADER + 1 + 2 * stride * (len(features) + most) + most, dtype=np.int64)
        features = np.ascontiguousarray(features, np.float32)
        # Copies: a read-only array, as it comes out of a body, would compile the kernels a second time.
        arranged = np.array(seeds, np.int64)
        own = None if payload is None else _room_for(payload, most)
        nodes, entries, again = _arrange(
            self.graph.indptr, self.graph.indices, self.places.layout, self.readings, new_nodes,
            new_types, np.array(overridden, np.int64), relations, np.array(edges, np.int64, order="C"), most, arranged,
            packed, own,
        )  # fmt: skip
        packed = packed[: PACKED_HEADER + 1 + 2 * nodes + entries]
        if payload is None or own is None:
            return Overlay(new_nodes, features, packed, nodes, entries, stride), arranged
        _, rows, replaced = own
        kept = OverlayPayload(payload, rows[:entries], replaced[:again])
        return Overlay(new_nodes, features, packed, nodes, entries, stride, None, kept), arranged

    def stand_in(self, node: int, width: int, lists: Sequence[np.ndarray]) -> tuple[Overlay, np.ndarray]:
        """A new node with the rows of a stored one and lists of its own, which no other node reads; returns it as an
        overlay, and as the one seed (int64).

        `width`: columns of a row of features. `lists`: numbers of stored nodes, ascending, for each relation that the
        type of `node` reads, in their order. Where it reads itself, the new one does.
        """
        new = self.graph.nodes
        lists = [np.concatenate((one[one != node], np.full(np.count_nonzero(one == node), new))) for one in lists]
        stride, kind = self.stride, int(self.places.kinds_of(np.array([node]))[0])
        lengths = [len(listed) for listed in lists] + [0] * (stride - len(lists))
        origins = np.full(stride, -1, np.int64)
        origins[0] = -1 - kind
        entries = sum(lengths)
        header = [stride, entries, stride, 0, 0]
        packed = np.concatenate([header, origins, [0], np.cumsum(lengths), *lists]).astype(np.int64)
        features, stands_for = np.zeros((1, width), np.float32), np.array([node], np.int64)
        overlay = Overlay(1, features, packed, stride, entries, stride, stands_for)
        return overlay, np.array([new], np.int64)

    def smallest(self, width: int) -> Overlay:
        """One new node of the first type, and an edge to it by each relation that it reads; for kernels that are to be
        compiled. `width`: columns of a row of features."""
        nodes, places = self.graph.nodes, self.places
        read = np.flatnonzero(places.targets == 0)
        edges = np.stack((places.first_nodes[places.sources[read]], np.full(len(read), nodes)), axis=1)
        features, none = np.zeros((1, width), np.float32), np.zeros(0, np.int64)
        payload = self._smallest_payload(len(edges))
        return self.arrange(features, none, edges, np.array([nodes]), np.zeros(1, np.int64), read, payload)[0]

    def _smallest_payload(self, edges: int) -> EdgeRows | None:
        described = [one.payload for one in self.graph.schema.relations if one.payload is not UNSET]
        if not described:
            return None
        columns = max(len(one.columns) for one in described)
        return EdgeRows(np.zeros((edges, columns), np.float32), np.zeros(edges, np.int64))


def _room_for(payload: EdgeRows, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `_arrange` reads of payload, and fills in. `most`: entries."""
    # A copy: a read-only array would compile the kernel a second time.
    return np.array(payload.times, np.int64), np.empty(most, np.int64), np.empty((most, 3), np.int64)


def overlay_arranger(graph: Graph, places: TypePlaces) -> OverlayArranger:
    """`places`: of the graph; where it changes, with the room for new nodes."""
    readings = [_readings_of(places, relation) for relation in range(len(places.rules))]
    most = max((len(each) for each in readings), default=0)
    return OverlayArranger(graph, places, _pack_readings(places.rules, readings), int(places.layout[1]), most)


class _ReadEntry(msgspec.Struct, frozen=True):
    """An entry that an edge becomes: a node that reads another one."""

    slot: int
    """The list of the reader that gains it."""
    swaps: bool
    """Whether the edge's source is the reader."""
    returns: bool
    """Whether it is the way back of another entry, which an edge of a node to itself does not have."""


def _readings_of(places: TypePlaces, relation: int) -> list[_ReadEntry]:
    slot, direction = int(places.slot_of[relation]), places.rules[relation].direction
    readings = [_ReadEntry(slot, direction is Direction.REVERSED, returns=False)]
    if direction is Direction.UNDIRECTED:
        readings.append(_ReadEntry(slot, swaps=True, returns=True))
    return [
        *readings,
        *(_ReadEntry(int(places.slot_of[one]), swaps=True, returns=False) for one in places.reverses[relation]),
    ]


def _pack_readings(rules: Sequence[EdgeRules], readings: Sequence[Sequence[_ReadEntry]]) -> np.ndarray:
    """The rules of each relation as one array for the kernel, which `_unpack_readings` takes apart: int64."""
    return np.array(
        [
            len(rules),
            *np.cumsum([0, *map(len, readings)]),
            *(one.duplicates is Duplicates.MERGE for one in rules),
            *(one.self_loops is SelfLoops.KEEP for one in rules),
            *(number for each in readings for one in each for number in (one.slot, one.swaps, one.returns)),
        ],
        dtype=np.int64,
    )


@inlined
def _unpack_readings(readings: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return parts of the array:

    - of each relation, and once more: its first reading
    - of each relation: whether equal entries are merged, and whether edges of a node to itself are kept
    - of each reading three numbers: its slot, whether it swaps the ends, and whether it is the way back
    """
    relations = readings[0]
    merges = 2 + relations
    keeps_loops = merges + relations
    numbers = keeps_loops + relations
    return readings[1:merges], readings[merges:keeps_loops], readings[keeps_loops:numbers], readings[numbers:]


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
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, readings: np.ndarray, new_nodes: int,
    new_types: np.ndarray, overridden: np.ndarray, relations: np.ndarray, edges: np.ndarray, most: int,
    seeds: np.ndarray, packed: np.ndarray, payload: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
) -> tuple[int, int, int]:  # fmt: skip
    """Fill in `packed`, and number the seeds. Returns the numbers of lists of overlay nodes and of entries, and of
    stored entries whose payload is replaced. `most`: as many entries as the edges may become. `payload`: times of the
    edges, and to be filled in as of `OverlayPayload` its `rows` and `replaced`; where it is None, what stands under it
    is left out of the compiled code."""
    types, stride, first_nodes, _, _, _, _ = unpack_layout(layout)
    stored = first_nodes[types]
    keys, places = _room_for_places(overridden, edges, stored)
    origins = packed[PACKED_HEADER:]
    origins[: new_nodes * stride] = -1
    for i in range(len(new_types)):
        origins[i * stride] = -1 - new_types[i]
    count = new_nodes
    for i in range(len(overridden)):
        count += _place(overridden[i], count, stride, keys, places, origins) == count
    # Each entry as (list, sender): the list that gains it, which begins as the node that reads, and the node that is
    # listed; and the edge that it is of, which only payload is looked up by.
    lists = np.empty(most, dtype=np.int64)
    senders = np.empty(most, dtype=np.int64)
    edge_of = lists if payload is None else np.empty(most, dtype=np.int64)
    count, entries = _enter(
        edges, relations, readings, stored, stride, count, keys, places, origins, lists, senders, edge_of, payload
    )
    nodes = count * stride
    starts = packed[PACKED_HEADER + nodes : PACKED_HEADER + 1 + 2 * nodes]
    neighbours = packed[PACKED_HEADER + 1 + 2 * nodes :]
    ends = _sort_into_lists(nodes, entries, lists, senders, edge_of, starts, neighbours, payload)
    kept, again = _keep(
        indptr, indices, layout, readings, count, origins, keys, places, starts, ends, neighbours, payload
    )
    for i in range(len(seeds)):
        if seeds[i] >= stored:
            seeds[i] = stored + (seeds[i] - stored) * stride
        else:
            place = _find(seeds[i], keys, places)
            if place >= 0:
                seeds[i] = stored + place * stride
    packed[0] = nodes
    packed[1] = kept
    packed[2] = (new_nodes + len(overridden)) * stride
    packed[3] = len(overridden)
    packed[4] = count - new_nodes
    return nodes, kept, again


@inlined
def _room_for_places(overridden: np.ndarray, edges: np.ndarray, stored: int) -> tuple[np.ndarray, np.ndarray]:
    """An empty table of places of stored nodes, for `_place` and `_find`: twice as large as it has to be at most."""
    stored_ends = 0
    for i in range(len(edges)):
        stored_ends += (edges[i, 0] < stored) + (edges[i, 1] < stored)
    size = 2
    while size < 2 * (len(overridden) + stored_ends):
        size *= 2
    return np.full(size, -1, dtype=np.int64), np.empty(size, dtype=np.int64)


@inlined
def _enter(
    edges: np.ndarray, relations: np.ndarray, readings: np.ndarray, stored: int, stride: int, count: int,
    keys: np.ndarray, places: np.ndarray, origins: np.ndarray, lists: np.ndarray, senders: np.ndarray,
    edge_of: np.ndarray, payload: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
) -> tuple[int, int]:  # fmt: skip
    """Fill in `lists`, `senders` and, where there is payload, `edge_of`, with the entries that edges become. Stored
    nodes that gain some become overlay nodes behind the `count` that there are. Returns how many of either there are
    then."""
    first_readings, _, keeps_loops, numbers = _unpack_readings(readings)
    entries = 0
    for i in range(len(edges)):
        relation = relations[i] if len(relations) > 0 else 0
        is_loop = edges[i, 0] == edges[i, 1]
        if is_loop and keeps_loops[relation] == 0:
            continue
        for reading in range(first_readings[relation], first_readings[relation + 1]):
            if is_loop and numbers[3 * reading + 2] != 0:
                continue
            swaps = numbers[3 * reading + 1]
            reader = edges[i, 1 - swaps]
            if reader < stored:
                place = _place(reader, count, stride, keys, places, origins)
                count += place == count
            else:
                place = reader - stored
            lists[entries] = place * stride + numbers[3 * reading]
            senders[entries] = edges[i, swaps]
            if payload is not None:
                edge_of[entries] = i
            entries += 1
    return count, entries


@inlined
def _sort_into_lists(
    nodes: int, entries: int, lists: np.ndarray, senders: np.ndarray, edge_of: np.ndarray, starts: np.ndarray,
    neighbours: np.ndarray, payload: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
) -> np.ndarray:  # fmt: skip
    """Fill in `starts` and `neighbours`, and rows of payload, by the entries, in their order within each list. Returns
    where each list ends: int64 [nodes]."""
    starts[:] = 0
    for entry in range(entries):
        starts[lists[entry] + 1] += 1
    for one in range(nodes):
        starts[one + 1] += starts[one]
    ends = starts[:nodes].copy()
    for entry in range(entries):
        neighbours[ends[lists[entry]]] = senders[entry]
        if payload is not None:
            payload[1][ends[lists[entry]]] = edge_of[entry]
        ends[lists[entry]] += 1
    return ends


@inlined
def _keep(
    indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray, readings: np.ndarray, count: int,
    origins: np.ndarray, keys: np.ndarray, places: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    neighbours: np.ndarray, payload: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
) -> tuple[int, int]:  # fmt: skip
    """Sort the list of each overlay node, keep of it what its relation's rules let it gain, and number the senders as
    what is arranged does. Returns how many entries are kept, and how many stored ones have other payload."""
    types, stride, first_nodes, first_lists, slots, relation_of, _ = unpack_layout(layout)
    _, merges, _, _ = _unpack_readings(readings)
    stored = first_nodes[types]
    if payload is not None:
        times, rows, replaced = payload
    kept = again = 0
    for k in range(count):
        origin = origins[k * stride]
        kind = -1 - origin
        for slot in range(stride):
            one = k * stride + slot
            first = starts[one]
            starts[one] = kept
            if first == ends[one]:
                continue
            if kind < 0:
                kind = type_of(origin, first_nodes)
            is_merged = merges[relation_of[kind * stride + slot]] != 0
            # In order, so that what is drawn does not depend on the order of the edges in the request.
            if payload is None:
                _sort(neighbours[first : ends[one]])
            else:
                _sort_with_rows(neighbours[first : ends[one]], rows[first : ends[one]], times, is_merged)
            stored_list = -1
            if is_merged and origin >= 0:
                stored_list = first_lists[kind] + (origin - first_nodes[kind]) * slots[kind] + slot
            before = -1
            for entry in range(first, ends[one]):
                sender = neighbours[entry]
                if payload is None:
                    if is_merged and before == sender:
                        continue
                    before = sender
                elif is_merged and entry + 1 < ends[one] and neighbours[entry + 1] == sender:
                    continue  # the last of equal ones counts
                if sender < stored:
                    if stored_list >= 0 and _lists(indptr, indices, stored_list, sender):
                        if payload is not None:
                            replaced[again, 0] = one
                            replaced[again, 1] = sender
                            replaced[again, 2] = rows[entry]
                            again += 1
                        continue
                    place = _find(sender, keys, places)
                    neighbours[kept] = sender if place < 0 else stored + place * stride
                else:
                    neighbours[kept] = stored + (sender - stored) * stride
                if payload is not None:
                    rows[kept] = rows[entry]
                kept += 1
    starts[count * stride] = kept
    return kept, again


@inlined
def _sort_with_rows(senders: np.ndarray, rows: np.ndarray, times: np.ndarray, is_merged: bool) -> None:
    """Sort a list's entries by sender, equal ones by the times of their edges, then as they are listed. `times`: of all
    edges, whose row each entry has. Where these are none, or equal ones are merged, they stay as they are listed."""
    order = np.argsort(rows, kind="mergesort")
    if len(times) > 0 and not is_merged:
        order = order[np.argsort(times[rows[order]], kind="mergesort")]
    order = order[np.argsort(senders[order], kind="mergesort")]
    senders[:] = senders[order]
    rows[:] = rows[order]


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
def _place(node: int, place: int, stride: int, keys: np.ndarray, places: np.ndarray, origins: np.ndarray) -> int:
    """The place of a stored node among the overlay nodes, which is `place` where it had none."""
    slot = slot_of(node, keys)
    if keys[slot] == node:
        return int(places[slot])
    keys[slot] = node
    places[slot] = place
    origins[place * stride] = node
    for other in range(1, stride):
        origins[place * stride + other] = -1
    return place


@inlined
def _find(node: int, keys: np.ndarray, places: np.ndarray) -> int:
    """The place of a stored node among the overlay nodes; -1: it is none."""
    slot = slot_of(node, keys)
    return int(places[slot]) if keys[slot] == node else -1


@inlined
def _lists(indptr: np.ndarray, indices: np.ndarray, place: int, neighbour: int) -> bool:
    """Whether that list, which is ascending, has the neighbour."""
    low = list_begin(indptr, place)
    end = list_end(indptr, place)
    high = end
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < neighbour:
            low = middle + 1
        else:
            high = middle
    return bool(low < end and indices[low] == neighbour)
