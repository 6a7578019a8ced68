"""May a service go on now, where only so many services may at a time? What a plan knows of the other services.

Two things are limited: generation Jobs that run, and workers that are replaced because of the operator's own settings.
A plan is told its service's `Turn` and answers with the service's `Standing`; `fleet.py` makes the one from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_EXACT = 10
"""Up to here the number of services ahead is told exactly. A longer one is rounded, so that statuses rarely change."""


class Stance(StrEnum):
    IDLE = "Idle"
    """It needs no turn, or could not use it."""
    WAITING = "Waiting"
    """It goes on as soon as its turn comes."""
    UNDER_WAY = "UnderWay"
    """It has its turn, and counts against the limit."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a service says of itself."""

    stance: Stance = Stance.IDLE
    order: str = ""
    """Services that wait go in the order of this text, then of their namespace and name."""


IDLE, UNDER_WAY = Standing(), Standing(Stance.UNDER_WAY)


@dataclass(frozen=True, slots=True)
class Standings:
    generation: Standing = IDLE
    rollout: Standing = IDLE


ALL_IDLE = Standings()


@dataclass(frozen=True, slots=True)
class Turn:
    """What a service has to know of the others."""

    limit: int = 0
    """How many may be under way at a time; 0: any number."""
    under_way: int = 0
    """Other services."""
    ahead: int = 0
    """Other services that wait and go first."""
    is_ours: bool = False
    """The service has its turn already, and keeps it."""

    @property
    def may_go(self) -> bool:
        return self.limit == 0 or self.is_ours or self.under_way + self.ahead < self.limit


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one service."""

    generation: Turn
    rollout: Turn
    followed: str | None = None
    """Digest of what the spec said of worker pods when this process last found them to be as wanted, or found them
    first; None: it has not looked at them yet."""


NO_LIMIT = Turns(Turn(), Turn())


def place_words(turn: Turn) -> str:
    """How far a service that waits is from its turn."""
    if turn.ahead == 0:
        return "it is next"
    if turn.ahead <= _EXACT:
        return f"{turn.ahead} {'waits' if turn.ahead == 1 else 'wait'} before it"
    return f"more than {_rounded_down(turn.ahead)} wait before it"


def _rounded_down(count: int) -> int:
    """To 10, 20, 50, 100 and so on, and always less than `count`."""
    found = step = _EXACT
    while step < count:
        found = next(at for at in (5 * step, 2 * step, step) if at < count)
        step *= 10
    return found
