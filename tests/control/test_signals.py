"""What the slow loop reads out of Prometheus' samples, and when it reads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.operator.samples import NOW_S, batches, offered, series

from gnnserve_api.status.reasons import Reason
from gnnserve_routing.signals import (
    BatchSums,
    Outcomes,
    QueryAnswer,
    Sample,
    Series,
    Signals,
    Silence,
    build_query,
    parse_answer,
    read_signals,
)

STEADY = tuple((float(at_s), 100.0 * (60 + at_s) + 7000) for at_s in (-60, -45, -30, -15, 0))
"""100 seeds/s, scraped every 15 s."""


Ages = Mapping[str, float]
"""For how many seconds each pod has been ready."""


def read(found: Iterable[Series], workers: int = 1, ages: Ages | None = None, interval_s: float = 15) -> object:
    ready_since_s = {pod: NOW_S - age_s for pod, age_s in (ages or {}).items()}
    return read_signals(
        QueryAnswer(tuple(found), NOW_S), interval_s=interval_s, workers=workers, ready_since_s=ready_since_s
    )


def load(found: Iterable[Series], workers: int = 1, ages: Ages | None = None, interval_s: float = 15) -> float:
    signals = read(found, workers, ages, interval_s)
    assert isinstance(signals, Signals), signals
    return signals.offered_seeds_per_s


def silence(found: Iterable[Series], workers: int = 1) -> Reason:
    said = read(found, workers)
    assert isinstance(said, Silence), said
    assert said.message.endswith((".", "?"))
    return said.reason


def shifted(points: Iterable[tuple[float, float]], by_s: float) -> list[tuple[float, float]]:
    return [(at_s + by_s, value) for at_s, value in points]


# --- the offered load


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param(STEADY, 100, id="a steady load"),
        pytest.param([(-30, 0), (-15, 0), (0, 0)], 0, id="no load is a load of zero"),
        pytest.param([(-30, 0), (-15, 0), (0, 6000)], 400, id="the last interval counts and not the one before"),
        pytest.param([(at_s, 50 * (60 + at_s)) for at_s in range(-60, 1, 5)], 50, id="scraped more often than asked"),
        pytest.param([(-60, 0), (0, 3000)], 50, id="scraped less often than asked"),
        pytest.param([(-60, 0), (-45, 1500), (0, 6000)], 100, id="two scrapes were missed"),
        pytest.param([(-29.2, 0), (-14.4, 1480), (0.1, 4380)], 200, id="scrapes are never quite regular"),
        pytest.param([(-30, 9e6), (-15, 9.5e6), (0, 1500)], 100, id="a restarted worker counts from zero"),
        pytest.param([(-15, 0), (-10, 50), (-5, 20), (0, 40)], 90 / 15, id="a restart within the interval"),
        pytest.param([(-5, 9e6), (0, 9e6 + 250)], 50, id="a new series counts from its first sample"),
        pytest.param([(-30, 0), (-15, math.nan), (0, 3000)], 100, id="a sample that is no number is left out"),
        pytest.param([(-30, 0), (-15, -4), (0, 3000)], 100, id="a counter is never negative"),
        pytest.param([(-15, 0), (0, 1500), (0, math.inf)], 100, id="nor infinite"),
    ],
)  # fmt: skip
def test_the_offered_load_of_one_worker(points: list[tuple[float, float]], expected: float) -> None:
    assert load([offered("a", *points)]) == pytest.approx(expected, rel=0.02)


def test_the_load_of_workers_adds_up_whenever_each_is_scraped() -> None:
    assert load([offered("a", *STEADY), offered("b", *shifted(STEADY, -7))], workers=2) == pytest.approx(200)


def test_a_worker_that_was_not_seen_is_put_at_the_mean_of_the_others() -> None:
    found = [offered("a", *STEADY), offered("b", *STEADY), offered("c", (0, 0))]
    assert load(found, workers=3) == pytest.approx(300)
    assert load(found, workers=3, ages={"a": 3600, "b": 3600, "c": 3600}) == pytest.approx(300)


@pytest.mark.parametrize("of_new", [[], [offered("c", (0, 0)), offered("d", (-1, 0)), offered("e", (0, 0))]])
def test_workers_that_have_just_become_ready_add_no_load_until_they_are_measured(of_new: list[Series]) -> None:
    found = [offered("a", *STEADY), offered("b", *STEADY), *of_new]
    new = dict.fromkeys("cde", 20.0)
    assert load(found, workers=5, ages={"a": 3600, "b": 3600, **new}) == pytest.approx(200)
    assert load([*found[:1]], workers=5, ages={"a": 3600, "b": 3600, **new}) == pytest.approx(200), "b fell silent"
    measured = [offered(pod, (-15, 0), (0, 600)) for pod in "cde"]
    assert load([*found[:2], *measured], workers=5, ages={"a": 3600, "b": 3600, **new}) == pytest.approx(320)


def test_fewer_than_half_of_the_workers_are_no_measurement() -> None:
    assert silence([offered("a", *STEADY)], workers=3) is Reason.PARTIAL
    assert load([offered("a", *STEADY)], workers=2) == pytest.approx(200)


def test_a_pod_that_left_is_not_counted_since_the_others_have_its_load() -> None:
    gone = offered("gone", *shifted(STEADY, -35))
    assert load([offered("a", *STEADY), gone], workers=1) == pytest.approx(100)
    assert load([offered("a", *STEADY), offered("leaving", *STEADY)], workers=1, ages={"a": 3600}) == pytest.approx(100)


def test_a_pod_that_missed_one_scrape_is_still_there() -> None:
    assert load([offered("a", *STEADY), offered("b", *STEADY[:-1])], workers=2) == pytest.approx(200)


def test_names_that_are_nobodys_label_change_nothing() -> None:
    assert load([offered("a", *STEADY)], ages={"digits-worker-x": 3600}) == pytest.approx(100)


@pytest.mark.parametrize("also", [{"job": "second"}, {"prometheus_replica": "b"}, {"endpoint": "http", "node": "n"}])
def test_a_pod_that_is_scraped_twice_counts_once(also: dict[str, str]) -> None:
    found = [offered("a", *STEADY, job="first"), offered("a", *shifted(STEADY, -4), **also)]
    assert load(found) == pytest.approx(100)


def test_a_pod_that_is_scraped_with_and_without_its_name_counts_once() -> None:
    static = series("offered_seeds", STEADY, instance="a:8080", job="static")
    assert load([offered("a", *STEADY), static]) == pytest.approx(100)


def test_without_pod_names_the_instance_is_the_worker() -> None:
    found = [series("offered_seeds", STEADY, instance=f"10.0.0.{i}:8080") for i in (1, 2)]
    assert load(found, workers=2) == pytest.approx(200)


def test_a_registry_of_ones_own_has_no_target_labels() -> None:
    assert load([series("offered_seeds", STEADY)]) == pytest.approx(100)


def test_a_long_interval_is_measured_by_its_last_minutes() -> None:
    points = [(float(at_s), 0.0 if at_s < -300 else 40.0 * (300 + at_s)) for at_s in range(-600, 1, 15)]
    assert load([offered("a", *points)], interval_s=3600) == pytest.approx(40)


# --- when nothing is known


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param([], Reason.NO_DATA, id="nothing"),
        pytest.param([series("queue_seeds", STEADY)], Reason.NO_DATA, id="something else"),
        pytest.param([offered("a", (0, 100))], Reason.NO_DATA, id="one sample is no rate"),
        pytest.param([offered("a", *shifted(STEADY, -60))], Reason.STALE, id="nothing new for a minute"),
        pytest.param([offered("a", *shifted(STEADY, 60))], Reason.INVALID, id="samples of the future"),
        pytest.param([offered("a", (-15, math.nan), (0, math.nan))], Reason.INVALID, id="no numbers"),
        pytest.param([offered("a")], Reason.INVALID, id="a series without samples"),
        pytest.param(batches("a", "x1", (-15, 0), [(4, 0.1)]), Reason.INVALID, id="batches, and no offered load"),
    ],
)
def test_what_is_not_known_is_not_zero(found: list[Series], reason: Reason) -> None:
    assert silence(found) is reason


def test_how_old_is_too_old_follows_the_scrapes() -> None:
    assert load([offered("a", (-200, 0), (-140, 60))]) == pytest.approx(1)
    assert silence([offered("a", (-230, 0), (-170, 60))]) is Reason.STALE
    assert silence([offered("a", (-100, 0))]) is Reason.NO_DATA, "one scrape tells nothing about the next"


def test_the_same_samples_again_are_nothing_new() -> None:
    def newest(*points: tuple[float, float]) -> Signals:
        signals = read([offered("a", *points)])
        assert isinstance(signals, Signals)
        return signals

    first = newest((-135, 0), (-75, 600))
    assert first.is_newer_than(-math.inf)
    assert not first.is_newer_than(first.newest_s)
    assert not newest((-135, 0), (-75, 600), (-60, 700)).is_newer_than(first.newest_s), "not everybody's"
    assert newest((-135, 0), (-75, 600), (-15.1, 1200)).is_newer_than(first.newest_s)
    assert first.is_newer_than(first.newest_s + 3600), "a clock that was set back"


# --- batches and outcomes


def test_the_sums_of_batches_are_increases_over_all_workers() -> None:
    found = [offered("a", *STEADY), offered("b", *STEADY)]
    for pod in ("a", "b"):
        found += batches(pod, "x1", (-30, -15, 0), [(10, 0.5), (30, 0.7)])
        found += batches(pod, "x4", (-30, -15, 0), [])
    signals = read(found, workers=2)
    assert isinstance(signals, Signals)
    assert signals.variants["x1"] == BatchSums(4, 80, pytest.approx(2.4), 2000, pytest.approx(52))
    assert signals.variants["x4"] == BatchSums()


def test_outcomes_are_increases_and_unknown_ones_are_left_out() -> None:
    grown = {"met": 90, "late": 3, "refused": 2, "unbounded": 5, "vanished": 77}
    found = [offered("a", *STEADY)]
    for outcome, count in grown.items():
        points = ((-15, 7), (0, 7 + count))
        found.append(series("requests", points, pod="a", instance="a:8080", outcome=outcome))
    signals = read(found)
    assert isinstance(signals, Signals)
    assert signals.outcomes == Outcomes(90, 3, 2, 5)
    assert signals.outcomes.bounded == 95


def test_a_variant_of_a_new_revision_counts_from_where_it_begins() -> None:
    found = [offered("a", *STEADY), *batches("a", "y1", (-5, 0), [(10, 0.5)])]
    signals = read(found)
    assert isinstance(signals, Signals)
    assert signals.variants["y1"].batches == 1


@given(
    st.lists(
        st.builds(
            Series,
            st.dictionaries(st.sampled_from(["__name__", "pod", "instance", "variant", "job"]),
                            st.sampled_from(["a", "b", "", "gnnserve_offered_seeds_total", "gnnserve_batches_total"])),
            st.lists(st.builds(Sample, st.floats(), st.floats()), max_size=6).map(tuple),
        ),
        max_size=8,
    ),
    st.integers(1, 5),
)  # fmt: skip
def test_whatever_comes_is_a_finite_load_or_silence(found: list[Series], workers: int) -> None:
    said = read(found, workers)
    if isinstance(said, Signals):
        assert said.offered_seeds_per_s >= 0
        assert not math.isnan(said.offered_seeds_per_s)


# --- the query and its answer


def test_one_query_names_the_service_its_namespace_and_every_counter() -> None:
    assert build_query("digits", "shop", 15) == (
        '{__name__=~"gnnserve_(batches|batch_seeds|batch_seconds|batch_seeds_squared|batch_seed_seconds|'
        'batch_wait_seconds|offered_seeds|requests)_total",service="digits",namespace="shop"}[310s]'
    )
    assert ',kubernetes_namespace="shop"}[600s]' in build_query("digits", "shop", 900, "kubernetes_namespace")
    assert "namespace" not in build_query("digits", None, 15)


def body(*result: dict[str, object], status: str = "success", kind: str = "matrix") -> bytes:
    return json.dumps({"status": status, "data": {"resultType": kind, "result": result}}).encode()


def test_an_answer_becomes_series() -> None:
    labels = {"__name__": "gnnserve_offered_seeds_total", "pod": "a"}
    parsed = parse_answer(body({"metric": labels, "values": [[1.5, "2"], [2, "+Inf"], [3, "NaN"], [4, "many"]]}))
    assert not isinstance(parsed, Silence)
    (found,) = parsed
    assert found.labels == labels
    assert found.samples[:2] == (Sample(1.5, 2), Sample(2, math.inf))
    assert [math.isnan(sample.value) for sample in found.samples] == [False, False, True, True]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"<!doctype html><title>Sign in</title>", "Is this Prometheus?"),
        (b"", "Is this Prometheus?"),
        (b"[" * 100_000, "Is this Prometheus?"),
        (b"\xff\xfe\x00", "Is this Prometheus?"),
        (b'{"status": "success"}', "refuses the query"),
        (b'{"status": "error", "error": "query timed out in expression evaluation"}', "query timed out in expression"),
        (body(kind="vector"), "'vector' and no matrix"),
        (body({"metric": {}, "values": [[1]]}), "Is this Prometheus?"),
        (body({"metric": {"a": 1}, "values": []}), "Is this Prometheus?"),
    ],
)
def test_an_answer_that_is_none_says_what_came(answer: bytes, words: str) -> None:
    said = parse_answer(answer)
    assert isinstance(said, Silence)
    assert (said.reason, words in said.message) == (Reason.INVALID, True), said.message


def test_each_sum_over_batches_is_added_and_weighted() -> None:
    primes, twice = BatchSums(2, 3, 5, 7, 11, 13), BatchSums(4, 6, 10, 14, 22, 26)
    assert (primes + primes, primes * 2) == (twice, twice)
