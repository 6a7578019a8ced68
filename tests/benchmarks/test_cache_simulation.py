"""Traces, shapes, weights, and the simulator over them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from benchmarks.cache_simulation.shapes import COMMUNITY_NODES, GraphShape, build_graph
from benchmarks.cache_simulation.simulate import (
    BELADY,
    POLICIES,
    Replay,
    recovery_of,
    replay,
    replay_all,
    weigh_nodes,
)
from benchmarks.cache_simulation.traces import (
    Trace,
    TraceKind,
    TraceSettings,
    build_trace,
    expand_trace,
    hot_subgraph,
)
from tests.support.graphs.graphs import graph_of, random_graph

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.weights import degree_weights, expected_weights, presampled_weights
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.progress import Progress

SMALL = GraphShape(3_000, 60_000)
FANOUTS = (5, 3)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(SMALL, 1)


# --- shapes


@pytest.mark.parametrize("within", [0.0, 0.7])
def test_a_shape_is_symmetric_without_loops_and_repeats(within: float) -> None:
    found = build_graph(SMALL, 2, within)
    targets = found.targets()
    there = targets * found.nodes + found.indices
    assert (np.diff(there) > 0).all()
    assert np.array_equal(np.sort(found.indices * np.int64(found.nodes) + targets), there)
    assert not (targets == found.indices).any()
    assert 0.93 * SMALL.edges < found.edges <= SMALL.edges
    assert np.array_equal(build_graph(SMALL, 2, within).indices, found.indices)
    assert not np.array_equal(build_graph(SMALL, 3, within).indices, found.indices)


def test_a_shape_has_hubs_and_its_communities_keep_to_themselves() -> None:
    plain, together = (build_graph(GraphShape(4 * COMMUNITY_NODES, 80_000), 2, within) for within in (0.0, 0.9))
    degrees = np.diff(plain.indptr)
    assert degrees.max() > 8 * np.median(degrees)
    walks = [[_two_hops(found, node) for node in range(300)] for found in (plain, together)]
    distinct = [sum(len(np.unique(ends)) for ends in all_) / sum(map(len, all_)) for all_ in walks]
    assert distinct[1] < 0.9 * distinct[0]


def _two_hops(graph: Graph, node: int) -> np.ndarray:
    near = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
    return np.concatenate([graph.indices[graph.indptr[n] : graph.indptr[n + 1]] for n in near])


# --- traces


@pytest.mark.parametrize("kind", list(TraceKind))
def test_equal_seeds_make_equal_traces(kind: TraceKind, graph: Graph) -> None:
    settings = TraceSettings(requests=50, seeds=7, hot_nodes=40)
    first, again = build_trace(kind, graph, settings), build_trace(kind, graph, settings)
    other = build_trace(kind, graph, TraceSettings(requests=50, seeds=7, hot_nodes=40, seed=2))
    assert np.array_equal(first.seeds, again.seeds)
    assert not np.array_equal(first.seeds, other.seeds)
    assert (first.requests, len(first.seeds)) == (50, 350)
    assert first.seeds.min() >= 0
    assert first.seeds.max() < graph.nodes
    assert first.moving == (kind not in (TraceKind.UNIFORM, TraceKind.ZIPF))


def test_zipf_asks_for_few_nodes_most(graph: Graph) -> None:
    trace = build_trace(TraceKind.ZIPF, graph, TraceSettings(requests=2_000, seeds=10, exponent=1.0))
    counts = np.sort(np.bincount(trace.seeds, minlength=graph.nodes))[::-1]
    harmonic = (1 / np.arange(1, graph.nodes + 1)).sum()
    assert counts[0] / len(trace.seeds) == pytest.approx(1 / harmonic, rel=0.1)
    assert counts[:10].sum() / len(trace.seeds) == pytest.approx((1 / np.arange(1, 11)).sum() / harmonic, rel=0.1)


def test_a_moving_trace_asks_for_its_hot_subgraph_and_moves(graph: Graph) -> None:
    settings = TraceSettings(requests=300, seeds=20, hot_nodes=50, hot_share=0.8, moves=2)
    trace = build_trace(TraceKind.MOVING, graph, settings)
    assert trace.moves == (100, 200)
    hottest = []
    for phase in np.array_split(trace.seeds, 3):
        counts = np.bincount(phase, minlength=graph.nodes)
        hot = np.argsort(-counts)[:50]
        assert counts[hot].sum() / len(phase) == pytest.approx(0.81, abs=0.04)
        hottest.append(set(hot.tolist()))
    assert len(hottest[0] & hottest[1]) < 25


def test_a_recurring_trace_comes_back(graph: Graph) -> None:
    settings = TraceSettings(requests=400, seeds=20, hot_nodes=30, moves=3)
    phases = np.array_split(build_trace(TraceKind.RECURRING, graph, settings).seeds, 4)
    hot = [set(np.argsort(-np.bincount(phase, minlength=graph.nodes))[:30].tolist()) for phase in phases]
    assert len(hot[0] & hot[3]) > 25
    assert len(hot[0] & hot[1]) < 15


def test_a_drifting_trace_forgets(graph: Graph) -> None:
    settings = TraceSettings(requests=1_000, seeds=20, moves=4)
    parts = np.array_split(build_trace(TraceKind.DRIFTING, graph, settings).seeds, 50)
    top = [set(np.argsort(-np.bincount(part, minlength=graph.nodes))[:10].tolist()) for part in parts]
    assert len(top[0] & top[1]) > len(top[0] & top[-1])
    still = build_trace(TraceKind.DRIFTING, graph, TraceSettings(requests=10, moves=0))
    assert not still.moving


def test_a_hot_subgraph_is_connected_and_grows_on_where_a_component_ends() -> None:
    found = graph_of([[1], [0, 2], [1], [4], [3], []])
    for seed in range(10):
        order = hot_subgraph(found, 4, np.random.default_rng(seed))
        assert len(set(order.tolist())) == 4
    assert sorted(hot_subgraph(found, 99, np.random.default_rng(0)).tolist()) == list(range(6))


def test_a_request_reads_what_sampling_gathers_once(graph: Graph) -> None:
    trace = build_trace(TraceKind.UNIFORM, graph, TraceSettings(requests=20, seeds=4))
    reads = expand_trace(trace, graph, FANOUTS, 3)
    again = expand_trace(trace, graph, FANOUTS, 3)
    assert np.array_equal(reads.nodes, again.nodes)
    for request in range(20):
        nodes = reads.nodes[reads.starts[request] : reads.starts[request + 1]]
        seeds = trace.seeds[4 * request : 4 * request + 4]
        assert len(set(nodes.tolist())) == len(nodes)
        assert set(seeds.tolist()) <= set(nodes.tolist())
        assert len(nodes) <= 4 * (1 + 5 + 15)


# --- weights


def test_degrees_are_how_many_lists_name_a_node() -> None:
    found = graph_of([[1, 2], [2], []])
    assert degree_weights(found.indices, 4).tolist() == [0, 1, 2, 0]


def test_expected_reads_are_the_mean_of_trial_runs() -> None:
    found = random_graph(300, 5, mean_degree=8)
    expected = expected_weights(found.indptr, found.indices, FANOUTS)
    every = np.tile(np.arange(300, dtype=np.int64), 400)
    trial = presampled_weights(found.indptr, found.indices, every, FANOUTS, 11) / len(every)
    assert trial.sum() == pytest.approx(expected.sum(), rel=0.01)
    assert np.abs(trial - expected).max() < 0.05 * expected.max()
    full = expected_weights(found.indptr, found.indices, (-1,))
    assert full == pytest.approx((2 + degree_weights(found.indices, 300) - 1) / 300, rel=1e-5)


# --- simulating


@pytest.fixture(scope="module")
def replays(graph: Graph) -> dict[TraceKind, dict[tuple[int, str], Replay]]:
    weights = weigh_nodes(graph, np.arange(0, graph.nodes, 10), FANOUTS, 1)
    found = {}
    for kind in TraceKind:
        trace = build_trace(kind, graph, TraceSettings(requests=1_500, seeds=8, hot_nodes=60, moves=3))
        found[kind] = replay_all(expand_trace(trace, graph, FANOUTS, 1), weights, [300], POLICIES, 8)
    return found


@pytest.mark.parametrize("kind", list(TraceKind))
def test_frequency_is_near_the_best_and_belady_above(
    kind: TraceKind, replays: dict[TraceKind, dict[tuple[int, str], Replay]]
) -> None:
    rates = {policy: 100 * found.hit_rate(300) for (_, policy), found in replays[kind].items()}
    bound, ours = rates.pop(BELADY), rates.pop(CachePolicy.FREQUENCY)
    assert rates[CachePolicy.NONE] == 0
    assert bound > max(ours, *rates.values())
    assert ours > max(rates.values()) - (1.0 if kind is TraceKind.UNIFORM else 0.0)


def test_a_replay_counts_every_read(graph: Graph) -> None:
    trace = build_trace(TraceKind.UNIFORM, graph, TraceSettings(requests=35, seeds=3))
    reads = expand_trace(trace, graph, FANOUTS, 3)
    found = replay(build_policy(CachePolicy.LFU, graph.nodes, graph.nodes), reads, 8)
    met: set[int] = set()
    for request in range(35):
        nodes = set(reads.nodes[reads.starts[request] : reads.starts[request + 1]].tolist())
        assert found.hits[request] == len(nodes & met)
        assert found.reads[request] == len(nodes)
        met |= nodes
    assert found.admissions == len(met)
    assert len(found.timeline(10)) == 3
    assert found.hit_rate() == pytest.approx(found.hits.sum() / len(reads.nodes))


def test_progress_is_told_and_who_interrupts_waits_for_the_round_at_hand_only(graph: Graph) -> None:
    told: list[Progress] = []
    trace = build_trace(TraceKind.UNIFORM, graph, TraceSettings(requests=600, seeds=2))
    reads = expand_trace(trace, graph, FANOUTS, 3, told.append)
    weights = weigh_nodes(graph, np.arange(100), FANOUTS, 1)
    assert [(one.stage, one.done) for one in told] == [("sample uniform", done) for done in (0, 256, 512, 600)]
    told.clear()
    replay_all(reads, weights, [300], ["LFU", "None"], 8, told.append, "replay uniform")
    assert [(one.done, one.total) for one in told] == [(0, 2), (1, 2), (2, 2)]

    stopped = threading.Event()
    stopped.set()
    assert replay(build_policy(CachePolicy.LFU, graph.nodes, 300), reads, 8, stopped).hits.sum() == 0

    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay_all(reads, weights, list(range(100, 1000)), ["LFU"], 1, interrupt)


def test_recovery_is_told_by_the_mean_course_after_moves() -> None:
    after_move = np.concatenate([np.full(10, 20), np.full(10, 55), np.full(60, 60)])
    hits = np.concatenate([np.full(80, 60), after_move, after_move])
    found = Replay("any", 5, hits, np.full(240, 100))
    recovery = recovery_of(found, (80, 160), 10)
    assert recovery is not None
    assert (recovery.settled, recovery.lowest, recovery.requests) == (0.6, 0.2, 20)
    assert recovery_of(found, (), 10) is None
    assert recovery_of(found, (80, 160), 40) is None
    steady = recovery_of(Replay("any", 5, np.full(240, 60), np.full(240, 100)), (80, 160), 10)
    assert steady is not None
    assert steady.requests is None


def test_a_trace_of_requests_of_several_sizes_is_expanded(graph: Graph) -> None:
    trace = Trace("sizes", np.array([0, 0, 1, 2, 3, 4, 0, 1]), np.array([0, 1, 6, 8]))
    reads = expand_trace(trace, graph, FANOUTS, 1)
    assert len(reads.starts) == 4
    assert reads.starts[2] - reads.starts[1] > reads.starts[1]
