"""The worker's process: a socket, uvicorn, the engine, and an orderly end.

On SIGTERM or SIGINT the engine drains first, with the socket still open: `/readyz` and new requests get 503 while
accepted ones are answered. Then uvicorn closes, and the process may exit with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from gnnserve_api.errors import ResourceError
from gnnserve_api.gnnservice import GNNService
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.serving.app import build_app
from gnnserve_worker.serving.engine import Engine
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.served import ServedRevision, served_revision

_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_MAX_PORT = 65_535
_DRAIN_POLL_S = 0.02
_LINGER_S = 5
"""For clients that stop half-way through a request, once every complete one is answered."""
_SWITCH_INTERVAL_S = 0.0005
"""The event loop and the engine share the interpreter: with Python's default of 5 ms, a one-node answer would wait that
long for a loop that parses other clients' requests."""


def bind(host: str, port: int) -> socket.socket:
    """Takes the address without listening yet, so that a busy port is noticed before hours of training."""
    if not 0 <= port <= _MAX_PORT:
        # getaddrinfo would quietly take the remainder.
        raise ResourceError(f"{host}:{port}: no such port; choose --port from 0 to {_MAX_PORT}, 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ResourceError(f"{host}: not an address of this machine ({error}); choose another --host") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _address_error(host, port, error) from error
    return sock


def serve(
    revision: LoadedRevision, service: GNNService, sock: socket.socket, ready: Callable[[], None] | None = None
) -> None:
    """Answers until SIGINT or SIGTERM. `ready` is called once, when `/readyz` says 200."""
    serve_revision(served_revision(revision), service, sock, ready)


def serve_revision(
    revision: ServedRevision, service: GNNService, sock: socket.socket, ready: Callable[[], None] | None = None
) -> None:
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise _address_error(host, port, error) from error
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    metrics = ServingMetrics(service.metadata.name, revision.manifest)
    engine = Engine(revision, service, metrics)
    config = uvicorn.Config(
        build_app(revision, service, engine, metrics),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_LINGER_S,
    )
    server = _DrainingServer(config, engine, ready)
    server.run(sockets=[sock])
    if engine.failure is not None:
        raise engine.failure


class _DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, engine: Engine, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._engine = engine
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        ready = self._ready

        def on_ready() -> None:
            if ready is not None:
                loop.call_soon_threadsafe(ready)

        self._engine.start(on_ready, self._on_engine_stopped)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.drain()
        while self._engine.alive and not self.force_exit:
            await asyncio.sleep(_DRAIN_POLL_S)
        if self.force_exit:
            self._engine.abandon()
        await super().shutdown(sockets)

    def _on_engine_stopped(self) -> None:
        # Unasked, this is a crash: better to exit and be restarted than to refuse for ever.
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again afterwards: a drained exit is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _address_error(host: str, port: int, error: OSError) -> ResourceError:
    where = f"{host}:{port}"
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return ResourceError(f"{where}: the port is in use; stop the process that listens there, or choose --port")
        case OSError(errno=errno.EACCES):
            return ResourceError(f"{where}: ports below 1024 need privileges; choose a --port from 1024 on")
        case OSError(errno=errno.EADDRNOTAVAIL):
            return ResourceError(f"{where}: this machine does not have the address; choose another --host")
        case _:
            return ResourceError(f"{where}: cannot listen there ({error}); choose another --host or --port")
