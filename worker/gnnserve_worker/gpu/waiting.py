"""Waiting for the GPU: spinning answers sooner, and takes a processor from whatever else would run on it.

A thread that spins sees the end of a batch within a microsecond, one that sleeps is woken some 30 to 50 µs later. So a
wait spins for a bounded time, and only where processors are to spare and batches of its kind have been short: on one or
two processors the event loop needs the one that would spin, and beside a batch of milliseconds the wake-up is nothing.
Otherwise the thread sleeps until the driver wakes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, Protocol

import torch

from gnnserve_worker.parallel import thread_count

FEWEST_PROCESSORS: Final = 4
"""Processors from which one is to spare: the event loop, the thread that waits, and one that samples or computes are
busy by themselves."""
LONGEST_SPIN_S: Final = 0.0005
"""Longest time that a wait spins; a batch that is expected to take longer is not spun for at all."""
_SLACK: Final = 1.5
"""How much longer than expected a batch may take before its wait sleeps."""
_WEIGHT_OF_LAST: Final = 0.2
"""Weight of the last wait in the expected one."""


class Event(Protocol):
    """The part of `torch.cuda.Event(blocking=True)` that waiting needs."""

    def query(self) -> bool: ...

    def synchronize(self) -> None:
        """Sleep until it has happened."""
        ...


class Waits:
    """Waits for batches of several kinds, of which each has its own expected time."""

    def __init__(
        self,
        processors: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        give_way: Callable[[], object] = lambda: time.sleep(0),
    ) -> None:
        """`processors`: those of this process, unless given. `give_way`: lets other threads of the process have the
        interpreter, which asking an event does not."""
        self._may_spin = (thread_count() if processors is None else processors) >= FEWEST_PROCESSORS
        self._clock = clock
        self._give_way = give_way
        self._expected_s: dict[Hashable, float] = {}

    def spin_s(self, kind: Hashable) -> float:
        """Seconds that the next wait for a batch of this kind spins at most; 0: it sleeps at once."""
        expected_s = self._expected_s.get(kind)
        if not self._may_spin or expected_s is None or expected_s > LONGEST_SPIN_S:
            return 0.0
        return min(LONGEST_SPIN_S, _SLACK * expected_s)

    def wait(self, event: Event, kind: Hashable) -> None:
        """Return once the event has happened; raises the device's error."""
        began_s = self._clock()
        until_s = began_s + self.spin_s(kind)
        happened = event.query()
        while not happened and self._clock() < until_s:
            self._give_way()
            happened = event.query()
        if not happened:
            event.synchronize()
        took_s = self._clock() - began_s
        before_s = self._expected_s.get(kind, took_s)
        self._expected_s[kind] = before_s + _WEIGHT_OF_LAST * (took_s - before_s)

    def forget(self) -> None:
        """Drop what is expected of every kind."""
        self._expected_s.clear()


def sleep_until_idle(stream: torch.cuda.Stream) -> None:
    """Wait until everything launched on the stream so far has ended, and take no processor meanwhile, as
    `Stream.synchronize` does."""
    ended = torch.cuda.Event(blocking=True)
    ended.record(stream)
    ended.synchronize()
