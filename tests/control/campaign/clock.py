"""Simulated time: it moves when the world says so, and tasks that wait are woken at their time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
_TURNS = 12
"""Turns of the event loop in which a woken task reaches its next wait: nothing here waits for anything but time."""


class SimClock:
    """A `Clock` of the operator. Events end no wait: tasks here wait for time only."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        due = asyncio.get_running_loop().create_future()
        sleeper = (self.seconds + timeout_s, due)
        self._sleepers.append(sleeper)
        try:
            await due
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def next_due(self) -> float | None:
        return min((time for time, _ in self._sleepers), default=None)

    async def advance_to(self, seconds: float) -> None:
        """Wakes those that are due by then, and lets them come to their next wait."""
        self.seconds = max(self.seconds, seconds)
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self.seconds]
        for sleeper in sorted(due, key=lambda sleeper: sleeper[0]):
            self._sleepers.remove(sleeper)
            sleeper[1].set_result(None)
        if due:
            await let_run()


async def let_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
