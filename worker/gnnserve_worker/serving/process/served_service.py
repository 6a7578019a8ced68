"""One service of a server: its socket, credentials, metrics and HTTP application, and what other threads do with it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnserve_api.errors import NO_USABLE_CREDENTIALS
from gnnserve_api.pods.routing import Damage, Route, RoutingTable
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.model import ModelState
from gnnserve_worker.serving.grpc.limits import DEFAULT_GRPC_LIMITS
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.wire.limits import Patience, Room
from gnnserve_worker.serving.http.wire.listener import HttpListener
from gnnserve_worker.serving.metrics.metrics import CounterValue, ServingMetrics
from gnnserve_worker.serving.process.canary import ServedCanary
from gnnserve_worker.serving.process.log_follower import LogFollower
from gnnserve_worker.serving.process.loop_calls import LoopCalls
from gnnserve_worker.serving.security.credentials import (
    NO_CREDENTIALS,
    Credentials,
    CredentialsFollower,
    CredentialsInUse,
)
from gnnserve_worker.serving.tracing.options import TracingOptions
from gnnserve_worker.serving.tracing.tracer import Tracer

if TYPE_CHECKING:
    from gnnserve_worker.serving.grpc.listener import GrpcListener
    from gnnserve_worker.serving.tracing.exporter import OtlpSink

_WAIT_S = 0.5
"""Seconds between two looks at the problem of credentials that a worker waits for."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A service that a server answers for."""

    name: str
    sock: socket.socket
    """Bound to the address that the service answers at."""
    credentials: Credentials = NO_CREDENTIALS
    updates: Updates | None = None
    """Closed at the end; None: the graph does not change."""
    share: float = 1.0
    """What the service gets of the worker's time where all services could use it, in relation to the others."""
    grpc: socket.socket | None = None
    """Bound to the address at which the service answers over gRPC; None: it does not."""
    tracing: TracingOptions | None = None
    """Where traces go; None: nothing is traced."""


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of a service."""

    route: Route
    counters: tuple[CounterValue, ...]


class ServedService:
    """A service that a server answers for, from the revision passed to `switch`. Once the server has started, other
    threads may call every method but those that are said to be the server's."""

    def __init__(
        self,
        settings: ServiceSettings,
        metrics: ServingMetrics,
        credentials: CredentialsInUse,
        engine: Engine,
        calls: LoopCalls,
        patience: Patience,
        room: Room,
    ) -> None:
        """`metrics`: those that the engine counts the service's batches in."""
        self.name = settings.name
        self.sock = settings.sock
        self.tls = credentials.tls
        self._engine = engine
        self._weight = settings.share
        self._canary: ServedCanary | None = None
        """A second revision; None: one answers all requests. It changes on the event loop."""
        self._model = engine.models[settings.name]
        self._log = LogFollower(settings.updates)
        self._metrics = metrics
        self._credentials = credentials
        self._calls = calls
        self._follower = CredentialsFollower(credentials, calls.call_later)
        self.app = ServingApp(
            settings.name,
            engine,
            metrics,
            credentials.access,
            credentials.states,
            credentials.write_access,
            settings.updates,
        )
        self._spans: OtlpSink | None = None
        if settings.tracing is not None:
            # Most servers trace nothing, and need no package for it.
            from gnnserve_worker.serving.tracing.exporter import OtlpSink  # noqa: PLC0415

            self._spans = OtlpSink(settings.name, settings.tracing)
            self._model.tracer = Tracer(self._spans, settings.tracing.sampled_permille)
            metrics.watch_spans(self._spans)
        self.listener = HttpListener(self.app, patience, room)
        self._grpc: GrpcListener | None = None
        if settings.grpc is not None:
            # Most servers have none, and its library takes a tenth of a second.
            from gnnserve_worker.serving.grpc.listener import GrpcListener  # noqa: PLC0415

            self._grpc = GrpcListener(self.app, settings.grpc, credentials.tls)

    # The server's

    @property
    def grpc_connections(self) -> int:
        """Connections that may be open beside those of HTTP."""
        return 0 if self._grpc is None else DEFAULT_GRPC_LIMITS.connections

    def queue_input(self) -> None:
        """Have input wait for the service's turns, since the server has other services."""
        inlet = self._engine.inlet_of(self.name)
        self.listener.queue_input(inlet)
        self.app.inlet = inlet

    async def open_grpc(self) -> None:
        if self._grpc is not None:
            await self._grpc.open()

    async def close_grpc(self, linger_s: float, is_forced: Callable[[], bool]) -> None:
        if self._grpc is not None:
            await self._grpc.close(linger_s, is_forced)

    def begin(self) -> None:
        """Begin what runs beside the requests, on the event loop."""
        self._log.start()
        self._metrics.history.start()
        if self._credentials.may_change:
            self._follower.start()

    def end(self) -> None:
        self._follower.stop()
        self._metrics.history.stop()
        if self._spans is not None:
            self._spans.end()

    def send_spans(self, timeout_s: float) -> None:
        """After the end: wait until the spans that are left are sent, or for this long."""
        if self._spans is not None:
            self._spans.join(timeout_s)

    @property
    def answers(self) -> bool:
        """Whether it has a revision to answer from, and is not draining."""
        return self._model.state is ModelState.READY

    @property
    def metrics(self) -> ServingMetrics:
        return self._metrics

    # Any thread's

    @property
    def revision(self) -> str | None:
        """Name of the revision that answers, as of the event loop; None: none does."""
        lane = self._model.lane
        return None if lane is None else lane.revision.manifest.revision

    def why_failing(self, revision: ServedRevision) -> str:
        """What of this revision's answers fails; empty: they do not, or another one answers."""
        said: list[str] = []

        def look() -> None:
            if self._answers_from(revision):
                said.append(self._model.why_failing())

        self._calls.call(look)
        return said[0] if said else ""

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
            self._log.follow(revision)
            if self._canary is not None:
                self._canary.settle()

        with self._log.handing_over(revision):
            self._calls.call(switch)

    def open_canary(self, revision: str, percent: int) -> ServedCanary:
        """Begin to answer this share of the requests by a second revision, as soon as it is switched to. There must be
        no other."""
        canary = ServedCanary(
            self.name, revision, self._engine, self.app.predict, self._calls, self._weight, self._log.another(),
            self._show_canary,
        )  # fmt: skip
        canary.open(percent)
        return canary

    def _show_canary(self, canary: ServedCanary | None) -> None:
        self._canary = canary
        self.app.canary = canary
        self._metrics.watch_canary(lambda: None if canary is None else canary.sample())

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """Stop answering from this revision, whose files are not what was verified. No effect if another one answers by
        now."""

        def withdraw() -> None:
            if self._answers_from(revision):
                self._metrics.show_intact(False)
                self._model.withdraw(problem)
                self._log.follow(None)

        self._calls.call(withdraw)

    def _answers_from(self, revision: ServedRevision) -> bool:
        lane = self._model.lane
        return lane is not None and lane.revision is revision

    def warn(self, revision: ServedRevision, problem: str) -> None:
        """Report a revision that answers correctly, but that the next start would not find."""

        def warn() -> None:
            if self._answers_from(revision):
                self._metrics.show_intact(False)
                self._model.problem = problem

        self._calls.call(warn)

    def look(self) -> Look | None:
        """A snapshot of the service; None: no revision answers."""
        seen: list[Look] = []

        def look() -> None:
            if self._model.lane is not None:
                seen.append(Look(self._model.route(), self._metrics.load_counters()))

        self._calls.call(look)
        return seen[0] if seen else None

    def wait_for_credentials(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until all configured credentials are usable, or `given_up`; meanwhile report what is wrong with
        them."""
        complete = self._credentials.complete

        def report() -> None:
            problems = [state.problem for state in self._credentials.states() if not state.is_usable]
            self._model.problem = f"{NO_USABLE_CREDENTIALS}: {'; '.join(problems)}" if problems else None

        while not (complete.is_set() or self._calls.ended or given_up()):
            self._calls.call(report)
            complete.wait(_WAIT_S)

    def report(self, problem: str | None, damage: Damage | None = None) -> None:
        """Report why the declared revision is not the one that answers; None when it is."""

        def report() -> None:
            self._model.problem, self._model.damage = problem, damage

        self._calls.call(report)

    def call_later(self, act: Callable[[], object]) -> None:
        """Run `act` on the event loop, without waiting for it; not at all if the server has ended."""
        self._calls.call_later(act)
