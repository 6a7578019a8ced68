"""A graph of several types that changes: as `living_graph.py`, with a list for each relation that a node's type reads.

Nodes have one numbering, type after type, as in `typed_lists.py`; here there is room for new ones behind those of each
type, so that a node that comes has the next number of its type, and kernels find its lists as they find all others.
Edges become entries by the rules of their relation, as those of an overlay do (`typed_overlay.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from gnnserve_api.repository import NodeIdKind
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeIds, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.change_run import ChangeRun, NamedIds
from gnnserve_worker.graph.found_nodes import EntryChanges, FoundNodes, edge_changes, kind_of_change
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.living_graph import LivingGraph, first_repeated, no_room, refused
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, entries_of_edges
from gnnserve_worker.graph.typed_lists import TypedGraph, typed_graph
from gnnserve_worker.graph.typed_places import TypedPlaces

_IDS = range(-(2**63), 2**63)


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

    @property
    def is_typed(self) -> bool:
        return True

    def joins(self, batch: ChangeBatch) -> bool:
        return batch.is_typed

    def _name(self, batch: ChangeBatch) -> NamedIds:
        return _Finding(self, batch).name()

    def _with_types(self, run: ChangeRun, named: NamedIds, found: FoundNodes) -> FoundNodes:
        bounds, new = run.bounds, run.batch.counts.new_nodes
        added, removed = (named.relations[bounds[kind] + 1 : bounds[kind + 1] : 3] for kind in (3, 4))
        of_types: list[list[int | str]] = [[] for _ in self.ids_of]
        for place, kind in enumerate(named.types[:new].tolist()):
            of_types[kind].append(named.values[place])
        return replace(found, relations=added, removed_relations=removed, new_ids=self.change_ids_of(of_types))

    def change_ids_of(self, values: Sequence[Sequence[int | str]]) -> tuple[ChangeIds, ...]:
        """Ids of nodes of each type."""
        are_texts = [ids.kind is NodeIdKind.STRINGS for ids in self.ids_of]
        return tuple(_change_ids(one, are_texts=texts) for one, texts in zip(values, are_texts, strict=True))

    @property
    def _readers(self) -> LivingLists:
        assert self.readers is not None  # noqa: S101 - relations go one way
        return self.readers

    def _add(self, batch: ChangeBatch, found: FoundNodes) -> None:
        del batch  # ids of each type are found
        for ids, new in zip(self.ids_of, found.new_ids, strict=True):
            if len(new):
                ids.add(new, len(new))

    def _leave(self, nodes: np.ndarray) -> None:
        kinds = self.places.kinds_of(nodes)
        for kind in np.unique(kinds).tolist():
            self.ids_of[kind].remove(nodes[kinds == kind] - self.places.first_nodes[kind])

    def _entries_of(self, nodes: np.ndarray) -> np.ndarray:
        """As of `LivingGraph`; entries name lists in place of readers."""
        return self.lists.entries_of(self.places.lists_of(nodes))

    def _entry_changes(self, found: FoundNodes) -> list[EntryChanges]:
        parts = []
        for edges, numbers, adds in edge_changes(found):
            relations = found.relations if adds else found.removed_relations
            for relation in np.unique(relations).tolist():
                is_own = relations == relation
                own, of = edges[is_own], numbers[is_own]
                given = entries_of_edges(own, self.typed.relations[relation].edge_rules)
                parts.append(self._changes_by(relation, given.entries, of[given.edges], adds=adds))
                if (reverse := self.places.reverses.get(relation)) is not None:
                    parts.append(self._changes_by(reverse, own, of, adds=adds, count=False))
        return parts

    def _changes_by(
        self, relation: int, pairs: np.ndarray, edges: np.ndarray, *, adds: bool, count: bool = True
    ) -> EntryChanges:
        """What becomes of lists by the relation. `pairs`: (reader, sender); `edges`: the number of each one's edge."""
        entries = np.stack((self.places.list_by(relation, pairs[:, 0]), pairs[:, 1]), axis=1)
        kind = kind_of_change(adds=adds, is_merged=self.typed.relations[relation].merges)
        return EntryChanges.alike(entries, kind, edges, count=count)


class _Wrong(NamedTuple):
    """Why a batch is refused."""

    place: int
    """Place of the id among those of the batch."""
    problem: ChangeProblem
    words: str
    remedy: str


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
        self._relations = np.full(len(self._ends), -1, np.int64)
        """The place of the relation of each edge."""

    def find(self) -> FoundNodes | ChangeRefusal:
        counts, numbers = self._batch.counts, self._numbers
        if (wrong := next(self._read(), None)) is not None:
            return self._refused(wrong)
        self._look_up()
        new = self._add_new()
        if isinstance(new, ChangeRefusal):
            return new
        if (refusal := self._check_nodes(new)) is not None:
            return refusal
        if (wrong := next(chain(self._check_kinds(), self._find_relations()), None)) is not None:
            return self._refused(wrong)
        relations = self._relations
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
            new,
        )

    def name(self) -> NamedIds:
        """What the ids of joined batches name, also where some are wrong."""
        graph = self._graph
        wrong = [*self._read()]
        self._look_up()
        wrong += [*self._check_kinds(), *self._find_relations()]
        codes, known = [-1] * len(self._texts), dict[tuple[int, int | str], int]()
        kinds = self._kinds.tolist()
        for place, value in self._values.items():
            codes[place] = known.setdefault((kinds[place], value), len(known))
        relations = np.full(len(self._texts), -1, np.int64)
        relations[self._ends[:, 1]] = self._relations
        # A relation is no node, and is there.
        self._numbers[self._ends[:, 1]] = 0
        counts = np.array([ids.count for ids in graph.ids_of])
        room = np.array([kind.nodes for kind in graph.typed.types]) - counts
        return NamedIds(
            np.array(codes, np.int64), self._numbers, self._kinds, graph.places.first_nodes[:-1] + counts, room,
            np.array([one.place for one in wrong], np.int64), relations, self._values,
        )  # fmt: skip

    def _refused(self, wrong: _Wrong) -> ChangeRefusal:
        return refused(self._batch, wrong.place, wrong.problem, wrong.words, wrong.remedy)

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

    def _read(self) -> Iterator[_Wrong]:
        """Part types and ids. Those that are wrong have none."""
        known = {kind.name: place for place, kind in enumerate(self._graph.typed.types)}
        are_texts = [ids.kind is NodeIdKind.STRINGS for ids in self._graph.ids_of]
        for place in self._places.tolist():
            name, _, id_ = self._texts[place].partition("/")
            kind = known.get(name)
            if kind is None:
                words = f"is of no type of nodes; types are {', '.join(known)}"
                remedy = f'name it as "{next(iter(known))}/…"'
                yield _Wrong(place, ChangeProblem.UNKNOWN_NODE, words, remedy)
                continue
            if are_texts[kind]:
                if not id_:  # without a slash too
                    words, remedy = "has a type and no id", f'name it as "{name}/…"'
                    yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, remedy)
                    continue
                self._values[place] = id_
            elif id_.removeprefix("-").isdecimal() and id_.isascii() and len(id_) <= 20 and int(id_) in _IDS:
                self._values[place] = int(id_)
            else:
                words = f"is no id: those of type {name} are integers"
                yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, f'name it as "{name}/17"')
                continue
            self._kinds[place] = kind

    def _look_up(self) -> None:
        """Find the nodes that are there."""
        kinds = self._kinds[self._places]
        for kind in np.unique(kinds[kinds >= 0]).tolist():
            own = self._places[kinds == kind]
            ids, values = self._graph.ids_of[kind], [self._values[place] for place in own.tolist()]
            positions = ids.find(_change_ids(values, are_texts=ids.kind is NodeIdKind.STRINGS))
            first = int(self._graph.places.first_nodes[kind])
            self._numbers[own] = np.where(positions < 0, -1, positions + first)

    def _add_new(self) -> tuple[ChangeIds, ...] | ChangeRefusal:
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
        return graph.change_ids_of(values)

    def _check_kinds(self) -> Iterator[_Wrong]:
        """Features and labels are of types that have them."""
        counts, types = self._batch.counts, self._graph.typed.types
        for place in range(counts.new_nodes, counts.rows):
            kind = types[self._kinds[place]]
            if self._kinds[place] >= 0 and kind.features is None:
                words = f"has other features, and nodes of type {kind.name} have none"
                yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, "leave the override out")
        for place in range(counts.rows, counts.rows + counts.labelled):
            if self._kinds[place] != 0:
                words = f"has a label, and only nodes of type {types[0].name} have labels"
                yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, "leave the label out")

    def _find_relations(self) -> Iterator[_Wrong]:
        """Find the relation of each edge whose nodes have types."""
        typed = self._graph.typed
        known = {(one.source, one.name, one.target): place for place, one in enumerate(typed.relations)}
        names, kinds = [kind.name for kind in typed.types], self._kinds.tolist()
        for edge, (source, place, target) in enumerate(self._ends.tolist()):
            if min(kinds[source], kinds[target]) < 0:
                continue
            ends = names[kinds[source]], names[kinds[target]]
            relation = known.get((ends[0], self._texts[place], ends[1]))
            if relation is None or typed.relations[relation].reverse_of is not None:
                words = f"is no relation from {ends[0]} to {ends[1]}"
                if relation is not None:
                    words = f"from {ends[0]} to {ends[1]} is the reverse of a relation, and goes with it"
                own = ", ".join(one.key for one in typed.relations if one.reverse_of is None)
                yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, f"relations are {own}")
            else:
                self._relations[edge] = relation


def _change_ids(values: Sequence[int | str], *, are_texts: bool) -> ChangeIds:
    if are_texts:
        return ChangeIds(None, *lay_out([str(value) for value in values]))
    return ChangeIds(np.array(values, np.int64))


def _texts_of(ids: ChangeIds) -> list[str]:
    if ids.texts is None or ids.offsets is None:
        return []
    whole = ids.texts.tobytes()
    return [whole[start:end].decode(errors="replace") for start, end in pairwise(ids.offsets.tolist())]
