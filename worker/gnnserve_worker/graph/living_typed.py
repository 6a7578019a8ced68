"""A graph of several types that changes: as `living_graph.py`, with a list for each relation that a node's type reads.

Nodes have one numbering, type after type, as in `typed_lists.py`; here there is room for new ones behind those of each
type, so that a node that comes has the next number of its type, and kernels find its lists as they find all others.
Edges become entries by the rules of their relation, as those of an overlay do (`typed_overlay.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnnserve_api.repository import NodeIdKind
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeIds, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.living_graph import Effect, FoundNodes, LivingGraph, first_repeated, no_room, refused
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, entries_of_edges
from gnnserve_worker.graph.typed_lists import TypedGraph, typed_graph

_NO_ENTRIES = np.zeros((0, 2), np.int64)
_IDS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class TypedPlaces:
    """Where the nodes and lists of each type begin, and which types each relation joins: int64 arrays."""

    first_nodes: np.ndarray
    """[types + 1]"""
    first_lists: np.ndarray
    """[types + 1]"""
    slots: np.ndarray
    """Lists of a node of each type."""
    slot_of: np.ndarray
    """The slot of each relation among those that its target type reads."""
    sources: np.ndarray
    """Type of the nodes that each relation reads."""
    targets: np.ndarray
    """Type of the nodes that read it."""
    reverses: Mapping[int, int]
    """By relation, the one that importing added as its reverse."""

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """The types of these nodes (int64): int64."""
        return np.asarray(np.searchsorted(self.first_nodes, nodes, side="right") - 1)

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        """All lists of these nodes (int64): int64."""
        kinds = self.kinds_of(nodes)
        counts = self.slots[kinds]
        firsts = self.first_lists[kinds] + (nodes - self.first_nodes[kinds]) * counts
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(firsts, counts) + within)

    def readers_of_lists(self, lists: np.ndarray) -> np.ndarray:
        """The node that each of these lists (int64) is of: int64."""
        # A type without lists begins where the next one does: the last of those that begin there has the list.
        kinds = np.searchsorted(self.first_lists, lists, side="right") - 1
        positions = (lists - self.first_lists[kinds]) // np.maximum(1, self.slots[kinds])
        return np.asarray(self.first_nodes[kinds] + positions)

    def list_by(self, relation: int, readers: np.ndarray) -> np.ndarray:
        """The list of each reader (int64) by a relation that its type reads: int64."""
        kind = self.targets[relation]
        place = readers - self.first_nodes[kind]
        return np.asarray(self.first_lists[kind] + place * self.slots[kind] + self.slot_of[relation])


def places_of(typed: TypedGraphManifest) -> TypedPlaces:
    targets = [typed.place_of(relation.target) for relation in typed.relations]
    slots = [targets.count(place) for place in range(len(typed.types))]
    lists = [kind.nodes * count for kind, count in zip(typed.types, slots, strict=True)]
    named = {(one.source, one.name, one.target): place for place, one in enumerate(typed.relations)}
    return TypedPlaces(
        np.array(typed.first_nodes, np.int64),
        np.cumsum([0, *lists]),
        np.array(slots, np.int64),
        np.array([targets[:place].count(target) for place, target in enumerate(targets)], np.int64),
        np.array([typed.place_of(relation.source) for relation in typed.relations], np.int64),
        np.array(targets, np.int64),
        {
            named[one.target, one.reverse_of, one.source]: place
            for place, one in enumerate(typed.relations)
            if one.reverse_of is not None
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class LivingTypedGraph(LivingGraph):
    """`lists` are numbered as in `places`, and `readers` has for each node the lists that name it. `ids` are of the
    type that is classified, and `rules` of no relation: each has its own."""

    stored: TypedGraphManifest
    """As the revision has it, without room."""
    typed: TypedGraphManifest
    """With room: nodes of each type are as many as there may ever be."""
    places: TypedPlaces
    """Where the nodes of `typed` stand, type by type."""
    ids_of: tuple[LivingIds, ...]
    """Ids of each type."""
    left: np.ndarray
    """Whether each node has left, bool [room for nodes of all types]. Ids of each type note it there."""

    @property
    def graph(self) -> TypedGraph:
        plain = self.lists.graph
        return typed_graph(self.typed, plain.indptr, plain.indices)

    @property
    def is_gone(self) -> np.ndarray:
        return self.left

    @property
    def taken(self) -> int:
        return sum(ids.count for ids in self.ids_of)

    @property
    def kept(self) -> np.ndarray:
        firsts = zip(self.places.first_nodes.tolist(), self.ids_of, strict=False)
        return np.concatenate([first + ids.kept for first, ids in firsts])

    def nodes_of_lists(self, lists: np.ndarray) -> np.ndarray:
        return self.places.readers_of_lists(lists)

    def all_readers_of(self, nodes: np.ndarray) -> np.ndarray:
        return self.nodes_of_lists(self._readers.of(nodes))

    def find(self, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        if not batch.is_typed:
            return ChangeRefusal(
                ChangeProblem.INVALID_VALUE, "body", "its ids have no types, and nodes of the graph are of several",
                f'name nodes as "{self.stored.target.name}/…", and edges as source, relation, target',
            )  # fmt: skip
        return _Finding(self, batch).find()

    def apply(self, batch: ChangeBatch, found: FoundNodes) -> Effect:
        """As `LivingGraph.apply`; entries name lists in place of readers."""
        self._add(found)
        added, added_nothing = self._change_edges(found.edges, found.relations, adds=True)
        removed, removed_nothing = self._change_edges(found.removed_edges, found.removed_relations, adds=False)
        if len(found.removed):
            self._leave(found.removed)
            own = self.lists.entries_of(self.places.lists_of(found.removed))
            removed = np.concatenate((removed, self.remove_entries(own, self.entries_reading(found.removed))))
        return Effect(added, removed, added_nothing + removed_nothing)

    def follow_nodes(self, batch: ChangeBatch, found: FoundNodes) -> None:
        self._add(found)
        self._leave(found.removed)

    @property
    def _readers(self) -> LivingLists:
        assert self.readers is not None  # noqa: S101 - relations go one way
        return self.readers

    def _add(self, found: FoundNodes) -> None:
        for ids, new in zip(self.ids_of, found.new_ids, strict=True):
            if len(new):
                ids.add(new, len(new))

    def _leave(self, nodes: np.ndarray) -> None:
        kinds = self.places.kinds_of(nodes)
        for kind in np.unique(kinds).tolist():
            self.ids_of[kind].remove(nodes[kinds == kind] - self.places.first_nodes[kind])

    def _change_edges(self, edges: np.ndarray, relations: np.ndarray, *, adds: bool) -> tuple[np.ndarray, int]:
        """Entries that changed lists, (list, sender), and how many edges changed nothing."""
        parts, unchanged = [_NO_ENTRIES], 0
        for relation in np.unique(relations).tolist():
            own, described = edges[relations == relation], self.typed.relations[relation]
            given = entries_of_edges(own, described.edge_rules)
            entries, changed = self._change_by(relation, given.entries, adds=adds)
            unchanged += given.unchanged(changed, len(own))
            parts.append(entries[changed])
            if (reverse := self.places.reverses.get(relation)) is not None:
                entries, changed = self._change_by(reverse, own, adds=adds)
                parts.append(entries[changed])
        return np.concatenate(parts), unchanged

    def _change_by(self, relation: int, pairs: np.ndarray, *, adds: bool) -> tuple[np.ndarray, np.ndarray]:
        """Entries of lists by the relation, and which of them changed anything. `pairs`: (reader, sender)."""
        entries = np.stack((self.places.list_by(relation, pairs[:, 0]), pairs[:, 1]), axis=1)
        is_merged = self.typed.relations[relation].merges
        return entries, self.change_entries(entries, adds=adds, is_merged=is_merged)


class _Finding:
    """The nodes of one batch: their types and numbers, looked up type by type."""

    def __init__(self, graph: LivingTypedGraph, batch: ChangeBatch) -> None:
        self._graph, self._batch, self._texts = graph, batch, _texts_of(batch.ids)
        counts = batch.counts
        first = counts.new_nodes + counts.overrides + counts.labelled
        self._ends = np.arange(first, first + 3 * (counts.edges + counts.removed_edges)).reshape(-1, 3)
        """Where the three texts of each edge stand."""
        is_node = np.ones(len(self._texts), np.bool_)
        is_node[self._ends[:, 1]] = False
        self._places = np.flatnonzero(is_node)
        self._kinds = np.full(len(self._texts), -1, np.int64)
        self._values: dict[int, int | str] = {}
        """Ids without their types, by the place of the text."""
        self._numbers = np.full(len(self._texts), -1, np.int64)

    def find(self) -> FoundNodes | ChangeRefusal:
        counts, numbers = self._batch.counts, self._numbers
        if (refusal := self._read()) is not None:
            return refusal
        self._look_up()
        new = self._add_new()
        if isinstance(new, ChangeRefusal):
            return new
        if (refusal := self._check_nodes(new) or self._check_kinds()) is not None:
            return refusal
        relations = self._relations()
        if isinstance(relations, ChangeRefusal):
            return relations
        edges = numbers[self._ends[:, ::2]].reshape(-1, 2)
        return FoundNodes(
            numbers[: counts.new_nodes],
            numbers[counts.new_nodes : counts.rows],
            numbers[counts.rows : counts.rows + counts.labelled],
            edges[: counts.edges],
            edges[counts.edges :],
            numbers[len(numbers) - counts.removed_nodes :],
            relations[: counts.edges],
            relations[counts.edges :],
            tuple(new),
        )

    def _check_nodes(self, new: Sequence[ChangeIds]) -> ChangeRefusal | None:
        """Whether nodes are there, once, and there is room for the new ones of each type."""
        counts, batch, numbers = self._batch.counts, self._batch, self._numbers
        missing = self._places[numbers[self._places] < 0]
        if len(missing):
            remedy = "name a node that the graph has, or bring it in `nodes`"
            return refused(batch, int(missing[0]), ChangeProblem.UNKNOWN_NODE, "is no node of the graph", remedy)
        for start, end in ((counts.new_nodes, counts.rows), (len(numbers) - counts.removed_nodes, len(numbers))):
            if (again := first_repeated(numbers[start:end])) >= 0:
                remedy = "give each node once"
                return refused(batch, start + again, ChangeProblem.REPEATED_NODE, "is there twice", remedy)
        for ids, added, kind in zip(self._graph.ids_of, new, self._graph.typed.types, strict=True):
            if ids.count + len(added) > kind.nodes:
                there = f"{ids.count:,} nodes of type {kind.name} have been there"
                return no_room(f"{there}, and there is room for {kind.nodes:,}")
        return None

    def _read(self) -> ChangeRefusal | None:
        """Part types and ids."""
        known = {kind.name: place for place, kind in enumerate(self._graph.typed.types)}
        for place in self._places.tolist():
            name, _, id_ = self._texts[place].partition("/")
            kind = known.get(name)
            if kind is None:
                words = f"is of no type of nodes; types are {', '.join(known)}"
                remedy = f'name it as "{next(iter(known))}/…"'
                return refused(self._batch, place, ChangeProblem.UNKNOWN_NODE, words, remedy)
            self._kinds[place] = kind
            if self._graph.ids_of[kind].kind is NodeIdKind.STRINGS:
                if not id_:  # without a slash too
                    words, remedy = "has a type and no id", f'name it as "{name}/…"'
                    return refused(self._batch, place, ChangeProblem.INVALID_VALUE, words, remedy)
                self._values[place] = id_
                continue
            if not id_.removeprefix("-").isdecimal() or not id_.isascii() or len(id_) > 20 or int(id_) not in _IDS:
                words = f"is no id: those of type {name} are integers"
                return refused(self._batch, place, ChangeProblem.INVALID_VALUE, words, f'name it as "{name}/17"')
            self._values[place] = int(id_)
        return None

    def _look_up(self) -> None:
        """Find the nodes that are there."""
        for kind in np.unique(self._kinds[self._places]).tolist():
            own = self._places[self._kinds[self._places] == kind]
            ids, values = self._graph.ids_of[kind], [self._values[place] for place in own.tolist()]
            positions = ids.find(_change_ids(values, are_texts=ids.kind is NodeIdKind.STRINGS))
            first = int(self._graph.places.first_nodes[kind])
            self._numbers[own] = np.where(positions < 0, -1, positions + first)

    def _add_new(self) -> list[ChangeIds] | ChangeRefusal:
        """Give new nodes the next numbers of their types; their ids, of each type."""
        batch, graph, count = self._batch, self._graph, self._batch.counts.new_nodes
        there = np.flatnonzero(self._numbers[:count] >= 0)
        if len(there):
            remedy = "give a new node an id of its own; other features of a stored one go into `overrides`"
            return refused(batch, int(there[0]), ChangeProblem.STORED_NODE, "is a node of the graph", remedy)
        numbers: dict[tuple[int, int | str], int] = {}
        values: list[list[int | str]] = [[] for _ in graph.ids_of]
        for place in range(count):
            kind, value = int(self._kinds[place]), self._values[place]
            if (kind, value) in numbers:
                return refused(batch, place, ChangeProblem.REPEATED_NODE, "is there twice", "give each node once")
            numbers[kind, value] = int(graph.places.first_nodes[kind]) + graph.ids_of[kind].count + len(values[kind])
            values[kind].append(value)
        for place in self._places[self._numbers[self._places] < 0].tolist() if numbers else ():
            self._numbers[place] = numbers.get((int(self._kinds[place]), self._values[place]), -1)
        are_texts = [ids.kind is NodeIdKind.STRINGS for ids in graph.ids_of]
        return [_change_ids(one, are_texts=texts) for one, texts in zip(values, are_texts, strict=True)]

    def _check_kinds(self) -> ChangeRefusal | None:
        """Features and labels are of types that have them."""
        counts, types = self._batch.counts, self._graph.typed.types
        for place in range(counts.new_nodes, counts.rows):
            kind = types[self._kinds[place]]
            if kind.features is None:
                words = f"has other features, and nodes of type {kind.name} have none"
                return refused(self._batch, place, ChangeProblem.INVALID_VALUE, words, "leave the override out")
        for place in range(counts.rows, counts.rows + counts.labelled):
            if self._kinds[place] != 0:
                words = f"has a label, and only nodes of type {types[0].name} have labels"
                return refused(self._batch, place, ChangeProblem.INVALID_VALUE, words, "leave the label out")
        return None

    def _relations(self) -> np.ndarray | ChangeRefusal:
        """The place of the relation of each edge, int64."""
        typed = self._graph.typed
        known = {(one.source, one.name, one.target): place for place, one in enumerate(typed.relations)}
        found = np.empty(len(self._ends), np.int64)
        for edge, (source, place, target) in enumerate(self._ends.tolist()):
            ends = typed.types[self._kinds[source]].name, typed.types[self._kinds[target]].name
            relation = known.get((ends[0], self._texts[place], ends[1]))
            if relation is None or typed.relations[relation].reverse_of is not None:
                words = f"is no relation from {ends[0]} to {ends[1]}"
                if relation is not None:
                    words = f"from {ends[0]} to {ends[1]} is the reverse of a relation, and goes with it"
                own = ", ".join(one.key for one in typed.relations if one.reverse_of is None)
                return refused(self._batch, place, ChangeProblem.INVALID_VALUE, words, f"relations are {own}")
            found[edge] = relation
        return found


def _change_ids(values: Sequence[int | str], *, are_texts: bool) -> ChangeIds:
    if are_texts:
        return ChangeIds(None, *lay_out([str(value) for value in values]))
    return ChangeIds(np.array(values, np.int64))


def _texts_of(ids: ChangeIds) -> list[str]:
    if ids.texts is None or ids.offsets is None:
        return []
    whole = ids.texts.tobytes()
    return [whole[start:end].decode(errors="replace") for start, end in pairwise(ids.offsets.tolist())]
