"""Routing's slow loop in the server's own process, for servers outside of a cluster.

The ticks are `gnnserve_routing`'s, as in the operator: at each interval it looks at what the worker counted, or asks a
Prometheus for it, and tells the worker a new table where that says something else. It has a thread of its own; the
event loop is asked for two short things only, to copy counters and to take a table.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gnnserve_api.pods.routing import Route, RoutingTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_routing.decision import RoutingDecision, TickContext, next_due_s, recover_state, run_tick, undecided
from gnnserve_routing.signals import QueryAnswer, Sample, Series, Signals, Silence
from gnnserve_worker.serving.metrics.metrics import CounterValue
from gnnserve_worker.serving.process.served_service import Look

_KEPT_SCRAPES = 3
"""The decision is about the last interval; one more, should a tick have been late."""
_STOP_PATIENCE_S = 2.0


class RoutedService(Protocol):
    """`local_service.py`'s LocalService, as far as it concerns this."""

    def look(self) -> Look | None: ...

    def route(self, table: RoutingTable) -> None: ...


class LoadSource(Protocol):
    """A source of measured load. It never raises."""

    def ask(self, look: Look) -> QueryAnswer | Silence: ...


class OwnRegistry:
    """The worker's counters, as a Prometheus beside it would have them that scrapes once an interval."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._scrapes: deque[tuple[float, tuple[CounterValue, ...]]] = deque(maxlen=_KEPT_SCRAPES)

    def ask(self, look: Look) -> QueryAnswer | Silence:
        now_s = self._clock_s()
        self._scrapes.append((now_s, look.counters))
        samples: dict[tuple[str, tuple[str, str] | None], list[Sample]] = {}
        for time_s, counters in self._scrapes:
            for counter in counters:
                samples.setdefault((counter.name, counter.label), []).append(Sample(time_s, counter.value))
        if len(self._scrapes) == 1:
            return Silence(Reason.NO_DATA, "The worker was looked at once so far.")
        series = tuple(
            Series({"__name__": name, **dict([] if label is None else [label])}, tuple(found))
            for (name, label), found in samples.items()
        )
        return QueryAnswer(series, now_s)


@dataclass(slots=True)
class _FollowedRevision:
    """A revision, and what was decided about it."""

    decision: RoutingDecision
    table: RoutingTable
    """The routing table in effect."""
    told_base: str
    """People know of it."""


class LocalSlowLoop:
    """Ends with the process at the latest."""

    def __init__(
        self,
        served: RoutedService,
        spec: GNNServiceSpec,
        source: LoadSource,
        *,
        name: str = "",
        say: Callable[[str], object] = lambda line: print(line, flush=True),
        warn: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._served = served
        self._spec = spec
        self._source = source
        self._prefix = f"{name}: " if name else ""
        self._say = say
        self._warn = warn
        self._interval_s = float(spec.routing.interval_seconds)
        self._followed: _FollowedRevision | None = None
        self._trouble: str | None = None
        """What was warned of last, and still is so."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop. A thread that waits for an answer is not waited for."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_PATIENCE_S)

    def _run(self) -> None:
        # The first look, at once, is what the second one is compared with.
        due_s = time.monotonic()
        while not self._stopped.wait(max(0.0, due_s - time.monotonic())):
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001  (the worker goes on by its last table, and the next tick may do)
                self._note_trouble("error", f"{type(error).__name__}: {error}.")
            due_s = next_due_s(due_s, self._interval_s, time.monotonic())

    def tick(self) -> None:
        look = self._served.look()
        if look is None:
            return
        followed = self._follow(look.route)
        declared = self._spec.routing_table(look.route.revision)
        # A Prometheus may see several servers by this name, each of which decides for itself.
        context = TickContext(self._spec, declared, look.route.variants)
        tick = run_tick(followed.decision, context, self._source.ask(look), datetime.now(UTC))
        if isinstance(tick.measured, Signals):
            self._note_trouble(None, "")
        elif isinstance(tick.measured, Silence) and not isinstance(self._source, OwnRegistry):
            self._note_trouble(tick.measured.reason, tick.measured.message)
        if tick.table != followed.table:
            self._served.route(tick.table)
        followed.decision, followed.table = tick.decision, tick.table
        state = tick.decision.state
        if state.base is not None and state.base != followed.told_base:
            self._say(f"{self._prefix}Base variant: {state.base}, before {followed.told_base}. {state.reason}")
            followed.told_base = state.base

    def _follow(self, route: Route) -> _FollowedRevision:
        if self._followed is None or self._followed.decision.state.revision != route.revision:
            known = undecided(recover_state(route.revision, None))
            self._followed = _FollowedRevision(known, self._spec.routing_table(route.revision), route.base_variant)
        return self._followed

    def _note_trouble(self, kind: str | None, message: str) -> None:
        """Logs trouble once, and once more when it is over."""
        if kind == self._trouble:
            return
        self._trouble = kind
        if kind is None:
            self._warn(f"{self._prefix}routing: the load is known again.")
        else:
            self._warn(f"{self._prefix}routing: {message} What was decided last stays in effect.")


@contextmanager
def slow_loop(spec: GNNServiceSpec, source: LoadSource, name: str = "") -> Iterator[Callable[[RoutedService], None]]:
    """Yields a function that starts the loop, once there is a server to tell; the loop ends with the block. `name`: of
    the service, where there are several."""
    begun: list[LocalSlowLoop] = []

    def begin(served: RoutedService) -> None:
        begun.append(LocalSlowLoop(served, spec, source, name=name))
        begun[-1].start()

    try:
        yield begin
    finally:
        for loop in begun:
            loop.stop()
