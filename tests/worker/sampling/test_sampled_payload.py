"""Features and times of edges are gathered for a sample by relation, those of stored edges and those that requests
bring: as of a graph that has both, told edge by edge in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.support.graphs.typed_lists import drawn_edges, over_types, readings
from tests.support.models.serving_path import SHARE
from tests.support.sampling.samplers import sampler_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import one_type
from gnnserve_worker.graph.overlay import EdgeRows, Overlay, OverlayArranger, overlay_arranger
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import unpack
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampledPayload, Scratch
from gnnserve_worker.sampling.payload import gather_payload

Row = tuple[tuple[float, ...], int | None]
"""Features and time of an edge; None: it has no time."""
WIDEST = 3


@dataclass(frozen=True)
class World:
    """A graph whose edges have payload, over which overlays are arranged."""

    arranger: OverlayArranger
    payloads: tuple[EdgePayload | None, ...]

    @property
    def graph(self) -> Graph:
        return self.arranger.graph


@dataclass(frozen=True)
class Brought:
    """What one request brings: types of its new nodes, edges as (relation, source, target), and their payload."""

    new_types: list[int]
    overridden: list[int]
    edges: list[tuple[int, int, int]]
    payload: EdgeRows | None

    def arranged(self, world: World) -> tuple[Overlay, np.ndarray]:
        ends = np.array(self.edges, np.int64).reshape(-1, 3)
        features = np.zeros((len(self.new_types) + len(self.overridden), 2), np.float32)
        asked = np.arange(world.graph.nodes + len(self.new_types))
        return world.arranger.arrange(
            features, np.array(self.overridden, np.int64), ends[:, 1:], asked, np.array(self.new_types, np.int64),
            np.ascontiguousarray(ends[:, 0]), self.payload,
        )  # fmt: skip

    def row(self, edge: int, payload: EdgePayload) -> Row:
        assert self.payload is not None
        return row_of(self.payload.features[edge, : len(payload.columns)], self.payload.times, edge, payload)


def row_of(features: np.ndarray, times: np.ndarray, place: int, payload: EdgePayload) -> Row:
    return tuple(features.tolist()), int(times[place]) if payload.time_column else None


def payload_of(draw: np.random.Generator, rows: int, columns: int, *, has_times: bool) -> EdgePayload:
    features = draw.normal(size=(rows, columns)).astype(np.float32)
    times = draw.integers(0, 9, rows) if has_times else np.zeros(0, np.int64)
    return EdgePayload(tuple(f"c{k}" for k in range(columns)), features, "at" if has_times else "", times)


def with_payload(
    draw: np.random.Generator, arranger: OverlayArranger, payloads: tuple[EdgePayload | None, ...]
) -> World:
    """Entries of each relation have any rows of its payload, as an edge and its reverse share one."""
    graph, places = arranger.graph, arranger.places
    rows = np.full(len(graph.indices), -1, np.int32)
    for relation, payload in enumerate(payloads):
        if payload is None:
            continue
        kind = int(places.targets[relation])
        lists = places.list_by(relation, np.arange(*places.first_nodes[kind : kind + 2]))
        for one in lists.tolist():
            begin, end = graph.indptr[one : one + 2]
            rows[begin:end] = draw.integers(0, len(payload.features), end - begin)
    return World(replace(arranger, graph=replace(graph, payload_rows=rows)), payloads)


def several_types(draw: np.random.Generator) -> World:
    arranger = over_types(draw)
    bought = payload_of(draw, 40, WIDEST, has_times=False)
    knows, blocks = payload_of(draw, 40, 2, has_times=True), payload_of(draw, 40, 0, has_times=True)
    return with_payload(draw, arranger, (knows, blocks, bought, bought, bought, None))


def one_relation(draw: np.random.Generator, rules: EdgeRules) -> World:
    lists = [np.sort(draw.integers(0, 30, draw.integers(0, 6))) for _ in range(30)]
    if rules.duplicates is Duplicates.MERGE:
        lists = [np.unique(one) for one in lists]
    graph = Graph(np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32))
    arranger = overlay_arranger(graph, places_of(one_type(30, graph.edges, edge_rules=rules)))
    return with_payload(draw, arranger, (payload_of(draw, 20, 2, has_times=True),))


WORLDS = {
    "several types": several_types,
    **{
        f"one type, {rules.in_words}": lambda draw, rules=rules: one_relation(draw, rules)
        for rules in (EdgeRules(direction, duplicates) for direction in Direction for duplicates in Duplicates)
    },
}
EACH_WORLD = pytest.mark.parametrize("world", WORLDS)


def brought_to(world: World, draw: np.random.Generator, count: int = 30) -> Brought:
    """Edges between any nodes, among them some that the graph has, and some twice."""
    kinds = len(world.arranger.places.slots)
    new_types = draw.integers(0, kinds, 3).tolist()
    overridden = draw.choice(world.graph.nodes, 2, replace=False).tolist()
    edges = drawn_edges(world.arranger, draw, new_types, count) if count else []
    edges = [*edges, *edges[:5], *edges[:3]]
    features = draw.normal(size=(len(edges), WIDEST)).astype(np.float32)
    return Brought(new_types, overridden, edges, EdgeRows(features, draw.integers(0, 9, len(edges))))


def list_seen(world: World, brought: Brought | None, relation: int, reader: int) -> list[tuple[int, Row]]:
    """What a node reads by a relation that has payload: each node, and the payload of the edge, sorted."""
    graph, places, payload = world.graph, world.arranger.places, world.payloads[relation]
    assert payload is not None
    listed = list[tuple[int, Row]]()
    if reader < graph.nodes:
        place = int(places.list_by(relation, np.array([reader]))[0])
        for position in range(*graph.indptr[place : place + 2].tolist()):
            row = int(graph.payload_rows[position])
            listed.append((int(graph.indices[position]), row_of(payload.features[row], payload.times, row, payload)))
    for number, (own, source, target) in enumerate([] if brought is None else brought.edges):
        for by, to, sender in readings(places, own, source, target):
            if (by, to) != (relation, reader):
                continue
            assert brought is not None
            row_brought = brought.row(number, payload)
            if places.rules[by].duplicates is Duplicates.MERGE and any(sender == one for one, _ in listed):
                listed = [(one, row_brought if one == sender else kept) for one, kept in listed]
            else:
                listed.append((sender, row_brought))
    return sorted(listed)


def sampled(
    world: World, requests: list[Brought | None], *, share: bool = False, fanouts: tuple[int, ...] = (-1, -1)
) -> tuple[NeighbourSample, tuple[SampledPayload | None, ...], np.ndarray | None]:
    """A sample of all nodes that each request knows, with its payload; and what overlay nodes stand for."""
    graph, parts, seeds = world.graph, list[Part](), list[np.ndarray]()
    for request in requests:
        overlay, asked = (None, np.arange(graph.nodes)) if request is None else request.arranged(world)
        parts.append(Part(len(asked), overlay, None))
        seeds.append(asked)
    together = np.concatenate(seeds)
    view = view_of(graph.nodes, parts, together)
    sample = sampler_of(graph)(
        graph.indptr, graph.indices, together, fanouts, 3, Scratch(), share=share,
        view=None if view is None else view.sampling, names_positions=True,
    )  # fmt: skip
    origins = None if view is None else unpack(view.sampling.packed)[4]
    return sample, gather_payload(graph, world.payloads, sample, view), origins


def told_by_row(
    sample: NeighbourSample, gathered: tuple[SampledPayload | None, ...]
) -> list[list[tuple[int, int, Row]]]:
    """For each row its relations with payload, the neighbours drawn by them, and the payload."""
    told: list[list[tuple[int, int, Row]]] = [[] for _ in sample.nodes]
    for relation, payload in enumerate(gathered):
        if payload is None:
            continue
        rows = np.searchsorted(sample.starts, payload.edges, side="right") - 1
        for place, (row, edge) in enumerate(zip(rows.tolist(), payload.edges.tolist(), strict=True)):
            time = int(payload.times[place]) if len(payload.times) else None
            told[row].append((relation, int(sample.neighbours[edge]), (tuple(payload.features[place].tolist()), time)))
    return told


@pytest.mark.campaign
@EACH_WORLD
@SHARE
@pytest.mark.parametrize("brings", [False, True], ids=["stored", "brought"])
def test_each_edge_has_the_payload_that_a_graph_with_all_of_it_has(world: str, share: bool, brings: bool) -> None:
    draw = np.random.default_rng(8)
    over = WORLDS[world](draw)
    request = brought_to(over, draw) if brings else None
    stride, stored = over.arranger.stride, over.graph.nodes

    sample, gathered, origins = sampled(over, [request], share=share)

    def called(node: int) -> int:
        if node < stored:
            return node
        assert origins is not None
        origin = int(origins[node - stored])
        return origin if origin >= 0 else stored + (node - stored) // stride

    places = over.arranger.places
    kinds_of_new = [] if request is None else request.new_types
    for node, told in zip(sample.nodes.tolist(), told_by_row(sample, gathered), strict=True):
        reader = called(node)
        kind = int(places.kinds_of(np.array([reader]))[0]) if reader < stored else kinds_of_new[reader - stored]
        for relation, payload in enumerate(over.payloads):
            if payload is not None and places.targets[relation] == kind:
                found = sorted((called(one), row) for by, one, row in told if by == relation)
                assert found == list_seen(over, request, relation, reader)


@EACH_WORLD
@SHARE
def test_requests_of_one_batch_see_no_payload_of_each_other(world: str, share: bool) -> None:
    draw = np.random.default_rng(9)
    over = WORLDS[world](draw)
    requests = [None, brought_to(over, draw), brought_to(over, draw, count=0), None, brought_to(over, draw, count=4)]

    def rows_of(sample: NeighbourSample, gathered: tuple[SampledPayload | None, ...]) -> list[list[tuple[int, Row]]]:
        told = told_by_row(sample, gathered)
        rows = np.arange(len(told)) if sample.seed_rows is None else sample.seed_rows
        return [[(relation, row) for relation, _, row in told[place]] for place in rows.tolist()]

    alone = [sampled(over, [one], share=share, fanouts=(3,))[:2] for one in requests]
    together = sampled(over, [*requests], share=share, fanouts=(3,))[:2]

    assert rows_of(*together) == [row for one in alone for row in rows_of(*one)]


def test_parallel_edges_that_a_request_brings_stand_in_the_order_of_time() -> None:
    draw = np.random.default_rng(10)
    world = one_relation(draw, EdgeRules(Direction.DIRECTED, Duplicates.KEEP))
    edges = [(0, draw.integers(30, 33), 4) for _ in range(60)]
    times = draw.integers(0, 9, 60)
    request = Brought([0, 0, 0], [], edges, EdgeRows(np.zeros((60, 2), np.float32), times))

    overlay, _ = request.arranged(world)

    assert overlay.payload is not None
    rows = overlay.payload.rows
    assert sorted(rows.tolist()) == list(range(60))
    stands = [(int(sender), int(times[row]), int(row)) for sender, row in zip(overlay.neighbours, rows, strict=True)]
    assert stands == sorted(stands)


def test_a_request_without_payload_is_arranged_as_before_and_its_entries_have_none_in_a_batch() -> None:
    draw = np.random.default_rng(11)
    world = one_relation(draw, EdgeRules(Direction.DIRECTED))
    request = brought_to(world, draw)
    bare, asked = replace(request, payload=None).arranged(world)
    whole, also_asked = request.arranged(world)

    view = view_of(world.graph.nodes, [Part(1, bare, None), Part(1, whole, None)], np.concatenate((asked, also_asked)))

    assert bare.payload is None
    np.testing.assert_array_equal(bare.packed, whole.packed)
    assert view is not None
    assert view.payload is not None
    assert np.count_nonzero(view.payload.rows < 0) == bare.edges


def test_an_edge_without_payload_is_not_gathered_as_another_edge() -> None:
    draw = np.random.default_rng(13)
    world = one_relation(draw, EdgeRules(Direction.DIRECTED))
    with pytest.raises(ValueError, match="has no payload, though its relation has"):
        sampled(world, [replace(brought_to(world, draw), payload=None)])


def test_a_sample_without_positions_has_no_payload() -> None:
    world = one_relation(np.random.default_rng(12), EdgeRules(Direction.DIRECTED))
    graph = world.graph
    sample = sampler_of(graph)(graph.indptr, graph.indices, np.arange(3), (2,), 1, Scratch(), share=False)
    with pytest.raises(ValueError, match="names no positions"):
        gather_payload(graph, world.payloads, sample)
