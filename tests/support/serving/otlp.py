"""A receiver of OTLP over HTTP, as a collector is one, that keeps the spans that it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace and span of each link."""
    resource: dict[str, Any]
    is_error: bool


@dataclass(slots=True)
class Receiver:
    url: str = ""
    status: int = 200
    """Status that senders get."""
    paths: list[str] = field(default_factory=list)
    _spans: list[ReceivedSpan] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.paths.append(path)
            for of_resource in message.resource_spans:
                resource = _plain(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self._spans += [_read(span, resource) for span in of_scope.spans]
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float = 30.0) -> list[ReceivedSpan]:
        """The spans, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= count, timeout_s), self._spans
            return list(self._spans)


def _read(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
        span.start_time_unix_nano, span.end_time_unix_nano, _plain(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links], resource, span.status.code == 2,
    )  # fmt: skip


def _plain(attributes: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in attributes}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(self.path, body)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_request(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
