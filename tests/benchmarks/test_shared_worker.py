"""What is concluded from the loads on services that share a server."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.shared_worker import judge


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
    assert [one["passed"] for one in verdicts.values()] == [*passed, True, True]
    assert [one["measured"] for one in verdicts.values()][2:] == ["150 and 400 MiB", "0.90 (900 and 1,000)"]
