"""Plays a scene, in peace or with one trouble, and says what was violated."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
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


async def play(scene: Scene, at: Point | Trouble = PEACE, peaceful: Outcome | None = None) -> Outcome:
    began = time.perf_counter()
    trouble = Trouble(at) if isinstance(at, Point) else at
    world = World(SETTINGS, trouble)
    judge = world.judge
    try:
        world.start_operator()
        await scene(world)
        judge.guarded = None
        await rest(world)
    except Hung as hung:
        judge.accuse(f"hangs: {hung}")
    point, end, history = trouble.point, judge.end_state(), judge.history()
    services = [found["metadata"]["name"] for found in world.plane.of_kind("GNNService")]
    for left in judge.leftovers(services):
        judge.accuse(f"{left} outlives its service")
    if peaceful is not None:
        pardoned = world.created_late if point.kind == STOPPED else None
        timed = TIMED.get(scene, {})
        if point.kind in VIEWS:
            timed = {**timed, **LAGGING.get(scene, {})}
        ours, theirs = without_late_claim(end, peaceful.end, pardoned), peaceful.end
        history_of = (history, peaceful.history)
        if point.kind in EITHER.get(scene, ()):
            ours, theirs = without_generation(ours), without_generation(theirs)
        if point.kind in REPAIRED.get(scene, ()):
            ours, theirs = without_repair(ours), without_repair(theirs)
        if point.kind in NUMBERED.get(scene, ()):
            ours, theirs = without_numbers(ours), without_numbers(theirs)
            history_of = (history.without_numbers(), peaceful.history.without_numbers())
        for words in (*differences(ours, theirs), *history_of[0].excess(history_of[1], pardoned, timed)):
            judge.accuse(words)
    for operator in world.operators:
        await operator.end()
    return Outcome(
        tuple(judge.violations), end, history, tuple(world.calls), len(world.cluster.history), trouble.reached,
        time.perf_counter() - began, world.clock.now(), world.reconciles,
    )  # fmt: skip


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
