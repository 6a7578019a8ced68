"""One process of the operator, stepped by the world: everything of it is real but kopf, the loop's tasks and sockets.

When to look is decided by the loop's own parts (its queue, rate limit and backoff); what is done with a change, a
failure and a resync is as in `loop.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.control.campaign.clock import SimClock
from tests.control.campaign.view import Meddle, View, tell
from tests.support.kubernetes.api_server import Request, Response
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.kubernetes.in_process import InProcessTransport

from gnnserve_operator.apply import Applier
from gnnserve_operator.cluster import ApiAnswer, Cluster
from gnnserve_operator.errors import ConflictError, LostLeadershipError, RefusedError, RetryLaterError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.health import WatchCheck
from gnnserve_operator.kinds import Manifest, ServiceKey
from gnnserve_operator.loop import CONFLICTS, SETTLE_S, RateLimit, WorkQueue, backoff_s
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.observe import JobRefusals, Observer, PodMonitors, PoolObserver, RepositoryClaims, UsersClaims
from gnnserve_operator.observed import Answers, ObservedPod
from gnnserve_operator.probe import Addresses, Prober
from gnnserve_operator.reconcile import Reconciler, reconciled_kinds
from gnnserve_operator.report import Reporter
from gnnserve_operator.settings import Settings
from gnnserve_operator.slow_loop import RoutingMemory, SlowLoop
from gnnserve_routing.signals import QueryAnswer, Silence

RESYNC_S = 60.0
JITTER = 1.0
_WRITE_LIMIT_S = 60.0
"""Limit of a write in real time, which it never reaches here."""


class Crash(BaseException):
    """As SIGKILL: nothing of the operator may catch it."""


@dataclass(slots=True)
class SimProber(Prober):
    """Asks the simulated workers."""

    answer: Callable[..., Answers] = field(default=lambda key, pods: Answers())

    async def ask(self, key: ServiceKey, pods: Iterable[ObservedPod], *, tls: bool = False) -> Answers:
        return self.answer(key, pods)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process of the operator finds."""

    cluster: FakeCluster
    clock: SimClock
    respond: Callable[[Request], Response]
    hold: Callable[[Request], Awaitable[None]]
    """Before a request is sent: a process that is stopped stays there."""
    answer: Callable[..., Answers]
    """Answers of workers."""
    measure: Callable[[str, str], QueryAnswer | Silence]
    """By Prometheus."""


@dataclass(frozen=True, slots=True)
class _Transport(InProcessTransport):
    hold: Callable[[Request], Awaitable[None]]

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        await self.hold(Request(method, url))
        return await InProcessTransport.send(self, method, url, headers, body)


@dataclass(slots=True)
class SimLeadership:
    """A Lease that is lost when the world says so."""

    term: int
    is_lost: bool = False
    fence: str = "gnnserve-system.gnnserve"

    def remaining_s(self) -> float:
        if self.is_lost:
            raise LostLeadershipError("another leads by now")
        return _WRITE_LIMIT_S

    def note_unanswered(self) -> None:
        pass


class SimOperator:
    def __init__(
        self, around: Surroundings, settings: Settings, meddle: Meddle = tell, behind: int = 0, term: int = 1
    ) -> None:  # fmt: skip
        self.settings = settings
        self.clock = around.clock
        self.view = View(around.cluster, self.enqueue, self._is_own_status, meddle)
        self._memory = RoutingMemory()
        metrics = Metrics(self._memory)
        self.leadership = SimLeadership(term)
        cluster = Cluster(_Transport(around.respond, around.hold), metrics, self.leadership)
        self._measure = around.measure
        self._slow_loop = SlowLoop(self._ask, self.nudge, self.clock)
        prober = SimProber(Addresses("cluster.local"), answer=around.answer)
        index = self.view.index
        claims = RepositoryClaims(cluster, UsersClaims(cluster, RESYNC_S, self.clock))
        fleet = Fleet(
            index.reconciled_keys, index.standings, self.nudge,
            max_jobs=settings.max_concurrent_jobs, max_rollouts=settings.max_concurrent_rollouts,
        )  # fmt: skip
        monitors = PodMonitors(cluster, Namespaces(), RESYNC_S, self.clock)
        refusals = JobRefusals(cluster, self.clock)
        self.observer = Observer(index, prober, monitors, claims, refusals)
        kinds = reconciled_kinds(self.observer, PoolObserver(index, monitors, claims))
        self.reconciler = Reconciler(
            settings, index, cluster, kinds, monitors, Applier(cluster), Reporter(cluster), self.clock,
            self._slow_loop, self._memory, fleet,
        )  # fmt: skip
        self.watches = WatchCheck(cluster, index, Namespaces(), self.clock, self.enqueue)
        self.queue = WorkQueue()
        self._rate = RateLimit()
        self.failures: dict[ServiceKey, int] = {}
        self._conflicts: dict[ServiceKey, int] = {}
        self.next_resync = self.clock.now()
        self.reconciles = 0
        self.crashed = False
        self.panics: list[str] = []
        self._checking: asyncio.Task[None] | None = None
        self.view.begin(behind)

    def enqueue(self, key: ServiceKey) -> None:
        self.queue.add(key, self.clock.now() + max(SETTLE_S, self._rate.delay_s(key, self.clock.now())))

    def _is_own_status(self, key: ServiceKey, service: Manifest) -> bool:
        return self.reconciler.reporter.is_echo(key, service)

    def nudge(self, key: ServiceKey) -> None:
        if key not in self.failures:
            self.enqueue(key)

    def watch_the_watches(self) -> None:
        """With `WatchCheck`, which costs a dozen lists each time: where a view is not what it should be."""
        self._checking = asyncio.create_task(self.watches.run())

    @property
    def may_begin(self) -> bool:
        return self._checking is None or self.watches.caught_up.is_set()

    def next_due(self) -> float:
        mine = (self.queue.next_due(), self.next_resync) if self.may_begin else (None,)
        return min((due for due in (*mine, self.view.next_due()) if due is not None), default=math.inf)

    def is_idle(self) -> bool:
        """Until the next resync, as far as it knows."""
        return self.may_begin and self.queue.next_due() is None and self.view.is_caught_up()

    def is_at_ease(self) -> bool:
        """Whether it has been told all, nothing has failed, and nothing is due before a time that it has set itself."""
        due = self.queue.next_due()
        is_due = due is not None and due <= self.clock.now() + SETTLE_S
        return self.may_begin and self.view.is_caught_up() and not self.failures and not is_due

    def listen(self) -> None:
        self.view.fetch(self.clock.now())
        self.view.receive(self.clock.now())

    async def turn(self) -> bool:
        """One reconcile, if one is due."""
        now = self.clock.now()
        if not self.may_begin:
            return False
        if now >= self.next_resync:
            self.next_resync = now + RESYNC_S
            for known in self.view.index.service_keys():
                if known not in self.failures:
                    self.queue.add(known, now, is_routine=True)
        key = self.queue.take(now)
        if key is None:
            return False
        self._rate.spend(key, now)
        self.reconciles += 1
        try:
            again_s = await self.reconciler.reconcile(key)
        except LostLeadershipError:
            self.crashed = True
        except ConflictError:
            self._conflicted(key)
        except RetryLaterError as error:
            self._failed(key, error.after_s or 0.0)
        except RefusedError:
            self._failed(key)
        except Crash:
            self.crashed = True
        except Exception:  # noqa: BLE001 - as the loop does; here it is a find
            self.panics.append(traceback.format_exc())
            self._failed(key)
        else:
            self.failures.pop(key, None)
            self._conflicts.pop(key, None)
            if again_s is not None:
                self.queue.add(key, self.clock.now() + again_s)
        self.queue.done(key)
        return True

    async def end(self) -> None:
        await self._slow_loop.close()
        if self._checking is not None:
            self._checking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Crash):
                await self._checking

    def _conflicted(self, key: ServiceKey) -> None:
        conflicts = self._conflicts[key] = self._conflicts.get(key, 0) + 1
        if conflicts > CONFLICTS:
            self._failed(key)
        else:
            self.queue.add(key, self.clock.now() + SETTLE_S * 2 ** (conflicts - 1))

    def _failed(self, key: ServiceKey, at_least_s: float = 0.0) -> None:
        failures = self.failures[key] = self.failures.get(key, 0) + 1
        self.queue.add(key, self.clock.now() + max(backoff_s(failures, JITTER), at_least_s))

    async def _ask(self, url: str, query: str) -> QueryAnswer | Silence:
        return self._measure(url, query)
