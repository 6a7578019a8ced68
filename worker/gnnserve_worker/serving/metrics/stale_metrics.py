"""Metrics of stored layers that may be stale."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_worker.staleness.refreshing import Refreshing


def collect_stale(refreshing: Refreshing, service: str, shown_s: float) -> Iterator[Metric]:
    """`shown_s`: since when the revision answers, in seconds since 1970; counters begin anew with each revision."""
    rows = GaugeMetricFamily(
        "gnnserve_stale_rows",
        "Rows of a stored layer that changes have moved, and that are not made anew yet.",
        labels=("service", "layer"),
    )
    error = GaugeMetricFamily(
        "gnnserve_stale_error_estimate",
        "Sum of the estimated errors of these rows, each 1 at most.",
        labels=("service", "layer"),
    )
    loss = GaugeMetricFamily(
        "gnnserve_stale_loss_permille",
        "Expected answers that differ from those of exact rows, of variants that read the layer; tolerances count it.",
        labels=("service", "layer"),
    )
    for layer in refreshing.layers:
        loss.add_metric((service, str(layer.number)), refreshing.expected_loss_permille(layer))
        rows.add_metric((service, str(layer.number)), layer.rows.count)
        error.add_metric((service, str(layer.number)), layer.rows.error)
    refreshed = CounterMetricFamily(
        "gnnserve_rows_refreshed",
        "Rows of stored layers that were made anew, by what for: `overlay`, for what a request brings.",
        labels=("service", "by"),
    )
    seconds = CounterMetricFamily(
        "gnnserve_rows_refreshed_seconds", "Time of making these rows anew, by what for.", labels=("service", "by")
    )
    for by, count in refreshing.counts.items():
        refreshed.add_metric((service, by), count.rows, created=shown_s)
        seconds.add_metric((service, by), count.seconds, created=shown_s)
    yield from (rows, error, loss, refreshed, seconds)
