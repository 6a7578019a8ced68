"""When is which service's load asked for? A task per service, which asks at its interval and wakes the reconcile.

Beside the reconciles and not inside them: a Prometheus that answers slowly, or not at all, must not hold up a service,
least of all another one. What is asked is the plan's, and so is what follows from the answer; here are only the times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gnnserve_api.reasons import Reason
from gnnserve_operator.clock import Clock
from gnnserve_operator.decide.service_routing import Question
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.logs import about
from gnnserve_routing.driver import next_due_s
from gnnserve_routing.signals import Answer, Silence

LONGEST_FIRST_WAIT_S = 15.0
"""Whoever looks every hour still wants to know soon whether Prometheus answers at all."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    question: Question
    task: asyncio.Task[None]
    unread: Answer | Silence | None = None


class SlowLoop:
    """`follow` it by each plan; what came back is `unread` until the plan that decided by it says so."""

    def __init__(
        self,
        ask: Callable[[str, str], Awaitable[Answer | Silence]],
        wake: Callable[[ServiceKey], None],
        clock: Clock,
    ) -> None:
        self._ask = ask
        """A Prometheus by its URL, with a query."""
        self._wake = wake
        self._clock = clock
        self._followed: dict[ServiceKey, _Followed] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, key: ServiceKey, question: Question | None) -> None:
        """Ask this from now on, at its interval; None: nothing more. The same question goes on as it went."""
        followed = self._followed.get(key)
        if followed is not None and followed.question == question:
            return
        if followed is not None:
            del self._followed[key]
            followed.task.cancel()
            self._ending.add(followed.task)
            followed.task.add_done_callback(self._ending.discard)
        if question is not None:
            task = asyncio.create_task(self._run(key, question), name=f"slow loop {key}")
            self._followed[key] = _Followed(question, task)

    def unread(self, key: ServiceKey) -> Answer | Silence | None:
        followed = self._followed.get(key)
        return None if followed is None else followed.unread

    def read(self, key: ServiceKey, answer: Answer | Silence | None) -> None:
        """It was decided by that answer; one that has come since is still unread."""
        followed = self._followed.get(key)
        if followed is not None and followed.unread is answer:
            followed.unread = None

    async def close(self) -> None:
        for key in list(self._followed):
            self.follow(key, None)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _run(self, key: ServiceKey, question: Question) -> None:
        never = asyncio.Event()
        due = self._clock.now() + min(question.interval_s, LONGEST_FIRST_WAIT_S)
        while True:
            await self._clock.wait(never, max(due - self._clock.now(), 0))
            answer = await self._answer(key, question)
            self._followed[key].unread = answer
            self._wake(key)
            due = next_due_s(due, question.interval_s, self._clock.now())

    async def _answer(self, key: ServiceKey, question: Question) -> Answer | Silence:
        try:
            return await self._ask(question.url, question.query)
        except Exception:
            logger.exception("Prometheus could not be asked", extra=about(key, reason="AskFailed"))
            return Silence(Reason.UNREACHABLE, "Asking Prometheus failed; the operator's log has the details.")
