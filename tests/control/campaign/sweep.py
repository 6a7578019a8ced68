"""Many points of one scene for the price of their ends: one run in peace, forked wherever it is to be disturbed.

Up to the moment of its trouble, a run depends on the kind of trouble alone. So one process plays the scene with a
trouble that never comes; at each moment that a point names, a child process goes on from there with the trouble, tells
what came of it, and ends. What comes out is what `play` finds for each point.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from tests.control.campaign.play import Outcome, play
from tests.control.campaign.scenarios import Scene
from tests.control.campaign.trouble import CRASHES, ON_STEP, STOPS, VIEWS, Point, Trouble
from tests.control.campaign.world import World
from tests.support.kubernetes.api_server import Response
from tests.support.kubernetes.fake_cluster import Change

_NEVER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Played:
    """What a child process tells of its outcome."""

    violations: tuple[str, ...]
    reached: int
    calls: int
    changes: int
    reconciles: int
    simulated_s: float

    @classmethod
    def of(cls, outcome: Outcome) -> Played:
        return cls(
            outcome.violations, outcome.reached, len(outcome.calls), outcome.changes, outcome.reconciles,
            outcome.simulated_s,
        )  # fmt: skip


@dataclass(slots=True)
class Crossroads(Trouble):
    """The trouble of the run that is forked. In a child it is that of one point."""

    ahead: dict[int, list[Point]] = field(default_factory=dict)
    """By moment: the points that no child has played yet."""
    played: dict[Point, Played] = field(default_factory=dict)
    told_to: int | None = None
    """File descriptor for a child's outcome; None: this is the run in peace."""

    def on_call(self, world: World, number: int, write: int | None, carry_out: Callable[[], Response]) -> Response:
        moment = write if self.kind in CRASHES else number
        if moment is not None and self.kind not in {*STOPS, *VIEWS}:
            self._fork(moment)
        return Trouble.on_call(self, world, number, write, carry_out)

    def stops(self, writes: int) -> bool:
        if self.kind in STOPS:
            self._fork(writes)
        return Trouble.stops(self, writes)

    def meddle(self, change: Change) -> float | None:
        if self.kind in VIEWS and self.kind not in ON_STEP:
            self._fork(self._seen)
        return Trouble.meddle(self, change)

    async def on_step(self, world: World) -> None:
        if self.kind in ON_STEP and world.operators:
            for moment in [at for at in self.ahead if at < len(world.cluster.history)]:
                self._fork(moment)
        await Trouble.on_step(self, world)

    def _fork(self, moment: int) -> None:
        """A child for each point of this moment. The child returns too, and goes on with the trouble."""
        for point in self.ahead.pop(moment, ()):
            read, write = os.pipe()
            loop = asyncio.get_running_loop()
            child = os.fork()
            if child == 0:
                # A loop counts as running in the process that started it; this one goes on in the child. It waits for
                # no file: only for time, which is simulated.
                asyncio._set_running_loop(loop)
                os.close(read)
                self.point, self.told_to = point, write
                self.ahead.clear()
                return
            os.close(write)
            with os.fdopen(read, "rb") as told:
                text = told.read()
            os.waitpid(child, 0)
            self.played[point] = msgspec.json.decode(text, type=Played)


def sweep(scene: Scene, points: Iterable[Point], peaceful: Outcome) -> Mapping[Point, Played]:
    """The outcome of each point."""
    by_kind: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_kind[point.kind][point.at].append(point)
    found: dict[Point, Played] = {}
    for kind, ahead in by_kind.items():
        roads = Crossroads(Point(kind, _NEVER), ahead=dict(ahead))
        in_peace = asyncio.run(_walk(scene, roads, peaceful))
        found |= roads.played
        # A moment that the run does not reach is a run in peace.
        found |= {point: in_peace for left in roads.ahead.values() for point in left}
    return found


async def _walk(scene: Scene, roads: Crossroads, peaceful: Outcome) -> Played:
    try:
        played = Played.of(await play(scene, roads, peaceful))
    except BaseException:
        if roads.told_to is None:
            raise
        played = Played((traceback.format_exc(),), roads.reached, 0, 0, 0, 0.0)
    if roads.told_to is not None:
        os.write(roads.told_to, msgspec.json.encode(played))
        # Nothing else of this process is to be cleaned up: it shares the parent's event loop and its test's fixtures.
        os._exit(0)
    return played
