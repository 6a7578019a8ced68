"""Pairs between types whose ends are new, stored or of other neighbours are scored as if the graph had all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.generation.new_ends import RELATION, Given, made
from tests.support.models.hetero_pyg import CLASSES, HIDDEN
from tests.support.overlays.typed_overlays import changed_by, drawn_overlay, embeddings_of, read
from tests.support.serving.serving import FakeWorker, running

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.requests import Question
from gnnserve_worker.tasks.score_links.pairs import PairForm
from gnnserve_worker.tasks.score_links.serving import ScoreLinks

pytestmark = pytest.mark.campaign("given")


@pytest.fixture(scope="module", params=["GraphSAGE", "GAT", "RGCN"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        yield made(tmp_path_factory.mktemp(request.param), request.param, patched)


def drawn_pairs(data: GraphData, draw: np.random.Generator) -> dict[str, Any]:
    """A request's body: what it brings, and pairs of stored and of new nodes."""
    overlay = drawn_overlay(data, draw)["overlay"]
    counts = {
        kind.name: kind.nodes + sum(one["id"].startswith(f"{kind.name}/") for one in overlay["nodes"])
        for kind in data.types
    }
    ends = [[int(draw.integers(counts[name])) for name in ("user", "item")] for _ in range(draw.integers(1, 6))]
    # The last ones of either type, which are new where any are.
    ends.append([counts["user"] - 1, counts["item"] - 1])
    return {"pairs": [[f"user/{first}", {"type": "item", "id": second}] for first, second in ends], "overlay": overlay}


def expected_of(given: Given, body: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Scores of torch_geometric's model over the graph that has all that the request brings, and the largest possible
    one."""
    changed, features = changed_by(given.data, given.model, body["overlay"])
    with embeddings_of(given.model, features), torch.no_grad():
        found = {name: state.numpy() for name, state in given.model.outputs(changed).items()}
    first, second = found["user"] * RELATION, found["item"]
    places = [[int(user.partition("/")[2]), item["id"]] for user, item in body["pairs"]]
    scores = np.array([float(first[user] @ second[item]) for user, item in places])
    return scores, float(np.linalg.norm(first, axis=1).max() * np.linalg.norm(second, axis=1).max())


def answered(given: Given, variant: str, questions: list[Question]) -> list[np.ndarray]:
    """Scores of one batch, as the engine makes it."""
    task, loaded = given.served().task, given.loaded
    assert isinstance(task, ScoreLinks)
    links = task.links
    parts = [Part(len(one.nodes), one.overlay, one.wishes.seed) for one in questions]
    seeds = np.concatenate([one.nodes for one in questions])
    view = view_of(loaded.graph.nodes, parts, seeds)
    rows = infer_batch(loaded, variant, seeds, key=0, view=view).scores
    made_of = np.split(rows, np.cumsum([len(one.nodes) for one in questions])[:-1])
    found = []
    for question, own in zip(questions, made_of, strict=True):
        assert isinstance(question.form, PairForm)
        found.append(links.score(own, question.form.first, question.form.second))
    return found


def test_random_pairs_with_new_ends_are_scored_as_torch_geometric_does(given: Given) -> None:
    served, draw = given.served(), np.random.default_rng(5)
    for _ in range(60):
        bodies = [drawn_pairs(given.data, draw) for _ in range(4)]
        for body, found in zip(
            bodies, answered(given, "projected", [read(served, body) for body in bodies]), strict=True
        ):
            expected, largest = expected_of(given, body)
            np.testing.assert_allclose(found, expected, atol=2e-5 * largest, rtol=0)


def test_rows_of_stored_nodes_are_what_the_network_gives(given: Given) -> None:
    ends = np.concatenate([np.arange(end.start, end.end) for end in (given.links.first, given.links.second)])
    rows, stored, whole = (
        infer_batch(given.loaded, name, ends, key=0, with_embeddings=False).scores
        for name in ("stored2", "stored1", "projected")
    )
    np.testing.assert_allclose(rows, whole, atol=1e-5)
    np.testing.assert_allclose(stored, whole, atol=1e-5)
    manifest = given.loaded.manifest
    assert manifest is not None
    memory = {one.name: one.memory_bytes - one.size_bytes for one in manifest.profile.variants}
    assert memory["stored2"] == 4 * CLASSES * given.data.nodes
    assert memory["projected"] > 4 * HIDDEN * given.data.nodes
    others = np.setdiff1d(np.arange(given.data.nodes), ends)
    assert not infer_batch(given.loaded, "stored2", others, key=0, with_embeddings=False).scores.any()


NEW = {
    "nodes": [{"id": "user/900", "features": [0.5] * 4}, {"id": "item/900", "features": [1.0] * 3}],
    "edges": [["user/900", "buys", "item/1"], ["user/900", "knows", "user/2"], ["item/900", "has", "tag/1"]],
}


def test_new_ends_are_asked_about_and_recommended_to_over_http(given: Given) -> None:
    revision = given.served()
    pairs = [["user/900", f"item/{item}"] for item in range(20)]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/predict", {"pairs": [["user/3", "item/4"]]}),
        ("/v1/predict", {"pairs": [*pairs, ["user/900", "item/900"], ["user/3", "item/900"]], "overlay": NEW}),
        ("/v1/recommend", {"node": "user/900", "count": 1000, "overlay": NEW}),
        ("/v1/recommend", {"node": {"type": "item", "id": 900}, "count": 1000, "overlay": NEW}),
        ("/v1/recommend", {"node": "user/3", "count": 1000, "overlay": {"edges": [["user/3", "buys", "item/7"]]}}),
    ]

    async def scenario() -> list[dict[str, Any]]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            responses = [await client.http.post(path, json=body) for path, body in bodies]
            responses.append(await client.http.get("/openapi.json"))
        for response in responses:
            assert response.status_code == 200, response.text
        return [response.json() for response in responses]

    _, scored, for_user, for_item, more, described = asyncio.run(scenario())
    takes = described["components"]["schemas"]["PairsRequest"]["properties"]["overlay"]
    assert takes == {"$ref": "#/components/schemas/TypedOverlay"}
    assert for_user["index"]["variant"] == "stored2"
    # Its rows of what a request reaches are made anew, over several types as over one.
    assert scored["variant"] == "stored1"
    expected, largest = expected_of(
        given,
        {
            "pairs": [["user/30", {"type": "item", "id": item}] for item in range(21)]
            + [["user/3", {"type": "item", "id": 20}]],
            "overlay": renamed(NEW),
        },
    )
    assert scored["scores"] == pytest.approx(expected.tolist(), abs=2e-5 * largest)
    assert {item["id"] for item in for_user["items"]} == {f"item/{item}" for item in range(20)} - {"item/1"}
    assert {item["id"] for item in for_item["items"]} == {f"user/{user}" for user in range(30)}
    assert "item/7" not in {item["id"] for item in more["items"]}


def renamed(overlay: dict[str, Any]) -> dict[str, Any]:
    """The same with the numbers that new nodes have in a graph that is built anew."""

    def name(id_: str) -> str:
        return {"user/900": "user/30", "item/900": "item/20"}.get(id_, id_)

    edges = [
        [name(source), relation, {"type": target.split("/")[0], "id": int(name(target).split("/")[1])}]
        for source, relation, target in overlay["edges"]
    ]
    nodes = [{**node, "id": name(node["id"])} for node in overlay["nodes"]]
    return {"nodes": nodes, "edges": edges, "overrides": []}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"pairs": [["item/900", "user/900"]], "overlay": NEW},
         "pairs[0][0]: node of the overlay is not of type user, which links of user buys item begin at"),
        ({"pairs": [["user/3", "tag/1"]], "overlay": NEW}, 'pairs[0][1]: node "tag/1" is not of type item'),
        ({"pairs": [["user/901", "item/1"]], "overlay": NEW}, 'pairs[0][0]: node "user/901" is not in the graph'),
        ({"pairs": [["user/901", "item/1"]]}, "a new node goes into overlay.nodes"),
        ({"pairs": [["shop/1", "item/1"]], "overlay": NEW}, 'pairs[0][0]: "shop" is no type of nodes'),
        ({"pairs": [["user/1", "item/1"]], "overlay": {"nodes": [{"id": 7, "features": [1.0] * 4}]}},
         "overlay.nodes[0].id: 7 has no type"),
        ({"pairs": [["user/1", "item/1"]], "overlay": {"nodes": [{"id": "user/900"}]}},
         "overlay.nodes[0].features: it is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pair_and_what_it_brings_is_told(given: Given, body: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(given.served(), body)
    assert said in str(raised.value)
