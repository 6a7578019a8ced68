"""The slow loop of a server outside of a cluster: what it tells the worker, and what it tells people."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, Route, RoutingMode, RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_cli.slow_loop import LoadSource, LocalSlowLoop, OwnRegistry
from gnnserve_routing.signals import QueryAnswer, Silence
from gnnserve_worker.serving.metrics.metrics import CounterValue
from gnnserve_worker.serving.process.served_service import Look

DEADLINE_S = 60
INTERVAL_S = 10
COSTS = {"x1": AffineCost(10, 0.1), "x4": AffineCost(4, 0.04), "x8": AffineCost(2, 0.02)}
"""With batches of at most 100 seeds and 100 ms: 5,000, 12,500 and 25,000 seeds/s."""
LOSS = {"x1": 0.0, "x4": 10.0, "x8": 30.0}


def spec(**routing: Any) -> GNNServiceSpec:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "digits"},
            "spec": {
                "graph": {"source": {"builtin": "Digits"}},
                "objective": {"latencyMs": 100},
                "worker": {"batching": {"maxSeeds": 100, "maxQueuedSeeds": 500}},
                "routing": {"intervalSeconds": INTERVAL_S, **routing},
            },
        }
    ).spec


@dataclass(slots=True)
class FakeServing:
    """A worker that is looked at, and told tables."""

    revision: str = "r1"
    offered_seeds: float = 0.0
    tables: list[RoutingTable] = field(default_factory=list)
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    has_ended: bool = False

    def look(self) -> Look | None:
        self.looked.release()
        if self.has_ended:
            return None
        variants = tuple(VariantRoute(name, LOSS[name], cost, cost) for name, cost in COSTS.items())
        route = Route(
            self.revision,
            "x1",
            "",
            tuple(COSTS),
            Objective(latency_ms=100),
            mode=RoutingMode.ADAPTIVE,
            variants=variants,
        )
        outcomes = [("met", self.offered_seeds), ("late", 0), ("refused", 0), ("unbounded", 0)]
        return Look(
            route,
            (
                CounterValue("gnnserve_offered_seeds_total", None, self.offered_seeds),
                *(CounterValue("gnnserve_requests_total", ("outcome", name), count) for name, count in outcomes),
            ),
        )

    def route(self, table: RoutingTable) -> None:
        self.tables.append(table)


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class Course:
    """A slow loop, tick by tick."""

    routing: dict[str, Any] = field(default_factory=dict)
    source: LoadSource | None = None
    clock: Clock = field(default_factory=Clock)
    serving: FakeServing = field(default_factory=FakeServing)
    said: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    loop: LocalSlowLoop = field(init=False)

    def __post_init__(self) -> None:
        source = self.source or OwnRegistry(self.clock)
        self.loop = LocalSlowLoop(
            self.serving, spec(**self.routing), source, say=self.said.append, warn=self.warned.append
        )
        self.loop.tick()

    def tick(self, seeds_per_s: float) -> None:
        self.clock.now_s += INTERVAL_S
        self.serving.offered_seeds += seeds_per_s * INTERVAL_S
        self.loop.tick()

    @property
    def bases(self) -> list[str | None]:
        return [table.base_variant for table in self.serving.tables]


def test_base_follows_the_offered_load_down_at_once_and_back_step_by_step() -> None:
    course = Course({"mode": "Metrics"})
    assert course.serving.tables == []
    for seeds_per_s in (1000, 20_000, 1000, 1000, 1000, 1000):
        course.tick(seeds_per_s)
    assert course.bases == ["x1", "x8", "x4", "x1"]
    assert [table.mode for table in course.serving.tables] == [RoutingMode.METRICS] * 4
    # What people see is a change of what was there before, and why.
    assert [line.split(". ")[0] for line in course.said] == [
        "Base variant: x8, before x1",
        "Base variant: x4, before x8",
        "Base variant: x1, before x4",
    ]
    assert all(
        table.reason and table.reason in line
        for table, line in zip(course.serving.tables[1:], course.said, strict=True)
    )
    assert course.warned == []


def test_no_load_is_a_load_and_no_silence() -> None:
    course = Course({"mode": "Metrics"})
    course.tick(20_000)
    for _ in range(4):
        course.tick(0)
    assert course.bases[-1] == "x1"


def test_declared_variants_are_left_alone() -> None:
    for routing in ({"mode": "Static", "variant": "x4"}, {"mode": "Weights", "weights": {"x1": 1, "x8": 1}}):
        course = Course(routing)
        for seeds_per_s in (100, 20_000, 100):
            course.tick(seeds_per_s)
        assert course.serving.tables == []
        assert course.said == []


def test_another_revision_is_judged_anew() -> None:
    course = Course({"mode": "Metrics"})
    course.tick(20_000)
    course.serving.revision = "r2"
    course.tick(1000)
    assert [(table.revision, table.base_variant) for table in course.serving.tables] == [("r1", "x8"), ("r2", "x1")]


@dataclass(slots=True)
class Flaky:
    """A Prometheus that knows what the worker counts, unless it is told to be silent."""

    own: OwnRegistry
    silence: Silence | None = None

    def ask(self, look: Look) -> QueryAnswer | Silence:
        found = self.own.ask(look)
        return self.silence or found


def test_a_prometheus_that_falls_silent_is_told_once_and_changes_nothing() -> None:
    down = Silence(Reason.UNREACHABLE, "http://p:9090 does not answer (refused).")
    empty = Silence(Reason.NO_DATA, "Prometheus has no samples.")
    clock = Clock()
    source = Flaky(OwnRegistry(clock), down)
    course = Course({"mode": "Metrics"}, source, clock)
    source.silence = None
    course.tick(20_000)
    source.silence = down
    for _ in range(3):
        course.tick(100)
    source.silence = empty
    course.tick(100)
    source.silence = None
    course.tick(20_000)
    assert course.bases == ["x8"]
    assert course.warned == [
        f"routing: {down.message} What was decided last stays in effect.",
        "routing: the load is known again.",
        f"routing: {down.message} What was decided last stays in effect.",
        f"routing: {empty.message} What was decided last stays in effect.",
        "routing: the load is known again.",
    ]


def test_loop_looks_at_once_goes_on_after_an_error_and_ends_when_told() -> None:
    warned: list[str] = []
    serving = FakeServing()

    class Broken:
        def ask(self, _look: Look) -> QueryAnswer | Silence:
            raise MemoryError("no more")

    loop = LocalSlowLoop(serving, spec(intervalSeconds=1), Broken(), warn=warned.append)
    loop.start()
    for _ in range(2):
        assert serving.looked.acquire(timeout=DEADLINE_S)
    loop.stop()
    assert warned == ["routing: MemoryError: no more. What was decided last stays in effect."]
    assert all(thread.name != "slow-loop" for thread in threading.enumerate())


def test_worker_that_has_ended_is_asked_nothing_more() -> None:
    course = Course({"mode": "Metrics"})
    course.serving.has_ended = True
    course.tick(20_000)
    assert course.serving.tables == []
