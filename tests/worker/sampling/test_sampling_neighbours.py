"""Neighbour samples for serving: support, layout, sharing, uniformity, independence, scratch, and cost at hubs."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.graphs.graphs import complete_graph, graph_of, neighbours_of, random_graph, read_only, star
from tests.support.models.serving_path import SHARE
from tests.support.sampling import sampling as reference
from tests.support.sampling.sampler_contract import FANOUT_CASES, SamplerContract, Tree
from tests.support.statistics import is_uniform, joint_counts

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling import neighbours as neighbours_module
from gnnserve_worker.sampling.neighbours import (
    NeighbourSample,
    Scratch,
    distinct_share,
    effective_nodes,
    sample_neighbours,
)
from gnnserve_worker.sampling.relations import sample_relations

FANOUTS = pytest.mark.parametrize(
    "fanouts",
    [
        *FANOUT_CASES,
        pytest.param((-1,), id="all neighbours"),
        pytest.param((-1, -1), id="all neighbours of two hops"),
        pytest.param((4, -1, 2), id="all neighbours of the middle hop"),
        pytest.param((1,) * 12, id="more hops than described networks have layers"),
    ],
)


def _sample(
    graph: Graph,
    seeds: list[int],
    fanouts: tuple[int, ...],
    key: int = 1,
    *,
    share: bool = False,
    scratch: Scratch | None = None,
) -> NeighbourSample:
    return sample_neighbours(
        graph.indptr, graph.indices, np.array(seeds, dtype=np.int64), fanouts, key, scratch or Scratch(), share=share
    )


def _lists(sample: NeighbourSample) -> list[list[int]]:
    """Global ids of the neighbours of every row."""
    return [sample.neighbours[start:stop].tolist() for start, stop in pairwise(sample.starts.tolist())]


def _as_reference(sample: NeighbourSample) -> reference.NeighbourReference:
    expanded = sample.ends[-2] if len(sample.ends) > 1 else 0
    spans = list(pairwise(sample.starts[: expanded + 1].tolist()))
    return reference.NeighbourReference(
        ends=list(sample.ends),
        nodes=sample.nodes.tolist(),
        neighbours=_lists(sample),
        children=[sample.children[start:stop].tolist() for start, stop in spans],
        seed_rows=list(range(sample.ends[0])) if sample.seed_rows is None else sample.seed_rows.tolist(),
    )


def _trees(sample: NeighbourSample) -> list[Tree]:
    lists, expanded = _lists(sample), sample.ends[-2] if len(sample.ends) > 1 else 0

    def tree(row: int) -> Tree:
        if row >= expanded:
            return (int(sample.nodes[row]), lists[row])
        children = sample.children[sample.starts[row] : sample.starts[row + 1]].tolist()
        return (int(sample.nodes[row]), [tree(child) for child in children])

    rows = range(sample.ends[0]) if sample.seed_rows is None else sample.seed_rows.tolist()
    return [tree(row) for row in rows]


class _Cpu(SamplerContract):
    share: bool

    def sample(self, graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int = 1) -> list[Tree]:
        return _trees(_sample(graph, seeds, fanouts, key, share=self.share))


class TestRowsOfTheirOwn(_Cpu):
    share = False


class TestSharedRows(_Cpu):
    share = True


@FANOUTS
@SHARE
def test_samples_equal_a_slow_reference(fanouts: tuple[int, ...], share: bool) -> None:
    graph = random_graph(90, seed=1, mean_degree=20)
    seeds = [*range(0, 90, 2), 8, 8, 1]

    sample = _sample(graph, seeds, fanouts, key=99, share=share)

    assert _as_reference(sample) == reference.sample_neighbours(graph, seeds, fanouts, 99, share=share)


@FANOUTS
@SHARE
def test_both_samplers_draw_the_same_over_one_relation(fanouts: tuple[int, ...], share: bool) -> None:
    graph, scratch = random_graph(90, seed=1, mean_degree=20), Scratch()
    seeds = [*range(0, 90, 2), 8, 8, 1]

    plain = _sample(graph, seeds, fanouts, key=99, share=share, scratch=scratch)
    expected = (_as_reference(plain), plain.starts.tolist(), list(plain.ends))
    assert (plain.segments.tolist(), plain.type_ends.tolist()) == expected[1:]

    for by_relation in (fanouts, (fanouts,)):
        sample = sample_relations(
            graph.indptr, graph.indices, np.array(seeds), by_relation, 99, scratch, layout=graph.layout, share=share
        )
        assert (_as_reference(sample), sample.segments.tolist(), sample.type_ends.tolist()) == expected


graphs = st.integers(1, 12).flatmap(
    lambda nodes: st.lists(st.lists(st.integers(0, nodes - 1), max_size=2 * nodes), min_size=nodes, max_size=nodes).map(
        graph_of
    )
)
fanout_lists = st.lists(st.one_of(st.integers(1, 5), st.just(-1)), min_size=1, max_size=3)
USED = Scratch()
"""Shared by all examples, so that none of them may depend on what another left."""


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(data=st.data(), graph=graphs, fanouts=fanout_lists, key=st.integers(0, 2**62))
def test_samples_of_any_graph_equal_the_reference_and_show_each_seed_the_same(
    data: st.DataObject, graph: Graph, fanouts: list[int], key: int
) -> None:
    seeds = data.draw(st.lists(st.integers(0, graph.nodes - 1), min_size=1, max_size=6))
    seen = []
    for share in (False, True):
        sample = _sample(graph, seeds, tuple(fanouts), key, share=share, scratch=USED)

        assert _as_reference(sample) == reference.sample_neighbours(graph, seeds, tuple(fanouts), key, share=share)
        seen.append(_trees(sample))
    assert seen[0] == seen[1]


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(data=st.data(), graph=graphs, fanouts=st.lists(st.integers(1, 4), min_size=4, max_size=4), share=st.booleans())
def test_invariants_hold_for_four_layers(data: st.DataObject, graph: Graph, fanouts: list[int], share: bool) -> None:
    seeds = data.draw(st.lists(st.integers(0, graph.nodes - 1), min_size=1, max_size=4))
    sample = _sample(graph, seeds, tuple(fanouts), share=share, scratch=USED)

    ends, nodes = sample.ends, sample.nodes.tolist()
    assert list(ends) == sorted(ends)
    assert (len(ends), len(nodes)) == (4, ends[-1])
    assert (sample.starts[0], sample.starts[-1], len(sample.starts)) == (0, len(sample.neighbours), ends[-1] + 1)
    for depth, fanout in enumerate(fanouts):
        rows = range(ends[depth - 1] if depth else 0, ends[depth])
        if share:
            assert len({nodes[row] for row in rows}) == len(rows)
        for row in rows:
            drawn = sample.neighbours[sample.starts[row] : sample.starts[row + 1]].tolist()
            listed = neighbours_of(graph, nodes[row])
            assert len(drawn) == min(fanout, len(listed))
            assert Counter(drawn) <= Counter(listed)
            if depth < 3:
                children = sample.children[sample.starts[row] : sample.starts[row + 1]].tolist()
                assert [nodes[child] for child in children] == drawn
                assert all(ends[depth] <= child < ends[depth + 1] for child in children)


@FANOUTS
@SHARE
def test_types_are_as_compact_as_promised(fanouts: tuple[int, ...], share: bool) -> None:
    sample = _sample(random_graph(60, seed=4), list(range(11)), fanouts, share=share)

    assert {sample.nodes.dtype, sample.neighbours.dtype, sample.children.dtype} == {np.dtype(np.int32)}
    assert sample.starts.dtype == np.int64
    assert sample.seed_rows is None or sample.seed_rows.dtype == np.int32


@SHARE
def test_isolated_seeds_bring_no_neighbours(share: bool) -> None:
    sample = _sample(graph_of([[], [0]]), [0, 0], (3, 2), share=share)

    rows = 1 if share else 2
    assert sample.ends == (rows, rows)
    assert sample.starts.tolist() == [0] * (rows + 1)
    assert len(sample.neighbours) == 0
    assert (None if sample.seed_rows is None else sample.seed_rows.tolist()) == ([0, 0] if share else None)


def test_repeated_seeds_draw_equally_and_share_a_row_only_when_asked() -> None:
    graph = complete_graph(50)
    apart, shared = (_sample(graph, [4, 7, 4], (5,), share=share) for share in (False, True))

    assert apart.nodes.tolist() == [4, 7, 4]
    assert shared.nodes.tolist() == [4, 7]
    assert _lists(apart)[0] == _lists(apart)[2] == _lists(shared)[0]
    assert _lists(apart)[0] != _lists(apart)[1]


def test_a_node_draws_anew_at_every_depth() -> None:
    """Else a seed that comes back as its own neighbour's neighbour would bring nothing new."""
    graph = complete_graph(100)

    as_seed = _lists(_sample(graph, [0], (10,)))[0]
    as_neighbour = _lists(_sample(graph, [0], (-1, 10)))[1 + 0]

    assert len(set(as_neighbour)) == 10
    assert as_neighbour != as_seed


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
@SHARE
def test_seeds_of_any_integer_type_give_the_same_sample(dtype: type[np.integer], share: bool) -> None:
    graph = random_graph(60, seed=5)
    seeds = np.array([3, 1, 4, 1, 5], dtype=dtype)

    sample = sample_neighbours(graph.indptr, graph.indices, seeds, (4, 3), 8, Scratch(), share=share)

    assert _as_reference(sample) == reference.sample_neighbours(graph, [3, 1, 4, 1, 5], (4, 3), 8, share=share)


@SHARE
def test_seeds_may_be_a_strided_read_only_view_and_the_graph_mapped(share: bool) -> None:
    graph = read_only(random_graph(60, seed=5))
    seeds = np.arange(60)
    seeds.setflags(write=False)

    sample = sample_neighbours(graph.indptr, graph.indices, seeds[::7], (4, 3), 8, Scratch(), share=share)

    assert _as_reference(sample) == reference.sample_neighbours(graph, list(range(0, 60, 7)), (4, 3), 8, share=share)


def test_consecutive_keys_draw_independently_for_one_seed() -> None:
    graph, scratch = complete_graph(8), Scratch()

    drawn = np.array([_sample(graph, [0], (1,), key=key, scratch=scratch).neighbours[0] for key in range(8000)])

    assert is_uniform(joint_counts(drawn[:-1], drawn[1:], 8))


@SHARE
def test_scratch_gives_the_same_sample_whatever_it_was_used_for(share: bool) -> None:
    graph = random_graph(400, seed=7, mean_degree=15)
    small, large = [3], list(range(400))
    asked = [(small, (2,)), (large, (25, 10)), (small, (70, 3)), (small, (2,)), (large, (-1, -1)), (large, (3, 2, 4))]
    scratch = Scratch()
    for seeds, fanouts in [*asked, *asked[::-1]]:
        sample = _as_reference(_sample(graph, seeds, fanouts, share=share, scratch=scratch))

        assert sample == _as_reference(_sample(graph, seeds, fanouts, share=share))


def test_scratch_settles() -> None:
    graph, scratch = random_graph(400, seed=7, mean_degree=15), Scratch()
    for share in (True, False):
        _sample(graph, list(range(400)), (25, 10), share=share, scratch=scratch)
    settled = dict(vars(scratch))

    for key in range(20):
        _sample(graph, list(range(key, 400)), (25, 10), key, share=key % 2 == 0, scratch=scratch)

    assert all(array is settled[name] for name, array in vars(scratch).items())


def test_scratch_outlives_its_count_of_generations() -> None:
    """They are kept in 32 bits. Without beginning anew, shared rows would end there, after some days of serving."""
    graph, scratch = complete_graph(6), Scratch()
    expected = _as_reference(_sample(graph, [0, 1, 0], (3, 3), share=True))
    _sample(graph, [0, 1, 0], (3, 3), share=True, scratch=scratch)
    scratch.known.generation[0] = 2**31 - 100
    for _ in range(100):
        assert _as_reference(_sample(graph, [0, 1, 0], (3, 3), share=True, scratch=scratch)) == expected
    assert scratch.known.generation[0] < 1000


def test_scratch_is_not_reserved_for_neighbours_that_no_node_has() -> None:
    graph, scratch = random_graph(100, seed=8), Scratch()

    sample = _sample(graph, list(range(100)), (900, 900), scratch=scratch)

    assert len(scratch.neighbours) <= 256 * len(sample.neighbours)


def test_as_many_of_a_hub_as_a_manifest_may_ask_for_are_distinct() -> None:
    drawn = np.array([_lists(_sample(star(1_000_000), [0], (1024,), key))[0] for key in range(8)])

    assert all(len(set(row)) == 1024 for row in drawn.tolist())
    assert drawn.min() >= 1
    assert drawn.max() > 900_000


@SHARE
def test_all_of_a_hub_are_its_neighbours(share: bool) -> None:
    sample = _sample(star(1_000_000), [0, 5], (-1, -1), share=share)

    assert sample.ends == (2, 1_000_002)
    np.testing.assert_array_equal(sample.neighbours, np.arange(1, 1_000_001))
    np.testing.assert_array_equal(sample.nodes[sample.children[: len(sample.neighbours)]], sample.neighbours)


@pytest.mark.parametrize("nodes", [1, 2, 40])
def test_where_all_degrees_are_equal_all_nodes_are_effective(nodes: int) -> None:
    assert effective_nodes(complete_graph(nodes).indptr) == pytest.approx(nodes)


def test_effective_nodes_are_one_over_the_chance_that_two_ends_of_edges_meet() -> None:
    graph = random_graph(100, seed=9)
    shares = np.diff(graph.indptr) / graph.edges

    assert effective_nodes(graph.indptr) == pytest.approx(1 / np.sum(shares**2))


def test_one_hub_is_one_effective_node_and_without_edges_nothing_is_met_twice() -> None:
    assert effective_nodes(star(1000).indptr) == pytest.approx(1)
    assert effective_nodes(graph_of([[], [], []]).indptr) == math.inf


@pytest.mark.parametrize(("draws", "nodes"), [(1, 1.0), (10, 1.0), (1000, 50.0), (100, 1000.0), (7, 1e12)])
def test_the_share_of_distinct_draws_is_that_of_balls_in_bins(draws: int, nodes: float) -> None:
    """nodes · (1 − e^(−draws/nodes)) bins are met: within what the exponential differs from the power."""
    exact = nodes * (1 - (1 - 1 / nodes) ** draws) / draws if nodes < 1e9 else 1.0

    assert distinct_share(draws, nodes) == pytest.approx(exact, abs=1 / nodes + 1e-9 if nodes > 1 else 0.4)
    assert 0 < distinct_share(draws, nodes) <= 1


def test_draws_from_endlessly_many_nodes_or_none_at_all_are_distinct() -> None:
    assert distinct_share(1000, math.inf) == 1
    assert distinct_share(0, 5.0) == 1


def test_the_share_of_distinct_draws_is_what_simulation_finds() -> None:
    drawn = np.random.default_rng(1).integers(0, 300, (200, 500))
    simulated = np.mean([len(np.unique(row)) for row in drawn]) / 500

    assert distinct_share(500, 300) == pytest.approx(simulated, rel=0.01)


def test_fanouts_are_not_changed_by_sampling() -> None:
    """Their array is kept from call to call."""
    graph = complete_graph(30)
    for _ in range(2):
        _sample(graph, [0], (4, 3))

    assert neighbours_module._draws_of((4, 3)).counts.tolist() == [4, 3]
