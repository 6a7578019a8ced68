"""The cost model of batches on this worker: the profile, or the operator's measurement, corrected by measured batches.

It is pure: durations and times are arguments. Variants are indices, in the order in which the model was given them.

The expected time of a batch of s seeds from n requests by variant v is

    machine / anchor[v] · own[v] · curve[v](s)  +  overhead(n)

- `curve`: the profile's medians, linear between the measured sizes. A routing table's affine cost takes its place.
- `machine`: how much slower this machine is than that of the profile. Every batch corrects it, for all variants.
- `own`: the variant's own correction beyond that. It returns to 1 while the variant is not used: otherwise an error
  would keep the variant unused, and so never be corrected.
- `anchor`: `machine` as it was when the table's cost came, which was measured on this machine; 1 for a profile.
- `overhead`: reading requests and writing answers, which no profile contains. A table's cost contains it already.

`margin` is added to predictions that a promise depends on: it follows the deviation of batches from their expectation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from gnnserve_api.profile import VariantProfile
from gnnserve_api.routing import AffineCost

LEAST_MARGIN = 0.08
"""Smallest margin, found by simulation: enough for noise of 5 %."""
_MOST_MARGIN = 0.5
_MARGIN_PER_DEVIATION = 1.75
"""Margin per mean absolute deviation: covers nine of ten batches if deviations are normal."""
_DEVIATION_MEMORY_MS = 2000.0
"""Memory of the deviation, in working time and not in batches: under load the long batches matter, and small ones,
whose times vary more, would outnumber them."""
_MOST_DEVIATION_GAIN = 0.1
_MACHINE_GAIN = 0.08
_OWN_GAIN = 0.04
_FIRST_BATCHES = 8
"""The first batches, which correct by more."""
_LARGEST_STEP = 2.0
"""A batch that took more than twice, or less than half, of what was expected counts as that: a stall is no drift."""
_OVERLAY_GAIN = 0.05
"""Share of a batch in what overlays are expected to count, where it takes that down. Up it goes at once, since a batch
that takes longer than expected makes others late."""
_FORGET_MS = 30_000.0
_FORGET_EVERY_MS = 250.0
_PROVEN_BATCHES = 20
"""Batches whose mean is reliable enough to base a promise on."""
_LEAST_GAIN = 0.05
_LEAST_MS = 1e-6
"""Smallest expected time of a batch, so that no expectation is 0."""
_TELLING_MS = 0.25
"""Shortest batch, by the profile, that tells how fast the machine is. A shorter one's excess is rather the fixed cost
of every batch: threads that wake up, caches that the profile found warm."""

_Segment = tuple[float, float, float, float]
"""A segment of a curve: its largest number of seeds, then its start (seeds, ms) and its slope in ms per seed."""


class CostModel:
    """The costs of one revision's variants. Belongs to one thread."""

    def __init__(self, variants: Sequence[VariantProfile], max_seeds: int, before: CostModel | None = None) -> None:
        """`max_seeds`: larger requests run, and cost, as several batches. `before`: the model of the revision that this
        machine served until now."""
        self.max_seeds = max_seeds
        self.margin: float = LEAST_MARGIN if before is None else before.margin
        self.overhead: Overhead = Overhead() if before is None else before.overhead
        self.overlay_share = 1.0
        """What overlays count as, as a share of the most that they may (`load.py`)."""
        self.factors = [1.0] * len(variants)
        """Current factor of each variant's curve."""
        self._profiled = [_segments(variant) for variant in variants]
        self._fitted = [_fit(variant) for variant in variants]
        self._measured: list[AffineCost | None] = [None] * len(variants)
        self._curves: list[tuple[_Segment, ...]] = []
        self._stretched: list[tuple[_Segment, ...]] = []
        """Curves up to a full batch, extended beyond it with the average slope of a full batch."""
        self._full_ms: list[float] = []
        """Time of a full batch of each variant, uncorrected."""
        self._machine: float = 1.0 if before is None else before._machine
        self._least_machine: float = 1.0 if before is None else before._least_machine
        """The smallest `machine` ever proven; at most 1."""
        self._own = [1.0] * len(variants)
        self._anchors = [1.0] * len(variants)
        self._lowest = [self._least_machine] * len(variants)
        """The smallest factor of each profile curve ever proven, by batches or tables; at most 1."""
        self._batches = [0] * len(variants)
        self._all_batches: int = 0 if before is None else before._all_batches
        self._deviation: float = LEAST_MARGIN / _MARGIN_PER_DEVIATION if before is None else before._deviation
        self._forgot_ms = -math.inf
        self._use_curves()
        self._profiled_full_ms = list(self._full_ms)

    # Predictions

    def base_ms(self, variant: int, seeds: float) -> float:
        """Time of a batch, uncorrected and without the overhead of requests."""
        if seeds > self.max_seeds:
            full_batches, rest = divmod(seeds, self.max_seeds)
            full_ms = full_batches * self._full_ms[variant]
            return full_ms + self.base_ms(variant, rest) if rest else full_ms
        for end, low_seeds, low_ms, slope in self._curves[variant]:
            if seeds <= end:
                return low_ms + slope * (seeds - low_seeds)
        raise AssertionError(f"{seeds} seeds are beyond the curve of variant {variant}")

    def compute_ms(self, variant: int, seeds: float) -> float:
        """Expected time of a batch without the overhead of requests, which only a table's cost includes."""
        return self.factors[variant] * self.base_ms(variant, seeds)

    def batch_ms(self, variant: int, seeds: float, requests: float) -> float:
        """Expected time of a batch that does not wait, from reading its first request to writing its last answer."""
        batch_ms = self.factors[variant] * self.base_ms(variant, seeds)
        if self._measured[variant] is None:
            batch_ms += self.overhead.fixed_ms + self.overhead.per_request_ms * requests
        return batch_ms

    def overhead_ms(self, variant: int, requests: float) -> float:
        """Expected overhead that `compute_ms` does not include."""
        return 0.0 if self._measured[variant] is not None else self.overhead.at(requests)

    def stretched_ms(self, variant: int, seeds: float) -> float:
        """As `compute_ms`, as if one batch could hold all seeds: how the rest will be batched is not known yet."""
        for end, low_seeds, low_ms, slope in self._stretched[variant]:
            if seeds <= end:
                return self.factors[variant] * (low_ms + slope * (seeds - low_seeds))
        raise AssertionError(f"{seeds} seeds are beyond the curve of variant {variant}")

    def seeds_within(self, variant: int, time_ms: float, requests_per_seed: float) -> int:
        """Most seeds, up to a full batch, that take at most `time_ms`; 0 where even one takes longer."""
        low, high = 0, self.max_seeds
        while low < high:
            middle = (low + high + 1) // 2
            if self.batch_ms(variant, middle, middle * requests_per_seed) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def least_ms(self, variant: int, seeds: int) -> float:
        """Time of one request on an idle worker, at the best speed ever proven here.

        It only ever falls, so that a slow spell does not make an objective look infeasible for good.
        """
        profiled, profiled_ms = self._profiled[variant], 0.0
        if seeds > self.max_seeds:
            full_batches, seeds = divmod(seeds, self.max_seeds)
            profiled_ms = full_batches * self._profiled_full_ms[variant]
        if seeds:
            profiled_ms += _at(profiled, seeds)
        return self._lowest[variant] * profiled_ms + self.overhead.least_ms

    def computing_ms(self, variant: int, seeds: float) -> float:
        """Expected time of the computation alone, even where a table's cost includes more."""
        if self._measured[variant] is None:
            return self.compute_ms(variant, seeds)
        return self._machine * _at(self._profiled[variant], seeds)

    def seed_ms(self, variant: int) -> float:
        """Expected time of one seed more, over the sizes of batches."""
        factor, more = self.factors[variant], max(1, self.max_seeds - 1)
        return max(_LEAST_MS, factor * (self._full_ms[variant] - self.base_ms(variant, 1)) / more)

    def profiled(self, variant: int) -> AffineCost:
        return self._fitted[variant]

    def expected(self, variant: int) -> AffineCost:
        """The profile's cost, or the table's, corrected by measured batches."""
        cost = self._measured[variant] or self._fitted[variant]
        factor = self.factors[variant]
        return AffineCost(fixed_ms=factor * cost.fixed_ms, per_seed_ms=factor * cost.per_seed_ms)

    # Corrections

    def use(self, costs: Mapping[int, AffineCost]) -> None:
        """Use a routing table's costs, by variant. A new cost resets the variant's own correction."""
        if len(costs) == len(self._measured) and not self._all_batches:
            # Should the table expire, this is all that is known about the machine.
            self._machine = median(
                cost.at(self.max_seeds) / self._profiled_full_ms[variant] for variant, cost in costs.items()
            )
        for variant in range(len(self._measured)):
            cost = costs.get(variant)
            if cost != self._measured[variant]:
                self._measured[variant] = cost
                self._own[variant] = 1.0
                self._anchors[variant] = 1.0 if cost is None else self._machine
                self._batches[variant] = 0
                self._lowest[variant] = min(self._lowest[variant], self._over_profile(variant))
        self._use_curves()

    def observe(
        self, variant: int, seeds: int, requests: int, compute_ms: float, total_ms: float, now_ms: float
    ) -> None:
        """Record what a batch took: its computation, and in all, from when it could have begun to its last answer."""
        measured = self._measured[variant] is not None
        took_ms = total_ms if measured else compute_ms
        expected_ms = self.compute_ms(variant, seeds)
        ratio = took_ms / expected_ms
        step = min(max(ratio, 1 / _LARGEST_STEP), _LARGEST_STEP) - 1
        if now_ms - self._forgot_ms > _FORGET_EVERY_MS:
            self._forget(now_ms)
        if measured or self.base_ms(variant, seeds) >= _TELLING_MS:
            self._correct(variant, step)
            overhead_ms = total_ms - compute_ms
        else:
            overhead_ms = total_ms - expected_ms
        if measured:
            deviation = abs(ratio - 1)
        else:
            deviation = abs(total_ms / (expected_ms + self.overhead.at(requests)) - 1)
            self.overhead.observe(requests, overhead_ms)
        gain = min(total_ms / _DEVIATION_MEMORY_MS, _MOST_DEVIATION_GAIN)
        self._deviation += gain * (min(deviation, 1.0) - self._deviation)
        self.margin = min(max(LEAST_MARGIN, _MARGIN_PER_DEVIATION * self._deviation), _MOST_MARGIN)

    def observe_overlays(self, assumed: int, counted: float) -> None:
        """Record what the overlays of a batch counted as, in seeds, where so much (not 0) was assumed."""
        share = self.overlay_share
        found = min(1.0, share * counted / assumed)
        self.overlay_share = max(found, share + _OVERLAY_GAIN * (found - share))

    def _correct(self, variant: int, step: float) -> None:
        self._machine *= 1 + _MACHINE_GAIN * _hurry(self._all_batches) * step
        self._own[variant] *= 1 + _OWN_GAIN * _hurry(self._batches[variant]) * step
        self._all_batches += 1
        self._batches[variant] += 1
        machine = self._machine
        self.factors = [machine / anchor * own for anchor, own in zip(self._anchors, self._own, strict=True)]
        if self._all_batches >= _PROVEN_BATCHES:
            self._least_machine = min(self._least_machine, machine)
        if self._batches[variant] >= _PROVEN_BATCHES:
            proven = self.factors[variant] * self._over_profile(variant)
            self._lowest[variant] = min(self._lowest[variant], proven)

    def _over_profile(self, variant: int) -> float:
        """A table's cost as a factor of the profile's curve; the largest, where it depends on the size."""
        cost = self._measured[variant]
        if cost is None:
            return 1.0
        one_ms, full_ms = _at(self._profiled[variant], 1), self._profiled_full_ms[variant]
        return max(cost.at(1) / one_ms, cost.at(self.max_seeds) / full_ms)

    def _forget(self, now_ms: float) -> None:
        if self._forgot_ms > -math.inf:
            keep = math.exp((self._forgot_ms - now_ms) / _FORGET_MS)
            self._own = [1 + keep * (own - 1) for own in self._own]
        self._forgot_ms = now_ms

    def _use_curves(self) -> None:
        self._curves = [
            profiled if measured is None else ((math.inf, 0.0, measured.fixed_ms, measured.per_seed_ms),)
            for profiled, measured in zip(self._profiled, self._measured, strict=True)
        ]
        self._full_ms = [self.base_ms(variant, self.max_seeds) for variant in range(len(self._curves))]
        self._stretched = [
            _stretch(curve, self.max_seeds, full_ms) for curve, full_ms in zip(self._curves, self._full_ms, strict=True)
        ]
        machine = self._machine
        self.factors = [machine / anchor * own for anchor, own in zip(self._anchors, self._own, strict=True)]


class Overhead:
    """Overhead of a batch beyond its computation: a fixed part, and a part for each request.

    It is a line through recent batches. While all batches have the same number of requests, the requests explain all of
    it.
    """

    __slots__ = (
        "_mean_ms", "_mean_product", "_mean_requests", "_mean_squared", "_recent", "_single_ms", "_singles", "_weight",
        "fixed_ms", "least_ms", "per_request_ms",
    )  # fmt: skip

    _MEMORY_BATCHES = 200.0
    _RECENT_BATCHES = 8
    _REPEATED = 3
    """An overhead that this many recent batches reached is not an outlier, and counts in full."""
    _ORDINARY_MS = 0.05
    """An overhead up to twice this is never an outlier; until the first batch nothing else is known."""
    _TOWARDS_MEAN = 0.25
    """Weight, in requests², of the assumption that requests explain all."""

    def __init__(self) -> None:
        self.fixed_ms = 0.0
        self.per_request_ms = 0.0
        self.least_ms = 0.0
        """Smallest overhead of a single request; 0 until it is known."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=self._RECENT_BATCHES)
        """Requests and overhead (ms, not limited) of the recent batches."""
        self._weight = 0.0
        self._mean_requests = 0.0
        self._mean_ms = 0.0
        self._mean_squared = 0.0
        self._mean_product = 0.0
        self._single_ms = 0.0
        self._singles = 0

    def at(self, requests: float) -> float:
        return self.fixed_ms + self.per_request_ms * requests

    def observe(self, requests: int, took_ms: float) -> None:
        took_ms = max(0.0, took_ms)
        self._recent.append((requests, took_ms))
        took_ms = self._limited(requests, took_ms)
        self._weight = min(self._weight + 1, self._MEMORY_BATCHES)
        gain = 1 / self._weight
        self._mean_requests += gain * (requests - self._mean_requests)
        self._mean_ms += gain * (took_ms - self._mean_ms)
        self._mean_squared += gain * (requests * requests - self._mean_squared)
        self._mean_product += gain * (requests * took_ms - self._mean_product)
        mean = self._mean_requests
        ratio = self._mean_ms / mean
        slope = (self._mean_product - mean * self._mean_ms + self._TOWARDS_MEAN * ratio) / (
            self._mean_squared - mean * mean + self._TOWARDS_MEAN
        )
        self.per_request_ms = min(max(0.0, slope), ratio)
        self.fixed_ms = self._mean_ms - self.per_request_ms * mean
        if requests == 1:
            self._observe_single(took_ms)

    def _expected_ms(self, requests: int) -> float:
        return max(self.at(requests), self._ORDINARY_MS)

    def _limited(self, requests: int, took_ms: float) -> float:
        """An outlier counts as at most twice what is expected; an overhead that repeats itself is the new one."""
        expected_ms = self._expected_ms(requests)
        if took_ms <= _LARGEST_STEP * expected_ms:
            return took_ms
        if len(self._recent) >= self._REPEATED:
            alike = sorted(recent_ms * expected_ms / self._expected_ms(n) for n, recent_ms in self._recent)
            expected_ms = max(expected_ms, alike[-self._REPEATED])
        return min(took_ms, _LARGEST_STEP * expected_ms)

    def _observe_single(self, took_ms: float) -> None:
        self._singles += 1
        self._single_ms += max(_LEAST_GAIN, 1 / self._singles) * (took_ms - self._single_ms)
        if self._singles == _PROVEN_BATCHES:
            self.least_ms = self._single_ms
        elif self._singles > _PROVEN_BATCHES:
            self.least_ms = min(self.least_ms, self._single_ms)


def _hurry(batches: int) -> float:
    return max(1.0, _FIRST_BATCHES / (batches + 2))


def _segments(variant: VariantProfile) -> tuple[_Segment, ...]:
    """The curve through the medians of the measured sizes, extended beyond the last; constant below the smallest."""
    points = [(float(point.seeds), max(point.p50_ms, _LEAST_MS)) for point in variant.latency]
    segments: list[_Segment] = [(points[0][0], points[0][0], points[0][1], 0.0)]
    for (low_seeds, low_ms), (high_seeds, high_ms) in pairwise(points):
        # Noise may make a larger batch look cheaper; an expectation must not fall with size.
        slope = max(0.0, (high_ms - low_ms) / (high_seeds - low_seeds))
        segments.append((high_seeds, low_seeds, segments[-1][2] if slope == 0 else low_ms, slope))
    last = segments[-1]
    segments[-1] = (math.inf, *last[1:])
    return tuple(segments)


def _at(curve: tuple[_Segment, ...], seeds: float) -> float:
    for end, low_seeds, low_ms, slope in curve:
        if seeds <= end:
            return low_ms + slope * (seeds - low_seeds)
    raise AssertionError(f"{seeds} seeds are beyond the curve")


def _stretch(curve: tuple[_Segment, ...], most: int, full_ms: float) -> tuple[_Segment, ...]:
    below = [(min(end, most), low_seeds, low_ms, slope) for end, low_seeds, low_ms, slope in curve if low_seeds < most]
    return (*below, (math.inf, most, full_ms, (full_ms - curve[0][2]) / most))


def _fit(variant: VariantProfile) -> AffineCost:
    """An affine fit by least squares of relative errors, since the times span orders of magnitude; no negative
    parts."""
    points = [(point.seeds, point.p50_ms) for point in variant.latency if point.p50_ms > 0]
    if not points:
        return AffineCost(fixed_ms=0.0, per_seed_ms=0.0)
    weights = [1 / (ms * ms) for _, ms in points]
    total = sum(weights)
    mean_seeds = sum(w * s for w, (s, _) in zip(weights, points, strict=True)) / total
    mean_ms = sum(w * ms for w, (_, ms) in zip(weights, points, strict=True)) / total
    spread = sum(w * (s - mean_seeds) ** 2 for w, (s, _) in zip(weights, points, strict=True))
    product = sum(w * (s - mean_seeds) * ms for w, (s, ms) in zip(weights, points, strict=True))
    per_seed_ms = max(0.0, product / spread) if spread else 0.0
    if per_seed_ms * mean_seeds > mean_ms:
        per_seed_ms = mean_ms / mean_seeds
    return AffineCost(fixed_ms=mean_ms - per_seed_ms * mean_seeds, per_seed_ms=per_seed_ms)
