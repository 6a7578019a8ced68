"""Calls whose message has not come yet: each ends once it has waited for long enough.

One timer watches all of them: a timer for each call would cost more than reading its message.
"""

from __future__ import annotations

import asyncio
from typing import Any


class UnreadCalls:
    """Belongs to the event loop's thread."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._due_s: dict[asyncio.Task[Any], float] = {}
        """When the message of each call is due, by the loop's clock. They are in that order: all have the same time."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks at the first of them, or at one before it that has been read."""

    async def read(self, context: Any) -> bytes | None:
        """The message of the call that this task answers; None: there is none, or not in time."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101  (it is a coroutine)
        self._due_s[task] = loop.time() + self._patience_s
        if self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._end_overdue, loop)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            # Where its client is gone as well, it is cancelled twice.
            if task in self._due_s or task.uncancel():
                raise
            return None
        finally:
            self._due_s.pop(task, None)
        return raw if isinstance(raw, bytes) else None

    def _end_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for task, due_s in list(self._due_s.items()):
            if due_s > now_s:
                self._timer = loop.call_at(due_s, self._end_overdue, loop)
                return
            del self._due_s[task]
            task.cancel()
        self._timer = None
