"""Metrics of the index that recommendations are found in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.serving.index_renewal import RenewalFigures


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
