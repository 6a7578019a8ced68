"""Histograms of seconds, counted as plain numbers and converted when scraped."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

LATENCY_BUCKETS_S = (
    0.0001, 0.00025, 0.0005,
    0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075,
    0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


@dataclass(slots=True)
class Durations:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    """Counts per bucket, the last one without an end; not cumulative."""
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.total_s += seconds


def add_histogram(
    family: HistogramMetricFamily, labels: dict[str, str], durations: Durations, created_s: float
) -> None:
    ends = (*map(str, LATENCY_BUCKETS_S), "+Inf")
    buckets = list(zip(ends, accumulate(durations.counts), strict=True))
    family.add_metric(tuple(labels.values()), buckets, durations.total_s)
    family.add_sample(f"{family.name}_created", labels, created_s)
