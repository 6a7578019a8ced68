"""A histogram of how many seeds batches have, counted as plain numbers and converted when scraped."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

SIZE_BUCKETS = tuple(4**power for power in range(8))
"""Their ends: a power of four each, since histograms of many variants are many series."""


@dataclass(slots=True)
class BatchSizes:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BUCKETS) + 1))
    """Counts per bucket, the last one without an end; not cumulative."""

    def observe(self, seeds: int) -> None:
        """`seeds`: 1 or more."""
        # Half of the bits of what is below it, rounded up: the least power of four that is not below it.
        self.counts[min(((seeds - 1).bit_length() + 1) >> 1, len(SIZE_BUCKETS))] += 1


def add_sizes(
    family: HistogramMetricFamily, labels: dict[str, str], sizes: BatchSizes, seeds: float, created_s: float
) -> None:
    """`seeds`: of all batches."""
    ends = (*(f"{end}.0" for end in SIZE_BUCKETS), "+Inf")
    buckets = list(zip(ends, accumulate(sizes.counts), strict=True))
    family.add_metric(tuple(labels.values()), buckets, seeds)
    family.add_sample(f"{family.name}_created", labels, created_s)
