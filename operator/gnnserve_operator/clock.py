"""Time: one object, made by `main` and passed to everything that waits or reads the time, so that tests can simulate
it.

Limits of requests and of work under way are not taken from here (`asyncio.timeout`): they bound the network and the
API server, for which no time can be simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic time in seconds."""
        ...

    def utc(self) -> datetime: ...

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        """Wait until the event is set, at most `timeout_s`."""
        ...


class MainClock(Clock, Protocol):
    """The clock of a whole operator, from which the others follow."""

    def counting_suspension(self) -> Clock:
        """A clock whose `now` also counts the time in which the machine was suspended: leases end meanwhile."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()

    def counting_suspension(self) -> Clock:
        return _BootClock()


class _BootClock(SystemClock):
    def now(self) -> float:
        # Where the system cannot tell, suspension does not count.
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
