"""Plays a scene, in peace or with one trouble, and says what was violated."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.control.campaign.judge import (
    History,
    differences,
    without_generation,
    without_late_claim,
    without_numbers,
    without_repair,
)
from tests.control.campaign.scenarios import EITHER, LAGGING, NUMBERED, REPAIRED, TIMED, Scene
from tests.control.campaign.sim_operator import RESYNC_S
from tests.control.campaign.trouble import PEACE, STOPPED, VIEWS, Point, Trouble
from tests.control.campaign.world import Call, Hung, World

from gnnserve_operator.settings import Settings

SETTINGS = Settings(worker_image="registry.example/worker:1")
HEAL_S = 130.0
"""Until a watch that lost a change is noticed, and the operator has started anew."""
RESYNCS = 3
"""In which nothing may be written, once all is done."""


@dataclass(frozen=True, slots=True)
class Moment:
    """First moment of a run in a state."""

    history: History
    told: frozenset[str]
    """Reasons of the events that there are, which a scene may look for."""
    seen: int
    """Changes that watches were about to tell of by then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    violations: tuple[str, ...]
    end: dict[str, Any]
    history: History
    calls: tuple[Call, ...]
    changes: int
    reached: int
    """How often the trouble struck."""
    seconds: float
    """Real time taken."""
    simulated_s: float = 0.0
    reconciles: int = 0
    seen: int = 0
    """Changes that watches were about to tell of."""
    looks: tuple[int, ...] = ()
    """Lengths of the history at which a step found an operator."""
    moments: Mapping[tuple[int, str], Moment] = field(default_factory=dict)
    """Moments at which the operator had nothing to do, by how far the scene had come, and by the world's state."""
    came_back: tuple[str, ...] | None = None
    """What was violated by the time that the run had come to a moment of peace; None: it never did."""


class CameBack(Exception):  # noqa: N818 - a run's end
    """The run goes on as in peace."""


@dataclass(slots=True)
class Peace:
    """Runs in peace, to compare with: each scene is played once."""

    _of: dict[Scene, Outcome] = field(default_factory=dict)

    def of(self, scene: Scene) -> Outcome:
        if scene not in self._of:
            self._of[scene] = asyncio.run(play(scene))
        return self._of[scene]


def play_alone(scene: Callable[[World], Awaitable[None]], *, resyncs: bool = True) -> list[str]:
    """Play a scene with one operator and without trouble, and return what was violated. `resyncs`: whether services are
    looked at again though nothing happens; without, what goes on does so by itself."""

    async def run() -> list[str]:
        world = World(SETTINGS, Trouble())
        operator = world.start_operator()
        if not resyncs:
            operator.next_resync = math.inf
        await scene(world)
        found = list(world.judge.violations)
        await world.stop_operators()
        return found

    return asyncio.run(run())


@dataclass(slots=True)
class _Moments:
    """Moments of a run, beside those of peace."""

    world: World
    peaceful: Outcome | None
    is_whole: Callable[[], bool]
    found: dict[tuple[int, str], Moment] = field(default_factory=dict)
    of_peace: Moment | None = None
    """The first one that is also one of peace, after which nothing disturbs the run."""
    by_then: tuple[str, ...] = ()
    """What was violated by then."""

    def note(self) -> None:
        """Raises CameBack."""
        world, trouble = self.world, self.world.trouble
        if self.of_peace is not None:
            return
        place = (world.waits, world.state())
        if self.peaceful is None:
            self.found.setdefault(place, Moment(world.judge.history(), world.judge.told(), trouble.seen))
            return
        peaceful = self.peaceful.moments.get(place)
        if peaceful is None or not trouble.reached or not world.judge.told() >= peaceful.told:
            return
        if trouble.is_spent(world, is_all_told=peaceful.seen == self.peaceful.seen):
            self.of_peace, self.by_then = peaceful, tuple(world.judge.violations)
            if not self.is_whole():
                raise CameBack

    def history(self) -> History:
        """What the whole run would have made and deleted."""
        assert self.peaceful is not None
        assert self.of_peace is not None
        return self.world.judge.history().and_then(self.peaceful.history.since(self.of_peace.history))


async def play(
    scene: Scene, at: Point | Trouble = PEACE, peaceful: Outcome | None = None,
    is_whole: Callable[[], bool] = lambda: True,
) -> Outcome:  # fmt: skip
    """Play a scene to its end. `is_whole`: asked where the run has come back to what it is in peace; if it says no, the
    rest of it is that of peace, and is not played."""
    began = time.perf_counter()
    trouble = Trouble(at) if isinstance(at, Point) else at
    world = World(SETTINGS, trouble)
    judge, moments = world.judge, _Moments(world, peaceful, is_whole)
    world.on_moment = moments.note
    end: Mapping[str, Any] | None = None
    try:
        world.start_operator()
        await scene(world)
        judge.guarded = None
        await rest(world)
    except Hung as hung:
        judge.accuse(f"hangs: {hung}")
    except CameBack:
        assert peaceful is not None
        end, history = peaceful.end, moments.history()
    if end is None:
        end, history = judge.end_state(), judge.history()
        services = [found["metadata"]["name"] for found in world.plane.of_kind("GNNService")]
        for left in judge.leftovers(services):
            judge.accuse(f"{left} outlives its service")
    if peaceful is not None:
        for words in _beside_peace(scene, world, (end, history), peaceful):
            judge.accuse(words)
    for operator in world.operators:
        await operator.end()
    return Outcome(
        tuple(judge.violations), dict(end), history, tuple(world.calls), len(world.cluster.history), trouble.reached,
        time.perf_counter() - began, world.clock.now(), world.reconciles, trouble.seen, tuple(world.looks),
        moments.found, None if moments.of_peace is None else moments.by_then,
    )  # fmt: skip


def _beside_peace(
    scene: Scene, world: World, found: tuple[Mapping[str, Any], History], peaceful: Outcome
) -> Iterator[str]:
    """What end and history have that those of peace have not, and may not be."""
    kind = world.trouble.point.kind
    pardoned = world.created_late if kind == STOPPED else None
    timed = TIMED.get(scene, {})
    if kind in VIEWS:
        timed = {**timed, **LAGGING.get(scene, {})}
    end, history = found
    ours, theirs = without_late_claim(end, peaceful.end, pardoned), peaceful.end
    history_of = (history, peaceful.history)
    if kind in EITHER.get(scene, ()):
        ours, theirs = without_generation(ours), without_generation(theirs)
    if kind in REPAIRED.get(scene, ()):
        ours, theirs = without_repair(ours), without_repair(theirs)
    if kind in NUMBERED.get(scene, ()):
        ours, theirs = without_numbers(ours), without_numbers(theirs)
        history_of = (history.without_numbers(), peaceful.history.without_numbers())
    yield from differences(ours, theirs)
    yield from history_of[0].excess(history_of[1], pardoned, timed)


async def rest(world: World) -> None:
    """Whatever the operator has against what it was not told has its time; then nothing may be written any more."""
    await world.run_for(HEAL_S if world.trouble.watches_are_checked else RESYNC_S + 1)
    await world.settled()
    before = world.cluster.version
    await world.run_for(RESYNCS * RESYNC_S)
    if world.cluster.version != before:
        changes = [c for c in world.cluster.history if c.version > before]
        what = sorted({f"{c.type} {c.object['kind']} {c.object['metadata']['name']}" for c in changes})
        world.judge.accuse(f"it is never quiet: {', '.join(what)}")
