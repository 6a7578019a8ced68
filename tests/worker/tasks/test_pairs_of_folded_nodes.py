"""Scores of pairs with nodes that a request brings or joins to more, where rows are embeddings that were learnt
(LightGCN): beside sums over what each node is joined to, and beside recommendations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.changes.living import ROOM_BYTES
from tests.support.changes.living_links import apply, read_tensors_of, typed_batch
from tests.support.generation.recommended_links import Published, of_users, published
from tests.support.graphs.several_types import shop, write_folder
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, running

from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.models.folding import EIGENVALUES, SHARES
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.messages import ModelInferRequest

EIGENVECTORS = {
    "task": {"links": {"relation": "buys", "dimensions": 64, "comparedWith": "Nothing"}},
    "model": {"architecture": "LightGCN", "fanouts": [0]},
}
CLOSE = {"x1": 1e-5, "x1-int8": 0.02}
"""Differences of scores by variant, whose rows are about as long as 1."""
Edges = list[list[str]]


@pytest.fixture(scope="module", params=["Drawn", "Nothing"])
def learnt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """`Nothing`: rows are eigenvectors."""
    root = tmp_path_factory.mktemp(request.param)
    parts = EIGENVECTORS if request.param == "Nothing" else {}
    variants = {"pruning": {"factors": [1]}, "storage": ["float32", "int8"]}
    yield published(root, {**of_users(root), **parts, "variants": variants})


class JoinedRows:
    """Rows by the ids of nodes, and what each is joined to by any relation, in Python."""

    def __init__(self, loaded: LoadedRevision) -> None:
        graph = loaded.graph
        names = [f"{kind.name}/{place}" for kind in graph.schema.types for place in range(kind.nodes)]
        rows = infer_batch(loaded, "x1", np.arange(graph.nodes), 0).scores
        self.rows = dict(zip(names, rows, strict=True))
        self.joined = {name: {names[other] for other in graph.list_of(node)} for node, name in enumerate(names)}
        weights = read_tensors_of(loaded)
        self.shares = dict(zip(names, weights.get(SHARES, np.ones(len(names), np.float32)).tolist(), strict=True))
        self.values = weights.get(EIGENVALUES)

    def row(self, name: str, edges: Edges) -> np.ndarray:
        """With what edges join it to: as it is, unless it is new or joined to a node of the graph."""
        ends = [(one, other) for first, _, second in edges for one, other in ((first, second), (second, first))]
        gained = {other for one, other in ends if one == name and other in self.rows}
        if name in self.rows and not gained:
            return self.rows[name]
        joined = sorted(self.joined.get(name, set()) | gained)
        found = np.sum([self.shares[one] * self.rows[one] for one in joined], axis=0)
        if self.values is not None:
            found = np.divide(found, self.values, out=np.zeros_like(found), where=self.values > 0)
        is_scaled = self.values is None or name.startswith("user/")
        scaled: np.ndarray = found / np.linalg.norm(found) if is_scaled else found
        return scaled

    def score(self, first: str, second: str, edges: Edges) -> float:
        return float(self.row(first, edges) @ self.row(second, edges))


NEW_EDGES: Edges = [
    ["user/900", "buys", "item/2"], ["user/900", "buys", "item/5"], ["user/900", "buys", "item/5"],
    ["user/900", "knows", "user/4"], ["user/3", "buys", "item/900"], ["item/900", "has", "tag/1"],
    ["user/900", "buys", "item/900"], ["user/7", "buys", "item/9"],
]  # fmt: skip
OVERLAY = {"nodes": [{"id": "user/900"}, {"id": "item/900"}], "edges": NEW_EDGES}
PAIRS = [
    ["user/900", "item/2"], ["user/900", "item/900"], ["user/3", "item/900"], ["user/3", "item/9"],
    ["user/7", "item/9"], ["user/7", "item/11"], ["user/900", "item/9"], ["user/12", "item/12"], ["user/900", "item/2"],
]  # fmt: skip


def ask(revision: ServedRevision, *bodies: dict[str, Any], path: str = "/v1/predict") -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return [await client.http.post(path, json=body) for body in bodies]

    return asyncio.run(scenario())


def test_rows_of_new_and_joined_nodes_are_made_of_what_they_are_joined_to(learnt: Published) -> None:
    loaded = load_revision(learnt.repository, learnt.revision)
    joined, revision = JoinedRows(loaded), served_revision(loaded)
    expected = [joined.score(*pair, NEW_EDGES) for pair in PAIRS]
    for variant, close in CLOSE.items():
        (response,) = ask(revision, {"pairs": PAIRS, "overlay": OVERLAY, "variant": variant})
        assert response.status_code == 200, response.text
        np.testing.assert_allclose(response.json()["scores"], expected, atol=close * max(1, *map(abs, expected)))


def test_embeddings_of_new_and_joined_nodes_are_the_same_rows(learnt: Published) -> None:
    loaded = load_revision(learnt.repository, learnt.revision)
    joined, revision = JoinedRows(loaded), served_revision(loaded)
    nodes = ["user/900", "item/900", "user/3", "user/7", "user/12", "item/9", "user/900"]
    body = {"nodes": nodes, "return": ["embeddings"], "overlay": OVERLAY, "variant": "x1"}
    whole, alone, tag = ask(
        revision, body, {**body, "overlay": {"nodes": [{"id": "user/900"}]}, "nodes": ["user/900"]},
        {"nodes": ["user/3", "tag/1"], "return": ["embeddings"]},
    )  # fmt: skip
    assert whole.status_code == 200, whole.text
    expected = np.array([joined.row(name, NEW_EDGES) for name in nodes])
    np.testing.assert_allclose(whole.json()["embeddings"], expected, atol=1e-5 * max(1, np.abs(expected).max()))
    assert alone.json()["error"]["message"].startswith("nodes[0]: the node of the overlay is joined to no node")
    assert tag.json()["error"]["message"].startswith(
        'nodes[1]: node "tag/1" is of another type than links of user buys item join'
    )


def test_requests_of_one_batch_have_rows_of_their_own(learnt: Published) -> None:
    """The same new id is another node in each of them."""
    loaded = load_revision(learnt.repository, learnt.revision)
    joined, revision = JoinedRows(loaded), served_revision(loaded)
    asked = []
    for items in (["item/1", "item/2"], ["item/3"], ["item/4", "item/6", "item/8"]):
        edges = [["user/900", "buys", item] for item in items]
        asked.append(
            (
                edges,
                {
                    "pairs": [["user/900", "item/7"]],
                    "variant": "x1",
                    "overlay": {"nodes": [{"id": "user/900"}], "edges": edges},
                },
            )
        )

    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            posts = (client.http.post("/v1/predict", json=body) for _, body in asked)
            return await asyncio.gather(*posts)

    for (edges, _), response in zip(asked, asyncio.run(scenario()), strict=True):
        assert response.json()["scores"] == pytest.approx([joined.score("user/900", "item/7", edges)], abs=1e-5)


def test_pairs_of_a_new_user_have_the_scores_of_its_recommendations(learnt: Published) -> None:
    revision = learnt.served()
    edges = [["user/900", "buys", item] for item in ("item/2", "item/5")]
    overlay = {"nodes": [{"id": "user/900"}], "edges": edges}
    (best,) = ask(revision, {"node": "user/900", "count": 1000, "overlay": overlay}, path="/v1/recommend")
    told = best.json()
    items = {one["id"]: one["score"] for one in told["items"]}
    asked = {"pairs": [["user/900", item] for item in items], "variant": told["variant"], "overlay": overlay}
    (pairs,) = ask(revision, asked)
    assert len(items) == 18
    # Its row is encoded for a batch, where the table is int8, and is not for a search.
    assert pairs.json()["scores"] == pytest.approx([*items.values()], abs=CLOSE[told["variant"]])


def test_every_protocol_takes_what_joins_a_node(learnt: Published) -> None:
    revision = learnt.served()
    (in_json,) = ask(revision, {"pairs": PAIRS, "variant": "x1", "overlay": OVERLAY})
    ends = [[first, second] for first, _, second in NEW_EDGES]
    brought = {
        "pairs": PAIRS, "overlay.nodes": ["user/900", "item/900"], "overlay.edges": ends,
        "overlay.edges.relations": [name for _, name, _ in NEW_EDGES],
    }  # fmt: skip
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": list(np.array(data).shape), "data": np.ravel(data).tolist()}
        for name, data in brought.items()
    ]
    (in_tensors,) = ask(revision, {"inputs": inputs}, path="/v2/models/digits/versions/x1/infer")
    assert in_tensors.status_code == 200, in_tensors.text
    assert in_tensors.json()["outputs"][0]["data"] == pytest.approx(in_json.json()["scores"], abs=1e-5)
    texts = [{"contents": {"bytes_contents": [text.encode() for text in one.pop("data")]}} for one in inputs]
    tensors = [{**one, **held} for one, held in zip(inputs, texts, strict=True)]
    message = ModelInferRequest(model_name="digits", inputs=tensors)
    question = question_of(InferCodec(message.SerializeToString()), b"", revision)
    assert question.overlay is not None and question.overlay.new_nodes == 2


def test_rows_are_read_as_changes_have_made_them(learnt: Published) -> None:
    loaded = load_revision(learnt.repository, learnt.revision, ROOM_BYTES)
    living = LivingRevision(loaded, ROOM_BYTES)
    bought = [("user/1000", "buys", "item/3"), ("user/6", "buys", "item/19")]
    apply(living, typed_batch(["user/1000"], bought, [], []))
    revision = served_revision(loaded, living)
    for node, overlay in {
        "user/1000": {"edges": [["user/1000", "buys", "item/4"]]},
        "user/900": {"nodes": [{"id": "user/900"}], "edges": [["user/900", "buys", "item/19"]]},
    }.items():
        asked = {"node": node, "count": 1000, "exclude": "nothing", "overlay": overlay}
        (best,) = ask(revision, asked, path="/v1/recommend")
        variant = best.json()["variant"]
        (pairs,) = ask(revision, {"pairs": [[node, "item/11"]], "variant": variant, "overlay": overlay})
        told = {one["id"]: one["score"] for one in best.json()["items"]}
        assert pairs.json()["scores"] == pytest.approx([told["item/11"]], abs=CLOSE[variant])


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"nodes": [{"id": "user/900"}]}, "pairs[0][0]", "joined to no node of the graph"),
    ({"nodes": [{"id": "user/900"}, {"id": "item/900"}], "edges": [["user/900", "buys", "item/900"]]}, "pairs[0][0]",
     "joined to no node of the graph"),
    ({"nodes": [{"id": "user/900", "features": [1.0]}]}, "overlay.nodes[0].features",
     "nodes of type user have no features"),
    ({"nodes": [{"id": "user/900"}], "edges": [["user/900", "likes", "item/1"]]}, "overlay.edges[0][1]", "likes"),
    ({"nodes": [{"id": "user/900"}], "edges": [["user/900", "buys", "item/99"]]}, "overlay.edges[0][2]",
     "is not in the graph"),
    ({"nodes": [{"id": "user/3"}], "edges": [["user/3", "buys", "item/1"]]}, "overlay.nodes[0].id", "of the graph"),
    ({"nodes": [{"id": "user/900"}], "overrides": [{"id": "user/3", "features": [1.0]}]}, "overlay.overrides[0]",
     "nodes of type user have no features"),
]  # fmt: skip


def test_what_cannot_be_joined_is_refused_by_its_place(learnt: Published) -> None:
    revision = learnt.served()
    bodies = [{"pairs": [["user/900", "item/1"]], "overlay": overlay} for overlay, _, _ in REFUSED]
    for (_, field, words), response in zip(REFUSED, ask(revision, *bodies), strict=True):
        told = response.json()["error"]
        assert (response.status_code, told["field"]) == (400, field), told
        assert words in told["message"], told


def test_where_lists_go_one_way_none_is_brought(tmp_path: Path) -> None:
    spec = of_users(tmp_path)
    source = {**write_folder(tmp_path / "one-way", shop()), "reverse": "Disabled"}
    revision = published(tmp_path, {**spec, **EIGENVECTORS, "graph": {"source": {"typed": source}}}).served()
    overlay = {"nodes": [{"id": "user/900"}], "edges": [["user/900", "buys", "item/1"]]}
    (refused,) = ask(revision, {"pairs": [["user/900", "item/1"]], "overlay": overlay})
    (found,) = ask(revision, {"node": "user/900", "overlay": overlay}, path="/v1/recommend")
    assert (refused.status_code, found.status_code) == (400, 200)
    assert "go one way (graph.source.typed.reverse Disabled)" in refused.json()["error"]["message"]
