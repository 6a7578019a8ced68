"""Metrics of requests that bring nodes, edges and features along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gnnserve_worker.serving.histograms import Durations, add_histogram

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
