"""A server with several services."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.serving import FakeWorker, service

from gnnserve_api.errors import GnnserveError
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import WorkerServer
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials

NAMES = ("first", "second")


@dataclass(frozen=True, slots=True)
class Running:
    server: WorkerServer
    urls: dict[str, str]

    def switch(self, name: str, worker: FakeWorker) -> None:
        revision = worker.revision()
        self.server.services[name].switch(revision, service().spec.routing_table(revision.manifest.revision), 0.0)

    def ask(self, name: str, node: int = 0, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.urls[name]}/v1/predict", json={"nodes": [node]}, headers=headers, timeout=WAIT_S)

    def add(self, name: str, share: float = 1.0, credentials: Credentials = NO_CREDENTIALS) -> None:
        sock = bind("127.0.0.1", 0)
        self.urls[name] = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.server.add(ServiceSettings(name, sock, credentials, share=share))

    def add_with_grpc(self, name: str, grpc: socket.socket) -> None:
        sock = bind("127.0.0.1", 0)
        try:
            self.server.add(ServiceSettings(name, sock, grpc=grpc))
        except GnnserveError:
            sock.close()
            raise

    def get(self, name: str, path: str) -> httpx.Response:
        return httpx.get(self.urls[name] + path, timeout=WAIT_S)


@contextmanager
def started(
    credentials: dict[str, Credentials] | None = None, names: Sequence[str] = NAMES, lame_duck_s: float = 0.0
) -> Iterator[Running]:
    """In a thread, where signals are left alone."""
    socks = {name: bind("127.0.0.1", 0) for name in names}
    given = credentials or {}
    offered = [ServiceSettings(name, sock, given.get(name, NO_CREDENTIALS)) for name, sock in socks.items()]
    worker = WorkerServer(offered, lame_duck_s)
    up: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=lambda: worker.run(lambda: up.put(None)), daemon=True)
    thread.start()
    up.get(timeout=WAIT_S)
    try:
        yield Running(worker, {name: f"http://127.0.0.1:{sock.getsockname()[1]}" for name, sock in socks.items()})
    finally:
        worker._process.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()
