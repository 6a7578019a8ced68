"""What hostile requests may leave behind, and that each verdict on it can fail."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.answers.looks import Look, count_errors, growth_of_floor
from benchmarks.answers.malformed import ALLOWED_GROWTH_MIB, ALLOWED_PEAK_MIB, BENCHMARK, told_of


@pytest.mark.parametrize(
    ("looks", "growth"),
    [
        pytest.param([130.0] * 10, 0.0, id="as before"),
        pytest.param([131.0] * 10, 1.0, id="as in the first half, and more than before"),
        pytest.param([130.0 + 3 * look for look in range(10)], 15.0, id="a leak"),
        pytest.param([130, 130, 141, 130, 130, 130, 130, 139, 130, 141], 0.0, id="memory that is given back later"),
        pytest.param([130, 130, 130, 130, 130, 150, 150, 150, 150, 150], 20.0, id="memory that stays"),
    ],
)
def test_memory_has_grown_where_a_process_no_longer_goes_back_to_what_it_had(looks: list[float], growth: float) -> None:
    assert growth_of_floor(130.0, looks) == growth


def test_lines_of_errors_and_with_tracebacks_are_counted() -> None:
    log = [{"level": "INFO"}, {"level": "WARNING", "exception": "Traceback"}, {"level": "ERROR"}]
    assert count_errors(log) == 2


def found(**changed: Any) -> dict[str, Any]:
    looks = [Look(130.0, 37, 14)] * 11
    seen = {**told_of(looks, 131.0), "tracebacks": 0}
    overlays = {"wrong": 0, "wrongOfOthers": 0}
    graph = {key: value for key, value in changed.items() if key in seen}
    overlays |= {key: value for key, value in changed.items() if key in overlays}
    both = {"requests": {"json": 3}, "unanswered": 0, "wrong": 0, **seen, "overlays": {**overlays, "graphs": [seen]}}
    both |= {key: value for key, value in changed.items() if key in both}
    both["overlays"]["graphs"] = [seen, {**seen, **graph}]
    return both


def failing(measured: dict[str, Any]) -> set[str]:
    return {name for name, verdict in BENCHMARK.judged(measured).items() if not verdict["passed"]}


def test_nothing_fails_where_nothing_stays_behind() -> None:
    assert failing(found()) == set()
    assert len(BENCHMARK.judged(found())) == 11


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"unanswered": 1}, 1), ({"wrong": 1}, 2), ({"wrongOfOthers": 1}, 1), ({"tracebacks": 1}, 2),
        ({"descriptorsLeft": 1}, 2), ({"anonymousMiB": [131.0 + ALLOWED_GROWTH_MIB] * 10}, 2),
        ({"mostMiB": 131.0 + ALLOWED_PEAK_MIB}, 1),
    ],
    ids=str,
)  # fmt: skip
def test_every_verdict_fails_for_what_it_is_about(changed: dict[str, Any], parts: int) -> None:
    assert len(failing(found(**changed))) == parts


def test_a_part_that_was_not_run_has_no_verdict() -> None:
    overlays = {"overlays": found()["overlays"]}
    assert all(name.startswith("hostile overlays") for name in BENCHMARK.judged(overlays))
    assert len(BENCHMARK.judged(overlays)) == 6
