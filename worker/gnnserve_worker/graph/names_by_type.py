"""Nodes of a graph whose types have names, by texts with their type (`user/17`); edges by their relation, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, BatchForm, ChangeIds, TextIds
from gnnserve_worker.graph.change_run import ChangeRun, NamedIds
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.ids import NodeIds, lay_out
from gnnserve_worker.graph.living_graph import LivingGraph, first_repeated, no_room, refused
from gnnserve_worker.graph.names_by_id import ids_at

_IDS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class NamesByType:
    """A `living_graph.Names`."""

    schema: GraphSchema
    """Types and relations; nodes of each type are as many as there may ever be."""

    forms = frozenset({TEXTS_WITH_TYPES})

    def form(self, graph: LivingGraph) -> BatchForm:
        del graph
        return TEXTS_WITH_TYPES

    @property
    def remedy(self) -> str:
        return f'name nodes as "{self.schema.target.name}/…", and edges as source, relation, target'

    def find(self, graph: LivingGraph, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        return _NodeLookup(self.schema, graph, batch).find()

    def name(self, graph: LivingGraph, batch: ChangeBatch) -> NamedIds:
        return _NodeLookup(self.schema, graph, batch).name()

    def complete(self, graph: LivingGraph, run: ChangeRun, named: NamedIds, found: FoundNodes) -> FoundNodes:
        bounds, new = run.bounds, run.batch.counts.new_nodes
        added, removed = (named.relations[bounds[kind] + 1 : bounds[kind + 1] : 3] for kind in (3, 4))
        of_types: list[list[int | str]] = [[] for _ in graph.ids_of]
        for place, kind in enumerate(named.types[:new].tolist()):
            of_types[kind].append(named.values[place])
        return replace(found, relations=added, removed_relations=removed, new_ids=_change_ids_of(graph, of_types))

    def write_nodes(self, kind: int, ids: NodeIds | None, nodes: np.ndarray) -> ChangeIds:
        return TextIds(*lay_out(_called(self.schema.types[kind].name, ids, nodes)), TEXTS_WITH_TYPES)

    def write_edges(self, relation: int, ids: tuple[NodeIds | None, NodeIds | None], edges: np.ndarray) -> ChangeIds:
        one = self.schema.relations[relation]
        ends = zip((one.source, one.target), ids, edges.T, strict=True)
        sources, targets = (_called(name, own, nodes) for name, own, nodes in ends)
        pairs = zip(sources, targets, strict=True)
        texts = [text for source, target in pairs for text in (source, one.name, target)]
        return TextIds(*lay_out(texts), TEXTS_WITH_TYPES)


class _Wrong(NamedTuple):
    """Why a batch is refused."""

    place: int
    """Place of the id among those of the batch."""
    problem: ChangeProblem
    words: str
    remedy: str


class _NodeLookup:
    """The nodes of one batch: their types and numbers, looked up type by type."""

    def __init__(self, schema: GraphSchema, graph: LivingGraph, batch: ChangeBatch) -> None:
        self._schema, self._graph, self._batch, self._texts = schema, graph, batch, batch.ids.as_texts()
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
        room = np.array([kind.nodes for kind in self._schema.types]) - counts
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
        for ids, added, kind in zip(self._graph.ids_of, new, self._schema.types, strict=True):
            if ids.count + len(added) > kind.nodes:
                there = f"{ids.count:,} nodes of type {kind.name} have been there"
                return no_room(f"{there}, and there is room for {kind.nodes:,}")
        return None

    def _read(self) -> Iterator[_Wrong]:
        """Part types and ids. Those that are wrong have none."""
        known = {kind.name: place for place, kind in enumerate(self._schema.types)}
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
            positions = ids.find(ids.form.lay_out(values))
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
        return _change_ids_of(graph, values)

    def _check_kinds(self) -> Iterator[_Wrong]:
        """Features and labels are of types that have them."""
        counts, types = self._batch.counts, self._schema.types
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
        schema = self._schema
        known = {(one.source, one.name, one.target): place for place, one in enumerate(schema.relations)}
        names, kinds = [kind.name for kind in schema.types], self._kinds.tolist()
        for edge, (source, place, target) in enumerate(self._ends.tolist()):
            if min(kinds[source], kinds[target]) < 0:
                continue
            ends = names[kinds[source]], names[kinds[target]]
            relation = known.get((ends[0], self._texts[place], ends[1]))
            if relation is None or schema.relations[relation].reverse_of is not None:
                words = f"is no relation from {ends[0]} to {ends[1]}"
                if relation is not None:
                    words = f"from {ends[0]} to {ends[1]} is the reverse of a relation, and goes with it"
                own = ", ".join(one.key for one in schema.relations if one.reverse_of is None)
                yield _Wrong(place, ChangeProblem.INVALID_VALUE, words, f"relations are {own}")
            else:
                self._relations[edge] = relation


def _called(kind: str, ids: NodeIds | None, nodes: np.ndarray) -> list[str]:
    """Ids by which batches name nodes of a type, at these positions (int64)."""
    return [f"{kind}/{id_}" for id_ in ids_at(ids, nodes).as_texts()]


def _change_ids_of(graph: LivingGraph, values: Sequence[Sequence[int | str]]) -> tuple[ChangeIds, ...]:
    """Ids of nodes of each type."""
    return tuple(ids.form.lay_out(own) for ids, own in zip(graph.ids_of, values, strict=True))
