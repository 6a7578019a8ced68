"""Present costs of batches, and a worker's capacity: the profile's cost model, corrected by measurements.

An affine cost per variant is fitted where the sizes of batches differ enough; else the profile is scaled. A variant's
measured cost is kept for hours after its last use: otherwise a variant that was left for being slower than profiled
would look fast again, and be taken and left in turns. Published costs change seldom: a cost is published again when it
differs by more than a tenth from the one in use.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gnnserve_api.pods.routing import AffineCost
from gnnserve_routing.signals import BatchSums

Costs = Mapping[str, AffineCost]
"""Cost by variant."""

_MEMORY = 0.5
"""Share of the sums of batches that is kept per tick: a fit rests on about two intervals."""
_HALF_LIFE_S = 3600.0
"""Half-life of the difference between an unused variant's cost and the trend of the used ones."""
_FEWEST_BATCHES = 10
"""Fewest batches of a variant that its cost is derived from."""
_FEWEST_TO_FIT = 50
_LEAST_VARIATION = 0.25
"""Smallest relative standard deviation of seeds per batch that allows fitting a line."""
_MOST_BENT = 2.0
"""A fitted line that differs from the scaled profile by more than this factor, at either end, counts as noise."""
_SLOWEST, _FASTEST = 20.0, 0.1
"""Slowest and fastest plausible machine, relative to the profiled one; a measurement outside is wrong."""
_NOTEWORTHY = 0.10


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Sums kept of the measured batches."""

    sums: Mapping[str, BatchSums] = field(default_factory=dict)
    """Sums of the last ticks by variant, decayed."""
    slowness: float = 1.0
    """Measured over profiled time, of all variants that are used together."""
    costs: Costs = field(default_factory=dict)
    """Costs of the variants that are used, and of those that were: as measured then, scaled since by the drift of those
    in use."""


def remember(
    before: MeasuredCosts, profiled: Costs, new: Mapping[str, BatchSums], max_seeds: int, interval_s: float
) -> MeasuredCosts:
    """Update the measurements by the sums of the last interval, `new`."""
    totals = {name: before.sums.get(name, BatchSums()) * _MEMORY + new.get(name, BatchSums()) for name in profiled}
    sums = {name: of for name, of in totals.items() if of.batches >= 1}
    known = {name: cost for name, cost in before.costs.items() if name in profiled}
    used = {
        name: _estimate(profiled[name], of, max_seeds)
        for name, of in sums.items()
        if of.batches >= _FEWEST_BATCHES and _predicted_s(profiled[name], of) > 0
    }
    if not used:
        is_idle = not any(of.batches > 0 for of in new.values())
        # The slowness of an idle machine is forgotten; a few batches neither confirm nor refute it.
        kept = _MEMORY if is_idle else 1.0
        costs = {name: _between(profiled[name], cost, kept) for name, cost in known.items()}
        return MeasuredCosts(sums, 1 + (before.slowness - 1) * kept, costs)
    slowness = _slowness(profiled, sums, used)
    # Drift of the machine since the last tick; a new variant tells nothing about it.
    drift = _slowness(known, sums, used.keys() & known.keys())
    kept = 0.5 ** (interval_s / _HALF_LIFE_S)
    unused = {
        name: _between(_scaled(profiled[name], slowness), _scaled(cost, drift), kept) for name, cost in known.items()
    }
    return MeasuredCosts(sums, slowness, unused | used)


def estimate_costs(measured: MeasuredCosts, profiled: Costs) -> Costs:
    """Costs of all variants. One that was never used is scaled by the slowness of the used ones, since the machine is
    the same."""
    return {name: measured.costs.get(name) or _scaled(cost, measured.slowness) for name, cost in profiled.items()}


def share_of_time(measured: MeasuredCosts) -> float:
    """The part of a worker's time that batches get where they want it; others that share the worker have the rest."""
    computing_s = sum(of.seconds for of in measured.sums.values())
    waiting_s = sum(of.wait_seconds for of in measured.sums.values())
    return computing_s / (computing_s + waiting_s) if computing_s > 0 else 1.0


def publish_costs(before: Costs, estimated: Costs, profiled: Costs, max_seeds: int) -> Costs:
    """The costs to publish, without variants whose cost is close to the profile's."""
    published = {}
    for name, cost in estimated.items():
        if not _differ(cost, before.get(name, profiled[name]), max_seeds):
            if name in before:
                published[name] = before[name]
        elif _differ(cost, profiled[name], max_seeds):
            published[name] = AffineCost(_rounded(cost.fixed_ms), _rounded(cost.per_seed_ms))
    return published


def capacity_seeds_per_s(cost: AffineCost, latency_ms: float | None, max_seeds: int) -> float:
    """Capacity of one worker when a batch takes at most half of the latency: the other half is for the batch before it.
    0: not even one seed is answered in time."""
    seeds = float(max_seeds)
    if latency_ms is not None:
        if cost.at(1) > latency_ms:
            return 0.0
        if cost.at(seeds) > latency_ms / 2 and cost.per_seed_ms > 0:
            seeds = max((latency_ms / 2 - cost.fixed_ms) / cost.per_seed_ms, 1.0)
    duration_ms = cost.at(seeds)
    return 1000 * seeds / duration_ms if duration_ms > 0 else math.inf


def _estimate(profiled: AffineCost, of: BatchSums, max_seeds: int) -> AffineCost:
    scaled = _scaled(profiled, _plausible(of.seconds / _predicted_s(profiled, of)))
    return _fit(of, scaled, max_seeds) or scaled


def _fit(of: BatchSums, scaled: AffineCost, max_seeds: int) -> AffineCost | None:
    """Fit a line by least squares; None where the batches do not determine one."""
    mean_seeds, mean_s = of.seeds / of.batches, of.seconds / of.batches
    variance = of.seeds_squared / of.batches - mean_seeds**2
    if of.batches < _FEWEST_TO_FIT or variance <= (_LEAST_VARIATION * mean_seeds) ** 2:
        return None
    per_seed_s = (of.seed_seconds / of.batches - mean_seeds * mean_s) / variance
    fixed_s = mean_s - per_seed_s * mean_seeds
    if per_seed_s <= 0 or fixed_s <= 0:
        return None
    fitted = AffineCost(1000 * fixed_s, 1000 * per_seed_s)
    ratios = [fitted.at(seeds) / scaled.at(seeds) for seeds in (1, max_seeds)]
    return fitted if all(1 / _MOST_BENT <= ratio <= _MOST_BENT for ratio in ratios) else None


def _differ(cost: AffineCost, reference: AffineCost, max_seeds: int) -> bool:
    ends = (1, max_seeds)
    return any(abs(cost.at(seeds) - reference.at(seeds)) > _NOTEWORTHY * reference.at(seeds) for seeds in ends)


def _predicted_s(cost: AffineCost, of: BatchSums) -> float:
    return (of.batches * cost.fixed_ms + of.seeds * cost.per_seed_ms) / 1000


def _slowness(costs: Costs, sums: Mapping[str, BatchSums], names: Collection[str]) -> float:
    """Ratio of measured to expected time; 1 where no time is expected."""
    predicted_s = sum(_predicted_s(costs[name], sums[name]) for name in names)
    return _plausible(sum(sums[name].seconds for name in names) / predicted_s) if predicted_s > 0 else 1.0


def _between(low: AffineCost, high: AffineCost, share: float) -> AffineCost:
    """Interpolate: `share` 0 gives `low`, 1 gives `high`."""
    return AffineCost(
        low.fixed_ms + (high.fixed_ms - low.fixed_ms) * share,
        low.per_seed_ms + (high.per_seed_ms - low.per_seed_ms) * share,
    )


def _scaled(cost: AffineCost, factor: float) -> AffineCost:
    return AffineCost(cost.fixed_ms * factor, cost.per_seed_ms * factor)


def _plausible(slowness: float) -> float:
    return min(max(slowness, _FASTEST), _SLOWEST)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
