"""Time that moves when a test says so, and time that passes faster."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from gnnserve_operator.clock import Clock, SystemClock

_TURNS = 50
"""Turns of the event loop after which everything that does not wait for time is done."""


async def settle() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        due = asyncio.Event()
        sleeper = (self.seconds + timeout_s, due)
        self._sleepers.append(sleeper)
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(due.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleepers.remove(sleeper)
            for wait in waits:
                wait.cancel()

    async def advance(self, seconds: float) -> None:
        """Wakes sleepers in the order of their time, each at its time."""
        await settle()
        end = self.seconds + seconds
        while due := sorted(time for time, _ in self._sleepers if time <= end):
            self.seconds = max(self.seconds, due[0])
            for time, event in list(self._sleepers):
                if time <= self.seconds:
                    event.set()
            await settle()
        self.seconds = end
        await settle()


class QuickClock(SystemClock):
    """The system's, so many times as fast: what waits for a second waits for a tenth of one.

    For scenes with real sockets and threads, which know no simulated time. Dates are the real ones, since others stamp
    objects too; and so is the clock of leases, whose limits are those of requests."""

    def __init__(self, speed: float = 10.0) -> None:
        self._speed = speed

    def now(self) -> float:
        return super().now() * self._speed

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        await super().wait(event, timeout_s / self._speed)

    def counting_suspension(self) -> Clock:
        return SystemClock().counting_suspension()
