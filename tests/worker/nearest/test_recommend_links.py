"""Recommendations of services that score links, and of graphs of several types: by a product of embeddings, which is
compared with the scores of all pairs, and of new nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.generation.recommended_links import BRIEF, Published, of_users, one_type, published
from tests.support.graphs.several_types import shop, write_folder
from tests.support.serving.following_index import followed
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.embeddings import Neighbours
from gnnserve_worker.generation.embeddings.files import EmbeddingsRequest, export_embeddings
from gnnserve_worker.generation.embeddings.nodes import nodes_to_embed
from gnnserve_worker.generation.embeddings.publishing import choose_variant
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.search import unit
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.serving.http.changes.reading import read_changes
from gnnserve_worker.serving.http.codecs.recommending.known import excluded_of
from gnnserve_worker.tasks.score_links.recommending import BestPairsOfTypes
from gnnserve_worker.tasks.score_links.serving import ScoreLinks
from gnnserve_worker.tasks.serving import published_task

pytestmark = pytest.mark.campaign("same_type", "eigenvectors")


@pytest.fixture(scope="module", params=["Dot", "DistMult", "MLP"])
def same_type(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    root = tmp_path_factory.mktemp(request.param)
    yield published(root, one_type(root, request.param))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    root = tmp_path_factory.mktemp("users")
    yield published(root, of_users(root))


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    root = tmp_path_factory.mktemp("classified")
    yield published(
        root,
        {
            "graph": {"source": {"typed": write_folder(root, shop())}},
            "model": {"fanouts": [-1, -1], "hidden": 8, "training": BRIEF},
            "variants": {"pruning": {"factors": [1]}},
            "embeddings": {},
        },
    )


def ask(revision: ServedRevision, *bodies: dict[str, Any], path: str = "/v1/recommend") -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return [await client.http.post(path, json=body) for body in bodies]

    return asyncio.run(scenario())


def scores_of(revision: ServedRevision, pairs: list[list[Any]]) -> tuple[list[float], list[float]]:
    (response,) = ask(revision, {"pairs": pairs}, path="/v1/predict")
    told = response.json()
    return told["scores"], told["probabilities"]


def test_the_best_pairs_are_recommended_with_their_scores(same_type: Published) -> None:
    revision = same_type.served()
    (response,) = ask(revision, {"node": 7, "count": 5, "exclude": "nothing"})
    assert response.status_code == 200, response.text
    told = response.json()
    others = [node for node in range(80) if node != 7]
    scores, likely = scores_of(revision, [[7, node] for node in others])
    best = np.argsort(-np.array(scores), kind="stable")[:5]
    assert [item["id"] for item in told["items"]] == [others[i] for i in best]
    assert np.allclose([item["score"] for item in told["items"]], np.array(scores)[best], atol=1e-4)
    assert np.allclose([item["probability"] for item in told["items"]], np.array(likely)[best], atol=1e-4)
    assert (told["index"]["metric"], told["index"]["recall"]) == ("Score", 1.0)
    assert "cosine" not in told["items"][0]


def test_known_nodes_are_left_out_whichever_way_a_link_goes(same_type: Published) -> None:
    revision = same_type.served()
    assert revision.graph.neighbours_of is not None
    (response,) = ask(revision, {"node": 7, "count": 1000})
    found = {item["id"] for item in response.json()["items"]}
    known = {*revision.graph.neighbours_of(7).tolist()} | {n for n in range(80) if 7 in revision.graph.neighbours_of(n)}
    assert found == {*range(80)} - known - {7}


def test_a_new_node_is_computed_with_what_it_brings(same_type: Published) -> None:
    revision = same_type.served()
    overlay = {"nodes": [{"id": 900, "features": [0.5] * 12}], "edges": [[900, 3], [4, 900]]}
    (response,) = ask(revision, {"node": 900, "count": 1000, "overlay": overlay})
    assert response.status_code == 200, response.text
    assert {item["id"] for item in response.json()["items"]} == {*range(80)} - {3, 4}
    assert response.json()["variant"] == "x1"


def test_rows_of_embeddings_are_preferred_between_types_and_what_takes_new_nodes_within_one(
    same_type: Published,
) -> None:
    """However accurate each of them is."""
    manifest = load_revision(same_type.repository, same_type.revision).manifest
    assert manifest is not None and manifest.links is not None
    typed = replace(manifest.links, first=replace(manifest.links.first, type="user"))
    for better in ("x1", "stored2"):
        accurate = [
            replace(each, validation_accuracy=0.9 if each.name == better else 0.8) for each in manifest.profile.variants
        ]
        judged = replace(manifest, profile=replace(manifest.profile, variants=tuple(accurate)))
        assert choose_variant(judged, None).name == "x1"
        assert choose_variant(replace(judged, links=typed), None).name == "stored2"
        assert choose_variant(judged, "stored2").name == "stored2"


def test_what_follows_changes_comes_before_what_holds_the_graph_as_it_was(same_type: Published) -> None:
    """Between types, where no rows are of the model's embeddings, as of layers that a manifest lists."""
    manifest = load_revision(same_type.repository, same_type.revision).manifest
    assert manifest is not None and manifest.links is not None
    typed = replace(manifest.links, first=replace(manifest.links.first, type="user"))
    families = {"x1": "layers", "stored2": "propagated-one-row"}
    variants = [replace(each, family=families[each.name]) for each in manifest.variants if each.name in families]
    accuracies = {"x1": 0.8, "stored2": 0.9}
    profiled = [
        replace(each, family=families[each.name], validation_accuracy=accuracies[each.name])
        for each in manifest.profile.variants
        if each.name in families
    ]
    profile = replace(manifest.profile, variants=tuple(profiled))
    judged = replace(manifest, links=typed, variants=tuple(variants), profile=profile)
    assert choose_variant(judged, None).name == "x1"
    still = replace(profile, variants=tuple(one for one in profiled if one.name == "stored2"))
    alone = replace(judged, variants=tuple(one for one in variants if one.name == "stored2"), profile=still)
    assert choose_variant(alone, None).name == "stored2"


def test_items_are_recommended_for_users_and_users_for_items(users: Published) -> None:
    revision = users.served()
    for_user, for_item, typed = ask(
        revision,
        {"node": "user/3", "type": "item", "count": 1000, "exclude": "nothing"},
        {"node": "item/3", "count": 1000, "exclude": "nothing"},
        {"node": {"type": "user", "id": 3}, "count": 1},
    )
    assert for_user.status_code == 200, for_user.text
    told = for_user.json()
    assert [item["id"].split("/")[0] for item in told["items"]] == ["item"] * 20
    scores, _ = scores_of(revision, [["user/3", item["id"]] for item in told["items"]])
    assert np.allclose([item["score"] for item in told["items"]], scores, atol=1e-5)
    assert scores == sorted(scores, reverse=True)
    assert told["index"]["type"] == "item"
    assert {item["id"].split("/")[0] for item in for_item.json()["items"]} == {"user"}
    assert typed.status_code == 200


@pytest.mark.parametrize("decoder", ["DistMult", "MLP"])
def test_a_network_over_types_recommends_by_the_scores_of_its_pairs(tmp_path: Path, decoder: str) -> None:
    model = {"architecture": "GraphSAGE", "hidden": 8, "fanouts": [-1, -1], "training": {"epochs": 2}}
    spec = of_users(tmp_path) | {"model": model}
    spec["task"]["links"]["decoder"] = decoder
    revision = published(tmp_path, spec).served()
    overlay = {"nodes": [{"id": "user/new", "features": [1.0] * 4}], "edges": [["user/new", "buys", "item/1"]]}
    new_tag = {"node": "tag/900", "overlay": {"nodes": [{"id": "tag/900"}]}}
    bodies = [
        new_tag,
        {"node": "user/3", "type": "item", "count": 1000, "exclude": "nothing"},
        {"node": "user/900", "count": 1000, "exclude": "nothing", "overlay": renumbered(overlay)},
        {"node": "item/3", "count": 1000, "exclude": "nothing"},
        {"node": "user/900"},
        {"node": "user/900", "overlay": overlay | {"nodes": [{"id": "user/901", "features": [1.0] * 4}], "edges": []}},
    ]
    of_no_end, stored, new, for_item, unknown, absent = ask(revision, *bodies)
    told = of_no_end.json()["error"]
    assert (of_no_end.status_code, told["code"], told["field"]) == (400, "WrongNodeType", "node")
    assert 'node "tag/900" is neither of type user nor of type item' in told["message"]
    assert stored.status_code == 200, stored.text
    items = stored.json()["items"]
    scores, likely = scores_of(revision, [["user/3", item["id"]] for item in items])
    assert len(items) == 20
    assert np.allclose([item["score"] for item in items], scores, atol=1e-4)
    assert np.allclose([item["probability"] for item in items], likely, atol=1e-4)
    found = for_item.json()["items"]
    scores = scores_of(revision, [[item["id"], "item/3"] for item in found])[0]
    assert np.allclose([item["score"] for item in found], scores, atol=1e-4)
    assert scores == sorted(scores, reverse=True)
    assert new.status_code == 200, new.text
    assert (new.json()["variant"], len(new.json()["items"])) == ("projected", 20)
    for refused in (unknown, absent):
        told = refused.json()["error"]
        assert (refused.status_code, told["code"], told["field"]) == (400, "UnknownNode", "node")
        assert "a new node goes into overlay.nodes, with its features" in told["message"]


def renumbered(overlay: dict[str, Any]) -> dict[str, Any]:
    """With the id of a type whose ids are numbers."""
    found: dict[str, Any] = json.loads(json.dumps(overlay).replace("user/new", "user/900"))
    return found


def embeddings_of(revision: ServedRevision) -> dict[str, np.ndarray]:
    nodes = np.arange(revision.graph.nodes)
    rows = revision.compute.infer("x1", nodes, 0).scores
    return dict(zip(map(str, revision.graph.naming.shown(0, revision.graph.nodes)), unit(rows), strict=True))


def test_nodes_of_either_end_are_exported_alone(users: Published, tmp_path: Path) -> None:
    loaded = load_revision(users.repository, users.revision)
    for name, count in (("user", 30), ("item", 20)):
        out, of = tmp_path / f"{name}.npy", nodes_to_embed(loaded, name)
        export_embeddings(
            loaded, "default/shop", EmbeddingsRequest("x1", of, None, Neighbours.ALL, 0), out, "a test", silent
        )
        assert np.load(out).shape == (count, 8)
        ids = [json.loads(line) for line in out.with_suffix(".ids.jsonl").read_text().splitlines()]
        assert ids == [f"{name}/{place}" for place in range(count)]


def test_a_new_user_is_what_its_items_are_together(users: Published) -> None:
    revision = users.served()
    joined = ["item/2", "item/5"]
    overlay = {"nodes": [{"id": "user/new"}], "edges": [["user/new", "buys", item] for item in joined]}
    (response,) = ask(revision, {"node": "user/new", "count": 1000, "overlay": overlay})
    assert response.status_code == 200, response.text
    rows = embeddings_of(revision)
    own = unit(rows[joined[0]] + rows[joined[1]])
    found = {item["id"]: item["score"] for item in response.json()["items"]}
    assert found.keys() == {f"item/{i}" for i in range(20)} - {*joined}
    for id_, score in found.items():
        assert score == pytest.approx(float(own @ rows[id_]), abs=1e-5)


def as_tensors(body: dict[str, Any]) -> dict[str, Any]:
    """A request of the Open Inference Protocol with what a body in JSON brings."""
    overlay = body["overlay"]
    new, edges = [one["id"] for one in overlay.get("nodes", ())], overlay.get("edges", [])
    brought = {
        "overlay.nodes": ([len(new)], new),
        "overlay.edges": ([len(edges), 2], [end for source, _, target in edges for end in (source, target)]),
        "overlay.edges.relations": ([len(edges)], [relation for _, relation, _ in edges]),
    }
    inputs = {"node": ([1], [body["node"]]), **{name: one for name, one in brought.items() if one[0][0]}}
    return {
        "inputs": [
            {"name": name, "datatype": "BYTES", "shape": shape, "data": data} for name, (shape, data) in inputs.items()
        ],
        "parameters": {"count": 1000},
    }


def test_tensors_that_join_a_node_are_answered_as_json_is(users: Published) -> None:
    new, item = [{"id": "user/new"}], ["user/new", "buys", "item/2"]
    bodies: list[dict[str, Any]] = [
        {"node": "user/new", "count": 1000, "overlay": {"nodes": new, "edges": [item, ["user/new", "buys", "item/5"]]}},
        {"node": "user/3", "count": 1000, "overlay": {"edges": [["user/3", "buys", "item/9"]]}},
        {"node": "item/new", "count": 1000,
         "overlay": {"nodes": [{"id": "item/new"}], "edges": [["user/4", "buys", "item/new"]]}},
    ]  # fmt: skip
    revision, path = users.served(), "/v2/models/digits.recommend/infer"
    told = ask(revision, *bodies), ask(revision, *map(as_tensors, bodies), path=path)
    for in_json, in_tensors in zip(*told, strict=True):
        assert (in_json.status_code, in_tensors.status_code) == (200, 200), in_tensors.text
        found = {one["name"]: one["data"] for one in in_tensors.json()["outputs"]}
        items = in_json.json()["items"]
        assert found["nodes"] == [one["id"] for one in items]
        assert found["scores"] == pytest.approx([one["score"] for one in items], abs=1e-5)


def test_tensors_that_join_a_node_wrongly_are_refused_by_their_place(users: Published) -> None:
    def joined(*edge: str) -> dict[str, Any]:
        return as_tensors({"node": "user/3", "overlay": {"edges": [[*edge]]}})

    two_names = joined("user/3", "buys", "item/9")
    two_names["inputs"][-1] |= {"shape": [2], "data": ["buys", "buys"]}
    refused = {
        "overlay.edges.relations[0]": joined("user/3", "knows", "item/9"),
        "overlay.edges[0][0]": joined("user/4", "buys", "item/9"),
        "overlay.edges[0][1]": joined("user/3", "buys", "tag/1"),
        "overlay.edges.relations": two_names,
        "overlay.nodes[0].id": as_tensors({"node": "tag/new", "overlay": {"nodes": [{"id": "tag/new"}]}}),
    }
    for field, response in zip(
        refused, ask(users.served(), *refused.values(), path="/v2/models/digits.recommend/infer"), strict=True
    ):
        assert response.status_code == 400, field
        assert f"{field}: " in response.text, response.text


def test_new_nodes_are_not_made_of_rows_that_an_earlier_release_stored_of_a_network(users: Published) -> None:
    revision = users.served()
    recommending = revision.task.recommending
    assert isinstance(revision.task, ScoreLinks) and isinstance(recommending, BestPairsOfTypes)
    folder = recommending.folder
    folder = dataclasses.replace(folder, links=replace(folder.links, embeddings_of="GraphSAGE"))
    recommending = dataclasses.replace(recommending, folder=folder)
    earlier = dataclasses.replace(revision, task=dataclasses.replace(revision.task, recommending=recommending))
    overlay = {"nodes": [{"id": "user/new"}], "edges": [["user/new", "buys", "item/2"]]}
    stored, new = ask(earlier, {"node": "user/3"}, {"node": "user/new", "overlay": overlay})
    assert stored.status_code == 200, stored.text
    told = new.json()["error"]
    assert (new.status_code, told["code"], told["field"]) == (400, "NoOverlays", "overlay")
    assert "kept GraphSAGE's embeddings of stored nodes alone" in told["message"]
    assert len(scores_of(earlier, [["user/3", "item/2"]])[0]) == 1


def test_an_overlay_hides_what_it_joins_whichever_number_a_stored_node_has_in_it() -> None:
    """In a graph of one type, lists call a stored node by its number in the overlay; in one of several, by its own."""
    graph = FakeWorker(nodes=10).revision()
    for sender in (3, 10):
        # Node 3 and node 7 are overlay nodes 0 and 1; the list of node 7 gains node 3.
        packed = np.array([2, 1, 0, 0, 2, 3, 7, 0, 0, 1, sender], np.int64)
        overlay = Overlay(0, np.zeros((0, 1), np.float32), packed, nodes=2, edges=1)
        assert excluded_of(10, overlay, graph, with_known=True).tolist() == [3, 7]


@pytest.fixture(scope="module", params=["Add", "Disabled"])
def eigenvectors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Of users and items alone, with as many columns as there are eigenvectors. `Disabled`: users read nothing."""
    root = tmp_path_factory.mktemp(request.param)
    spec, parts = of_users(root), shop()
    del parts.nodes["tag"], parts.edges["item", "has", "tag"], parts.edges["user", "knows", "user"]
    typed = {**write_folder(root / "pairs", parts), "reverse": request.param}
    links = {"relation": "buys", "dimensions": 64, "comparedWith": "Nothing"}
    yield published(
        root,
        {
            **spec,
            "graph": {"source": {"typed": typed}},
            "task": {"links": links},
            "model": {"architecture": "LightGCN", "fanouts": [0]},
        },
    )


def joined_to(revision: ServedRevision) -> dict[str, list[str]]:
    """What each node is joined to, whichever of both reads the other."""
    assert revision.graph.neighbours_of is not None
    names = list(map(str, revision.graph.naming.shown(0, revision.graph.nodes)))
    pairs = {(node, int(other)) for node in range(revision.graph.nodes) for other in revision.graph.neighbours_of(node)}
    pairs |= {(other, node) for node, other in pairs}
    return {name: [names[other] for node, other in sorted(pairs) if names[node] == name] for name in names}


@pytest.mark.parametrize("end", ["user", "item"])
def test_where_rows_are_eigenvectors_a_new_node_is_recommended_what_a_stored_one_with_its_links_is(
    eigenvectors: Published, end: str
) -> None:
    revision = eigenvectors.served()
    joined = joined_to(revision)
    # The one with the most links: its list has nodes of many and of few.
    stored = max((name for name in joined if name.startswith(end)), key=lambda name: len(joined[name]))
    new = f"{end}/new"
    edges = [[new, "buys", other] if end == "user" else [other, "buys", new] for other in joined[stored]]
    of_stored, of_new = ask(
        revision,
        {"node": stored, "count": 1000, "exclude": "nothing"},
        {"node": new, "count": 1000, "exclude": "nothing", "overlay": {"nodes": [{"id": new}], "edges": edges}},
    )
    assert of_new.status_code == 200, of_new.text
    expected = {item["id"]: item["score"] for item in of_stored.json()["items"]}
    found = {item["id"]: item["score"] for item in of_new.json()["items"]}
    assert len(expected) > 15 and max(expected.values()) > 0.1
    assert found == pytest.approx(expected, abs=1e-4)


def test_links_that_a_stored_node_has_are_known_whichever_way_lists_go(eigenvectors: Published) -> None:
    revision = eigenvectors.served()
    joined = joined_to(revision)
    for node in ("user/3", "item/5"):
        edge = ["user/3", "buys", joined[node][0]] if node == "user/3" else [joined[node][0], "buys", node]
        plain, with_known, without = ask(
            revision,
            {"node": node, "count": 1000, "exclude": "nothing"},
            {"node": node, "count": 1000, "exclude": "nothing", "overlay": {"edges": [edge]}},
            {"node": node, "count": 1000, "overlay": {"edges": [edge]}},
        )
        assert with_known.status_code == 200, with_known.text
        scores = [{item["id"]: item["score"] for item in told.json()["items"]} for told in (plain, with_known)]
        assert scores[1] == pytest.approx(scores[0], abs=1e-4)
        assert {item["id"] for item in without.json()["items"]} == scores[0].keys() - {*joined[node]}


def test_a_user_who_has_bought_more_is_computed_anew_and_it_is_known(users: Published) -> None:
    revision = users.served()
    before, after = ask(
        revision,
        {"node": "user/3", "count": 1000},
        {"node": "user/3", "count": 1000, "overlay": {"edges": [["user/3", "buys", "item/9"]]}},
    )
    assert after.status_code == 200, after.text
    found = [{item["id"] for item in each.json()["items"]} for each in (before, after)]
    assert found[1] == found[0] - {"item/9"}


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"node": "user/3", "type": "tag"}, 400, "type", "joins nodes of type user to nodes of type item"),
    ({"node": "tag/1"}, 400, "node", "is neither of type user nor of type item"),
    ({"node": "user/9999"}, 400, "node", 'node "user/9999" is not in the graph'),
    ({"node": 3}, 400, "node", "expected an id with its type, got 3"),
    ({"node": "user/3", "count": 0}, 400, "count", "0 is out of range"),
    ({"node": "user/3", "count": 1_000_000}, 400, "count", "1000000 is out of range"),
    ({"node": "user/3", "filter": {"nodes": ["user/4"]}}, 400, "filter.nodes[0]", "is not of type item"),
    ({"node": "user/3", "filter": {"nodes": ["item/999"]}}, 400, "filter.nodes[0]", "is not in the graph"),
    ({"node": "user/3", "filter": {"labels": [1]}}, 400, "filter.labels", "nodes have no labels here"),
    ({"node": "user/3", "filter": {"price": 1}}, 400, "filter.price", "expected a list or an object, got 1"),
    ({"node": "user/new", "overlay": {"nodes": [{"id": "user/new"}]}}, 400, "overlay.edges", "joined to no node"),
    ({"node": "user/new", "overlay": {"edges": [["user/new", "buys", "item/1"]]}}, 400, "node", "is not in the graph"),
    ({"node": "tag/new", "overlay": {"nodes": [{"id": "tag/new"}]}}, 400, "overlay.nodes[0].id", "is neither of type"),
    ({"node": "user/new", "overlay": {"nodes": [{"id": "user/new", "features": [1]}]}}, 400,
     "overlay.nodes[0].features", "nodes of this service have no features"),
    ({"node": "user/new", "overlay": {"nodes": [{"id": "user/new"}, {"id": "user/other"}]}}, 400,
     "overlay.nodes[1].id", "is new and not the node that is asked for"),
    ({"node": "user/3", "overlay": {"nodes": [{"id": "user/3"}]}}, 400, "overlay.nodes[0].id", "is a node of"),
    ({"node": "user/3", "overlay": {"edges": [["user/3", "knows", "item/1"]]}}, 400, "overlay.edges[0][1]",
     "is not the relation that is scored"),
    ({"node": "user/3", "overlay": {"edges": [["user/4", "buys", "item/1"]]}}, 400, "overlay.edges[0][0]",
     'what the request brings is about "user/3" alone'),
    ({"node": "user/3", "overlay": {"edges": [["user/3", "buys", "tag/1"]]}}, 400, "overlay.edges[0][2]",
     "is not of type item"),
    ({"node": "user/3", "overlay": {"overrides": [{"id": "user/3", "features": [1]}]}}, 400, "overlay.overrides",
     "nodes of this service have no features"),
]  # fmt: skip


def test_bad_requests_about_users_name_the_field(users: Published) -> None:
    responses = ask(users.served(), *[body for body, *_ in REFUSED])
    for response, (body, status, field, words) in zip(responses, REFUSED, strict=True):
        told = response.json()["error"]
        assert (response.status_code, told.get("field", "")) == (status, field), (body, told)
        assert words in told["message"], (body, told)


def test_nodes_of_the_classified_type_are_recommended_in_a_graph_of_several(classified: Published) -> None:
    revision = classified.served()
    vectors = revision.compute.infer(revision.manifest.variants[0].name, np.arange(30), 0).embeddings
    assert vectors is not None
    stored, refused, wrong = ask(
        revision,
        {"node": "user/3", "count": 1000, "exclude": "nothing"},
        {"node": "item/3"},
        {"node": "user/3", "type": "item"},
    )
    assert stored.status_code == 200, stored.text
    cosines = unit(vectors) @ unit(vectors[3])
    for item in stored.json()["items"]:
        assert item["cosine"] == pytest.approx(float(cosines[item["id"]]), abs=1e-4)
    assert len(stored.json()["items"]) == 29
    assert "is of type item, and answers are about nodes of type user" in refused.json()["error"]["message"]
    assert "nodes of type user are recommended" in wrong.json()["error"]["message"]


def test_a_new_node_of_the_classified_type_asks_and_does_not_get_those_it_knows(classified: Published) -> None:
    revision = classified.served()
    overlay = {
        "nodes": [{"id": "user/900", "features": [0.5] * 4}],
        "edges": [["user/900", "knows", "user/4"], ["user/900", "buys", "item/1"]],
    }
    new, together = ask(
        revision,
        {"node": "user/900", "count": 1000, "overlay": overlay},
        {"node": {"type": "user", "id": 900}, "count": 1000, "exclude": "nothing", "overlay": overlay},
    )
    assert new.status_code == 200, new.text
    assert 4 not in {item["id"] for item in new.json()["items"]}
    assert len(together.json()["items"]) == 30


def test_new_nodes_of_requests_in_one_batch_stay_apart(classified: Published) -> None:
    revision = classified.served()
    bodies = [
        {
            "nodes": [f"user/{900 + number}"],
            "return": ["scores"],
            "overlay": {
                "nodes": [{"id": f"user/{900 + number}", "features": [float(number)] * 4}],
                "edges": [
                    [f"user/{900 + number}", "buys", f"item/{number}"],
                    ["user/4", "knows", f"user/{900 + number}"],
                ],
            },
        }
        for number in range(4)
    ]
    alone = [response.json()["scores"] for response in ask(revision, *bodies, path="/v1/predict")]

    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return await asyncio.gather(*(client.http.post("/v1/predict", json=body) for body in bodies))

    together = [response.json()["scores"] for response in asyncio.run(scenario())]
    assert np.allclose(together, alone, atol=1e-5)
    assert not np.allclose(alone[0], alone[1], atol=1e-3)


def test_the_index_follows_changes_of_a_graph_of_several_types(classified: Published) -> None:
    loaded = load_revision(classified.repository, classified.revision, 1 << 22)
    replica = LivingRevision(loaded, 1 << 22)
    revision = served_revision(loaded, replica)
    changes = {
        "nodes": [{"id": "user/900", "features": [0.5] * 4}],
        "overrides": [{"id": "item/3", "features": [2.0] * 3}],
        "edges": [["user/900", "buys", "item/3"], ["user/4", "knows", "user/900"]],
        "removedNodes": ["user/5", "tag/1"],
    }
    batch = read_changes(json.dumps(changes).encode(), b"application/json", revision)[1]

    async def scenario() -> dict[str, Any]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            await asyncio.to_thread(replica.apply, 1, [batch])
            return await followed(client, {"node": "user/3", "count": 1000, "exclude": "nothing"}, 1)

    told = asyncio.run(scenario())
    there = [node for node in range(31) if node != 5]
    vectors = revision.compute.infer(told["variant"], np.array(there), 0).embeddings
    assert vectors is not None
    cosines = unit(vectors) @ unit(vectors[there.index(3)])
    expected = {900 if node == 30 else node: cosine for node, cosine in zip(there, cosines.tolist(), strict=True)}
    found = {item["id"]: item["cosine"] for item in told["items"]}
    assert found.keys() == expected.keys() - {3}
    for id_, cosine in found.items():
        assert cosine == pytest.approx(expected[id_], abs=1e-4), id_


def test_a_revision_of_links_between_types_has_an_index_of_each_end(users: Published) -> None:
    manifest = users.served().manifest
    parts = published_task(manifest).index_parts("", 0)
    assert [(part.type, part.nodes, part.metric) for part in parts] == [("user", 30, "Score"), ("item", 20, "Score")]
