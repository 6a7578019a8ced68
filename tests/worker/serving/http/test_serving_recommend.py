"""`POST /v1/recommend`: nearest embeddings of a real revision, what is excluded, refused, and told of the index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.serving.following_index import followed
from tests.support.serving.recommending import FEATURES, NODES, ask, asking_for, loaded, publish
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.spec.embeddings import EmbeddingSink, EmbeddingsSpec, PostgresSinkSpec
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import IntegerIds
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.files import index_folder
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.search import SearchHits, unit
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.codecs.recommending.found import shown_items
from gnnserve_worker.tasks.classify_nodes.recommending import NearestNodes
from gnnserve_worker.tasks.classify_nodes.serving import ClassifyNodes
from gnnserve_worker.tasks.embedded import MissingEmbeddings


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    yield publish(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def no_index(tmp_path_factory: pytest.TempPathFactory) -> ServedRevision:
    return loaded(publish(tmp_path_factory.mktemp("no-index"), index=False))


def cosines(repository: Repository, tmp_path: Path, node: int) -> np.ndarray:
    (revision,) = repository.revisions()
    exact = load_revision(repository, revision.revision, build=build_exact)
    vectors = unit(np.concatenate([*embedding_blocks(exact, "x1", None, Neighbours.ALL, 0, tmp_path)]))
    return np.asarray(vectors @ vectors[node])


def test_the_nearest_nodes_are_recommended_without_the_known_ones(repository: Repository, tmp_path: Path) -> None:
    revision = loaded(repository)
    (response,) = ask(revision, {"node": 17, "count": 5})
    assert response.status_code == 200
    answer = response.json()
    expected = cosines(repository, tmp_path, 17)
    assert revision.graph.neighbours_of is not None
    known = revision.graph.neighbours_of(17)
    expected[[17, *known]] = -2
    assert [item["id"] for item in answer["items"]] == np.argsort(-expected, kind="stable")[:5].tolist()
    assert np.allclose([item["cosine"] for item in answer["items"]], np.sort(expected)[::-1][:5], atol=1e-5)
    assert (answer["variant"], answer["objectiveMet"]) == ("x1", True)
    index = answer["index"]
    assert (index["revision"], index["variant"], index["kind"], index["nodes"], index["recall"]) == (
        answer["revision"], "x1", "Exact", NODES, 1.0,
    )  # fmt: skip
    assert "offset" not in index
    assert response.headers["server-timing"]


def test_nothing_excluded_has_the_neighbours_too_and_never_the_node(repository: Repository) -> None:
    (response,) = ask(loaded(repository), {"node": 17, "count": 1000, "exclude": "nothing"})
    ids = [item["id"] for item in response.json()["items"]]
    assert len(ids) == NODES - 1
    assert 17 not in ids


def test_filters_let_their_nodes_pass_alone(repository: Repository) -> None:
    revision = loaded(repository)
    labelled, listed, both = ask(
        revision,
        {"node": 3, "count": 1000, "exclude": "nothing", "filter": {"labels": [revision.task.classes[1]]}},
        {"node": 3, "exclude": "nothing", "filter": {"nodes": [9, 3, 11]}},
        {"node": 3, "filter": {"labels": [], "nodes": [9]}},
    )
    assert revision.graph.labels is not None
    wanted = {*np.flatnonzero(revision.graph.labels == 1).tolist()} - {3}
    assert {item["id"] for item in labelled.json()["items"]} == wanted
    assert {item["id"] for item in listed.json()["items"]} == {9, 11}
    assert both.json()["items"] == []


def test_a_new_node_gets_what_its_overlay_makes_of_it(repository: Repository) -> None:
    new = {"nodes": [{"id": 5000, "features": [0.5] * FEATURES}], "edges": [[5, 5000], [6, 5000]]}
    alone, changed = ask(
        loaded(repository),
        {"node": 5000, "count": 1000, "overlay": new},
        {"node": 17, "count": 1000, "overlay": {"overrides": [{"id": 17, "features": [3.0] * FEATURES}],
                                                "edges": [[90, 17]]}},
    )  # fmt: skip
    assert alone.status_code == 200, alone.text
    ids = [item["id"] for item in alone.json()["items"]]
    assert len(ids) == NODES - 2
    assert not {5, 6, 5000} & {*ids}
    ids = [item["id"] for item in changed.json()["items"]]
    assert not {17, 90} & {*ids}


def test_texts_are_ids_as_they_are(tmp_path: Path) -> None:
    revision = loaded(publish(tmp_path, texts=True))
    found, unknown = ask(
        revision,
        {"node": "päper 3", "count": 2, "filter": {"nodes": ["päper 7", "päper 8"]}, "exclude": "nothing"},
        {"node": "päper 3", "filter": {"nodes": ["päper 7", "paper 8"]}},
    )
    assert {item["id"] for item in found.json()["items"]} == {"päper 7", "päper 8"}
    assert unknown.json()["error"]["field"] == "filter.nodes[1]"


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"node": 1, "count": 0}, 400, "count", "0 is out of range; give a whole number from 1 to 1,000"),
    ({"node": 1, "count": 1_000_000}, 400, "count", "1000000 is out of range"),
    ({"node": 1, "count": "many"}, 400, "count", 'expected an integer, got "many"'),
    ({"node": 4000}, 400, "node", "node 4000 is not in the graph"),
    ({"node": [1]}, 400, "node", "expected an integer"),
    ({}, 400, "node", "it is missing"),
    ({"node": 1, "nodes": [1]}, 400, "nodes", "there is no such field; known are node, count"),
    ({"node": 1, "filter": {"0": 3}}, 400, "filter.0", "expected a list or an object, got 3; give an object"),
    ({"node": 1, "filter": {"price": 3}}, 400, "filter.price", '"price" is no feature of nodes'),
    ({"node": 1, "filter": {"0": [3]}}, 400, "filter.0", "is a list, and labels and nodes alone are"),
    ({"node": 1, "filter": {"label": [3]}}, 400, "filter.label", '"label" is no feature of nodes'),
    ({"node": 1, "filter": {"labels": [1.5]}}, 400, "filter.labels[0]", "expected an integer or a text, got 1.5"),
    ({"node": 1, "filter": {"nodes": [1, "a"]}}, 400, "filter.nodes[1]", 'expected an integer, got "a"'),
    ({"node": 1, "filter": {"labels": ["none"]}}, 400, "filter.labels[0]", "is none of the graph's classes"),
    ({"node": 1, "filter": {"nodes": [1, 4000]}}, 400, "filter.nodes[1]", "node 4000 is not in the graph"),
    ({"node": 1, "exclude": "friends"}, 400, "exclude", "give known or nothing"),
    ({"node": 1, "objective": {"latencyMs": 0}}, 400, "objective.latencyMs", "0 is out of range"),
    ({"node": 1, "minOffset": 3}, 409, "", "the graph of this service does not change"),
]


def test_bad_requests_name_the_field_and_what_to_write(repository: Repository) -> None:
    responses = ask(loaded(repository), *[body for body, *_ in REFUSED])
    for response, (body, status, field, words) in zip(responses, REFUSED, strict=True):
        told = response.json()["error"]
        assert (response.status_code, told.get("field", "")) == (status, field), (body, told)
        assert words in told["message"], (body, told)


def test_without_an_index_it_is_said_and_one_that_comes_is_found(tmp_path: Path) -> None:
    repository = publish(tmp_path, index=False)
    revision = loaded(repository)
    made = asking_for(EmbeddingsSpec())
    (response,) = ask(revision, {"node": 1}, of=made)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "NoIndex")
    assert response.headers["retry-after"]
    assert "spec.embeddings" in response.json()["error"]["message"]

    publish_embeddings(repository, "default/digits", revision.manifest.revision, None, {}, "a test", silent)
    assert revision.compute.indexes[0].look() is not None
    (response,) = ask(revision, {"node": 1})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "embeddings",
    [
        pytest.param(None, id="no embeddings"),
        pytest.param(
            EmbeddingsSpec(index=False, sinks=(EmbeddingSink(postgres=PostgresSinkSpec(secret_name="rows")),)),  # noqa: S106
            id="a database alone",
        ),
    ],
)
def test_a_service_that_asks_for_no_index_says_so_and_is_not_asked_again(
    no_index: ServedRevision, embeddings: EmbeddingsSpec | None
) -> None:
    for of in (asking_for(EmbeddingsSpec()), asking_for(embeddings)):  # as the manifest is changed, without a load
        (response,) = ask(no_index, {"node": 1}, of=of)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "NoRecommendations")
    assert "retry-after" not in response.headers
    assert "spec.embeddings" in response.json()["error"]["message"]


def test_networks_without_embeddings_recommend_nothing_whatever_the_service_asks_for(no_index: ServedRevision) -> None:
    assert isinstance(no_index.task, ClassifyNodes)
    missing = MissingEmbeddings("none", "give model.fanouts two layers")
    bare = replace(no_index, task=replace(no_index.task, missing_embeddings=missing))
    (response,) = ask(bare, {"node": 1}, of=asking_for(EmbeddingsSpec()))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "NoRecommendations")
    assert "model.fanouts" in response.json()["error"]["message"]


def test_a_revision_of_no_folder_has_no_place_for_an_index() -> None:
    (response,) = ask(FakeWorker().revision(), {"node": 1}, of=asking_for(EmbeddingsSpec()))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "NoRecommendations")


def test_an_index_of_another_variant_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    repository = publish(tmp_path)
    revision = loaded(repository)
    name = revision.manifest.revision
    publish_embeddings(repository, "default/digits", name, "x2", {}, "a test", silent)
    before = revision.compute.indexes[0].find()
    assert before is not None
    assert before.manifest.variant == "x1"
    renewed = revision.compute.indexes[0].look()
    assert renewed is not None
    assert renewed.manifest.variant == "x2"
    (response,) = ask(revision, {"node": 1})
    assert response.json()["variant"] == "x2"


def test_a_damaged_index_is_not_searched(tmp_path: Path) -> None:
    repository = publish(tmp_path)
    (made,) = repository.revisions()
    file = index_folder(repository.folder / "revisions" / made.revision) / "vectors.npy"
    file.chmod(0o600)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (response,) = ask(loaded(repository), {"node": 1})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "NoIndex")
    assert "is not what was written" in response.json()["error"]["message"]


def test_the_index_follows_changes_and_the_answer_tells_how_far(repository: Repository) -> None:
    (made,) = repository.revisions()
    opened = load_revision(repository, made.revision, 1 << 26)
    replica = LivingRevision(opened, 1 << 26)
    revision = served_revision(opened, replica)
    counts = ChangeCounts(new_nodes=1, overrides=1, edges=2, removed_nodes=1)
    ids = IntegerIds(np.array([NODES, 9, 3, NODES, 4, NODES, 5]))
    rows = np.stack([np.full(FEATURES, 0.5), np.full(FEATURES, -3.0)]).astype(np.float32)

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            body = {"node": 17, "count": 1000, "exclude": "nothing"}
            index = (await client.http.post("/v1/recommend", json=body)).json()["index"]
            assert (index["offset"], index["followedOffset"], index["renewed"], index["pending"]) == (0, 0, 0, 0)
            await asyncio.to_thread(replica.apply, 1, [ChangeBatch(counts, ids, rows)])
            told = await followed(client, body, 1)
            assert (told["offset"], told["index"]["offset"]) == (1, 0)
            assert told["index"]["renewed"] >= 4  # the new one and the other, and those that read them

            there = [node for node in range(NODES + 1) if node != 5]
            vectors = revision.compute.infer("x1", np.array(there), 0).embeddings
            assert vectors is not None
            cosines = dict(zip(there, (unit(vectors) @ unit(vectors[there.index(17)])).tolist(), strict=True))
            cosines.pop(17)
            assert {item["id"] for item in told["items"]} == cosines.keys()
            for item in told["items"]:
                assert abs(item["cosine"] - cosines[item["id"]]) < 1e-4, item

            some = await followed(client, {"node": 17, "exclude": "nothing", "filter": {"nodes": [NODES, 9]}}, 1)
            assert {item["id"] for item in some["items"]} == {NODES, 9}
            new = await followed(client, {"node": NODES, "count": 1000}, 1)
            assert {item["id"] for item in new["items"]} == {*range(NODES)} - {3, 4, 5}
            left = await followed(client, {"node": 5}, 1)
            assert left["error"]["field"] == "node"
            gone = await followed(client, {"node": 17, "filter": {"nodes": [9, 5]}}, 1)
            assert (gone["error"]["code"], gone["error"]["field"]) == ("UnknownNode", "filter.nodes[1]")
            text = client.metrics.render().decode()
            assert 'gnnserve_index_pending_nodes{service="digits"} 0.0' in text

    asyncio.run(scenario())


def test_a_node_that_leaves_before_it_is_shown_is_left_out() -> None:
    found = SearchHits(np.array([4, 5, 6]), np.array([0.9, 0.8, 0.7], np.float32))
    naming = SimpleNamespace(shown=lambda start, _: [] if start == 5 else [start * 10])
    recommending = NearestNodes(IndexPart("index", "", 0, 10), missing=None)
    revision = SimpleNamespace(graph=SimpleNamespace(naming=naming), task=SimpleNamespace(recommending=recommending))
    items = shown_items(found, "x1", revision)  # type: ignore[arg-type]
    assert [(item.id, item.cosine) for item in items] == [(40, 0.9), (60, 0.7)]


def test_what_was_applied_before_the_revision_answers_is_followed_too(repository: Repository) -> None:
    (made,) = repository.revisions()
    opened = load_revision(repository, made.revision, 1 << 26)
    replica = LivingRevision(opened, 1 << 26)
    ids = IntegerIds(np.array([NODES, NODES, 3]))
    replica.apply(1, [ChangeBatch(ChangeCounts(new_nodes=1, edges=1), ids, np.full((1, FEATURES), 0.5, np.float32))])
    revision = served_revision(opened, replica)

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            told = await followed(client, {"node": 17, "count": 1000, "exclude": "nothing"}, 1)
            assert NODES in {item["id"] for item in told["items"]}

    asyncio.run(scenario())


def test_a_latency_chooses_among_variants_of_the_indexs_network_alone(repository: Repository) -> None:
    (response,) = ask(loaded(repository), {"node": 1, "objective": {"latencyMs": 1000}})
    assert response.json()["variant"] == "x1"
