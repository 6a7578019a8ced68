"""A relation of a test whose edges have features and a time, from source to sample: assembled as sources are, sampled,
brought by requests and changed, in a graph of one type and in one of several. Each edge is told by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.payload_lists import lists_with_payload
from tests.support.samplers import sampler_of

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES
from gnnserve_api.files.repository import SourceColumn
from gnnserve_api.http.protocol import RequestOverlay, TypedOverlay
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.asking.asked_nodes import TARGET_NODES, GraphTypes
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.asking.features import GivenFeatures
from gnnserve_worker.asking.overlay import GraphOverlays, OverlaySupport, StandIn
from gnnserve_worker.asking.overlay_ids import IdsAlone, IdsWithTypes
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, decode_batch, encode_batch
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.overlay import Overlay, overlay_arranger
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import merged_lists, merged_payload_rows, parted_lists, places_of
from gnnserve_worker.graph.sources.assembly import GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.table_nodes import Labelled
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Splits
from gnnserve_worker.opening.living_graphs import living_graphs
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.sampling.payload import gather_payload

USERS, ITEMS = 6, 4
COLUMN = FeatureColumns(1, (SourceColumn("age", 1, None),))
PAID = [(0, 1, 5.0, 10), (2, 1, 7.5, 3), (0, 1, 6.0, 12), (1, 0, 1.0, 4), (3, 3, 2.0, 1), (4, 1, 0.5, 9)]
"""Source, target, amount and time of each edge; 0 pays 1 twice."""
BOUGHT = [(0, 2, 20.0, 5), (1, 2, 30.0, 6), (5, 0, 40.0, 7), (0, 2, 25.0, 2)]
Told = set[tuple[str, str, float, int]]
"""Reader, what it reads, amount and time."""


def edges_of(listed: list[tuple[int, int, float, int]]) -> tuple[np.ndarray, np.ndarray, EdgePayload]:
    sources, targets, amounts, times = (np.array(column) for column in zip(*listed, strict=True))
    return sources, targets, EdgePayload(("amount",), amounts[:, None].astype(np.float32), "at", times.astype(np.int64))


@dataclass(frozen=True)
class Toy:
    """A graph with such a relation, opened as a server opens it."""

    data: GraphData
    graph: Graph
    overlays: GraphOverlays
    request: Any
    """What requests bring, as a type."""

    def named(self, node: int) -> str:
        schema = self.graph.schema
        kind = int(np.searchsorted(schema.first_nodes, node, side="right")) - 1
        name, position = schema.types[kind].name, node - schema.first_nodes[kind]
        return f"{name}/{position}" if name else str(position)

    def changed(
        self, new: list[Any], edges: list[list[Any]], rows: list[tuple[float, int]], removed: list[list[Any]]
    ) -> Toy:
        """The same after changes, whose ids are as in requests. `rows`: amount and time of each edge that comes."""
        schema = self.graph.schema
        room = [msgspec.structs.replace(one, nodes=one.nodes + 1) for one in schema.types]
        grown = msgspec.structs.replace(schema, types=tuple(room))
        payloads = [relation.payload for relation in self.data.relations]
        living, _ = living_graphs(self.graph, {one.name: None for one in schema.types}, grown, 100, payloads=payloads)
        named = [*new, *itertools.chain(*edges, *removed)]
        ids = living.names.form(living).lay_out(named)
        amounts, times = (np.array(column) for column in zip(*rows, strict=True))
        batch = ChangeBatch(
            ChangeCounts(len(new), 0, 0, len(edges), len(removed)), ids, np.ones((len(new), 1), np.float32),
            edge_features=amounts[:, None].astype(np.float32), edge_times=times,
        )  # fmt: skip
        found = living.find(decode_batch(encode_batch(batch)))
        assert isinstance(found, FoundNodes), found
        living.apply(found)
        tables = [None if one is None else one.in_use for one in living.payloads]
        relations = [replace(one, payload=table) for one, table in zip(self.data.relations, tables, strict=True)]
        return replace(self, data=replace(self.data, relations=tuple(relations)), graph=living.graph)

    def sampled(
        self, brought: dict[str, Any] | None = None, asked: Any = None, nodes: Sequence[int] = range(USERS)
    ) -> Told:
        """All edges that these nodes read, or those asked for, as a request that brings that sees them."""
        seeds = np.array(nodes)
        overlay: Overlay | None = None
        if brought is not None:
            read = msgspec.json.decode(json.dumps(brought), type=self.request)
            overlay, seeds = self.overlays.arrange(asked, read, DEFAULT_OVERLAY_LIMITS)
        view = view_of(self.graph.nodes, [Part(len(seeds), overlay, None)], seeds)
        sample = sampler_of(self.graph)(
            self.graph.indptr, self.graph.indices, seeds, (-1,), 1, Scratch(), share=True,
            view=None if view is None else view.sampling, names_positions=True,
        )  # fmt: skip
        payloads = [relation.payload for relation in self.data.relations]
        told: Told = set()
        for payload in gather_payload(self.graph, payloads, sample, view):
            assert payload is not None
            readers = np.searchsorted(sample.starts, payload.edges, side="right") - 1
            for place, (row, edge) in enumerate(zip(readers.tolist(), payload.edges.tolist(), strict=True)):
                ends = (self._called(int(node), overlay) for node in (sample.nodes[row], sample.neighbours[edge]))
                told.add((*ends, float(payload.features[place, 0]), int(payload.times[place])))  # type: ignore[arg-type]
        return told

    def _called(self, node: int, overlay: Overlay | None) -> str:
        if node < self.graph.nodes:
            return self.named(node)
        assert overlay is not None
        origin = int(overlay.origins[node - self.graph.nodes])
        return self.named(origin) if origin >= 0 else "new"


def _nothing_stands_in(node: int) -> StandIn:
    raise AssertionError(f"nothing stands for node {node} here")


def opened(data: GraphData) -> Toy:
    lists = [relation.lists for relation in data.relations]
    graph = Graph(*merged_lists(data.schema, lists), data.schema, merged_payload_rows(data.schema, lists))
    schema = data.schema
    called = TARGET_NODES.call(USERS, GraphTypes(schema, schema, {kind.name: None for kind in schema.types}))
    arranger = overlay_arranger(graph, places_of(schema))
    ids = IdsWithTypes(called.ids) if schema.names is NAMES_OF_TYPES else IdsAlone(called.naming)
    support = OverlaySupport(COLUMN, arranger.arrange, None, EdgePayloads(schema.relations, schema.names))
    types = [GivenFeatures(COLUMN) for _ in schema.types]
    overlays = GraphOverlays(ids, types, support, _nothing_stands_in)
    return Toy(data, graph, overlays, TypedOverlay if schema.names is NAMES_OF_TYPES else RequestOverlay[int])


def assembled(kinds: list[tuple[str, int]], relations: list[GivenRelation], *, reverse: str) -> GraphData:
    splits = Splits(np.array([0]), np.array([1]), np.array([2]))
    labelled = Labelled(np.arange(USERS) % 2, (0, 1), splits)
    types = [
        GivenType(NodeType(name, nodes, np.ones((nodes, 1), np.float32)), None if place else labelled, "a test")
        for place, (name, nodes) in enumerate(kinds)
    ]
    source = HeterogeneousSource.model_validate({"npz": {"uri": "/a/folder"}, "reverse": reverse})
    return assemble(source, "0123abcd", types, relations)


def relation(
    source: str, name: str, target: str, listed: list[tuple[int, int, float, int]], rules: EdgeRules
) -> GivenRelation:
    sources, targets, payload = edges_of(listed)
    return GivenRelation(source, name, target, sources, targets, "a test", ("s", "t"), rules, payload=payload)


def one_type(rules: EdgeRules) -> Toy:
    return opened(assembled([("", USERS)], [relation("", "", "", PAID, rules)], reverse="Disabled"))


def several_types(rules: EdgeRules) -> Toy:
    return opened(
        assembled([("user", USERS), ("item", ITEMS)], [relation("user", "buys", "item", BOUGHT, rules)], reverse="Add")
    )


MERGED, KEPT = EdgeRules(Direction.DIRECTED), EdgeRules(Direction.DIRECTED, Duplicates.KEEP)


def test_edges_of_one_type_are_sampled_with_their_payload() -> None:
    kept: Told = {(str(target), str(source), amount, at) for source, target, amount, at in PAID}
    assert one_type(KEPT).sampled() == kept
    assert one_type(MERGED).sampled() == kept - {("1", "0", 5.0, 10)}


def test_a_reverse_relation_has_the_payload_of_the_edges_that_it_reverses() -> None:
    kept: Told = {(f"user/{user}", f"item/{item}", amount, at) for user, item, amount, at in BOUGHT}
    assert several_types(KEPT).sampled() == kept
    toy = several_types(MERGED)
    assert toy.sampled() == kept - {("user/0", "item/2", 20.0, 5)}
    there, back = (one.payload for one in toy.data.relations)
    assert there is back
    assert there is not None
    assert there.features[:, 0].tolist() == [30.0, 40.0, 25.0], "no row of the edge that was merged"


def test_a_request_brings_edges_of_one_type_with_their_payload() -> None:
    brought = {
        "nodes": [{"id": 99, "features": [3]}],
        "edges": [[99, 1], [0, 99], [0, 1]],
        "edgeFeatures": [[100], [200], [300]],
        "edgeTimes": [8, 9, 10],
    }
    merged, kept = (one_type(rules).sampled(brought, [1, 99]) for rules in (MERGED, KEPT))
    of_both: Told = {("1", "new", 100.0, 8), ("new", "0", 200.0, 9), ("1", "2", 7.5, 3), ("1", "4", 0.5, 9)}
    # Where equal edges are merged, the stored one has what the request says of it; elsewhere it is one more.
    assert merged == of_both | {("1", "0", 300.0, 10)}
    assert kept == of_both | {("1", "0", 300.0, 10), ("1", "0", 5.0, 10), ("1", "0", 6.0, 12)}


def test_a_request_brings_edges_of_several_types_with_their_payload() -> None:
    brought = {
        "nodes": [{"id": "user/99", "features": [3]}],
        "edges": [["user/99", "buys", "item/3"], ["user/0", "buys", "item/2"], ["user/0", "buys", "item/1"]],
        "edgeFeatures": [[100], [200], [300]],
        "edgeTimes": [8, 9, 10],
    }
    told = several_types(MERGED).sampled(brought, ["user/99", "user/0"])
    assert told == {
        ("new", "item/3", 100.0, 8), ("user/0", "item/2", 200.0, 9), ("user/0", "item/1", 300.0, 10),
    }  # fmt: skip


def test_changes_bring_edges_of_one_type_with_their_payload_and_take_them_away() -> None:
    def changed(rules: EdgeRules) -> Told:
        edges, rows = [[6, 1], [0, 1]], [(100.0, 8), (300.0, 11)]
        return one_type(rules).changed([6], edges, rows, [[2, 1], [3, 3]]).sampled()

    untouched: Told = {("0", "1", 1.0, 4), ("1", "4", 0.5, 9)}
    of_both: Told = untouched | {("1", "6", 100.0, 8), ("1", "0", 300.0, 11)}
    assert changed(MERGED) == of_both
    assert changed(KEPT) == of_both | {("1", "0", 5.0, 10), ("1", "0", 6.0, 12)}


def test_changes_bring_edges_of_several_types_with_their_payload_and_take_them_away() -> None:
    edges = [["user/6", "buys", "item/3"], ["user/0", "buys", "item/2"]]
    rows, removed = [(100.0, 8), (200.0, 9)], [["user/1", "buys", "item/2"]]
    toy = several_types(MERGED).changed(["user/6"], edges, rows, removed)
    assert toy.sampled() == {("user/0", "item/2", 200.0, 9), ("user/5", "item/0", 40.0, 7)}
    assert toy.sampled(nodes=[6]) == {("user/6", "item/3", 100.0, 8)}


@pytest.mark.campaign
@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize(
    "rules",
    [EdgeRules(*each) for each in itertools.product(Direction, Duplicates, SelfLoops)],
    ids=lambda rules: rules.in_words,
)
def test_lists_with_payload_are_those_without_and_their_rows_those_of_a_plain_sort(
    rules: EdgeRules, has_times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnserve_worker.graph.edges._PIECE_EDGES", 64)
    draw = np.random.default_rng(1)
    ends = draw.integers(0, 12, (2, 300))
    times = draw.integers(0, 5, 300 if has_times else 0)
    payload = EdgePayload((), np.zeros((300, 0), np.float32), "at" if has_times else "", times)

    def built(*, has_payload: bool) -> tuple[Graph, EdgeCounts]:
        edges = EdgeList(12, rules.direction, rules.duplicates, rules.self_loops, has_payload=has_payload)
        dangling = np.array([[12, 3], [4, -1]])
        edges.add(*dangling)  # which have no row
        edges.add(*ends[:, :100])
        edges.add(*ends[:, 100:])
        return edges.to_graph(payload if has_payload else None)

    (found, counts), (bare, expected_counts) = built(has_payload=True), built(has_payload=False)
    assert counts == expected_counts
    assert not len(bare.payload_rows)
    expected = lists_with_payload(ends[0], ends[1], 12, rules, payload)
    for graph in (found, bare):
        np.testing.assert_array_equal(graph.indptr, expected.indptr)
        np.testing.assert_array_equal(graph.indices, expected.indices)
    np.testing.assert_array_equal(found.payload_rows, expected.payload_rows)


def test_lists_of_each_relation_are_parted_with_their_rows() -> None:
    toy = several_types(KEPT)
    for found, one in zip(parted_lists(toy.graph), toy.data.relations, strict=True):
        np.testing.assert_array_equal(found.payload_rows, one.lists.payload_rows)
        np.testing.assert_array_equal(found.indices, one.lists.indices)


def test_payload_of_fewer_edges_than_there_are_is_refused() -> None:
    sources, targets, payload = edges_of(BOUGHT)
    given = GivenRelation(
        "user", "buys", "item", sources[:3], targets[:3], "edges/user__buys__item.npz", ("s", "t"), payload=payload
    )
    with pytest.raises(InputError, match="has features or times of 4 edges, and 3 edges; write one row for every edge"):
        assembled([("user", USERS), ("item", ITEMS)], [given], reverse="Add")
