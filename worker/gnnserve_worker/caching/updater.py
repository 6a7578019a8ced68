"""Keeps a cache as its policy wants it, in a thread of its own, off the path of requests.

A round takes what was read since the last one, tells the policy, and carries out what it decides, in portions: each
masks, waits for readers, copies and unmasks (`slots.py`), so that little is out of the cache at a time, and not for
long. Rounds come after so many batches, or after so long if there was any batch; and whatever a round cost, the thread
then rests a multiple of that, so that updating never takes more than its share, however large the graph is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.caching.epochs import Epochs
from gnnserve_worker.caching.policy import NO_CHANGES, Policy
from gnnserve_worker.caching.slots import MaskedSlots, portions

_log = logging.getLogger(__name__)

_REFRESHING_PORTIONS = 16
"""In a round, at most, so that rows that change all the time do not keep what was read from being counted."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    batches: int = 256
    """A round is due after so many batches …"""
    seconds: float = 0.1
    """… or after so long, if there was any."""
    busy_share: float = 0.1
    """Of its thread's time, at most: an expensive round is followed by a long rest."""
    portion_items: int = 2048
    """Evicted and admitted at once, at most."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What was read since it was last asked for; the order in which is not known."""

    items: np.ndarray
    """int64, each once."""
    times: np.ndarray
    """int32, at least 1."""


class ReadCounters(Protocol):
    def take_reads(self) -> Reads: ...


@dataclass(frozen=True, slots=True)
class RoundCost:
    items: int
    """That were read."""
    evicted: int
    admitted: int
    refreshed: int
    """Copied again, as their rows had changed."""
    take_ms: float
    """Counters to the host."""
    decide_ms: float
    """In the policy."""
    apply_ms: float
    """Masking, waiting, copying, unmasking."""
    longest_portion_ms: float
    """For how long an item was masked at most."""

    @property
    def total_ms(self) -> float:
        return self.take_ms + self.decide_ms + self.apply_ms


@dataclass(frozen=True, slots=True)
class Totals:
    rounds: int = 0
    busy_ms: float = 0.0
    longest_portion_ms: float = 0.0


class Updater:
    """`run_round` by one thread at a time: the one of `start`, where that was called. `stop` is final."""

    def __init__(
        self,
        policy: Policy,
        slots: MaskedSlots,
        counters: ReadCounters,
        epochs: Epochs,
        rhythm: Rhythm,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self._slots = slots
        self._counters = counters
        self._epochs = epochs
        self._rhythm = rhythm
        self._clock = clock
        self._due_at = rhythm.batches
        self._wake = threading.Event()
        self._stopped = threading.Event()
        # Made when it starts: before, it and this would keep each other, and what is cached, in memory.
        self._thread: threading.Thread | None = None
        self.totals = Totals()
        self.last: RoundCost | None = None
        self.problem: str | None = None
        """Why it ended by itself. What is cached stays right; it only changes no more."""

    def start(self) -> None:
        """Once."""
        self._thread = threading.Thread(target=self._run, name="cache-updater", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """After the portion at hand. From any thread, any number of times, started or not."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def notice(self) -> None:
        """A batch has been launched: called after each, at the price of a comparison."""
        if self._epochs.entered >= self._due_at and not self._wake.is_set():
            self._wake.set()

    def wake(self) -> None:
        """A round is wanted soon, though nothing may have been read."""
        self._wake.set()

    def run_round(self) -> RoundCost:
        """Whether it is due or not."""
        self._due_at = self._epochs.entered + self._rhythm.batches
        started = self._clock()
        reads = self._counters.take_reads()
        taken = self._clock()
        changes = NO_CHANGES
        if len(reads.items):
            self._policy.access(reads.items, reads.times)
            changes = self._policy.end_round()
        decided = self._clock()
        before = self._slots.written
        longest = 0.0
        for portion in portions(changes, self._rhythm.portion_items, self._slots.free_slots):
            begun = self._clock()
            self._slots.change(portion)
            longest = max(longest, self._clock() - begun)
            if self._stopped.is_set():
                break
        refreshed = 0
        for _ in range(_REFRESHING_PORTIONS):
            if not self._slots.has_outdated or self._stopped.is_set():
                break
            refreshed += self._slots.refresh(self._rhythm.portion_items)
        ended = self._clock()
        after = self._slots.written
        self.last = RoundCost(
            items=len(reads.items),
            evicted=after.evicted - before.evicted,
            admitted=after.admitted - before.admitted,
            refreshed=refreshed,
            take_ms=(taken - started) * 1e3,
            decide_ms=(decided - taken) * 1e3,
            apply_ms=(ended - decided) * 1e3,
            longest_portion_ms=longest * 1e3,
        )
        self.totals = Totals(
            self.totals.rounds + 1,
            self.totals.busy_ms + self.last.total_ms,
            max(self.totals.longest_portion_ms, self.last.longest_portion_ms),
        )
        return self.last

    def _run(self) -> None:
        try:
            self._run_rounds()
        except Exception as error:  # noqa: BLE001 (the cache may no longer be changed, whatever went wrong)
            _log.exception("the cache is not updated any more")
            self.problem = f"the cache is not updated any more: {type(error).__name__}: {error}"

    def _run_rounds(self) -> None:
        seen = -1
        while not self._stopped.is_set():
            self._wake.wait(self._rhythm.seconds)
            self._wake.clear()
            if self._stopped.is_set() or (self._epochs.entered == seen and not self._slots.has_outdated):
                continue
            seen = self._epochs.entered
            cost = self.run_round()
            self._stopped.wait(rest_seconds(cost.total_ms / 1e3, self._rhythm))


def rest_seconds(cost_seconds: float, rhythm: Rhythm) -> float:
    """After a round, so that rounds take `busy_share` of the time at most."""
    return cost_seconds * (1.0 / rhythm.busy_share - 1.0)
