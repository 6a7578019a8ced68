"""The loop: a queue of keys to reconcile, each at most once and one at a time, with timers and backoff.

kopf's handlers only report that something about a key changed. The loop decides when to reconcile: soon after a change,
when a reconcile asked for another look, at every resync, and after a failure with a growing, jittered delay. A failing
key never delays another one, and a resync's looks give way to all others. `reconcile.py` is the reconcile itself; time
comes from a `Clock`, so that tests need not wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from gnnserve_operator.clock import Clock
from gnnserve_operator.errors import ConflictError, LostLeadershipError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.metrics import Metrics, Result

SETTLE_S = 0.1
"""Seconds from a change to the reconcile: changes come in bursts, such as the children that one reconcile created."""
BURST = 20
"""Changes of one key that are reconciled without a limit of rate; a service that starts causes about as many."""
SUSTAINED_PER_S = 1.0
"""Reconciles per second beyond the burst: an opponent that reverts every write, as a second operator would, must not
keep the cluster busy."""
CONFLICTS = 5
"""Conflicts in a row that are not reported: an object changed during the reconcile, and the watch is about to report
it. Each doubles the delay to the next reconcile, so the last one takes 1.6 s."""
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
"""Longest delay after failures: a user who has just fixed the cause should not wait for longer."""
ROUTINE_WAIT_S = 30.0
"""Seconds for which a resync's look gives way to what becomes due after it: users wait for the answer to an edit, not
for a resync. Then it has its turn, however much else happens."""
LONGEST_TICK_S = 10.0
"""Longest interval between two turns of the loop, by which /healthz knows that it runs."""
RECONCILE_LIMIT_S = 120.0
"""Limit of a whole reconcile; every request has its own, shorter timeout."""
STOP_S = 5.0
"""Time for running reconciles when the operator stops."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _DueTime:
    """When a key is due, and its place among those that are."""

    at: float
    place: float
    """The smallest is first."""

    def earliest(self, other: _DueTime | None) -> _DueTime:
        return self if other is None else _DueTime(min(self.at, other.at), min(self.place, other.place))


@dataclass(slots=True)
class WorkQueue:
    """The keys that are due; it has no clock and no tasks."""

    _due: dict[ServiceKey, _DueTime] = field(default_factory=dict)
    _running: dict[ServiceKey, _DueTime | None] = field(default_factory=dict)
    """Running keys; the value is when the key is due again because something happened while it ran."""
    _routine: set[ServiceKey] = field(default_factory=set)
    """Running keys to which nothing happened."""

    def add(self, key: ServiceKey, due: float, *, is_routine: bool = False) -> None:
        """Add a key; the earliest of the requested times counts. `is_routine`: nothing happened, and keys that become
        due within ROUTINE_WAIT_S go first."""
        added = _DueTime(due, due + ROUTINE_WAIT_S if is_routine else due)
        if key in self._running:
            self._running[key] = added.earliest(self._running[key])
        else:
            self._due[key] = added.earliest(self._due.get(key))

    def take(self, now: float) -> ServiceKey | None:
        """Take the first of the keys that are due; it counts as running until `done`. Beside one to which something
        happened, keys of a resync run one at a time: each holds up all others while it computes."""
        due = [key for key, time in self._due.items() if time.at <= now]
        key = min(due, key=lambda key: self._due[key].place, default=None)
        if key is None:
            return None
        is_routine = self._due[key].place > now
        if is_routine and 0 < len(self._routine) < len(self._running):
            return None
        del self._due[key]
        self._running[key] = None
        if is_routine:
            self._routine.add(key)
        return key

    def done(self, key: ServiceKey) -> None:
        again = self._running.pop(key)
        self._routine.discard(key)
        if again is not None:
            self._due[key] = again

    def next_due(self, after: float = -math.inf) -> float | None:
        """The next time after that one at which a key is due; None: there is none."""
        return min((time.at for time in self._due.values() if time.at > after), default=None)

    def depth(self, now: float) -> int:
        return sum(time.at <= now for time in self._due.values())


@dataclass(slots=True)
class RateLimit:
    """A token bucket of reconciles for each key; pure."""

    _left: dict[ServiceKey, tuple[float, float]] = field(default_factory=dict)
    """Tokens left, and the time of that count."""

    def spend(self, key: ServiceKey, now: float) -> None:
        self._left[key] = (max(self._filled(key, now) - 1, 0), now)

    def delay_s(self, key: ServiceKey, now: float) -> float:
        """Seconds until a token is available."""
        return max(1 - self._filled(key, now), 0) / SUSTAINED_PER_S

    def tidy(self, now: float) -> None:
        self._left = {key: left for key, left in self._left.items() if self._filled(key, now) < BURST}

    def _filled(self, key: ServiceKey, now: float) -> float:
        left, at = self._left.get(key, (BURST, now))
        return min(left + (now - at) * SUSTAINED_PER_S, BURST)


@dataclass(frozen=True, slots=True)
class _Failures:
    """Consecutive failures of a key."""

    count: int = 0
    message: str = ""
    """Message of the last one, so that the same is not logged again."""


def backoff_s(failures: int, jitter: float) -> float:
    """Delay after that many failures in a row; `jitter`, between 0 and 1, separates keys that failed together."""
    longest = min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
    return longest * (0.5 + jitter / 2)


class Loop:
    """Runs reconciles. `reconcile` returns the seconds until the next look, or None for the next change or resync."""

    def __init__(
        self,
        reconcile: Callable[[ServiceKey], Awaitable[float | None]],
        list_keys: Callable[[], Iterable[ServiceKey]],
        metrics: Metrics,
        *,
        concurrency: int,
        resync_s: float,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._reconcile = reconcile
        self._list_keys = list_keys
        self._metrics = metrics
        self._concurrency = concurrency
        self._resync_s = resync_s
        self._clock = clock
        self._jitter = jitter
        self._queue = WorkQueue()
        self._rate = RateLimit()
        self._failures: dict[ServiceKey, _Failures] = {}
        self._conflicts: dict[ServiceKey, int] = {}
        """Consecutive conflicts by key."""
        self._tasks: dict[ServiceKey, asyncio.Task[None]] = {}
        self._started: dict[ServiceKey, float] = {}
        self._wake = asyncio.Event()
        self._next_resync = clock.now()
        self._is_stopping = False
        self._lost: LostLeadershipError | None = None
        self.last_tick: float | None = None
        """When the loop turned last; None: it has not begun."""
        metrics.observe_queue(lambda: self._queue.depth(clock.now()))

    def enqueue(self, key: ServiceKey) -> None:
        """Note that something about the key changed."""
        self._add(key, max(SETTLE_S, self._rate.delay_s(key, self._clock.now())))

    def nudge(self, key: ServiceKey) -> None:
        """Note news that can wait: a failing key keeps its own delay."""
        if key not in self._failures:
            self.enqueue(key)

    def stop(self) -> None:
        """Start no further reconcile; `run` returns when the running ones are done, within seconds."""
        self._is_stopping = True
        self._wake.set()

    def longest_running_s(self) -> float:
        return max((self._clock.now() - started for started in self._started.values()), default=0.0)

    async def run(self) -> None:
        """Run until told to stop. Raises LostLeadershipError when a reconcile met it."""
        try:
            while not self._is_stopping:
                await self._clock.wait(self._wake, self._tick())
                self._wake.clear()
        finally:
            await self._finish()
        if self._lost is not None:
            raise self._lost

    def _tick(self) -> float:
        """Start the keys that are due; returns the seconds until the next one is."""
        now = self.last_tick = self._clock.now()
        if now >= self._next_resync:
            self._next_resync = now + self._resync_s
            self._rate.tidy(now)
            for known in self._list_keys():
                if known not in self._failures:  # which has its own time, that a resync must not bring forward
                    self._queue.add(known, now, is_routine=True)
        while len(self._tasks) < self._concurrency and (key := self._queue.take(now)) is not None:
            self._started[key] = now
            self._rate.spend(key, now)
            task = self._tasks[key] = asyncio.create_task(self._run_one(key), name=f"reconcile {key}")
            task.add_done_callback(partial(self._done, key))
        next_due = self._queue.next_due(after=now)
        if next_due is None or len(self._tasks) >= self._concurrency:
            next_due = now + LONGEST_TICK_S  # a reconcile that ends wakes the loop
        return min(next_due - now, self._next_resync - now, LONGEST_TICK_S)

    def _done(self, key: ServiceKey, _: asyncio.Task[None]) -> None:
        del self._tasks[key], self._started[key]
        self._queue.done(key)
        self._wake.set()

    async def _run_one(self, key: ServiceKey) -> None:
        started = self._clock.now()
        try:
            async with asyncio.timeout(RECONCILE_LIMIT_S):
                look_again_s = await self._reconcile(key)
        except LostLeadershipError as error:
            self._lost = error
            self.stop()
        except ConflictError as error:
            self._conflicted(key, error)
        except RetryLaterError as error:
            self._failed(key, Result.RETRY, error, error.after_s or 0.0)
        except RefusedError as error:
            self._failed(key, Result.REFUSED, error)
        except Exception as error:  # noqa: BLE001 - one broken object must not stop the others
            self._failed(key, Result.ERROR, error)
        else:
            self._failures.pop(key, None)
            self._conflicts.pop(key, None)
            self._metrics.reconciles.labels(Result.SUCCESS.value).inc()
            if look_again_s is not None:
                self._add(key, look_again_s)
        finally:
            self._metrics.reconcile_seconds.observe(self._clock.now() - started)
        logger.debug("reconciled", extra=key.about(duration_s=self._clock.now() - started))

    def _conflicted(self, key: ServiceKey, error: ConflictError) -> None:
        conflicts = self._conflicts[key] = self._conflicts.get(key, 0) + 1
        if conflicts > CONFLICTS:
            self._failed(key, Result.CONFLICT, error)
            return
        self._metrics.reconciles.labels(Result.CONFLICT.value).inc()
        logger.debug("%s; looked at again", error, extra=key.about(reason=type(error).__name__))
        self._add(key, SETTLE_S * 2 ** (conflicts - 1))

    def _failed(self, key: ServiceKey, result: Result, error: Exception, at_least_s: float = 0.0) -> None:
        message = str(error) or type(error).__name__
        before = self._failures.get(key, _Failures())
        failures = before.count + 1
        self._failures[key] = _Failures(failures, message)
        delay_s = max(backoff_s(failures, self._jitter()), at_least_s)
        self._metrics.reconciles.labels(result.value).inc()
        logger.log(
            logging.DEBUG if message == before.message else logging.WARNING,
            "%s; attempt %d failed, the next one is in %.1f s at the latest",
            message, failures, delay_s,
            exc_info=error if result is Result.ERROR else None,
            extra=key.about(reason=type(error).__name__),
        )  # fmt: skip
        self._add(key, delay_s)

    def _add(self, key: ServiceKey, delay_s: float) -> None:
        self._queue.add(key, self._clock.now() + delay_s)
        self._wake.set()

    async def _finish(self) -> None:
        tasks = set(self._tasks.values())
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=STOP_S)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
