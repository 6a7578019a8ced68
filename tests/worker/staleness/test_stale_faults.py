"""What goes wrong while rows are stale: the answer is exact, or says how stale it is, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.changes.living import FEATURES, batch_of
from tests.support.changes.stale_layers import FEW, NEVER, Scene
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.living_lists import LivingLists


def override_all(scene: Scene) -> None:
    rows = scene.draw.normal(size=(len(scene.plain.features), FEATURES)).astype(np.float32)
    scene.plain.features = dict(zip(scene.plain.features, rows, strict=True))
    scene.apply([batch_of(rows, overrides=[*scene.plain.features])])


def test_a_change_that_makes_everything_stale_is_told_and_made_right(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FEW)
    override_all(scene)
    (layer,), first = scene.living.refreshing.layers, scene.living.refreshing.first
    assert first is not None
    assert first.rows.count == layer.rows.count == len(scene.nodes)
    assert scene.living.expected_losses()["stored2"] > 0
    infer_within = scene.served.compute.infer_within
    assert infer_within is not None
    told = infer_within(np.inf)("stored2", scene.nodes, 0).stale
    assert told is not None
    assert (told.made, 0 < told.error <= 1) == (2, True)
    strict = infer_within(0.0)("stored2", scene.nodes, 0).stale
    assert strict is not None
    assert (strict.made, strict.error) == (len(scene.nodes) - 2, 0.0)
    assert not scene.living.refreshing.is_any_stale
    scene.assert_exact()


def test_a_worker_killed_between_marking_and_writing_replays_to_the_same_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = killed, after, undisturbed = [Scene(tmp_path / name, FEW) for name in ("killed", "after", "undisturbed")]
    batches = list[list[ChangeBatch]]()
    for _ in range(4):
        batches.append([undisturbed.plain.random_batch(undisturbed.draw, 4, undisturbed.fresh) for _ in range(2)])
    for scene in scenes[:2]:
        scene.plain = undisturbed.plain
    for group in batches[:2]:
        killed.apply(group)

    def die(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LivingLists, "follow", die)
        with pytest.raises(MemoryError):
            killed.apply(batches[2])
    with pytest.raises(RuntimeError, match="start the worker anew"):
        killed.answers("x1")
    for scene in (after, undisturbed):
        for group in batches:
            scene.apply(group)
    np.testing.assert_array_equal(after.errors(), undisturbed.errors())
    after.living.refreshing.budget = None
    after.assert_exact()


def test_a_live_switch_amid_a_refresh_goes_on_with_the_revision_that_answers(tmp_path: Path) -> None:
    before, after = (Scene(tmp_path / name, NEVER) for name in ("before", "after"))
    for scene in (before, after):
        scene.change(4)
    layers = [scene.living.refreshing.layers[0] for scene in (before, after)]
    background = RefreshBudget(rows=0, background_permille=100)

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(before.served)
            table = client.model.table
            assert table is not None
            client.model.switch(before.served, msgspec.structs.replace(table, refresh=background))
            # Half of a refresh: one turn of the revision that is on its way out.
            before.living.refreshing.refresh_worst()
            client.switch(after.served)
            table = client.model.table
            assert table is not None
            client.model.switch(after.served, msgspec.structs.replace(table, refresh=background))
            left = layers[0].rows.count
            await until_holds(lambda: not layers[1].rows.count, "the background makes the rows of the one that answers")
            assert layers[0].rows.count == left

    asyncio.run(scenario())
    after.assert_exact()
    before.living.refreshing.budget = None
    before.assert_exact()
