"""Sends spans by OTLP over HTTP, from a thread of its own.

The event loop puts records into a bounded queue and never waits: what finds no room is dropped and counted, and so is
what the receiver did not take after the exporter's own attempts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gnnserve_worker.serving.repeated import limit_warnings
from gnnserve_worker.serving.tracing.options import TracingOptions
from gnnserve_worker.serving.tracing.spans import spans_of
from gnnserve_worker.serving.tracing.traces import BatchTrace, RequestTrace

MOST_WAITING = 4096
"""Records that wait; a traced request is one, and each of its batches."""
_MOST_SPANS = 512
"""Spans of one message."""
_EVERY_S = 1.0
"""Longest time that a record waits for others to be sent with."""
_log = logging.getLogger(__name__)
_LIBRARY_LOG = logging.getLogger("opentelemetry")


class OtlpSink:
    """A `SpanSink`. `put` is the event loop's; other methods may be called from any thread."""

    def __init__(
        self,
        service: str,
        options: TracingOptions,
        every_s: float = _EVERY_S,
        make_exporter: Callable[[str], SpanExporter] = lambda url: OTLPSpanExporter(endpoint=url),
    ) -> None:
        limit_warnings(_LIBRARY_LOG)  # it repeats itself for as long as the receiver is away
        about = {"service.name": service}
        if options.namespace:
            about["service.namespace"] = options.namespace
        self._resource = Resource.create(about)
        self._exporter = make_exporter(options.url)
        self._every_s = every_s
        self._waiting: SimpleQueue[RequestTrace | BatchTrace | None] = SimpleQueue()
        self._unroomed = 0
        """Spans for which there was no room; the event loop counts them."""
        self._untaken = 0
        """Spans that the receiver did not take; the thread counts them."""
        self.exported = 0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._unroomed + self._untaken

    def put(self, record: RequestTrace | BatchTrace) -> None:
        if self._waiting.qsize() >= MOST_WAITING:
            self._unroomed += record.spans
        else:
            self._waiting.put(record)

    def end(self) -> None:
        """Send what waits, and end. It is not waited for."""
        self._waiting.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, or for this long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_open = True
        while is_open:
            spans: list[ReadableSpan] = []
            is_open = self._gather(spans)
            if spans:
                self._send(spans)
        self._exporter.shutdown()

    def _gather(self, spans: list[ReadableSpan]) -> bool:
        """Wait for records, and make spans of them. False: there will be no more."""
        record = self._waiting.get()
        until_s = time.monotonic() + self._every_s
        while record is not None:
            spans += spans_of(record, self._resource)
            left_s = until_s - time.monotonic()
            if len(spans) >= _MOST_SPANS or left_s <= 0:
                return True
            try:
                record = self._waiting.get(timeout=left_s)
            except Empty:
                return True
        return False

    def _send(self, spans: list[ReadableSpan]) -> None:
        try:
            is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001  (whatever it is, the next spans get their turn)
            _log.exception("%d spans could not be sent", len(spans))
            is_taken = False
        if is_taken:
            self.exported += len(spans)
        else:
            self._untaken += len(spans)
