"""Histograms of seconds and of sizes, counted as plain numbers and converted when scraped."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import Exemplar, HistogramMetricFamily

LATENCY_BUCKETS_S = (
    0.0001, 0.00025, 0.0005,
    0.001, 0.0015, 0.0025, 0.0035, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075,
    0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

SIZE_BUCKETS = tuple(4**power for power in range(8))
"""Ends of the buckets of batches' seeds: a power of four each, since histograms of many variants are many series."""


@dataclass(slots=True)
class Durations:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    """Counts per bucket, the last one without an end; not cumulative."""
    total_s: float = 0.0
    examples: dict[int, Exemplar] = field(default_factory=dict)
    """The last traced request of each bucket that had one, by the bucket's place."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def show_example(self, seconds: float, trace_id: int) -> None:
        """Show this request, which is counted already, as an example of its bucket."""
        about = {"trace_id": f"{trace_id:032x}"}
        self.examples[bisect_left(LATENCY_BUCKETS_S, seconds)] = Exemplar(about, seconds, time.time())


def add_histogram(
    family: HistogramMetricFamily, labels: dict[str, str], durations: Durations, created_s: float
) -> None:
    ends = (*map(str, LATENCY_BUCKETS_S), "+Inf")
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(
        zip(ends, accumulate(durations.counts), strict=True)
    )
    for place, example in durations.examples.items():
        end, count, *_ = buckets[place]
        buckets[place] = (end, count, example)
    family.add_metric(tuple(labels.values()), buckets, durations.total_s)
    family.add_sample(f"{family.name}_created", labels, created_s)


def add_sizes(
    family: HistogramMetricFamily, labels: dict[str, str], counts: list[int], seeds: float, created_s: float
) -> None:
    """`counts`: batches by `SIZE_BUCKETS`, the last one without an end; not cumulative. `seeds`: of all batches."""
    ends = (*(f"{end}.0" for end in SIZE_BUCKETS), "+Inf")
    family.add_metric(tuple(labels.values()), list(zip(ends, accumulate(counts), strict=True)), seeds)
    family.add_sample(f"{family.name}_created", labels, created_s)
