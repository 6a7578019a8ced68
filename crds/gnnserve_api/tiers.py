"""Tiers: the accuracy tolerances at which another variant answers, and those variants.

The method is that of Dynamic GNN inference as-a-service, section 4.3. Pure functions of points, so that a profile, a
load test or published tables can be asked the same questions. Accuracies are fractions or percent, but all alike;
tolerances and losses have that same unit. Choosing a variant for a request is the worker's `scheduling/choice.py`,
which goes by costs as they are now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnserve_api.files.profile import Profile

ROUNDING = 1e-9
"""Far below one node in ten million, far above the rounding of a difference of floats: 50.44 - 48.44 is 2."""


@dataclass(frozen=True, slots=True)
class Point:
    """One variant."""

    name: str
    accuracy: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Within:
    """Variants that answer under one accuracy tolerance."""

    tolerance: float
    """Tolerance of a tier: the smallest one at which this is the answer, which is its loss."""
    point: Point
    loss: float
    """Loss of accuracy against the most accurate variant; never above the tolerance."""
    relative_latency: float
    """Latency over that of the most accurate variant."""


def points_of(profile: Profile, size: int = -1) -> list[Point]:
    """`size`: which of the measured batch sizes the latencies are of; the largest one without it."""
    return [Point(v.name, v.validation_accuracy, v.latency[size].p50_ms) for v in profile.variants]


def most_accurate(points: Sequence[Point]) -> Point:
    """The baseline of tolerances; of equally accurate ones the fastest.

    Not always the widest: with fewer columns a network may overfit less (Dynamic GNN inference as-a-service,
    table 2: GIN, Reddit).
    """
    best = max(point.accuracy for point in points)
    return min((p for p in points if p.accuracy >= best - ROUNDING), key=lambda p: p.latency_ms)


def tiers(points: Sequence[Point]) -> tuple[Within, ...]:
    """The tolerances at which the answer changes, the strictest first. No two of them have one variant, so there are no
    more of them than variants (Dynamic GNN inference as-a-service, section 4.3)."""
    best = most_accurate(points)
    return tuple(answer_within(point, best, _loss(point, best)) for point in frontier(points))


def stated_tiers(points: Sequence[Point]) -> dict[int, Within]:
    """Tiers by their tolerance in permille, as manifests and requests state it: rounded up, so that each reaches its
    variant. Of two that come to one permille the faster answers. Accuracies are fractions."""
    return {math.ceil(1000 * within.loss - 1e-6): within for within in tiers(points)}


def frontier(points: Sequence[Point]) -> tuple[Point, ...]:
    """The Pareto set, the most accurate first: points than which no other is as accurate and faster, or as fast and
    more accurate. Of equal points the first one given."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.accuracy, p.latency_ms)):
        if found and found[-1].accuracy - point.accuracy <= ROUNDING and point.latency_ms < found[-1].latency_ms:
            found.pop()  # as accurate but for rounding
        if not found or point.latency_ms < found[-1].latency_ms:
            found.append(point)
    return tuple(found)


def answer_within(point: Point, best: Point, tolerance: float) -> Within:
    return Within(tolerance, point, _loss(point, best), point.latency_ms / best.latency_ms)


def _loss(point: Point, best: Point) -> float:
    return max(0.0, best.accuracy - point.accuracy)
