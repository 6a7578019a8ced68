"""Whether the operator does its work, not only whether it runs; and its HTTP: /healthz, /readyz, /metrics.

A watch can die without a word, and a process that answers "ok" can have stopped reconciling. So the API server is
asked, from time to time and past the watches, which versions there are: an index that stays behind is a dead watch,
and what only the index has was deleted while a watch was away.
While the API server does not answer, nothing is said against the operator: a restart would not help.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR
from gnnserve_operator.errors import OperatorError
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.handlers.watches import OnChange, service_of
from gnnserve_operator.kinds import GNNSERVICE, Kind
from gnnserve_operator.loop import Loop
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.observed import observed_ref

TICK_LIMIT_S = 60.0
"""The loop turns every 10 s at least."""
RECONCILE_LIMIT_S = 300.0
"""One is cancelled after 120 s: what still runs then cannot even be cancelled."""
WATCH_LIMIT_S = 60.0
"""How long a watch may be behind; a healthy one is by milliseconds, and reconnects within a few seconds."""
CHECK_EVERY_S = 30.0
"""In one namespace, or clusterwide. Several have lists of their own, and so many times as long between them; what is
behind is looked at again so soon in any case."""
_FIRST_CATCH_UP_S, _LONGEST_CATCH_UP_S = 0.2, 5.0
"""Between two looks at an index that fills; twice as long each time, as full lists are not cheap."""
_RETRY_S = 5.0
_WATCHED = (GNNSERVICE, *WATCHED_CHILDREN)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WatchLag:
    """Since when the index has been behind the cluster, by object; pure."""

    _behind: dict[str, tuple[str | None, float]] = field(default_factory=dict)
    """By uid: the version in the index, and since when the cluster has another one."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """By kind: how much was indexed the last time."""

    def update(
        self, kind: Kind, listed: Mapping[str, str], indexed: Mapping[str, str], now: float, *, is_filling: bool = False
    ) -> None:
        """An index that moves on is alive, however far behind; None stands for "not there" on either side.
        `is_filling`: by its first list, in which one more object is a move of the whole kind."""
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

    def is_behind(self, kind: Kind) -> bool:
        return any(name.startswith(f"{kind.plural}/") for name in self._behind)

    def longest_s(self, now: float) -> tuple[float, str]:
        """And the plural of the kind."""
        name, (_, since) = min(self._behind.items(), key=lambda item: item[1][1], default=("/", (None, now)))
        return now - since, name.partition("/")[0]


class WatchCheck:
    def __init__(
        self, cluster: Cluster, index: Index, namespaces: Iterable[str], clock: Clock, on_change: OnChange
    ) -> None:
        self._cluster = cluster
        self._index = index
        self._on_change = on_change
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._clock = clock
        self._lag = WatchLag()
        self.caught_up = asyncio.Event()
        """Before, nothing may be decided: a child that is not in the index yet would look like one that is missing."""

    async def run(self) -> None:
        never = asyncio.Event()
        waiting, pause_s = list(_WATCHED), _FIRST_CATCH_UP_S
        while waiting := [kind for kind in waiting if not await self._has_all(kind)]:
            await self._clock.wait(never, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_CATCH_UP_S)
        self.caught_up.set()
        round_s, checked_at = CHECK_EVERY_S * len(self._namespaces), self._clock.now()
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

    async def _has_all(self, kind: Kind) -> bool:
        """Whether everything that the API server lists is in the index; what lags behind is noted."""
        selector = "" if kind is GNNSERVICE else CHILDREN_SELECTOR
        listed: dict[str, str] = {}
        try:
            for namespace in self._namespaces:
                listed |= await self._cluster.list_versions(kind, namespace, selector)
            await self._bury_the_dead(kind, listed.keys())
        except OperatorError as error:
            logger.warning("cannot tell whether the watch on %s is alive: %s", kind.plural, error)
            await self._clock.wait(asyncio.Event(), _RETRY_S)
            return False
        indexed = {uid: kept.version for uid, kept in self._index.by_uid(kind).items()}
        self._lag.update(kind, listed, indexed, self._clock.now(), is_filling=not self.caught_up.is_set())
        return not listed.keys() - indexed.keys()

    async def _bury_the_dead(self, kind: Kind, listed: Set[str]) -> None:
        for uid, kept in self._index.by_uid(kind).items():
            if uid in listed:
                continue
            body = kept.body()
            # The list may be older than the object: this answer is not.
            live = await self._cluster.get(observed_ref(body))
            if live is None or live["metadata"]["uid"] != uid:
                self._index.bury(uid)
                self._on_change(service_of(body))


def find_problems(loop: Loop, watches: WatchCheck, clock: Clock) -> list[str]:
    """Why the operator should be restarted; empty when it is well."""
    idle_s = 0.0 if loop.last_tick is None else clock.now() - loop.last_tick
    running_s = loop.longest_running_s()
    problems = [
        f"the loop has not turned for {idle_s:.0f} s" if idle_s > TICK_LIMIT_S else None,
        f"a reconcile has been running for {running_s:.0f} s" if running_s > RECONCILE_LIMIT_S else None,
        watches.problem(),
    ]
    return [problem for problem in problems if problem is not None]


class Readiness(StrEnum):
    """What /readyz says; the value is its text."""

    READY = "ok"
    STANDING_BY = "standing by"
    """Another leads: as ready as it can be."""
    STARTING = "the watches have not begun yet"


def build_app(
    problems: Callable[[], list[str]], readiness: Callable[[], Readiness], metrics: Metrics
) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="; ".join(found or ["ok"]) + "\n", status=503 if found else 200)

    async def readyz(_: web.Request) -> web.Response:
        found = readiness()
        return web.Response(text=f"{found}\n", status=503 if found is Readiness.STARTING else 200)

    async def metrics_page(_: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.text(), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_page)
    return app
