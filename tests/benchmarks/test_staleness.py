"""What a benchmark of stale layers measures, on graphs small enough to see, and what it concludes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.staleness.costs import STORED, WHOLE
from benchmarks.staleness.networks import AGGREGATIONS, Edges, Network, Subject
from benchmarks.staleness.overlays import OverlayDifferences, overlay_differences
from benchmarks.staleness.requests import TOGETHER, RequestCost, RequestCosts
from benchmarks.staleness.rules import (
    ESTIMATE,
    NEW_NODES,
    ORACLE,
    SHARES,
    Differences,
    common_edges,
    differences,
    estimated,
    scenes,
    states_over,
)
from benchmarks.staleness.staleness import verdicts
from benchmarks.staleness.turns import TimedLog, WayFigures
from benchmarks.verdicts import judge
from tests.support.graphs.released_graphs import several_types

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.graph.store import Graph, GraphData, Splits

NODES, CLASSES = 60, 3
RULES = {ESTIMATE: (3.0, 1.0, 0.0), "random": (3.9, 3.5, 0.0), ORACLE: (2.0, 0.6, 0.0)}
FOUND = Differences("a", 3, "mean", "1 % of the edges", 100, 50, 5.0, 4.0, RULES, (90.0,) * len(SHARES), 0.7)


def random_graph() -> GraphData:
    rng = np.random.default_rng(3)
    is_edge = np.triu(rng.random((NODES, NODES)) < 0.1, 1)
    both = is_edge | is_edge.T
    graph = Graph(np.concatenate(([0], np.cumsum(both.sum(1)))), np.nonzero(both)[1].astype(np.int32))
    nodes = np.arange(NODES)
    return GraphData.of_one_type(
        "random", "random", graph, rng.standard_normal((NODES, 5), np.float32), rng.integers(0, CLASSES, NODES),
        (0, 1, 2), Splits(nodes[:20], nodes[20:30], nodes[30:]), EdgeRules(Direction.UNDIRECTED),
    )  # fmt: skip


@pytest.mark.parametrize("data", [random_graph(), several_types("types")], ids=["one type", "several types"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_with_all_changed_rows_made_anew_no_answer_differs(data: GraphData, layers: int, aggregation: str) -> None:
    torch.manual_seed(1)
    subject, edges = Subject.of(data), Edges.of(data)
    network = Network(subject, aggregation, layers)
    after = states_over(network, subject, edges)
    test = np.arange(len(data.labels))[-2:] if len(data.labels) < NODES else data.splits.test
    for scene in scenes(edges, subject, test):
        if len(scene.asked):
            found = differences("a", aggregation, network, subject, data.schema, edges, scene, after)
            assert {shares[-1] for shares in found.by_rule.values()} == {0.0}
            assert found.changed_rows <= edges.nodes - scene.is_new_node.sum()


def test_rows_whose_lists_changed_are_estimated_to_have_moved_and_unreached_ones_not() -> None:
    data = random_graph()
    edges = Edges.of(data)
    first, *_ = scenes(edges, Subject.of(data), data.splits.test)
    estimates = [estimated(data.schema, edges, first, stored) for stored in (1, 2)]
    changed = np.unique(edges.targets[~first.is_old])
    np.testing.assert_array_equal(np.flatnonzero(estimates[0]), changed)
    share = np.bincount(edges.targets[~first.is_old], minlength=NODES) / np.maximum(1, edges.degrees())
    np.testing.assert_allclose(estimates[0], share, rtol=1e-6)
    readers = np.unique(edges.targets[np.isin(edges.sources, changed)])
    np.testing.assert_array_equal(np.flatnonzero(estimates[1]), np.union1d(changed, readers))


def test_edges_come_both_ways_and_new_nodes_with_all_of_theirs() -> None:
    data = random_graph()
    edges = Edges.of(data)
    every = [*scenes(edges, Subject.of(data), data.splits.test)]
    for scene in every:
        came = edges.where(~scene.is_old)
        assert {*zip(came.sources, came.targets, strict=True)} == {*zip(came.targets, came.sources, strict=True)}
    new = every[-1]
    assert new.name == NEW_NODES
    assert new.is_new_node.sum() == NODES // 10 == len(new.asked)
    old = edges.where(common_edges(every))
    assert not np.isin(new.asked, np.concatenate((old.sources, old.targets))).any()


def test_aggregations_are_over_the_nodes_that_are_read() -> None:
    products = torch.tensor([[1.0, -2.0], [3.0, -4.0], [9.0, 9.0]])
    ends = (torch.tensor([0, 1, 2]), torch.tensor([2, 2, 0]))
    equal = torch.nn.Parameter(torch.zeros(2, 1, 2))
    expected = {"mean": [2.0, -3.0], "max": [3.0, -2.0], "attention": [2.0, -3.0]}
    for name, row in expected.items():
        found = AGGREGATIONS[name](products, ends, equal)
        assert found.tolist() == [[9.0, 9.0], [0.0, 0.0], row]


def test_each_verdict_can_fail() -> None:
    def passed(found: Differences) -> list[bool]:
        kept = {"differences": [asdict(found)]}
        return [one["passed"] for one in judge(verdicts(kept), kept).values()]

    assert passed(FOUND) == [True, True, True]
    assert passed(replace(FOUND, by_rule={**RULES, ESTIMATE: (3.0, 2.1, 0.0)})) == [False, False, True]
    assert passed(replace(FOUND, rank_correlation=0.1)) == [True, True, False]


def test_a_way_that_leaves_changes_behind_is_not_the_best() -> None:
    def judged(*ways: WayFigures) -> dict[str, Any]:
        found = {"turns": [asdict(one) for one in ways]}
        (verdict,) = (one for name, one in judge(verdicts(found), found).items() if "beside changes" in name)
        return verdict

    good = WayFigures("good", 300.0, 5000, 4990, 2.0, 2.2, 1.1, 1.0, 1.2)
    slow, late = replace(good, way="slow", ratio=1.3), replace(good, way="late", applied_per_s=900, ratio=0.9)
    assert judged(late, good, slow)["passed"]
    assert "good" in judged(late, good, slow)["measured"]
    assert not judged(late, slow)["passed"]
    assert not judged(late)["passed"]


def test_each_verdict_about_requests_of_a_worker_can_fail() -> None:
    def passed(differing: float, p50_us: float) -> list[bool]:
        costs = [
            RequestCost(variant, seeds, share, 1.0, took_us, differs, 90.0)
            for seeds in (1, TOGETHER)
            for variant, share, took_us, differs in (
                (STORED, 0.0, 50.0, 4.0), (STORED, 0.2, p50_us, differing), (STORED, 1.0, 200.0, 0.0),
                (WHOLE, None, 300.0, 0.0),
            )
        ]  # fmt: skip
        found = {"requests": [asdict(RequestCosts("a", 100, 10, 5.0, tuple(costs)))]}
        return [one["passed"] for name, one in judge(verdicts(found), found).items() if "hidden nodes" in name]

    assert passed(1.0, 100.0) == [True, True, True]
    assert passed(3.0, 100.0) == [False, True, True]
    assert passed(1.0, 400.0) == [True, False, False]


def test_changes_come_at_the_rate_that_is_said() -> None:
    log = TimedLog([b"a", b"b", b"c"])
    assert (log.position().last, log.read(0, 100), log.wait(0, 0.0)) == (0, [], False)
    log.come(1e6)
    assert log.wait(2, 60.0)
    assert [record.body for record in log.read(1, 100)] == [b"b", b"c"]
    assert [record.body for record in log.read(0, 1)] == [b"a"]
    log.come(0.0)
    assert (log.position().last, log.wait(3, 0.0)) == (3, False)


@pytest.mark.parametrize("data", [random_graph(), several_types("types")], ids=["one type", "several types"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_new_nodes_of_requests_are_exact_once_all_rows_that_they_change_are_made_anew(
    data: GraphData, aggregation: str
) -> None:
    torch.manual_seed(1)
    subject, edges = Subject.of(data), Edges.of(data)
    network = Network(subject, aggregation, 3)
    test = np.arange(len(data.labels))[-2:] if len(data.labels) < NODES else data.splits.test
    *_, new = scenes(edges, subject, test)
    found = overlay_differences("a", aggregation, network, subject, data.schema, edges, new, 5)
    if len(data.labels) < NODES:
        assert found is None or found.asked <= 2
        return
    assert found is not None
    assert (found.asked, found.rows > 0) == (5, True)
    assert {shares[-1] for shares in found.by_rule.values()} == {0.0}


def test_verdicts_about_new_nodes_of_requests_can_fail() -> None:
    def judged(*estimate: float) -> list[bool]:
        one = OverlayDifferences(
            "a", 3, "mean", 100, 8.0, 4.0, {ESTIMATE: estimate, ORACLE: (2.0, 1.0, 0.0)}, (9.0,) * 4, (80.0,) * 4
        )
        found = {"overlays": [asdict(one)]}
        return [one["passed"] for name, one in judge(verdicts(found), found).items() if "of requests" in name]

    assert judged(3.0, 1.9, 0.0) == [True, True]
    assert judged(3.0, 2.1, 0.0) == [False, False]
    assert judged(3.0, 2.0, 0.0) == [True, True]
