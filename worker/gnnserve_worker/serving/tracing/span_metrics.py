"""Metrics of the spans that traces send."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, Metric

from gnnserve_worker.serving.tracing.tracer import SpanSink


def collect_spans(sink: SpanSink, service: str, created_s: float) -> Metric:
    """`created_s`: since when they are counted, in seconds since 1970."""
    spans = CounterMetricFamily(
        "gnnserve_spans", "Spans of traces, by whether the receiver has taken them.", labels=("service", "outcome")
    )
    for outcome, count in (("exported", sink.exported), ("dropped", sink.dropped)):
        spans.add_metric((service, outcome), count, created=created_s)
    return spans
