"""What is counted of each variant: numbers that the event loop adds to, and their sums for people and programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gnnserve_worker.serving.histograms import SIZE_BUCKETS, Durations


@dataclass(frozen=True, slots=True)
class VariantUsage:
    """What a variant has answered, and the time it took."""

    last_s: float
    """When its last batch was done, in seconds since 1970; 0: it had none."""
    answers: int
    answers_s: float
    """From arrival to answer, summed over requests."""
    queue_s: float
    batches: int
    seeds: int
    input_s: float
    """Sampling and gathering, and joining overlays, summed over batches."""
    compute_s: float


@dataclass(slots=True)
class VariantCounters:
    created_s: float = field(default_factory=time.time)
    request: Durations = field(default_factory=Durations)
    queue: Durations = field(default_factory=Durations)
    sample: Durations = field(default_factory=Durations)
    gather: Durations = field(default_factory=Durations)
    compute: Durations = field(default_factory=Durations)
    overlay: Durations = field(default_factory=Durations)
    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BUCKETS) + 1))
    """Batches per bucket of their seeds, the last one without an end; not cumulative."""
    batches: int = 0
    seeds: int = 0
    seconds: float = 0.0
    seeds_squared: int = 0
    seed_seconds: float = 0.0
    wait_seconds: float = 0.0
    last_s: float = 0.0
    """When its last batch was done, in seconds since 1970; 0: it had none."""

    @property
    def usage(self) -> VariantUsage:
        return VariantUsage(
            self.last_s, sum(self.request.counts), self.request.total_s, self.queue.total_s, self.batches, self.seeds,
            self.sample.total_s + self.gather.total_s + self.overlay.total_s, self.compute.total_s,
        )  # fmt: skip

    @property
    def sums(self) -> tuple[float, ...]:
        """Sums in the order of the counters of batches in `metrics.py`."""
        return self.batches, self.seeds, self.seconds, self.seeds_squared, self.seed_seconds, self.wait_seconds


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What became of requests."""

    outcomes: tuple[tuple[str, int], ...]
    """Answered in time, late, without a latency, and refused."""
    variants: Mapping[str, VariantCounters]
