"""A graph that changes: which nodes there are, what they are called, and whose features each of them reads.

Positions are given in the order in which nodes come, and are never given twice. A node that has left keeps its position
and its row, which nothing reads any more. Features and what is made of them are `inference/living.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from gnnserve_api.edges import EdgeRules
from gnnserve_api.repository import NodeIdKind
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.change_run import ChangeRun, NamedIds, fold_rows, place_ids
from gnnserve_worker.graph.found_nodes import (
    Effect,
    EntryChanges,
    FoundNodes,
    FoundRun,
    distinct,
    edge_changes,
    kind_of_change,
)
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import ADDED, REMOVED, LivingLists, entries_of_edges, merges
from gnnserve_worker.graph.store import Graph

_NO_ENTRIES = np.zeros((0, 2), np.int64)
_FIELDS = ("nodes", "overrides", "labels", "edges", "removedEdges", "removedNodes")
"""The lists of a batch in JSON, in the order of its ids."""


@dataclass(frozen=True, slots=True, eq=False)
class LivingGraph:
    lists: LivingLists
    readers: LivingLists | None
    """Who reads each node; None: edges go both ways, so that the lists say it."""
    ids: LivingIds
    rules: EdgeRules
    most_nodes: int
    """Positions that there is room for."""

    @property
    def graph(self) -> Graph:
        return self.lists.graph

    def draft(self, lists: LivingLists, ids: LivingIds) -> LivingGraph:
        """Another graph that changes are applied to first, with these lists and ids, equal to its own. `readers` are
        read while changes are applied and by no prediction: both graphs have the same."""
        return LivingGraph(lists, self.readers, ids, self.rules, self.most_nodes)

    @property
    def taken(self) -> int:
        """Positions that are taken, those of nodes that have left among them."""
        return self.ids.count

    @property
    def kept(self) -> np.ndarray:
        """Positions of the nodes that are there: int64, ascending."""
        return self.ids.kept

    @property
    def is_gone(self) -> np.ndarray:
        """Whether each node has left, bool [room for nodes]."""
        return self.ids.is_gone

    def readers_of(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes that read any of these (int64): int64, ascending, distinct."""
        return distinct((self.all_readers_of(nodes),))

    def all_readers_of(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes that read any of these (int64), each as often as it does: int64."""
        return (self.readers or self.lists).of(nodes)

    def nodes_of_lists(self, lists: np.ndarray) -> np.ndarray:
        """The nodes that these lists (int64) are of: int64. Each node has one, under its own number."""
        return lists

    def readers_counts(self, nodes: np.ndarray) -> np.ndarray:
        """How many entries of lists name each of these nodes (int64): int64 [nodes]."""
        return (self.readers or self.lists).lengths(nodes)

    def entries_reading(self, nodes: np.ndarray) -> np.ndarray:
        """Entries of lists that name any of these nodes (int64): (reader, sender), int64 [entries, 2]."""
        if not len(nodes):
            return _NO_ENTRIES
        return np.ascontiguousarray((self.readers or self.lists).entries_of(nodes)[:, ::-1])

    def find(self, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        """Find its nodes; or what is wrong with them."""
        counts = batch.counts
        try:
            positions = self._look_up(batch)
        except ValueError as error:
            return ChangeRefusal(
                ChangeProblem.INVALID_VALUE, "body", f"{error}", "use ids as GET /v1/variants (`nodeIds`) says"
            )
        new = counts.new_nodes
        if new:
            values = _comparable(batch)
            if (refusal := _check_new(batch, positions, values)) is not None:
                return refusal
            _place_new(positions, values, new, self.ids.count)
        if len(positions) and positions.min() < 0:
            first = int(positions.argmin())
            remedy = "name a node that the graph has, or bring it in `nodes`"
            return refused(batch, first, ChangeProblem.UNKNOWN_NODE, "is no node of the graph", remedy)
        bounds = np.cumsum([0, new, counts.overrides, counts.labelled, 2 * counts.edges, 2 * counts.removed_edges])
        for number in (1, 5):
            start, end = int(bounds[number]), int(bounds[number + 1]) if number < 5 else len(positions)
            if (again := first_repeated(positions[start:end])) >= 0:
                remedy = "give each node once"
                return refused(batch, start + again, ChangeProblem.REPEATED_NODE, "is there twice", remedy)
        if self.ids.count + new > self.most_nodes:
            return no_room(f"{self.ids.count:,} nodes have been there, and there is room for {self.most_nodes:,}")
        return FoundNodes(
            np.arange(self.ids.count, self.ids.count + new),
            positions[bounds[1] : bounds[2]],
            positions[bounds[2] : bounds[3]],
            positions[bounds[3] : bounds[4]].reshape(-1, 2),
            positions[bounds[4] : bounds[5]].reshape(-1, 2),
            positions[bounds[5] :],
        )

    def _look_up(self, batch: ChangeBatch) -> np.ndarray:
        """Positions of the nodes with these ids, as `LivingIds.find` returns them."""
        if batch.is_typed:
            raise ValueError("ids have types, and nodes of the graph are of one")
        return self.ids.find(batch.ids)

    @property
    def is_typed(self) -> bool:
        """Whether ids and edges of batches have types."""
        return False

    def joins(self, batch: ChangeBatch) -> bool:
        """Whether the batch can be one of a run: its ids are of the graph's kind."""
        return not batch.is_typed and (batch.ids.integers is not None) == (self.ids.kind is NodeIdKind.INTEGERS)

    def find_run(self, run: ChangeRun) -> FoundRun | int:
        """Find the nodes of batches that come one after the other; or the first of them that may be refused."""
        named = self._name(run.batch)
        if isinstance(placed := place_ids(run, named), int):
            return placed
        bounds, per_edge = run.bounds, run.batch.per_edge
        new, overridden, labelled, edges, removed_edges, removed = (
            placed[start:end] for start, end in pairwise(bounds)
        )
        folded, rows = fold_rows(new, overridden, run.batch.features)
        ends = slice(None, None, per_edge - 1)
        found = FoundNodes(
            new,
            folded,
            labelled,
            edges.reshape(-1, per_edge)[:, ends],
            removed_edges.reshape(-1, per_edge)[:, ends],
            removed,
            edge_records=run.edge_records(),
        )
        return FoundRun(msgspec.structs.replace(run.batch, features=rows), self._with_types(run, named, found))

    def _name(self, batch: ChangeBatch) -> NamedIds:
        """The nodes that the ids of joined batches name."""
        values = _comparable(batch)
        none = np.zeros(0, np.int64)
        if batch.ids.integers is not None:
            codes = np.unique(values, return_inverse=True)[1]
        else:
            known: dict[bytes, int] = {}
            codes = np.fromiter((known.setdefault(one, len(known)) for one in values), np.int64, len(values))
        first, room = np.array([self.ids.count]), np.array([self.most_nodes - self.ids.count])
        return NamedIds(codes, self.ids.find(batch.ids), np.zeros(len(codes), np.int64), first, room, none, none, {})

    def _with_types(self, run: ChangeRun, named: NamedIds, found: FoundNodes) -> FoundNodes:
        """The nodes of a run with what else is known of them, where they have types."""
        del run, named
        return found

    def apply(self, batch: ChangeBatch, found: FoundNodes) -> Effect:
        """Apply what `find` or `find_run` found right."""
        self._add(batch, found)
        changes = EntryChanges.joined(self._entry_changes(found), found)
        changed = self._change_entries(changes.entries, changes.kinds)
        is_removed = changes.kinds == REMOVED
        added, removed = changes.entries[changed & ~is_removed], changes.entries[changed & is_removed]
        unchanged = changes.unchanged(changed, found)
        if len(found.removed):
            self._leave(found.removed)
            own = self._entries_of(found.removed)
            removed = np.concatenate((removed, self._remove_entries(own, self.entries_reading(found.removed))))
        return Effect(added, removed, unchanged)

    def follow_nodes(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """Let nodes come and go as in the graph that the batch was applied to. Lists follow on their own
        (`LivingLists.follow`), those of new nodes before."""
        self._add(batch, found)
        self._leave(found.removed)

    def _add(self, batch: ChangeBatch, found: FoundNodes) -> None:
        if len(found.new):
            self.ids.add(batch.ids, len(found.new))

    def _leave(self, nodes: np.ndarray) -> None:
        if len(nodes):
            self.ids.remove(nodes)

    def _entries_of(self, nodes: np.ndarray) -> np.ndarray:
        """What these nodes (int64) read: (reader, sender), int64 [entries, 2]."""
        return self.lists.entries_of(nodes)

    def _entry_changes(self, found: FoundNodes) -> list[EntryChanges]:
        """What becomes of the edges that come, and then of those that leave."""
        parts = []
        for edges, numbers, adds in edge_changes(found):
            given = entries_of_edges(edges, self.rules)
            kind = kind_of_change(adds=adds, is_merged=merges(self.rules))
            parts.append(EntryChanges.alike(given.entries, kind, numbers[given.edges]))
        return parts

    def _change_entries(self, entries: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """As `LivingLists.change`, of all lists."""
        if not len(entries):
            return np.zeros(0, np.bool_)
        changed = self.lists.change(entries, kinds)
        if self.readers is not None:
            reversed_ = np.ascontiguousarray(entries[changed, ::-1])
            self.readers.change(reversed_, np.minimum(kinds[changed], ADDED))
        return changed

    def _remove_entries(self, own: np.ndarray, reading: np.ndarray) -> np.ndarray:
        """Remove what nodes that leave read, and what reads them; the entries that were there."""
        # An entry between two of the nodes is in both. From the ends of lists on, where nothing has to move up.
        entries = np.ascontiguousarray(np.concatenate((own, reading))[::-1])
        return np.asarray(entries[self._change_entries(entries, np.full(len(entries), REMOVED, np.int8))])


def no_room(message: str) -> ChangeRefusal:
    return ChangeRefusal(ChangeProblem.NO_ROOM, "body", message, "raise spec.updates.maxDelta")


def place_in_batch(batch: ChangeBatch, index: int) -> str:
    """Where the id stands that is `index` in their order, as a field of the JSON form."""
    counts, per_edge = batch.counts, batch.per_edge
    sizes = (counts.new_nodes, counts.overrides, counts.labelled, counts.edges, counts.removed_edges)
    for name, size in zip(_FIELDS, (*sizes, counts.removed_nodes), strict=True):
        is_edge = name in ("edges", "removedEdges")
        ids = per_edge * size if is_edge else size
        if index < ids:
            if is_edge:
                return f"{name}[{index // per_edge}][{index % per_edge}]"
            return f"{name}[{index}]" if name == "removedNodes" else f"{name}[{index}].id"
        index -= ids
    raise IndexError(index)


def refused(batch: ChangeBatch, index: int, problem: ChangeProblem, words: str, remedy: str) -> ChangeRefusal:
    """What is wrong with the id that is `index` in their order, which the message begins with."""
    ids = batch.ids
    if ids.integers is not None:
        shown = str(int(ids.integers[index]))
    else:
        assert ids.texts is not None and ids.offsets is not None  # noqa: S101
        start, end = int(ids.offsets[index]), int(ids.offsets[index + 1])
        shown = repr(ids.texts[start : min(end, start + 64)].tobytes().decode(errors="replace"))
    return ChangeRefusal(problem, place_in_batch(batch, index), f"{shown} {words}", remedy)


def _comparable(batch: ChangeBatch) -> np.ndarray:
    """Ids as an array whose entries can be compared."""
    ids = batch.ids
    if ids.integers is not None:
        return ids.integers
    assert ids.texts is not None and ids.offsets is not None  # noqa: S101
    whole, bounds = ids.texts.tobytes(), ids.offsets.tolist()
    texts = np.empty(len(bounds) - 1, object)
    texts[:] = [whole[start:end] for start, end in pairwise(bounds)]
    return texts


def first_repeated(values: np.ndarray) -> int:
    """The place of the first value that was there before; -1: there is none."""
    if len(values) < 2:
        return -1
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    return int(order[1:][same].min()) if same.any() else -1


def _check_new(batch: ChangeBatch, positions: np.ndarray, values: np.ndarray) -> ChangeRefusal | None:
    """`values`: ids as `_comparable` has them."""
    new = batch.counts.new_nodes
    if positions[:new].max() >= 0:
        first = int((positions[:new] >= 0).argmax())
        remedy = "give a new node an id of its own; other features of a stored one go into `overrides`"
        return refused(batch, first, ChangeProblem.STORED_NODE, "is a node of the graph", remedy)
    if (again := first_repeated(values[:new])) >= 0:
        return refused(batch, again, ChangeProblem.REPEATED_NODE, "is there twice", "give each node once")
    return None


def _place_new(positions: np.ndarray, values: np.ndarray, new: int, first: int) -> None:
    """Write the positions that new nodes would get, also where edges name them, in place."""
    missing = np.flatnonzero(positions < 0)
    order = np.argsort(values[:new], kind="stable")
    places = np.minimum(np.searchsorted(values[:new], values[missing], sorter=order), new - 1)
    candidates = order[places]
    is_new = values[candidates] == values[missing]
    positions[missing[is_new]] = first + candidates[is_new]
