"""Stored layers that may be stale: what is refreshed is exact, and what is not is marked."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.changes.living import MODELS, batch_of
from tests.support.changes.stale_layers import ALL, CLOSE, DIRECTED, FEW, NEVER, NO_FEATURES, UNDIRECTED, Scene
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.following.routing import parse_routing
from gnnserve_worker.inference.batch import Infer, Inference
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.staleness.loss import StaleRead
from gnnserve_worker.staleness.movement import Moved
from gnnserve_worker.staleness.refreshing import RefreshedBy


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("stored", "rules"), [((1, 2), UNDIRECTED), ((2, 3), DIRECTED), ((3,), UNDIRECTED)], ids=["2", "2 and 3", "3"]
)
@pytest.mark.parametrize("architecture", MODELS)
def test_with_a_budget_for_all_answers_are_those_of_the_graph_built_anew(
    tmp_path: Path, architecture: str, rules: EdgeRules, stored: tuple[int, ...]
) -> None:
    scene = Scene(tmp_path, ALL, architecture, rules, stored)
    for _ in range(3):
        scene.change(3)
        scene.answers(f"stored{stored[-1]}")
    scene.change(3)
    assert scene.living.refreshing.is_any_stale
    scene.assert_exact()


def test_ten_thousand_changes_are_refreshed_exactly(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ALL, nodes=400)
    while scene.living.changes_since_base < 10_000:
        scene.change(10, size=100)
        scene.served.compute.infer("stored2", scene.nodes[:20], 0)
    scene.assert_exact()
    assert not np.any(scene.errors()[scene.nodes])  # rows of nodes that have left are read by none


def test_a_request_refreshes_the_worst_of_the_rows_that_it_reads(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FEW)
    scene.change(2)
    refreshing, errors = scene.living.refreshing, scene.errors()
    stored = scene.loaded.variants["stored2"].table.own.values
    before, rows = errors.copy(), np.array(stored)
    assert np.count_nonzero(before) > 2
    scene.answers()
    refreshed = np.flatnonzero((errors == 0) & (before > 0))
    assert refreshing.counts[RefreshedBy.REQUEST].rows == len(refreshed) == 2
    left = np.setdiff1d(scene.nodes, refreshed)
    assert before[refreshed].min() >= errors[left].max()
    assert not np.array_equal(stored[refreshed], rows[refreshed])
    np.testing.assert_array_equal(stored[left], rows[left])
    while np.any(errors[scene.nodes] > 0):
        scene.answers()
    scene.assert_exact()


def test_what_no_row_is_read_of_is_not_refreshed_by_requests(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ALL)
    scene.change(2)
    before = scene.errors().copy()
    for name in ("x1", "projected", "stored1"):
        scene.answers(name)
    np.testing.assert_array_equal(scene.errors(), before)


def test_a_budget_of_no_rows_leaves_it_to_the_background(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RefreshBudget(rows=0, microseconds=500))
    scene.change(4)
    refreshing, before = scene.living.refreshing, scene.errors().copy()
    scene.answers()
    assert refreshing.counts[RefreshedBy.REQUEST].rows == 0
    np.testing.assert_array_equal(scene.errors(), before)
    assert refreshing.layers[0].rows.count == np.count_nonzero(before)
    while refreshing.is_any_stale:
        scene.living.refresh_worst()
    assert refreshing.counts[RefreshedBy.BACKGROUND].rows >= np.count_nonzero(before)
    assert (refreshing.layers[0].rows.error, refreshing.layers[0].rows.count) == (0, 0)
    scene.assert_exact()


@pytest.mark.parametrize("stored", [(1, 2), (2, 3)], ids=["2", "3"])
def test_layers_are_exact_again_once_there_is_no_budget(tmp_path: Path, stored: tuple[int, ...]) -> None:
    scene = Scene(tmp_path, None, stored=stored)
    for budget in (None, RefreshBudget(rows=0), None, ALL, None):
        scene.living.refreshing.budget = budget
        scene.change(3)
        assert scene.living.refreshing.is_any_stale == (budget is not None)
    scene.assert_exact()
    for sums in scene.living.drafting.later_sums.values():
        now, _ = sums.residuals(np.arange(scene.living.graph.ids.count))
        assert (now[(now != -1).any(axis=1)] == 0).all()


def test_rows_that_are_stale_when_the_budget_goes_are_made_before_they_are_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RefreshBudget(rows=0))
    scene.change(4)
    scene.living.refreshing.budget = None
    scene.assert_exact()


def test_marks_are_kept_by_what_is_refreshed_before_changes_are_published(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ALL)
    refreshing, nodes = scene.living.refreshing, np.arange(5)
    first, (layer,) = refreshing.first, refreshing.layers
    assert first is not None
    with refreshing.marking([Moved(nodes, np.ones(5, np.float32)), Moved(nodes, np.full(5, 0.5, np.float32))]):
        assert refreshing.make_read(nodes).made == 5
        assert refreshing.refresh_read(layer, nodes).made == 5
        assert refreshing.refresh_worst() == 0
        assert first.rows.count == layer.rows.count == 5
    assert refreshing.make_read(nodes).made == 5
    assert refreshing.refresh_read(layer, nodes).made == 5
    assert not refreshing.is_any_stale


def within(scene: Scene, most_permille: float) -> Inference:
    """Answers about all nodes by stored rows, of which so many may be expected to differ."""
    infer_within = scene.served.compute.infer_within
    assert infer_within is not None
    return infer_within(most_permille)("stored2", scene.nodes, 0)


@pytest.mark.parametrize("budget", [NEVER, FEW], ids=["no rows", "two rows"])
def test_a_batch_that_bears_nothing_is_exact_whatever_the_budget(tmp_path: Path, budget: RefreshBudget) -> None:
    scene = Scene(tmp_path, budget)
    scene.change(4)
    found = within(scene, 0.0)
    assert found.stale is not None
    assert (found.stale.made > 2, found.stale.error) == (True, 0.0)
    np.testing.assert_allclose(found.scores, scene.rebuilt()["stored2"], atol=CLOSE, rtol=CLOSE)
    assert within(scene, 0.0).stale is None or not scene.errors()[scene.nodes].any()


def test_a_batch_makes_as_many_rows_anew_as_leave_what_it_bears(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER)
    scene.change(4)
    (layer,) = scene.living.refreshing.layers
    before = within(scene, math.inf).stale
    assert before is not None
    assert before.made == 0
    most_permille = 500 * before.error * layer.sensitivity.bound
    after = within(scene, most_permille).stale
    assert after is not None
    assert 0 < after.error <= 0.5 * before.error
    assert 0 < after.made < np.count_nonzero(scene.errors()[scene.nodes]) + after.made
    assert within(scene, most_permille).stale == StaleRead(0, after.error)


def test_comparing_answers_bounds_what_errors_do_to_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER)
    comparison = scene.served.changes.comparison
    assert comparison is not None
    (layer,) = scene.living.refreshing.layers
    before = layer.sensitivity.errors  # what generation measured
    comparison.compare_some()  # nothing is stale
    assert layer.sensitivity.errors == before
    for _ in range(10):
        scene.change(2)
        comparison.compare_some()
    assert layer.sensitivity.errors > before
    assert scene.living.refreshing.counts[RefreshedBy.BACKGROUND].rows > 0
    within(scene, 0.0)
    scene.assert_exact()


def test_a_deadline_leaves_less_to_the_budget_and_nothing_to_the_tolerance(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ALL)
    scene.change(4)
    infer_within = scene.served.compute.infer_within
    assert infer_within is not None
    late = infer_within(math.inf, -5.0)("stored2", scene.nodes, 0).stale
    assert late is not None
    assert (late.made, late.error > 0) == (0, True)
    strict = infer_within(0.0, -5.0)("stored2", scene.nodes, 0).stale
    assert strict is not None
    assert (strict.made > 0, strict.error) == (True, 0.0)
    scene.change(2)
    early = infer_within(math.inf, 1e9)("stored2", scene.nodes, 0).stale
    assert early is not None
    assert (early.made > 0, early.error) == (True, 0.0)


def accurate_if_fresh(scene: Scene) -> ServedRevision:
    """The revision, by whose profile the second layer is the most accurate variant."""
    profile = scene.served.manifest.profile
    variants = tuple(
        msgspec.structs.replace(one, validation_accuracy=0.9 if one.name == "stored2" else 0.8)
        for one in profile.variants
    )
    profile = msgspec.structs.replace(profile, variants=variants)
    return replace(scene.served, manifest=msgspec.structs.replace(scene.served.manifest, profile=profile))


STRICT = {"accuracyTolerancePermille": 0}


def test_a_request_that_tolerates_nothing_goes_to_exact_variants_while_rows_are_stale(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER)

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            revision = accurate_if_fresh(scene)
            client.switch(revision)
            table = client.model.table
            assert table is not None
            client.model.switch(revision, msgspec.structs.replace(table, refresh=NEVER))

            async def answered_by() -> str:
                return str((await client.predict([asked], objective=STRICT)).json()["variant"])

            def losses() -> set[float]:
                assert client.model.lane is not None
                return {*client.model.lane.chooser.stale_permille.values()}

            asked = next(iter(scene.plain.lists))
            assert await answered_by() == "stored2"
            scene.change(4)
            errors = scene.errors().copy()
            await until_holds(lambda: losses() != {0.0}, "routing knows of stale rows")
            asked = next(iter(scene.plain.lists))
            assert not (await answered_by()).startswith("stored2")
            np.testing.assert_array_equal(scene.errors(), errors)
            (told,) = (await client.http.get("/v1/variants")).json()["stale"]
            assert 0 < told["lossPermille"] <= 1000
            assert told["accuracyNow"]["stored2"] == pytest.approx(max(0.0, 0.9 - told["lossPermille"] / 1000))
            text = client.metrics.render().decode()
            assert f'gnnserve_stale_loss_permille{{layer="2",service="digits"}} {told["lossPermille"]}' in text
            background = msgspec.structs.replace(table, refresh=RefreshBudget(rows=0, background_permille=100))
            client.model.switch(revision, background)
            await until_holds(lambda: losses() == {0.0}, "all rows are made anew, and have been for a while")
            assert await answered_by() == "stored2"

    asyncio.run(scenario())


def test_a_request_that_tolerates_nothing_reads_no_stale_row_before_routing_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, NEVER)
    monkeypatch.setattr(scene.living, "expected_losses", lambda: {"stored2": 0.0})

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            revision = accurate_if_fresh(scene)
            client.switch(revision)
            table = client.model.table
            assert table is not None
            client.model.switch(revision, msgspec.structs.replace(table, refresh=NEVER))
            scene.change(4)
            assert scene.errors()[scene.nodes].any()
            answer = await client.predict([*scene.plain.lists], objective=STRICT)
            assert answer.json()["variant"] == "stored2"
            assert not scene.errors()[scene.nodes].any()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("objective", "is_bounded"), [({"latencyMs": 5000}, True), ({}, False)], ids=["deadline", "none"]
)
def test_a_batch_leaves_room_for_its_deadline(tmp_path: Path, objective: dict[str, int], *, is_bounded: bool) -> None:
    scene, asked_us = Scene(tmp_path, ALL), list[float]()
    infer_within = scene.served.compute.infer_within
    assert infer_within is not None

    def noted(most_permille: float, most_us: float = math.inf) -> Infer:
        asked_us.append(most_us)
        return infer_within(most_permille, most_us)

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            revision = replace(scene.served, compute=replace(scene.served.compute, infer_within=noted))
            client.switch(revision)
            table = client.model.table
            assert table is not None
            client.model.switch(revision, msgspec.structs.replace(table, refresh=NEVER))
            scene.change(4)
            asked = next(iter(scene.plain.lists))
            answer = await client.predict([asked], variant="stored2", objective=objective)
            assert answer.json()["variant"] == "stored2"

    asyncio.run(scenario())
    assert len(asked_us) == is_bounded
    assert all(0 < most_us < 5e6 for most_us in asked_us)


def test_replays_mark_the_same(tmp_path: Path) -> None:
    first, second = (Scene(tmp_path / name, FEW) for name in ("first", "second"))
    for scene in (first, second):
        for _ in range(4):
            scene.change(3)
    np.testing.assert_array_equal(first.errors(), second.errors())


def test_a_hub_that_no_turn_has_time_for_has_one_of_its_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RefreshBudget(rows=100, microseconds=1))
    ids = [*scene.plain.lists]
    scene.plain.lists[ids[0]] += ids[1:]
    scene.apply([batch_of(NO_FEATURES, edges=[(other, ids[0]) for other in ids[1:]])])
    refreshing = scene.living.refreshing
    refreshing.entry_ns = 1e9  # every row is too dear for any budget
    scene.answers()
    assert refreshing.counts[RefreshedBy.REQUEST].rows == 0
    before = refreshing.layers[0].rows.count
    scene.living.refresh_worst()
    assert refreshing.layers[0].rows.count == before - 1


def test_a_worker_tells_how_stale_it_is_and_refreshes_between_requests(tmp_path: Path) -> None:
    scene = Scene(tmp_path, FEW)
    scene.change(4)
    (layer,) = scene.living.refreshing.layers
    before = layer.rows.count

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(scene.served)
            table = client.model.table
            assert table is not None
            follow = partial(msgspec.structs.replace, table)
            never, background = (RefreshBudget(rows=0, background_permille=permille) for permille in (0, 100))
            client.model.switch(scene.served, follow(refresh=never))
            (told,) = (await client.http.get("/v1/variants")).json()["stale"]
            assert told["variants"] == ["stored2", "stored2-int8"]
            assert told["rows"] == before
            assert 0 < told["errorEstimate"] <= before
            assert told["sensitivity"] == layer.sensitivity.bound
            assert f'gnnserve_stale_rows{{layer="2",service="digits"}} {before}.0' in client.metrics.render().decode()
            client.model.switch(scene.served, follow(refresh=background))
            await until_holds(lambda: not layer.rows.count, "the background refreshes all rows")
            text = client.metrics.render().decode()
            assert f'gnnserve_rows_refreshed_total{{by="background",service="digits"}} {before}.0' in text
            client.model.switch(scene.served, table)
            assert "stale" not in (await client.http.get("/v1/variants")).json()

    asyncio.run(scenario())
    scene.assert_exact()


@pytest.mark.parametrize(
    ("refresh", "problem"),
    [
        ({"rows": -1}, "refresh.rows: expected 0 or more, found -1"),
        ({"microseconds": -5}, "refresh.microseconds: expected 0 or more, found -5"),
        ({"backgroundPermille": 101}, "refresh.backgroundPermille: expected 0 to 100, found 101"),
    ],
    ids=str,
)
def test_a_budget_that_is_none_is_refused(refresh: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_routing(msgspec.json.encode({"revision": "a", "recipe": "b", "refresh": refresh}))
