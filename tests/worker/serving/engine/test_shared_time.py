"""All work of an event loop among services in simulated time: reading, batches, answers, and sockets between turns."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gnnserve_worker.scheduling.batcher import Batch
from gnnserve_worker.scheduling.turns import ACTIVE_MS, INPUT_MS, MOST_INPUT_MS, RecentModels, Turns, input_ms
from gnnserve_worker.serving.engine.engine import ROUND_MS
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.shared_time import SharedTime

CLIENT_MS = 0.05
"""From an answer to the next request of its client."""


@dataclass(eq=False)
class Model:
    """As much of a served model as turns need, and what its service's requests cost."""

    service: str
    connections: int
    batch_ms: float = 0.03
    seed_ms: float = 0.005
    read_ms: float = 0.012
    socket_ms: float = 0.006
    """Of a message read or written."""
    weight: float = 1.0
    stops_ms: float = math.inf
    """When its clients send nothing more."""
    inlet: Inlet | None = None
    lane: Any = None
    released_ms: float = -math.inf
    occupied_ms: float = -math.inf
    queued: list[float] = field(default_factory=list)
    """When each request that was read arrived."""
    took_ms: list[float] = field(default_factory=list)
    worked_ms: float = 0.0

    @property
    def has_input(self) -> bool:
        return self.inlet is not None and self.inlet.is_waiting

    @property
    def has_more(self) -> bool:
        return bool(self.queued)

    def first_waiting_lane(self) -> Any:
        return self if self.queued else None


@dataclass
class Arrived:
    """A request that a socket brought."""

    world: World
    model: Model
    at_ms: float

    def take_in(self) -> None:
        self.world.work(self.model, self.model.read_ms)
        self.model.queued.append(self.at_ms)


class World:
    """An event loop whose clients ask again once they are answered."""

    def __init__(self, *models: Model) -> None:
        self.now_ms = self.busy_ms = 0.0
        self.time = SharedTime(lambda: self.now_ms, lambda: self.busy_ms)
        self.models = models
        self._order = itertools.count()
        self._coming: list[tuple[float, int, Model]] = []
        for model in models:
            self.time.add(cast(Any, model), model.weight)
            self.time.inlet_of(cast(Any, model), lambda: None)
            for _ in range(model.connections):
                self._come(model, 0.0)

    def _come(self, model: Model, at_ms: float) -> None:
        if at_ms < model.stops_ms:
            heapq.heappush(self._coming, (at_ms, next(self._order), model))

    def work(self, model: Model, took_ms: float) -> None:
        self.now_ms += took_ms
        self.busy_ms += took_ms
        model.worked_ms += took_ms

    def run(self, until_ms: float) -> None:
        while self.now_ms < until_ms:
            if not self.time.has_input() and not self.time.has_more():
                if not self._coming:
                    return
                self.now_ms = max(self.now_ms, self._coming[0][0])
            self._poll()
            self._serve_round()

    def _poll(self) -> None:
        ready = []
        while self._coming and self._coming[0][0] <= self.now_ms:
            ready.append(heapq.heappop(self._coming))
        for at_ms, _, model in ready:
            self.work(model, model.socket_ms)
            assert model.inlet is not None
            model.inlet.count(0)
            model.inlet.put(Arrived(self, model, at_ms))

    def _serve_round(self) -> None:
        """As the engine does, with batches on the loop."""
        self.time.begin_round()
        until_ms, answered = self.now_ms + ROUND_MS, deque[tuple[Model, float]]()
        while True:
            turn, lane = cast(tuple[Model | None, Any], self.time.next_turn())
            if turn is None:
                break
            if lane is not None:
                batch = Batch("x1", tuple(turn.queued), len(turn.queued), len(turn.queued), 1.0, 1.0)  # type: ignore[arg-type]
                started_ms = self.now_ms
                self.work(turn, turn.batch_ms + turn.seed_ms * len(turn.queued))
                answered += [(turn, at_ms) for at_ms in turn.queued]
                turn.queued.clear()
                computed = _Computed(started_ms)
                self.time.end_turn(cast(Any, turn), batch, cast(Any, computed), self.now_ms)
            if not self.time.may_go_on(until_ms):
                break
        self.time.end_round(is_computing=False)
        for model, at_ms in answered:
            self.work(model, model.socket_ms)
            model.took_ms.append(self.now_ms - at_ms)
            self._come(model, self.now_ms + CLIENT_MS)


@dataclass
class _Computed:
    started_ms: float


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnserve_worker.serving.engine.shared_time.ComputedBatch", _Computed)
    monkeypatch.setattr("gnnserve_worker.serving.engine.shared_time.longest_turn_of", lambda _models, _model: math.inf)
    monkeypatch.setattr(
        "gnnserve_worker.serving.engine.shared_time.most_claimed_of", lambda _models, _model, _lane: 0.0
    )


def alone_and_beside(other: Model, **costs: float) -> tuple[Model, Model]:
    """A service with four connections by itself, and beside the other one."""
    alone, beside = Model("few", 4, **costs), Model("few", 4, **costs)  # type: ignore[arg-type]
    World(Model("idle", 0), alone).run(1000)
    World(other, beside).run(1000)
    return alone, beside


def p99(model: Model) -> float:
    return sorted(model.took_ms)[len(model.took_ms) * 99 // 100]


@pytest.mark.campaign
@pytest.mark.parametrize("connections", [8, 256, 2000])
def test_few_connections_keep_nearly_half_of_their_requests_beside_many(connections: int) -> None:
    alone, beside = alone_and_beside(Model("many", connections))
    # The first round finds all connections ready, before there are any turns.
    assert len(beside.took_ms) > 0.4 * len(alone.took_ms)
    assert p99(beside) < 3 * p99(alone)


def test_requests_that_take_their_time_outside_of_batches_are_charged_for_it() -> None:
    """The other service's requests cost ten times as much to read, and its batches as much as ours."""
    alone, beside = alone_and_beside(Model("many", 256, read_ms=0.12))
    assert len(beside.took_ms) > 0.4 * len(alone.took_ms)


@pytest.mark.campaign
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 4.0)])
@pytest.mark.parametrize("socket_ms", [0.002, 0.02])
def test_shares_of_all_work_are_the_weights(weights: tuple[float, float], socket_ms: float) -> None:
    first = Model("first", 300, weight=weights[0], socket_ms=socket_ms)
    second = Model("second", 100, weight=weights[1], socket_ms=socket_ms, read_ms=0.03, seed_ms=0.001)
    World(first, second).run(3000)
    share = first.worked_ms / (first.worked_ms + second.worked_ms)
    assert share == pytest.approx(weights[0] / sum(weights), abs=0.04)


def test_what_the_loop_does_while_no_service_has_requests_is_charged_to_none() -> None:
    world = World(first := Model("first", 300), second := Model("second", 100))
    world.time.begin_round()
    world.time.end_round(is_computing=False)
    world.busy_ms += 10_000
    world.run(1000)
    assert first.worked_ms / (first.worked_ms + second.worked_ms) == pytest.approx(0.5, abs=0.04)


def test_what_a_service_leaves_goes_to_the_others() -> None:
    stops, goes_on, by_itself = Model("stops", 64, stops_ms=500), Model("goes on", 256), Model("by itself", 256)
    World(stops, goes_on).run(500 + 2 * ACTIVE_MS)
    answered = len(goes_on.took_ms)
    World(Model("idle", 0), by_itself).run(1000)
    world = World(Model("stopped", 64, stops_ms=0), later := Model("goes on", 256))
    world.run(1000)
    assert len(later.took_ms) > 0.99 * len(by_itself.took_ms)
    assert answered < len(by_itself.took_ms)


def test_input_is_read_for_shorter_while_others_are_active() -> None:
    recent: RecentModels[str] = RecentModels()
    recent.note("a", 0.0)
    recent.note("b", 50.0)
    assert recent.are_several(60.0)
    assert recent.has_others("a", 60.0)
    assert recent.has_others("b", ACTIVE_MS - 1)
    assert not recent.has_others("b", ACTIVE_MS + 1)
    assert not recent.are_several(ACTIVE_MS + 1)
    recent.forget("b")
    assert not recent.has_others("a", 60.0)
    assert input_ms(True, math.inf) == INPUT_MS
    assert input_ms(False, math.inf) == MOST_INPUT_MS
    assert input_ms(False, 0.5) == 0.5


def batch_in_the_thread() -> tuple[World, Model, Model]:
    """Two services, of which the first has begun a batch at 1 ms that another thread computes."""
    world = World(first := Model("first", 0), second := Model("second", 0))
    world.now_ms = 1.0
    first.queued.append(1.0)
    world.time.begin_round()
    assert world.time.next_turn() == (first, first)
    first.queued.clear()
    return world, first, second


def test_input_that_is_read_beside_a_batch_takes_nothing_of_its_time() -> None:
    world, first, second = batch_in_the_thread()
    first.released_ms = 1.0
    world.now_ms = 9.0
    assert second.inlet is not None
    second.inlet.put(Arrived(world, second, 9.0))
    assert not world.time.take_in_beside()
    world.now_ms = 11.0
    assert world.time.began_ms(cast(Any, first), 1.0) == 1.0


@pytest.mark.parametrize(("is_computing", "idle_ms"), [(True, 0.0), (False, 10.0)])
def test_time_of_a_batch_in_the_thread_does_not_pass_as_idle(
    is_computing: bool, idle_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[float] = []
    monkeypatch.setattr(Turns, "pass_idle", lambda _turns, idle_ms: passed.append(idle_ms))
    world, _, second = batch_in_the_thread()
    world.time.end_round(is_computing=is_computing)
    world.now_ms = 11.0
    second.queued.append(11.0)
    assert world.time.next_turn() == (second, second)
    assert sum(passed) == idle_ms


def test_steps_of_a_request_outside_of_turns_are_charged_to_its_service() -> None:
    charged: list[float] = []

    async def answer() -> None:
        await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(3600)

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(Inlet(lambda: None, charged.append).metered(answer()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(run())
    assert len(charged) == 3
    assert min(charged) > 0
