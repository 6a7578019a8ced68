"""Requests that bring nodes over stored layers that may be stale: answers are exact where the budget, or what requests
tolerate, makes all rows, and otherwise the rows are made that move most."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.changes.listed import FIRST_NEW, drawn_request
from tests.support.changes.living import MODELS, PlainGraph, ids_of
from tests.support.changes.living_types import opened, served_by
from tests.support.changes.stale_layers import ALL, CLOSE, DIRECTED, NEVER, UNDIRECTED, Scene
from tests.support.overlays.typed_overlays import made, read
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_worker.inference.batch import Inference, infer_batch
from gnnserve_worker.kernels.view import unpack
from gnnserve_worker.opening import overlay_reach
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.staleness.refreshing import RefreshedBy

NODES = 60


def scene_of(
    root: Path, budget: RefreshBudget | None, architecture: str = "GraphSAGE", rules: EdgeRules = UNDIRECTED
) -> Scene:
    return Scene(root, budget, architecture, rules, stored=(1, 2), nodes=NODES, layers=3)


def ask(scene: Scene, bodies: Sequence[dict[str, Any]], most_permille: float = math.inf) -> Inference:
    """Scores that all of these requests are given in one batch."""
    questions = [question_of(JsonCodec(), json.dumps(body).encode(), scene.served, max_nodes=1_000) for body in bodies]
    seeds = np.concatenate([one.nodes for one in questions])
    parts = [Part(len(one.nodes), one.overlay, one.wishes.seed) for one in questions]
    view = view_of(scene.loaded.graph.nodes, parts, seeds)
    infer_within = scene.served.compute.infer_within
    assert infer_within is not None
    return infer_within(most_permille)("stored2", seeds, 0, view=view)


def expected(scene: Scene, drawn: Sequence[tuple[dict[str, Any], PlainGraph, np.ndarray]], seed: int) -> np.ndarray:
    of_each = [
        infer_batch(scene.over(seen, f"seen{scene.living.offset}-{seed}-{number}"), "stored2", asked, 0).scores
        for number, (_, seen, asked) in enumerate(drawn)
    ]
    return np.concatenate(of_each)


def assert_exact(scene: Scene, seed: int, most_permille: float = math.inf) -> None:
    drawn = [drawn_request(scene.plain, np.random.default_rng(seed + number)) for number in range(3)]
    found, wanted = ask(scene, [body for body, *_ in drawn], most_permille), expected(scene, drawn, seed)
    np.testing.assert_allclose(found.scores, wanted, rtol=0, atol=CLOSE * float(np.abs(wanted).max()))


@pytest.mark.campaign
@pytest.mark.parametrize("rules", [UNDIRECTED, DIRECTED], ids=["undirected", "directed"])
@pytest.mark.parametrize("architecture", MODELS)
def test_with_a_budget_for_all_answers_are_those_of_the_graph_that_requests_see(
    tmp_path: Path, architecture: str, rules: EdgeRules
) -> None:
    scene = scene_of(tmp_path, ALL, architecture, rules)
    for seed in range(2):
        scene.change(3)
        assert_exact(scene, seed)


@pytest.mark.parametrize("budget", [None, NEVER], ids=["no budget", "a budget of no rows"])
def test_requests_that_tolerate_nothing_are_answered_exactly(tmp_path: Path, budget: RefreshBudget | None) -> None:
    scene = scene_of(tmp_path, RefreshBudget(rows=0, microseconds=10**9, background_permille=0))
    scene.change(3)
    scene.living.refreshing.budget = budget
    assert_exact(scene, 5, most_permille=0)


def new_node(joined: Sequence[int]) -> dict[str, Any]:
    rows = np.random.default_rng(9).normal(size=12).astype(np.float32)
    return {
        "nodes": [FIRST_NEW],
        "overlay": {
            "nodes": [{"id": FIRST_NEW, "features": rows.tolist()}],
            "edges": [[FIRST_NEW, id_] for id_ in joined],
        },
    }


def test_without_rows_in_the_budget_the_new_nodes_own_row_alone_is_made(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, NEVER)
    read = ask(scene, [new_node([1, 2, 3, 4])]).stale
    assert read is not None
    assert (read.made, read.brought) == (0, 1)
    assert read.error > 0
    assert scene.living.refreshing.counts[RefreshedBy.OVERLAY].rows == 1
    assert scene.living.refreshing.counts[RefreshedBy.REQUEST].rows == 0


def test_the_rows_that_a_new_node_moves_most_are_made_first(tmp_path: Path) -> None:
    """The shorter its list, the further a neighbour's row moves."""
    scene = scene_of(tmp_path, ALL)
    joined = [1, 2, 3, 4, 5, 6]
    by_length = sorted(joined, key=lambda id_: len(scene.plain.lists[id_]))
    assert len(scene.plain.lists[by_length[0]]) < len(scene.plain.lists[by_length[-1]])
    errors = []
    for rows in range(1, len(joined) + 2):
        scene.living.refreshing.budget = RefreshBudget(rows=rows, microseconds=10**9, background_permille=0)
        read = ask(scene, [new_node(joined)]).stale
        assert read is not None
        assert read.brought == rows
        errors.append(read.error)
    steps = -np.diff(errors)
    assert (np.diff(steps) <= 1e-9).all(), steps
    assert errors[-1] == 0


def movement(
    lists: Mapping[int | str, Sequence[int | str]], joined: Sequence[int], *, weighs: bool
) -> dict[int | str, float]:
    """How far rows of the second layer move by a new node that is joined to these: the slow way, node by node."""
    least, moved = 2.0**-20, dict.fromkeys(lists, 0.0)
    shares = {id_: 0.5 / (len(lists[id_]) + 1) if weighs and id_ in joined else 0.0 for id_ in lists}
    for _ in range(2):
        before = dict(moved)
        for id_, senders in lists.items():
            came = int(id_ in joined)
            total = came + sum(max(before[one], shares[one]) for one in senders)
            moved[id_] = min(1.0, least * came + before[id_] + total / max(1, len(senders) + came))
    return moved


@pytest.mark.parametrize(
    ("architecture", "room"), [("GraphSAGE", 64), ("GraphSAGE", 0), ("GCN", 64)], ids=["mean", "little room", "weights"]
)
def test_a_row_moves_by_the_mean_over_its_list_of_what_came_and_of_what_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, room: int
) -> None:
    monkeypatch.setattr(overlay_reach, "_ROOM", room)
    scene, joined = scene_of(tmp_path, ALL, architecture), [1, 2, 3, 40]
    question = question_of(JsonCodec(), json.dumps(new_node(joined)).encode(), scene.served, max_nodes=1_000)
    stored = scene.loaded.graph.nodes
    view = view_of(stored, [Part(1, question.overlay, None)], question.nodes.copy())
    assert view is not None
    origins = unpack(view.sampling.packed)[4]
    positions = scene.living.graph.ids.find(ids_of([*scene.plain.lists]))
    names = np.array([next((stored + k for k, one in enumerate(origins) if one == node), node) for node in positions])
    reach = scene.loaded.variants["stored2"].rows.reach  # type: ignore[union-attr]
    found = reach.amounts(view.sampling, names, np.ones(len(names), np.int32), 2)[2]
    wanted = movement(
        {one: [*senders] for one, senders in scene.plain.lists.items()}, joined, weighs=architecture == "GCN"
    )
    np.testing.assert_allclose(found, [*wanted.values()], rtol=1e-5, atol=0)
    assert (found > 0).sum() > len(joined)


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_over_several_types_as_many_rows_are_made_as_the_budget_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    made(tmp_path, architecture, {"stored": [1, 2], "storedFollowChanges": True}, layers=3)
    living = opened(tmp_path)
    served, joined = served_by(living), [f"item/{place}" for place in range(6)]
    overlay = {
        "nodes": [{"id": "user/900", "features": [1, 0, -1, 0.5]}],
        "edges": [["user/900", "buys", item] for item in joined],
    }
    infer_within = served.compute.infer_within
    assert infer_within is not None

    def ask_by(variant: str, most_permille: float = math.inf) -> Inference:
        question = read(served, {"nodes": ["user/900"], "overlay": overlay})
        seeds = question.nodes.copy()
        view = view_of(served.graph.first_new, [Part(1, question.overlay, None)], seeds)
        return infer_within(most_permille)(variant, seeds, 0, view=view)

    errors = []
    for rows in range(len(joined) + 2):
        living.refreshing.budget = RefreshBudget(rows=rows, microseconds=10**9, background_permille=0)
        told = ask_by("stored2").stale
        assert told is not None
        # The new node's own row is made whatever the budget.
        assert told.brought == max(1, rows)
        errors.append(told.error)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0 == errors[-1]
    expected = ask_by("projected").scores
    for found in (ask_by("stored2").scores, ask_by("stored2", most_permille=0).scores):
        np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE * float(np.abs(expected).max()))


def test_rows_of_requests_are_not_kept(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, ALL)
    before = scene.answers().copy()
    ask(scene, [new_node([1, 2, 3])])
    np.testing.assert_array_equal(scene.answers(), before)


def test_rows_that_wait_are_made_before_a_new_node_reads_them(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, NEVER)
    scene.change(3)
    first = scene.living.refreshing.first
    assert first is not None
    assert first.rows.count
    assert_exact(scene, 11, most_permille=0)


def test_a_worker_tells_which_rows_it_made_for_requests(tmp_path: Path) -> None:
    """Whoever names the variant has what the budget makes; who asks for the most accurate answer has all rows made."""
    scene, body = scene_of(tmp_path, NEVER), new_node([1, 2, 3, 4])
    exact = ask(scene, [body], most_permille=0).stale
    assert exact is not None

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(scene.served)
            table = client.model.table
            assert table is not None
            pinned = msgspec.structs.replace(
                table, refresh=NEVER, mode="Static", base_variant="stored2", objective=NO_OBJECTIVE
            )
            client.model.switch(scene.served, pinned)
            counted = scene.living.refreshing.counts[RefreshedBy.OVERLAY]
            for asked, rows in (({"variant": "stored2"}, 1), ({}, exact.brought)):
                before = counted.rows
                answer = await client.http.post("/v1/predict", json={**body, **asked})
                assert answer.status_code == 200, answer.text
                assert answer.json()["variant"] == "stored2"
                assert counted.rows - before == rows
            text = client.metrics.render().decode()
            assert f'gnnserve_rows_refreshed_total{{by="overlay",service="digits"}} {counted.rows}.0' in text

    asyncio.run(scenario())
