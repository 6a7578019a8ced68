"""Counters of requests, variants and overlays, kept by the event loop: plain numbers, converted when they are scraped.

Histograms of seconds and of sizes have no objects of the client library either, whose locks every request would take.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily, Metric

from gnnserve_worker.inference.batch import StageTimes

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


def observe_each(*durations: tuple[Durations, float]) -> None:
    """Count each time, in ms, in its histogram, by one call."""
    for histogram, took_ms in durations:
        seconds = took_ms / 1000
        histogram.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        histogram.total_s += seconds


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


@dataclass(frozen=True, slots=True)
class VariantUsage:
    """Requests that a variant has answered, and the time it took."""

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


_COUNTERS = {
    "gnnserve_overlay_requests": "Requests with an overlay that were well-formed, or refused before they were read.",
    "gnnserve_overlay_new_nodes": "New nodes of requests that were read.",
    "gnnserve_overlay_edges": "Entries that neighbour lists gained by edges of requests that were read.",
}


@dataclass(slots=True)
class OverlayCounts:
    requests: int = 0
    new_nodes: int = 0
    edges: int = 0
    admission: Durations = field(default_factory=Durations)

    def count(self, new_nodes: int, edges: int, admission_ms: float) -> None:
        self.requests += 1
        self.new_nodes += new_nodes
        self.edges += edges
        self.admission.observe(admission_ms / 1000)

    def collect(self, service: str, created_s: float) -> Iterator[Metric]:
        for (name, text), value in zip(_COUNTERS.items(), (self.requests, self.new_nodes, self.edges), strict=True):
            family = CounterMetricFamily(name, text, labels=("service",))
            family.add_metric((service,), value, created=created_s)
            yield family
        admission = HistogramMetricFamily(
            "gnnserve_overlay_admission_seconds",
            "Reading a request with an overlay, from its arrival until it can be queued.",
            labels=("service",),
        )
        add_histogram(admission, {"service": service}, self.admission, created_s)
        yield admission


@dataclass(slots=True)
class OutcomeCounts:
    """Requests, by what became of them."""

    met: int = 0
    late: int = 0
    refused: int = 0
    unbounded: int = 0

    def counts(self) -> Iterator[tuple[str, int]]:
        for outcome in fields(self):
            yield outcome.name, getattr(self, outcome.name)


@dataclass(slots=True)
class ErrorCount:
    count: int = 0
    created_s: float = field(default_factory=time.time)


class RequestCounters:
    """Counters of a service's requests and batches. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.variants: dict[str, VariantCounters] = {}
        self.offered_seeds = 0
        """Load of well-formed requests, refused ones included, in seeds; kept by those who submit them."""
        self.outcomes = OutcomeCounts()
        self.overlays = OverlayCounts()
        self.errors: dict[str, ErrorCount] = {}
        """Errors that happened, by reason."""

    def count_overlay(self, new_nodes: int, edges: int, admission_ms: float) -> None:
        """Count a request with an overlay. `admission_ms`: reading it, from its arrival until it can be queued."""
        self.overlays.count(new_nodes, edges, admission_ms)

    def count_unread_overlay(self) -> None:
        """Count a request with an overlay that is refused before it is read."""
        self.overlays.requests += 1

    def count_error(self, reason: str) -> None:
        errors = self.errors.get(reason)
        if errors is None:
            errors = self.errors[reason] = ErrorCount()
        errors.count += 1

    def observe_batch(
        self, variant: str, seeds: int, duration_ms: float, times: StageTimes, waited_ms: float = 0.0
    ) -> None:
        """`seeds`: the batch's load (`scheduling/cost_terms.py`), by which its cost is fitted; `waited_ms`: how long it
        waited before for turns of other models."""
        of = self.variants[variant]
        seconds = duration_ms / 1000
        of.last_s = time.time()
        of.batches += 1
        of.seeds += seeds
        # Half of the bits of what is below it, rounded up: the least power of four that is not below it.
        of.sizes[min(((seeds - 1).bit_length() + 1) >> 1, len(SIZE_BUCKETS))] += 1
        of.seconds += seconds
        of.seeds_squared += seeds * seeds
        of.seed_seconds += seeds * seconds
        of.wait_seconds += waited_ms / 1000
        observe_each((of.sample, times.sample_ms), (of.gather, times.gather_ms), (of.compute, times.compute_ms))
        if times.overlay_ms:
            of.overlay.observe(times.overlay_ms / 1000)

    def count_refused(self, reason: str) -> None:
        """Count a request that got 429."""
        self.outcomes.refused += 1
        self.count_error(reason)

    def observe_answer(
        self, variant: str, queue_ms: float, total_ms: float, latency_ms: float | None, trace_id: int | None = None
    ) -> None:
        """Count an answer. `latency_ms`: the objective's latency, if it has one; `trace_id`: of a traced request, which
        is shown as an example of its latency."""
        of = self.variants[variant]
        observe_each((of.queue, queue_ms), (of.request, total_ms))
        if latency_ms is None:
            self.outcomes.unbounded += 1
        elif total_ms <= latency_ms:
            self.outcomes.met += 1
        else:
            self.outcomes.late += 1
        if trace_id is not None:
            of.request.show_example(total_ms / 1000, trace_id)

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return sum([sum(of.request.counts) for of in self.variants.values()])

    def usage_of(self, variant: str) -> VariantUsage:
        return self.variants[variant].usage
