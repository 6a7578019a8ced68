"""The variant that others are judged against is one that answers: where the graph changes, one that follows changes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.pair_workers import links
from tests.support.serving.posted_labels import evaluated
from tests.support.serving.serving import (
    CLASSES,
    Client,
    FakeWorker,
    profile,
    running,
    service,
    variant,
    without_overlays,
)

from gnnserve_api.files.profile import LinkScores, Profile
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.slow_loop import LocalSlowLoop, OwnRegistry
from gnnserve_worker.serving.accuracy.tally import Tally
from gnnserve_worker.serving.process.served_service import Look

FIXED_IS_BEST: Profile = without_overlays(
    profile(variant("x1", 0.95, 0.4, 0.001), variant("x4", 0.90, 0.1, 0.001), variant("x8", 0.88, 0.05, 0.001)), "x1"
)
"""Its x1 holds the graph as it was generated."""
_FIGURES = LinkScores(1000, 0.9, 0.5, 100, 100, 0.5, 0.5, 0.5, 20)
OF_LINKS: Profile = replace(
    FIXED_IS_BEST,
    metric="rocAuc",
    variants=tuple(replace(one, validation_figures=_FIGURES) for one in FIXED_IS_BEST.variants),
)
WORKERS: dict[str, dict[str, Any]] = {"nodes": {}, "links": {"classes": (), "links": links(), "profile": OF_LINKS}}


def beside_changes(**options: Any) -> FakeWorker:
    return FakeWorker(**{"profile": FIXED_IS_BEST, "updates": FakeUpdates(), **options})


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker, of: GNNService | None = None) -> None:
    async def run() -> None:
        async with running(worker, service() if of is None else of) as client:
            await scenario(client)

    asyncio.run(run())


def labels_of(task: str, count: int) -> list[tuple[tuple[int, ...], Any]]:
    if task == "nodes":
        return [((node,), CLASSES[node % 4]) for node in range(count)]
    return [((node, node + 4), True) for node in range(count)]


@pytest.mark.parametrize("task", WORKERS)
def test_labels_judge_variants_against_the_best_that_follows_changes(task: str) -> None:
    async def scenario(client: Client) -> None:
        client.model.watch.take(labels_of(task, 900), [])
        found = await evaluated(client)
        assert client.model.watch.outcomes.total() == client.model.watch.outcomes["accepted"] == 900
        assert [*found] == ["x4", "x8"]
        assert all(one["labels"]["nodes"] == 900 for one in found.values())
        assert (await client.http.get("/v1/accuracy")).json()["reference"] == "x4"

    on_worker(scenario, beside_changes(**WORKERS[task]))


def test_losses_are_those_against_the_best_that_follows_changes() -> None:
    served = beside_changes().revision()
    tally = Tally(served.answering, served.task.live_labels.measure())
    right = (np.random.default_rng(0).random(2000) < 0.5).astype(float)
    tally.add_labels({"x4": right, "x8": right}, np.ones(2000, bool))
    assert tally.losses() == {"x8": 0.0}


@pytest.mark.parametrize("updates", [None, FakeUpdates()], ids=["still", "changing"])
def test_tolerances_and_tiers_begin_at_the_best_that_answers(updates: FakeUpdates | None) -> None:
    best, *_ = expected = ["x1", "x4", "x8"] if updates is None else ["x4", "x8"]

    async def scenario(client: Client) -> None:
        route = (await client.http.get("/v1/route")).json()
        assert (route["baseVariant"], route["allowedVariants"]) == (best, [best])
        assert [one["name"] for one in route["variants"]] == expected
        assert route["variants"][0]["lossPermille"] == 0
        told = (await client.http.get("/v1/variants")).json()
        assert told.get("standing") == (None if updates is None else ["x1"])
        tiers = told["tiers"]
        assert [one["variant"] for one in tiers] == expected
        assert (tiers[0]["tolerancePermille"], tiers[0]["relativeLatency"]) == (0, 1)
        answer = await client.http.post("/v1/predict", json={"nodes": [1], "strict": True})
        assert (answer.status_code, answer.json()["variant"]) == (200, best)

    of = service({"accuracyTolerancePermille": 0})
    on_worker(scenario, FakeWorker(profile=FIXED_IS_BEST, updates=updates), of)


def routed(routing: dict[str, Any]) -> GNNService:
    stated = service().model_dump(mode="json", by_alias=True, exclude_none=True)
    stated["spec"]["routing"] |= routing
    return GNNService.model_validate(stated)


@pytest.mark.parametrize(
    "routing",
    [{"mode": "Static", "variant": "x1"}, {"mode": "Weights", "weights": {"x1": 3, "x8": 1}}],
    ids=["Static", "Weights"],
)
def test_no_request_is_bound_to_a_variant_that_does_not_follow_changes(routing: dict[str, Any]) -> None:
    """Older manifests may name one."""

    async def scenario(client: Client) -> None:
        base = (await client.http.get("/v1/route")).json()["baseVariant"]
        assert base == ("x8" if "weights" in routing else "x4")
        answers = [(await client.predict([node])).json()["variant"] for node in range(8)]
        assert {*answers} == ({"x4", "x8"} if "weights" in routing else {"x4"})

    on_worker(scenario, beside_changes(), routed(routing))


class Looked:
    """A service whose slow loop ticks on the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def look(self) -> Look:
        return Look(self._client.model.route(), self._client.metrics.load_counters())

    def route(self, table: RoutingTable) -> None:
        self._client.model.switch(self._client.model.lane.revision, table)


@pytest.mark.parametrize("mode", ["Adaptive", "Metrics"])
def test_the_slow_loop_chooses_no_base_that_does_not_follow_changes(mode: str) -> None:
    of, said, now_s = routed({"mode": mode, "intervalSeconds": 10}), list[str](), itertools.count(0, 10)

    async def scenario(client: Client) -> None:
        loop = LocalSlowLoop(Looked(client), of.spec, OwnRegistry(lambda: float(next(now_s))), say=said.append)
        for _ in range(3):
            loop.tick()
            await client.predict([1])
        assert client.model.table is not None and client.model.table.base_variant == "x4"
        assert said == []

    on_worker(scenario, beside_changes(), of)
