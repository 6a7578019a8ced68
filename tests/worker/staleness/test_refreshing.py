"""Stored layers that may be stale: what is refreshed is exact, and what is not is marked."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.changes.living import MODELS, batch_of
from tests.support.changes.stale_layers import ALL, DIRECTED, FEW, NO_FEATURES, UNDIRECTED, Scene
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.following.routing import parse_routing
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
    (layer,) = refreshing.layers
    with refreshing.marking([Moved(nodes, np.full(5, 0.5, np.float32))]):
        assert refreshing.refresh_read(layer, nodes) == 5
        assert refreshing.refresh_worst() == 0
        assert layer.rows.count == 5
    assert refreshing.refresh_read(layer, nodes) == 5
    assert layer.rows.count == 0


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
