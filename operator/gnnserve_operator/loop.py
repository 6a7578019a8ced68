"""Who is reconciled when: a queue of keys, each at most once and one at a time, with timers and backoff.

kopf's handlers only say that something about a key changed. This loop decides when to look: soon after a change, when
a reconcile asked to look again, at every resync, and after a failure with a growing, jittered delay. A key that fails
never holds up another. What a reconcile does is `reconcile.py`; time comes from a `Clock`, so that tests need not wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from gnnserve_operator.clock import Clock
from gnnserve_operator.errors import ConflictError, LostLeadershipError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.logs import about
from gnnserve_operator.metrics import Metrics, Result

SETTLE_S = 0.1
"""Changes come in bursts, such as the children that one reconcile made: one look is enough for all of them."""
BURST = 20
"""So many changes of one key in a row are looked at as they come; a service that starts makes about as many."""
SUSTAINED_PER_S = 1.0
"""Then it is so many: somebody who undoes what we do, as a second operator would, must not keep the cluster busy."""
CONFLICTS = 5
"""So many in a row are nothing to tell: something changed while it was looked at, and the watch is about to tell.
Each is looked at again after twice the time of the one before, so the last after 1.6 s."""
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
"""Somebody who has just mended what was wrong should not wait for longer."""
LONGEST_TICK_S = 10.0
"""The loop turns at least so often, which is how /healthz knows that it turns."""
RECONCILE_LIMIT_S = 120.0
"""Every request has its own, shorter timeout; this is for what nobody thought of."""
STOP_S = 5.0
"""What is under way when the operator stops may take so long."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkQueue:
    """Which keys are due; no clock and no tasks in here."""

    _due: dict[ServiceKey, float] = field(default_factory=dict)
    _running: dict[ServiceKey, float | None] = field(default_factory=dict)
    """The value: due again at, because something happened while it ran."""

    def add(self, key: ServiceKey, due: float) -> None:
        """The earliest time that was asked for wins."""
        if key in self._running:
            again = self._running[key]
            self._running[key] = due if again is None else min(again, due)
        else:
            self._due[key] = min(self._due.get(key, due), due)

    def take(self, now: float) -> ServiceKey | None:
        """The key that has been due for longest; it is running until `done`."""
        key = min(self._due, key=self._due.__getitem__, default=None)
        if key is None or self._due[key] > now:
            return None
        del self._due[key]
        self._running[key] = None
        return key

    def done(self, key: ServiceKey) -> None:
        again = self._running.pop(key)
        if again is not None:
            self.add(key, again)

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def depth(self, now: float) -> int:
        return sum(due <= now for due in self._due.values())


@dataclass(slots=True)
class RateLimit:
    """A bucket of looks for each key, which fills up again with time; pure."""

    _left: dict[ServiceKey, tuple[float, float]] = field(default_factory=dict)
    """What was left, and when."""

    def spend(self, key: ServiceKey, now: float) -> None:
        self._left[key] = (max(self._filled(key, now) - 1, 0), now)

    def delay_s(self, key: ServiceKey, now: float) -> float:
        """Until there is one to spend."""
        return max(1 - self._filled(key, now), 0) / SUSTAINED_PER_S

    def tidy(self, now: float) -> None:
        self._left = {key: left for key, left in self._left.items() if self._filled(key, now) < BURST}

    def _filled(self, key: ServiceKey, now: float) -> float:
        left, at = self._left.get(key, (BURST, now))
        return min(left + (now - at) * SUSTAINED_PER_S, BURST)


@dataclass(frozen=True, slots=True)
class _Failures:
    """In a row."""

    count: int = 0
    message: str = ""
    """Of the last one; the same is not said again."""


def backoff_s(failures: int, jitter: float) -> float:
    """After so many failures in a row; `jitter` is between 0 and 1, and keeps keys that failed together apart."""
    longest = min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30), LONGEST_BACKOFF_S)
    return longest * (0.5 + jitter / 2)


class Loop:
    """`reconcile` returns after how many seconds to look again, or None: at the next change or resync."""

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
        """In a row."""
        self._tasks: dict[ServiceKey, asyncio.Task[None]] = {}
        self._started: dict[ServiceKey, float] = {}
        self._wake = asyncio.Event()
        self._next_resync = clock.now()
        self._is_stopping = False
        self._lost: LostLeadershipError | None = None
        self.last_tick: float | None = None
        """None: it has not begun."""
        metrics.observe_queue(lambda: self._queue.depth(clock.now()))

    def enqueue(self, key: ServiceKey) -> None:
        """Something about it changed."""
        self._add(key, max(SETTLE_S, self._rate.delay_s(key, self._clock.now())))

    def nudge(self, key: ServiceKey) -> None:
        """There is news that can wait: a key that fails has its own time."""
        if key not in self._failures:
            self.enqueue(key)

    def stop(self) -> None:
        """Take nothing more; `run` returns when what is under way is done, within seconds."""
        self._is_stopping = True
        self._wake.set()

    def longest_running_s(self) -> float:
        return max((self._clock.now() - started for started in self._started.values()), default=0.0)

    async def run(self) -> None:
        """Until told to stop; raises LostLeadershipError when a reconcile met it."""
        try:
            while not self._is_stopping:
                await self._clock.wait(self._wake, self._tick())
                self._wake.clear()
        finally:
            await self._finish()
        if self._lost is not None:
            raise self._lost

    def _tick(self) -> float:
        """Starts what is due; returns for how long nothing else will be."""
        now = self.last_tick = self._clock.now()
        if now >= self._next_resync:
            self._next_resync = now + self._resync_s
            self._rate.tidy(now)
            for known in self._list_keys():
                if known not in self._failures:  # which has its own time, that a resync must not bring forward
                    self._queue.add(known, now)
        while len(self._tasks) < self._concurrency and (key := self._queue.take(now)) is not None:
            self._started[key] = now
            self._rate.spend(key, now)
            task = self._tasks[key] = asyncio.create_task(self._run_one(key), name=f"reconcile {key}")
            task.add_done_callback(partial(self._done, key))
        next_due = self._queue.next_due()
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
        logger.debug("reconciled", extra=about(key, duration_s=self._clock.now() - started))

    def _conflicted(self, key: ServiceKey, error: ConflictError) -> None:
        conflicts = self._conflicts[key] = self._conflicts.get(key, 0) + 1
        if conflicts > CONFLICTS:
            self._failed(key, Result.CONFLICT, error)
            return
        self._metrics.reconciles.labels(Result.CONFLICT.value).inc()
        logger.debug("%s; looked at again", error, extra=about(key, reason=type(error).__name__))
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
            extra=about(key, reason=type(error).__name__),
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
