"""Calls from other threads to a server's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait

_POLL_S = 0.02


class LoopCalls:
    """Any thread may call."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Set once the server has started."""
        self.ended = False
        """Whether the server has ended: nothing is waited for any more."""
        self._running: set[asyncio.Future[None]] = set()
        """What `call_async` began: the loop itself keeps no task alive."""

    def call_later(self, act: Callable[[], object]) -> None:
        """Run `act` on the event loop, without waiting for it; not at all if the server has ended."""
        if self.loop is None:
            raise RuntimeError("the server has not started")
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def call(self, act: Callable[[], None]) -> None:
        """Run `act` on the event loop and wait for it; otherwise as `call_later`."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                act()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001  (the caller's to handle)
                done.set_exception(error)

        self.call_later(run)
        self._wait_for(done)

    def call_async(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run what `act` returns on the event loop and wait for it; otherwise as `call_later`."""
        done: Future[None] = Future()

        async def run() -> None:
            try:
                await act()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001  (as above)
                done.set_exception(error)

        def begin() -> None:
            task = asyncio.ensure_future(run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        self.call_later(begin)
        self._wait_for(done)

    def _wait_for(self, done: Future[None]) -> None:
        while not done.done() and not self.ended:
            wait([done], _POLL_S)
        if done.done():
            done.result()
