"""A server: its services with their sockets, and its engine, as other threads and programs see them.

A process answers for one service or for several, each at an address of its own, with credentials, metrics and a queue
of its own; they share the event loop and the engine (`engine/shared_time.py`). HTTP answers before a revision is
loaded; another thread brings revisions through `ServedService.switch`. Services may come and go while others answer;
one that goes drains by itself, as the whole server does at its end (`process.py`).
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.http.wire.connection import CLIENT_LOG
from gnnserve_worker.serving.http.wire.limits import DEFAULT_PATIENCE, DEFAULT_ROOM, Patience, Room
from gnnserve_worker.serving.listening_socket import address_error
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process.loop_calls import LoopCalls
from gnnserve_worker.serving.process.open_files import room_of_process
from gnnserve_worker.serving.process.process import BACKLOG, ServerProcess
from gnnserve_worker.serving.process.served_service import ServedService, ServiceSettings
from gnnserve_worker.serving.repeated import limit_warnings
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials, CredentialsInUse
from gnnserve_worker.serving.security.handshakes import DEFAULT_HANDSHAKE_LIMITS, HandshakeLimits

_SEND_SPANS_S = 2.0
"""Longest wait at the end for the receiver of traces."""
SWITCH_INTERVAL_S = 0.0005
"""The event loop and the engine's thread share the interpreter: with Python's default of 5 ms, a batch would wait that
long for a loop that parses other clients' requests."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A service, and the revision that answers for it."""

    service: GNNService
    revision: ServedRevision | None
    settings: ServiceSettings
    problem: str = ""
    """Why there is no revision."""


@dataclass(frozen=True, slots=True)
class StartedService:
    """A service that has begun to answer. To be dropped soon: it keeps the revision."""

    served: ServedService
    revision: ServedRevision | None
    """The revision that it began to answer from; None: there was none."""


def serve_revisions(offers: list[Offer], ready: Callable[[Sequence[StartedService]], None]) -> None:
    """Answer for these services until SIGINT or SIGTERM. `ready` is called once, on the event loop, when `/readyz` of
    all that have a revision returns 200, with a handle of each. The offers are taken out of the list: what refers to a
    revision for as long as the server runs keeps its memory after another one has taken its place."""
    _check(offers)

    def load() -> None:
        try:
            handles: list[StartedService] = []
            while offers:
                offer = offers.pop(0)
                handles.append(_begin(offer, worker.services[offer.settings.name]))
            worker.call_later(lambda: ready(handles))
        except BaseException as error:  # noqa: BLE001  (without its revisions, the process has no purpose)
            worker.end(error)

    worker = WorkerServer([offer.settings for offer in offers])
    worker.run(threading.Thread(target=load, name="load", daemon=True).start)


def _check(offers: Sequence[Offer]) -> None:
    # A function of its own, whose variables are gone when it returns.
    for offer in offers:
        if offer.revision is not None:
            offer.revision.check(_table_of(offer.service, offer.revision))


def _begin(offer: Offer, served: ServedService) -> StartedService:
    started_s, revision = time.perf_counter(), offer.revision
    if revision is None:
        served.report(offer.problem)
    else:
        revision.compute.warm_up()
        served.switch(revision, _table_of(offer.service, revision), time.perf_counter() - started_s)
    return StartedService(served, revision)


def _table_of(service: GNNService, revision: ServedRevision) -> RoutingTable:
    return service.spec.routing_table(revision.manifest.revision)


def serve_revision(
    revision: ServedRevision,
    service: GNNService,
    sock: socket.socket,
    ready: Callable[[StartedService], None],
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
        self._divide()
        self._failure: BaseException | None = None
        self._process = ServerProcess(self.services, self._engine, self._calls, lame_duck_s, handshakes)

    def _service(self, of: ServiceSettings, metrics: ServingMetrics, credentials: CredentialsInUse) -> ServedService:
        return ServedService(
            of, metrics, credentials, self._engine, self._calls, self._patience, self._room or DEFAULT_ROOM
        )

    def _divide(self) -> None:
        """Divide the event loop, and the files that the process may open, among the services that it has now."""
        if len(self.services) > 1:
            for served in self.services.values():
                served.queue_input()
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
            self._divide()

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
            self._divide()

        self._calls.call_async(remove)

    def call_later(self, act: Callable[[], object]) -> None:
        """Run `act` on the event loop, without waiting for it; not at all if the server has ended."""
        self._calls.call_later(act)


def _listen(sock: socket.socket) -> None:
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise address_error(host, port, error) from error
