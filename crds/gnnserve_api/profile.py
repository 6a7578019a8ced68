"""The profile: what each variant costs and gives, measured before it serves (paper A, section 4.4).

Written by generation, stored in the revision, read by routing and by people.
"""

from __future__ import annotations

import statistics
from typing import Literal

import msgspec

Metric = Literal["accuracy", "f1Micro"]


class LatencyProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Times of one batch size, sampling included, queueing and HTTP excluded."""

    seeds: int
    runs: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    std_ms: float
    sample_ms: float
    """Median of the stage; the three stage medians need not add up to `p50_ms`."""
    gather_ms: float
    compute_ms: float
    gathered_bytes: int
    """Feature bytes read per batch, mean over the runs: rows times kept columns times width."""


class VariantProfile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One variant. Accuracies are fractions of 1 under `Profile.metric`."""

    name: str
    factor: int
    columns: int
    validation_accuracy: float
    test_accuracy: float | None
    """None where the graph has no test split."""
    latency: tuple[LatencyProfile, ...]
    """Ascending in `seeds`, the same sizes for every variant; never empty."""
    size_bytes: int
    """The serialised weights."""
    memory_bytes: int
    """Weights and the columns of the feature table that this variant reads."""


class Profile(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """All variants of a revision, ascending in factor."""

    metric: Metric
    machine: str
    """Processor and thread count of the measurement: a profile from elsewhere is only a hint."""
    threads: int
    variants: tuple[VariantProfile, ...]

    def variant(self, name: str) -> VariantProfile:
        return next(v for v in self.variants if v.name == name)

    def latency_ms(self, name: str, seeds: int) -> float:
        """Predicted p99 of a batch of `seeds`, linear between the measured sizes and beyond the last.

        The p99, because an objective is a promise. Stalls belong to the machine and not to the variant that happened
        to run, so the distance from median to p99 is shared: the median over the variants of their p99/p50. Below
        the smallest measured size its figure holds.
        """
        points = self.variant(name).latency
        tails = [point.p50_ms * self.tail_ratio(i) for i, point in enumerate(points)]
        if seeds <= points[0].seeds or len(points) == 1:
            return tails[0]
        upper = next((i for i, point in enumerate(points) if seeds <= point.seeds), len(points) - 1)
        low, high = points[upper - 1], points[upper]
        # Noise may make a bigger batch look cheaper; a prediction must not go down with size.
        slope = max(0.0, (tails[upper] - tails[upper - 1]) / (high.seeds - low.seeds))
        return tails[upper - 1] + slope * (seeds - low.seeds)

    def tail_ratio(self, size: int) -> float:
        """p99 over median at measured size number `size`: near 2 on a quiet machine, and no variant's own."""
        points = [variant.latency[size] for variant in self.variants]
        return statistics.median(point.p99_ms / point.p50_ms for point in points)
