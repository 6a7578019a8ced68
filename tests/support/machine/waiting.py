"""How long tests wait for what must come. Never reached where all is well: only a test that fails takes so long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 120.0
"""Seconds. Long enough for a machine on which both tiers of the tests run at once."""

_POLL_S = 0.005


_COUNTED_S = 1.0
"""Longest time between two looks that counts: processes that were stopped meanwhile, as where a laptop sleeps or
another benchmark has the machine to itself, have waited for nothing."""


class Patience:
    """WAIT_S of the time in which this process was not stopped, if it is asked often enough."""

    def __init__(self) -> None:
        self._waited_s, self._looked_s = 0.0, time.monotonic()

    def is_over(self) -> bool:
        now_s = time.monotonic()
        self._waited_s += min(now_s - self._looked_s, _COUNTED_S)
        self._looked_s = now_s
        return self._waited_s >= WAIT_S


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds that nothing can be awaited for. `what` is told if it never does."""
    patience = Patience()
    while not condition():
        assert not patience.is_over(), f"not within {WAIT_S:g} s: {what}"
        time.sleep(_POLL_S)


async def until_holds(condition: Callable[[], bool], what: str) -> None:
    """Wait as `until` does, while the event loop of the test goes on."""

    async def look() -> bool:
        return condition()

    await until_told(look, bool, what)


async def until_told(
    ask: Callable[[], Awaitable[T]], is_it: Callable[[T], bool], what: str, *, seldom_s: float = _POLL_S
) -> T:
    """Ask again and again until the answer is the one that is waited for. `what` is told if it never is. `seldom_s`:
    longest time between two questions, which grows to that where each keeps from its work what is waited for."""
    patience, pause_s = Patience(), _POLL_S
    while not is_it(told := await ask()):
        assert not patience.is_over(), f"not within {WAIT_S:g} s: {what}; the last answer was {told}"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, seldom_s)
    return told
