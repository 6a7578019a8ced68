"""Requests that call nodes, and answers that call classes, as the graph's source does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from fastapi.openapi.models import OpenAPI
from tests.support.serving.serving import Client, FakeWorker, running, service

from gnnserve_worker.graph.ids import NodeIds, integer_ids, lay_out, string_ids

LONG = "x" * 100_000
NAMES = ("user-17", "user-3", "", " user-3", "a,b]", "17", '"quoted"', "Zoë", "Zoe\u0308", "𝄞", "a\0b", LONG)
INTEGERS = (10**12, -5, 0, 7, 2**63 - 1, -(2**63))
BINARY = {"content-type": "application/octet-stream"}


def by_name(**fields: Any) -> FakeWorker:
    return FakeWorker(nodes=len(NAMES), ids=string_ids(*lay_out(NAMES)), **fields)


def by_integer(**fields: Any) -> FakeWorker:
    return FakeWorker(nodes=len(INTEGERS), ids=integer_ids(np.array(INTEGERS)), **fields)


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker, **of: Any) -> None:
    async def run() -> None:
        async with running(worker, service(**of)) as client:
            await scenario(client)

    asyncio.run(run())


def error_of(response: httpx.Response) -> tuple[int, str, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error.get("field"), error["message"]


async def positions_of(client: Client, nodes: Any) -> list[int]:
    """What the worker computed: the fake one's embeddings are positions."""
    response = await client.predict(nodes, **{"return": ["embeddings"]})
    assert response.status_code == 200, response.text
    return [int(row[0]) for row in response.json()["embeddings"]]


# Ids


@pytest.mark.parametrize(
    ("worker", "ids"), [(by_name, NAMES), (by_integer, INTEGERS)], ids=["texts", "integers of the source"]
)
def test_nodes_are_found_by_their_own_ids_and_answers_keep_the_order(
    worker: Callable[[], FakeWorker], ids: tuple[Any, ...]
) -> None:
    async def scenario(client: Client) -> None:
        assert await positions_of(client, ids) == list(range(len(ids)))
        order = [3, 0, 3, len(ids) - 1, 1] * 20
        assert await positions_of(client, [ids[position] for position in order]) == order
        for position, id_ in enumerate(ids):
            assert await positions_of(client, [id_]) == [position]

    on_worker(scenario, worker())


@pytest.mark.parametrize("query", ["", "?return=labels"])
def test_integers_of_the_source_have_a_binary_form(query: str) -> None:
    async def scenario(client: Client) -> None:
        body = np.array([INTEGERS[3], INTEGERS[0], INTEGERS[5]], "<i8").tobytes()
        response = await client.http.post("/v1/predict" + query, content=body, headers=BINARY)
        assert response.status_code == 200
        if query:
            assert np.frombuffer(response.content, "<i8").tolist() == [40, 10, 20]
        else:
            scores = np.frombuffer(response.content, "<f4").reshape(3, 4)
            assert scores.argmax(axis=1).tolist() == [3, 0, 1]
        unknown = np.array([7, 8], "<i8").tobytes()
        refused = await client.http.post("/v1/predict", content=unknown, headers=BINARY)
        assert error_of(refused)[:3] == (400, "UnknownNode", "nodes[1]")

    on_worker(scenario, by_integer())


def test_texts_have_no_binary_form() -> None:
    async def scenario(client: Client) -> None:
        refused = await client.http.post("/v1/predict?return=labels", content=b"\0" * 8, headers=BINARY)
        assert error_of(refused) == (
            400,
            "NoBinaryNodes",
            "body",
            'body: the node ids of this graph are texts, and lists of them are no array; send JSON, such as {"nodes": '
            '["user-17"]}, or tensors of BYTES (Open Inference Protocol)',
        )

    on_worker(scenario, by_name())


@pytest.mark.parametrize(
    ("worker", "nodes", "field", "shown"),
    [
        pytest.param(by_name, ["user-17", "user-18"], "nodes[1]", '"user-18"', id="a text"),
        pytest.param(by_name, ["USER-17"], "nodes[0]", '"USER-17"', id="in capitals"),
        pytest.param(by_name, ["user-3", "user-3 "], "nodes[1]", '"user-3 "', id="a blank more"),
        pytest.param(by_name, ["Zoe\u0308", "Zoë", "Zo\u00eb\u0308"], "nodes[2]", '"Zoë\u0308"', id="another accent"),
        pytest.param(by_name, ["a\0"], "nodes[0]", '"a\\u0000"', id="half of an id with a NUL"),
        pytest.param(by_name, [LONG[1:]], "nodes[0]", '"' + "x" * 59 + "…", id="a text of 99,999 characters"),
        pytest.param(by_integer, [7, 8, 9], "nodes[1]", "8", id="an integer"),
        pytest.param(by_integer, [7] * 40 + [6], "nodes[40]", "6", id="the last of many"),
        pytest.param(by_integer, [7, 2**63, 8], "nodes[1]", "9223372036854775808", id="beyond 64 bits"),
        pytest.param(by_integer, [8, 2**63], "nodes[0]", "8", id="one before it"),
        pytest.param(by_integer, [2**63 - 2], "nodes[0]", "9223372036854775806", id="nearly an id"),
    ],
)
def test_an_unknown_id_is_named_with_its_place_and_where_ids_are(
    worker: Callable[[], FakeWorker], nodes: list[Any], field: str, shown: str
) -> None:
    async def scenario(client: Client) -> None:
        message = f"{field}: node {shown} is not in the graph; GET /v1/nodes lists its node ids"
        assert error_of(await client.predict(nodes)) == (400, "UnknownNode", field, message)
        assert (await client.predict([(NAMES if worker is by_name else INTEGERS)[0]])).status_code == 200

    on_worker(scenario, worker())


@pytest.mark.parametrize(
    ("worker", "body", "field", "problem"),
    [
        pytest.param(
            by_name,
            '{"nodes": ["user-3", 17]}',
            "nodes[1]",
            "expected text, got 17; node ids of this graph are texts: give a list of them; GET /v1/nodes lists them",
            id="a number for a text",
        ),
        pytest.param(
            by_integer,
            '{"nodes": ["7"]}',
            "nodes[0]",
            'expected an integer, got "7"; node ids of this graph are integers: give a list of them; GET /v1/nodes',
            id="a text for an integer",
        ),
        pytest.param(
            FakeWorker,
            '{"nodes": ["7"]}',
            "nodes[0]",
            'expected an integer, got "7"; give a list of node ids, each an integer from 0',
            id="a text for a position",
        ),
        pytest.param(by_name, '{"nodes": [null]}', "nodes[0]", "expected text, got null", id="nothing for a text"),
        pytest.param(by_name, '{"nodes": [["user-3"]]}', "nodes[0]", 'expected text, got ["user-3"]', id="a list"),
        pytest.param(by_name, '{"nodes": "user-3"}', "nodes", 'expected a list, got "user-3"', id="a text alone"),
        pytest.param(by_integer, '{"nodes": [7.5]}', "nodes[0]", "expected an integer, got 7.5", id="a fraction"),
    ],
)
def test_an_id_of_another_kind_is_refused_by_what_the_graph_has(
    worker: Callable[[], FakeWorker], body: str, field: str, problem: str
) -> None:
    async def scenario(client: Client) -> None:
        status, code, where, message = error_of(await client.http.post("/v1/predict", content=body))
        assert (status, code, where) == (400, "InvalidType", field)
        assert message.startswith(f"{field}: {problem}")

    on_worker(scenario, worker())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"nodes": ["\\ud800"]}', id="a lone surrogate"),
        pytest.param(b'{"nodes": ["\\ud800 user"]}', id="a lone surrogate before others"),
        pytest.param(b'{"nodes": ["\\udd1e\\ud834"]}', id="surrogates the wrong way round"),
        pytest.param(b'{"nodes": ["\xed\xa0\x80"]}', id="a surrogate in UTF-8"),
        pytest.param(b'{"nodes": ["\xff"]}', id="no UTF-8"),
        pytest.param(b'{"nodes": ["user-3]}', id="half a text"),
    ],
)
def test_text_that_is_none_is_refused_and_the_next_request_is_answered(body: bytes) -> None:
    async def scenario(client: Client) -> None:
        status, code, where, message = error_of(await client.http.post("/v1/predict", content=body))
        assert (status, code, where) == (400, "InvalidJson", "body")
        assert message.endswith('send an object such as {"nodes": ["user-17", "user-3"]}')
        assert await positions_of(client, ["𝄞", "user-3"]) == [9, 1]
        escaped = await client.http.post("/v1/predict", content=b'{"nodes":["\\ud834\\udd1e"],"return":["embeddings"]}')
        assert escaped.json()["embeddings"][0][0] == 9

    on_worker(scenario, by_name())


def test_very_many_texts_are_answered_in_their_order() -> None:
    names = [f"paper-{i:06}" for i in np.random.default_rng(0).permutation(20_000)]

    async def scenario(client: Client) -> None:
        asked = names[::-1]
        assert await positions_of(client, asked) == list(range(len(names)))[::-1]

    worker = FakeWorker(nodes=len(names), ids=string_ids(*lay_out(names)))
    on_worker(scenario, worker, max_queued_seeds=20_000)


# Labels

TEXTS = ("cat", 'a "dog"', "", "ü")


@pytest.mark.parametrize("nodes", [4, 20_000], ids=["in one piece", "in pieces"])
def test_labels_are_the_texts_of_the_source(nodes: int) -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.predict([i % 1000 for i in range(nodes)], **{"return": ["labels", "scores"]})).json()
        assert answer["labels"] == [TEXTS[i % 1000 % 4] for i in range(nodes)]

    on_worker(scenario, FakeWorker(classes=TEXTS), max_queued_seeds=20_000)


def test_several_labels_of_a_node_are_a_list_of_texts() -> None:
    class Pairs(FakeWorker):
        def infer(self, variant: str, seeds: np.ndarray, key: int, **options: Any) -> Any:
            inference = FakeWorker.infer(self, variant, seeds, key, **options)
            inference.scores[seeds == 1] = [1, -1, 2, 0]
            inference.scores[seeds == 2] = -1
            return inference

    async def scenario(client: Client) -> None:
        assert (await client.predict([1, 2, 0])).json()["labels"] == [["cat", ""], [], ["cat"]]

    on_worker(scenario, Pairs(multi_label=True, classes=TEXTS))


def test_labels_that_are_texts_have_no_binary_form_and_scores_have() -> None:
    async def scenario(client: Client) -> None:
        body = np.array([3], "<i8").tobytes()
        refused = await client.http.post("/v1/predict?return=labels", content=body, headers=BINARY)
        assert error_of(refused) == (
            400,
            "NoBinaryLabels",
            "return",
            "return: the labels of this graph are texts, and lists of them are no array; ask for scores, whose columns "
            "are `classes` of GET /v1/variants, or send JSON",
        )
        assert (await client.http.post("/v1/predict", content=body, headers=BINARY)).status_code == 200

    on_worker(scenario, FakeWorker(classes=TEXTS))


# What there is


@pytest.mark.parametrize(
    ("worker", "ids", "kind"),
    [
        pytest.param(lambda: FakeWorker(nodes=5), (0, 1, 2, 3, 4), "Positions", id="positions"),
        pytest.param(by_integer, INTEGERS, "Integers", id="integers"),
        pytest.param(by_name, NAMES, "Strings", id="texts"),
    ],
)
def test_nodes_are_listed_page_by_page(worker: Callable[[], FakeWorker], ids: tuple[Any, ...], kind: str) -> None:
    async def scenario(client: Client) -> None:
        async def page(query: str) -> Any:
            response = await client.http.get("/v1/nodes" + query)
            assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
            return response.json()

        whole = {"nodes": list(ids), "start": 0, "total": len(ids), "nodeIds": kind}
        assert await page("") == await page("?count=10000") == whole
        assert await page("?start=1&count=2") == {**whole, "nodes": list(ids[1:3]), "start": 1, "next": 3}
        assert await page(f"?start={len(ids) - 1}") == {**whole, "nodes": [ids[-1]], "start": len(ids) - 1}
        shown = str(ids[1])[-1]
        holding = [each for each in ids if shown in str(each)]
        assert await page(f"?contains={shown}") == {**whole, "nodes": holding}
        first = ids.index(holding[0]) + 1
        assert await page(f"?contains={shown}&count=1") == {
            **whole, "nodes": holding[:1], **({"next": first} if first < len(ids) else {}),
        }  # fmt: skip
        assert await page("?contains=nowhere") == {**whole, "nodes": []}
        assert await page("?start=999999999999999999") == {**whole, "nodes": [], "start": 999_999_999_999_999_999}
        assert await positions_of(client, (await page("?start=2&count=3"))["nodes"]) == [2, 3, 4]
        assert (await client.http.get("/v1/variants")).json()["nodeIds"] == kind

    on_worker(scenario, worker())


@pytest.mark.parametrize(
    ("query", "code", "field", "message"),
    [
        ("start=-1", "InvalidValue", "start", "start: '-1' is not possible here; give a whole number from 0"),
        ("start=", "InvalidValue", "start", "start: '' is not possible here; give a whole number from 0"),
        ("start=" + "9" * 5000, "InvalidValue", "start", f"start: '{'9' * 60}…' is not possible here; give a whole"),
        ("count=0", "InvalidValue", "count", "count: '0' is not possible here; give a whole number from 1 to 10,000"),
        ("count=10001", "InvalidValue", "count", "count: '10001' is not possible here; give a whole number from 1"),
        ("count=1e3", "InvalidValue", "count", "count: '1e3' is not possible here"),
        ("offset=3", "UnknownField", "offset", "offset: there is no such field; known are start, count, contains"),
    ],
)
def test_a_page_out_of_range_is_refused(query: str, code: str, field: str, message: str) -> None:
    async def scenario(client: Client) -> None:
        status, found, where, said = error_of(await client.http.get(f"/v1/nodes?{query}"))
        assert (status, found, where) == (400, code, field)
        assert said.startswith(message)

    on_worker(scenario, FakeWorker())


def test_variants_name_classes_as_the_source_does() -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.http.get("/v1/variants")).json()
        assert answer["classes"] == list(TEXTS)
        assert answer["provenance"]["source"] == "builtin Digits"

    on_worker(scenario, FakeWorker(classes=TEXTS))


@pytest.mark.parametrize(
    ("worker", "kinds"),
    [
        pytest.param(FakeWorker, [{"type": "integer", "minimum": 0, "maximum": 999}], id="positions"),
        pytest.param(lambda: by_integer(multi_label=True), [{"type": "integer"}], id="integers"),
        pytest.param(lambda: by_name(classes=TEXTS), [{"type": "string"}], id="texts"),
        pytest.param(lambda: FakeWorker(loaded=False), [{"type": "integer"}, {"type": "string"}], id="no graph yet"),
    ],
)
def test_openapi_is_that_of_the_served_graph(worker: Callable[[], FakeWorker], kinds: list[Any]) -> None:
    async def scenario(client: Client) -> None:
        document = (await client.http.get("/openapi.json")).json()
        OpenAPI.model_validate(document)
        schemas = document["components"]["schemas"]
        items = schemas["PredictRequest"]["properties"]["nodes"]["items"]
        assert items.get("anyOf", [items]) == kinds
        predict = document["paths"]["/v1/predict"]["post"]
        sent, answered = predict["requestBody"]["content"], predict["responses"]["200"]["content"]
        assert ("application/octet-stream" in sent) == ("application/octet-stream" in answered)
        assert ("application/octet-stream" in sent) == any(kind["type"] == "integer" for kind in kinds)
        for media in (sent["application/json"], answered["application/json"]):
            jsonschema.validate(media["example"], {**media["schema"], "components": document["components"]})
        if client.model.lane is not None:
            response = await client.http.post("/v1/predict", json=sent["application/json"]["example"])
            assert response.status_code == 200, response.text
            expected = {**answered["application/json"]["schema"], "components": document["components"]}
            jsonschema.validate(response.json(), expected)
            of_nodes = document["paths"]["/v1/nodes"]["get"]
            assert {parameter["name"] for parameter in of_nodes["parameters"]} == {"start", "count", "contains"}
            listed = of_nodes["responses"]["200"]["content"]["application/json"]["schema"]
            page = (await client.http.get("/v1/nodes")).json()
            jsonschema.validate(page, {**listed, "components": document["components"]})

    on_worker(scenario, worker())


def test_a_new_graph_brings_its_own_ids() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.predict([3])).status_code == 200
        client.switch(FakeWorker(name="another-1", nodes=len(NAMES), ids=named).revision())
        assert error_of(await client.predict([3]))[1] == "InvalidType"
        assert await positions_of(client, ["user-3"]) == [1]
        assert (await client.http.get("/v1/nodes?count=1")).json()["nodes"] == ["user-17"]
        nodes = (await client.http.get("/openapi.json")).json()["components"]["schemas"]["PredictRequest"]
        assert nodes["properties"]["nodes"]["items"] == {"type": "string"}

    named: NodeIds = string_ids(*lay_out(NAMES))
    on_worker(scenario, FakeWorker())


def test_a_list_of_texts_in_any_script_is_as_long_as_it_looks() -> None:
    """Of texts beside ASCII the lengths in bytes are found one by one."""
    text, offsets = lay_out(["", "a", "Zoë", "𝄞", ""])
    assert offsets.tolist() == [0, 0, 1, 5, 9, 9]
    assert text.tobytes().decode() == "aZoë𝄞"
    empty, none = lay_out([])
    assert (empty.tolist(), none.tolist()) == ([], [0])
    assert json.dumps(string_ids(*lay_out(NAMES)).shown(0, 3)) == '["user-17", "user-3", ""]'
