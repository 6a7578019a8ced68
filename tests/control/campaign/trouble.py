"""What goes wrong in a run: one kind of trouble at one moment, so that a finding can be repeated by its name.

Moments are numbered by the run itself: calls and writes of operators, changes of the history. A number that the run
does not reach is a run in peace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.control.campaign.sim_operator import Crash
from tests.control.campaign.view import DELAY_S
from tests.support.kubernetes.api_server import Response
from tests.support.kubernetes.fake_cluster import Change

if TYPE_CHECKING:
    from tests.control.campaign.world import World

RETRY_AFTER_S = 7
STOPPED_S = 15.0
STALE_S, DOWN_S, OUTAGE_S, LATE_S = 8.0, 30.0, 20.0, 3.0
BEHIND = 12
"""Changes that a stale list lacks."""
MERGED = 6
"""Changes that are told as one."""

CRASHES = ("crash before", "crash after")
FAULTS = ("409", "422", "429", "500", "lost", "late")
"""`lost`: no answer, and not carried out; `late`: no answer, though carried out."""
READ_FAULTS = ("429", "500", "lost")
CALLS = ("outage", "slow")
STOPPED, FENCED, TWO_OPERATORS = "stopped", "stopped and fenced", "two operators"
"""Stopped: right before a write, past the check of the leadership, until another operator has done everything. Fenced:
the API server refuses what bears the term of an earlier leader, as the chart's `leaderElection.fencing` has it do."""
STOPS = (STOPPED, FENCED)
ON_STEP = ("backward", "restart", "stale restart", "down", TWO_OPERATORS)
"""What begins between two steps of the world."""
VIEWS = ("stale", "dropped", "merged", "reordered", "backward", "restart", "stale restart", "down")
WATCHED_WATCHES = ("dropped", "backward", "stale restart")
"""What no later change mends: the operator has to compare its watches with what there is."""
_LASTS: Mapping[str, int] = {
    "stale": 3 * BEHIND, "merged": MERGED, "backward": 2 * BEHIND, "stale restart": 2 * BEHIND,
}  # fmt: skip
"""Changes that are told late, from the moment on."""


@dataclass(frozen=True, slots=True)
class Point:
    """`409 at 17`: where a run is disturbed, and how."""

    kind: str
    at: int
    and_at: int | None = None
    """The same once more."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.at}" + ("" if self.and_at is None else f" and {self.and_at}")


PEACE = Point("peace", -1)


@dataclass(slots=True)
class Trouble:
    point: Point = PEACE
    reached: int = 0
    """How often it struck."""
    seen: int = 0
    """Changes that watches were about to tell of."""
    _until: float | None = None

    @property
    def kind(self) -> str:
        return self.point.kind

    @property
    def watches_are_checked(self) -> bool:
        """Where a watch may miss a change for good; a list that is made anew brings no deletion that it was to tell."""
        return self.kind in WATCHED_WATCHES

    @property
    def is_strict(self) -> bool:
        """Whether the world stands still between a look at it and what is written about it."""
        return self.kind != "slow"

    @property
    def may_stop(self) -> bool:
        """Whether the operator may stand still in the midst of a reconcile."""
        return self.kind in STOPS

    def is_spent(self, world: World, *, is_all_told: bool) -> bool:
        """Whether it strikes no more, so that what follows depends on the world alone. `is_all_told`: no change is to
        come that watches tell of."""
        if self.kind == TWO_OPERATORS or not self.is_over(world):
            return False
        strikes = 2 if self.kind in STOPS or self.point.and_at is not None else 1
        lasts = _LASTS.get(self.kind)
        return self.reached == strikes and (lasts is None or is_all_told or self.seen >= self.point.at + lasts)

    def next_due(self, now: float) -> float | None:
        return self._until if self._until is not None and (self._until > now or self.kind in {"down", *STOPS}) else None

    def is_over(self, world: World) -> bool:
        """Whether nothing more is to come of what has begun."""
        is_begun = self.kind in STOPS and self.reached == 1
        # What ends between two steps is over after it has ended: an operator that is down is started again by then.
        is_due = self.kind not in {"down", *STOPS} and self._until is not None and world.clock.now() >= self._until
        return not is_begun and (self._until is None or is_due)

    def on_call(self, world: World, number: int, write: int | None, carry_out: Callable[[], Response]) -> Response:
        now = world.clock.now()
        if self.kind == "outage":
            if number == self.point.at:
                self.reached, self._until = 1, now + OUTAGE_S
            if self._until is not None and now < self._until:
                raise OSError("connection refused")
            return carry_out()
        is_write_counted = self.kind in CRASHES
        counted = write if is_write_counted else number
        if counted is None or counted not in {self.point.at, self.point.and_at} or self.kind in VIEWS:
            return carry_out()
        return self._strike(world, write, carry_out)

    def _strike(self, world: World, write: int | None, carry_out: Callable[[], Response]) -> Response:
        match self.kind:
            case "crash before":
                self.reached += 1
                raise Crash
            case "crash after":
                self.reached += 1
                carry_out()
                raise Crash
            case "late":
                self.reached += 1
                carry_out()
                raise TimeoutError("no answer in time")
            case "lost":
                self.reached += 1
                raise TimeoutError("no answer in time")
            case "slow":
                self.reached += 1
                for _ in range(40):  # the cluster goes on meanwhile
                    if not world.plane.step():
                        break
                return carry_out()
            case "409" | "422" | "429" | "500":
                if write is None and self.kind not in READ_FAULTS:
                    return carry_out()
                self.reached += 1
                return _refusal(int(self.kind))
        return carry_out()

    def stops(self, writes: int) -> bool:
        """Whether the operator stands still before the write after so many."""
        if self.kind not in STOPS or self.reached or writes != self.point.at:
            return False
        self.reached = 1
        return True

    def meddle(self, change: Change) -> float | None:
        """After how long a watch tells of a change."""
        number, self.seen = self.seen, self.seen + 1
        at = self.point.at
        match self.kind:
            case "stale" if at <= number < at + _LASTS["stale"]:
                self.reached = 1
                return STALE_S
            case "dropped" if number == at:
                self.reached = 1
                return None
            case "merged" if at <= number < at + _LASTS["merged"]:
                self.reached = 1
                return LATE_S
            case "reordered" if number == at:
                self.reached = 1
                return LATE_S
            case "backward" | "stale restart" if self.reached and number < at + _LASTS[self.kind]:
                return LATE_S
        return DELAY_S

    async def on_step(self, world: World) -> None:
        if self._until is not None and world.clock.now() >= self._until and self.kind in {"down", *STOPS}:
            self._until = None
            if self.kind == "down":
                world.resume_operators()
            else:
                await world.go_on()
        if self.kind in STOPS and self.reached == 1:
            self.reached, self._until = 2, world.clock.now() + STOPPED_S
        if self.reached or self.kind not in ON_STEP:
            return
        if len(world.cluster.history) <= self.point.at or not world.operators:
            return
        self.reached = 1
        if self.kind == TWO_OPERATORS:
            world.wanted_operators = 2
            world.start_operator()
        elif self.kind == "backward":
            world.operators[0].view.rewind(BEHIND)
        elif self.kind == "down":
            self._until = world.clock.now() + DOWN_S
            await world.stop_operators()
        else:
            await world.restart_operator(behind=BEHIND if self.kind == "stale restart" else 0)


def _refusal(code: int) -> Response:
    reasons: Mapping[int, str] = {
        409: "Conflict", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
    }  # fmt: skip
    headers = {"Retry-After": str(RETRY_AFTER_S)} if code == 429 else {}
    body: dict[str, Any] = {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reasons[code],
        "message": f"injected {code}",
    }  # fmt: skip
    return Response(code, headers, body)
