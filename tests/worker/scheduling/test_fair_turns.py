"""Services on one worker in simulated time: within their shares and beyond, with bursts, short and long latencies.

The queues, decisions and turns are the worker's own; times of batches are a line with a noise of 10 %, and one in 500
batches stalls. As in the engine's thread, what is charged is the computation alone. Draws are seeded, so nothing
depends on the machine.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.support.serving.batching import ADAPTIVE
from tests.support.serving.serving import profile, variant

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.turns import Turns, longest_turn_ms, most_claimed_ms
from gnnserve_worker.scheduling.variants import VariantChooser

LATENCY_MS, MAX_SEEDS = 100.0, 1024
FIXED_MS, SEED_MS = 0.35, 0.0225
BATCH_MS, REQUEST_MS = 0.25, 0.12
"""Reading requests and writing answers, of which no profile knows."""
STALL_SHARE, STALL_MS = 0.002, 15.0
SHARE_PER_MS = MAX_SEEDS / (FIXED_MS + MAX_SEEDS * SEED_MS + BATCH_MS + REQUEST_MS) / 2
"""Seeds that half of the worker answers in batches as large as they may be."""
TABLE_EVERY_MS = 1000.0


@dataclass(frozen=True)
class Offered:
    share: float
    """Load, as a part of what half of the worker can do."""
    seeds: int
    """How many each request has."""
    latency_ms: float | None = LATENCY_MS
    burst_every_ms: float = 0.0
    """Its requests come together so often; 0: one by one, at random."""
    fixed_ms: float = FIXED_MS
    faster: float = 1.0
    """How many times as fast a second variant is, which is less accurate; 1: there is none."""
    weight: float = 1.0


@dataclass
class Served:
    offered: Offered
    chooser: VariantChooser
    batcher: Batcher
    released_ms: float = -math.inf
    worked_ms: float = 0.0
    took_ms: list[float] = field(default_factory=list)
    refused: int = 0
    sizes: list[int] = field(default_factory=list)
    """Seeds of each batch."""
    accurate: int = 0
    """Answers by the most accurate variant."""
    sums: list[tuple[int, float]] = field(default_factory=list)
    """Seeds and time of each batch since its costs were measured last."""

    @property
    def lost(self) -> float:
        """Requests that were refused or late, of all."""
        late = sum(took_ms > (self.offered.latency_ms or math.inf) for took_ms in self.took_ms)
        return (late + self.refused) / (len(self.took_ms) + self.refused)


def _serve(offered: Offered) -> Served:
    variants = [variant("x1", 0.9, offered.fixed_ms, SEED_MS)]
    if offered.faster > 1:
        variants.append(variant("x2", 0.8, offered.fixed_ms, SEED_MS / offered.faster))
    chooser = VariantChooser(profile(*variants), MAX_SEEDS)
    return Served(offered, chooser, Batcher(chooser, ADAPTIVE, 8 * MAX_SEEDS))


@functools.cache
def simulate(
    *offers: Offered, duration_ms: float = 5000.0, stalls: bool = False, tables: bool = False
) -> tuple[Served, ...]:
    """Serve what is offered. `tables`: costs are measured and published every second, by what batches took."""
    draw = np.random.default_rng(1)
    services = [_serve(offered) for offered in offers]
    arrivals: list[tuple[float, int]] = []
    for place, offered in enumerate(offers):
        expected = duration_ms * offered.share * SHARE_PER_MS / offered.seeds
        if offered.burst_every_ms:
            bursts = np.arange(offered.burst_every_ms / 2, duration_ms, offered.burst_every_ms)
            at = np.repeat(bursts, max(1, round(expected / len(bursts))))
        else:
            at = draw.uniform(0, duration_ms, draw.poisson(expected))
        arrivals += [(at_ms, place) for at_ms in at.tolist()]
    arrivals.sort(reverse=True)
    turns: Turns[int] = Turns()
    for place, offered in enumerate(offers):
        turns.add(place, offered.weight)
    others_ms = [[o.latency_ms for other, o in enumerate(offers) if other != place] for place in range(len(offers))]
    claims_ms = [most_claimed_ms(o.latency_ms, others) for o, others in zip(offers, others_ms, strict=True)]
    keys, now_ms, idle_since_ms, table_ms = itertools.count(), 0.0, 0.0, TABLE_EVERY_MS

    def arrive() -> None:
        while arrivals and arrivals[-1][0] <= now_ms:
            at_ms, place = arrivals.pop()
            served = services[place]
            request = Request(next(keys), served.offered.seeds, Objective(served.offered.latency_ms), at_ms)
            served.refused += served.batcher.admit(request, False, at_ms) is not None

    while True:
        arrive()
        waiting = {place: claims_ms[place] for place, served in enumerate(services) if served.batcher.queue.group_of}
        if not waiting:
            if not arrivals:
                return tuple(services)
            now_ms = arrivals[-1][0]
            continue
        if idle_since_ms < math.inf:
            turns.pass_idle(now_ms - idle_since_ms)
            idle_since_ms = math.inf
        place = turns.next_of(waiting)
        assert place is not None
        served, began_ms = services[place], now_ms
        taken = served.batcher.take(now_ms, longest_turn_ms(others_ms[place]))
        served.refused += len(taken.refused)
        if (batch := taken.batch) is None:
            continue
        faster = 1.0 if batch.variant == "x1" else served.offered.faster
        compute_ms = served.offered.fixed_ms + SEED_MS / faster * batch.seeds
        compute_ms *= math.exp(0.1 * draw.standard_normal())
        if stalls and draw.random() < STALL_SHARE:
            compute_ms += draw.exponential(STALL_MS)
        now_ms += compute_ms + BATCH_MS + REQUEST_MS * len(batch.pieces)
        arrive()
        served.batcher.finish()
        turns.charge(place, compute_ms, batch.expected_ms)
        if not any(one.batcher.queue.group_of for one in services):
            idle_since_ms = now_ms
        ready_ms = max(served.released_ms, min(piece.request.arrived_ms for piece in batch.pieces))
        waited_ms = max([0.0, *(one.released_ms - ready_ms for one in services if one is not served)])
        took_ms = now_ms - ready_ms - waited_ms
        served.batcher.observe(batch, compute_ms, took_ms, now_ms, 0.0, waited_ms)
        served.sums.append((batch.seeds, took_ms))
        served.released_ms, served.worked_ms = now_ms, served.worked_ms + now_ms - began_ms
        served.sizes.append(batch.seeds)
        ended = [now_ms - piece.request.arrived_ms for piece in batch.pieces if piece.last]
        served.took_ms += ended
        served.accurate += len(ended) if batch.variant == "x1" else 0
        if tables and now_ms >= table_ms:
            table_ms += TABLE_EVERY_MS
            for one in services:
                _publish(one)


def _publish(served: Served) -> None:
    """The profile, scaled to what batches took, as the slow loop does where it can fit no line."""
    if not served.sums:
        return
    profiled_ms = sum(served.offered.fixed_ms + SEED_MS * seeds for seeds, _ in served.sums)
    slowness = sum(took_ms for _, took_ms in served.sums) / profiled_ms
    served.chooser.costs.use({0: AffineCost(slowness * served.offered.fixed_ms, slowness * SEED_MS)})
    served.chooser.refresh()
    served.sums.clear()


@pytest.mark.parametrize(
    ("others_seeds", "stalls", "tables"),
    [(64, False, False), (1024, False, False), (64, True, False), (64, False, True)],
)
def test_service_within_its_share_is_in_time_beside_one_that_is_not(
    others_seeds: int, stalls: bool, tables: bool
) -> None:
    within, beyond = Offered(0.65, 64), Offered(3.0, others_seeds)
    (alone,) = simulate(within, duration_ms=10_000.0, stalls=stalls)
    beside, other = simulate(within, beyond, duration_ms=10_000.0, stalls=stalls, tables=tables)
    assert beside.lost == 0
    p99_ms, alone_p99_ms = np.percentile(beside.took_ms, 99), np.percentile(alone.took_ms, 99)
    assert p99_ms <= 1.6 * alone_p99_ms, "without a claim on what it left it is three to four times as long"
    assert other.worked_ms >= 10_000.0 / 2
    in_time = sum(took_ms <= LATENCY_MS for took_ms in other.took_ms)
    assert in_time >= 0.97 * len(other.took_ms), "what cannot be in time is refused before it is computed"


@pytest.mark.parametrize(("weight", "share"), [(3.0, 1.0), (1 / 3, 0.3)])
def test_weight_says_how_much_of_the_worker_a_service_may_use_and_be_in_time(weight: float, share: float) -> None:
    within, beyond = Offered(share, 64, weight=weight), Offered(3.0, 64)
    assert share / 2 < weight / (weight + 1)
    (alone,) = simulate(within, duration_ms=10_000.0)
    beside, other = simulate(within, beyond, duration_ms=10_000.0)
    assert beside.lost == 0
    assert np.percentile(beside.took_ms, 99) <= 2 * np.percentile(alone.took_ms, 99)
    assert other.worked_ms >= 10_000.0 / (weight + 1)


def test_services_beyond_their_shares_divide_the_worker_by_their_weights() -> None:
    heavy, light = simulate(Offered(3.0, 64, weight=3.0), Offered(3.0, 64), duration_ms=10_000.0)
    assert heavy.worked_ms / light.worked_ms == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize(("share", "bursting_ms"), [(0.05, LATENCY_MS), (0.05, 80.0), (0.2, 30_000.0), (0.2, None)])
def test_services_within_their_shares_do_not_hold_each_other_up(share: float, bursting_ms: float | None) -> None:
    """One that was idle may not claim what it left of a service that has left as much."""
    steady = Offered(0.6, 64, 50.0)
    beside, bursting = simulate(steady, Offered(share, 512, bursting_ms, burst_every_ms=1000.0))
    assert beside.lost == 0
    assert max(beside.took_ms) <= 30, "turns of 2.5 ms, one by one"
    assert bursting.refused == 0


def test_two_idle_services_hold_up_a_third_no_longer_than_one_would() -> None:
    burst = Offered(0.05, 512, burst_every_ms=1000.0)
    *bursting, beyond = simulate(burst, burst, Offered(2.0, 64))
    assert [one.lost for one in bursting] == [0, 0]
    assert beyond.worked_ms >= 5000.0 / 2
    in_time = sum(took_ms <= LATENCY_MS for took_ms in beyond.took_ms)
    assert in_time >= 0.97 * len(beyond.took_ms)


def test_service_steps_down_to_a_faster_variant_under_the_load_of_others() -> None:
    offered = Offered(1.1, 64, 50.0, faster=4.0)
    (alone,) = simulate(offered)
    beside, _ = simulate(offered, Offered(3.0, 64, 50.0))
    assert alone.lost == 0
    assert alone.accurate > 0.95 * len(alone.took_ms)
    assert beside.lost < 0.01
    assert beside.accurate < 0.6 * len(beside.took_ms)


@pytest.mark.parametrize("fixed_ms", [0.5, 1.0, 2.0, 4.0])
def test_batches_hold_more_than_a_request_whatever_each_of_them_costs(fixed_ms: float) -> None:
    """A turn is 2 ms beside a promise of 40 ms, and a batch of one seed takes as long."""
    _, served = simulate(Offered(0.2, 8, 40.0), Offered(1.0, 8, None, fixed_ms=fixed_ms), duration_ms=2000.0)
    assert np.median(served.sizes) > 30
