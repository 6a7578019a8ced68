"""Neighbour lists that edges are added to and removed from, in place.

A list lies where the revision's file has it until it outgrows its place; then it moves to the room behind, to a place
that is a power of two long, and moves on as it grows. Places that lists have left are used again. Lists stay ascending,
so that equal graphs have equal lists, whatever order their edges came in. One thread at a time writes, and no other
reads meanwhile: where others do read, they have lists of their own, which follow (`LivingLists.follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gnnserve_api.files.edges import Direction, EdgeRules, SelfLoops
from gnnserve_worker.graph.edges import row_blocks
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import brief_kernel, inlined, kernel

_CLASSES = 40
"""Places are 2^0 to 2^39 entries long."""
_FEWEST = 2
"""2^2 entries: the smallest place, which holds the number of the next free one in two of them."""
_BRIEF_ENTRIES = 1 << 15
"""Up to as many entries are copied without giving the interpreter away, in 0.1 ms."""
_SORTED_ENTRIES = 1 << 22
"""Entries of lists that are sorted at once, where no single list is longer."""
REMOVED, ADDED, MERGED = 0, 1, 2
"""What happens to an entry: it leaves, it comes, or it comes unless it is there."""
_END, _STORED, _FREE = 0, 1, 2
"""What stands where in `state`."""


class PayloadChange(NamedTuple):
    """Payload of entries that come to lists, all by relations that share a table of payload."""

    rows: np.ndarray
    """Row of each entry's edge, int32 [entries]; -1: it has none, or leaves."""
    times: np.ndarray
    """Time of each row of the table, int64; [0]: its edges have none."""
    replaced: np.ndarray
    """Set where an entry that is merged was there, and has another row now: bool [entries]."""


@dataclass(frozen=True, slots=True, eq=False)
class LivingLists:
    """The neighbours that each node reads: those lists that `Graph` has, ascending."""

    bounds: np.ndarray
    """Begin and end of each list in `indices`, int64 [room for nodes, 2]."""
    indices: np.ndarray
    """int32 [room for entries]."""
    places: np.ndarray
    """How long the place of each list is, int32 [room for nodes]."""
    state: np.ndarray
    """int64: the end of what is used of `indices`, the end of the file's, then the first free place of each length, -1:
    none."""
    payload_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """The row of each entry's payload, which moves with it: int32 [room for entries]; [0]: no entry has payload."""

    @property
    def graph(self) -> Graph:
        # Read-only, as files are mapped.
        indices = self.indices.view()
        indices.flags.writeable = False
        rows = self.payload_rows.view()
        rows.flags.writeable = False
        return Graph(self.bounds, indices, payload_rows=rows)

    @property
    def _rows(self) -> np.ndarray | None:
        # Kernels are compiled without where there are none.
        return self.payload_rows if len(self.payload_rows) else None

    @property
    def used_entries(self) -> int:
        """Entries of `indices` up to the end of what was ever used."""
        return int(self.state[_END])

    def lengths(self, nodes: np.ndarray) -> np.ndarray:
        """Neighbours of these nodes (int64)."""
        return np.asarray(self.bounds[nodes, 1] - self.bounds[nodes, 0])

    def of_these(self, nodes: np.ndarray) -> Graph:
        """The lists of these nodes (int64, ascending) as a graph of its own, in which the i-th of them is node i. They
        name no others."""
        places = np.zeros(len(self.bounds) if len(nodes) else 0, np.int32)
        places[nodes] = np.arange(len(nodes), dtype=np.int32)
        return self.renumbered(nodes, places)

    def renumbered(self, lists: np.ndarray, places: np.ndarray) -> Graph:
        """These lists (int64) as a graph of its own, in their order. `places`: what the nodes that they name are called
        there, by what they are called here, int32."""
        indptr = np.concatenate(([0], np.cumsum(self.lengths(lists)))).astype(np.int64)
        indices = np.empty(int(indptr[-1]), np.int32)
        _renumber(self.bounds, self.indices, lists, places, indptr, indices)
        return Graph(indptr, indices, payload_rows=self._rows_of(lists))

    def _rows_of(self, lists: np.ndarray) -> np.ndarray:
        """Rows of payload of all entries of these lists (int64): int32; [0]: there are none."""
        rows = np.empty(0 if self._rows is None else int(self.lengths(lists).sum()), np.int64)
        if len(rows):
            _read(self.bounds, self.payload_rows, lists, rows)
        return rows.astype(np.int32)

    def change(self, entries: np.ndarray, kinds: np.ndarray, payload: PayloadChange | None = None) -> np.ndarray:
        """Add entries and remove them, one after the other: (reader, sender), int64 [entries, 2]; `kinds`: REMOVED,
        ADDED or MERGED, int8 [entries]. `payload`: of lists whose entries have some; None: nothing comes. Returns which
        of them came or left, bool [entries]."""
        changed = np.zeros(len(entries), np.bool_)
        rows = self._rows
        if rows is not None and payload is None:
            payload = PayloadChange(np.full(len(entries), -1, np.int32), np.zeros(0, np.int64), changed.copy())
        given, times, replaced = (None, None, None) if rows is None or payload is None else payload
        lists = (self.bounds, self.indices, self.places, self.state)
        _change(*lists, entries, kinds, changed, rows, given, times, replaced)
        return changed

    def follow(self, other: LivingLists, nodes: np.ndarray, *, most_brief: int = _BRIEF_ENTRIES) -> None:
        """Make the lists of these nodes (int64) what they are in `other`, from which all others were taken as they are:
        they lie in the same places. Up to `most_brief` entries are copied without giving the interpreter away."""
        # Predictions wait meanwhile, and would wait longer for the interpreter to come back.
        follow = _follow_briefly if int(other.lengths(nodes).sum()) <= most_brief else _follow
        follow(self.bounds, self.indices, self._rows, other.bounds, other.indices, other._rows, nodes)
        self.state[:] = other.state

    def of(self, nodes: np.ndarray) -> np.ndarray:
        """The lists of these nodes (int64), one behind the other, int64."""
        found = np.empty(int(self.lengths(nodes).sum()), np.int64)
        _read(self.bounds, self.indices, nodes, found)
        return found

    def entries_of(self, nodes: np.ndarray) -> np.ndarray:
        """(node, neighbour) of all of their lists, int64 [entries, 2]."""
        return np.stack((np.repeat(nodes, self.lengths(nodes)), self.of(nodes)), axis=1)


def living_lists(indptr: np.ndarray, indices: np.ndarray, bounds: np.ndarray, places: np.ndarray) -> LivingLists:
    """Lists over a graph's. `indptr`: int64 [nodes + 1]. `indices`: its entries, with room behind. `bounds` and
    `places`: zeros, with room for as many nodes as there may ever be."""
    return spread_lists(indptr, indices, bounds, places, [(len(indptr) - 1, 0)])


def spread_lists(
    indptr: np.ndarray, indices: np.ndarray, bounds: np.ndarray, places: np.ndarray,
    blocks: Sequence[tuple[int, int]], payload_rows: np.ndarray | None = None,
) -> LivingLists:  # fmt: skip
    """The same with room between lists: `blocks` are how many lists follow each other, and the number of the first of
    them then. `payload_rows`: of the entries, with as much room behind; None: no entry has payload."""
    begin = 0
    for count, first in blocks:
        own = indptr[begin : begin + count + 1]
        bounds[first : first + count, 0], bounds[first : first + count, 1] = own[:-1], own[1:]
        places[first : first + count] = np.diff(own)
        begin += count
    if not _are_ascending(indptr, indices):
        _sort(indptr, indices, payload_rows)
    state = np.full(_FREE + _CLASSES, -1, np.int64)
    state[_END] = state[_STORED] = indptr[-1]
    return LivingLists(bounds, indices, places, state, np.zeros(0, np.int32) if payload_rows is None else payload_rows)


def _sort(indptr: np.ndarray, indices: np.ndarray, payload_rows: np.ndarray | None) -> None:
    """Make lists ascending, as those of a user's own file need not be: in others no entry would be found."""
    for start, end in row_blocks(indptr, _SORTED_ENTRIES):
        block = slice(indptr[start], indptr[end])
        readers = np.repeat(np.arange(start, end, dtype=np.int64), np.diff(indptr[start : end + 1]))
        keys = readers << 32 | indices[block]
        if payload_rows is not None:
            payload_rows[block] = payload_rows[block][np.argsort(keys, kind="stable")]
        # The low half, which is the number of a node.
        indices[block] = np.sort(keys).astype(np.int32)


class EdgeEntries(NamedTuple):
    entries: np.ndarray
    """(reader, sender), int64 [entries, 2]."""
    edges: np.ndarray
    """Which edge each of them is of, int64."""


def entries_of_edges(edges: np.ndarray, rules: EdgeRules) -> EdgeEntries:
    """Entries that edges become by the rules that the source's own followed, in the order of the edges: behind each
    entry the other way round where edges go both ways. `edges`: (source, target), int64 [edges, 2]."""
    numbers = np.arange(len(edges))
    is_loop = edges[:, 0] == edges[:, 1]
    if rules.self_loops is SelfLoops.REMOVE:
        numbers, is_loop = numbers[~is_loop], is_loop[~is_loop]
    there = edges[numbers] if rules.direction is Direction.REVERSED else edges[numbers, ::-1]
    if rules.direction is not Direction.UNDIRECTED:
        return EdgeEntries(np.ascontiguousarray(there), numbers)
    both = np.stack((there, there[:, ::-1]), axis=1).reshape(-1, 2)
    is_entry = np.stack((np.ones_like(is_loop), ~is_loop), axis=1).ravel()
    return EdgeEntries(both[is_entry], np.repeat(numbers, 2)[is_entry])


def reversed_lists(indptr: np.ndarray, indices: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The lists that name each node, as `Graph` has lists. `indptr`: int64 [lists + 1]; `indices`: int32 [edges].
    `nodes`: which they may name; as many as there are lists where each node has one."""
    counts = np.zeros(nodes + 1, np.int64)
    readers = np.empty(len(indices), np.int32)
    _reverse(indptr, indices, counts, readers)
    return counts, readers


@kernel
def _are_ascending(indptr: np.ndarray, indices: np.ndarray) -> bool:
    for place in range(len(indptr) - 1):
        for entry in range(indptr[place] + 1, indptr[place + 1]):
            if indices[entry] < indices[entry - 1]:
                return False
    return True


@kernel
def _renumber(
    bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, places: np.ndarray, indptr: np.ndarray, out: np.ndarray
) -> None:
    for i in range(len(nodes)):
        at = indptr[i]
        for entry in range(bounds[nodes[i], 0], bounds[nodes[i], 1]):
            out[at] = places[indices[entry]]
            at += 1


@kernel
def _read(bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, found: np.ndarray) -> None:
    at = 0
    for i in range(len(nodes)):
        for entry in range(bounds[nodes[i], 0], bounds[nodes[i], 1]):
            found[at] = indices[entry]
            at += 1


@kernel
def _follow(
    bounds: np.ndarray, indices: np.ndarray, rows: np.ndarray | None, other_bounds: np.ndarray,
    other_indices: np.ndarray, other_rows: np.ndarray | None, nodes: np.ndarray,
) -> None:  # fmt: skip
    _copy_lists(bounds, indices, rows, other_bounds, other_indices, other_rows, nodes)


@brief_kernel
def _follow_briefly(
    bounds: np.ndarray, indices: np.ndarray, rows: np.ndarray | None, other_bounds: np.ndarray,
    other_indices: np.ndarray, other_rows: np.ndarray | None, nodes: np.ndarray,
) -> None:  # fmt: skip
    _copy_lists(bounds, indices, rows, other_bounds, other_indices, other_rows, nodes)


@inlined
def _copy_lists(
    bounds: np.ndarray, indices: np.ndarray, rows: np.ndarray | None, other_bounds: np.ndarray,
    other_indices: np.ndarray, other_rows: np.ndarray | None, nodes: np.ndarray,
) -> None:  # fmt: skip
    for i in range(len(nodes)):
        node = nodes[i]
        begin = other_bounds[node, 0]
        end = other_bounds[node, 1]
        for entry in range(begin, end):
            indices[entry] = other_indices[entry]
        if rows is not None and other_rows is not None:
            for entry in range(begin, end):
                rows[entry] = other_rows[entry]
        bounds[node, 0] = begin
        bounds[node, 1] = end


@kernel
def _reverse(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, readers: np.ndarray) -> None:
    nodes = len(starts) - 1
    for entry in range(len(indices)):
        starts[indices[entry] + 1] += 1
    for node in range(nodes):
        starts[node + 1] += starts[node]
    ends = starts[:nodes].copy()
    for node in range(len(indptr) - 1):
        for entry in range(indptr[node], indptr[node + 1]):
            readers[ends[indices[entry]]] = node
            ends[indices[entry]] += 1


@kernel
def _change(
    bounds: np.ndarray, indices: np.ndarray, places: np.ndarray, state: np.ndarray, entries: np.ndarray,
    kinds: np.ndarray, changed: np.ndarray, rows: np.ndarray | None, given: np.ndarray | None,
    times: np.ndarray | None, replaced: np.ndarray | None,
) -> None:  # fmt: skip
    for i in range(len(entries)):
        reader = entries[i, 0]
        sender = int(entries[i, 1])
        begin = bounds[reader, 0]
        end = bounds[reader, 1]
        place = _lower_bound(indices, begin, end, sender)
        is_there = place < end and indices[place] == sender
        if kinds[i] == REMOVED:
            if is_there:
                for at in range(place, end - 1):
                    indices[at] = indices[at + 1]
                if rows is not None:
                    for at in range(place, end - 1):
                        rows[at] = rows[at + 1]
                bounds[reader, 1] = end - 1
                changed[i] = True
            continue
        if is_there and kinds[i] == MERGED:
            if rows is not None and given is not None and replaced is not None and rows[place] != given[i]:
                rows[place] = given[i]
                replaced[i] = True
            continue
        if is_there and rows is not None and given is not None and times is not None:
            # Behind those that are as old: rows that come are later ones.
            while place < end and indices[place] == sender:
                if len(times) > 0 and times[rows[place]] > times[given[i]]:
                    break
                place += 1
        if end - begin == places[reader]:
            moved = _move(bounds, indices, places, state, reader, rows)
            place += moved - begin
            begin = moved
            end = bounds[reader, 1]
        for at in range(end, place, -1):
            indices[at] = indices[at - 1]
        indices[place] = sender
        if rows is not None and given is not None:
            for at in range(end, place, -1):
                rows[at] = rows[at - 1]
            rows[place] = given[i]
        bounds[reader, 1] = end + 1
        changed[i] = True


@inlined
def _lower_bound(indices: np.ndarray, begin: int, end: int, sender: int) -> int:
    low = begin
    high = end
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < sender:
            low = middle + 1
        else:
            high = middle
    return int(low)


@inlined
def _move(
    bounds: np.ndarray, indices: np.ndarray, places: np.ndarray, state: np.ndarray, reader: int,
    rows: np.ndarray | None,
) -> int:  # fmt: skip
    """Move a list to a place with room for one more entry at least; returns where it begins there."""
    begin = bounds[reader, 0]
    length = bounds[reader, 1] - begin
    size = _FEWEST
    # A quarter more than it has, so that a long list does not move at every power of two's edge.
    while (np.int64(1) << size) < length + length // 4 + 1:
        size += 1
    free = state[_FREE + size]
    if free >= 0:
        state[_FREE + size] = _next_free(indices, free)
        moved = free
    else:
        moved = state[_END]
        state[_END] = moved + (np.int64(1) << size)
    for i in range(length):
        indices[moved + i] = indices[begin + i]
    if rows is not None:
        for i in range(length):
            rows[moved + i] = rows[begin + i]
    held = np.int64(places[reader])
    # The file's own places are of any length, and are not used again.
    if begin >= state[_STORED] and held > 0:
        left = _FEWEST
        while (np.int64(1) << left) < held:
            left += 1
        _set_next_free(indices, begin, state[_FREE + left])
        state[_FREE + left] = begin
    bounds[reader, 0] = moved
    bounds[reader, 1] = moved + length
    places[reader] = np.int64(1) << size
    return int(moved)


@inlined
def _next_free(indices: np.ndarray, place: int) -> int:
    """The number that is kept in the first two entries of a free place."""
    low = np.int64(indices[place]) & np.int64(0xFFFFFFFF)
    return int((np.int64(indices[place + 1]) << np.int64(32)) | low)


@inlined
def _set_next_free(indices: np.ndarray, place: int, following: int) -> None:
    indices[place] = np.int32(following & np.int64(0xFFFFFFFF))
    indices[place + 1] = np.int32(np.int64(following) >> np.int64(32))
