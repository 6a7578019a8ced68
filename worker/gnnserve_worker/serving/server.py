"""The worker's process: the services' sockets, the event loop, the engine, and an orderly shutdown.

A process answers for one service or for several, each at an address of its own, with credentials, metrics and a queue
of its own; they share the event loop and the engine (`scheduling/turns.py`). HTTP answers before a revision is loaded;
another thread brings revisions through `ServedService.switch`. Services may come and go while others answer; one that
goes drains by itself, as the whole server does at its end. On SIGTERM or
SIGINT a worker may first stay a while as a lame duck: it answers, but `/readyz` fails and every answer closes its
connection, so that clients move on without an error. Then the engine drains, with the socket still open: new requests
get 503 while accepted ones are answered. Then the connections close, and the process may exit with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import uvloop

from gnnserve_api.routing import RoutingTable
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.updates import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine import Engine
from gnnserve_worker.serving.http.wire.connection import CLIENT_LOG
from gnnserve_worker.serving.http.wire.limits import DEFAULT_PATIENCE, DEFAULT_ROOM, Patience, Room
from gnnserve_worker.serving.listening_socket import address_error
from gnnserve_worker.serving.loop_calls import LoopCalls
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.open_files import room_of_process
from gnnserve_worker.serving.repeated import limit_warnings
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials, CredentialsInUse
from gnnserve_worker.serving.security.handshakes import DEFAULT_HANDSHAKE_LIMITS, HandshakeLimits
from gnnserve_worker.serving.served_service import Look, ServedService, ServiceSettings

_BACKLOG = 2048
_POLL_S = 0.02
_EXIT_POLL_S = 0.1
_LINGER_S = 5
"""Time for clients that are half-way through sending a request, once every complete one is answered."""
_SEND_SPANS_S = 2.0
"""Longest wait at the end for the receiver of traces."""
SWITCH_INTERVAL_S = 0.0005
"""The event loop and the engine's thread share the interpreter: with Python's default of 5 ms, a batch would wait that
long for a loop that parses other clients' requests."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A service, and the only revision that answers for it."""

    service: GNNService
    revision: ServedRevision
    settings: ServiceSettings


@dataclass(frozen=True, slots=True)
class Serving:
    """Handle by which other threads look at, and route, a service that answers from one revision."""

    served: ServedService
    revision: ServedRevision

    def look(self) -> Look | None:
        """What the service serves; None: the server has ended."""
        return self.served.look()

    def route(self, table: RoutingTable) -> None:
        self.served.switch(self.revision, table, 0.0)


def serve_revisions(offers: Sequence[Offer], ready: Callable[[Sequence[Serving]], None]) -> None:
    """Answer for these services until SIGINT or SIGTERM. `ready` is called once, on the event loop, when `/readyz` of
    all of them returns 200, with a handle of each."""
    tables = [offer.service.spec.routing_table(offer.revision.manifest.revision) for offer in offers]
    for offer, table in zip(offers, tables, strict=True):
        offer.revision.check(table)

    def load() -> None:
        try:
            handles: list[Serving] = []
            for offer, table in zip(offers, tables, strict=True):
                started_s, served = time.perf_counter(), worker.services[offer.settings.name]
                offer.revision.warm_up()
                served.switch(offer.revision, table, time.perf_counter() - started_s)
                handles.append(Serving(served, offer.revision))
            worker.call_later(lambda: ready(handles))
        except BaseException as error:  # noqa: BLE001  (without its revisions, the process has no purpose)
            worker.end(error)

    worker = WorkerServer([offer.settings for offer in offers])
    worker.run(threading.Thread(target=load, name="load", daemon=True).start)


def serve_revision(
    revision: ServedRevision,
    service: GNNService,
    sock: socket.socket,
    ready: Callable[[Serving], None],
    credentials: Credentials = NO_CREDENTIALS,
    updates: Updates | None = None,
) -> None:
    """As `serve_revisions`, for one service."""
    settings = ServiceSettings(service.metadata.name, sock, credentials, updates)
    serve_revisions([Offer(service, revision, settings)], lambda handles: ready(handles[0]))


class WorkerServer:
    """A server in this process's main thread that answers for some services, each at an address of its own. It runs
    once."""

    def __init__(
        self,
        services: Sequence[ServiceSettings],
        lame_duck_s: float = 0.0,
        patience: Patience = DEFAULT_PATIENCE,
        room: Room | None = None,
        handshakes: HandshakeLimits = DEFAULT_HANDSHAKE_LIMITS,
    ) -> None:
        """`services`: those from the start, with different names. `room`: of each service; None allows as many
        connections as the process may open files for. Raises GnnserveError where credentials cannot be used."""
        limit_warnings(CLIENT_LOG)
        metrics = {of.name: ServingMetrics(of.name) for of in services}
        self._engine = Engine(metrics, weights={of.name: of.share for of in services})
        self._calls = LoopCalls()
        self._patience = patience
        self._room = room
        self._handshakes = handshakes
        self.services: dict[str, ServedService] = {}
        """Each service by its name, but those that are being removed. It changes on the event loop."""
        for of in services:
            credentials = CredentialsInUse(of.credentials, metrics[of.name])
            self.services[of.name] = self._service(of, metrics[of.name], credentials)
        self._divide_room()
        self._failure: BaseException | None = None
        self._process = _Process(self.services, self._engine, self._calls, lame_duck_s, handshakes)

    def _service(self, of: ServiceSettings, metrics: ServingMetrics, credentials: CredentialsInUse) -> ServedService:
        return ServedService(
            of, metrics, credentials, self._engine, self._calls, self._patience, self._room or DEFAULT_ROOM
        )

    def _divide_room(self) -> None:
        """Divide the files that the process may open among the services that it has now."""
        if self._room is None:
            encrypted = sum(served.tls is not None for served in self.services.values())
            others = sum(served.grpc_connections for served in self.services.values())
            room = room_of_process(encrypted * self._handshakes.at_once + others, max(1, len(self.services)))
            for served in self.services.values():
                served.listener.resize(room)

    def run(self, started: Callable[[], object]) -> None:
        """Run until SIGINT or SIGTERM. `started` is called once, when HTTP answers."""
        for served in self.services.values():
            _listen(served.sock)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Imported modules stay for ever: scanning them took every full collection 20 ms, during which no request is
        # answered. Revisions are loaded later, and are collected as usual.
        gc.collect()
        gc.freeze()

        def begin() -> None:
            for served in self.services.values():
                served.begin()
            started()

        self._process.when_started = begin
        try:
            self._process.run()
        finally:
            self._calls.ended = True
            services = tuple(self.services.values())
            for served in services:
                served.end()
            for served in services:
                served.send_spans(_SEND_SPANS_S)
        if (failure := self._failure or self._engine.failure) is not None:
            raise failure

    # Called from other threads, once started

    def end(self, error: BaseException) -> None:
        """Stop, and raise this from `run`."""
        self._failure = error
        self._process.should_exit = True

    def add(self, settings: ServiceSettings) -> ServedService:
        """Answer for another service as well. Returns when its address is listened at; a server that is ending only
        closes the socket. Raises ValueError where it has a service of that name, and GnnserveError where the address or
        the credentials cannot be used: then the socket stays the caller's."""
        metrics = ServingMetrics(settings.name)
        credentials = CredentialsInUse(settings.credentials, metrics)
        _listen(settings.sock)

        def add_model() -> None:
            self._engine.add(settings.name, metrics, settings.share)

        self._calls.call(add_model)

        def remove_model() -> None:
            self._engine.retire(settings.name)
            self._engine.remove(settings.name)

        # Here and not on the event loop, which would not answer for as long as that takes.
        try:
            served = self._service(settings, metrics, credentials)
        except BaseException:
            self._calls.call(remove_model)
            raise

        async def open_it() -> None:
            try:
                await self._process.open(settings.name, served)
            except BaseException:
                served.end()
                remove_model()
                raise
            self._divide_room()

        self._calls.call_async(open_it)
        return served

    def reweigh(self, name: str, share: float) -> None:
        """Give a service another share of the worker's time."""
        self._calls.call(lambda: self._engine.reweigh(name, share))

    @property
    def is_leaving(self) -> bool:
        """Whether it has been told to end."""
        return self._process.should_exit

    @property
    def failure(self) -> BaseException | None:
        """Why nothing can be answered any more, if so."""
        return self._failure or self._engine.failure

    def remove(self, name: str) -> None:
        """Answer no more for a service of this server. Returns when all that it accepted is answered and its
        connections are closed; first it is a lame duck, for as long as the server would be. Others are answered on."""

        async def remove() -> None:
            await self._process.retire(name)
            self._divide_room()

        self._calls.call_async(remove)

    def call_later(self, act: Callable[[], object]) -> None:
        """Run `act` on the event loop, without waiting for it; not at all if the server has ended."""
        self._calls.call_later(act)


def _listen(sock: socket.socket) -> None:
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise address_error(host, port, error) from error


class _Process:
    """The event loop from its start to the end of the drain."""

    def __init__(
        self,
        services: dict[str, ServedService],
        engine: Engine,
        calls: LoopCalls,
        lame_duck_s: float,
        handshakes: HandshakeLimits,
    ) -> None:
        self._services = services
        self._handshakes = handshakes
        self._calls = calls
        self.should_exit = False
        """Drain and end; any thread may set it."""
        self._force_exit = False
        """Do not wait for accepted requests."""
        self._is_closing = False
        """No service is added any more."""
        self._retiring: set[asyncio.Future[None]] = set()
        """Services that are being removed: each is done once its future is."""
        self.when_started: Callable[[], object] = lambda: None
        self._engine = engine
        self._lame_duck_s = lame_duck_s

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        with self._captured_signals():
            for served in self._services.values():
                await served.listener.open(served.sock, _BACKLOG, served.tls, self._handshakes)
                await served.open_grpc()
            self._calls.loop = asyncio.get_running_loop()
            self._engine.start(self._on_engine_stopped)
            self.when_started()
            while not self.should_exit:
                await asyncio.sleep(_EXIT_POLL_S)
            await self._shut_down()

    async def open(self, name: str, served: ServedService) -> None:
        """Answer for a service that came later."""
        if self._is_closing:
            served.sock.close()
            await self._close_grpc(served)
            return
        await served.open_grpc()
        self._services[name] = served
        served.app.leaving = self.should_exit
        await served.listener.open(served.sock, _BACKLOG, served.tls, self._handshakes)
        served.begin()

    async def retire(self, name: str) -> None:
        """Drain one service and close its connections."""
        if self._is_closing:
            return
        served, engine = self._services.pop(name), self._engine
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._retiring.add(done)
        try:
            served.app.leaving = True
            began_s = time.monotonic()
            while served.answers and time.monotonic() < began_s + self._lame_duck_s:
                await asyncio.sleep(_POLL_S)
            await self._close_grpc(served)
            engine.retire(name)
            while not engine.is_done_with(name) and engine.alive and not self._force_exit:
                await asyncio.sleep(_POLL_S)
            await self._close(served)
            served.end()
            engine.remove(name)
        finally:
            self._retiring.discard(done)
            done.set_result(None)

    async def _close_grpc(self, served: ServedService) -> None:
        # While the engine answers: clients of gRPC are told to connect anew, and lose nothing by it.
        await served.close_grpc(_LINGER_S, lambda: self._force_exit)

    async def _close(self, served: ServedService) -> None:
        await served.listener.close(_LINGER_S, lambda: self._force_exit)
        await served.app.close()

    async def _shut_down(self) -> None:
        self._leave()
        drain_at_s = time.monotonic() + self._lame_duck_s
        # A worker without a revision needs no lame-duck phase.
        while self._engine.answers and self._lame_duck_s and time.monotonic() < drain_at_s:
            await asyncio.sleep(_POLL_S)
        self._lame_duck_s = 0.0  # from here on SIGINT means: do not wait for the queue either
        await asyncio.gather(*(self._close_grpc(served) for served in self._services.values()))
        self._engine.drain()
        while self._engine.alive and not self._force_exit:
            await asyncio.sleep(_POLL_S)
        if self._force_exit:
            self._engine.abandon()
        self._is_closing = True
        # At once: the time that clients have to complete their requests is that of the whole server.
        await asyncio.gather(*map(self._close, self._services.values()), *self._retiring)

    def _leave(self) -> None:
        for served in self._services.values():
            served.app.leaving = True

    def _handle_exit(self, number: int, _frame: FrameType | None) -> None:
        if self._lame_duck_s:
            if self.should_exit:
                self._lame_duck_s = 0.0  # second signal: drain now
            self._leave()  # at once, and not when the loop looks next
        elif self.should_exit and number == signal.SIGINT:
            self._force_exit = True
        self.should_exit = True

    def _on_engine_stopped(self) -> None:
        # Without a request to stop, this is a crash: exit and be restarted rather than refuse for ever.
        self.should_exit = True

    @contextlib.contextmanager
    def _captured_signals(self) -> Iterator[None]:
        """A handled signal is not raised again afterwards: a drained exit is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
