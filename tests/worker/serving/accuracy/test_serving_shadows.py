"""Shadows: answers are computed again by the most accurate variant, where the service says so and when it is idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.support.machine.waiting import WAIT_S, until_holds
from tests.support.serving.pair_workers import links
from tests.support.serving.serving import CLASSES, Client, FakeWorker, running, service

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.following.routing import parse_routing
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.serving.accuracy.watch import JobPurpose

NODES = [*range(20)]


class Disagreeing(FakeWorker):
    """Its x8 answers nodes below 5 otherwise than the other variants."""

    def infer(
        self, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True, view: BatchView | None = None
    ) -> Inference:
        inference = FakeWorker.infer(self, variant, seeds, key, with_embeddings=with_embeddings, view=view)
        if variant == "x8":
            inference.scores[seeds < 5] = np.roll(inference.scores[seeds < 5], 1, axis=1)
        return inference


def of(permille: int, variant: str = "x8") -> GNNService:
    stated = service().model_dump(mode="json", by_alias=True, exclude_none=True)
    stated["spec"]["routing"] |= {"mode": "Static", "variant": variant, "shadowPermille": permille}
    return GNNService.model_validate(stated)


def on_worker(
    scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker | None = None, permille: int = 100,
    variant: str = "x8",
) -> None:  # fmt: skip
    async def run() -> None:
        async with running(worker or Disagreeing(), of(permille, variant)) as client:
            await scenario(client)

    asyncio.run(run())


async def compared(client: Client, variant: str, nodes: int) -> dict[str, Any]:
    """The variant's agreement once so many nodes were compared, while requests come."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        assert (await client.predict(NODES)).status_code == 200
        found = (await client.http.get("/v1/accuracy")).json()
        agreement: dict[str, Any] = {each["name"]: each for each in found["variants"]}[variant].get("agreement", {})
        if agreement.get("nodes", 0) >= nodes:
            return agreement
        await asyncio.sleep(0.01)
    raise AssertionError("no shadows were computed")


def test_an_answer_is_computed_again_by_the_most_accurate_variant_and_compared() -> None:
    worker = Disagreeing()

    async def scenario(client: Client) -> None:
        agreement = await compared(client, "x8", 40)
        assert agreement["mean"] == pytest.approx(0.75)
        assert agreement["low"] < 0.75 < agreement["high"]
        shadows = [seeds for variant, seeds in worker.batches if variant == "x1"]
        assert all(seeds == NODES[: len(seeds)] for seeds in shadows)
        route = (await client.http.get("/v1/route")).json()
        assert [figure["name"] for figure in route["accuracy"]] == ["x8"]
        assert 'gnnserve_live_agreement{bound="mean",service="digits",variant="x8"} 0.75' in (
            client.metrics.render().decode()
        )
        assert client.model.watch.seconds[JobPurpose.SHADOWS] > 0

    on_worker(scenario, worker)


def test_by_default_no_answer_is_computed_again() -> None:
    worker = FakeWorker()

    async def scenario(client: Client) -> None:
        for _ in range(5):
            await client.predict(NODES)
        assert not client.model.watch.shadows.wants_answer
        assert client.model.lane is not None
        assert client.model.watch.next_job(client.model.lane) is None
        assert len(worker.batches) == 5

    on_worker(scenario, worker, permille=0)


def test_shadows_take_no_more_than_their_share_of_the_time() -> None:
    """At 100 permille the next one begins nine times as long after the one before as that one took, however long."""
    shadows: list[tuple[float, float]] = []

    def take_a_while(variant: str, _seeds: np.ndarray) -> None:
        if variant == "x1":
            begun = time.monotonic()
            time.sleep(0.01)
            shadows.append((begun, time.monotonic()))

    async def scenario(client: Client) -> None:
        await compared(client, "x8", 60)

    on_worker(scenario, FakeWorker(fail=take_a_while))
    assert len(shadows) > 1
    for (begun, ended), (next_begun, _) in pairwise(shadows):
        assert next_begun - ended >= 8.9 * (ended - begun)


def test_a_shadow_that_fails_is_given_up_and_requests_go_on() -> None:
    failed = 0

    def fail(variant: str, _seeds: np.ndarray) -> None:
        nonlocal failed
        if variant == "x1":
            failed += 1
            raise ValueError("unlucky")

    async def scenario(client: Client) -> None:
        # The second one is taken after the first was given up.
        while failed < 2:
            assert (await client.predict(NODES)).status_code == 200
            await asyncio.sleep(0.01)
        assert all("agreement" not in each for each in (await client.http.get("/v1/accuracy")).json()["variants"])

    on_worker(scenario, FakeWorker(fail=fail))


def test_another_revision_begins_anew() -> None:
    async def scenario(client: Client) -> None:
        await compared(client, "x8", 20)
        client.switch(FakeWorker(name="f0eae20c16c00ac0-2").revision(), of(100))
        assert (await client.http.get("/v1/accuracy")).json()["variants"][2].get("agreement") is None
        assert (await compared(client, "x8", 20))["mean"] == 1.0

    on_worker(scenario)


def test_the_most_accurate_variant_is_compared_with_itself() -> None:
    async def scenario(client: Client) -> None:
        assert (await compared(client, "x1", 20))["mean"] == 1.0

    on_worker(scenario, variant="x1")


@pytest.mark.parametrize("task", ["nodes", "links"])
def test_an_answer_about_a_node_that_has_left_since_is_compared_with_nothing(task: str) -> None:
    """What is computed of it now is of no graph that there was."""
    is_gone, shadows = np.zeros(1000, bool), list[str]()

    def leave(variant: str, _seeds: np.ndarray) -> None:
        if variant == "x1":
            shadows.append(variant)
            is_gone[3] = True

    options: dict[str, Any] = {} if task == "nodes" else {"classes": (), "links": links()}
    worker = Disagreeing(fail=leave, is_gone=is_gone, **options)
    body = {"nodes": [3, 4]} if task == "nodes" else {"pairs": [[3, 4]]}

    async def scenario(client: Client) -> None:
        assert (await client.http.post("/v1/predict", json=body)).status_code == 200
        await until_holds(lambda: client.model.watch.shadows.wants_answer and bool(shadows), "a shadow is computed")
        assert all("agreement" not in each for each in (await client.http.get("/v1/accuracy")).json()["variants"])

    on_worker(scenario, worker)


def test_labels_go_before_shadows() -> None:
    worker = FakeWorker()

    async def scenario(client: Client) -> None:
        await client.predict(NODES)
        client.model.watch.take([((node,), CLASSES[node % 4]) for node in range(4)], [])
        assert client.model.lane is not None
        job = client.model.watch.next_job(client.model.lane)
        assert job is not None and job.purpose is JobPurpose.LABELS

    on_worker(scenario, worker)


@pytest.mark.parametrize("permille", [-1, 101])
def test_a_table_with_an_impossible_share_is_refused(permille: int) -> None:
    with pytest.raises(ValueError, match="shadowPermille: expected 0 to 100"):
        parse_routing(f'{{"revision": "a", "recipe": "b", "shadowPermille": {permille}}}')
