"""Predictions that wait until their worker has applied an offset of the log of changes (`minOffset`).

Only the offset of such a request is read before: its nodes may be what the changes bring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.requests import PendingRequest

WAIT_WITHOUT_LATENCY_MS = 1000.0
"""Longest wait of a request without a latency."""
_LONGEST_STEP_S = 0.5
"""A worker that is about to stop refuses what waits within this time."""


class WaitingRequest:
    """A request that waits for an offset, and afterwards for its answer."""

    __slots__ = ("_task", "successor")

    def __init__(self, run: Callable[[WaitingRequest], Awaitable[None]], when_done: Callable[[], None]) -> None:
        """`run` begins in the next round of the event loop; `when_done` is called after it, if it was cancelled too."""
        self.successor: PendingRequest | WaitingRequest | None = None
        """The request, once an engine has it, or it waits for another revision."""
        self._task = asyncio.ensure_future(run(self))
        self._task.add_done_callback(lambda _: when_done())

    def cancel(self) -> None:
        self._task.cancel()


async def wait_for_offset(updates: Updates, offset: int, deadline_ms: float, may_wait: Callable[[], bool]) -> bool:
    """Whether the offset was applied before the deadline. It ends early where `may_wait` becomes false."""
    while may_wait() and (left_ms := deadline_ms - monotonic_ms()) > 0:
        if await updates.wait_applied(offset, min(left_ms / 1000, _LONGEST_STEP_S)):
            return may_wait()
    return False
