"""A soak: what is sent, and what is made of a run."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest
from benchmarks.load.soak import (
    MEMORY_GROWTH_MIB,
    MIX,
    Minute,
    SizeLatency,
    build_mixed,
    judge,
    latencies_by_size,
    summarize_memory,
    summarize_sizes,
)

from gnnserve_api.http.protocol import PredictRequest
from gnnserve_api.limits import DEFAULT_BATCHING
from gnnserve_cli.loadgen.record import RequestRows
from gnnserve_client.address import Endpoint

CALM = Minute(
    answers=1000, p50_ms=1.0, p99_ms=4.0, max_ms=9.0, lag_p99_ms=0.1, errors={}, rss_mib=500.0, anonymous_mib=80.0,
    most_anonymous_mib=85.0, by_size=(),
)  # fmt: skip


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


def test_some_requests_are_split_into_several_batches_and_none_is_too_large() -> None:
    largest = max(seeds for seeds, _ in MIX)
    assert DEFAULT_BATCHING.max_seeds < largest < DEFAULT_BATCHING.max_queued_seeds
    assert sum(permille for _, permille in MIX) == 1000


def test_a_request_has_as_many_nodes_as_its_size_says() -> None:
    requests = build_mixed(Endpoint("127.0.0.1", 1), 10_000)
    sent = [
        msgspec.json.decode(request.partition(b"\r\n\r\n")[2], type=PredictRequest[int])
        for request in requests.payloads
    ]
    assert [len(request.nodes) for request in sent] == [requests.seeds_of(number) for number in range(1000)]
    assert sorted(requests.sizes) == [seeds for seeds, permille in MIX for _ in range(permille)]


def test_latencies_are_kept_apart_by_size_and_failures_are_no_latencies() -> None:
    rows = RequestRows()
    for seeds, latency_ms in ((1, 2.0), (8192, 60.0), (1, 1.0), (1, math.nan), (1, 3.0)):
        rows.add(0.0, latency_ms, 0, seeds, last_try_ms=latency_ms)
    assert summarize_sizes(latencies_by_size(rows)) == (SizeLatency(1, 3, 2.0, 3.0), SizeLatency(8192, 1, 60.0, 60.0))


def test_memory_is_that_of_the_first_minute_of_the_last_and_the_most_between() -> None:
    minutes = [CALM, replace(CALM, most_anonymous_mib=120.0), replace(CALM, anonymous_mib=82.0)]
    memory = summarize_memory(minutes)
    assert (memory.first_minute_mib, memory.end_mib, memory.most_mib) == (80.0, 82.0, 120.0)
