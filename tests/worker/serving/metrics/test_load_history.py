"""Counters of the last minutes: what is kept, for how long, and from when on."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.profiles import revision_manifest

from gnnserve_worker.serving.metrics.counters import LATENCY_BUCKETS_S, RequestCounters
from gnnserve_worker.serving.metrics.load_history import INTERVAL_S, KEPT_S, LoadHistory
from gnnserve_worker.serving.metrics.metrics import ServingMetrics


def test_samples_are_what_was_counted_by_then() -> None:
    metrics, clock_s = ServingMetrics("digits"), [100.0]
    metrics.show_revision(revision_manifest(), load_s=0.5)
    first, second, *_ = metrics.counters.variants
    history = LoadHistory(metrics.counters, lambda: clock_s[0])
    history.take()
    metrics.counters.observe_answer(first, 0.1, 0.2, None)
    metrics.counters.observe_answer(second, 0.1, 20_000.0, 5.0)
    metrics.counters.count_refused("QueueFull")
    metrics.counters.offered_seeds += 7
    clock_s[0] = 104.0
    history.take()
    clock_s[0] = 105.0
    told = history.describe("digits")
    assert [sample.age_ms for sample in told.samples] == [5000.0, 1000.0]
    before, after = told.samples
    assert (sum(before.latency_counts), before.offered_seeds) == (0, 0)
    assert {name: count for name, count in after.answers.items() if count} == {first: 1, second: 1}
    assert after.outcomes == {"met": 0, "late": 1, "refused": 1, "unbounded": 1}
    assert after.offered_seeds == 7
    ends = [*told.latency_ends_ms, float("inf")]
    assert [end for end, count in zip(ends, after.latency_counts, strict=True) if count] == [0.25, float("inf")]


def test_a_worker_without_a_revision_has_samples_of_nothing() -> None:
    history = LoadHistory(RequestCounters())
    history.take()
    (sample,) = history.describe("digits").samples
    assert (sample.answers, sample.latency_counts) == ({}, [0] * (len(LATENCY_BUCKETS_S) + 1))


def test_five_minutes_are_kept_and_no_more() -> None:
    clock_s = [0.0]
    history = LoadHistory(RequestCounters(), lambda: clock_s[0])
    for _ in range(200):
        history.take()
        clock_s[0] += INTERVAL_S
    ages_s = [sample.age_ms / 1000 for sample in history.describe("digits").samples]
    assert ages_s[0] == pytest.approx(KEPT_S, abs=INTERVAL_S)
    assert ages_s == sorted(ages_s, reverse=True)


def test_samples_are_taken_until_it_is_stopped() -> None:
    async def run() -> int:
        history = LoadHistory(RequestCounters())
        history.start()
        history.stop()
        return len(history.describe("digits").samples)

    assert asyncio.run(run()) == 1
