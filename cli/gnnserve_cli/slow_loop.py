"""Routing's slow loop in the server's own process, for servers outside of a cluster.

The same decision as the operator's, from the same pure functions: each interval it looks at what the worker counted, or
asks a Prometheus for it, and tells the worker a new table where that says something else. It has a thread of its own;
the event loop is asked for two short things only, to copy counters and to take a table.
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

from gnnserve_api.gnnservice import GNNServiceSpec
from gnnserve_api.routing import RoutingTable
from gnnserve_operator.decide.routing import RoutingState, decide_routing, recover_state, routed_table
from gnnserve_operator.decide.signals import Answer, Sample, Series, Signals, Silence, read_signals
from gnnserve_operator.decide.verdict import Reason
from gnnserve_worker.serving.metrics import CounterValue
from gnnserve_worker.serving.server import Look

_KEPT_SCRAPES = 3
"""The decision is about the last interval; one more, should a tick have been late."""
_STOP_PATIENCE_S = 2.0


class Served(Protocol):
    """`serving/server.py`'s Serving, as far as it concerns this."""

    def look(self) -> Look | None: ...

    def route(self, table: RoutingTable) -> None: ...


class Source(Protocol):
    """Where the load was measured. Never raises."""

    def ask(self, look: Look) -> Answer | Silence: ...


class OwnRegistry:
    """The worker's counters, as a Prometheus beside it would have them that scrapes once an interval."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._scrapes: deque[tuple[float, tuple[CounterValue, ...]]] = deque(maxlen=_KEPT_SCRAPES)

    def ask(self, look: Look) -> Answer | Silence:
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
        return Answer(series, now_s)


@dataclass(slots=True)
class _Followed:
    """A revision, and what was decided about it."""

    state: RoutingState
    table: RoutingTable
    """In effect."""
    told_base: str
    """People know of it."""


class SlowLoop:
    """Ends with the process at the latest."""

    def __init__(
        self,
        served: Served,
        spec: GNNServiceSpec,
        source: Source,
        *,
        say: Callable[[str], object] = lambda line: print(line, flush=True),
        warn: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._served = served
        self._spec = spec
        self._source = source
        self._say = say
        self._warn = warn
        self._interval_s = float(spec.routing.interval_seconds)
        self._followed: _Followed | None = None
        self._trouble: str | None = None
        """What was warned of last, and still is so."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Where it waits for an answer, it is left to itself."""
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
            # Ticks that were missed are not made up for.
            due_s = max(due_s + self._interval_s, time.monotonic())

    def tick(self) -> None:
        look = self._served.look()
        if look is None:
            return
        route = look.route
        followed = self._follow(look)
        found = self._source.ask(look)
        measured = found if isinstance(found, Silence) else read_signals(found, interval_s=self._interval_s, workers=1)
        workers = 1
        if isinstance(measured, Signals):
            # Of a Prometheus that sees several servers by this name, each of which decides for itself.
            workers = max(1, measured.workers_seen)
            self._note_trouble(None, "")
        elif not isinstance(self._source, OwnRegistry):
            self._note_trouble(measured.reason, measured.message)
        decision = decide_routing(followed.state, self._spec, route.variants, workers, measured, datetime.now(UTC))
        table = routed_table(self._spec.routing_table(route.revision), decision.state, self._interval_s)
        if table != followed.table:
            self._served.route(table)
        followed.state, followed.table = decision.state, table
        if (base := decision.state.base) is not None and base != followed.told_base:
            self._say(f"Base variant: {base}, before {followed.told_base}. {decision.state.reason}")
            followed.told_base = base

    def _follow(self, look: Look) -> _Followed:
        route = look.route
        if self._followed is None or self._followed.state.revision != route.revision:
            self._followed = _Followed(
                recover_state(route.revision, None), self._spec.routing_table(route.revision), route.base_variant
            )
        return self._followed

    def _note_trouble(self, kind: str | None, message: str) -> None:
        """Said once, and once when it is over."""
        if kind == self._trouble:
            return
        self._trouble = kind
        if kind is None:
            self._warn("routing: the load is known again.")
        else:
            self._warn(f"routing: {message} What was decided last stays in effect.")


@contextmanager
def slow_loop(spec: GNNServiceSpec, source: Source) -> Iterator[Callable[[Served], None]]:
    """A function to begin it with, once there is somebody to be told; it ends with the block."""
    begun: list[SlowLoop] = []

    def begin(served: Served) -> None:
        begun.append(SlowLoop(served, spec, source))
        begun[-1].start()

    try:
        yield begin
    finally:
        for loop in begun:
            loop.stop()
