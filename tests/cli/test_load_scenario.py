"""Load that changes: its shapes, and what of it is held against the objective."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.machine.fake_server import Asked, Told, answer_like_gnnserve, fake_server, refusal
from typer.testing import CliRunner

from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.record import FAILED, REFUSED, LoadRecord
from gnnserve_cli.loadgen.requests import Sizes, build_predictions
from gnnserve_cli.loadgen.scenario import RateCurve, Scenario, build_arrivals, build_curve
from gnnserve_cli.loadgen.statistics import Accuracies, LoadPlan, StatedObjective, slice_up, summarize
from gnnserve_cli.main import app
from gnnserve_client.address import parse_url

PEAK, DURATION_S = 1000.0, 60.0


def rate_at(curve: RateCurve, share: float) -> float:
    return curve.rates_per_s[int(share * len(curve.rates_per_s))]


# Shapes


@pytest.mark.parametrize(
    ("scenario", "rates"),
    [
        pytest.param(Scenario.STEP, {0.1: 250, 0.5: 1000, 0.9: 250}, id="step"),
        pytest.param(Scenario.FLASH, {0.1: 83, 0.341: 1000, 0.39: 427, 0.95: 83}, id="flash"),
        pytest.param(Scenario.DIURNAL, {0.0: 57, 0.25: 529, 0.5: 1000, 0.75: 529, 0.999: 57}, id="diurnal"),
    ],
)
def test_a_curve_has_its_shape_and_the_peak_that_was_asked_for(scenario: Scenario, rates: dict[float, float]) -> None:
    curve = build_curve(scenario, PEAK, DURATION_S, seed=0)
    assert {share: rate_at(curve, share) for share in rates} == pytest.approx(rates, rel=0.02)
    assert max(curve.rates_per_s) == pytest.approx(PEAK, rel=0.02)
    assert len(curve.rates_per_s) * curve.step_s == pytest.approx(DURATION_S)


def test_the_curve_of_a_day_has_no_more_steps_than_fit_in_memory() -> None:
    curve = build_curve(Scenario.FLASH, PEAK, 86_400, seed=0)
    assert len(curve.rates_per_s) == 1_000_000
    assert len(curve.rates_per_s) * curve.step_s == pytest.approx(86_400)


def test_bursts_alternate_between_the_peak_and_a_tenth_of_it() -> None:
    curve = build_curve(Scenario.BURSTS, PEAK, 3000, seed=1)
    lengths: dict[float, list[float]] = {}
    for rate, steps in itertools.groupby(curve.rates_per_s):
        lengths.setdefault(rate, []).append(len(list(steps)) * curve.step_s)
    assert lengths.keys() == {PEAK, PEAK / 10}
    # About a thousand of each, of exponential length: a standard error of 3 %.
    assert statistics.mean(lengths[PEAK]) == pytest.approx(1, rel=0.15)
    assert statistics.mean(lengths[PEAK / 10]) == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize("scenario", Scenario)
def test_shapes_scale_with_the_duration(scenario: Scenario) -> None:
    """Except bursts, which are defined by being short."""
    short, long = (build_curve(scenario, PEAK, duration_s, seed=0) for duration_s in (30, 300))
    if scenario is not Scenario.BURSTS:
        for share in (0.1, 0.3, 0.345, 0.5, 0.7):
            assert rate_at(short, share) == pytest.approx(rate_at(long, share), rel=0.1)


@pytest.mark.parametrize("scenario", Scenario)
def test_arrivals_follow_the_curve_and_repeat_with_their_seed(scenario: Scenario) -> None:
    curve = build_curve(scenario, PEAK, DURATION_S, seed=3)
    arrivals = list(build_arrivals(curve, seed=3))
    assert arrivals == list(build_arrivals(build_curve(scenario, PEAK, DURATION_S, seed=3), seed=3))
    assert arrivals != list(build_arrivals(curve, seed=4))
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] < DURATION_S
    fifths = [sum(1 for _ in group) for _, group in itertools.groupby(arrivals, lambda due_s: int(due_s / 12))]
    per_fifth = len(curve.rates_per_s) // 5
    for found, number in zip(fifths, range(5), strict=True):
        expected = math.fsum(curve.rates_per_s[number * per_fifth : (number + 1) * per_fifth]) * curve.step_s
        # Five standard deviations of a count whose gaps have this variation.
        assert abs(found - expected) < 5 * math.sqrt(expected * curve.squared_variation)


@pytest.mark.parametrize("variation", [1.0, 2.0])
def test_gaps_vary_as_asked(variation: float) -> None:
    curve = RateCurve(0.01, (1000.0,) * 6000, variation)
    arrivals = list(build_arrivals(curve, seed=0))
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    assert statistics.variance(gaps) / statistics.mean(gaps) ** 2 == pytest.approx(variation, rel=0.1)


def test_log_normal_sizes_have_the_mean_and_are_cut() -> None:
    requests = build_predictions(parse_url("http://h:1"), 5000, 48, None, 0, binary=True, sizes=Sizes.LOGNORMAL)
    sent = [len(payload.partition(b"\r\n\r\n")[2]) // 8 for payload in requests.payloads]
    assert sent == [requests.seeds_of(number) for number in range(len(sent))]
    assert statistics.mean(sent) == pytest.approx(48, rel=0.05)
    assert (min(sent) >= 1, max(sent) <= 512) == (True, True)
    assert statistics.median(sent) == pytest.approx(48 * math.exp(-0.32), rel=0.1)


# The report, from rows


ACCURACIES = Accuracies("test", {"x1": 94.0, "x8": 90.0})


def record_of(rows: Sequence[tuple[float, float, str | int]]) -> LoadRecord:
    """Due s, latency ms, who answered."""
    record = LoadRecord(started=len(rows))
    for due_s, latency_ms, answerer in rows:
        position = record.position_of(answerer) if isinstance(answerer, str) else answerer
        record.rows.add(due_s, latency_ms, position, 2, last_try_ms=latency_ms)
    return record


def plan(limit_ms: float | None = 50.0, **options: Any) -> LoadPlan:
    objective = None if limit_ms is None else StatedObjective(limit_ms, None, "requests")
    return LoadPlan(8, 10.0, 2, rate_per_s=1.0, objective=objective, **options)


MIXED = record_of(
    [(0.5, 10.0, "x1"), (1.5, 50.0, "x8"), (2.5, 50.1, "x1"), (3.5, math.nan, REFUSED), (4.5, math.nan, FAILED)]
)


def test_attained_counts_every_request_and_accuracy_only_answers_on_time() -> None:
    report = summarize(plan(), MIXED, ACCURACIES)
    assert report.attained_percent == 40.0
    assert report.accuracy_percent == 92.0
    assert report.accuracy_split == "test"
    assert (report.answers, report.refused) == (3, 1)
    assert report.goodput_per_second == 0.2
    assert report.variants == {"x1": pytest.approx(2 / 3), "x8": pytest.approx(1 / 3)}


def test_without_a_latency_nothing_is_held_against_one() -> None:
    report = summarize(plan(limit_ms=None), MIXED, ACCURACIES)
    assert (report.attained_percent, report.goodput_per_second) == (None, None)
    assert report.accuracy_percent == pytest.approx((94 + 90 + 94) / 3)


def test_accuracy_is_not_guessed_where_a_variant_is_unknown() -> None:
    report = summarize(plan(), record_of([(0.5, 1.0, "x1"), (0.6, 1.0, "new")]), ACCURACIES)
    assert (report.accuracy_percent, report.accuracy_split) == (None, None)


def test_slices_tell_the_course_of_the_run() -> None:
    slices = slice_up(plan(), MIXED, 5, ACCURACIES)
    assert [part.start_s for part in slices] == [0, 2, 4, 6, 8]
    assert [part.offered_per_second for part in slices] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert [part.attained_percent for part in slices] == [100.0, 0.0, 0.0, None, None]
    assert [part.refused for part in slices] == [0, 1, 0, 0, 0]
    assert [part.variants for part in slices] == [{"x1": 0.5, "x8": 0.5}, {"x1": 1.0}, {}, {}, {}]
    assert [part.p99_ms for part in slices] == [50.0, 50.1, None, None, None]


def test_a_generator_slower_than_the_rate_says_so() -> None:
    record = record_of([(0.1, 1.0, "x1")] * 100)
    record.late = 2
    assert any("came to 2 of 100 requests over 1 ms after" in text for text in summarize(plan(), record).warnings)
    record.late = 1
    assert summarize(plan(), record).warnings == []


# Against a server


def load(url: str, *arguments: str, expect: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["load", url, *arguments, "--json"])
    assert result.exit_code == expect, result.stderr
    return dict(json.loads(result.output))


def with_objective(latency_ms: float) -> Any:
    def answer(asked: Asked) -> Told:
        told = answer_like_gnnserve(asked)
        if asked.path == "/v1/route":
            return Told(body={**told.body, "objective": {"latencyMs": latency_ms}})
        return told

    return answer


def test_a_scenario_is_sent_and_reported() -> None:
    with fake_server() as server:
        report = load(
            server.url, "--scenario", "step", "--rate", "200", "--duration", "0.6", "--objective-ms", "10000",
            "--seeds-per-request", "8", "--sizes", "lognormal",
        )  # fmt: skip
        sizes = {len(asked.body["nodes"]) for asked in server.asked if asked.path == "/v1/predict"}
    curve = build_curve(Scenario.STEP, 200, 0.6, seed=0)
    assert report["requests"] == report["answers"] == len(list(build_arrivals(curve, 0)))
    assert (report["scenario"], report["sizes"], report["binary"]) == ("step", "lognormal", False)
    assert report["objective"] == {"latencyMs": 10000.0, "accuracyTolerancePermille": None, "statedBy": "requests"}
    assert report["attainedPercent"] == 100.0
    assert report["accuracySplit"] == "test"
    assert len(report["slices"]) == 10
    assert sum(part["offeredPerSecond"] * 0.06 for part in report["slices"]) == pytest.approx(report["requests"])
    assert len(sizes) > 1


def test_both_names_of_the_objective_are_one_option() -> None:
    with fake_server() as server:
        for name in ("--latency-ms", "--objective-ms"):
            load(server.url, name, "5", "--duration", "0.05")
            assert server.asked[-1].body["objective"]["latencyMs"] == 5.0


def test_the_service_s_objective_counts_where_requests_state_none() -> None:
    with fake_server(with_objective(10_000)) as server:
        report = load(server.url, "--rate", "100", "--duration", "0.1")
        assert "objective" not in server.asked[-1].body
    assert report["objective"]["statedBy"] == "service"
    assert report["attainedPercent"] == 100.0


def test_late_answers_are_misses_though_they_came() -> None:
    with fake_server(with_objective(0.001)) as server:
        report = load(server.url, "--rate", "100", "--duration", "0.1")
    assert report["answers"] == report["requests"]
    assert (report["attainedPercent"], report["accuracyPercent"]) == (0.0, None)


def refusing_first_tries(retry_after: str) -> Any:
    seen: set[str] = set()

    def answer(asked: Asked) -> Told:
        if asked.method == "GET" or str(asked.body) in seen:
            return answer_like_gnnserve(asked)
        seen.add(str(asked.body))
        return refusal(429, "QueueFull", "full", Retry_After=retry_after)

    return answer


def open_loop(url: str, dues_s: Sequence[float], retries: int) -> LoadRecord:
    """Ends with its last answer, long before its duration."""
    endpoint = parse_url(url)
    requests = build_predictions(endpoint, 1797, 1, None, 0)
    return generate_load(
        endpoint, requests, LoadPlan(8, 60.0, 1, rate_per_s=1.0, retries=retries), dues_s, timeout_s=30
    )


def test_refused_requests_are_tried_again() -> None:
    with fake_server(refusing_first_tries("0")) as server:
        record = open_loop(server.url, [number / 100 for number in range(10)], retries=2)
    report = summarize(plan(), record)
    assert (report.requests, report.answers, report.tries, report.refused) == (10, 10, 20, 0)
    assert report.statuses == {"200": 10, "429": 10}


def test_a_retry_comes_when_the_server_says_and_counts_from_both_of_its_due_times() -> None:
    with fake_server(refusing_first_tries("1")) as server:
        record = open_loop(server.url, [0.0], retries=1)
    assert list(record.rows.tries) == [2]
    assert record.rows.latencies_ms[0] >= 1000
    assert 0 <= record.rows.last_tries_ms[0] <= record.rows.latencies_ms[0] - 1000


def test_an_answer_to_a_retry_is_a_miss_but_goodput() -> None:
    record = LoadRecord(started=1)
    record.rows.add(0.0, 1010.0, record.position_of("x1"), 1, last_try_ms=10.0, tries=2)
    report = summarize(plan(), record, ACCURACIES)
    assert (report.attained_percent, report.goodput_per_second, report.tries) == (0.0, 0.1, 2)


@pytest.mark.parametrize(
    ("retry_after", "retries"),
    [pytest.param("0", "0", id="no retries asked for"), pytest.param("1", "2", id="not before the run is over"),
     pytest.param("soon", "2", id="no time that can be read")],
)  # fmt: skip
def test_what_is_not_tried_again_is_refused(retry_after: str, retries: str) -> None:
    with fake_server(refusing_first_tries(retry_after)) as server:
        arguments = ["--rate", "50", "--arrivals", "fixed", "--duration", "0.2", "--retries", retries]
        report = load(server.url, *arguments, expect=6)
    assert (report["requests"], report["tries"], report["refused"]) == (10, 10, 10)


# Options that say nothing together


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--scenario", "step"], "--scenario: ", id="scenario of a closed loop"),
        pytest.param(["--retries", "1"], "--retries: ", id="retries of a closed loop"),
        pytest.param(["--arrivals", "fixed"], "--arrivals: ", id="arrivals of a closed loop"),
        pytest.param(["--scenario", "step", "--rate", "9", "--arrivals", "fixed"], "--arrivals: ", id="two schedules"),
        pytest.param(
            ["--scenario", "step", "--rate", "0.001"], "raise --rate or --duration\n", id="scenario without a request"
        ),
    ],
)
def test_contradictions_are_refused_before_anybody_is_asked(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["load", "http://localhost:1", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []
