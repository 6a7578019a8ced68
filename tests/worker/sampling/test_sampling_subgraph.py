"""Subgraphs for training and for the full neighbourhood: every node once, nothing left behind."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.graphs.graphs import complete_graph, graph_of, neighbours_of, random_graph, read_only, star
from tests.support.sampling import sampling as reference
from tests.support.statistics import is_uniform

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler

FANOUTS = pytest.mark.parametrize(
    "fanouts",
    [
        pytest.param((3,), id="one layer"),
        pytest.param((25, 10), id="the default"),
        pytest.param((40, 35), id="both hops by the table"),
        pytest.param((2, 3, 2, 1), id="four layers"),
        pytest.param((-1,), id="all neighbours"),
        pytest.param((-1, -1, -1), id="all neighbours of three hops"),
    ],
)


def _sample(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int = 1) -> SampledSubgraph:
    return SubgraphSampler(graph.indptr, graph.indices).sample(np.array(seeds, dtype=np.int64), fanouts, key)


def _children(subgraph: SampledSubgraph) -> list[list[int]]:
    """Global ids of the sampled neighbours of every expanded node."""
    spans = zip(subgraph.indptr[:-1], subgraph.indptr[1:], strict=True)
    return [subgraph.nodes[subgraph.neighbours[start:stop]].tolist() for start, stop in spans]


def _assert_equal(one: SampledSubgraph, other: SampledSubgraph) -> None:
    assert one.ends == other.ends
    for name in ("nodes", "indptr", "neighbours", "seed_rows"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@FANOUTS
def test_subgraphs_equal_a_slow_reference(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(150, seed=1, mean_degree=15)
    seeds = [5, 9, 5, 0, 149, 9, 33]

    subgraph = _sample(graph, seeds, fanouts, key=42)

    expected = reference.sample_subgraph(graph, seeds, fanouts, 42)
    assert subgraph.nodes.tolist() == expected.nodes
    assert list(subgraph.ends) == expected.ends
    assert _children(subgraph) == expected.children


graphs = st.integers(1, 12).flatmap(
    lambda nodes: st.lists(st.lists(st.integers(0, nodes - 1), max_size=2 * nodes), min_size=nodes, max_size=nodes).map(
        graph_of
    )
)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(
    data=st.data(), graph=graphs, fanouts=st.lists(st.integers(1, 5), min_size=1, max_size=4), key=st.integers(0, 99)
)
def test_invariants_hold_on_any_graph(data: st.DataObject, graph: Graph, fanouts: list[int], key: int) -> None:
    seeds = data.draw(st.lists(st.integers(0, graph.nodes - 1), min_size=1, max_size=8))
    subgraph = _sample(graph, seeds, tuple(fanouts), key)

    nodes, ends = subgraph.nodes.tolist(), subgraph.ends
    assert len(set(nodes)) == len(nodes)
    assert nodes[: ends[0]] == list(dict.fromkeys(seeds))
    assert [nodes[row] for row in subgraph.seed_rows] == seeds
    assert list(ends) == sorted(ends)
    assert len(ends) == len(fanouts) + 1
    assert ends[-1] == len(nodes)
    assert len(subgraph.indptr) == ends[-2] + 1
    assert subgraph.indptr[0] == 0
    assert subgraph.indptr[-1] == len(subgraph.neighbours)
    for depth, fanout in enumerate(fanouts):
        for row in range(ends[depth - 1] if depth else 0, ends[depth]):
            local = subgraph.neighbours[subgraph.indptr[row] : subgraph.indptr[row + 1]]
            neighbours = neighbours_of(graph, nodes[row])
            assert len(local) == min(fanout, len(neighbours))
            assert Counter(nodes[i] for i in local) <= Counter(neighbours)
            assert (local < ends[depth + 1]).all()


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(data=st.data(), graph=graphs, hops=st.integers(1, 4))
def test_the_full_neighbourhood_is_the_exact_expansion(data: st.DataObject, graph: Graph, hops: int) -> None:
    seeds = data.draw(st.lists(st.integers(0, graph.nodes - 1), min_size=1, max_size=4))
    subgraph = _sample(graph, seeds, (-1,) * hops)

    reached = set(seeds)
    for depth in range(hops):
        assert set(subgraph.nodes[: subgraph.ends[depth]].tolist()) == reached
        reached |= {child for node in reached for child in neighbours_of(graph, node)}
    assert set(subgraph.nodes.tolist()) == reached
    expanded = subgraph.nodes[: subgraph.ends[-2]].tolist()
    assert _children(subgraph) == [neighbours_of(graph, node) for node in expanded]


def test_types_are_as_compact_as_promised() -> None:
    subgraph = _sample(random_graph(40, seed=2), [1, 2, 3], (3, 3))

    assert subgraph.indptr.dtype == np.int64
    assert {a.dtype for a in (subgraph.nodes, subgraph.neighbours, subgraph.seed_rows)} == {np.dtype(np.int32)}


def test_repeated_seeds_share_a_row() -> None:
    subgraph = _sample(graph_of([[1], [2], [0]]), [2, 0, 2, 2], (1,))

    assert subgraph.seed_rows.tolist() == [0, 1, 0, 0]
    assert subgraph.ends[0] == 2


def test_isolated_seeds_bring_no_neighbours() -> None:
    subgraph = _sample(graph_of([[], []]), [1, 0], (3, 3))

    assert subgraph.nodes.tolist() == [1, 0]
    assert subgraph.ends == (2, 2, 2)
    assert subgraph.indptr.tolist() == [0, 0, 0]
    assert len(subgraph.neighbours) == 0


@FANOUTS
def test_a_call_leaves_no_trace_in_the_sampler(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(150, seed=3, mean_degree=15)
    used = SubgraphSampler(graph.indptr, graph.indices)
    used.sample(np.arange(40, 90), fanouts, 1)
    seeds = np.array([60, 3, 149])

    again = used.sample(seeds, fanouts, 2)

    _assert_equal(again, SubgraphSampler(graph.indptr, graph.indices).sample(seeds, fanouts, 2))


def test_different_keys_draw_different_neighbours() -> None:
    graph = complete_graph(80)

    assert _children(_sample(graph, [0], (5,), key=1)) != _children(_sample(graph, [0], (5,), key=2))


def test_memory_mapped_graphs_are_only_read() -> None:
    graph = random_graph(60, seed=4)

    writable = _sample(graph, [1, 2], (3, 3))

    _assert_equal(_sample(read_only(graph), [1, 2], (3, 3)), writable)


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [pytest.param(20, 1, id="looking back"), pytest.param(34, 33, id="by the table")],
)
def test_every_neighbour_is_equally_likely(degree: int, fanout: int) -> None:
    """With one drawn, or all but one, the counts are plain multinomials."""
    graph = graph_of([list(range(200, 200 + degree))] * 200 + [[]] * degree)
    drawn = np.zeros(degree, dtype=int)
    sampler = SubgraphSampler(graph.indptr, graph.indices)
    for key in range(10):
        subgraph = sampler.sample(np.arange(200), (fanout,), key)
        drawn += np.bincount(subgraph.nodes[subgraph.neighbours] - 200, minlength=degree)

    assert is_uniform(drawn if fanout == 1 else 2000 - drawn)


def test_a_hub_is_sampled_up_to_the_fanout() -> None:
    subgraph = _sample(star(1_000_000), [0], (100, 5))

    assert subgraph.ends == (1, 101, 101)
    assert len(set(subgraph.nodes.tolist())) == 101
