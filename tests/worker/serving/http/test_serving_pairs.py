"""Pairs over HTTP: scores and probabilities in both forms, each node computed once, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from tests.support.serving.client_worker import Brought, client_worker
from tests.support.serving.pair_workers import BINARY, NODES, links, of_links, on_worker
from tests.support.serving.questions import question_of
from tests.support.serving.serving import Client, FakeWorker

from gnnserve_api.files.links import EndManifest
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.http.labels import take_labels

JSON = JsonCodec()


def ask(worker: FakeWorker, body: Any, **of: Any) -> tuple[int, dict[str, Any]]:
    found: list[tuple[int, dict[str, Any]]] = []

    async def scenario(client: Client) -> None:
        response = await client.http.post("/v1/predict", json=body)
        found.append((response.status_code, response.json()))

    on_worker(worker, scenario, **of)
    return found[0]


def refused(worker: FakeWorker, body: Any, **of: Any) -> tuple[int, str, str, str]:
    status, answer = ask(worker, body, **of)
    error = answer["error"]
    return status, error["code"], error["field"], error["message"]


def test_scores_and_probabilities_come_in_the_order_of_the_pairs() -> None:
    worker = of_links()
    status, answer = ask(worker, {"pairs": [[3, 7], [3, 8], [7, 3]]})
    assert status == 200
    assert answer["scores"] == [4, 0, 4]
    assert answer["probabilities"] == pytest.approx([1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0)), 0.7310586])
    assert answer["variant"] == "x1"
    assert "labels" not in answer


def test_a_node_of_several_pairs_is_computed_once() -> None:
    worker = of_links()
    ask(worker, {"pairs": [[3, 7], [3, 8], [7, 3], [3, 3]]})
    assert [batch for _, batch in worker.batches] == [[3, 7, 8]]


def test_pairs_are_counted_before_they_are_read_also_beside_an_overlay() -> None:
    revision = of_links().revision()
    pairs = b'{"pairs": [[1, 2], [3, 4]]}'
    assert JSON.estimate_seeds(pairs, revision) == 4
    overlay = b'"overlay": {"nodes": [{"id": 9, "features": [1, 2, 3]}]}'
    assert JSON.estimate_seeds(b"{%b, %b" % (overlay, pairs[1:]), revision) == 4
    assert JSON.estimate_seeds(b"%b, %b}" % (pairs[:-1], overlay), revision) == 4


def test_one_output_alone_can_be_asked_for() -> None:
    assert {*ask(of_links(), {"pairs": [[1, 2]], "return": ["probabilities"]})[1]} == {
        "probabilities", "variant", "revision", "objectiveMet", "tierPermille",
    }  # fmt: skip


@pytest.mark.parametrize(("query", "wanted"), [("", [4, 0]), ("?return=probabilities", [0.7310586, 0.26894143])])
def test_arrays_of_pairs_get_an_array(query: str, wanted: list[float]) -> None:
    async def scenario(client: Client) -> None:
        content = np.array([[3, 7], [3, 8]], "<i8").tobytes()
        response = await client.http.post("/v1/predict" + query, content=content, headers=BINARY)
        assert response.status_code == 200
        assert response.headers["gnnserve-shape"] == "2"
        assert np.frombuffer(response.content, "<f4") == pytest.approx(wanted)

    on_worker(of_links(), scenario)


PAIRS = {"name": "pairs", "datatype": "INT64", "shape": [3, 2], "data": [[3, 7], [3, 8], [7, 3]]}


def test_pairs_are_tensors_of_the_open_inference_protocol() -> None:
    """What JSON of ours answers: by JSON, by bytes behind it, and by gRPC."""

    async def scenario(client: Client) -> None:
        path, wanted = f"/v2/models/{client.model.service}", [4, 0, 4]
        told = (await client.http.get(path)).json()
        assert (told["inputs"][0], [output["name"] for output in told["outputs"]]) == (
            {"name": "pairs", "datatype": "INT64", "shape": [-1, 2]}, ["scores", "probabilities", "embeddings"],
        )  # fmt: skip
        scores, probabilities = (await client.http.post(f"{path}/infer", json={"inputs": [PAIRS]})).json()["outputs"]
        assert (scores["datatype"], scores["shape"], scores["data"]) == ("FP32", [3], wanted)
        assert probabilities["data"] == pytest.approx([0.7310586, 1 / (1 + np.e), 0.7310586])
        ids = np.array(PAIRS["data"], "<i8").tobytes()
        raw = await client.http.post(
            f"{path}/infer", content=ids, headers={"inference-header-content-length": "0"}
        )  # fmt: skip
        behind = raw.content[int(raw.headers["inference-header-content-length"]) :]
        assert np.frombuffer(behind, "<f4")[:3].tolist() == wanted
        message = ModelInferRequest(
            model_name="links", inputs=[{"name": "pairs", "datatype": "INT64", "shape": [3, 2]}],
            raw_input_contents=[ids],
        )  # fmt: skip
        lane = client.model.lane
        assert lane is not None
        question = question_of(InferCodec(message.SerializeToString()), b"", lane.revision)
        assert (len(question.nodes), question.outputs) == (3, ("scores", "probabilities"))

    on_worker(of_links(), scenario)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"name": "nodes", "shape": [1], "data": [3]}, "inputs[0].name: this service scores pairs of nodes, and does"),
        ({"name": "pairs", "shape": [3], "data": [3, 7, 8]}, "pairs: shape [3], where [-1,2] is expected"),
        ({"name": "pairs", "shape": [0, 2], "data": []}, "pairs: the list is empty; name at least one pair"),
        (
            {"name": "pairs", "shape": [2, 2], "data": [3, 7, 8, NODES]},
            f"pairs[1][1]: node {NODES} is not in",
        ),
    ],
)
def test_wrong_tensors_of_pairs_are_told_by_their_places(tensor: dict[str, Any], words: str) -> None:
    async def scenario(client: Client) -> None:
        body = {"inputs": [{"datatype": "INT64", **tensor}]}
        response = await client.http.post(f"/v2/models/{client.model.service}/infer", json=body)
        assert (response.status_code, response.json()["error"].startswith(words)) == (400, True), response.json()

    on_worker(of_links(), scenario)


def test_changes_are_refused_where_the_graph_stays_with_how_to_turn_them_on() -> None:
    async def scenario(client: Client) -> None:
        for response in (
            await client.http.post("/v1/changes", json={"edges": [[1, 2]]}),
            await client.http.get("/v1/changes"),
            await client.http.post("/v1/predict", json={"pairs": [[1, 2]], "minOffset": 3}),
        ):
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (409, "NoUpdates")
            assert "turn changes on: `spec.updates" in error["message"]

    on_worker(of_links(), scenario)


def test_objectives_of_pairs_choose_variants() -> None:
    assert ask(of_links(), {"pairs": [[1, 2]], "objective": {"accuracyTolerancePermille": 1000}})[1]["variant"] != "x1"


def test_new_nodes_may_stand_at_both_ends() -> None:
    brought = Brought()
    worker = client_worker(brought, classes=(), links=links())
    worker.updates = None
    row = [0.0] * 64
    overlay = {"nodes": [{"id": 5000, "features": row}, {"id": 5001, "features": row}], "edges": [[3, 5000]]}
    status, answer = ask(worker, {"pairs": [[5000, 5001], [5000, 3]], "overlay": overlay})
    assert (status, len(answer["scores"])) == (200, 2)
    assert len(brought.overlays) == 1


@pytest.mark.parametrize(
    ("body", "code", "field", "message"),
    [
        ({"nodes": [1]}, "WrongTask", "nodes", "this service scores pairs of nodes, and does not classify nodes"),
        ({}, "MissingField", "pairs", "give a list of pairs of node ids"),
        ({"pairs": []}, "EmptyPairs", "pairs", "name at least one pair"),
        ({"pairs": [[1, 2], [3]]}, "InvalidType", "pairs[1]", "expected a pair, got [3]"),
        ({"pairs": [[1, 2, 3]]}, "InvalidType", "pairs[0]", "expected a pair, got [1,2,3]"),
        ({"pairs": [1, 2]}, "InvalidType", "pairs[0]", "give a pair of node ids"),
        ({"pairs": [[1, "a"]]}, "InvalidType", "pairs[0][1]", "node ids of this graph are integers"),
        ({"pairs": [[1, 2], [3, 1000]]}, "UnknownNode", "pairs[1][1]", "node 1000 is not in the graph"),
        ({"pairs": [[-1, 2]]}, "UnknownNode", "pairs[0][0]", "node -1 is not in the graph"),
        ({"pairs": [[1, 2]], "return": ["labels"]}, "InvalidValue", "return[0]", "give scores or probabilities"),
        ({"pairs": [[1, 2]], "return": []}, "InvalidValue", "return", "the list is empty"),
        ({"pairs": [[1, 2]], "nodes": [1]}, "WrongTask", "nodes", "send {"),
        ({"nodes": [1]}, "WrongTask", "nodes", '{"nodes": [0, 1], "return": ["embeddings"]}'),
        (
            {"pairs": [[1, 2]], "return": ["embeddings"]},
            "WrongTask",
            "pairs",
            "embeddings are of nodes, and not",
        ),
        ({"nodes": [1], "return": ["embeddings", "scores"]}, "InvalidValue", "return[1]", '"scores" is of pairs'),
        ({"return": ["embeddings"]}, "MissingField", "nodes", "give a list of node ids"),
        ({"nodes": [], "return": ["embeddings"]}, "EmptyNodes", "nodes", "name at least one node id"),
        ({"nodes": ["a"], "return": ["embeddings"]}, "InvalidType", "nodes[0]", "node ids of this graph are integers"),
        (
            {"nodes": [1, NODES], "return": ["embeddings"]},
            "UnknownNode",
            "nodes[1]",
            f"node {NODES} is not in the graph",
        ),
        ({"pairs": [[1, 2]] * 251}, "TooManyPairs", "pairs", "251 pairs, more than the 250"),
    ],
)
def test_wrong_requests_name_the_place_and_what_to_do(body: Any, code: str, field: str, message: str) -> None:
    found = refused(of_links(), body)
    assert found[1:3] == (code, field)
    assert message in found[3]


def rows_of(*nodes: int) -> list[list[float]]:
    """As the fake worker has them."""
    return [[1.0 if node % 4 == column else -1.0 for column in range(4)] for node in nodes]


EMBEDDED = {"name": "nodes", "datatype": "INT64", "shape": [3], "data": [3, 8, 3]}


def test_embeddings_of_nodes_are_the_rows_of_the_decoder_in_every_protocol() -> None:
    async def scenario(client: Client) -> None:
        wanted, ids = rows_of(3, 8, 3), np.array([3, 8, 3], "<i8").tobytes()
        told = await client.http.post("/v1/predict", json={"nodes": [3, 8, 3], "return": ["embeddings"]})
        assert told.json()["embeddings"] == wanted and "scores" not in told.json()
        array = await client.http.post("/v1/predict?return=embeddings", content=ids, headers=BINARY)
        assert array.headers["gnnserve-shape"] == "3,4"
        assert np.frombuffer(array.content, "<f4").reshape(3, 4).tolist() == wanted
        path = f"/v2/models/{client.model.service}"
        described = (await client.http.get(path)).json()
        assert described["inputs"][1] == {"name": "nodes", "datatype": "INT64", "shape": [-1]}
        assert described["outputs"][2] == {"name": "embeddings", "datatype": "FP32", "shape": [-1, 4]}
        outputs = [{"name": "embeddings"}]
        (found,) = (await client.http.post(f"{path}/infer", json={"inputs": [EMBEDDED], "outputs": outputs})).json()[
            "outputs"
        ]
        assert (found["datatype"], found["shape"], found["data"]) == ("FP32", [3, 4], np.ravel(wanted).tolist())
        named = {"name": "nodes", "datatype": "INT64", "shape": [3], "parameters": {"binary_data_size": len(ids)}}
        text = json.dumps(
            {"inputs": [named], "outputs": [{"name": "embeddings", "parameters": {"binary_data": True}}]}
        ).encode()
        behind = await client.http.post(
            f"{path}/infer", content=text + ids, headers={"inference-header-content-length": str(len(text))}
        )
        start = int(behind.headers["inference-header-content-length"])
        assert np.frombuffer(behind.content[start:], "<f4").reshape(3, 4).tolist() == wanted
        message = ModelInferRequest(
            model_name="links", inputs=[{"name": "nodes", "datatype": "INT64", "shape": [3]}], outputs=outputs,
            raw_input_contents=[ids],
        )  # fmt: skip
        lane = client.model.lane
        assert lane is not None
        question = question_of(InferCodec(message.SerializeToString()), b"", lane.revision)
        assert (question.nodes.tolist(), question.outputs) == ([3, 8, 3], ("embeddings",))

    on_worker(of_links(), scenario)


def test_large_embeddings_come_in_pieces_that_are_the_same_json() -> None:
    """65,536 numbers and more."""
    nodes = [place % NODES for place in range(20_000)]

    async def scenario(client: Client) -> None:
        told = await client.http.post("/v1/predict", json={"nodes": nodes, "return": ["embeddings"]})
        assert told.json()["embeddings"] == rows_of(*nodes)

    on_worker(of_links(), scenario, max_queued_seeds=32_768, max_seeds=4096)


def test_embeddings_and_scores_are_answered_beside_each_other() -> None:
    async def scenario(client: Client) -> None:
        both = await asyncio.gather(
            *(
                client.http.post("/v1/predict", json=body)
                for body in ({"nodes": [3], "return": ["embeddings"]}, {"pairs": [[3, 7]]})
            )
        )
        assert (both[0].json()["embeddings"], both[1].json()["scores"]) == (rows_of(3), [4])

    on_worker(of_links(), scenario)


@pytest.mark.parametrize(
    ("tensor", "outputs", "words"),
    [
        (PAIRS, ["embeddings"], "inputs[0].name: embeddings are of nodes, and not of pairs of them; send {"),
        (EMBEDDED, ["scores"], "inputs[0].name: this service scores pairs of nodes"),
        (EMBEDDED, ["embeddings", "scores"], 'outputs[1].name: "scores" is of pairs'),
        ({**EMBEDDED, "shape": [0], "data": []}, ["embeddings"], "nodes: the list is empty"),
        ({**EMBEDDED, "data": [3, 8, NODES]}, ["embeddings"], f"nodes[2]: node {NODES} is not in the graph"),
    ],
)
def test_wrong_tensors_of_embeddings_are_told(tensor: dict[str, Any], outputs: list[str], words: str) -> None:
    async def scenario(client: Client) -> None:
        body = {"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}
        response = await client.http.post(f"/v2/models/{client.model.service}/infer", json=body)
        assert (response.status_code, response.json()["error"].startswith(words)) == (400, True), response.json()

    on_worker(of_links(), scenario)


def test_pairs_to_a_service_that_classifies_nodes_are_told_so() -> None:
    status, code, field, message = refused(FakeWorker(), {"pairs": [[1, 2]]})
    assert (status, code, field) == (400, "WrongTask", "pairs")
    assert message == (
        'pairs: this service classifies nodes, and does not score pairs of them; send {"nodes": [0]}, or ask a service '
        "with task.links"
    )


def test_an_odd_number_of_ids_is_no_array_of_pairs() -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.post("/v1/predict", content=np.arange(3).tobytes(), headers=BINARY)
        assert response.status_code == 400
        assert "3 node ids are no whole number of pairs" in response.json()["error"]["message"]

    on_worker(of_links(), scenario)


def between_types() -> FakeWorker:
    ids = string_ids(*lay_out([*(f"user/{i}" for i in range(3)), *(f"item/{i}" for i in range(4))]))
    ends = EndManifest("user", 0, 3), EndManifest("item", 3, 7)
    return FakeWorker(classes=(), nodes=7, ids=ids, links=links(*ends, "user buys item"))


def test_ids_may_be_objects_where_links_join_types() -> None:
    pairs = [["user/2", "item/0"], ["user/1", "item/3"]]
    named = [[{"type": "user", "id": 2}, "item/0"], [{"type": "user", "id": "1"}, {"id": 3, "type": "item"}]]
    told = [ask(between_types(), {"pairs": given, "seed": 1}) for given in (pairs, named)]
    assert told[0] == told[1]
    assert told[0][0] == 200


@pytest.mark.parametrize(
    "given", [3, None, {"type": "user"}, {"type": 3, "id": 4}, {"type": "user", "id": True}, ["user", 3]], ids=repr
)
def test_an_id_without_a_type_is_told_by_its_place(given: Any) -> None:
    found = refused(between_types(), {"pairs": [["user/2", "item/0"], ["user/1", given]]})
    assert found[1:3] == ("InvalidType", "pairs[1][1]")
    assert found[3].endswith('name nodes as "user/0"')


def test_forms_of_ids_are_described_where_links_join_types() -> None:
    async def scenario(client: Client) -> None:
        schemas = (await client.http.get("/openapi.json")).json()["components"]["schemas"]
        asked = schemas["PairsRequest"]["properties"]
        one = asked["pairs"]["items"]["items"]["anyOf"]
        assert one == asked["nodes"]["items"]["anyOf"]
        assert [each["type"] for each in one] == ["string", "object"]
        assert one[1]["properties"]["type"]["enum"] == ["user", "item"]

    on_worker(between_types(), scenario)


def test_nodes_of_the_wrong_type_are_named() -> None:
    worker = between_types()
    assert ask(worker, {"pairs": [["user/2", "item/0"]]})[0] == 200
    assert refused(worker, {"pairs": [["2", "item/0"]]})[3].endswith(
        'nodes are named with their type, as in "user/0"; GET /v1/nodes lists its node ids'
    )
    _, code, field, message = refused(worker, {"pairs": [["user/2", "item/0"], ["user/1", "user/2"]]})
    assert (code, field) == ("WrongNodeType", "pairs[1][1]")
    embedded = {"nodes": ["user/2", "item/3", "user/2"], "return": ["embeddings"]}
    assert ask(worker, embedded)[1]["embeddings"] == rows_of(2, 6, 2)
    assert message == (
        'pairs[1][1]: node "user/2" is not of type item, which links of user buys item end at; give a node of '
        'type user and one of type item, such as {"pairs": [["user/0", "item/0"]]}'
    )


def test_the_graph_of_links_does_not_change() -> None:
    status, answer = ask(of_links(), {"pairs": [[1, 2]], "minOffset": 3})
    assert (status, answer["error"]["code"]) == (409, "NoUpdates")


def test_labels_are_of_pairs() -> None:
    watch: Any = None
    with pytest.raises(RequestError, match="nodes: this service scores pairs of nodes, and does not classify nodes"):
        take_labels(b'{"nodes": [1], "labels": [0]}', of_links().revision(), watch)


def test_a_service_of_links_describes_itself() -> None:
    async def scenario(client: Client) -> None:
        told = (await client.http.get("/v1/variants")).json()
        assert told["classes"] == []
        described = (await client.http.get("/openapi.json")).json()
        schemas = described["components"]["schemas"]
        assert {"PairsRequest", "PairsAnswer"} <= schemas.keys()
        assert "PredictRequest" not in schemas
        post = described["paths"]["/v1/predict"]["post"]
        request, answer = post["requestBody"], post["responses"]["200"]
        asked, given = (one["content"]["application/json"]["example"] for one in (request, answer))
        assert asked["pairs"] == [[0, 1]]
        answered = await client.http.post("/v1/predict", json=asked)
        assert answered.status_code == 200, answered.text
        assert answered.json().keys() == given.keys()
        assert [len(given[name]) for name in asked["return"]] == [1, 1]
        assert all(isinstance(given[name][0], float) for name in asked["return"])

    on_worker(of_links(), scenario)
