"""The cache updater: a thread that keeps a cache as its policy wants it, off the path of requests.

A round takes the reads since the last one, passes them to the policy, and applies its decision in portions: each
portion masks, waits for readers, copies and unmasks (`slots.py`), so that few items are out of the cache at a time, and
only briefly. A round is due after a number of batches, or after a time if there was any batch. After a round the thread
rests for a multiple of the round's cost, so that updating never takes more than its share of a core, whatever the
graph's size.
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
"""Most portions of changed rows per round, so that rows that change all the time do not delay counting reads."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    batches: int = 256
    """A round is due after this many batches …"""
    seconds: float = 0.1
    """… or after this time, if there was any batch."""
    busy_share: float = 0.1
    """Largest share of the time that rounds may take: an expensive round is followed by a long rest."""
    portion_items: int = 2048
    """Most items that are evicted, and most that are admitted, at once."""


@dataclass(frozen=True, slots=True)
class CountedReads:
    """Reads since the counters were last taken, in no known order."""

    items: np.ndarray
    """Items, int64, each once."""
    times: np.ndarray
    """How often each was read, int32, at least 1."""


class ReadCounters(Protocol):
    def take_reads(self) -> CountedReads: ...


@dataclass(frozen=True, slots=True)
class RoundCost:
    items: int
    """Different items that were read."""
    evicted: int
    admitted: int
    refreshed: int
    """Items copied again because their rows had changed."""
    take_ms: float
    """Time to copy the counters to the host."""
    decide_ms: float
    """Time in the policy."""
    apply_ms: float
    """Time to mask, wait, copy and unmask."""
    longest_portion_ms: float
    """Longest time that an item was masked."""

    @property
    def total_ms(self) -> float:
        return self.take_ms + self.decide_ms + self.apply_ms


@dataclass(frozen=True, slots=True)
class Totals:
    rounds: int = 0
    busy_ms: float = 0.0
    longest_portion_ms: float = 0.0


class Updater:
    """Runs rounds. One thread at a time calls `run_round`: the updater's own after `start`. `stop` is final."""

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
        # Made in `start`: an unstarted thread and this object would keep each other, and the cache, in memory.
        self._thread: threading.Thread | None = None
        self.totals = Totals()
        self.last: RoundCost | None = None
        self.problem: str | None = None
        """Why the thread ended by itself, if it did. Cached rows stay correct; the cache only stops adapting."""

    def start(self) -> None:
        """Start the thread. To be called once."""
        self._thread = threading.Thread(target=self._run, name="cache-updater", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current portion. Any thread may call it, any number of times, started or not."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def notice(self) -> None:
        """Note that a batch has been launched. Called after each batch; costs one comparison."""
        if self._epochs.entered >= self._due_at and not self._wake.is_set():
            self._wake.set()

    def wake(self) -> None:
        """Ask for a round soon, even if nothing was read."""
        self._wake.set()

    def run_round(self) -> RoundCost:
        """Run a round now, due or not."""
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
    """Seconds to rest after a round, so that rounds take at most `busy_share` of the time."""
    return cost_seconds * (1.0 / rhythm.busy_share - 1.0)
