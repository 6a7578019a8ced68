"""The fleet: which of the operator's services are under way and which wait for a turn.

A service's plan must know of the others where only so many may do something at a time (`turns.py`). Each plan leaves
its service's standing here, in the same step of the event loop in which it got its turn: so two reconciles never take
the same place, even before the watch reports what the first of them wrote.

Nothing here outlives the process: initial standings are derived from the children once the watches are complete, and
each service's plan then replaces its own. A place that becomes free wakes the next services.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gnnserve_operator.errors import ConflictError, RefusedError, RetryLaterError
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import DEPLOYMENT, JOB, Manifest, ServiceKey
from gnnserve_operator.observed import observed_deployment, observed_jobs
from gnnserve_operator.turns import ALL_IDLE, IDLE, UNDER_WAY, ServiceTurns, Stance, Standing, Standings, Turn

WOKEN = 10
"""Waiting services that are reconciled when the line moves: they may go, or update their position."""


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
    """All services. `wake` has a service reconciled soon."""

    def __init__(self, index: Index, wake: Callable[[ServiceKey], None], *, max_jobs: int, max_rollouts: int) -> None:
        self._index = index
        self._wake = wake
        self.generation = Line(max_jobs)
        self.rollout = Line(max_rollouts)
        self._followed: dict[ServiceKey, str] = {}
        self._has_begun = False

    def turns(self, key: ServiceKey) -> ServiceTurns:
        if not self._has_begun:
            self._has_begun = True
            for known in self._index.reconciled_keys():
                self._note(known, self._standings_in_index(known))
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
        found = self._standings_in_index(key)
        generation, rollout = (s if s == UNDER_WAY else IDLE for s in (found.generation, found.rollout))
        self._note(key, Standings(generation, rollout))

    def _note(self, key: ServiceKey, standings: Standings) -> None:
        woken: dict[ServiceKey, None] = {}
        for line, standing in ((self.generation, standings.generation), (self.rollout, standings.rollout)):
            if line.note(key, standing) and line.limit:
                woken |= dict.fromkeys(line.first(max(WOKEN, line.limit)))
        for other in woken:
            self._wake(other)

    def _standings_in_index(self, key: ServiceKey) -> Standings:
        service: Manifest = {"spec": {}} | (self._index.service(key) or {})
        jobs, _ = observed_jobs(self._index.children(key, JOB))
        left = [job for job in jobs if not (job.is_over or job.deleting or job.is_suspended_elsewhere)]
        generation = IDLE
        if any(not job.suspended for job in left):
            generation = UNDER_WAY
        elif left and not service["spec"].get("suspend"):
            generation = Standing(Stance.WAITING, min(job.created_at for job in left))
        deployments = map(observed_deployment, self._index.children(key, DEPLOYMENT))
        is_rolling = any(
            found.replicas > 0 and not (found.rolled_out or found.progress_stopped or found.deleting)
            for found in deployments
        )
        return Standings(generation, UNDER_WAY if is_rolling else IDLE)
