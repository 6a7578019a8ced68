"""Which requests a second revision answers, and what becomes of those that it does not.

Shares hold after few requests already: requests are drawn by a sequence that is spread evenly, not by chance. One with
a seed is drawn by that, so that the same question always gets the same answer; one that names a variant names one of
the first revision. What the second revision refuses, for whatever reason, or fails at, is asked of the first: clients
never notice it but by its answers. A request that waits for an offset of the log of changes waits for the second
revision in half of its time, so that the first has the other half.
"""

from __future__ import annotations

from collections.abc import Callable

from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.hooks import Begin, Begun, Respond
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.requests import Arrival, Ask, Question, Reply

_GOLDEN_RATIO = 0.6180339887498949
"""Its multiples, without their whole parts, are spread evenly over 0 to 1."""
_SHARE_OF_WAIT = 0.5
"""Part of the time that a request may wait for its offset in which it waits for the canary."""
_OK, _TIMED_OUT = 200, 504
_MULTIPLIER, _WORD = 0x9E3779B97F4A7C15, 1 << 64
"""Spread neighbouring seeds over all numbers of 64 bits."""


class CanaryShare:
    """The requests of a service while two revisions answer them."""

    def __init__(self, first: Predict, canary: Predict, percent: int, drawn: float = 0.0) -> None:
        """`drawn`, below 1: where the sequence begins."""
        self.percent = percent
        self.passed_on = 0
        """Requests of the canary that the first revision had to answer."""
        self._first = first
        self._canary = canary
        self._drawn = drawn

    def begin(self, arrival: Arrival, respond: Respond, go_on: Begin) -> Begun:  # noqa: PLR0911 - a rung a revision
        """`go_on` asks the first revision."""
        codec = arrival.codec

        def ask_first() -> Begun:
            return go_on(arrival, respond)

        if not (self.percent and codec.is_for_canary):
            return ask_first()
        is_drawn, may_have_seed = self._draw(arrival), codec.may_have_seed(arrival.body)
        if not (is_drawn or may_have_seed):
            return ask_first()
        # Whose it is must not depend on which of both has room, so that a body with a seed is read in any case.
        of_first = None if is_drawn else self._first.read(arrival, monotonic_ms(), must_parse=True)
        if of_first is not None and not isinstance(of_first, Reply) and not self._is_canarys(of_first, is_drawn):
            return self._first.begin(arrival, of_first, respond)
        asked = self._canary.read(arrival, monotonic_ms(), must_parse=may_have_seed)
        if not isinstance(asked, Reply):
            if not self._is_canarys(asked, is_drawn):
                return ask_first() if of_first is None else self._first.begin(arrival, of_first, respond)
            begun = self._ask_canary(arrival, asked, respond, ask_first)
            if not isinstance(begun, Reply):
                return begun
            self.passed_on += 1
            return ask_first()
        if of_first is None:
            of_first = self._first.read(arrival, monotonic_ms())
        if not isinstance(of_first, Reply) and self._is_canarys(of_first, is_drawn):
            self.passed_on += 1  # else it is wrong for both of them
        return self._first.begin(arrival, of_first, respond)

    def _ask_canary(
        self, arrival: Arrival, asked: Question | Ask, respond: Respond, ask_first: Callable[[], Begun]
    ) -> Begun:
        """A reply: the canary refuses it at once."""

        def take(reply: Reply) -> None:
            if reply.status in {_OK, _TIMED_OUT}:  # what took too long for its client may end here
                respond(reply)
                return
            self.passed_on += 1
            assert not isinstance(begun, Reply)  # noqa: S101  (nothing is delivered before)
            again = ask_first()
            if isinstance(again, Reply):
                respond(again)
            else:
                begun.successor = again

        begun = self._canary.begin(arrival, asked, take, _SHARE_OF_WAIT)
        return begun

    def _draw(self, arrival: Arrival) -> bool:
        """Whether it is the canary's, as far as its head says."""
        seed = arrival.wishes.seed
        if seed is not None:
            return is_of_canary(seed, self.percent)
        self._drawn = (self._drawn + _GOLDEN_RATIO) % 1.0
        return self._drawn * 100 < self.percent

    def _is_canarys(self, asked: Question | Ask, is_drawn: bool) -> bool:
        """Whether it is the canary's, now that the body is read."""
        wishes = asked.wishes
        if wishes.variant is not None:
            return False
        return is_drawn if wishes.seed is None else is_of_canary(wishes.seed, self.percent)


def is_of_canary(seed: int, percent: int) -> bool:
    """Whether requests with this seed are the canary's: the same on every worker."""
    # Seed 0, which many clients send, is not the first to be the canary's.
    return (seed + 1) * _MULTIPLIER % _WORD * 100 < percent * _WORD
