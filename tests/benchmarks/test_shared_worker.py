"""What is concluded from the loads on services that share a server."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.load import shared_connections
from benchmarks.load.shared_worker import judge


def served(p99_ms: float, attained_percent: float = 100.0) -> dict[str, Any]:
    return {"p99_ms": p99_ms, "attained_percent": attained_percent}


@pytest.mark.parametrize(
    ("beside", "passed"),
    [
        (served(13.0), [True, True]),
        (served(13.1), [False, True]),
        (served(9.0, 99.99), [True, False]),
    ],
)
def test_a_service_is_judged_beside_what_it_has_alone(beside: dict[str, Any], passed: list[bool]) -> None:
    four = {
        "one": {"own_memory_mib": 150.0, "seeds_per_s": 900},
        "four": {"own_memory_mib": 400.0, "seeds_per_s": 1000},
    }
    verdicts = judge({"alone": served(10.0), "beside": beside}, four)
    assert [one["passed"] for one in verdicts.values()] == [*passed, True]
    assert [one["measured"] for one in verdicts.values()][2:] == ["150 and 400 MiB"]


@pytest.mark.parametrize(
    ("kept", "p99_ratio", "passed"), [(0.40, 3.0, [True, True]), (0.39, 2.0, [False, True]), (0.5, 3.1, [True, False])]
)
def test_a_service_with_few_connections_is_judged_by_what_it_keeps(
    kept: float, p99_ratio: float, passed: list[bool]
) -> None:
    figures = [{"requests_per_s": 100.0, "p99_ms": 1.0}]
    measured = {"alone": figures, "beside": figures, "kept": kept, "p99_ratio": p99_ratio}
    assert [one["passed"] for one in shared_connections.judge(measured).values()] == passed
