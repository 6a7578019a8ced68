"""The worker's process: a socket, the event loop, the engine, and an orderly shutdown.

HTTP answers before a revision is loaded; another thread brings revisions through `WorkerServer.switch`. On SIGTERM or
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import FrameType

import uvloop

from gnnserve_api.errors import NO_USABLE_CREDENTIALS
from gnnserve_api.routing import Damage, Route, RoutingTable
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.updates import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine import Engine
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.wire.connection import CLIENT_LOG
from gnnserve_worker.serving.http.wire.limits import DEFAULT_PATIENCE, Patience, Room
from gnnserve_worker.serving.http.wire.listener import Listener
from gnnserve_worker.serving.listening_socket import address_error
from gnnserve_worker.serving.metrics import CounterValue, ServingMetrics
from gnnserve_worker.serving.model import ModelState
from gnnserve_worker.serving.open_files import room_of_process
from gnnserve_worker.serving.repeated import limit_warnings
from gnnserve_worker.serving.security.credentials import (
    NO_CREDENTIALS,
    Credentials,
    CredentialsFollower,
    CredentialsInUse,
)
from gnnserve_worker.serving.security.handshakes import DEFAULT_HANDSHAKE_LIMITS, HandshakeLimits
from gnnserve_worker.serving.security.tls import ListeningTls

_BACKLOG = 2048
_POLL_S = 0.02
_EXIT_POLL_S = 0.1
_WAIT_S = 0.5
"""Seconds between two looks at the problem of credentials that a worker waits for."""
_LINGER_S = 5
"""Time for clients that are half-way through sending a request, once every complete one is answered."""
SWITCH_INTERVAL_S = 0.0005
"""The event loop and the engine's thread share the interpreter: with Python's default of 5 ms, a batch would wait that
long for a loop that parses other clients' requests."""


def serve_revision(
    revision: ServedRevision,
    service: GNNService,
    sock: socket.socket,
    ready: Callable[[Serving], None],
    credentials: Credentials = NO_CREDENTIALS,
    updates: Updates | None = None,
) -> None:
    """Answer from one revision until SIGINT or SIGTERM. `ready` is called once, on the event loop, when `/readyz`
    returns 200. `updates`: as `WorkerServer` takes it."""
    table = service.spec.routing_table(revision.manifest.revision)
    revision.check(table)

    def load() -> None:
        try:
            started_s = time.perf_counter()
            revision.warm_up()
            worker.switch(revision, table, time.perf_counter() - started_s)
            worker.call_later(lambda: ready(Serving(worker, revision)))
        except BaseException as error:  # noqa: BLE001  (without its only revision, the process has no purpose)
            worker.end(error)

    worker = WorkerServer(service.metadata.name, sock, credentials=credentials, updates=updates)
    worker.run(threading.Thread(target=load, name="load", daemon=True).start)


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of a worker."""

    route: Route
    counters: tuple[CounterValue, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """Handle by which other threads look at, and route, a worker that answers from one revision."""

    worker: WorkerServer
    revision: ServedRevision

    def look(self) -> Look | None:
        """What the worker serves; None: the worker has ended."""
        return self.worker.look()

    def route(self, table: RoutingTable) -> None:
        self.worker.switch(self.revision, table, 0.0)


class WorkerServer:
    """A server in this process's main thread that answers from the revision passed to `switch`. It runs once."""

    def __init__(
        self,
        service: str,
        sock: socket.socket,
        lame_duck_s: float = 0.0,
        patience: Patience = DEFAULT_PATIENCE,
        room: Room | None = None,
        credentials: Credentials = NO_CREDENTIALS,
        handshakes: HandshakeLimits = DEFAULT_HANDSHAKE_LIMITS,
        updates: Updates | None = None,
    ) -> None:
        """`room`: None allows as many connections as the process may open files for. `updates`: closed at the end; None
        means that the graph does not change. Raises GnnserveError where the credentials cannot be used."""
        limit_warnings(CLIENT_LOG)
        if room is None:
            room = room_of_process(0 if credentials.tls is None else handshakes.at_once)
        self._metrics = ServingMetrics(service)
        self._credentials = CredentialsInUse(credentials, self._metrics)
        self._engine = Engine(self._metrics, (service,))
        self._model = self._engine.models[service]
        self._sock = sock
        self._updates = updates
        self._failure: BaseException | None = None
        app = ServingApp(
            service,
            self._engine,
            self._metrics,
            self._credentials.access,
            self._credentials.states,
            self._credentials.write_access,
            updates,
        )
        listener = Listener(app, patience, room)
        self._process = _Process(sock, listener, app, self._engine, lame_duck_s, self._credentials.tls, handshakes)

    def run(self, started: Callable[[], object]) -> None:
        """Run until SIGINT or SIGTERM. `started` is called once, when HTTP answers."""
        try:
            self._sock.listen(_BACKLOG)
        except OSError as error:
            host, port = self._sock.getsockname()[:2]
            raise address_error(host, port, error) from error
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Imported modules stay for ever: scanning them took every full collection 20 ms, during which no request is
        # answered. Revisions are loaded later, and are collected as usual.
        gc.collect()
        gc.freeze()
        follower = CredentialsFollower(self._credentials, self.call_later)

        def begin() -> None:
            if self._updates is not None:
                self._updates.start()
            if self._credentials.may_change:
                follower.start()
            started()

        self._process.when_started = begin
        try:
            self._process.run()
        finally:
            self._process.ended = True
            follower.stop()
        if (failure := self._failure or self._engine.failure) is not None:
            raise failure

    # Called from other threads, once started

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
        """Answer from this revision, which has been warmed up, from now on. Returns when it is in effect.

        A new table for the present revision is passed with that revision; another revision clears the reported problem.
        A revision that follows the log of changes has at least what the present one has; where the log cannot be read
        for that, it raises LogError.
        """

        def switch() -> None:
            lane = self._model.lane
            if lane is None or lane.revision is not revision:
                self._metrics.show_revision(revision.manifest, load_s)
                self._model.problem = self._model.damage = None
            self._model.switch(revision, table)
            self._follow_log(revision)

        with self._handing_over(revision):
            self._call(switch)

    def _handing_over(self, revision: ServedRevision) -> contextlib.AbstractContextManager[None]:
        replica, updates = revision.replica, self._updates
        if replica is None or updates is None or updates.replica is None or updates.replica is replica:
            return contextlib.nullcontext()
        return updates.handing_over(replica)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """Stop answering from this revision, whose files are not what was verified. No effect if another one answers by
        now."""

        def withdraw() -> None:
            lane = self._model.lane
            if lane is not None and lane.revision is revision:
                self._metrics.show_intact(False)
                self._model.withdraw(problem)
                self._follow_log(None)

        self._call(withdraw)

    def _follow_log(self, revision: ServedRevision | None) -> None:
        replica = None if revision is None else revision.replica
        if self._updates is not None and self._updates.replica is not replica:
            self._updates.follow(replica)

    def warn(self, revision: ServedRevision, problem: str) -> None:
        """Report a revision that answers correctly, but that the next start would not find."""

        def warn() -> None:
            lane = self._model.lane
            if lane is not None and lane.revision is revision:
                self._metrics.show_intact(False)
                self._model.problem = problem

        self._call(warn)

    def look(self) -> Look | None:
        """A snapshot of the worker; None: no revision answers."""
        seen: list[Look] = []

        def look() -> None:
            if self._model.lane is not None:
                seen.append(Look(self._model.route(), self._metrics.load_counters()))

        self._call(look)
        return seen[0] if seen else None

    def wait_for_credentials(self) -> None:
        """Wait until all configured credentials are usable; meanwhile report what is wrong with them."""
        complete = self._credentials.complete

        def report() -> None:
            problems = [state.problem for state in self._credentials.states() if not state.is_usable]
            self._model.problem = f"{NO_USABLE_CREDENTIALS}: {'; '.join(problems)}" if problems else None

        while not complete.is_set() and not self._process.ended:
            self._call(report)
            complete.wait(_WAIT_S)

    def report(self, problem: str | None, damage: Damage | None = None) -> None:
        """Report why the declared revision is not the one that answers; None when it is."""

        def report() -> None:
            self._model.problem, self._model.damage = problem, damage

        self._call(report)

    def end(self, error: BaseException) -> None:
        """Stop, and raise this from `run`."""
        self._failure = error
        self._process.should_exit = True

    def call_later(self, act: Callable[[], object]) -> None:
        """Run `act` on the event loop, without waiting for it; not at all if the server has ended."""
        loop = self._process.loop
        if loop is None:
            raise RuntimeError("the server has not started")
        try:
            loop.call_soon_threadsafe(act)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _call(self, act: Callable[[], None]) -> None:
        """Run `act` on the event loop and wait for it; otherwise as `call_later`."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                act()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001  (the caller's to handle)
                done.set_exception(error)

        self.call_later(run)
        while not done.done() and not self._process.ended:
            wait([done], _POLL_S)
        if done.done():
            done.result()


class _Process:
    """The event loop from its start to the end of the drain."""

    def __init__(
        self,
        sock: socket.socket,
        listener: Listener,
        app: ServingApp,
        engine: Engine,
        lame_duck_s: float,
        tls: ListeningTls | None,
        handshakes: HandshakeLimits,
    ) -> None:
        self._sock = sock
        self.listener = listener
        self._tls = tls
        self._handshakes = handshakes
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended = False
        self.should_exit = False
        """Drain and end; any thread may set it."""
        self._force_exit = False
        """Do not wait for accepted requests."""
        self.when_started: Callable[[], object] = lambda: None
        self._app = app
        self._engine = engine
        self._lame_duck_s = lame_duck_s

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        with self._captured_signals():
            await self.listener.open(self._sock, _BACKLOG, self._tls, self._handshakes)
            self.loop = asyncio.get_running_loop()
            self._engine.start(self._on_engine_stopped)
            self.when_started()
            while not self.should_exit:
                await asyncio.sleep(_EXIT_POLL_S)
            await self._shut_down()

    async def _shut_down(self) -> None:
        self._app.leaving = True
        drain_at_s = time.monotonic() + self._lame_duck_s
        # A worker without a revision needs no lame-duck phase.
        while self._engine.state is ModelState.READY and self._lame_duck_s and time.monotonic() < drain_at_s:
            await asyncio.sleep(_POLL_S)
        self._lame_duck_s = 0.0  # from here on SIGINT means: do not wait for the queue either
        self._engine.drain()
        while self._engine.alive and not self._force_exit:
            await asyncio.sleep(_POLL_S)
        if self._force_exit:
            self._engine.abandon()
        await self.listener.close(_LINGER_S, lambda: self._force_exit)
        await self._app.close()

    def _handle_exit(self, number: int, _frame: FrameType | None) -> None:
        if self._lame_duck_s:
            if self.should_exit:
                self._lame_duck_s = 0.0  # second signal: drain now
            self._app.leaving = True  # at once, and not when the loop looks next
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
