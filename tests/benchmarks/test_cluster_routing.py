"""The verdicts on how the slow loop follows a load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from benchmarks.clusters.cluster_routing import judge_fall, judge_rise
from benchmarks.clusters.cluster_routing_bench import FULL, Bench

CAPACITIES = {"x1": 1000.0, "x2": 2000.0, "x4": 4000.0, "x8": 8000.0}
BENCH = Bench(FULL, cast(Any, None), cast(Any, None), tuple(CAPACITIES), CAPACITIES, objective_ms=100.0)
INTERVAL_S = FULL.interval_s


def changes(*of: tuple[float, str]) -> Sequence[dict[str, Any]]:
    """At so many intervals, to that base."""
    return [{"at_s": at * INTERVAL_S, "base": base} for at, base in of]


@pytest.mark.parametrize(
    ("made", "good"),
    [
        (changes((0, "x1"), (4.5, "x4")), True),
        (changes((0, "x1"), (4.5, "x2"), (5.5, "x4")), True),
        (changes((0, "x1"), (4.5, "x2"), (5.5, "x4"), (6.5, "x8")), False),
        (changes((0, "x1"), (4.5, "x2")), False),
        (changes((0, "x1"), (6.5, "x4")), False),
        (changes((0, "x1"), (4.2, "x2"), (4.4, "x1"), (4.6, "x4")), False),
        (changes((0, "x1")), False),
    ],
    ids=["at once", "in two", "beyond", "not far enough", "too late", "to and fro", "never"],
)
def test_a_rise_ends_at_the_right_base_in_time(made: Sequence[dict[str, Any]], good: bool) -> None:
    verdict = judge_rise(BENCH, made, CAPACITIES, 3000.0, 4 * INTERVAL_S, 10 * INTERVAL_S)
    assert verdict["right"] == "x4"
    assert verdict["good"] is good


@pytest.mark.parametrize(
    ("made", "good"),
    [
        (changes((4, "x4"), (12.3, "x2"), (14.3, "x1")), True),
        (changes((4, "x4"), (12.3, "x1")), False),
        (changes((4, "x4"), (12.3, "x2"), (13.3, "x1")), False),
        (changes((4, "x4"), (12.3, "x2"), (14.3, "x4"), (16.3, "x2"), (18.3, "x1")), False),
        (changes((4, "x4"), (12.3, "x2")), False),
        (changes((4, "x4"), (10.3, "x2"), (12.3, "x1")), False),
    ],
    ids=["one by one", "two at once", "too soon after", "to and fro", "not to the end", "too soon"],
)
def test_a_fall_goes_back_one_by_one(made: Sequence[dict[str, Any]], good: bool) -> None:
    assert judge_fall(BENCH, made, 10 * INTERVAL_S)["good"] is good
