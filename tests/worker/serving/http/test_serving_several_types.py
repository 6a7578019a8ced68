"""Requests about graphs of several types: how they name nodes, and what they are told where they name others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.generation.recommended_links import of_users, published
from tests.support.graphs.several_types import shop
from tests.support.serving.serving import CLASSES, Client, FakeWorker, running, service
from tests.support.serving.typed_worker import PAPERS, TypedWorker

from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.serving.security.access import Access

WRITING = "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


def by_position() -> TypedWorker:
    return TypedWorker(nodes=20)


def by_text() -> TypedWorker:
    return TypedWorker(nodes=len(PAPERS), ids=string_ids(*lay_out(PAPERS)))


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker) -> None:
    async def run() -> None:
        async with running(worker, service(), write_access=Access((WRITING,))) as client:
            await scenario(client)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("worker", "nodes", "positions"),
    [
        pytest.param(by_position, [3, 5], [3, 5], id="positions of the type that is classified"),
        pytest.param(by_position, ["paper/3", {"type": "paper", "id": 5}, 7, {"type": "paper", "id": "9"}],
                     [3, 5, 7, 9], id="in every form"),
        pytest.param(by_text, ["plain", "paper/plain", {"type": "paper", "id": "p/1"}], [2, 2, 0], id="texts"),
        pytest.param(by_text, ["p/1", "paper/author/2"], [0, 1], id="texts with a slash of their own"),
    ],
)  # fmt: skip
def test_nodes_are_named_by_type_and_id(worker: Callable[[], TypedWorker], nodes: Any, positions: list[int]) -> None:
    async def scenario(client: Client) -> None:
        response = await client.predict(nodes, **{"return": ["embeddings"]})
        assert response.status_code == 200, response.text
        assert [int(row[0]) for row in response.json()["embeddings"]] == positions

    on_worker(scenario, worker())


@pytest.mark.parametrize(
    ("worker", "nodes", "message"),
    [
        pytest.param(
            by_position, [0, "author/70"], 'nodes[1]: "author/70" is of type author, and answers are about nodes of '
            'type paper; name nodes as "paper/0" or {"type": "paper", "id": 0}', id="another type",
        ),
        pytest.param(
            by_position, ["papr/3"], 'nodes[0]: "papr" is no type of nodes; types are paper, author', id="no type",
        ),
        pytest.param(by_position, ["3"], 'ids of type paper are integers, got "3"', id="a text without a type"),
        pytest.param(by_position, ["paper/three"], 'ids of type paper are integers, got "three"', id="no integer"),
        pytest.param(
            by_position, ["paper/20"], 'nodes[0]: node "paper/20" is not in the graph; ids of type paper are 0 to 19',
            id="beyond the last",
        ),
        pytest.param(by_text, ["paper/none"], 'node "paper/none" is not in the graph', id="no such text"),
        pytest.param(by_position, [{"id": 3}], 'expected an object with type and id, got {"id":3}', id="no type in it"),
        pytest.param(by_position, [1.5], "ids of type paper are integers, got 1.5", id="a fraction"),
        pytest.param(by_text, [3], "ids of type paper are texts, got 3", id="an integer where ids are texts"),

    ],
)  # fmt: skip
def test_what_is_wrong_with_an_id_is_told(worker: Callable[[], TypedWorker], nodes: Any, message: str) -> None:
    async def scenario(client: Client) -> None:
        response = await client.predict(nodes)
        assert response.status_code in (400, 404, 422), response.text
        assert message in response.json()["error"]["message"]

    on_worker(scenario, worker())


def test_labels_name_nodes_in_every_form() -> None:
    async def scenario(client: Client) -> None:
        nodes = [3, "paper/4", {"type": "paper", "id": 5}, {"type": "paper", "id": "6"}, {"type": "author", "id": 70},
                 "author/70", {"type": "editor", "id": 1}, "paper/20"]  # fmt: skip
        body = {"nodes": nodes, "labels": [CLASSES[0]] * len(nodes)}
        answer = (await client.http.post("/v1/labels", json=body, headers=HEADERS)).json()
        assert (answer["accepted"], answer["refused"]) == (4, 4)
        assert [one["index"] for one in answer["problems"]] == [4, 5, 6, 7]
        named = '; name nodes as "paper/0" or {"type": "paper", "id": 0}'
        of_papers = f"is of type author, and answers are about nodes of type paper{named}"
        assert [one["message"] for one in answer["problems"]] == [
            *[f'"author/70" {of_papers}'] * 2,
            f'"editor" is no type of nodes; types are paper, author{named}',
            'node "paper/20" is not in the graph; ids of type paper are 0 to 19',
        ]  # fmt: skip
        schemas = (await client.http.get("/openapi.json")).json()["components"]["schemas"]
        assert len(schemas["LabelsRequest"]["properties"]["nodes"]["items"]["anyOf"]) == 3

    on_worker(scenario, by_position())


def test_a_label_of_a_node_counts_once_however_it_is_named() -> None:
    async def scenario(client: Client) -> None:
        body: dict[str, Any] = {"nodes": ["paper/4", {"type": "paper", "id": 4}], "labels": [CLASSES[0]] * 2}
        body["times"] = ["2026-11-23T05:00:00Z"] * 2
        answer = (await client.http.post("/v1/labels", json=body, headers=HEADERS)).json()
        assert (answer["accepted"], answer["problems"][0]["reason"]) == (1, "Repeated")

    on_worker(scenario, by_position())


def test_large_requests_may_name_all_nodes_by_objects() -> None:
    nodes = [{"type": "paper", "id": node % 20} for node in range(140_000)]

    async def run() -> None:
        async with running(by_position(), service(max_seeds=65_536, max_queued_seeds=140_000)) as client:
            assert (await client.predict(nodes)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("worker", "datatype", "data", "positions"),
    [
        pytest.param(by_position, "INT64", [3, 5], [3, 5], id="integers"),
        pytest.param(by_position, "BYTES", ["paper/3", "paper/5"], [3, 5], id="integers with their type"),
        pytest.param(by_text, "BYTES", ["plain", "paper/p/1"], [2, 0], id="texts"),
    ],
)
def test_tensors_name_nodes_with_their_types(
    worker: Callable[[], TypedWorker], datatype: str, data: list[Any], positions: list[int]
) -> None:
    tensor = {"name": "nodes", "datatype": datatype, "shape": [2]}
    asked = {"inputs": [{**tensor, "data": data}], "outputs": [{"name": "embeddings"}]}
    texts = [str(each).encode() for each in data]
    laid_out = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    array = np.array(data, "<i8").tobytes() if datatype == "INT64" else laid_out
    behind = {**asked, "inputs": [{**tensor, "parameters": {"binary_data_size": len(array)}}]}
    head = json.dumps(behind).encode()

    async def scenario(client: Client) -> None:
        url, length = "/v2/models/digits/infer", {"inference-header-content-length": str(len(head))}
        for response in (
            await client.http.post(url, json=asked),
            await client.http.post(url, content=head + array, headers=length),
        ):
            assert response.status_code == 200, response.text
            (given,) = response.json()["outputs"]
            assert np.reshape(given["data"], given["shape"])[:, 0].tolist() == positions

    on_worker(scenario, worker())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param([("BYTES", ["author/70"])], 'nodes[0]: "author/70" is of type author', id="another type"),
        pytest.param([("BYTES", ["3"])], 'ids of type paper are integers, got "3"', id="no type"),
        pytest.param([("FP32", [3.0])], "nodes: datatype FP32, where INT64 is expected", id="another datatype"),
    ],
)
def test_what_is_wrong_with_a_tensor_of_nodes_is_told(inputs: list[tuple[str, list[Any]]], message: str) -> None:
    tensors = [{"name": "nodes", "datatype": kind, "shape": [len(data)], "data": data} for kind, data in inputs]

    async def scenario(client: Client) -> None:
        response = await client.http.post("/v2/models/digits/infer", json={"inputs": tensors})
        assert response.status_code == 400
        assert message in response.json()["error"]

    on_worker(scenario, by_position())


def test_arrays_name_nodes_of_the_classified_type_by_integers() -> None:
    binary = {"content-type": "application/octet-stream"}

    async def positions(client: Client) -> None:
        content = np.array([3, 5], "<i8").tobytes()
        response = await client.http.post("/v1/predict?return=embeddings", content=content, headers=binary)
        assert np.frombuffer(response.content, "<f4").reshape(2, -1)[:, 0].tolist() == [3, 5]

    async def texts(client: Client) -> None:
        response = await client.http.post("/v1/predict", content=bytes(8), headers=binary)
        assert response.json()["error"]["code"] == "NoBinaryNodes"

    on_worker(positions, by_position())
    on_worker(texts, by_text())


def test_nodes_of_each_type_and_the_types_are_listed() -> None:
    async def scenario(client: Client) -> None:
        own = (await client.http.get("/v1/nodes?count=2")).json()
        assert own == {"nodes": [0, 1], "start": 0, "total": 20, "nodeIds": "Positions", "type": "paper", "next": 2}
        authors = (await client.http.get("/v1/nodes?type=author")).json()
        assert (authors["nodes"], authors["total"], authors["nodeIds"]) == ([70, -3], 2, "Integers")
        of_one = (await client.http.get("/v1/nodes?type=author&contains=-")).json()
        assert (of_one["nodes"], of_one["type"]) == ([-3], "author")
        wrong = (await client.http.get("/v1/nodes?type=editor")).json()["error"]["message"]
        assert wrong == "type: 'editor' is no type of nodes; types are paper, author"
        told = (await client.http.get("/v1/variants")).json()
        assert [kind["name"] for kind in told["types"]] == ["paper", "author"]
        assert told["types"][1]["features"] is None
        assert told["relations"] == [
            {
                "source": "author", "name": "writes", "target": "paper", "edges": 5,
                "bothWays": False, "merges": False, "reverseOf": None,
            },
        ]  # fmt: skip

    on_worker(scenario, by_position())


def test_links_over_types_tell_types_and_relations_as_classes_do(tmp_path: Path) -> None:
    revision = published(tmp_path, of_users(tmp_path)).served()

    async def scenario() -> None:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            told = (await client.http.get("/v1/variants")).json()
        types = {kind["name"]: kind["nodes"] for kind in told["types"]}
        assert types == {name: int(one["num_nodes"]) for name, one in shop().nodes.items()}
        assert sum(types.values()) == told["nodes"]
        asked = {(one["source"], one["name"], one["target"]) for one in told["relations"] if one["reverseOf"] is None}
        assert ("user", "buys", "item") in asked
        assert "edgeFeatures" not in told

    asyncio.run(scenario())


def test_a_graph_of_one_type_says_nothing_of_types() -> None:
    async def scenario(client: Client) -> None:
        assert "types" not in (await client.http.get("/v1/variants")).json()
        assert "type" not in (await client.http.get("/v1/nodes")).json()
        refused = (await client.http.get("/v1/nodes?type=paper")).json()["error"]["message"]
        assert refused == "type: there is no such field; known are start, count, contains"

    on_worker(scenario, FakeWorker(nodes=5))
