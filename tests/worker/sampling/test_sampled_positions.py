"""Samples say where each neighbour stands, so that what belongs to an edge is found by it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs.graphs import random_graph
from tests.support.graphs.typed_lists import drawn_edges, over_types
from tests.support.models.serving_path import SHARE
from tests.support.overlays.overlays import NOBODY, NODES, RULES, World
from tests.support.sampling.sampler_contract import FANOUT_CASES

from gnnserve_api.files.edges import EdgeRules
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import SampleView, unpack
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.relations import sample_relations

FANOUTS = pytest.mark.parametrize(
    "fanouts", [*FANOUT_CASES, pytest.param((-1, -1), id="all"), pytest.param((0, 0), id="none")]
)
BY_RELATION = pytest.mark.parametrize("by_relation", [False, True], ids=["one list each", "by relation"])


def with_ends(graph: Graph) -> Graph:
    """The graph with an end for each list, as one that changes, and room behind its lists."""
    indptr = np.stack((graph.indptr[:-1], graph.indptr[1:]), axis=1).copy()
    return Graph(indptr, np.concatenate((graph.indices, np.full(5, -7, np.int32))))


def sampled(
    graph: Graph, seeds: np.ndarray, fanouts: tuple[int, ...], *, by_relation: bool, share: bool,
    view: SampleView | None = None, names_positions: bool = True,
) -> NeighbourSample:  # fmt: skip
    draws = {"share": share, "view": view, "names_positions": names_positions}
    if by_relation:
        return sample_relations(graph.indptr, graph.indices, seeds, fanouts, 7, Scratch(), layout=graph.layout, **draws)
    return sample_neighbours(graph.indptr, graph.indices, seeds, fanouts, 7, Scratch(), **draws)


def readers(sample: NeighbourSample) -> np.ndarray:
    """The node that reads each neighbour of the sample."""
    return np.repeat(sample.nodes, np.diff(sample.starts))


@pytest.mark.campaign
@FANOUTS
@SHARE
@BY_RELATION
@pytest.mark.parametrize("changes", [False, True], ids=["stays", "changes"])
def test_positions_are_those_of_the_drawn_entries(
    fanouts: tuple[int, ...], share: bool, by_relation: bool, changes: bool
) -> None:
    graph = random_graph(90, seed=1, mean_degree=20)
    bounds = np.stack((graph.indptr[:-1], graph.indptr[1:]), axis=1)
    over, seeds = with_ends(graph) if changes else graph, np.array([*range(0, 90, 2), 8, 8, 1])

    sample = sampled(over, seeds, fanouts, by_relation=by_relation, share=share)

    positions = sample.positions
    assert positions is not None
    np.testing.assert_array_equal(graph.indices[positions], sample.neighbours)
    begins, ends = bounds[readers(sample)].T
    assert ((positions >= begins) & (positions < ends)).all()
    rows = np.repeat(np.arange(len(sample.nodes)), np.diff(sample.starts))
    assert len(np.unique(np.stack((rows, positions)), axis=1).T) == len(positions)


@FANOUTS
@SHARE
@BY_RELATION
def test_naming_positions_changes_nothing_else(fanouts: tuple[int, ...], share: bool, by_relation: bool) -> None:
    graph, seeds = random_graph(90, seed=2, mean_degree=20), np.arange(40)

    named = sampled(graph, seeds, fanouts, by_relation=by_relation, share=share)
    plain = sampled(graph, seeds, fanouts, by_relation=by_relation, share=share, names_positions=False)

    assert plain.positions is None
    for name in ("nodes", "starts", "neighbours"):
        np.testing.assert_array_equal(getattr(named, name), getattr(plain, name))
    assert named.ends == plain.ends


def entries_seen(graph: Graph, view: SampleView, sample: NeighbourSample) -> np.ndarray:
    """What stands at the positions of a sample that was drawn in a view: a number for each neighbour."""
    assert sample.positions is not None
    return np.concatenate((graph.indices, unpack(view.packed)[7]))[sample.positions]


def stood_for(graph: Graph, view: SampleView, nodes: np.ndarray) -> np.ndarray:
    """Numbers of nodes, where overlay nodes that stand for stored ones have those'."""
    origins, found = unpack(view.packed)[4], nodes.astype(np.int64)
    is_overlay = found >= graph.nodes
    stands_for = origins[found[is_overlay] - graph.nodes]
    found[is_overlay] = np.where(stands_for >= 0, stands_for, found[is_overlay])
    return found


@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1), (2, -1)], ids=str)
@SHARE
@BY_RELATION
@pytest.mark.parametrize("rules", RULES[:2], ids=lambda rules: f"{rules.direction}-{rules.duplicates}")
def test_positions_behind_the_graph_are_entries_that_requests_bring(
    fanouts: tuple[int, ...], share: bool, by_relation: bool, rules: EdgeRules
) -> None:
    world = World(5, rules)
    overlay, seeds = world.arranged()
    both = np.concatenate((seeds, np.arange(10)))
    view = view_of(NODES, [Part(len(seeds), overlay, None), Part(10, None, 3)], both)
    assert view is not None

    sample = sampled(world.graph, both, fanouts, by_relation=by_relation, share=share, view=view.sampling)

    assert sample.positions is not None
    np.testing.assert_array_equal(
        stood_for(world.graph, view.sampling, entries_seen(world.graph, view.sampling, sample)),
        stood_for(world.graph, view.sampling, sample.neighbours),
    )
    brought = sample.positions[sample.positions >= world.graph.edges] - world.graph.edges
    starts = unpack(view.sampling.packed)[6]
    own = readers(sample)[sample.positions >= world.graph.edges] - NODES
    assert len(brought)
    assert ((brought >= starts[own]) & (brought < starts[own + 1])).all()


@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1)], ids=str)
@SHARE
def test_positions_over_several_types_are_in_the_lists_of_their_relations(
    fanouts: tuple[int, ...], share: bool
) -> None:
    draw = np.random.default_rng(4)
    arranger = over_types(draw)
    graph, places = arranger.graph, arranger.places
    new_types = [0, 1, 1]
    edges = np.array(drawn_edges(arranger, draw, new_types), np.int64)
    overlay, seeds = arranger.arrange(
        np.zeros((3, 2), np.float32), NOBODY, edges[:, 1:], np.arange(graph.nodes + 3), np.array(new_types),
        np.ascontiguousarray(edges[:, 0]),
    )  # fmt: skip
    view = view_of(graph.nodes, [Part(len(seeds), overlay, None)], seeds)
    assert view is not None

    sample = sampled(graph, seeds, fanouts, by_relation=True, share=share, view=view.sampling)

    assert sample.positions is not None
    np.testing.assert_array_equal(
        stood_for(graph, view.sampling, entries_seen(graph, view.sampling, sample)),
        stood_for(graph, view.sampling, sample.neighbours),
    )
    stride = arranger.stride
    slots = np.repeat(np.arange(len(sample.nodes) * stride) % stride, np.diff(sample.segments))
    stored = sample.positions < graph.edges
    nodes = stood_for(graph, view.sampling, readers(sample))[stored]
    kinds = places.kinds_of(nodes)
    lists = places.first_lists[kinds] + (nodes - places.first_nodes[kinds]) * places.slots[kinds] + slots[stored]
    assert (sample.positions[stored] >= graph.indptr[lists]).all()
    assert (sample.positions[stored] < graph.indptr[lists + 1]).all()
    assert 0 < np.count_nonzero(stored) < len(stored)
