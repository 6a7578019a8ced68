"""The verdict of a soak."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.soak import MEMORY_GROWTH_MIB, Minute, judge

CALM = Minute(
    answers=1000, p50_ms=1.0, p99_ms=4.0, max_ms=9.0, lag_p99_ms=0.1, errors={}, rss_mib=500.0, anonymous_mib=80.0
)


def test_twenty_minutes_that_are_all_alike_pass() -> None:
    verdict = judge([CALM] * 20)
    assert verdict.passed
    assert (verdict.errors, verdict.memory_growth_mib, verdict.p99_ratio, verdict.compared_minutes) == (0, 0, 1, 5)


def test_one_bad_minute_is_weather_and_not_climate() -> None:
    assert judge([CALM] * 19 + [replace(CALM, p99_ms=40.0)]).passed


@pytest.mark.parametrize(
    "last",
    [
        replace(CALM, p99_ms=4.9),
        replace(CALM, anonymous_mib=CALM.anonymous_mib + MEMORY_GROWTH_MIB + 1),
        replace(CALM, errors={"429 overloaded": 1}),
    ],
    ids=["slower by more than a fifth", "grown", "with an error"],
)
def test_last_minutes_that_differ_fail(last: Minute) -> None:
    assert not judge([CALM] * 15 + [last] * 5).passed


def test_a_shorter_run_compares_its_halves() -> None:
    assert judge([CALM] * 4).compared_minutes == 2
    assert judge([CALM]).compared_minutes == 1
