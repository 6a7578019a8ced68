"""Prometheus metrics of a worker. Their names are an interface: dashboards, alerts and the operator query them.

Each worker has its own registry, so that two workers in one process (in tests) do not collide. Observations per request
or batch are counted as plain numbers (`counters.py`), by the event loop alone, and converted here when scraped: the
client library's own objects take a lock and walk through the buckets each time. Counters of a replaced revision's
variants stay, as counters must; gauges that describe the revision are removed with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.routing import CredentialState
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.accuracy.metrics import collect_accuracy
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch
from gnnserve_worker.serving.idle.index_renewal import RenewalFigures
from gnnserve_worker.serving.metrics.canary_metrics import CanarySample, collect_canary
from gnnserve_worker.serving.metrics.change_metrics import ChangeCounters, collect_changes
from gnnserve_worker.serving.metrics.counters import RequestCounters, VariantCounters, add_histogram, add_sizes
from gnnserve_worker.serving.metrics.load_history import LoadHistory
from gnnserve_worker.serving.metrics.stale_metrics import collect_stale
from gnnserve_worker.serving.metrics.state_metrics import (
    FIRST,
    RoutingSample,
    collect_device,
    collect_index,
    collect_programs,
    collect_routing,
    collect_spans,
)
from gnnserve_worker.serving.tracing.tracer import SpanSink
from gnnserve_worker.staleness.refreshing import Refreshing

_BATCH_COUNTERS = {
    "gnnserve_batches": "Batches computed.",
    "gnnserve_batch_seeds": "Seeds of the batches computed.",
    "gnnserve_batch_seconds": "Time for which batches occupied the worker.",
    "gnnserve_batch_seeds_squared": "Sum of seeds² over batches, to fit a cost.",
    "gnnserve_batch_seed_seconds": "Sum of seeds · seconds over batches, to fit a cost.",
    "gnnserve_batch_wait_seconds": "Time for which batches waited for turns of others that share the worker.",
}
_OPENMETRICS = "application/openmetrics-text"
_OFFERED = "gnnserve_offered_seeds"
_REQUESTS = "gnnserve_requests"


@dataclass(frozen=True, slots=True)
class CounterValue:
    """A counter as Prometheus would know it; `label`: the variant or the outcome, where it has one."""

    name: str
    label: tuple[str, str] | None
    value: float


class ServingMetrics:
    """Belongs to the event loop's thread."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self.counters = RequestCounters()
        self.history = LoadHistory(self.counters)
        self._routing: Callable[[], RoutingSample | None] = lambda: None
        self._device: Callable[[], DeviceStats | None] = lambda: None
        self._programs: Callable[[], ProgramStats | None] = lambda: None
        self._indexes: Callable[[], Sequence[RevisionIndex]] = tuple
        self._renewal: Callable[[], RenewalFigures | None] = lambda: None
        self._refreshing: Callable[[], Refreshing | None] = lambda: None
        self._canary: Callable[[], CanarySample | None] = lambda: None
        self._watch: AccuracyWatch | None = None
        self.changes = ChangeCounters()
        self._updates: Updates | None = None
        self._spans: SpanSink | None = None
        self._created_s = self._shown_s = time.time()

        def counter(name: str, text: str, *label_names: str) -> Counter:
            return Counter(name, text, label_names, registry=self.registry)

        def gauge(name: str, text: str, *label_names: str) -> Gauge:
            return Gauge(name, text, label_names, registry=self.registry)

        self.registry.register(_FamilyCollector(self._collect))
        self._queue_seeds = gauge("gnnserve_queue_seeds", "Seeds that wait for a batch.", "service").labels(service)
        self._in_flight = gauge(
            "gnnserve_in_flight_requests", "Predict requests between arrival and answer.", "service"
        ).labels(service)
        self._accuracy = gauge(
            "gnnserve_variant_accuracy", "Profiled accuracy, as a fraction of 1.", "service", "variant", "split"
        )
        self._memory = gauge(
            "gnnserve_variant_memory_bytes", "Weights, and the columns of tables that it reads.", "service", "variant"
        )
        self._revision = Info("gnnserve_revision", "The revision that answers.", ("service",), registry=self.registry)
        self._switches = counter(
            "gnnserve_revision_switches", "Revisions that took over, the first included.", "service"
        ).labels(service)
        self._load_seconds = gauge(
            "gnnserve_revision_load_seconds", "Loading and warming up the revision that answers.", "service"
        ).labels(service)
        self._certificate = gauge(
            "gnnserve_certificate_expiry_timestamp_seconds",
            "When the certificate that new connections get expires, in seconds since 1970.",
            "service",
        )
        self._credentials_refused = gauge(
            "gnnserve_credentials_refused",
            "1 where some of what lies there now cannot be used; the log says what.",
            "service",
            "kind",
        )
        self._credentials_usable = gauge(
            "gnnserve_credentials_usable", "0 where no request can be answered with them.", "service", "kind"
        )
        # No sample until a revision answers: 0 would raise a false alarm.
        self._intact = gauge(
            "gnnserve_repository_intact", "0 where the files of the revision are not what was verified.", "service"
        )

    def show_revision(self, manifest: RevisionManifest, load_s: float) -> None:
        """Show the revision that answers from now on."""
        service = self._service
        self._accuracy.clear()
        self._memory.clear()
        for variant in manifest.profile.variants:
            self._accuracy.labels(service, variant.name, "validation").set(variant.validation_accuracy)
            self._memory.labels(service, variant.name).set(variant.memory_bytes)
            if variant.test_accuracy is not None:
                self._accuracy.labels(service, variant.name, "test").set(variant.test_accuracy)
            if variant.name not in self.counters.variants:
                self.counters.variants[variant.name] = VariantCounters()
        self._revision.labels(service).info(
            {"revision": manifest.revision, "recipe": manifest.recipe, "graph": manifest.graph}
        )
        self._switches.inc()
        self._shown_s = time.time()
        self._load_seconds.set(load_s)
        self.show_intact(True)

    def show_intact(self, intact: bool) -> None:
        """Show whether the files of the revision that answers, or answered last, are those that were verified."""
        self._intact.labels(self._service).set(int(intact))

    def show_certificate(self, expires_at_s: float) -> None:
        """Show the expiry of the certificate that new connections get from now on."""
        self._certificate.labels(self._service).set(expires_at_s)

    def show_credentials(self, state: CredentialState) -> None:
        self._credentials_refused.labels(self._service, state.kind).set(bool(state.problem))
        self._credentials_usable.labels(self._service, state.kind).set(state.is_usable)

    def watch(self, queue_seeds: Callable[[], float], in_flight: Callable[[], float]) -> None:
        """Register gauges that are read when scraped, so that they cost nothing per request."""
        self._queue_seeds.set_function(queue_seeds)
        self._in_flight.set_function(in_flight)

    def watch_routing(self, routing: Callable[[], RoutingSample | None]) -> None:
        """Sets where the routing is read at a scrape; None: nothing answers yet."""
        self._routing = routing

    def watch_device(self, device: Callable[[], DeviceStats | None]) -> None:
        """Sets where the device's state is read at a scrape."""
        self._device = device

    def watch_programs(self, programs: Callable[[], ProgramStats | None]) -> None:
        """Sets where the state of programs is read at a scrape; None: no program is served."""
        self._programs = programs

    def watch_index(
        self, indexes: Callable[[], Sequence[RevisionIndex]], renewal: Callable[[], RenewalFigures | None]
    ) -> None:
        """Sets where the indexes of recommendations are read at a scrape, and how far they have followed changes."""
        self._indexes, self._renewal = indexes, renewal

    def watch_stale(self, refreshing: Callable[[], Refreshing | None]) -> None:
        """Sets where the state of stored layers is read at a scrape; None: no row may be stale."""
        self._refreshing = refreshing

    def watch_canary(self, canary: Callable[[], CanarySample | None]) -> None:
        """Sets where the second revision is read at a scrape; None: there is none."""
        self._canary = canary

    def watch_accuracy(self, watch: AccuracyWatch) -> None:
        """Sets where accuracy in service is read at a scrape."""
        self._watch = watch

    def watch_updates(self, updates: Updates) -> None:
        """Sets where offsets are read at a scrape."""
        self._updates = updates

    def watch_spans(self, sink: SpanSink) -> None:
        """Sets where the spans of traces are counted."""
        self._spans = sink

    def load_counters(self) -> tuple[CounterValue, ...]:
        """Present values of the counters from which load and costs of variants are derived."""
        found = [CounterValue(f"{_OFFERED}_total", None, self.counters.offered_seeds)]
        for outcome, count in self.counters.outcomes.counts():
            found.append(CounterValue(f"{_REQUESTS}_total", ("outcome", outcome), count))
        for variant, of in self.counters.variants.items():
            for name, value in zip(_BATCH_COUNTERS, of.sums, strict=True):
                found.append(CounterValue(f"{name}_total", ("variant", variant), value))
        return tuple(found)

    def render(self) -> bytes:
        """Prometheus' own text format."""
        return generate_latest(self.registry)

    def expose(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and the media type that they are in. `accept`: the media types that the client takes.
        OpenMetrics, which Prometheus prefers, has examples of latencies beside what the text format has."""
        if _OPENMETRICS in accept:
            exposed: bytes = openmetrics.generate_latest(self.registry)  # type: ignore[no-untyped-call]
            return exposed, openmetrics.CONTENT_TYPE_LATEST
        return self.render(), CONTENT_TYPE_LATEST

    def _collect(self) -> Iterator[Metric]:
        labels = ("service", "variant")
        request = HistogramMetricFamily(
            "gnnserve_request_seconds", "Arrival of a request to its answer.", labels=labels
        )
        stage = HistogramMetricFamily(
            "gnnserve_stage_seconds",
            "Time in each stage: queue per request, sample, gather and compute per batch.",
            labels=(*labels, "stage"),
        )
        sizes = HistogramMetricFamily("gnnserve_batch_size", "Seeds of a batch.", labels=labels)
        counters = [CounterMetricFamily(name, text, labels=labels) for name, text in _BATCH_COUNTERS.items()]
        for name, of in self.counters.variants.items():
            values = {"service": self._service, "variant": name}
            add_histogram(request, values, of.request, of.created_s)
            for stage_name, durations in (
                ("queue", of.queue), ("sample", of.sample), ("gather", of.gather), ("compute", of.compute)
            ):  # fmt: skip
                add_histogram(stage, {**values, "stage": stage_name}, durations, of.created_s)
            if of.overlay.total_s:  # few services get overlays, and a histogram is 27 series
                add_histogram(stage, {**values, "stage": "overlay"}, of.overlay, of.created_s)
            add_sizes(sizes, values, of.sizes, of.seeds, of.created_s)
            for family, value in zip(counters, of.sums, strict=True):
                family.add_metric(tuple(values.values()), value, created=of.created_s)
        yield from (request, stage, sizes, *counters)
        offered = CounterMetricFamily(
            _OFFERED, "Seeds of well-formed requests, refused ones included.", labels=("service",)
        )
        offered.add_metric((self._service,), self.counters.offered_seeds, created=self._created_s)
        yield offered
        yield from self.counters.overlays.collect(self._service, self._created_s)
        outcomes = CounterMetricFamily(
            _REQUESTS, "Requests answered, or refused with 429, by outcome.", labels=("service", "outcome")
        )
        for outcome, count in self.counters.outcomes.counts():
            outcomes.add_metric((self._service, outcome), count, created=self._created_s)
        yield outcomes
        errors = CounterMetricFamily(
            "gnnserve_errors", "Requests that got no answer, by reason.", labels=("service", "reason")
        )
        for reason, of_reason in self.counters.errors.items():
            errors.add_metric((self._service, reason), of_reason.count, created=of_reason.created_s)
        yield errors
        if (routing := self._routing()) is not None:
            yield from collect_routing(routing, self._service)
        if (device := self._device()) is not None:
            yield from collect_device(device, self._service, self._shown_s)
        if (programs := self._programs()) is not None:
            yield from collect_programs(programs, {"service": self._service}, self._shown_s, FIRST)
        if indexes := self._indexes():
            yield from collect_index(indexes, self._renewal(), self._service, self._shown_s)
        if (refreshing := self._refreshing()) is not None:
            yield from collect_stale(refreshing, self._service, self._shown_s)
        if (canary := self._canary()) is not None:
            yield from collect_canary(canary, self._service)
        if self._watch is not None:
            yield from collect_accuracy(self._watch, self._service, self._created_s)
        if self._updates is not None:
            yield from collect_changes(self._updates, self.changes, self._service)
        if self._spans is not None:
            yield collect_spans(self._spans, self._service, self._created_s)


class _FamilyCollector(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()
