"""`make bench-sweep`: what its verdict compares."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.answers.sweep import verdicts


def point(sum_ms: float = 1.0, mean_ms: float = 1.0, told_ms: float = 0.6, residence_ms: float = 0.6) -> dict[str, Any]:
    parts = {"sumMs": sum_ms, "serverTransferMs": 0.1, "waitMs": 0.2, "computeMs": told_ms - 0.3}
    return {"parts": parts, "mean_ms": mean_ms, "residence_ms": residence_ms}


@pytest.mark.parametrize(
    ("points", "measured", "passed"),
    [
        pytest.param([point()], ["+0.0 %", "+0.0 %"], [True, True], id="all of it"),
        pytest.param([point(), point(sum_ms=0.9)], ["-10.0 %", "+0.0 %"], [False, True], id="a part is missing"),
        pytest.param([point(residence_ms=0.5), point()], ["+0.0 %", "+10.0 %"], [True, False], id="too much is told"),
        pytest.param([point(sum_ms=2.08, mean_ms=2.0)], ["+4.0 %", "+0.0 %"], [True, True], id="nearly"),
    ],
)
def test_parts_are_held_against_what_both_sides_measure(
    points: list[dict[str, Any]], measured: list[str], passed: list[bool]
) -> None:
    found = list(verdicts(points).values())
    assert [one["measured"] for one in found] == measured
    assert [one["passed"] for one in found] == passed
