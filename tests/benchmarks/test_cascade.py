"""The pure part of `make bench-cascade`: hulls, margins, and which threshold is judged."""

from __future__ import annotations

import pytest
from benchmarks.accuracy.cascade_curves import (
    COSTS,
    Curve,
    Graph,
    Oracle,
    Single,
    Threshold,
    chosen,
    hull_at,
    verdicts_of,
)

SINGLES = (
    Single("mlp2-int8", (0.90, 0.90), (0.90, 0.90), 1.0, 100),
    Single("stored1-int8", (0.90, 0.92), (0.90, 0.92), 2.0, 1000),
    Single("x1", (0.93, 0.95), (0.93, 0.95), 9.0, 9000),
)


def threshold(percent: float, validation: float, test: float, p50_ms: float = 1.5) -> Threshold:
    return Threshold(percent, percent / 100, 0.6, 0.7, (validation,) * 2, (test,) * 2, p50_ms, 150)


def graph_of(*points: Threshold) -> Graph:
    curve = Curve("mlp2-int8", "x1", 1.3, points, Oracle(0.05, 0.97))
    return Graph("made-up", "accuracy", 6000, SINGLES, (curve,), 1.0)


@pytest.mark.parametrize(
    ("cost", "accuracy"),
    [
        pytest.param(0.5, 0.90, id="below the cheapest"),
        pytest.param(1.0, 0.90, id="the cheapest"),
        pytest.param(5.0, 0.92, id="between two, over one that lies below"),
        pytest.param(9.0, 0.94, id="the most accurate"),
        pytest.param(50.0, 0.94, id="beyond it"),
    ],
)
def test_a_hull_is_what_mixtures_reach(cost: float, accuracy: float) -> None:
    assert hull_at([(1, 0.90), (9, 0.94), (3, 0.905)], cost) == pytest.approx(accuracy)


def test_a_slower_variant_that_is_less_accurate_raises_no_hull() -> None:
    assert hull_at([(1, 0.95), (9, 0.90)], 5) == 0.95


def test_a_threshold_is_chosen_by_validation_nodes_and_judged_by_others() -> None:
    lucky, promising = threshold(2, 0.90, 0.93), threshold(5, 0.92, 0.9)
    graph = graph_of(lucky, promising)
    assert chosen(graph, COSTS["p50"])[1] is promising
    verdicts = dict(verdicts_of(graph))
    verdict = verdicts["made-up, accuracy over p50"]
    assert not verdict["passed"]
    assert verdict["measured"] == (
        "mlp2-int8 then x1, 5 %: -0.50 points (the most of any threshold on test nodes: +2.50)"
    )
    assert verdict["reason"].startswith(
        "of the 5.0 % of test nodes that were passed on mlp2-int8 is right about 60.0 %"
    )
    assert "would reach 0.9700" in verdict["reason"]


def test_a_cascade_above_the_hull_passes_over_either_cost() -> None:
    verdicts = dict(verdicts_of(graph_of(threshold(5, 0.93, 0.93))))
    assert {name: verdict["passed"] for name, verdict in verdicts.items()} == {
        "made-up, accuracy over p50": True,
        "made-up, accuracy over bytes": True,
    }
