"""Tolerances go by what labels say that variants lose, where that excludes the profile's figure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import CLASSES, TRADE_OFF, Client, FakeWorker, profile, running, service, variant

from gnnserve_api.files.profile import Profile
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.scheduling.variants import Losses, VariantChooser
from gnnserve_worker.serving.accuracy.tally import Tally

FAST: Profile = profile(
    variant("x1", 0.90, 0.4, 0.001), variant("x4", 0.89, 0.1, 0.001), variant("x8", 0.87, 0.05, 0.001)
)
"""Losses of 0, 10 and 30 permille, and batches that are short enough for a thousand labels in a moment."""
TOLERANT = service({"accuracyTolerancePermille": 10})


class Worse(FakeWorker):
    """Its x4 is wrong about every fourth node."""

    def infer(
        self, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True, view: BatchView | None = None
    ) -> Inference:
        inference = FakeWorker.infer(self, variant, seeds, key, with_embeddings=with_embeddings, view=view)
        if variant == "x4":
            inference.scores[seeds % 4 == 0] = np.roll(inference.scores[seeds % 4 == 0], 1, axis=1)
        return inference


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker) -> None:
    async def run() -> None:
        async with running(worker, TOLERANT) as client:
            await scenario(client)

    asyncio.run(run())


async def label(client: Client, count: int = 1500) -> None:
    """Labels that every variant of a plain `FakeWorker` answers correctly."""
    client.model.watch.take([((node % 1000,), CLASSES[node % 4]) for node in range(count)], [])
    await until_holds(lambda: not client.model.watch.waiting, "all labels are evaluated")


async def allowed(client: Client) -> dict[str, float]:
    """Losses of the variants that the service's tolerance allows."""
    route = (await client.http.get("/v1/route")).json()
    losses = {each["name"]: each["lossPermille"] for each in route["variants"]}
    return {name: losses[name] for name in route["allowedVariants"]}


def test_a_variant_that_loses_less_than_profiled_is_allowed_and_answers() -> None:
    async def scenario(client: Client) -> None:
        assert [*await allowed(client)] == ["x1", "x4"]
        await label(client)
        found = await allowed(client)
        assert found["x8"] == 0.0 and {*found} == {"x1", "x4", "x8"}
        assert (await client.predict([1])).json()["variant"] == "x8"

    on_worker(scenario, FakeWorker(profile=FAST))


def test_a_variant_that_loses_more_than_profiled_is_not_allowed_any_more() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.predict([1])).json()["variant"] == "x4"
        await label(client)
        found = await allowed(client)
        assert "x4" not in found
        assert (await client.predict([1])).json()["variant"] in found

    on_worker(scenario, Worse(profile=FAST))


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_requests_that_wait_are_answered_before_the_order_changes(is_elsewhere: bool) -> None:
    async def scenario(client: Client) -> None:
        asked = [asyncio.create_task(client.predict([node])) for node in range(40)]
        await label(client)
        asked += [asyncio.create_task(client.predict([node])) for node in range(40)]
        assert {(await each).status_code for each in asked} == {200}
        assert client.model.first_waiting_lane() is None and not client.model.has_more

    on_worker(scenario, Worse(profile=FAST, is_elsewhere=is_elsewhere))


def test_another_revision_begins_with_its_profile() -> None:
    async def scenario(client: Client) -> None:
        await label(client)
        assert "x8" in await allowed(client)
        client.switch(FakeWorker(name="f0eae20c16c00ac0-2", profile=FAST).revision(), TOLERANT)
        assert await allowed(client) == {"x1": 0.0, "x4": pytest.approx(10)}

    on_worker(scenario, FakeWorker(profile=FAST))


def tally_of(profile: Profile) -> Tally:
    return Tally(profile, FakeWorker(profile=profile).revision().task.live_labels.measure())


def test_a_loss_as_profiled_stays_the_profiles() -> None:
    draw = np.random.default_rng(0)
    tally = tally_of(TRADE_OFF)
    for _ in range(20):
        shares = draw.random(100)
        tally.add_labels(
            {name: (shares < share).astype(float) for name, share in (("x1", 0.9), ("x4", 0.89), ("x8", 0.87))},
            np.ones(100, bool),
        )
    assert tally.losses() == {}


def test_losses_are_of_the_same_nodes_and_may_be_gains() -> None:
    """Both variants are right of half of the nodes, which would tell little; of the same half it tells all."""
    draw = np.random.default_rng(0)
    right = (draw.random(2000) < 0.5).astype(float)
    better = np.where(draw.random(2000) < 0.2, 1.0, right)
    tally = tally_of(TRADE_OFF)
    tally.add_labels({"x1": right, "x4": right, "x8": better}, np.ones(2000, bool))
    losses = tally.losses()
    assert losses["x4"] == 0.0
    assert losses["x8"] == pytest.approx(-100, abs=20)
    chooser = VariantChooser(TRADE_OFF, 100, known=Losses(in_service=losses))
    assert chooser.names[0] == "x8"
    assert chooser.loss_permille == (0.0, *(pytest.approx(-losses["x8"]),) * 2)


def test_another_metric_than_accuracy_is_not_judged_by_labels() -> None:
    tally = tally_of(msgspec.structs.replace(TRADE_OFF, metric="rocAuc"))
    tally.add_labels({name: np.ones(2000) for name in ("x1", "x4", "x8")}, np.ones(2000, bool))
    assert tally.losses() == {}


@pytest.mark.parametrize("seed", range(10))
def test_variants_stand_beside_each_other_by_the_same_labels(seed: int) -> None:
    """Labels sorted by class: each variant falls where its own hard classes come, or never."""
    draw = np.random.default_rng(seed)
    tally = tally_of(msgspec.structs.replace(TRADE_OFF, validation_nodes=1000, test_nodes=1000))
    for share in np.repeat(draw.permutation([1.0, 0.95, 0.9, 0.3]), 3):
        rights = {"x1": 0.9, "x4": 0.9 if draw.random() < 0.5 else share, "x8": share}
        tally.add_labels(
            {name: (draw.random(100) < each).astype(float) for name, each in rights.items()}, np.ones(100, bool)
        )
        figures = tally.figures()
        assert len({each.labels.nodes for each in figures if each.labels is not None}) == 1
        broken = [each for each in figures if each.is_broken]
        for each in broken[:1]:
            assert any(one.labels is not None and one.labels.high < (one.promised or 0) for one in broken), each


def test_a_fall_of_one_variant_is_shown_since_it_began_and_the_others_beside_it() -> None:
    tally = tally_of(msgspec.structs.replace(TRADE_OFF, validation_nodes=1000, test_nodes=1000))
    for has_fallen in (False, True):
        for _ in range(20):
            x4 = np.arange(50) % 2 if has_fallen else np.ones(50)
            tally.add_labels({"x1": np.ones(50), "x4": x4.astype(float), "x8": np.ones(50)}, np.ones(50, bool))
    shown = {each.name: each.labels for each in tally.figures()}
    assert {share.nodes for share in shown.values() if share is not None} == {1000}
    assert {name: share.mean for name, share in shown.items() if share is not None} == {"x1": 1.0, "x4": 0.5, "x8": 1.0}
