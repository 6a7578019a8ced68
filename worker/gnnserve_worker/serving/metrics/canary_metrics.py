"""Metrics of the second revision of a service. Their names are their own: what is measured of the first one decides
about variants and workers, and must not be mixed with another revision's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import UNSET
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.routing import CanaryRoute
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.accuracy.metrics import add_share
from gnnserve_worker.serving.metrics.counters import RequestCounters, add_histogram
from gnnserve_worker.serving.metrics.state_metrics import SECOND, collect_programs

_LABELS = ("service", "revision")


@dataclass(frozen=True, slots=True)
class CanarySample:
    """A second revision at the moment of a scrape."""

    route: CanaryRoute
    counts: RequestCounters
    passed_on: int
    """Requests of its share that the first revision had to answer."""
    created_s: float
    """When counting began, in seconds since 1970."""
    programs: ProgramStats | None = None
    """State of the programs that it runs; None: it runs none."""


def collect_canary(sample: CanarySample, service: str) -> Iterator[Metric]:
    labels = (service, sample.route.revision)
    percent = GaugeMetricFamily(
        "gnnserve_canary_percent", "Requests of a hundred that the second revision gets now.", labels=_LABELS
    )
    percent.add_metric(labels, sample.route.percent if sample.route.answers else 0)
    yield percent
    requests = CounterMetricFamily(
        "gnnserve_canary_requests", "Requests that the second revision answered, or refused, by outcome.",
        labels=(*_LABELS, "outcome"),
    )  # fmt: skip
    for outcome, count in sample.counts.outcomes.counts():
        requests.add_metric((*labels, outcome), count, created=sample.created_s)
    yield requests
    passed_on = CounterMetricFamily(
        "gnnserve_canary_passed_on", "Requests of the second revision that the first one had to answer.",
        labels=_LABELS,
    )  # fmt: skip
    passed_on.add_metric(labels, sample.passed_on, created=sample.created_s)
    yield passed_on
    seconds = HistogramMetricFamily(
        "gnnserve_canary_request_seconds", "Arrival of a request to the answer of the second revision.",
        labels=(*_LABELS, "variant"),
    )  # fmt: skip
    for name, of in sample.counts.variants.items():
        values = {"service": service, "revision": sample.route.revision, "variant": name}
        add_histogram(seconds, values, of.request, of.created_s)
    yield seconds
    live = GaugeMetricFamily(
        "gnnserve_canary_live_accuracy",
        "Accuracy in service of the second revision on the last labelled nodes, and the ends of its interval.",
        labels=(*_LABELS, "variant", "bound"),
    )
    nodes = GaugeMetricFamily(
        "gnnserve_canary_live_accuracy_nodes", "Labelled nodes in the window.", labels=(*_LABELS, "variant")
    )
    for figure in () if sample.route.accuracy is UNSET else sample.route.accuracy:
        if figure.labels is not None:
            add_share(live, (*labels, figure.name), figure.labels)
            nodes.add_metric((*labels, figure.name), figure.labels.nodes)
    yield from (live, nodes)
    if sample.route.updates is not UNSET:
        yield from _collect_updates(sample.route.updates, labels)
    if sample.programs is not None:
        yield from collect_programs(sample.programs, dict(zip(_LABELS, labels, strict=True)), sample.created_s, SECOND)


def _collect_updates(updates: UpdatesState, labels: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, value in (
        (
            "gnnserve_canary_applied_offset",
            "The offset of the log that the second revision has applied.",
            updates.applied,
        ),
        (
            "gnnserve_canary_staleness_seconds",
            "Age of the oldest change that the second revision has not applied yet.",
            updates.staleness_seconds,
        ),
    ):
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        gauge.add_metric(labels, float(value))
        yield gauge
