"""When the engine works for itself: between requests, for a small share of its time.

A job runs only while no request waits; one that arrives meanwhile waits for it. The share bounds how many requests that
can be, and a job is short, so that the 99th percentile of answers does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOK_AGAIN_MS = 5.0
"""Time between two looks whether the engine is idle."""
QUIET_AFTER_MS = 1000.0
"""Time without a request after which none is expected to meet a job."""


def pause_ms(took_ms: float, permille: int) -> float:
    """Time to wait after a job that took so long, so that such jobs take that share of the time."""
    return max(LOOK_AGAIN_MS, took_ms * (1000 / permille - 1))


class IdleTimer:
    """Calls `work` again and again while there is some. It belongs to the event loop's thread."""

    def __init__(self, work: Callable[[], float | None]) -> None:
        """`work` returns how many ms to wait before it is called again; None: until the next `wake`."""
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wake()  # there may be work from before

    def wake(self) -> None:
        """Tell that there is work."""
        if self._due is None and self._loop is not None:
            self._due = self._loop.call_later(LOOK_AGAIN_MS / 1000, self._run)

    def wake_soon(self) -> None:
        """As `wake`, from any thread."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self.wake)
        except RuntimeError:
            # A server that has ended has closed its loop, and nothing is computed any more.
            if not loop.is_closed():
                raise

    def wait(self, wait_ms: float) -> None:
        """Call next after this time, counted from now, and not before."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._loop is not None:
            self._due = self._loop.call_later(wait_ms / 1000, self._run)

    def _run(self) -> None:
        self._due = None
        wait_ms = self._work()
        if wait_ms is not None:
            self.wait(wait_ms)
