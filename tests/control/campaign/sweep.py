"""Many points of one scene for the price of what follows them: runs in peace, forked wherever they are to be disturbed.

Up to the moment of its trouble, a run depends on nothing of the trouble but whether the operator compares its watches.
So one process plays the scene with a trouble that never comes; at each moment that a point names, a child process goes
on from there with the trouble, tells what came of it, and ends. A child ends early where its run has come back to what
it is in peace: what would follow is known. What comes out is what `play` finds for each point.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
from tests.control.campaign.play import Outcome, play
from tests.control.campaign.scenarios import Scene
from tests.control.campaign.trouble import CRASHES, ON_STEP, STOPS, VIEWS, WATCHED_WATCHES, Point, Trouble
from tests.control.campaign.world import World
from tests.support.kubernetes.api_server import Response
from tests.support.kubernetes.fake_cluster import Change

_NEVER = sys.maxsize
_CALL, _WRITE, _STOP, _CHANGE, _STEP = range(5)
"""What the moments of a kind of trouble are counted by."""


class _AllPlayed(BaseException):
    """No moment is ahead of the run in peace. Nothing of the operator may catch it."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a child process tells of its outcome."""

    violations: tuple[str, ...]
    reached: int
    calls: int
    changes: int
    reconciles: int
    simulated_s: float
    came_back: tuple[str, ...] | None = None
    """What was violated by the time that the run had come back to peace; None: it never did."""

    @classmethod
    def of(cls, outcome: Outcome) -> Played:
        return cls(
            outcome.violations, outcome.reached, len(outcome.calls), outcome.changes, outcome.reconciles,
            outcome.simulated_s, outcome.came_back,
        )  # fmt: skip


def _counted_by(kind: str) -> int:
    if kind in CRASHES:
        return _WRITE
    if kind in STOPS:
        return _STOP
    if kind in ON_STEP:
        return _STEP
    return _CHANGE if kind in VIEWS else _CALL


@dataclass(slots=True)
class Crossroads(Trouble):
    """The trouble of the run that is forked. In a child it is that of one point."""

    ahead: dict[int, dict[int, list[Point]]] = field(default_factory=dict)
    """By what moments are counted by, and by moment: the points that no child has played yet."""
    played: dict[Point, Played] = field(default_factory=dict)
    told_to: int | None = None
    """File descriptor for a child's outcome; None: this is the run in peace."""

    @property
    def may_stop(self) -> bool:
        return self.told_to is None or self.kind in STOPS

    def on_call(self, world: World, number: int, write: int | None, carry_out: Callable[[], Response]) -> Response:
        self._fork(_CALL, number)
        if write is not None:
            self._fork(_WRITE, write)
        return Trouble.on_call(self, world, number, write, carry_out)

    def stops(self, writes: int) -> bool:
        self._fork(_STOP, writes)
        return Trouble.stops(self, writes)

    def meddle(self, change: Change) -> float | None:
        self._fork(_CHANGE, self.seen)
        return Trouble.meddle(self, change)

    async def on_step(self, world: World) -> None:
        if world.operators:
            for moment in [at for at in self.ahead.get(_STEP, ()) if at < len(world.cluster.history)]:
                self._fork(_STEP, moment)
        await Trouble.on_step(self, world)

    def _fork(self, counted_by: int, moment: int) -> None:
        """A child for each point of this moment. The child returns too, and goes on with the trouble."""
        if self.told_to is not None:
            return
        for point in self.ahead.get(counted_by, {}).pop(moment, ()):
            read, write = os.pipe()
            loop = asyncio.get_running_loop()
            child = os.fork()
            if child == 0:
                # A loop counts as running in the process that started it; this one goes on in the child. It waits for
                # no file: only for time, which is simulated.
                asyncio._set_running_loop(loop)
                os.close(read)
                self.point, self.told_to = point, write
                return
            os.close(write)
            with os.fdopen(read, "rb") as told:
                text = told.read()
            os.waitpid(child, 0)
            self.played[point] = msgspec.json.decode(text, type=Played)
        if not any(self.ahead.values()):
            raise _AllPlayed


def sweep(
    scene: Scene, points: Iterable[Point], peaceful: Outcome, whole: Container[Point] = ()
) -> Mapping[Point, Played]:
    """The outcome of each point. `whole`: those that are played to their end, even if they come back to peace."""
    chosen = list(points)
    found: dict[Point, Played] = {}
    for is_watched in (False, True):
        ahead: dict[int, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
        for point in chosen:
            if (point.kind in WATCHED_WATCHES) == is_watched:
                ahead[_counted_by(point.kind)][point.at].append(point)
        if ahead:
            roads = Crossroads(Point(WATCHED_WATCHES[0] if is_watched else "peace", _NEVER), ahead=dict(ahead))
            asyncio.run(_walk(scene, roads, peaceful, whole))
            found |= roads.played
    # A moment that the run does not reach is a run in peace.
    in_peace = replace(Played.of(peaceful), came_back=None)
    return {point: found.get(point, in_peace) for point in chosen}


async def _walk(scene: Scene, roads: Crossroads, peaceful: Outcome, whole: Container[Point]) -> None:
    def is_whole() -> bool:
        return roads.told_to is None or roads.point in whole

    try:
        played = Played.of(await play(scene, roads, peaceful, is_whole))
    except _AllPlayed:
        return
    except BaseException:
        if roads.told_to is None:
            raise
        played = Played((traceback.format_exc(),), roads.reached, 0, 0, 0, 0.0)
    if roads.told_to is not None:
        os.write(roads.told_to, msgspec.json.encode(played))
        # Nothing else of this process is to be cleaned up: it shares the parent's event loop and its test's fixtures.
        os._exit(0)
