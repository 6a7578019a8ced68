"""Requests whose overlays count as more than a batch holds: they leave others their time, and lose none of theirs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest
from tests.support.serving.serving import TRADE_OFF

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import VariantChooser

# TRADE_OFF: 1 seed costs x1 10.1, x4 4.04, x8 2.02 ms; a full batch of 100 seeds 20, 8, 4 ms.
OVERLAY = Capabilities(overlay=True)
HEAVY = 1000
"""Load of an overlay: ten full batches, 40 ms by x8 and 200 ms by x1."""
DURATION_MS = 4000.0
CLIENTS = 8
"""Clients that send one heavy overlay after another."""


def batcher() -> Batcher:
    return Batcher(VariantChooser(TRADE_OFF, max_seeds=100), RoutingTable(revision="r", recipe="r"), 65_536)


@dataclass(slots=True)
class Outcomes:
    """What became of small requests, and of the worker's time."""

    asked: int = 0
    in_time: int = 0
    by: dict[str, int] = field(default_factory=dict)
    """Answers in time, by variant."""
    heavy_answered: int = 0
    heavy_ms: float = 0.0
    """Time spent on batches with a heavy overlay."""

    @property
    def share_in_time(self) -> float:
        return self.in_time / self.asked


def stream(small: Objective, heavy: Objective, *, seeds: int = 1, overlay: int = HEAVY) -> Outcomes:
    """Simulate `DURATION_MS` of small requests, one every 2 ms, and of clients with heavy overlays. Each of these sends
    the next as soon as the last was answered, or 20 ms after it was refused. `seeds`: those of a heavy request."""
    queue, outcomes, keys = batcher(), Outcomes(), itertools.count()
    small_keys: dict[int, float] = {}
    ready_ms = [0.0] * CLIENTS
    client_of: dict[int, int] = {}
    next_small_ms, now_ms = 0.0, 0.0

    def arrive_until(limit_ms: float) -> None:
        nonlocal next_small_ms
        while True:
            client = min(range(CLIENTS), key=ready_ms.__getitem__)
            heavy_ms = ready_ms[client]
            if min(next_small_ms, heavy_ms) > limit_ms:
                return
            key = next(keys)
            if heavy_ms < next_small_ms:
                request = Request(key, seeds, heavy, heavy_ms, OVERLAY if overlay else STORED_GRAPH, overlay)
                refusal = queue.admit(request, False, heavy_ms)
                client_of[key] = client
                ready_ms[client] = math.inf if refusal is None else heavy_ms + 20
                continue
            outcomes.asked += 1
            small_keys[key] = next_small_ms + (small.latency_ms or 0)
            queue.admit(Request(key, 1, small, next_small_ms), False, next_small_ms)
            next_small_ms += 2

    while now_ms < DURATION_MS:
        arrive_until(now_ms)
        taken = queue.take(now_ms)
        for request, _ in taken.refused:
            if request.key in client_of:
                ready_ms[client_of[request.key]] = now_ms + 20
        batch = taken.batch
        if batch is None:
            now_ms = min(next_small_ms, *ready_ms)
            continue
        end_ms = now_ms + batch.predicted_ms
        arrive_until(end_ms)
        if batch.load > batch.seeds:
            outcomes.heavy_ms += batch.predicted_ms
        now_ms = end_ms
        queue.finish()
        for piece in batch.pieces:
            key = piece.request.key
            if key in client_of and piece.last:
                outcomes.heavy_answered += 1
                ready_ms[client_of[key]] = now_ms
            elif key in small_keys and now_ms <= small_keys[key]:
                outcomes.in_time += 1
                outcomes.by[batch.variant] = outcomes.by.get(batch.variant, 0) + 1
    return outcomes


@pytest.mark.campaign
@pytest.mark.parametrize("seeds", [1, 40, 100, 250])
@pytest.mark.parametrize(
    ("heavy", "in_time", "answers"),
    [
        pytest.param(Objective(latency_ms=60), 0.98, 8, id="as urgent, 40 ms by x8"),
        pytest.param(Objective(latency_ms=300), 0.98, 7, id="less urgent"),
        pytest.param(Objective(None, 30), 0.98, 7, id="without a deadline, by the fastest"),
        pytest.param(NO_OBJECTIVE, 0.75, 0, id="without an objective, 200 ms by x1: a fourth of the time at most"),
    ],
)
def test_small_requests_beside_heavy_overlays_are_in_time(
    heavy: Objective, in_time: float, answers: int, seeds: int
) -> None:
    outcomes = stream(Objective(latency_ms=60), heavy, seeds=seeds)
    assert outcomes.share_in_time >= in_time
    assert outcomes.heavy_answered >= answers


@pytest.mark.parametrize("heavy", [Objective(latency_ms=60), Objective(None, 30), NO_OBJECTIVE], ids=str)
def test_small_requests_too_urgent_to_wait_for_a_heavy_overlay_keep_most_of_the_time(heavy: Objective) -> None:
    outcomes = stream(Objective(latency_ms=20), heavy)
    assert outcomes.share_in_time >= 0.75
    assert outcomes.heavy_ms <= 0.27 * DURATION_MS
    assert outcomes.heavy_answered >= 4


def test_small_requests_get_a_more_accurate_variant_than_the_fastest_beside_heavy_overlays() -> None:
    outcomes = stream(Objective(latency_ms=60), Objective(latency_ms=60))
    assert outcomes.by.get("x8", 0) <= 0.02 * outcomes.asked


def test_overlays_just_below_a_full_batch_are_ordinary_requests_of_as_many_seeds() -> None:
    small = Objective(latency_ms=60)
    overlays = stream(small, Objective(latency_ms=60), overlay=98)
    seeds = stream(small, Objective(latency_ms=60), overlay=0, seeds=99)
    assert (overlays.in_time, overlays.by) == (seeds.in_time, seeds.by)
    # They are a group of their own, since their costs may differ, and so are not decided by the same sums.
    assert overlays.heavy_answered == pytest.approx(seeds.heavy_answered, rel=0.02)


def test_heavy_overlays_alone_have_the_worker_to_themselves() -> None:
    queue = batcher()
    for key in range(5):
        assert queue.admit(Request(key, 1, Objective(latency_ms=250), 0, OVERLAY, HEAVY), False, 0) is None
    now_ms, variants = 0.0, []
    while (batch := queue.take(now_ms).batch) is not None:
        variants.append(batch.variant)
        now_ms += batch.predicted_ms
        queue.finish()
    assert (len(variants), now_ms <= 250) == (5, True)


def test_a_heavy_overlay_that_was_refused_is_told_why_and_when_to_come_again() -> None:
    queue = batcher()
    for now_ms in range(300):
        queue.admit(Request(now_ms, 1, Objective(latency_ms=20), now_ms), False, now_ms)
        queue.take(now_ms)
        queue.finish()
    heavy = [queue.admit(Request(key, 1, NO_OBJECTIVE, 300, OVERLAY, HEAVY), False, 300) for key in (1000, 1001)]
    assert heavy[0] is None
    refusal = heavy[1]
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.QUEUE_FULL, 1)
    assert "the overlay counts as 1,000 nodes, no less than a full batch of 100" in refusal.message
    assert "requests with a deadline" in refusal.message
