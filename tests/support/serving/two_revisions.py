"""Two revisions of a model, and an executor that computes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gnnserve_worker.serving.process.log_follower import LogFollower
from gnnserve_worker.serving.process.loop_calls import LoopCalls

FIRST, SECOND = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
STAYS = LogFollower(None)


class DirectCalls(LoopCalls):
    """Calls in the same thread: no server runs."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[asyncio.Future[None]] = []

    def call(self, act: Callable[[], None]) -> None:
        act()

    def call_async(self, act: Callable[[], Awaitable[None]]) -> None:
        self.begun.append(asyncio.ensure_future(act()))
