"""What goes wrong while rows are stale: the answer is exact, or says how stale it is, and nothing is lost."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.changes.compacted_service import Service
from tests.support.changes.living import DEEPER, FEATURES, ROOM_BYTES, PlainGraph, batch_of, generated
from tests.support.changes.stale_layers import FEW, NEVER, NO_FEATURES, NODES, UNDIRECTED, Scene
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision


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


def test_a_compaction_amid_a_refresh_folds_right_rows_and_leaves_marks_as_they_are(tmp_path: Path) -> None:
    """Its own revision, of the same files, makes every row; later changes mark in both."""
    plain, draw = PlainGraph(NODES, 33, UNDIRECTED), np.random.default_rng(34)
    service, fresh = Service(tmp_path, plain, variants=DEEPER), [*range(10_000, 9_000, -1)]
    background = RefreshBudget(rows=0, background_permille=100)
    living = LivingRevision(service.opened(), ROOM_BYTES, refresh=background)
    batches = [plain.random_batch(draw, 12, fresh) for _ in range(4)]
    service.append(*batches)
    living.apply(1, batches)
    (layer,) = living.refreshing.layers
    stale = layer.rows.count
    living.refreshing.entry_ns = 1e9  # a turn has time for one row
    living.refreshing.refresh_worst()
    assert layer.rows.count == stale - 1
    errors = np.array(layer.rows.errors)

    assert service.fold() is not None

    np.testing.assert_array_equal(layer.rows.errors, errors)
    compacted = LivingRevision(service.opened(), ROOM_BYTES, refresh=background)
    assert not compacted.refreshing.is_any_stale
    service.assert_equal_to_the_graph_built_anew()
    more = [plain.random_batch(draw, 4, fresh) for _ in range(2)]
    service.append(*more)
    for one in (living, compacted):
        one.apply(5, more)
        assert one.refreshing.layers[0].rows.count
    service.assert_equal_to_the_graph_built_anew(living, compacted)


HUB_NEIGHBOURS = 100_000


def test_a_hub_that_all_read_is_marked_passed_over_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are stale by one change of it. Who asks waits for none of them, but for those that the budget makes."""
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    leaves = HUB_NEIGHBOURS
    indptr = np.concatenate(([0], leaves + np.arange(leaves + 1)))
    indices = np.concatenate((np.arange(1, leaves + 1), np.zeros(leaves))).astype(np.int32)
    features = np.random.default_rng(35).normal(size=(leaves + 1, FEATURES)).astype(np.float32)
    loaded = generated(
        tmp_path, "hub", "GraphSAGE", (Graph(indptr, indices), features, UNDIRECTED), variants=DEEPER,
        max_delta_bytes=1 << 30,
    )  # fmt: skip
    living = LivingRevision(loaded, 1 << 30, refresh=RefreshBudget(rows=8, microseconds=500, background_permille=0))
    infer_within = served_revision(loaded, living).compute.infer_within
    assert infer_within is not None
    (layer,), asked = living.refreshing.layers, np.array([0, 1, 2])
    infer_within(0.0)("stored2", asked, 0)
    tracemalloc.start()
    try:
        living.apply(1, [batch_of(features[:1] + 1, overrides=[0])])
        living.apply(2, [batch_of(NO_FEATURES, edges=[(1, 2)])])
        told = infer_within(np.inf)("stored2", asked, 0).stale
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200 * leaves
    # The hub's own row takes longer than the budget.
    assert told is not None and told.made <= 8
    assert layer.rows.count + told.made == leaves + 1
    assert layer.rows.errors[0] > 0 and told.error > 0
    assert living.expected_losses()["stored2"] > 0
    exact = infer_within(0.0)("stored2", asked, 0)
    assert exact.stale is not None and exact.stale.error == 0
    wanted = infer_within(0.0)("x1", asked, 0).scores
    np.testing.assert_allclose(exact.scores, wanted, rtol=0, atol=1e-4 * float(np.abs(wanted).max()))
