"""The own port of a worker that answers for a pool's services: health, readiness, and the metrics of all of them.

It is for the kubelet and for Prometheus, and answers in threads of its own: services may come and go, and none of their
limits on connections holds it up. What it tells is looked up on the event loop, so that a loop that stands still shows.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar, cast

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process.server import WorkerServer

_log = logging.getLogger(__name__)
Seen = TypeVar("Seen")
_LOOP_LIMIT_S = 4.0
"""Time in which the event loop has to answer; probes of liveness wait for 5 s."""
_REQUEST_LIMIT_S = 10.0
_AT_ONCE = 32
"""Most requests at a time; further ones are refused."""


class _Families:
    """Metrics of several services, each family once with the samples of all."""

    def __init__(self, services: Iterable[ServingMetrics]) -> None:
        self._services = tuple(services)

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for service in self._services:
            for family in service.registry.collect():
                found.setdefault(family.name, family)
                if found[family.name] is not family:
                    found[family.name].samples.extend(family.samples)
        return found.values()


def render_all(services: Iterable[ServingMetrics]) -> bytes:
    """The metrics of several services as one page; each sample has a label with its service. It belongs to the event
    loop's thread."""
    # The library renders anything that collects.
    return generate_latest(cast(Any, _Families(services)))


class PoolEndpoint:
    """Answers `/healthz`, `/readyz` and `/metrics` from `start` to `close`."""

    def __init__(self, sock: socket.socket, worker: WorkerServer, why_not_ready: Callable[[], str | None]) -> None:
        """`sock`: bound to the address to answer at. `why_not_ready`: in words; None: it is ready. Any thread calls
        it."""
        self._worker = worker
        self._why_not_ready = why_not_ready
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_LIMIT_S
            protocol_version = "HTTP/1.0"
            server_version, sys_version = "gnnserve", ""

            def do_GET(self) -> None:
                if not endpoint._slots.acquire(blocking=False):
                    self._send(503, b"too many requests at a time\n")
                    return
                try:
                    self._send(*endpoint._answer(self.path.partition("?")[0]))
                finally:
                    endpoint._slots.release()

            def do_HEAD(self) -> None:
                self.do_GET()

            def _send(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
                """Probes come every second, and are not logged."""

        self._server = ThreadingHTTPServer(sock.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.socket.close()
        self._server.socket = sock
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="pool-endpoint", daemon=True
        )

    def start(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str) -> tuple[int, bytes] | tuple[int, bytes, str]:
        match path:
            case "/healthz":
                if (failure := self._worker.failure) is not None:
                    return 503, f"{failure}; restart the worker\n".encode()
                is_alive = self._look(lambda: True)
                return (200, b"ok\n") if is_alive else (503, b"the event loop stands still\n")
            case "/readyz":
                why = "the worker is about to drain" if self._worker.is_leaving else self._why_not_ready()
                return (200, b"ok\n") if why is None else (503, f"{why}\n".encode())
            case "/metrics":
                page = self._look(lambda: render_all(of.metrics for of in self._worker.services.values()))
                return (503, b"the event loop stands still\n") if page is None else (200, page, CONTENT_TYPE_LATEST)
        return 404, b"this port has /healthz, /readyz and /metrics; each service has a port of its own\n"

    def _look(self, look: Callable[[], Seen]) -> Seen | None:
        """What `look` sees on the event loop; None: the loop did not come to it in time."""
        seen: Future[Seen] = Future()

        def see() -> None:
            try:
                seen.set_result(look())
            except BaseException as error:  # noqa: BLE001  (of the thread that asks)
                seen.set_exception(error)

        try:
            self._worker.call_later(see)
            return seen.result(_LOOP_LIMIT_S)
        except TimeoutError:
            return None
        except RuntimeError as error:
            _log.error("the services cannot be looked at: %s", error)
            return None
