"""The fleet: which of the operator's services are under way and which wait for a turn, where only so many may do
something at a time. Two things are limited: running generation Jobs, and rollouts that the operator's own settings
cause.

A plan gets its service's `Turn` and returns the service's `Standing`, which is left here in the same step of the
event loop: so two reconciles never take one place, even before the watch reports what the first of them wrote.

Nothing here outlives the process: initial standings are those of the children once the watches are complete, and each
service's plan then replaces its own. A place that becomes free wakes the next services.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from gnnserve_operator.errors import ConflictError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import ServiceKey

WOKEN = 10
"""Waiting services that are reconciled when the line moves: they may go, or update their position."""
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


@dataclass(slots=True)
class Line:
    """The services that are under way or waiting, for one limited thing."""

    limit: int
    _standings: dict[ServiceKey, Standing] = field(default_factory=dict)
    """Standings of the services that are not idle."""
    _waiting: list[tuple[str, ServiceKey]] = field(default_factory=list)
    """Waiting services in their order."""

    def turn(self, key: ServiceKey) -> Turn:
        standing = self._standings.get(key, IDLE)
        is_ours = standing.stance is Stance.UNDER_WAY
        ahead = len(self._waiting)  # a new one comes last
        if standing.stance is Stance.WAITING:
            ahead = bisect_left(self._waiting, (standing.order, key))
        return Turn(self.limit, self.under_way - is_ours, ahead, is_ours)

    @property
    def under_way(self) -> int:
        return len(self._standings) - len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def note(self, key: ServiceKey, standing: Standing) -> bool:
        """Whether the line has moved."""
        before = self._standings.pop(key, IDLE)
        if before.stance is Stance.WAITING:
            del self._waiting[bisect_left(self._waiting, (before.order, key))]
        if standing.stance is Stance.WAITING:
            insort(self._waiting, (standing.order, key))
        if standing.stance is not Stance.IDLE:
            self._standings[key] = standing
        return standing != before

    def first(self, count: int) -> list[ServiceKey]:
        return [key for _, key in self._waiting[:count]]


class Fleet:
    """All services."""

    def __init__(
        self,
        keys: Callable[[], Iterable[ServiceKey]],
        standings_of: Callable[[ServiceKey], Standings],
        wake: Callable[[ServiceKey], None],
        *,
        max_jobs: int,
        max_rollouts: int,
    ) -> None:
        """`keys`, `standings_of`: all services, and a service's standings, by the live objects; `wake` has a service
        reconciled soon."""
        self._keys = keys
        self._standings_of = standings_of
        self._wake = wake
        self.generation = Line(max_jobs)
        self.rollout = Line(max_rollouts)
        self._followed: dict[ServiceKey, str] = {}
        self._has_begun = False

    def turns(self, key: ServiceKey) -> ServiceTurns:
        if not self._has_begun:
            self._has_begun = True
            for known in self._keys():
                self._note(known, self._standings_of(known))
        return ServiceTurns(self.generation.turn(key), self.rollout.turn(key), self._followed.get(key))

    def note(self, key: ServiceKey, standings: Standings, followed: str | None) -> None:
        """Note the standings that a plan returned; to be called before anything else is planned."""
        if followed is not None:
            self._followed[key] = followed
        self._note(key, standings)

    def forget(self, key: ServiceKey) -> None:
        """Drop a service that no longer exists."""
        self._followed.pop(key, None)
        self._note(key, ALL_IDLE)

    @contextmanager
    def attempt(self, key: ServiceKey) -> Iterator[None]:
        """Whatever fails within keeps no others waiting; it is raised on. A conflict is looked at again at once, and
        keeps its place."""
        try:
            yield
        except ConflictError:
            raise
        except (RetryLaterError, RefusedError, asyncio.CancelledError):
            self.step_aside(key)
            raise
        except Exception:
            self.recount(key)
            raise

    def step_aside(self, key: ServiceKey) -> None:
        """Note that a service's reconcile failed: it no longer keeps others waiting, but what it may have written still
        counts."""
        turns = (self.generation.turn(key), self.rollout.turn(key))
        generation, rollout = (UNDER_WAY if turn.is_ours else IDLE for turn in turns)
        self._note(key, Standings(generation, rollout))

    def recount(self, key: ServiceKey) -> None:
        """Note that a plan was not carried out: the existing children count, and the service keeps no others
        waiting."""
        found = self._standings_of(key)
        generation, rollout = (s if s == UNDER_WAY else IDLE for s in (found.generation, found.rollout))
        self._note(key, Standings(generation, rollout))

    def _note(self, key: ServiceKey, standings: Standings) -> None:
        woken: dict[ServiceKey, None] = {}
        for line, standing in ((self.generation, standings.generation), (self.rollout, standings.rollout)):
            if line.note(key, standing) and line.limit:
                woken |= dict.fromkeys(line.first(max(WOKEN, line.limit)))
        for other in woken:
            self._wake(other)
