"""Recommendations filtered by columns of nodes: found beside brute force, of new nodes and of those that changed, and
what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.changes.compacted_relations import Service
from tests.support.changes.living_links import typed_batch
from tests.support.generation.recommended_links import of_users, service_of
from tests.support.graphs.graphs import network_manifest
from tests.support.serving.following_index import followed
from tests.support.serving.recommending import VARIANTS, WHOLE, ask, loaded
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.errors import InputError
from gnnserve_worker.generation.embeddings import index as building
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.source_types import source_types, types_with_columns
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import IntegerIds
from gnnserve_worker.graph.store import FeatureColumn, NodeType
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.made_up import made_up_graph, publish_made_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.nearest.columns import columns_folder
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES, ROOM_BYTES = 120, 7, 1 << 26
NAMED = (
    FeatureColumn("price", 1), FeatureColumn("brand", 1), FeatureColumn("labels", 1), FeatureColumn("vector", 3),
    FeatureColumn("in stock", 1),
)  # fmt: skip


def priced() -> np.ndarray:
    """Features: a price, a brand of four, a column called as a filter is, a list of three, and whether it is there."""
    draw = np.random.default_rng(5)
    rows = draw.normal(size=(NODES, FEATURES))
    rows[:, 0] = draw.integers(1, 100, NODES)
    rows[:, 1] = draw.integers(0, 4, NODES)
    rows[:, 6] = draw.random(NODES) < 0.5
    return rows.astype(np.float32)


Kept = Callable[[NodeType], NodeType]


@dataclass(frozen=True)
class Shop:
    repository: Repository
    features: np.ndarray

    @property
    def revision(self) -> str:
        return self.repository.revisions()[0].revision

    @property
    def folder(self) -> Path:
        return self.repository.folder / "revisions" / self.revision

    def keep(self, kept: Kept | None = None) -> None:
        """Make the index, and keep columns of what `kept` makes of the nodes; None: keep none."""
        features = self.features

        def types_of(_: Any) -> list[NodeType]:
            assert kept is not None
            return [kept(NodeType("", NODES, features, NAMED))]

        publish_embeddings(
            self.repository, "default/digits", self.revision, "x1", {}, "a test", silent,
            types_of=None if kept is None else types_of,
        )  # fmt: skip


def shop_in(root: Path) -> Shop:
    repository, features = Repository(root, "default", "digits"), priced()
    made = made_up_graph(NODES, 4, FEATURES, 3)
    (kind,) = made.types
    publish_made_up(
        repository,
        replace(made, types=(replace(kind, features=features),)),
        network_manifest("GraphSAGE", WHOLE),
        VARIANTS,
    )
    return Shop(repository, features)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = shop_in(tmp_path_factory.mktemp("shop"))
    made.keep(lambda kind: kind)
    yield made


CONDITIONS: list[tuple[dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = [
    ({"price": {"below": 20}}, lambda rows: rows[:, 0] < 20),
    ({"price": {"above": 80}}, lambda rows: rows[:, 0] > 80),
    ({"price": {"atLeast": 20, "atMost": 30}}, lambda rows: (rows[:, 0] >= 20) & (rows[:, 0] <= 30)),
    ({"price": {"between": [20, 30]}}, lambda rows: (rows[:, 0] >= 20) & (rows[:, 0] <= 30)),
    ({"brand": {"equals": 2}}, lambda rows: rows[:, 1] == 2),
    ({"brand": {"oneOf": [0, 3]}}, lambda rows: np.isin(rows[:, 1], [0, 3])),
    ({"labels": {"above": 0}, "vector[2]": {"below": 0}}, lambda rows: (rows[:, 2] > 0) & (rows[:, 5] < 0)),
    ({"in stock": {"equals": True}}, lambda rows: rows[:, 6] == 1),
    ({"in stock": {"oneOf": [False, 5]}}, lambda rows: rows[:, 6] == 0),
    ({"price": {"below": 50}, "in stock": {"equals": 1}, "nodes": [*range(60)]},
     lambda rows: (rows[:, 0] < 50) & (rows[:, 6] == 1) & (np.arange(NODES) < 60)),
    ({"price": {"below": 1e300}}, lambda rows: np.ones(NODES, bool)),
    ({"price": {"above": 1e300}}, lambda rows: np.zeros(NODES, bool)),
]  # fmt: skip


def test_nodes_whose_columns_pass_are_recommended_and_no_others(shop: Shop) -> None:
    plain = {"node": 17, "count": 1000, "exclude": "nothing"}
    whole, *found = ask(loaded(shop.repository), plain, *({**plain, "filter": one} for one, _ in CONDITIONS))
    order = [item["id"] for item in whole.json()["items"]]
    for response, (filter_, passes) in zip(found, CONDITIONS, strict=True):
        assert response.status_code == 200, (filter_, response.text)
        allowed = passes(shop.features)
        assert [item["id"] for item in response.json()["items"]] == [node for node in order if allowed[node]], filter_


def test_lists_find_as_many_as_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that lie in lists far from the query."""
    monkeypatch.setattr(building, "MOST_EXACT_BYTES", 0)
    made = shop_in(tmp_path)
    made.keep(lambda kind: kind)
    plain = {"node": 17, "exclude": "nothing"}
    filters: list[dict[str, Any]] = [{"price": {"below": limit}} for limit in (3, 10, 30, 90)]
    whole, *found = ask(
        loaded(made.repository), {**plain, "count": 1000}, *({**plain, "filter": one} for one in filters)
    )
    assert whole.json()["index"]["kind"] == "Approximate"
    for response, filter_ in zip(found, filters, strict=True):
        ids = [item["id"] for item in response.json()["items"]]
        allowed = made.features[:, 0] < filter_["price"]["below"]
        allowed[17] = False
        assert len(ids) == min(10, np.count_nonzero(allowed))
        assert allowed[ids].all()


def test_sparse_columns_and_columns_without_names(tmp_path: Path) -> None:
    made = shop_in(tmp_path)
    thin = np.where(made.features > 0.5, made.features, 0)
    made.keep(lambda kind: replace(kind, features=sp.csr_array(thin), feature_columns=()))
    bodies = [
        {"node": 3, "count": 1000, "exclude": "nothing", "filter": {"4": {"above": 1}}},
        {"node": 3, "count": 1000, "exclude": "nothing", "filter": {"4": {"equals": 0}}},
        {"node": 3, "filter": {"7": {"equals": 0}}},
    ]
    above, zero, unknown = ask(loaded(made.repository), *bodies)
    assert {item["id"] for item in above.json()["items"]} == {*np.flatnonzero(thin[:, 4] > 1).tolist()} - {3}
    assert {item["id"] for item in zero.json()["items"]} == {*np.flatnonzero(thin[:, 4] == 0).tolist()} - {3}
    assert "features are columns without names, called 0 to 6" in unknown.json()["error"]["message"]


REFUSED: list[tuple[Any, str, str, str]] = [
    ({"colour": {"equals": 1}}, "UnknownColumn", "filter.colour",
     '"colour" is no feature of nodes; features are price, brand, labels, vector[0], in stock'),
    ({"vector": {"below": 1}}, "InvalidValue", "filter.vector", "the column has lists of 3 numbers; name one, as"),
    ({"vector[3]": {"below": 1}}, "UnknownColumn", "filter.vector[3]", "is no feature of nodes"),
    ({"price": {"below": "cheap"}}, "InvalidType", "filter.price.below", 'expected a number, got "cheap"; give a'),
    ({"price": {"below": True}}, "InvalidType", "filter.price.below", "expected a number, got true"),
    ({"price": {"equals": "5"}}, "InvalidType", "filter.price.equals", "expected a number, true or false, got \"5\""),
    ({"brand": {"oneOf": [1, "red"]}}, "InvalidType", "filter.brand.oneOf[1]", 'a number, true or false, got "red"'),
    ({"brand": {"oneOf": []}}, "InvalidValue", "filter.brand", "oneOf is an empty list"),
    ({"price": {"between": [1]}}, "InvalidType", "filter.price.between", "expected a pair"),
    ({"price": {"between": [3, 1]}}, "InvalidValue", "filter.price", "no number is in the range from 3 to 1"),
    ({"price": {"above": 5, "below": 5}}, "InvalidValue", "filter.price", "no number is in the range from 5 to 5"),
    ({"price": {}}, "InvalidValue", "filter.price", "it says nothing of the column; give one or several of below"),
    ({"brand": {"equals": 1}, "price": {"less": 5}}, "UnknownField", "filter.price.less",
     "there is no such field; known are below, above, atLeast, atMost, between, equals, oneOf"),
    ([], "InvalidType", "filter", "expected an object"),
    ("price<20", "InvalidType", "filter", 'got "price<20"; give an object with labels, nodes, or columns'),
    ({"price": 20}, "InvalidType", "filter.price", "expected a list or an object, got 20"),
    ({"price": [20]}, "UnknownField", "filter.price", "is a list, and labels and nodes alone are"),
    ({"price": {"below": None}}, "InvalidValue", "filter.price", "it says nothing of the column"),
    ({"price": {"below": {"below": {"below": 1}}}}, "InvalidType", "filter.price.below", 'got {"below":{"below":1}}'),
    ({"price": {"between": [[1], [2]]}}, "InvalidType", "filter.price.between[0]", "expected a number, got [1]"),
    ({"price": {"equals": 5, "oneOf": [6]}}, "InvalidValue", "filter.price", "no number that equals or oneOf gives"),
    ({"brand": {"oneOf": [1, 9], "below": 1}}, "InvalidValue", "filter.brand", "no number that equals or oneOf gives"),
    ({"nodes": [1, NODES]}, "UnknownNode", "filter.nodes[1]", f"node {NODES} is not in the graph"),
    ({"nodes": [1.5]}, "InvalidType", "filter.nodes[0]", "expected an integer, got 1.5"),
    ({"labels": [99]}, "UnknownLabel", "filter.labels[0]", "99 is none of the graph's classes"),
    ({"brand": {"oneOf": [1] * 262_145}}, "InvalidValue", "filter.brand.oneOf", "262,145 values, where 262,144 may be"),
    ({"nodes": [1] * 600_000}, "InvalidValue", "filter", "more than 524,288 values, where 262,144 may be"),
]  # fmt: skip


def test_filters_that_are_wrong_are_refused_by_sentences_that_name_them(shop: Shop) -> None:
    responses = ask(loaded(shop.repository), *({"node": 1, "filter": filter_} for filter_, *_ in REFUSED))
    for response, (filter_, code, field, words) in zip(responses, REFUSED, strict=True):
        told = response.json()["error"]
        assert (response.status_code, told["code"], told.get("field")) == (400, code, field), (filter_, told)
        assert words in told["message"], (filter_, told)


OF_NO_COLUMN = [
    {"below": "cheap"}, {"equals": "red"}, {"oneOf": ["red", "blue"]}, {"between": ["a", "b"]}, {"less": 5}, {}, "red",
    20, [20], None, {"equals": 5, "oneOf": [6]}, {"between": [3, 1]}, {"below": True},
]  # fmt: skip
"""What may be said of a column, all wrong."""


@pytest.mark.parametrize("where", ["body", "parameter"])
def test_a_column_that_is_no_feature_is_told_before_what_is_said_of_it(shop: Shop, where: str) -> None:
    """As of texts of the source, which are no features: another value than a text would not be right either."""
    filters = [{"labels": {"below": 1}, "colour": said} for said in OF_NO_COLUMN]
    served, node = loaded(shop.repository), {"name": "node", "datatype": "INT64", "shape": [1], "data": [1]}

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(served)
            path = f"/v2/models/{client.model.service}.recommend/infer"
            for one in filters:
                if where == "body":
                    told = (await client.http.post("/v1/recommend", json={"node": 1, "filter": one})).json()["error"]
                    assert (told["code"], told["field"]) == ("UnknownColumn", "filter.colour"), one
                    message = told["message"]
                else:
                    body = {"inputs": [node], "parameters": {"filter": json.dumps(one)}}
                    message = (await client.http.post(path, json=body)).json()["error"]
                assert '"colour" is no feature of nodes; features are price, brand, labels, vector[0], in' in message

    asyncio.run(scenario())


NOT_JSON = [
    ('{"price": {"below": NaN}}', "filter", 'not JSON: "{'),
    ('{"price": {"below": 1e999}}', "filter.price.below", "the number is out of range"),
    ('{"price": ' * 2000 + "1" + "}" * 2000, "filter.price", "there is no such field"),
]


def test_filters_in_texts_are_refused_by_the_same_sentences(shop: Shop) -> None:
    """As a parameter of the Open Inference Protocol."""
    texts = [(json.dumps(filter_), field, words) for filter_, _, field, words in REFUSED] + NOT_JSON
    node = {"name": "node", "datatype": "INT64", "shape": [1], "data": [1]}

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(loaded(shop.repository))
            path = f"/v2/models/{client.model.service}.recommend/infer"
            for text, field, words in texts:
                response = await client.http.post(path, json={"inputs": [node], "parameters": {"filter": text}})
                assert response.status_code == 400, text[:80]
                assert response.json()["error"].removeprefix("parameters.").startswith(f"{field}: "), response.text
                assert words in response.json()["error"]

    asyncio.run(scenario())


def test_an_index_without_columns_is_filtered_by_labels_and_nodes_alone(tmp_path: Path) -> None:
    made = shop_in(tmp_path)
    made.keep()
    bodies: list[dict[str, Any]] = [
        {"node": 1, "filter": {"price": {"below": 20}}},
        {"node": 1, "filter": {"nodes": [5]}},
    ]
    refused, by_nodes = ask(loaded(made.repository), *bodies)
    told = refused.json()["error"]
    assert (refused.status_code, told["code"], told["field"]) == (400, "NoRecommendations", "filter")
    assert "was made without columns of its nodes" in told["message"]
    assert by_nodes.status_code == 200

    def changed(_: NodeType) -> NodeType:
        raise InputError("spec.graph.source", "holds another graph", "put it back")

    made.keep(changed)
    (refused,) = ask(loaded(made.repository), bodies[0])
    assert "could not be read: spec.graph.source: holds another graph" in refused.json()["error"]["message"]
    made.keep(lambda kind: replace(kind, nodes=NODES + 1))
    (refused,) = ask(loaded(made.repository), bodies[0])
    assert "its source has 121 nodes of type" in refused.json()["error"]["message"]
    made.keep(lambda kind: kind)  # what could not be read is read again
    (found,) = ask(loaded(made.repository), bodies[0])
    assert found.status_code == 200


def test_damaged_columns_are_told_where_a_filter_needs_them(tmp_path: Path) -> None:
    made = shop_in(tmp_path)
    made.keep(lambda kind: kind)
    served = loaded(made.repository)
    file = columns_folder(made.folder, served.compute.indexes[0].part) / "columns.npy"
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    plain, filtered = ask(loaded(made.repository), {"node": 1}, {"node": 1, "filter": {"price": {"below": 20}}})
    assert plain.status_code == 200
    assert "is not what was written; delete" in filtered.json()["error"]["message"]


def test_new_nodes_and_those_that_changed_pass_by_what_they_have_now(shop: Shop) -> None:
    opened = load_revision(shop.repository, shop.revision, ROOM_BYTES)
    replica = LivingRevision(opened, ROOM_BYTES, keeps_features=True)
    revision = served_revision(opened, replica)
    cheap = np.flatnonzero(shop.features[:, 0] < 20)
    dear = np.flatnonzero(shop.features[:, 0] >= 20)
    counts = ChangeCounts(new_nodes=2, overrides=2, removed_nodes=1)
    ids = IntegerIds(np.array([NODES, NODES + 1, cheap[0], dear[0], cheap[1]]))
    rows = np.ones((4, FEATURES), np.float32)
    rows[:, 0] = [5, 50, 60, 6]
    again = np.full((1, FEATURES), np.nan, np.float32)
    again[0, 1] = 3  # keeps its price

    async def scenario() -> dict[str, Any]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            body = {"node": int(dear[1]), "count": 1000, "exclude": "nothing", "filter": {"price": {"below": 20}}}
            await asyncio.to_thread(replica.apply, 1, [ChangeBatch(counts, ids, rows)])
            override = ChangeBatch(ChangeCounts(overrides=1), IntegerIds(np.array([dear[0]])), again)
            await asyncio.to_thread(replica.apply, 2, [override])
            found = await followed(client, body, 2)
            gone = await client.http.post("/v1/recommend", json={**body, "filter": {"nodes": [NODES, int(cheap[1])]}})
            return {**found, "refused": gone.json()["error"]}

    told = asyncio.run(scenario())
    assert (told["refused"]["code"], told["refused"]["field"]) == ("UnknownNode", "filter.nodes[1]")
    wanted = {*cheap.tolist(), NODES, int(dear[0])} - {int(cheap[0]), int(cheap[1])}
    assert {item["id"] for item in told["items"]} == wanted
    assert replica.delta_bytes > replica.drafting.memory.nbytes


def test_a_worker_that_kept_nothing_of_changes_says_so(shop: Shop) -> None:
    opened = load_revision(shop.repository, shop.revision, ROOM_BYTES)
    revision = served_revision(opened, LivingRevision(opened, ROOM_BYTES))
    (response,) = ask(revision, {"node": 1, "filter": {"price": {"below": 20}}})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "NoRecommendations")
    assert "start the worker anew" in response.json()["error"]["message"]


def test_columns_of_a_type_are_read_from_the_source_also_where_the_model_reads_none(tmp_path: Path) -> None:
    service = service_of(of_users(tmp_path))
    repository = Repository(tmp_path / "repository", "default", "shop")
    manifest = generate(service, repository, silent)
    publish_embeddings(
        repository, "default/shop", manifest.revision, None, {}, "a test", silent,
        types_of=lambda made: source_types(service, repository, made, silent),
    )  # fmt: skip
    (kind,) = [one for one in source_types(service, repository, manifest, silent) if one.name == "user"]
    assert isinstance(kind.features, np.ndarray)
    body = {"node": "item/3", "count": 1000, "exclude": "nothing", "filter": {"1": {"above": 0}}}
    users, items = ask(
        served_revision(load_revision(repository, manifest.revision)),
        body,
        {**body, "node": "user/3", "filter": {"9": {"above": 0}}},
    )
    served = served_revision(load_revision(repository, manifest.revision))
    of_none, of_other = ask(served, *({**body, "filter": {name: {"equals": "red"}}} for name in ("colour", "3")))
    assert of_none.json()["error"]["code"] == "UnknownColumn"
    assert (
        '"colour" is no feature of nodes of type user or item; of user, features are'
        in (of_none.json()["error"]["message"])
    )
    assert of_other.json()["error"]["code"] == "InvalidType", "users have it"
    wanted = {f"user/{place}" for place in np.flatnonzero(kind.features[:, 1] > 0)}
    assert {item["id"] for item in users.json()["items"]} == wanted
    assert '"9" is no feature of nodes of type item' in items.json()["error"]["message"]


def test_nodes_of_a_model_that_reads_no_features_keep_their_columns_through_compaction(tmp_path: Path) -> None:
    """Twice, the second time from a graph that has numbered nodes anew."""
    service = Service(tmp_path, service_of(of_users(tmp_path)))
    (kind,) = [
        one for one in source_types(service.service, service.repository, service.manifest, silent) if one.name == "user"
    ]
    assert isinstance(kind.features, np.ndarray)
    passing = [f"user/{place}" for place in np.flatnonzero(kind.features[:, 1] > 0)]
    for left, came in ((passing[0], "user/900"), (passing[2], "user/901")):
        passing.remove(left)
        service.write(service.opened(), [typed_batch([came], [(came, "buys", "item/3")], [], [left])])
        service.compact()
        publish_embeddings(
            service.repository, "default/shop", service.manifest.revision, None, {}, "a test", silent,
            types_of=lambda made: types_with_columns(service.service, service.repository, made, silent),
        )  # fmt: skip
        loaded = load_revision(service.repository, service.manifest.revision)
        body = {"node": "item/3", "count": 1000, "exclude": "nothing"}
        every, filtered = ask(served_revision(loaded), body, {**body, "filter": {"1": {"above": 0}}})
        assert came in {item["id"] for item in every.json()["items"]}
        assert filtered.status_code == 200, filtered.text
        assert {item["id"] for item in filtered.json()["items"]} == {*passing}
