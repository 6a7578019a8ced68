"""Times of batches as curves over their size, and how far a single batch may correct one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gnnserve_api.profile import VariantProfile
from gnnserve_api.routing import AffineCost

LEAST_MS = 1e-6
"""Smallest expected time of a batch, so that no expectation is 0."""
LARGEST_STEP = 2.0
"""A batch that took more than twice, or less than half, of what was expected counts as that: a stall is no drift."""
PROVEN_BATCHES = 20
"""Batches whose mean is reliable enough to base a promise on."""
LEAST_GAIN = 0.05
_FIRST_BATCHES = 8
"""The first batches, which correct by more."""

Segment = tuple[float, float, float, float]
"""A segment of a curve: its largest number of seeds, then its start (seeds, ms) and its slope in ms per seed."""
Curve = tuple[Segment, ...]


def profiled_curve(variant: VariantProfile) -> Curve:
    """The curve through the medians of the measured sizes."""
    return curve_through([(float(point.seeds), point.p50_ms) for point in variant.latency])


def curve_through(measured: Sequence[tuple[float, float]]) -> Curve:
    """The curve through points (seeds, ms) that ascend in seeds, extended beyond the last; constant below the
    smallest."""
    points = [(seeds, max(p50_ms, LEAST_MS)) for seeds, p50_ms in measured]
    segments: list[Segment] = [(points[0][0], points[0][0], points[0][1], 0.0)]
    for (low_seeds, low_ms), (high_seeds, high_ms) in pairwise(points):
        # Noise may make a larger batch look cheaper; an expectation must not fall with size.
        slope = max(0.0, (high_ms - low_ms) / (high_seeds - low_seeds))
        segments.append((high_seeds, low_seeds, segments[-1][2] if slope == 0 else low_ms, slope))
    last = segments[-1]
    segments[-1] = (math.inf, *last[1:])
    return tuple(segments)


def at(curve: Curve, seeds: float) -> float:
    for end, low_seeds, low_ms, slope in curve:
        if seeds <= end:
            return low_ms + slope * (seeds - low_seeds)
    raise AssertionError(f"{seeds} seeds are beyond the curve")


def stretch(curve: Curve, most: int, full_ms: float) -> Curve:
    """The curve up to a full batch of `most` seeds, extended beyond it with the average slope of a full batch."""
    below = [(min(end, most), low_seeds, low_ms, slope) for end, low_seeds, low_ms, slope in curve if low_seeds < most]
    return (*below, (math.inf, most, full_ms, (full_ms - curve[0][2]) / most))


def fit(variant: VariantProfile) -> AffineCost:
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


def hurry(batches: int) -> float:
    """Factor of what the next batch corrects, after so many."""
    return max(1.0, _FIRST_BATCHES / (batches + 2))
