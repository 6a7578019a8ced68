"""Metrics of the routing that is in effect, read when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from gnnserve_api.routing import Route


@dataclass(frozen=True, slots=True)
class RoutingSample:
    """What the engine goes by at the moment of a scrape."""

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
    yield from (info, expired, correction, of_overlays, objective)
