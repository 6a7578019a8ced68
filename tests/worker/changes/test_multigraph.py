"""Edges that come and go, against a plain multigraph: each removal takes one edge between its two nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.changes.living import batch_of
from tests.support.graphs.graphs import neighbours_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import GraphSchema, TypeManifest, one_type, relation_manifest
from gnnserve_worker.compaction.differences import edge_differences, names_of
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Relation
from gnnserve_worker.opening.living_graphs import living_graphs, moves_blocks, with_room
from gnnserve_worker.repository.room import GraphRoom

NODES = 5
Edges = list[tuple[int, int]]
some_edges = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=14)
some_batches = st.lists(st.tuples(some_edges, some_edges), min_size=1, max_size=4)
often = settings(max_examples=examples(100), deadline=None, derandomize=True)


class Multigraph:
    """How often each edge is there: from a source to a target; of those that go both ways, whichever is named first."""

    def __init__(self, rules: EdgeRules, edges: Edges) -> None:
        self._rules = rules
        self.edges: Counter[tuple[int, int]] = Counter()
        for edge in edges:
            self.add(edge)

    def _named(self, edge: tuple[int, int]) -> tuple[int, int] | None:
        if edge[0] == edge[1] and self._rules.self_loops is SelfLoops.REMOVE:
            return None
        return min(edge, edge[::-1]) if self._rules.direction is Direction.UNDIRECTED else edge

    def add(self, edge: tuple[int, int]) -> bool:
        """Whether it changed anything."""
        named = self._named(edge)
        if named is None or (self.edges[named] and self._rules.duplicates is Duplicates.MERGE):
            return False
        self.edges[named] += 1
        return True

    def remove(self, edge: tuple[int, int]) -> bool:
        named = self._named(edge)
        if named is None or not self.edges[named]:
            return False
        self.edges[named] -= 1
        return True

    def apply(self, added: Edges, removed: Edges) -> int:
        """How many of a batch's edges changed nothing."""
        return [*map(self.add, added), *map(self.remove, removed)].count(False)

    def lists(self) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(NODES)]
        for (source, target), count in self.edges.items():
            if self._rules.direction is not Direction.REVERSED:
                rows[target] += [source] * count
            is_other = self._rules.direction is Direction.UNDIRECTED and source != target
            if is_other or self._rules.direction is Direction.REVERSED:
                rows[source] += [target] * count
        return [sorted(row) for row in rows]


def _built(rules: EdgeRules, edges: Edges) -> Graph:
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    found = EdgeList(NODES, rules.direction, rules.duplicates, rules.self_loops)
    found.add(pairs[:, 0], pairs[:, 1])
    return found.to_graph()[0]


def _living(rules: EdgeRules, graph: Graph) -> LivingGraph:
    def entries() -> np.ndarray:
        return np.concatenate((graph.indices, np.zeros(4096, np.int32)))

    grown = one_type(NODES, graph.edges, edge_rules=rules)
    return living_graphs(graph, {"": None}, grown, 4096, entries)[0]


def _apply(living: LivingGraph, batch: ChangeBatch) -> int:
    found = living.find(batch)
    assert isinstance(found, FoundNodes)
    return living.apply(found).unchanged


def _rows(living: LivingGraph) -> list[list[int]]:
    return [living.graph.list_of(node).tolist() for node in range(NODES)]


@pytest.mark.campaign
@pytest.mark.parametrize("direction", Direction)
@often
@given(st.data(), some_edges, some_batches)
def test_lists_are_those_of_a_multigraph_through_changes_compaction_and_the_way_back(
    direction: Direction, data: st.DataObject, edges: Edges, batches: list[tuple[Edges, Edges]]
) -> None:
    rules = EdgeRules(direction, data.draw(st.sampled_from(Duplicates)), data.draw(st.sampled_from(SelfLoops)))
    plain, first = Multigraph(rules, edges), _built(rules, edges)
    assert [neighbours_of(first, node) for node in range(NODES)] == plain.lists()
    living = _living(rules, first)
    for added, removed in batches:
        batch = batch_of(np.zeros((0, 1), np.float32), edges=[*added], removed_edges=[*removed])
        assert _apply(living, batch) == plain.apply(added, removed)
        assert _rows(living) == plain.lists()
        # Compaction writes these, and the next worker begins with them.
        living = _living(rules, living.lists.of_these(np.arange(NODES)))
    everyone = np.arange(NODES)
    for come, go, _ in edge_differences(living.lists, everyone, names_of(everyone), first, NODES, rules):
        back = batch_of(
            np.zeros((0, 1), np.float32), edges=[*map(tuple, come.tolist())], removed_edges=[*map(tuple, go.tolist())]
        )
        assert _apply(living, back) == 0
    assert _rows(living) == [neighbours_of(first, node) for node in range(NODES)]


@pytest.mark.parametrize("rules", [EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP), EdgeRules(Direction.DIRECTED)])
def test_entries_of_lists_that_are_not_ascending_are_found(rules: EdgeRules) -> None:
    """Rows of a user's own file are taken as they are."""
    graph = Graph(np.array([0, 3, 4, 5, 6, 6]), np.array([3, 1, 2, 0, 0, 0], np.int32))
    living = _living(rules, graph)
    batch = batch_of(np.zeros((0, 1), np.float32), edges=[(4, 0)], removed_edges=[(3, 0), (1, 0)])
    assert _apply(living, batch) == 0
    assert living.graph.list_of(0).tolist() == [2, 4]


@pytest.mark.campaign
@pytest.mark.parametrize("merges", [False, True], ids=["each counts", "once"])
@pytest.mark.parametrize("both_ways", [False, True], ids=["as listed", "both ways"])
@often
@given(edges=some_edges, batches=some_batches)
def test_relations_are_those_of_multigraphs(
    merges: bool, both_ways: bool, edges: Edges, batches: list[tuple[Edges, Edges]]
) -> None:
    own = EdgeRules(
        Direction.UNDIRECTED if both_ways else Direction.DIRECTED, Duplicates.MERGE if merges else Duplicates.KEEP
    )
    there = EdgeRules(Direction.DIRECTED, own.duplicates)
    plains = [Multigraph(own, edges), Multigraph(there, edges), Multigraph(there, [edge[::-1] for edge in edges])]
    relations = (
        Relation("user", "knows", "user", _built(own, edges), edge_rules=own),
        Relation("user", "buys", "item", _built(there, edges), edge_rules=there),
        Relation("item", "rev_buys", "user", _built(there, [edge[::-1] for edge in edges]), "buys", there),
        Relation("item", "sold", "user", _built(there, [edge[::-1] for edge in edges]), "buys", there),
    )
    living = _typed(relations)
    for added, removed in batches:
        batch = _typed_batch(added, removed)
        unchanged = plains[0].apply(added, removed) + plains[1].apply(added, removed)
        plains[2].apply([edge[::-1] for edge in added], [edge[::-1] for edge in removed])
        assert _apply(living, batch) == unchanged
        found = {one.name: rows for one, rows in zip(living.stored.relations, _typed_rows(living), strict=True)}
        expected = [plain.lists() for plain in plains]
        assert [found["knows"], found["buys"], found["rev_buys"]] == expected
        assert found["sold"] == found["rev_buys"]


def _typed(relations: tuple[Relation, ...]) -> LivingGraph:
    types = (NodeType("user", NODES, None), NodeType("item", NODES, None))
    data = GraphData(
        source="made up", digest="made up", types=types, classes=(), labels=np.full(NODES, -1),
        relations=tuple(sorted(relations, key=lambda one: one.target != "user")), splits=None,  # type: ignore[arg-type]
    )  # fmt: skip
    stored = Graph(*merged_lists(data.schema, [one.lists for one in data.relations]), data.schema)
    room = GraphRoom(2, 4096)
    ids = {"user": None, "item": None}
    published, _ = living_graphs(stored, ids, with_room(data.schema, {}, room), room.entries)
    return published


def _typed_rows(living: LivingGraph) -> Iterator[list[list[int]]]:
    """Lists of each relation, by positions within its types."""
    schema, firsts = living.stored, living.places.first_nodes
    for place, one in enumerate(schema.relations):
        source, target = (firsts[schema.place_of(name)] for name in (one.source, one.target))
        lists = living.places.list_by(place, target + np.arange(NODES))
        yield [(living.lists.of(lists[node : node + 1]) - source).tolist() for node in range(NODES)]


def _typed_batch(added: Edges, removed: Edges) -> ChangeBatch:
    def texts(edges: Edges) -> list[str]:
        named = [(f"user/{source}", "knows", f"user/{target}") for source, target in edges]
        named += [(f"user/{source}", "buys", f"item/{target}") for source, target in edges]
        return [text for edge in named for text in edge]

    counts = ChangeCounts(edges=2 * len(added), removed_edges=2 * len(removed))
    ids = TextIds(*lay_out([*texts(added), *texts(removed)]), TEXTS_WITH_TYPES)
    return ChangeBatch(counts, ids, np.zeros((0, 0), np.float32))


def test_lists_of_the_only_type_stay_where_they_are_stored_however_many_relations_it_has() -> None:
    rules = EdgeRules(Direction.DIRECTED, Duplicates.MERGE)
    one = GraphSchema(
        (TypeManifest("user", NODES, None, "Positions"),),
        tuple(relation_manifest("user", name, "user", 3, None, rules) for name in ("knows", "blocks")),
    )
    grown = with_room(one, {}, GraphRoom(2, 64))
    assert not moves_blocks(one, grown)
    two = msgspec.structs.replace(one, types=(*one.types, TypeManifest("item", NODES, None, "Positions")))
    assert moves_blocks(two, with_room(two, {}, GraphRoom(2, 64)))
    stored = Graph(*merged_lists(one, [_built(rules, [(0, 1), (2, 1)]), _built(rules, [(1, 0)])]), one)

    def entries() -> np.ndarray:
        return np.concatenate((stored.indices, np.zeros(64, np.int32)))

    copied, mapped = (living_graphs(stored, {"user": None}, grown, 64, each)[0] for each in (None, entries))
    texts = [text for name in ("knows", "blocks") for text in ("user/0", name, "user/2")] + [
        "user/2",
        "knows",
        "user/1",
    ]
    ids = TextIds(*lay_out(texts), TEXTS_WITH_TYPES)
    batch = ChangeBatch(ChangeCounts(edges=2, removed_edges=1), ids, np.zeros((0, 0), np.float32))
    assert (_apply(copied, batch), _apply(mapped, batch)) == (0, 0)
    rows = [*_typed_rows(mapped)]
    assert rows == [*_typed_rows(copied)]
    assert [rows[0][1], rows[0][2], rows[1][0], rows[1][2]] == [[0], [0], [1], [0]]
