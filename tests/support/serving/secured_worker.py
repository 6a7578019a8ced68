"""A worker with credentials, in a thread of the test's own process."""

from __future__ import annotations

import http.client
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.machine.waiting import WAIT_S
from tests.support.serving.certificates import trusting
from tests.support.serving.serving import FakeWorker, service

from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServedService, ServiceSettings
from gnnserve_worker.serving.process.server import WorkerServer
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials
from gnnserve_worker.serving.security.handshakes import DEFAULT_HANDSHAKE_LIMITS, HandshakeLimits


@dataclass(frozen=True, slots=True)
class Running:
    port: int
    worker: WorkerServer
    served: ServedService
    grpc_port: int
    """0: it does not answer over gRPC."""

    def connect(self, trusted: Path | None) -> http.client.HTTPConnection:
        if trusted is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=trusting(trusted))


@contextmanager
def started(
    credentials: Credentials,
    handshakes: HandshakeLimits = DEFAULT_HANDSHAKE_LIMITS,
    of: FakeWorker | None = None,
    *,
    with_grpc: bool = False,
    has_neighbour: bool = False,
) -> Iterator[Running]:
    """In a thread, where signals are left alone. Where it waits for credentials, its revision comes after them, as in a
    pod. `of`: what it answers from, and whose changes it follows. `has_neighbour`: the server has a second
    service, without a revision, so that input waits for turns."""
    sock, of = bind("127.0.0.1", 0), of or FakeWorker()
    grpc = bind("127.0.0.1", 0) if with_grpc else None
    settings = ServiceSettings("digits", sock, credentials, of.updates, grpc=grpc)
    offered = [settings]
    if has_neighbour:
        offered.append(ServiceSettings("neighbour", bind("127.0.0.1", 0), NO_CREDENTIALS))
    worker = WorkerServer(offered, handshakes=handshakes)
    grpc_port = 0 if grpc is None else grpc.getsockname()[1]
    served = worker.services["digits"]
    revision = of.revision()
    up: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=lambda: worker.run(lambda: up.put(None)), daemon=True)
    thread.start()
    up.get(timeout=WAIT_S)

    def switch() -> None:
        served.wait_for_credentials()
        served.switch(revision, service().spec.routing_table(revision.manifest.revision), 0.0)

    switching = threading.Thread(target=switch, daemon=True)
    switching.start()
    if not credentials.waits:
        switching.join()
    try:
        yield Running(sock.getsockname()[1], worker, served, grpc_port)
    finally:
        worker._process.should_exit = True
        thread.join(WAIT_S)
        switching.join(WAIT_S)
        for of_service in offered:
            of_service.sock.close()
