"""Edges of a graph that changes keep their features and times: what changes make is what a graph built anew has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.graphs.payload_lists import lists_with_payload
from tests.support.serving.serving import FakeWorker

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, PayloadManifest, TypeManifest, relation_manifest
from gnnserve_api.http.changes import TypedChangesRequest
from gnnserve_client import Changes
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.asking.type_ids import QualifiedId
from gnnserve_worker.compaction import differences
from gnnserve_worker.compaction.differences import EdgeWriter, edge_differences, names_of, payloads_of
from gnnserve_worker.compaction.folding import folded_relations
from gnnserve_worker.graph.change_batch import (
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, BatchFormError, IntegerIds, TextIds
from gnnserve_worker.graph.change_run import join
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.found_nodes import FoundNodes, FoundRun
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_payload import LivingPayload, payload_problem
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import merged_lists, merged_payload_rows
from gnnserve_worker.graph.store import Graph, Relation
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.delta_memory import DeltaMemory, MappedItems
from gnnserve_worker.opening.living_graphs import living_graphs
from gnnserve_worker.serving.http.changes.batch_ids import TypedTexts
from gnnserve_worker.serving.http.changes.content import content_of, payload_of
from gnnserve_worker.serving.http.changes.reading import read_changes

COLUMNS = ("amount", "distance")
RULES = [
    EdgeRules(Direction.DIRECTED, Duplicates.MERGE),
    EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE),
    EdgeRules(Direction.REVERSED, Duplicates.KEEP),
    EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP),
]
Ends = tuple[int, int]


@dataclass
class Kind:
    """Which relation the changing edges are of, and how many nodes its ends have."""

    name: str
    source: str
    target: str
    rules: EdgeRules
    sources: int
    targets: int

    @property
    def has_types(self) -> bool:
        return bool(self.name)

    def schema(self, edges: int, rows: int) -> GraphSchema:
        payload = PayloadManifest(COLUMNS, "at", rows)
        if not self.has_types:
            one = relation_manifest("", "", "", edges, None, self.rules, payload)
            return GraphSchema((TypeManifest("", self.sources, 0, "Positions"),), (one,))
        types = tuple(TypeManifest(name, count, 0, "Positions") for name, count in (
            (self.source, self.sources), (self.target, self.targets),
        ))  # fmt: skip
        there = relation_manifest(self.source, self.name, self.target, edges, None, self.rules, payload)
        back = relation_manifest(self.target, f"rev_{self.name}", self.source, edges, self.name, self.rules, payload)
        plain = relation_manifest(self.source, "knows", self.source, 0, None, RULES[0])
        return GraphSchema(types, (back, plain, there))

    def lists(self, sources: np.ndarray, targets: np.ndarray, payload: EdgePayload) -> list[Graph]:
        """Lists of each relation of the schema."""
        there = lists_with_payload(sources, targets, self.targets, self.rules, payload)
        if not self.has_types:
            return [there]
        plain = Graph(np.zeros(self.sources + 1, np.int64), np.zeros(0, np.int32))
        return [lists_with_payload(targets, sources, self.sources, self.rules, payload), plain, there]


@dataclass
class PlainEdges:
    """Edges in the order in which they came, in Python. A node is called by the number that it had first."""

    kind: Kind
    ends: list[Ends] = field(default_factory=list)
    rows: list[tuple[float, float, int]] = field(default_factory=list)
    alive: dict[Ends, list[int]] = field(default_factory=dict)
    gone: set[Ends] = field(default_factory=set)
    """Type and number of each node that has left."""

    def _key(self, source: int, target: int) -> Ends:
        if self.kind.rules.direction is Direction.UNDIRECTED:
            return min(source, target), max(source, target)
        return source, target

    def add(self, source: int, target: int, row: tuple[float, float, int]) -> None:
        here = self.alive.setdefault(self._key(source, target), [])
        if self.kind.rules.duplicates is Duplicates.MERGE:
            here.clear()
        here.append(len(self.ends))
        self.ends.append((source, target))
        self.rows.append(row)

    def remove(self, source: int, target: int) -> None:
        here = self.alive.get(self._key(source, target), [])
        if here:
            here.remove(min(here, key=lambda edge: (self.rows[edge][2], edge)))

    def remove_nodes(self, sources: set[int], targets: set[int]) -> None:
        for edges in self.alive.values():
            edges[:] = [one for one in edges if self.ends[one][0] not in sources and self.ends[one][1] not in targets]

    def arrays(self) -> tuple[np.ndarray, np.ndarray, EdgePayload]:
        left = sorted(edge for edges in self.alive.values() for edge in edges)
        ends = np.array([self.ends[edge] for edge in left], np.int64).reshape(-1, 2)
        rows = [self.rows[edge] for edge in left]
        features = np.array([row[:2] for row in rows], np.float32).reshape(-1, 2)
        return (
            ends[:, 0],
            ends[:, 1],
            EdgePayload(COLUMNS, features, "at", np.array([row[2] for row in rows], np.int64)),
        )


def kind_of(rules: EdgeRules, *, has_types: bool, nodes: int) -> Kind:
    if has_types:
        return Kind("buys", "user", "item", EdgeRules(Direction.DIRECTED, rules.duplicates), nodes, nodes // 2)
    return Kind("", "", "", rules, nodes, nodes)


def random_rows(draw: np.random.Generator, count: int) -> list[tuple[float, float, int]]:
    return [(float(a), float(b), int(at)) for a, b, at in draw.integers(-50, 50, (count, 3))]


def opened(plain: PlainEdges) -> tuple[LivingGraph, LivingGraph]:
    kind, (sources, targets, payload) = plain.kind, plain.arrays()
    lists = kind.lists(sources, targets, payload)
    schema = kind.schema(lists[-1].edges, len(payload.features))
    graph = Graph(*merged_lists(schema, lists), schema, merged_payload_rows(schema, lists))
    grown = msgspec.structs.replace(
        schema, types=tuple(msgspec.structs.replace(one, nodes=one.nodes + 3000) for one in schema.types)
    )
    payloads = [payload if name != "knows" else None for name in (one.name for one in schema.relations)]
    return living_graphs(graph, {one.name: None for one in schema.types}, grown, 1 << 18, payloads=payloads)


def filled(kind: Kind, nodes: int, edges: int, seed: int) -> PlainEdges:
    draw, plain = np.random.default_rng(seed), PlainEdges(kind)
    ends = zip(draw.integers(0, kind.sources, edges).tolist(), draw.integers(0, kind.targets, edges).tolist(),
               strict=True)  # fmt: skip
    for (source, target), row in zip(ends, random_rows(draw, edges), strict=True):
        plain.add(source, target, row)
    return plain


def batch_of(
    kind: Kind, new: Sequence[Ends], edges: Sequence[Ends], removed: Sequence[Ends], gone: Sequence[Ends],
    rows: Sequence[tuple[float, float, int]],
) -> ChangeBatch:  # fmt: skip
    """`new`, `gone`: type (0: of sources) and number of each node."""
    counts = ChangeCounts(len(new), 0, 0, len(edges), len(removed), len(gone))
    features = np.array([row[:2] for row in rows], np.float32).reshape(-1, 2)
    times = np.array([row[2] for row in rows], np.int64)
    if not kind.has_types:
        numbers = [node for _, node in new] + [end for pair in (*edges, *removed) for end in pair]
        ids = IntegerIds(np.array(numbers + [node for _, node in gone], np.int64))
    else:
        texts = [f"{(kind.source, kind.target)[of]}/{node}" for of, node in new]
        for source, target in (*edges, *removed):
            texts += [f"{kind.source}/{source}", kind.name, f"{kind.target}/{target}"]
        texts += [f"{(kind.source, kind.target)[of]}/{node}" for of, node in gone]
        ids = TextIds(*lay_out(texts), TEXTS_WITH_TYPES)
    none = np.zeros((counts.rows, 0), np.float32)
    return ChangeBatch(counts, ids, none, b"", features, times)


def random_batch(plain: PlainEdges, draw: np.random.Generator, items: int) -> ChangeBatch:
    """New nodes, edges with payload (some of them known ones anew), removed edges, removed nodes; applied to `plain`,
    too."""
    kind, count = plain.kind, items // 10
    new: list[Ends] = [(0, kind.sources + place) for place in range(count)]
    kind.sources += count
    if kind.has_types:
        other = count // 2
        new = new[: count - other] + [(1, kind.targets + place) for place in range(other)]
        kind.sources -= other
        kind.targets += other
    else:
        kind.targets = kind.sources
    known = [plain.ends[min(edges)] for edges in plain.alive.values() if edges]
    is_known = draw.random(6 * count) < 0.3
    edges = [
        known[int(draw.integers(len(known)))] if again
        else (int(draw.integers(kind.sources)), int(draw.integers(kind.targets)))
        for again in is_known
    ]  # fmt: skip
    gone_before = plain.gone
    edges = [(s, t) for s, t in edges if (0, s) not in gone_before and (int(kind.has_types), t) not in gone_before]
    rows = random_rows(draw, len(edges))
    for (source, target), row in zip(edges, rows, strict=True):
        plain.add(source, target, row)
    there = [plain.ends[min(each)] for each in plain.alive.values() if each]
    removed = [there[int(place)] for place in draw.integers(0, len(there), 2 * count)]
    for source, target in removed:
        plain.remove(source, target)
    choices = [(0, node) for node in range(kind.sources)] + [(1, node) for node in range(kind.targets)] * kind.has_types
    choices = [one for one in choices if one not in gone_before]
    gone = [choices[int(place)] for place in draw.choice(len(choices), count, replace=False)]
    of_sources = {node for of, node in gone if of == 0}
    plain.remove_nodes(of_sources, {node for of, node in gone if of == 1} if kind.has_types else of_sources)
    plain.gone = gone_before | set(gone)
    return batch_of(kind, new, edges, removed, gone, rows)


def found_of(graph: LivingGraph, batch: ChangeBatch) -> FoundNodes:
    found = graph.find(batch)
    assert isinstance(found, FoundNodes), found
    return found


def assert_is_rebuilt(graph: LivingGraph, plain: PlainEdges) -> None:
    kept = [ids.kept for ids in graph.ids_of]
    sources, targets, payload = plain.arrays()
    sources, targets = np.searchsorted(kept[0], sources), np.searchsorted(kept[-1], targets)
    kind = replace(plain.kind, sources=len(kept[0]), targets=len(kept[-1]))
    expected = kind.lists(sources, targets, payload)
    for found, own in zip(folded_relations(graph, kept), expected, strict=True):
        np.testing.assert_array_equal(found.lists.indptr, own.indptr)
        np.testing.assert_array_equal(found.lists.indices, own.indices)
        np.testing.assert_array_equal(found.lists.payload_rows, own.payload_rows)
        if found.payload is None:
            assert found.name == "knows"
            continue
        assert (found.payload.columns, found.payload.time_column) == (COLUMNS, "at")
        np.testing.assert_array_equal(found.payload.features, payload.features)
        np.testing.assert_array_equal(found.payload.times, payload.times)


@pytest.mark.parametrize(
    ("rules", "has_types"), [*((rules, False) for rules in RULES), (RULES[0], True), (RULES[2], True)]
)
def test_a_change_of_10000_items_leaves_the_payload_of_a_graph_built_anew(rules: EdgeRules, has_types: bool) -> None:
    plain = filled(kind_of(rules, has_types=has_types, nodes=1500), 1500, 6000, seed=1)
    seen, draft = opened(plain)
    batch = random_batch(plain, np.random.default_rng(2), 10_000)
    assert 9_000 < batch.counts.items <= 10_000
    found = found_of(draft, decode_batch(encode_batch(batch)))
    effect = draft.apply(found)
    assert_is_rebuilt(draft, plain)
    seen.follow_nodes(found)
    seen.lists.follow(draft.lists, np.concatenate((draft.places.lists_of(found.new), effect.lists)))
    assert_is_rebuilt(seen, plain)


@pytest.mark.parametrize("has_types", [False, True])
def test_memory_of_changes_counts_the_payload_of_each_edge_once_and_of_its_entries(has_types: bool) -> None:
    kind = kind_of(RULES[0], has_types=has_types, nodes=40)
    plain = PlainEdges(kind)
    plain.add(0, 1, (1.0, 2.0, 3))
    _, graph = opened(plain)
    memory = DeltaMemory(graph, (), (), {}, MappedItems(0, 0))
    assert (memory.nbytes, memory.edge_bytes) == (0, 16)
    # Other payload of an edge that is there: a row, and no entry.
    for _ in range(10):
        graph.apply(found_of(graph, batch_of(kind, [], [(0, 1)], [], [], [(5.0, 6.0, 7)])))
    assert memory.nbytes == 10 * 16
    entries = graph.lists.used_entries
    graph.apply(found_of(graph, batch_of(kind, [], [(node, 2) for node in range(20)], [], [], [(1.0, 2.0, 3)] * 20)))
    of_lists = 4 * (3 + 2) * (graph.lists.used_entries - entries)
    assert of_lists >= 4 * (3 + 2) * 20
    assert memory.nbytes == 30 * 16 + of_lists


@pytest.mark.parametrize(
    ("rules", "has_types"), [*((rules, False) for rules in RULES), (RULES[0], True), (RULES[2], True)]
)
def test_batches_with_payload_together_are_what_they_are_one_by_one(rules: EdgeRules, has_types: bool) -> None:
    plain, draw = filled(kind_of(rules, has_types=has_types, nodes=60), 60, 200, seed=3), np.random.default_rng(4)
    one_by_one, together = opened(plain)[0], opened(plain)[1]
    batches = [random_batch(plain, draw, 40) for _ in range(6)]
    unchanged = [int(one_by_one.apply(found_of(one_by_one, batch)).unchanged.sum()) for batch in batches]
    assert_is_rebuilt(one_by_one, plain)
    assert all(together.joins(batch) for batch in batches)
    run = together.find_run(join(batches))
    assert isinstance(run, FoundRun)
    assert together.apply(run.found).unchanged.tolist() == unchanged
    assert_is_rebuilt(together, plain)


@pytest.mark.parametrize(
    ("rules", "has_types"), [*((rules, False) for rules in RULES), (RULES[0], True), (RULES[2], True)]
)
@pytest.mark.parametrize("most", [1, differences.MOST_EDGES])
def test_what_differs_between_two_graphs_makes_one_of_them_the_other(
    rules: EdgeRules, has_types: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "MOST_EDGES", most)
    monkeypatch.setattr(differences, "_BLOCK_ENTRIES", most)
    kind = kind_of(rules, has_types=has_types, nodes=12)
    plain, draw = filled(kind, 12, 60, seed=5), np.random.default_rng(6)
    before, _ = opened(plain)
    ends = [plain.ends[place] for place in draw.choice(60, 20, replace=False)]
    for source, target in ends[:10]:
        plain.remove(source, target)
    for (source, target), row in zip(ends[5:], random_rows(draw, 15), strict=True):
        plain.add(source, target, row)
    # Of parallel edges one is later than the others, and equal to the first.
    plain.add(*ends[-1], plain.rows[plain.ends.index(ends[-1])])
    after, _ = opened(plain)
    relations = folded_relations(after, [ids.kept for ids in after.ids_of])
    brought = bring_edges(before, relations)
    assert_entries_are(folded_relations(before, [ids.kept for ids in before.ids_of]), relations)
    assert 0 < brought < 60
    assert bring_edges(before, relations) == 0


def bring_edges(graph: LivingGraph, target: Sequence[Relation]) -> int:
    """Make the edges of a graph those of another one with the same nodes; how many come and leave."""
    count, places = 0, graph.places
    for place, one in enumerate(target):
        if one.reverse_of is not None:
            continue
        source, reader = int(places.sources[place]), int(places.targets[place])
        senders, readers = (places.first_nodes[end] + np.arange(graph.ids_of[end].count) for end in (source, reader))
        writer = EdgeWriter(graph, place, (None, None), 0, one.payload)
        for difference in edge_differences(
            graph.lists, places.list_by(place, readers), names_of(senders), one.lists, len(senders),
            places.rules[place], payloads_of(graph, place, one.payload),
        ):  # fmt: skip
            batch = decode_batch(encode_batch(writer.write(difference)))
            graph.apply(found_of(graph, batch))
            count += batch.counts.items
    return count


def assert_entries_are(found: Sequence[Relation], expected: Sequence[Relation]) -> None:
    """Whether entries and their payload are the same, in whatever rows it is."""
    for one, own in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.lists.indptr, own.lists.indptr)
        np.testing.assert_array_equal(one.lists.indices, own.lists.indices)
        assert (one.payload is None) == (own.payload is None)
        if one.payload is not None and own.payload is not None:
            rows, own_rows = one.lists.payload_rows, own.lists.payload_rows
            np.testing.assert_array_equal(one.payload.features[rows], own.payload.features[own_rows])
            np.testing.assert_array_equal(one.payload.times[rows], own.payload.times[own_rows])


def test_a_graph_whose_edges_have_other_columns_is_not_gone_back_to() -> None:
    _, graph = small()
    other = EdgePayload(("amount",), np.zeros((1, 1), np.float32), "at", np.zeros(1, np.int64))
    with pytest.raises(RepositoryError, match=r"have other features or times.*leave spec.revision out"):
        payloads_of(graph, 0, other)


def small() -> tuple[Kind, LivingGraph]:
    kind = kind_of(RULES[0], has_types=False, nodes=4)
    plain = PlainEdges(kind)
    plain.add(0, 1, (1.0, 2.0, 3))
    return kind, opened(plain)[0]


def test_an_edge_that_is_given_again_gets_its_new_payload_and_counts_as_a_change() -> None:
    kind, graph = small()
    effect = graph.apply(found_of(graph, batch_of(kind, [], [(0, 1)], [], [], [(5.0, 6.0, 7)])))
    assert (effect.unchanged.tolist(), len(effect.added), effect.lists.tolist()) == ([0], 0, [1])
    (relation,) = folded_relations(graph, [np.arange(4)])
    assert relation.payload is not None
    assert (relation.payload.features.tolist(), relation.payload.times.tolist()) == ([[5.0, 6.0]], [7])


@pytest.mark.parametrize(
    ("changed", "problem", "field", "words"),
    [
        ({"edge_features": np.zeros((0, 0), np.float32)}, ChangeProblem.WRONG_LENGTH, "edgeFeatures",
         "amount, distance"),
        ({"edge_times": np.zeros(0, np.int64)}, ChangeProblem.WRONG_LENGTH, "edgeTimes", "at"),
        ({"edge_features": np.zeros((2, 3), np.float32)}, ChangeProblem.WRONG_LENGTH, "edgeFeatures",
         "rows of 3 numbers"),
        ({"edge_features": np.array([[0, 0], [0, np.nan]], np.float32)}, ChangeProblem.INVALID_VALUE,
         "edgeFeatures[1][1]", "nan is no value of distance"),
    ],
)  # fmt: skip
def test_edges_without_the_payload_of_their_relation_are_refused(
    changed: dict[str, np.ndarray], problem: ChangeProblem, field: str, words: str
) -> None:
    kind, graph = small()
    batch = batch_of(kind, [], [(0, 2), (1, 2)], [], [], [(0.0, 0.0, 0)] * 2)
    refusal = graph.find(msgspec.structs.replace(batch, **changed))
    assert isinstance(refusal, ChangeRefusal)
    assert (refusal.problem, refusal.field) == (problem, field)
    assert words in refusal.message


def grown(key: str, columns: tuple[str, ...], time: str) -> LivingPayload:
    times = np.zeros(9 if time else 0, np.int64)
    return LivingPayload(key, columns, np.zeros((9, len(columns)), np.float32), time, times, np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("features", "times", "field", "message"),
    [
        ([[1, 2], [0, 0], [3, 4]], [5, 0, 0], "edgeFeatures[2][1]",
         "4.0, where edges[2] is of a relation whose edges have features: weight"),
        ([[1, 2], [0, 7], [3, 0]], [5, 0, 0], "edgeFeatures[1][1]",
         "7.0, where edges[1] is of a relation whose edges have features: none"),
        ([[1, 2], [np.nan, 0], [3, 0]], [5, 0, 0], "edgeFeatures[1][0]",
         "nan, where edges[1] is of a relation whose edges have features: none"),
        ([[1, 2], [0, 0], [3, 0]], [5, 0, 6], "edgeTimes[2]",
         "6, where edges[2] is of a relation whose edges have no time"),
        ([[1, 2], [0, 0], [3, 0]], [5, 8, 0], "edgeTimes[1]",
         "8, where edges[1] is of a relation whose edges have no time"),
    ],
)  # fmt: skip
def test_values_that_the_relation_of_an_edge_has_no_place_for_are_refused(
    features: list[list[float]], times: list[int], field: str, message: str
) -> None:
    payloads = [grown("user buys item", ("amount", "distance"), "at"), None, grown("user sees item", ("weight",), "")]
    none = TextIds(*lay_out([]), TEXTS_WITH_TYPES)
    batch = ChangeBatch(
        ChangeCounts(edges=3), none, np.zeros((0, 0), np.float32), b"", np.array(features, np.float32),
        np.array(times),
    )  # fmt: skip
    problem = payload_problem(payloads, batch, np.arange(3))
    assert problem is not None
    assert (problem.refusal.field, problem.refusal.message) == (field, message)
    fitting = msgspec.structs.replace(
        batch, edge_features=np.array([[1, 2], [0, 0], [3, 0]], np.float32), edge_times=np.array([5, 0, 0])
    )
    assert payload_problem(payloads, fitting, np.arange(3)) is None


def test_a_graph_without_payload_refuses_edges_that_have_some() -> None:
    kind, graph = small()
    graph = replace(graph, payloads=())
    refusal = graph.find(batch_of(kind, [], [(0, 2)], [], [], [(0.0, 0.0, 0)]))
    assert isinstance(refusal, ChangeRefusal)
    assert (refusal.field, refusal.message) == ("edgeFeatures", "edges of the graph have no features")


def served(schema: GraphSchema) -> ServedRevision:
    revision = FakeWorker(nodes=4, overlays=OverlaySupport(FeatureColumns(2, ()), never)).revision()
    return replace(revision, graph=replace(revision.graph, types=schema))


def never(*_: np.ndarray) -> Any:
    raise AssertionError


def test_features_and_times_of_edges_in_json_become_those_of_the_batch_and_are_listed_again() -> None:
    kind, _ = small()
    of = served(kind.schema(1, 1))
    body = {"edges": [[0, 2], [1, 2]], "edgeFeatures": [[0.5, 1.5], [2, 3]], "edgeTimes": [9, -9]}
    payload, batch = read_changes(json.dumps(body).encode(), b"application/json", of)
    assert payload == encode_batch(batch) == encode_batch(decode_batch(payload))
    assert batch.edge_features.tolist() == [[0.5, 1.5], [2, 3]]
    assert batch.edge_times.tolist() == [9, -9]
    content = content_of(decode_batch(payload), of.changes.features.columns_of, partial(payload_of, of.graph.types))
    assert json.loads(msgspec.json.encode(content)) == body
    changes = Changes(edges=body["edges"], edge_features=body["edgeFeatures"], edge_times=body["edgeTimes"])
    sent = decode_batch(changes.to_batch().body)
    assert (sent.counts, sent.ids.integers.tolist()) == (batch.counts, [0, 2, 1, 2])
    assert (sent.edge_features.tolist(), sent.edge_times.tolist()) == ([[0.5, 1.5], [2, 3]], [9, -9])
    assert [len(part.edge_times) for part in changes.split(1)] == [1, 1]


class NamedEnds:
    """Ids of the shop's types, as far as edges ask for them."""

    def read_named(self, given: str, where: str) -> QualifiedId:
        assert where.startswith("edges[")
        return QualifiedId(*given.split("/"))


def test_an_edge_of_several_types_has_the_payload_of_the_relation_that_it_names() -> None:
    kind = kind_of(RULES[0], has_types=True, nodes=4)
    schema, edges = kind.schema(1, 1), [("user/0", "buys", "item/1"), ("user/0", "knows", "user/1")]
    request = TypedChangesRequest(edges=(*edges, ("user/0", "sells", "item/1")))
    assert TypedTexts().relations(request, NamedEnds(), schema).tolist() == [2, 1, -1]  # type: ignore[arg-type]
    described = [payload_of(schema, TEXTS_WITH_TYPES.relation_of(edge)) for edge in request.edges]
    assert described == [PayloadManifest(COLUMNS, "at", 1), None, None]
    batch = ChangeBatch(
        ChangeCounts(edges=2), TextIds(*lay_out([text for edge in edges for text in edge]), TEXTS_WITH_TYPES),
        np.zeros((0, 0), np.float32), b"", np.array([[1, 2], [0, 0]], np.float32), np.array([3, 0]),
    )  # fmt: skip
    told = content_of(batch, lambda _: None, partial(payload_of, schema))
    assert (told.edge_features, told.edge_times) == (([1.0, 2.0], None), (3, None))


def test_entries_with_rows_are_not_opened_for_changes_without_their_payload() -> None:
    kind, _ = small()
    graph = Graph(np.array([0, 0, 1, 1, 1]), np.zeros(1, np.int32), kind.schema(1, 1), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="no payload was given"):
        living_graphs(graph, {"": None}, kind.schema(1, 1), 16)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"edges": [[0, 2]]}, "edgeFeatures[0]: it is missing; edges have 2 features, amount, distance"),
        (
            {"edges": [[0, 2]], "edgeFeatures": [[1, 2]]},
            "edgeTimes[0]: it is missing; edges have a time, at",
        ),
        ({"edges": [[0, 2]], "edgeFeatures": [[1, "x"]], "edgeTimes": [1]}, "edgeFeatures[0][1]: expected a number"),
        ({"edges": [[0, 2]], "edgeFeatures": [[1]], "edgeTimes": [1]}, "edgeFeatures[0]: 1 number, where edges"),
        (
            {"edges": [[0, 2]], "edgeFeatures": [[1, 2]], "edgeTimes": [1, 2]},
            "edgeTimes: 2 rows",
        ),
    ],
)
def test_payload_in_json_that_does_not_fit_is_told_by_its_place(body: dict[str, Any], words: str) -> None:
    kind, _ = small()
    with pytest.raises(RequestError) as error:
        read_changes(json.dumps(body).encode(), b"application/json", served(kind.schema(1, 1)))
    assert str(error.value).startswith(words)


def test_batches_without_payload_have_the_bytes_that_earlier_releases_read() -> None:
    kind, _ = small()
    batch = batch_of(kind, [], [(0, 2)], [], [], [])
    body = encode_batch(msgspec.structs.replace(batch, edge_features=np.zeros((0, 0), np.float32)))
    assert body == np.array([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2], "<i8").tobytes()


def test_a_binary_form_whose_payload_does_not_fit_its_counts_is_refused() -> None:
    kind, _ = small()
    body = encode_batch(batch_of(kind, [], [(0, 2)], [], [], [(0.5, 1.5, 9)]))
    again = decode_batch(body)
    assert (again.edge_features.tolist(), again.edge_times.tolist()) == ([[0.5, 1.5]], [9])
    with pytest.raises(BatchFormError, match="8 of edge features, 8 of edge times"):
        decode_batch(body[:-8])
    with pytest.raises(BatchFormError, match="0 edge features and 0 for times"):
        decode_batch(body[:80] + bytes(16) + body[96:])
    with pytest.raises(BatchFormError, match="less than the 96"):
        decode_batch(body[:88])
