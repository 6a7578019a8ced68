"""The pure part of `make bench-frontier`: losses, hypervolumes and verdicts of made-up variants."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from benchmarks.accuracy.frontier import hypervolume, hypervolumes, loss_points, verdicts, verdicts_of
from benchmarks.accuracy.frontier_graphs import Measured, Point, Unseen
from benchmarks.accuracy.frontier_shapes import MeasuredShape, shape_verdicts


def point(name: str, accuracies: tuple[float, ...], p50_ms: float, family: str = "pruned") -> Point:
    return Point(name, family, accuracies, {1: p50_ms / 100, 32: p50_ms / 10, 1024: p50_ms}, None)


X1 = point("x1", (0.90, 0.91, 0.92), 100.0)


def measured(*points: Point) -> Measured:
    return Measured("made-up", "accuracy", 6000, 0.5, (X1, *points))


def test_losses_are_paired_by_seed() -> None:
    graph = measured(same := point("a", (0.899, 0.909, 0.919), 1.0))
    mean, upper = loss_points(graph, same)
    assert mean == pytest.approx(0.1)
    assert upper == pytest.approx(0.1)
    mean, upper = loss_points(graph, point("b", (0.92, 0.91, 0.90), 1.0))
    assert mean == pytest.approx(0.0)
    assert upper == pytest.approx(4.30 * 2 / math.sqrt(3))


def test_a_graph_passes_by_one_variant_that_is_close_and_fast_enough() -> None:
    close, far = point("stored1", X1.accuracies, 5.0, "stored"), point("mlp0", (0.5, 0.5, 0.5), 0.1, "one-row")
    answers = point("stored2", X1.accuracies, 0.1, "stored-deeper")
    ((name, verdict),) = verdicts_of(measured(close, far, answers))
    assert (name, verdict["passed"]) == ("made-up", True)
    assert verdict["measured"] == "stored1: +0.00 points (lost at most 0.00), 20 times"
    ((_, verdict),) = verdicts_of(measured(replace(close, p50_ms={1024: 11.0}), far, answers))
    assert not verdict["passed"]


def test_nodes_that_arrive_are_judged_apart() -> None:
    x1 = replace(X1, unseen=Unseen(0.9, 100.0))
    stored = replace(point("stored1", X1.accuracies, 5.0, "stored"), unseen=Unseen(0.899, 12.0))
    graph = Measured("made-up", "accuracy", 6000, 0.5, (x1, stored))
    _, (name, verdict) = verdicts_of(graph)
    assert name == "made-up, nodes that arrive as overlays"
    assert verdict["measured"] == "stored1: -0.10 points, 8.3 times"
    assert not verdict["passed"]
    reading = (replace(x1, reading=Unseen(0.9, 60.0)), replace(stored, reading=Unseen(0.899, 5.0)))
    *_, (name, verdict) = verdicts_of(replace(graph, points=reading))
    assert name == "made-up, new nodes that stored ones do not read"
    assert verdict["measured"] == "stored1: -0.10 points, 12.0 times"
    assert verdict["passed"]


def test_the_hypervolume_is_the_area_under_the_frontier() -> None:
    graph = measured(fast := point("x2", (0.8,), 100 / math.e), slow := point("x3", (0.7,), 100 / math.e**2))
    assert hypervolume(graph, [X1]) == 0.0
    assert hypervolume(graph, [X1, fast]) == pytest.approx(30.0)
    assert hypervolume(graph, [X1, fast, slow]) == pytest.approx(30.0 + 20.0)
    beaten = point("x4", (0.6,), 100 / math.e)
    assert hypervolume(graph, [X1, fast, slow, beaten]) == pytest.approx(50.0)
    assert hypervolumes(graph) == {"grid": 30.0, "all": 50.0}


def test_what_a_stored_layer_takes_on_a_large_shape_is_judged() -> None:
    shape = MeasuredShape("reddit", 20_000_000, {"x1": 50.0, "stored1": 2.0, "stored1-int8": 0.9}, ("stored1",), 60.0)
    found = shape_verdicts(shape)
    assert [verdict["passed"] for verdict in found.values()] == [True, True]
    assert found["edges a minute of making a stored layer"]["measured"] == "20,000,000"
    assert shape_verdicts(replace(shape, shape="flickr")) == {}


def test_verdicts_are_of_graphs_and_shapes_as_the_file_has_them() -> None:
    graph = replace(measured(point("stored1", X1.accuracies, 5.0, "stored")), graph="eukloc")
    shape = MeasuredShape("reddit", 20_000_000, {"x1": 50.0, "stored1": 2.0, "stored1-int8": 0.9}, ("stored1",), 60.0)
    found = json.loads(json.dumps({"graphs": [asdict(graph)], "shapes": [asdict(shape)]}))
    assert {verdict.name for verdict in verdicts(found)} >= {"eukloc", "edges a minute of making a stored layer"}
