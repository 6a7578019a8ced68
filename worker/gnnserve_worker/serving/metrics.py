"""What a worker tells Prometheus. The names are an interface: dashboards, alerts and the operator query them.

An own registry, so that two workers in one process (tests) do not meet. Children of labels are bound once: a look-up
by label costs more than the observation. Counters of a replaced revision's variants stay, as counters must; what
describes the revision itself goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.serving.inference import StageTimes

LATENCY_BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _VariantChildren:
    request: Histogram
    queue: Histogram
    sample: Histogram
    gather: Histogram
    compute: Histogram
    batches: Counter
    seeds: Counter
    seconds: Counter
    seeds_squared: Counter
    seed_seconds: Counter


class ServingMetrics:
    def __init__(self, service: str) -> None:
        self._registry = CollectorRegistry()
        self._service = service
        labels = ("service", "variant")

        def counter(name: str, text: str, *label_names: str) -> Counter:
            return Counter(name, text, label_names, registry=self._registry)

        def histogram(name: str, text: str, *label_names: str) -> Histogram:
            return Histogram(name, text, label_names, buckets=LATENCY_BUCKETS_S, registry=self._registry)

        def gauge(name: str, text: str, *label_names: str) -> Gauge:
            return Gauge(name, text, label_names, registry=self._registry)

        self._request = histogram("gnnserve_request_seconds", "Arrival of a request to its answer.", *labels)
        self._stage = histogram(
            "gnnserve_stage_seconds",
            "Time in each stage: queue per request, sample, gather and compute per batch.",
            *labels,
            "stage",
        )
        self._batches = counter("gnnserve_batches", "Batches computed.", *labels)
        self._seeds = counter("gnnserve_batch_seeds", "Seeds of the batches computed.", *labels)
        self._seconds = counter("gnnserve_batch_seconds", "Time of the batches computed.", *labels)
        self._squared = counter("gnnserve_batch_seeds_squared", "Sum of seeds² over batches, to fit a cost.", *labels)
        self._product = counter(
            "gnnserve_batch_seed_seconds", "Sum of seeds · seconds over batches, to fit a cost.", *labels
        )
        self._errors = counter("gnnserve_errors", "Requests that got no answer, by reason.", "service", "reason")
        self._offered = counter(
            "gnnserve_offered_seeds", "Seeds of well-formed requests, refused ones included.", "service"
        ).labels(service)
        self._queue_seeds = gauge("gnnserve_queue_seeds", "Seeds that wait for a batch.", "service").labels(service)
        self._in_flight = gauge(
            "gnnserve_in_flight_requests", "Predict requests between arrival and answer.", "service"
        ).labels(service)
        self._accuracy = gauge("gnnserve_variant_accuracy", "Profiled accuracy, as a fraction of 1.", *labels, "split")
        self._revision = Info("gnnserve_revision", "The revision that answers.", ("service",), registry=self._registry)
        self._switches = counter(
            "gnnserve_revision_switches", "Revisions that took over, the first included.", "service"
        ).labels(service)
        self._load_seconds = gauge(
            "gnnserve_revision_load_seconds", "Loading and warming up the revision that answers.", "service"
        ).labels(service)
        self._variants: dict[str, _VariantChildren] = {}

    def show_revision(self, manifest: RevisionManifest, load_s: float) -> None:
        """Another revision answers from now on."""
        service = self._service
        self._accuracy.clear()
        for variant in manifest.profile.variants:
            self._accuracy.labels(service, variant.name, "validation").set(variant.validation_accuracy)
            if variant.test_accuracy is not None:
                self._accuracy.labels(service, variant.name, "test").set(variant.test_accuracy)
            if variant.name not in self._variants:
                self._variants[variant.name] = self._children(variant.name)
        self._revision.labels(service).info(
            {"revision": manifest.revision, "recipe": manifest.recipe, "graph": manifest.graph}
        )
        self._switches.inc()
        self._load_seconds.set(load_s)

    def _children(self, variant: str) -> _VariantChildren:
        service = self._service
        return _VariantChildren(
            request=self._request.labels(service, variant),
            queue=self._stage.labels(service, variant, "queue"),
            sample=self._stage.labels(service, variant, "sample"),
            gather=self._stage.labels(service, variant, "gather"),
            compute=self._stage.labels(service, variant, "compute"),
            batches=self._batches.labels(service, variant),
            seeds=self._seeds.labels(service, variant),
            seconds=self._seconds.labels(service, variant),
            seeds_squared=self._squared.labels(service, variant),
            seed_seconds=self._product.labels(service, variant),
        )

    def watch(self, queue_seeds: Callable[[], float], in_flight: Callable[[], float]) -> None:
        """Gauges are read when scraped, so that they cost a request nothing."""
        self._queue_seeds.set_function(queue_seeds)
        self._in_flight.set_function(in_flight)

    def count_offered(self, seeds: int) -> None:
        self._offered.inc(seeds)

    def count_error(self, reason: str) -> None:
        self._errors.labels(self._service, reason).inc()

    def observe_batch(self, variant: str, seeds: int, duration_ms: float, times: StageTimes) -> None:
        children = self._variants[variant]
        seconds = duration_ms / 1000
        children.batches.inc()
        children.seeds.inc(seeds)
        children.seconds.inc(seconds)
        children.seeds_squared.inc(seeds * seeds)
        children.seed_seconds.inc(seeds * seconds)
        children.sample.observe(times.sample_ms / 1000)
        children.gather.observe(times.gather_ms / 1000)
        children.compute.observe(times.compute_ms / 1000)

    def observe_answer(self, variant: str, queue_ms: float, total_ms: float) -> None:
        children = self._variants[variant]
        children.queue.observe(queue_ms / 1000)
        children.request.observe(total_ms / 1000)

    def render(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self._registry)
