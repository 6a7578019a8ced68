"""Requests of several calls that come close upon each other are begun together.

gRPC hands over one call after another, some rounds of the event loop apart, however many have come. Begun one by one,
each would have a batch of its own, and what reads, computes and answers it would have to come into the processor's
caches again, since gRPC's own code runs between any two: that takes longer than the work itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gnnserve_worker.serving.engine.model import monotonic_ms

QUIET_ROUNDS = 10
"""Rounds of the event loop without another request, after which none is waited for any longer. While calls wait at gRPC
one comes every four to seven rounds; empty rounds take some 3 µs each."""
LONGEST_MS = 1.0
"""Longest time that a request waits for others."""
QUIET_MS, LONGEST_HOLD_MS = 20.0, 100.0
"""How long none may come before `hold` ends, within which a client sends another request once it is answered; and how
long it lasts where others go on coming."""
MEMORY = 16
"""Requests in a row that no other one joined, after which none waits any more."""


class Gathering:
    """Belongs to the event loop's thread."""

    def __init__(self, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._waiting: list[Callable[[], None]] = []
        self._rounds = 0
        """Rounds since the last of them came."""
        self._until_ms = 0.0
        self._holds = False
        """Whether none is begun before `release`."""
        self._patience = 0
        """How many requests in a row may wait without another one that joins them. 0: none waits, as those of a client
        that asks again once it is answered."""

    def expect_others(self) -> None:
        """Several requests are under way at once: those that come wait for others from now on."""
        self._patience = MEMORY

    def begin(self, act: Callable[[], None]) -> None:
        """Begin a request by `act`, now or in a later round of the loop with others. `act` raises nothing."""
        if not self._patience and not self._holds:
            act()
            return
        self._waiting.append(act)
        self._rounds = 0
        if len(self._waiting) == 1 and not self._holds:
            self._until_ms = self._clock_ms() + LONGEST_MS
            loop = asyncio.get_running_loop()
            loop.call_soon(self._look, loop)

    async def hold(self) -> None:
        """Begin none until `release`. It returns once none has come for a while: clients that wait for answers send
        nothing, so that gRPC has handed over all that there is."""
        self._holds = True
        until_ms, held = self._clock_ms() + LONGEST_HOLD_MS, -1
        while held < len(self._waiting) and self._clock_ms() < until_ms:
            held = len(self._waiting)
            await asyncio.sleep(QUIET_MS / 1000)

    def release(self) -> None:
        """Begin what was held."""
        self._holds = False
        self._begin_all()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._holds:
            return
        self._rounds += 1
        if self._rounds < QUIET_ROUNDS and self._clock_ms() < self._until_ms:
            loop.call_soon(self._look, loop)
            return
        self._patience = MEMORY if len(self._waiting) > 1 else max(0, self._patience - 1)
        self._begin_all()

    def _begin_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()
