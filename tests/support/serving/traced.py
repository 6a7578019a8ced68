"""A server whose traces are kept, in place of a receiver."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from tests.support.serving.serving import Client

from gnnserve_worker.serving.tracing.spans import spans_of
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import BatchTrace, RequestTrace


class KeptTraces:
    """A `SpanSink` that keeps its records."""

    exported, dropped = 3, 2

    def __init__(self) -> None:
        self.records: list[RequestTrace | BatchTrace] = []

    def put(self, record: RequestTrace | BatchTrace) -> None:
        self.records.append(record)

    @property
    def requests(self) -> list[RequestTrace]:
        return [record for record in self.records if isinstance(record, RequestTrace)]

    @property
    def batches(self) -> list[BatchTrace]:
        return [record for record in self.records if isinstance(record, BatchTrace)]

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for record in self.records for span in spans_of(record, Resource({}))]


def traced(client: Client, sampled_permille: float = 0) -> KeptTraces:
    """Trace requests of the server, those with a client's trace and this share of the others."""
    sink = KeptTraces()
    client.model.tracer = Tracer(sink, sampled_permille)
    client.metrics.watch_spans(sink)
    return sink
