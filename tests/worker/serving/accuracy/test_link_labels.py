"""Labels of pairs: how right variants are by the links that came to be, and how like each other their answers are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.machine.waiting import until_holds
from tests.support.serving.pair_workers import links, of_links
from tests.support.serving.posted_labels import HEADERS, WRITING, evaluated, send_pairs
from tests.support.serving.serving import TRADE_OFF, Client, FakeWorker, OpenedWorker, running, service

from gnnserve_api.files.links import EndManifest
from gnnserve_api.files.profile import LinkScores, Profile
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.tasks.score_links.links import ServedLinks
from gnnserve_worker.tasks.score_links.pairs import PairForm
from gnnserve_worker.tasks.score_links.served_labels import LinkMeasure
from gnnserve_worker.tasks.score_links.serving import ScoreLinks


def promising(roc_auc: float) -> Profile:
    figures = LinkScores(1000, roc_auc, 0.5, 100, 100, 0.5, 0.5, 0.5, 20)
    variants = [msgspec.structs.replace(one, validation_figures=figures) for one in TRADE_OFF.variants]
    return msgspec.structs.replace(TRADE_OFF, metric="rocAuc", variants=tuple(variants))


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker, of: GNNService | None = None) -> None:
    async def run() -> None:
        async with running(worker, of or service(), write_access=Access((WRITING,))) as client:
            await scenario(client)

    asyncio.run(run())


ALIKE = [[node, node + 4] for node in range(200)]
"""Pairs whose score is higher than that of three of four others."""
UNLIKE = [[node, node + 1] for node in range(200)]


def test_a_link_counts_by_how_often_it_has_a_higher_score_than_a_drawn_pair() -> None:
    async def scenario(client: Client) -> None:
        answer = (await send_pairs(client, ALIKE, [True] * 200)).json()
        assert (answer["accepted"], answer["refused"]) == (200, 0)
        found = await evaluated(client)
        for variant in found.values():
            assert (variant["promised"], variant["promisedNodes"], variant["labels"]["nodes"]) == (0.85, 1000, 200)
            # A quarter of the drawn pairs is as high, of which half count.
            assert variant["labels"]["mean"] == pytest.approx(0.875, abs=0.04)
            assert "isBroken" not in variant

    on_worker(scenario, of_links(profile=promising(0.85)))


def test_links_with_lower_scores_than_the_profile_promised_are_told() -> None:
    async def scenario(client: Client) -> None:
        await send_pairs(client, UNLIKE * 3, [True] * 600)
        assert all(variant["isBroken"] for variant in (await evaluated(client)).values())

    on_worker(scenario, of_links(profile=promising(0.85)))


def test_pairs_that_did_not_come_to_be_are_not_held_against_the_profile() -> None:
    async def scenario(client: Client) -> None:
        await send_pairs(client, ALIKE, [True] * 200)
        await send_pairs(client, ALIKE * 3, [False] * 600)
        for variant in (await evaluated(client)).values():
            assert variant["labels"]["nodes"] == 200 and "isBroken" not in variant
        assert client.model.watch.outcomes["accepted"] == 800

    on_worker(scenario, of_links(profile=promising(0.85)))


def test_wrong_labels_of_pairs_are_named_and_the_others_kept() -> None:
    made = of_links().revision()
    task = made.task
    assert isinstance(task, ScoreLinks)
    standing = links(EndManifest("user", 0, 500), EndManifest("item", 500, 1000), "buys").manifest
    served = replace(made, task=replace(task, live_labels=replace(task.live_labels, standing=standing)))
    worker = OpenedWorker(served=served, classes=(), links=links())

    async def scenario(client: Client) -> None:
        at = ["2026-01-01T00:00:00Z"] * 4
        answer = (await send_pairs(client, [[1, 600], [1, 2000], [600, 1], [1, 600]], [True] * 4, times=at)).json()
        assert answer["accepted"] == 1
        assert [(one["index"], one["reason"]) for one in answer["problems"]] == [
            (1, "UnknownNode"), (2, "UnknownNode"), (3, "Repeated"),
        ]  # fmt: skip
        assert "is not of type user, which links of buys begin at" in answer["problems"][1]["message"]
        for body, field in (
            ({"nodes": [1], "labels": [1]}, "nodes"),
            ({"pairs": [], "labels": []}, "pairs"),
            ({"pairs": [[1, 600]], "labels": [1]}, "labels[0]"),
            ({"pairs": [[1, 600]], "labels": []}, "labels"),
            ({"pairs": [[1]], "labels": [True]}, "pairs[0]"),
        ):
            response = await client.http.post("/v1/labels", json=body, headers=HEADERS)
            assert (response.status_code, response.json()["error"]["field"]) == (400, field), response.text

    on_worker(scenario, worker)


def test_a_link_that_the_graph_has_by_now_is_no_label() -> None:
    made = of_links().revision()
    task = made.task
    assert isinstance(task, ScoreLinks)
    graph = replace(made.graph, neighbours_of=lambda node: np.array([4] if node == 0 else [], np.int32))
    labels = replace(task.live_labels, graph=graph)
    served = replace(made, graph=graph, task=replace(task, graph=graph, live_labels=labels))

    async def scenario(client: Client) -> None:
        await send_pairs(client, [[0, 4], [4, 0], [1, 5], [2, 3]], [True, True, True, False])
        found = await evaluated(client)
        assert found["x1"]["labels"]["nodes"] == 1
        assert client.model.watch.outcomes["KnownLink"] == 2

    on_worker(scenario, OpenedWorker(served=served, classes=(), links=links()))


def shadowed() -> GNNService:
    of = service()
    spec = of.spec.model_copy(update={"routing": of.spec.routing.model_copy(update={"shadow_permille": 100})})
    return of.model_copy(update={"spec": spec})


def test_answers_about_pairs_are_compared_by_shadows() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.http.post("/v1/predict", json={"pairs": ALIKE[:9], "variant": "x8"})
        assert answer.status_code == 200
        await until_holds(lambda: bool(client.model.watch.observed()), "an answer is compared")
        (told,) = (await client.http.get("/v1/accuracy")).json()["variants"][2:]
        assert (told["name"], told["agreement"]["nodes"], told["agreement"]["mean"]) == ("x8", 9, 1.0)

    on_worker(scenario, of_links(), shadowed())


def measured(*rows: np.ndarray) -> LinkMeasure:
    """Of pairs of the first twenty nodes with the last twenty of so many rows: by variants a, b, …"""
    ends = EndManifest("user", 0, 20), EndManifest("item", 20, 40)
    manifest = links(*ends, "buys").manifest
    served = ServedLinks(manifest, build_decoder("Dot", {}, rows[0].shape[1]), {})
    form = PairForm(np.arange(20), np.arange(20, 40))
    found = LinkMeasure(served, manifest, lambda: (np.arange(40), form))
    for name, own in zip("abc", rows, strict=False):
        found.note(name, 0, own[:25])
        found.note(name, 25, own[25:])
    return found


def test_agreement_is_the_share_of_drawn_pairs_that_both_put_on_the_same_side() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(40, 3)).astype(np.float32)
    other = draw.normal(size=(40, 3)).astype(np.float32)
    measure, form = measured(rows, 2 * rows, other), PairForm(np.array([0, 1]), np.array([2, 2]))
    nodes = np.array([0, 1, 20])
    kept = measure.keep("a", nodes, rows[nodes], form, 10)
    assert kept is not None
    assert measure.agreement(kept, "b", 2 * rows[nodes]).tolist() == [1.0, 1.0]
    found = measure.agreement(kept, "c", other[nodes])

    def sides(own: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
        drawn = (own[:20] * own[20:]).sum(axis=1)
        return np.sign((own[pair[0]] * own[pair[1]]).sum() - drawn)

    expected = [(sides(rows, pair) == sides(other, pair)).mean() for pair in ((0, 20), (1, 20))]
    np.testing.assert_allclose(found, expected)
    first = measure.keep("a", nodes, rows[nodes], form, 2)
    assert first is None, "no pair has both of its nodes among the first two"


@pytest.mark.parametrize(("node", "others"), [(3, range(20, 40)), (33, range(20))])
def test_recommendations_agree_by_the_best_that_both_have_of_the_drawn_nodes(node: int, others: range) -> None:
    draw = np.random.default_rng(1)
    rows, other = (draw.normal(size=(40, 3)).astype(np.float32) for _ in range(2))
    measure = measured(rows, 3 * rows, other)
    kept = measure.keep("a", np.array([node]), rows[[node]], None, 10)
    assert kept is not None
    assert measure.agreement(kept, "b", 3 * rows[[node]]).tolist() == [1.0]
    best = [{*(others.start + np.argsort(-(own[others] @ own[node]))[:10]).tolist()} for own in (rows, other)]
    assert measure.agreement(kept, "c", other[[node]]).tolist() == [pytest.approx(len(best[0] & best[1]) / 10)]
