"""Health of the operator (whether it works, not only runs), and its HTTP: /healthz, /readyz, /metrics.

A watch can die silently, and a process that answers "ok" can have stopped reconciling. So the API server is asked from
time to time, apart from the watches, for current versions: an index that stays behind has a dead watch, and an object
that only the index has was deleted while a watch was away. While the API server does not answer, the operator counts as
healthy: a restart would not help.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR
from gnnserve_operator.errors import OperatorError
from gnnserve_operator.handlers.index import Index, service_of
from gnnserve_operator.handlers.news import OnChange
from gnnserve_operator.kinds import RECONCILED, ResourceKind, observed_ref
from gnnserve_operator.loop import Loop
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import Namespaces

TICK_LIMIT_S = 60.0
"""Longest time without a turn of the loop, which turns at least every 10 s."""
RECONCILE_LIMIT_S = 300.0
"""Longest reconcile. One is cancelled after 120 s: one that still runs cannot even be cancelled."""
WATCH_LIMIT_S = 60.0
"""Longest lag of a watch; a healthy one lags by milliseconds, and reconnects within a few seconds."""
CHECK_EVERY_S = 30.0
"""Interval of checks in one namespace, or clusterwide. Several namespaces have a list each, at so many times the
interval; what lags behind is checked again after one interval in any case."""
_FIRST_CATCH_UP_S, _LONGEST_CATCH_UP_S = 0.2, 5.0
"""Pauses between two checks of an index that is filling; doubled each time, since full lists are expensive."""
_RETRY_S = 5.0
_WATCHED = (*RECONCILED, *WATCHED_CHILDREN)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WatchLag:
    """Tracks since when the index has lagged behind the cluster, by object; pure."""

    _behind: dict[str, tuple[str | None, float]] = field(default_factory=dict)
    """The version in the index, by uid, and since when the cluster has had another one."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """Number of indexed objects at the last check, by kind."""

    def update(
        self,
        kind: ResourceKind,
        listed: Mapping[str, str],
        indexed: Mapping[str, str],
        now: float,
        *,
        is_filling: bool = False,
    ) -> None:
        """Note a comparison. An index that changes is alive, however far behind; None stands for a missing object on
        either side. `is_filling`: the index is filling from its first list, where one more object counts as a change of
        the whole kind."""
        size = len(listed.keys() & indexed.keys())
        has_grown = is_filling and size > self._sizes.get(kind.plural, 0)
        self._sizes[kind.plural] = size
        behind: dict[str, tuple[str | None, float]] = {}
        for uid in listed.keys() | indexed.keys():
            version = indexed.get(uid)
            if listed.get(uid) == version:
                continue
            name = f"{kind.plural}/{uid}"
            before = self._behind.get(name)
            is_stuck = before is not None and before[0] == version and not (has_grown and version is None)
            behind[name] = before if before is not None and is_stuck else (version, now)
        others = {name: since for name, since in self._behind.items() if not name.startswith(f"{kind.plural}/")}
        self._behind = others | behind

    def is_behind(self, kind: ResourceKind) -> bool:
        return any(name.startswith(f"{kind.plural}/") for name in self._behind)

    def longest_s(self, now: float) -> tuple[float, str]:
        """The longest lag, and the plural of the kind that has it."""
        name, (_, since) = min(self._behind.items(), key=lambda item: item[1][1], default=("/", (None, now)))
        return now - since, name.partition("/")[0]


class WatchCheck:
    def __init__(
        self, cluster: Cluster, index: Index, namespaces: Namespaces, clock: Clock, on_change: OnChange
    ) -> None:
        self._cluster = cluster
        self._index = index
        self._on_change = on_change
        self._namespaces = namespaces
        self._clock = clock
        self._lag = WatchLag()
        self.caught_up = asyncio.Event()
        """Set once the index is complete. Nothing may be decided before: a child that is not indexed yet would look
        missing."""

    async def run(self) -> None:
        never = asyncio.Event()
        waiting, pause_s = list(_WATCHED), _FIRST_CATCH_UP_S
        while waiting := [kind for kind in waiting if not await self._has_all(kind)]:
            await self._clock.wait(never, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_CATCH_UP_S)
        self.caught_up.set()
        round_s, checked_at = CHECK_EVERY_S * len(self._namespaces.watched), self._clock.now()
        while True:
            await self._clock.wait(never, CHECK_EVERY_S)
            is_round = self._clock.now() - checked_at >= round_s
            if is_round:
                checked_at = self._clock.now()
            for kind in _WATCHED:
                if is_round or self._lag.is_behind(kind):
                    await self._has_all(kind)

    def problem(self) -> str | None:
        lag_s, kind = self._lag.longest_s(self._clock.now())
        if lag_s <= WATCH_LIMIT_S:
            return None
        return f"the watch on {kind} has been silent about a change for {lag_s:.0f} s"

    async def _has_all(self, kind: ResourceKind) -> bool:
        """Whether the index has everything that the API server lists; lags are noted."""
        selector = "" if kind in RECONCILED else CHILDREN_SELECTOR
        listed: dict[str, str] = {}
        try:
            for namespace in self._namespaces.watched:
                listed |= await self._cluster.list_versions(kind, namespace, selector)
            await self._bury_the_dead(kind, listed.keys())
        except OperatorError as error:
            logger.warning("cannot tell whether the watch on %s is alive: %s", kind.plural, error)
            await self._clock.wait(asyncio.Event(), _RETRY_S)
            return False
        indexed = {uid: kept.version for uid, kept in self._index.by_uid(kind).items()}
        self._lag.update(kind, listed, indexed, self._clock.now(), is_filling=not self.caught_up.is_set())
        return not listed.keys() - indexed.keys()

    async def _bury_the_dead(self, kind: ResourceKind, listed: Set[str]) -> None:
        for uid, kept in self._index.by_uid(kind).items():
            if uid in listed:
                continue
            body = kept.body()
            # The list may be older than the index: ask for the object itself.
            live = await self._cluster.get(observed_ref(body))
            if live is None or live["metadata"]["uid"] != uid:
                key = service_of(body)
                concerned = (key, *self._index.related(key))
                self._index.bury(uid)
                for other in concerned:
                    self._on_change(other)


def find_problems(loop: Loop, watches: WatchCheck, clock: Clock) -> list[str]:
    """Reasons to restart the operator; empty when it is healthy."""
    idle_s = 0.0 if loop.last_tick is None else clock.now() - loop.last_tick
    running_s = loop.longest_running_s()
    problems = [
        f"the loop has not turned for {idle_s:.0f} s" if idle_s > TICK_LIMIT_S else None,
        f"a reconcile has been running for {running_s:.0f} s" if running_s > RECONCILE_LIMIT_S else None,
        watches.problem(),
    ]
    return [problem for problem in problems if problem is not None]


class Readiness(StrEnum):
    """Answers of /readyz; the value is the text."""

    READY = "ok"
    STANDING_BY = "standing by"
    """Another leads: as ready as it can be."""
    STARTING = "the watches have not begun yet"


@dataclass(frozen=True, slots=True)
class ReadinessAnswer:
    state: Readiness
    remark: str = ""
    """What people should know beside; empty: nothing."""

    def __str__(self) -> str:
        return f"{self.state}; {self.remark}" if self.remark else str(self.state)


def build_app(
    problems: Callable[[], list[str]], readiness: Callable[[], ReadinessAnswer], metrics: Metrics
) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="; ".join(found or ["ok"]) + "\n", status=503 if found else 200)

    async def readyz(_: web.Request) -> web.Response:
        found = readiness()
        return web.Response(text=f"{found}\n", status=503 if found.state is Readiness.STARTING else 200)

    async def metrics_page(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.text(), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_page)
    return app
