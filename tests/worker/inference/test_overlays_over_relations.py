"""Requests that bring nodes and edges to a graph of several types are answered as if the graph had them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.models.hetero_pyg import HIDDEN
from tests.support.overlays.typed_overlays import Given, changed_by, drawn_overlay, embeddings_of, made, read
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.generation.embeddings.nodes import nodes_to_embed
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.latency import measured_with_new_nodes
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.requests import Question

pytestmark = pytest.mark.campaign("given")


@pytest.fixture(scope="module", params=["GraphSAGE", "GAT", "RGCN"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """The graph, its revision with given weights over the whole neighbourhood, and torch_geometric's model."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        yield made(tmp_path_factory.mktemp(request.param), request.param)


def expected_of(data: GraphData, model: Any, body: dict[str, Any]) -> tuple[np.ndarray, float]:
    """What torch_geometric's model, in float64, says of the graph that has all that the request brings; and the largest
    score of any node."""
    changed, features = changed_by(data, model, body["overlay"])
    with embeddings_of(model, features), torch.no_grad():
        scores: np.ndarray = model(changed).numpy()
    return scores[[int(node.partition("/")[2]) for node in body["nodes"]]], float(np.abs(scores).max())


def answered(loaded: LoadedRevision, questions: list[Question], variant: str = "projected") -> list[np.ndarray]:
    """Answers of one batch, as the engine makes it."""
    parts = [Part(len(one.nodes), one.overlay, one.wishes.seed) for one in questions]
    seeds = np.concatenate([one.nodes for one in questions])
    view = view_of(loaded.graph.nodes, parts, seeds)
    scores = infer_batch(loaded, variant, seeds, key=0, view=view).scores
    return np.split(scores, np.cumsum([len(one.nodes) for one in questions])[:-1])


def test_random_overlays_are_answered_as_torch_geometric_does(given: Given) -> None:
    """A thousand of each architecture; four requests a batch. In float32 a score is as exact as what it is the sum of
    is large, and may be small itself: so 1e-5 of the largest."""
    data, loaded, model = given
    served, draw = served_revision(loaded), np.random.default_rng(11)
    exact = copy.deepcopy(model).double()
    for _ in range(250):
        bodies = [drawn_overlay(data, draw) for _ in range(4)]
        for body, found in zip(bodies, answered(loaded, [read(served, body) for body in bodies]), strict=True):
            expected, largest = expected_of(data, exact, body)
            np.testing.assert_allclose(found, expected, atol=1e-5 * largest, rtol=0)


STORED = {"one layer": (1, (1,)), "two layers": (2, (1, 2)), "three layers": (3, (1, 2, 3))}


@pytest.mark.campaign
@pytest.mark.parametrize(("layers", "stored"), STORED.values(), ids=STORED)
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_stored_layers_answer_overlays_as_torch_geometric_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, layers: int, stored: tuple[int, ...]
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    variants = {"stored": [*stored], "storedFollowChanges": True, "storage": ["float32", "float16"]}
    data, loaded, model = made(tmp_path, architecture, variants, layers)
    served, draw, exact = served_revision(loaded), np.random.default_rng(12), copy.deepcopy(model).double()
    names = [f"stored{layer}{end}" for layer in stored for end in ("", "-float16")]
    assert all(served.capabilities[name].overlay for name in names)
    for _ in range(25):
        bodies = [drawn_overlay(data, draw) for _ in range(4)]
        questions, expected = (
            [read(served, body) for body in bodies],
            [expected_of(data, exact, body) for body in bodies],
        )
        for name in names:
            close = 1e-2 if name.endswith("float16") else 1e-5
            for found, (wanted, largest) in zip(answered(loaded, questions, name), expected, strict=True):
                np.testing.assert_allclose(found, wanted, atol=close * largest, rtol=0, err_msg=name)


def test_an_influence_is_what_the_answer_loses_where_the_node_does_not_read_the_other(given: Given) -> None:
    """The reference is torch_geometric's model over the graph without one entry of the node's own lists."""
    data, loaded, model = given
    user = 4

    async def explained() -> dict[str, Any]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(served_revision(loaded))
            told: dict[str, Any] = (await client.http.post("/v1/explain", json={"node": user, "count": 100})).json()
            return told

    def probabilities(of: GraphData) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = torch.softmax(model(of)[user], dim=0).numpy()
        return found

    told = asyncio.run(explained())
    whole = probabilities(data)
    column = int(whole.argmax())
    assert (told["class"], told["probability"]) == (data.classes[column], pytest.approx(whole[column], abs=1e-4))
    expected = {
        (one.name, f"{one.source}/{sender}"): whole[column] - probabilities(without(data, place, user, sender))[column]
        for place, one in enumerate(data.relations)
        if one.target == "user"
        for sender in one.lists.list_of(user).tolist()
    }
    found = {(each["relation"], each["id"]): each["influence"] for each in told["neighbours"]}
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(abs(influence) for influence in expected.values()) > 1e-3
    sizes = [abs(each["influence"]) for each in told["neighbours"]]
    assert sizes == sorted(sizes, reverse=True)


def without(data: GraphData, place: int, reader: int, sender: int) -> GraphData:
    """The graph in which a node does not read another one by a relation."""
    one, relations = data.relations[place], list(data.relations)
    keeps = ~((one.lists.targets() == reader) & (one.lists.indices == sender))
    counts = np.bincount(one.lists.targets()[keeps], minlength=len(one.lists.indptr) - 1)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    relations[place] = replace(one, lists=Graph(indptr, one.lists.indices[keeps]))
    return replace(data, relations=tuple(relations))


def test_a_revision_with_overlays_warms_up(given: Given) -> None:
    warm_up(given[1])


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"nodes": [{"id": "user/3", "features": [0, 0, 0, 0]}]}, '"user/3" is a node of the graph'),
        ({"nodes": [{"id": "user/99"}]}, "overlay.nodes[0].features: it is missing; nodes of its type have 4"),
        ({"nodes": [{"id": "tag/99", "features": [1]}]}, "nodes of type tag have no features; leave them out"),
        ({"nodes": [{"id": "user/99", "features": [1]}]}, "1 number, where the graph has 4 features"),
        ({"nodes": [{"id": "shop/1"}]}, '"shop" is no type of nodes; types are user, item, tag'),
        ({"edges": [["user/1", "sells", "item/2"]]},
         "overlay.edges[0][1]: no relation is user sells item; relations are user knows user, user buys item"),
        ({"edges": [["user/1", "item/2"]]}, '"item/2"]; give a source, a relation and a target: ["user/17", "buys", '),
        ({"edges": {}}, "give a list of edges, each a source, a relation and a target"),
        ({"edges": [["item/1", "buys", "user/2"]]}, "no relation is item buys user"),
        ({"edges": [["item/1", "rev_buys", "user/2"]]}, "item rev_buys user is the reverse of a relation"),
        ({"edges": [["user/1", "buys", "item/99"]]},
         'overlay.edges[0][2]: node "item/99" is not in the graph; a new node goes into overlay.nodes'),
        ({"overrides": [{"id": "tag/1", "features": [1]}]}, "overlay.overrides[0]: nodes of type tag have no features"),
        ({"overrides": [{"id": "user/1", "features": {"0": 1}}]},
         'overlay.overrides[0].features.1: it is missing, and this revision does not keep what node "user/1" has: '
         "it stores products of features, or no table of all of them in float32, or rows were divided by their norms; "
         "give all 4 columns"),
        ({"overrides": [{"id": one, "features": [1, 2, 3]} for one in ("item/1", {"type": "item", "id": 1})]},
         '"id":1} is also the id of overlay.overrides[0]; give each node once'),
        ({"nodes": [{"id": "tag/9"}, {"id": "tag/9"}]}, "overlay.nodes[1].id: \"tag/9\" is another new node's id too"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_overlay_is_told(given: Given, overlay: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(served_revision(given[1]), {"nodes": [0], "overlay": overlay})
    assert said in str(raised.value)


def test_more_values_than_any_overlay_has_are_refused_as_too_many(given: Given) -> None:
    overlay = {"nodes": [{"id": "user/900", "features": [0] * 3_000_000}]}
    with pytest.raises(RequestError, match=r"overlay: the body has 3,000,\d+ values, more than any request within"):
        read(served_revision(given[1]), {"nodes": [0], "overlay": overlay})


def test_embeddings_over_all_neighbours_are_the_hidden_states_of_each_type_that_is_read(
    given: Given, tmp_path: Path
) -> None:
    data, loaded, model = given
    drawing = replace(loaded.variants["projected"], fanouts=(1, 1))
    sampled = replace(loaded, variants={"projected": drawing})
    states = hidden_states(model, data)
    for name in ("user", "item"):
        of = nodes_to_embed(loaded, name)
        nodes = of.first + np.arange(of.count)
        blocks = [*embedding_blocks(sampled, "projected", nodes, Neighbours.ALL, 0, tmp_path)]
        np.testing.assert_allclose(np.concatenate(blocks), states[name], atol=1e-4)
    with pytest.raises(InputError, match="nodes of type tag have no embeddings: no node that is classified reads them"):
        nodes_to_embed(loaded, "tag")


def test_new_nodes_are_not_measured_over_several_types(given: Given) -> None:
    manifest = given[1].manifest
    assert manifest is not None
    assert not measured_with_new_nodes(given[1])
    assert all(not one.new_nodes for one in manifest.profile.variants)


def hidden_states(model: Any, data: GraphData) -> dict[str, np.ndarray]:
    """What the last layer of torch_geometric's model reads of each type."""
    read: list[Any] = []
    hook = model.convs[-1].register_forward_pre_hook(lambda _, given: read.append(given[0]))
    with torch.no_grad():
        model(data)
    hook.remove()
    if isinstance(read[0], dict):
        return {name: state.numpy() for name, state in read[0].items()}
    firsts = data.schema.first_nodes
    return {kind.name: read[0][firsts[place] : firsts[place + 1]].numpy() for place, kind in enumerate(data.types)}


def test_an_embedding_is_as_wide_as_hidden_layers(given: Given) -> None:
    assert [None if one.default is None else len(one.default) for one in given[1].new_nodes.types] == [
        None,
        None,
        HIDDEN,
    ]
