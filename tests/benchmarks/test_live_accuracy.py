"""The benchmark of accuracy in service: its streams, and its verdicts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from benchmarks.live_accuracy import CHANGE_AT, LABELS, LEAST_CLASS, Streams, first_told, permuted, verdicts_of
from benchmarks.live_accuracy_shadows import Shadows, compare
from tests.support.serving import profile, variant

from gnnserve_api.profile import Profile

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
    at = first_told(promised, {"x1": right.astype(float)})
    assert (at is not None and CHANGE_AT < at <= CHANGE_AT + 1000) == told


def test_verdicts_are_of_the_latest_and_of_the_share_of_alarms() -> None:
    assert Streams([100, 1000], early=0, alarms=0, streams=2).told_in_time
    assert not Streams([100, 1001], early=0, alarms=0, streams=2).told_in_time
    assert Streams([1], early=0, alarms=5, streams=100).few_alarms
    assert not Streams([1], early=0, alarms=1, streams=6).few_alarms


def test_a_verdict_says_what_was_wanted_and_found() -> None:
    shadows = Shadows(
        p99_without_ms=1.0, p99_with_ms=1.03, ratio=1.03, low=0.99, high=1.08, requests=1, rate_per_s=1.0, rounds=1,
        permille=5,
    )  # fmt: skip
    told, alarms, cost = verdicts_of(Streams([100, 1001, 300], early=0, alarms=3, streams=100), shadows).values()
    assert (told["measured"], told["passed"]) == ("1,001 at most, 300 in the middle, of 100 streams", False)
    assert (alarms["measured"], alarms["passed"]) == ("3 in 100", True)
    assert (cost["measured"], cost["passed"]) == ("1.030 (0.990 to 1.080)", False)


def test_percentiles_are_compared_over_all_rounds() -> None:
    draw = np.random.default_rng(1)
    without = [draw.gamma(4, 0.1, 2000) for _ in range(10)]
    found = compare(without, [round_ms * 1.1 for round_ms in without], 100.0)
    assert found.ratio == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1) and found.high == pytest.approx(1.1)
    assert found.requests == 40_000
