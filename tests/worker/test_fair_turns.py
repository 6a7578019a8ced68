"""Two services on one worker in simulated time: one within its share, beside one that is offered three times its own.

The queues, decisions and turns are the worker's own; times of batches are a line with a noise of 10 %, and one in 500
batches stalls. Draws are seeded, so nothing depends on the machine.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.support.batching import ADAPTIVE
from tests.support.serving import profile, variant

from gnnserve_api.objective import Objective
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.choice import VariantChooser
from gnnserve_worker.scheduling.turns import Turns, longest_turn_ms, most_claimed_ms
from gnnserve_worker.scheduling.waiting import Request

LATENCY_MS, MAX_SEEDS, DURATION_MS = 100.0, 1024, 15_000.0
FIXED_MS, SEED_MS = 0.35, 0.0225
BATCH_MS, REQUEST_MS = 0.25, 0.12
"""Reading requests and writing answers, of which no profile knows."""
STALL_SHARE, STALL_MS = 0.002, 15.0
SHARE_PER_MS = MAX_SEEDS / (FIXED_MS + MAX_SEEDS * SEED_MS + BATCH_MS + REQUEST_MS) / 2
"""Seeds that half of the worker answers in batches as large as they may be."""


@dataclass
class Served:
    seeds: int
    """Of each request."""
    batcher: Batcher
    released_ms: float = -math.inf
    worked_ms: float = 0.0
    took_ms: list[float] = field(default_factory=list)
    refused: int = 0


def simulate(shares: list[float], seeds: list[int], *, stalls: bool) -> list[Served]:
    """Services that are offered so much of their shares, in requests of so many seeds."""
    draw = np.random.default_rng(7)
    services = [
        Served(
            each,
            Batcher(VariantChooser(profile(variant("x1", 0.9, FIXED_MS, SEED_MS)), MAX_SEEDS), ADAPTIVE, 8 * MAX_SEEDS),
        )
        for each in seeds
    ]
    arrivals: list[tuple[float, int]] = []
    for place, share in enumerate(shares):
        expected = DURATION_MS * share * SHARE_PER_MS / seeds[place]
        arrivals += [(at_ms, place) for at_ms in draw.uniform(0, DURATION_MS, draw.poisson(expected)).tolist()]
    arrivals.sort(reverse=True)
    turns: Turns[int] = Turns()
    for place in range(len(services)):
        turns.add(place, 1.0)
    keys, objective, now_ms = itertools.count(), Objective(latency_ms=LATENCY_MS), 0.0

    def arrive() -> None:
        while arrivals and arrivals[-1][0] <= now_ms:
            at_ms, place = arrivals.pop()
            served = services[place]
            if served.batcher.admit(Request(next(keys), served.seeds, objective, at_ms), False, at_ms) is not None:
                served.refused += 1

    while True:
        arrive()
        place = turns.next_of(
            [place for place, served in enumerate(services) if served.batcher.waiting], most_claimed_ms([LATENCY_MS])
        )
        if place is None:
            if not arrivals:
                return services
            now_ms = arrivals[-1][0]
            continue
        served, began_ms = services[place], now_ms
        taken = served.batcher.take(now_ms, longest_turn_ms([LATENCY_MS]))
        served.refused += len(taken.refused)
        if (batch := taken.batch) is None:
            continue
        compute_ms = (FIXED_MS + SEED_MS * batch.seeds) * math.exp(0.1 * draw.standard_normal())
        if stalls and draw.random() < STALL_SHARE:
            compute_ms += draw.exponential(STALL_MS)
        now_ms += compute_ms + BATCH_MS + REQUEST_MS * len(batch.pieces)
        arrive()
        served.batcher.finish()
        turns.charge(place, now_ms - began_ms, batch.expected_ms)
        could_begin_ms = max(served.released_ms, min(piece.request.arrived_ms for piece in batch.pieces))
        waited_ms = max([0.0, *(one.released_ms - could_begin_ms for one in services if one is not served)])
        served.batcher.observe(batch, compute_ms, now_ms - could_begin_ms, now_ms, 0.0, waited_ms)
        served.released_ms, served.worked_ms = now_ms, served.worked_ms + now_ms - began_ms
        served.took_ms += [now_ms - piece.request.arrived_ms for piece in batch.pieces if piece.last]


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("others_seeds", [64, 1024])
def test_service_within_its_share_is_in_time_beside_one_that_is_not(others_seeds: int, *, stalls: bool) -> None:
    (alone,) = simulate([0.65], [64], stalls=stalls)
    beside, other = simulate([0.65, 3.0], [64, others_seeds], stalls=stalls)
    assert beside.refused == 0
    assert max(beside.took_ms) <= LATENCY_MS
    p99_ms, alone_p99_ms = np.percentile(beside.took_ms, 99), np.percentile(alone.took_ms, 99)
    assert p99_ms <= 1.6 * alone_p99_ms, "without a claim on what it left it is three to four times as long"
    assert other.worked_ms >= DURATION_MS / 2
    in_time = sum(took_ms <= LATENCY_MS for took_ms in other.took_ms)
    assert in_time >= 0.97 * len(other.took_ms), "what cannot be in time is refused before it is computed"
