"""What is judged of requests about new nodes: what they cost, and how good answers are to each asked for alone."""

from __future__ import annotations

from typing import Any

from benchmarks.pairs import compute_ratio, recorded
from benchmarks.unseen.unseen import BENCHMARK, COST


def accuracy(*, alone: float, unseen: float = 0.8) -> dict[str, Any]:
    return {"accuracy": [{"graph": "cora", "variant": "x1", "stored": 0.8, "unseen": unseen, "alone": alone}]}


def judged(found: dict[str, Any]) -> dict[str, bool]:
    return {name: verdict["passed"] for name, verdict in BENCHMARK.judged(found).items()}


def test_the_verdict_about_accuracy_is_of_nodes_that_are_asked_for_alone() -> None:
    name = "cora: accuracy of hidden nodes, each asked for alone"
    assert judged(accuracy(alone=0.798)) == {name: True}
    assert judged(accuracy(alone=0.83)) == {name: True}
    assert judged(accuracy(alone=0.79)) == {name: False}
    assert judged(accuracy(alone=0.798, unseen=0.5)) == {name: True}


def test_costs_of_the_binary_form_are_judged_and_those_of_json_shown() -> None:
    costs = {f"arxiv, {form}, 1 new: p50 ms": [(1.0, 1.4)] * 10 for form in ("binary", "JSON")}
    found = recorded({name: compute_ratio(pairs) for name, pairs in costs.items()}, costs, lambda _: COST)
    assert judged(found) == {"arxiv, binary, 1 new: p50 ms": False}


def test_wrong_answers_and_uneven_draws_fail() -> None:
    right = {"largest_error": 2e-6, "smallest_p": 0.2}
    assert set(judged(right).values()) == {True}
    assert set(judged({"largest_error": 2e-5, "smallest_p": 1e-6}).values()) == {False}
