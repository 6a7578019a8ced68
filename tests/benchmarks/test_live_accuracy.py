"""The benchmark of accuracy in service: its streams, and its verdicts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from benchmarks.accuracy.live_accuracy import BENCHMARK, CHANGE_AT, LABELS, LEAST_CLASS, first_told, permuted
from benchmarks.accuracy.live_accuracy_shadows import compare
from tests.support.serving.serving import FakeWorker, profile, variant

from gnnserve_api.files.profile import Profile

PROMISED: Profile = profile(variant("x1", 0.8, 1))


def test_a_class_that_is_large_enough_becomes_another() -> None:
    truths = np.repeat([0, 1, 2], [100, 300, 600])
    for seed in range(10):
        changed = permuted(truths, 3, np.random.default_rng(seed))
        of = set(truths[changed != truths])
        assert len(of) == 1 and np.mean(truths == of.pop()) >= LEAST_CLASS
        assert len(set(changed[changed != truths])) == 1


@pytest.mark.parametrize(("nodes", "told"), [(1000, True), (1, False)])
def test_a_stream_is_told_after_its_change_where_the_promise_says_anything(nodes: int, told: bool) -> None:
    promised = msgspec.structs.replace(PROMISED, validation_nodes=nodes, test_nodes=nodes)
    right = np.random.default_rng(0).random(LABELS) < np.where(np.arange(LABELS) < CHANGE_AT, 0.8, 0.6)
    measure = FakeWorker(profile=promised).revision().task.live_labels.measure()
    at = first_told(promised, measure, {"x1": right.astype(float)})
    assert (at is not None and CHANGE_AT < at <= CHANGE_AT + 1000) == told


def test_a_verdict_says_what_was_wanted_and_found() -> None:
    shadows = {"p99_without_ms": 1.0, "p99_with_ms": 1.03, "ratio": 1.03, "low": 0.99, "high": 1.08}
    streams = {"count": 100, "labelsUntilTold": {"median": 300.0, "p95": 900.0, "max": 1001}, "falseAlarms": 3}
    told, alarms, cost = BENCHMARK.judged({"streams": streams, "shadows": shadows}).values()
    assert (told["measured"], told["passed"]) == ("1,001 at most, 300 in the middle, of 100 streams", False)
    assert (alarms["measured"], alarms["passed"]) == ("3 in 100 streams", True)
    assert (cost["measured"], cost["passed"]) == ("1.030 (0.990 to 1.080)", False)


def test_percentiles_are_compared_over_all_rounds() -> None:
    draw = np.random.default_rng(1)
    without = [draw.gamma(4, 0.1, 2000) for _ in range(10)]
    found = compare(without, [round_ms * 1.1 for round_ms in without], 100.0)
    assert found.ratio == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1) and found.high == pytest.approx(1.1)
    assert found.requests == 40_000
