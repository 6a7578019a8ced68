"""Turns: limits of how many services may do something at a time, as a plan sees them.

Two things are limited: running generation Jobs, and rollouts that the operator's own settings cause. A plan gets its
service's `Turn` and returns the service's `Standing`; `fleet.py` derives turns from standings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_EXACT = 10
"""Up to this the number of services ahead is shown exactly; a larger one is rounded, so that statuses rarely change."""


class Stance(StrEnum):
    IDLE = "Idle"
    """The service needs no turn, or could not use it."""
    WAITING = "Waiting"
    """The service goes on as soon as its turn comes."""
    UNDER_WAY = "UnderWay"
    """The service has its turn, and counts against the limit."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A service's own standing."""

    stance: Stance = Stance.IDLE
    order: str = ""
    """Sort key of waiting services; ties are broken by namespace and name."""


IDLE, UNDER_WAY = Standing(), Standing(Stance.UNDER_WAY)


@dataclass(frozen=True, slots=True)
class Standings:
    generation: Standing = IDLE
    rollout: Standing = IDLE


ALL_IDLE = Standings()


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of a service among the others, as far as a plan has to know."""

    limit: int = 0
    """Most services under way at a time; 0: any number."""
    under_way: int = 0
    """Other services that are under way."""
    ahead: int = 0
    """Other waiting services that go first."""
    is_ours: bool = False
    """Whether the service has its turn already, which it keeps."""

    @property
    def may_go(self) -> bool:
        return self.limit == 0 or self.is_ours or self.under_way + self.ahead < self.limit


@dataclass(frozen=True, slots=True)
class ServiceTurns:
    """The turns of one service."""

    generation: Turn
    rollout: Turn
    followed: str | None = None
    """Digest of the spec's part about worker pods when this process last found the pods as wanted, or first saw them;
    None: it has not seen them yet."""


NO_LIMIT = ServiceTurns(Turn(), Turn())


def place_words(turn: Turn) -> str:
    """Message that says how many services go before a waiting one."""
    if turn.ahead == 0:
        return "it is next"
    if turn.ahead <= _EXACT:
        return f"{turn.ahead} {'waits' if turn.ahead == 1 else 'wait'} before it"
    return f"more than {_rounded_down(turn.ahead)} wait before it"


def _rounded_down(count: int) -> int:
    """Round down to 10, 20, 50, 100 and so on, always below `count`."""
    found = step = _EXACT
    while step < count:
        found = next(at for at in (5 * step, 2 * step, step) if at < count)
        step *= 10
    return found
