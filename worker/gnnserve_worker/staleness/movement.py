"""Movement of rows of stored layers by a group of changes: an estimate of how far each row is from what it would be.

A row moves by the share of its neighbours that came or left, and by what the rows that it reads have moved, each as
the layer weighs it: a neighbour's part of a mean, or GCN's weight of it. OMEGA, section 4, ranks rows by how many of
their neighbours are new; the share of changed in-neighbours picks nearly the rows that the true error would. All of it
takes time in proportion to the entries of lists that the changes reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.relation_lists import TypePlaces
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import prefetch, scratch_for
from gnnserve_worker.tables.growing import empty_growing

_STEP = 1 << 14
"""Entries that are looked at in a step, which takes a tenth of a millisecond; a longer list takes several steps."""
_LEAST = 2.0**-20
"""Movement of a row that is another one, at least."""
_OF_DEGREE = 0.5
"""Movement of a neighbour's weight, over the share of that neighbour's own list that is another one: GCN weighs by
d^-1/2."""
_AHEAD = 8
"""Entries by which prefetching is ahead."""
_NO_ROOTS = np.zeros(0, np.float32)


class Moved(NamedTuple):
    """Rows of a layer that are others."""

    nodes: np.ndarray
    """int64, distinct."""
    amounts: np.ndarray
    """Estimates of how far each has moved, float32 [nodes]: above 0, and 1 for a row that is another one
    altogether."""


class Movement:
    """One thread at a time uses it."""

    def __init__(
        self,
        lists: LivingLists,
        readers: LivingLists,
        places: TypePlaces,
        roots: np.ndarray | None,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """`lists`: those that layers read, as they are after the changes. `readers`: for each node the lists that name
        it; where edges go both ways, `lists` again. `roots`: `inverse_roots` of the graph where layers weigh
        neighbours by them; None: each is weighed by one over the list's length. `give_way` is called between steps."""
        self._lists, self._readers, self._places, self._give_way = lists, readers, places, give_way
        self._roots = _NO_ROOTS if roots is None else roots
        self._amounts = empty_growing((len(lists.bounds),), np.float32)
        """Movement of each node's row as far as it is summed; 0: it is not in `_found`."""
        self._found = np.empty(0, np.int64)
        self._count = 0

    def of_first_layer(self, entries: np.ndarray, renewed: np.ndarray, reached: np.ndarray) -> Moved:
        """`entries`: those that lists gained or lost, (list, sender), int64 [entries, 2]. `renewed`: nodes with other
        features, int64. `reached`: nodes whose rows of the layer are others, int64."""
        self._add_entries(entries)
        own = self._take()
        self._add(*own)
        self._add(renewed, np.ones(len(renewed), np.float32))
        self._add_readers(renewed, np.ones(len(renewed), np.float32))
        if len(self._roots):
            self._add_readers(own.nodes, np.float32(_OF_DEGREE) * own.amounts)
        self._add(reached, np.full(len(reached), _LEAST, np.float32))
        return self._take()

    def of_next_layer(self, below: Moved, entries: np.ndarray) -> Moved:
        """Movement of the rows of a layer that reads those that have moved so. `entries`: as of `of_first_layer`."""
        self._add(*below)
        self._add_entries(entries)
        self._add_readers(*below)
        return self._take()

    def _add_entries(self, entries: np.ndarray) -> None:
        for start in range(0, len(entries), _STEP):
            part = entries[start : start + _STEP]
            self._add_lists(part[:, 0], self._weights_of(part[:, 1]))

    def _add_readers(self, nodes: np.ndarray, amounts: np.ndarray) -> None:
        """Add to the rows that read these nodes (int64) what they have moved."""
        weighed, places, readers = amounts * self._weights_of(nodes), self._places, self._readers
        place = entry = 0
        while place < len(nodes):
            self._give_way()
            self._reserve(_STEP)
            self._count, place, entry = _add_readers(
                self._amounts, self._found, self._count, nodes, weighed, readers.bounds, readers.indices,
                self._lists.bounds, self._roots, places.first_lists, places.first_nodes, places.slots,
                places.has_one_list_each, place, entry,
            )  # fmt: skip

    def _weights_of(self, senders: np.ndarray) -> np.ndarray:
        """The part of a neighbour's weight that hangs on the neighbour: float32."""
        return self._roots[senders] if len(self._roots) else np.ones(len(senders), np.float32)

    def _add_lists(self, lists: np.ndarray, amounts: np.ndarray) -> None:
        """Add these amounts (float32), as the layer weighs an entry of each of these lists (int64)."""
        self._give_way()
        nodes = self._places.readers_of_lists(lists)
        self._reserve(len(nodes))
        bounds, found = self._lists.bounds, self._found
        self._count = _add_weighed(
            self._amounts, found, self._count, np.ascontiguousarray(nodes), np.ascontiguousarray(lists), amounts,
            bounds, self._roots,
        )  # fmt: skip

    def _add(self, nodes: np.ndarray, amounts: np.ndarray) -> None:
        self._reserve(len(nodes))
        self._count = _add(self._amounts, self._found, self._count, nodes, amounts)

    def _reserve(self, more: int) -> None:
        if len(self._found) < self._count + more:
            found = self._found
            self._found = scratch_for(found, self._count + more)
            self._found[: self._count] = found[: self._count]

    def _take(self) -> Moved:
        """What was added, and begin anew."""
        nodes = self._found[: self._count].copy()
        amounts = np.minimum(self._amounts[nodes], np.float32(1))
        self._amounts[nodes] = 0
        self._count = 0
        return Moved(nodes, amounts)


@kernel
def _add(sums: np.ndarray, found: np.ndarray, count: int, nodes: np.ndarray, amounts: np.ndarray) -> int:
    """Returns how many nodes are found then."""
    for i in range(len(nodes)):
        node = nodes[i]
        if sums[node] == 0:
            found[count] = node
            count += 1
        sums[node] += amounts[i]
    return count


@inlined
def _weight_of(node: np.int64, list_: np.int64, bounds: np.ndarray, roots: np.ndarray) -> np.float32:
    """What the layer weighs an entry of a node's list by, as far as it hangs on the node."""
    if len(roots) > 0:
        return np.float32(roots[node])
    return np.float32(1.0) / np.float32(max(1, bounds[list_, 1] - bounds[list_, 0]))


@kernel
def _add_weighed(
    sums: np.ndarray, found: np.ndarray, count: int, nodes: np.ndarray, lists: np.ndarray, amounts: np.ndarray,
    bounds: np.ndarray, roots: np.ndarray,
) -> int:  # fmt: skip
    """Returns how many nodes are found then."""
    for i in range(len(nodes)):
        node = nodes[i]
        if sums[node] == 0:
            found[count] = node
            count += 1
        sums[node] += amounts[i] * _weight_of(node, lists[i], bounds, roots)
    return count


@kernel
def _add_readers(
    sums: np.ndarray, found: np.ndarray, count: int, nodes: np.ndarray, amounts: np.ndarray,
    reader_bounds: np.ndarray, readers: np.ndarray, bounds: np.ndarray, roots: np.ndarray, first_lists: np.ndarray,
    first_nodes: np.ndarray, slots: np.ndarray, one_list_each: bool, place: int, entry: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Add each node's amount to its readers, `_STEP` entries at most, from an entry of the node at a place on. Returns
    how many nodes are found then, and where to go on."""
    left = _STEP
    while place < len(nodes):
        begin = reader_bounds[nodes[place], 0] + entry
        end = reader_bounds[nodes[place], 1]
        if place + _AHEAD < len(nodes):
            prefetch(readers, reader_bounds[nodes[place + _AHEAD], 0])
        last = min(end, begin + left)
        amount = amounts[place]
        for at in range(begin, last):
            read_by = np.int64(readers[at])
            node = read_by
            if not one_list_each:
                kind = np.searchsorted(first_lists, read_by, side="right") - 1
                node = first_nodes[kind] + (read_by - first_lists[kind]) // max(1, slots[kind])
            if sums[node] == 0:
                found[count] = node
                count += 1
            sums[node] += amount * _weight_of(node, read_by, bounds, roots)
        left -= last - begin
        if last < end:
            return count, place, entry + last - begin
        place += 1
        entry = 0
    return count, place, 0
