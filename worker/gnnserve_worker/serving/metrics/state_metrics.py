"""Metrics of a worker's state, read when they are scraped: its routing, device, programs, index and spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_api.pods.routing import ProgramState, Route, RoutingTable
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.programs.failure import ProgramFailure
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.idle.index_renewal import RenewalFigures
from gnnserve_worker.serving.tracing.tracer import SpanSink


@dataclass(frozen=True, slots=True)
class RoutingSample:
    """Figures that the engine goes by at the moment of a scrape."""

    route: Route
    corrections: Mapping[str, float]
    """For each variant: what batches take, over what the table or the profile says; 1 where nothing was learnt."""
    overlay_corrections: Mapping[str, float] = field(default_factory=dict)
    """The same of what came with overlays, for variants that can answer it."""


def collect_routing(routing: RoutingSample, service: str) -> Iterator[Metric]:
    route = routing.route
    info = GaugeMetricFamily(
        "gnnserve_routing_info",
        "Always 1: the mode of routing, and who answers a one-node request that states nothing.",
        labels=("service", "mode", "base_variant"),
    )
    info.add_metric((service, route.mode, route.base_variant), 1)
    expired = GaugeMetricFamily(
        "gnnserve_routing_table_expired",
        "1 where the table's costs have outlived their time, and the worker goes by its own.",
        labels=("service",),
    )
    expired.add_metric((service,), int(route.is_expired))
    correction = GaugeMetricFamily(
        "gnnserve_cost_correction",
        "What batches take, over what table or profile say; 1 where nothing was learnt.",
        labels=("service", "variant"),
    )
    for variant, factor in routing.corrections.items():
        correction.add_metric((service, variant), factor)
    of_overlays = GaugeMetricFamily(
        "gnnserve_overlay_cost_correction",
        "What the part of batches that came with overlays takes, over what the profile says of new nodes.",
        labels=("service", "variant"),
    )
    for variant, factor in routing.overlay_corrections.items():
        of_overlays.add_metric((service, variant), factor)
    objective = GaugeMetricFamily(
        "gnnserve_objective_seconds", "The service's own latency objective, where it has one.", labels=("service",)
    )
    if route.objective.latency_ms is not None:
        objective.add_metric((service,), route.objective.latency_ms / 1000)
    tolerance = GaugeMetricFamily(
        "gnnserve_objective_tolerance_permille",
        "The accuracy tolerance of the service's own objective, where it has one.",
        labels=("service",),
    )
    if route.objective.accuracy_tolerance_permille is not None:
        tolerance.add_metric((service,), route.objective.accuracy_tolerance_permille)
    yield from (info, expired, correction, of_overlays, objective, tolerance)


_COUNTERS = {
    "gnnserve_cache_hits": "Blocks of columns of a node that were read from the GPU's memory.",
    "gnnserve_cache_misses": "Blocks of columns of a node that came over the link.",
    "gnnserve_cache_admissions": "Blocks that took a place in the cache.",
    "gnnserve_cache_evictions": "Blocks that lost theirs.",
    "gnnserve_link_bytes": "Bytes of rows that came from the host's memory over the link.",
    "gnnserve_link_repeats": "Rows that a part of a batch read again, after they had come over the link once.",
}
"""Counters on a GPU; they begin anew with each revision, whose cache is its own."""


def collect_device(stats: DeviceStats, service: str, shown_s: float) -> Iterator[Metric]:
    """`shown_s`: since when the revision answers, in seconds since 1970."""
    info = GaugeMetricFamily(
        "gnnserve_device_info", "Always 1: on what batches are computed.", labels=("service", "device")
    )
    info.add_metric((service, stats.device), 1)
    yield info
    if stats.device == ON_CPU.device:
        return
    memory = GaugeMetricFamily(
        "gnnserve_gpu_memory_bytes", "Of the GPU's memory, what is taken for each part.", labels=("service", "part")
    )
    for part, taken in stats.memory_bytes.items():
        memory.add_metric((service, part), taken)
    budget = GaugeMetricFamily(
        "gnnserve_gpu_memory_budget_bytes", "Of the GPU's memory, what may be taken.", labels=("service",)
    )
    budget.add_metric((service,), stats.memory_budget_bytes)
    yield from (memory, budget)
    values = (stats.hits, stats.misses, stats.admissions, stats.evictions, stats.link_bytes, stats.repeated_rows)
    for (name, text), value in zip(_COUNTERS.items(), values, strict=True):
        family = CounterMetricFamily(name, text, labels=("service",))
        family.add_metric((service,), value, created=shown_s)
        yield family


FIRST, SECOND = "gnnserve_program", "gnnserve_canary_program"
"""Beginning of the names: of a service's revision, and of its second one, which must not be mixed with it."""


def program_state(stats: ProgramStats | None, table: RoutingTable | None) -> ProgramState | UnsetType:
    """`table`: the one in effect."""
    if stats is None:
        return UNSET
    limits = None if table is None else table.program_limits
    return ProgramState(stats.problem, sum(stats.restarts.values()), UNSET if limits is None else limits)


def collect_programs(stats: ProgramStats, of: Mapping[str, str], since_s: float, prefix: str) -> Iterator[Metric]:
    """`of`: labels of all. `since_s`: since when the revision answers, in seconds since 1970; counters begin anew with
    each revision, whose processes are its own."""
    labels, values = tuple(of), tuple(of.values())
    healthy = GaugeMetricFamily(f"{prefix}_healthy", "1 where the last run of the program gave scores.", labels=labels)
    healthy.add_metric(values, 0 if stats.problem else 1)
    yield healthy
    runs = CounterMetricFamily(
        f"{prefix}_runs", "Runs of the program, by whether they gave scores.", labels=(*labels, "outcome")
    )
    for outcome, count in (("answered", stats.answered), ("failed", stats.failed)):
        runs.add_metric((*values, outcome), count, created=since_s)
    yield runs
    seconds = CounterMetricFamily(f"{prefix}_seconds", "Time of all runs of the program.", labels=labels)
    seconds.add_metric(values, stats.run_s, created=since_s)
    yield seconds
    restarts = CounterMetricFamily(
        f"{prefix}_restarts", "Processes of the program that were given up, by reason.", labels=(*labels, "reason")
    )
    for failure in ProgramFailure:
        restarts.add_metric((*values, failure.value), stats.restarts.get(failure, 0), created=since_s)
    yield restarts


def collect_index(
    indexes: Sequence[RevisionIndex], renewal: RenewalFigures | None, service: str, shown_s: float
) -> Iterator[Metric]:
    """All indexes together; nothing while there is none. `renewal`: None where the graph does not change. `shown_s`:
    since when the revision answers, in seconds since 1970."""
    found = [opened.manifest for index in indexes if (opened := index.find()) is not None]
    if not found:
        return
    gauges: dict[str, tuple[str, float]] = {
        "gnnserve_index_nodes": ("Nodes in the index of embeddings.", sum(one.nodes for one in found)),
        "gnnserve_index_recall": (
            "Share of the ten nearest nodes that it finds, as measured when it was made.",
            min(one.recall for one in found),
        ),
    }
    counters = {
        "gnnserve_recommendations": ("Recommendations that were answered.", sum(index.searches for index in indexes)),
        "gnnserve_recommendation_search_seconds": (
            "Time of searching the index.",
            sum(index.search_seconds for index in indexes),
        ),
    }
    if renewal is not None:
        gauges["gnnserve_index_pending_nodes"] = (
            "Nodes that changes have reached since the index was made, and whose embeddings are not computed anew.",
            renewal.pending,
        )
        gauges["gnnserve_index_renewed_nodes"] = (
            "Nodes whose embeddings were computed since, and are compared beside the index.",
            renewal.renewed,
        )
        counters["gnnserve_index_renewal_seconds"] = ("Time of computing them.", renewal.seconds)
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(name, text, labels=("service",))
        gauge.add_metric((service,), value)
        yield gauge
    for name, (text, counted) in counters.items():
        counter = CounterMetricFamily(name, text, labels=("service",))
        counter.add_metric((service,), counted, created=shown_s)
        yield counter


def collect_spans(sink: SpanSink, service: str, created_s: float) -> Metric:
    """`created_s`: since when they are counted, in seconds since 1970."""
    spans = CounterMetricFamily(
        "gnnserve_spans", "Spans of traces, by whether the receiver has taken them.", labels=("service", "outcome")
    )
    for outcome, count in (("exported", sink.exported), ("dropped", sink.dropped)):
        spans.add_metric((service, outcome), count, created=created_s)
    return spans
