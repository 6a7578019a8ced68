"""The binary form, and objectives in the head of a request in either form."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.serving.serving import Client, FakeWorker, running, service

BINARY = {"content-type": "application/octet-stream"}


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker | None = None, **of: Any) -> None:
    async def run() -> None:
        async with running(worker or FakeWorker(), service(**of)) as client:
            await scenario(client)

    asyncio.run(run())


async def ask(
    client: Client, nodes: list[int], query: str = "", headers: dict[str, str] | None = None
) -> httpx.Response:
    content = np.array(nodes, "<i8").tobytes()
    return await client.http.post("/v1/predict" + query, content=content, headers={**BINARY, **(headers or {})})


def error_of(response: httpx.Response) -> tuple[int, str, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error.get("field"), error["message"]


@pytest.mark.parametrize("query", ["", "?return=scores"])
def test_scores_come_as_float32_with_what_json_would_say_in_the_head(query: str) -> None:
    async def scenario(client: Client) -> None:
        response = await ask(client, [3, 8], query)
        assert response.status_code == 200
        scores = np.frombuffer(response.content, "<f4").reshape(2, 4)
        assert scores.tolist() == [[-1, -1, -1, 1], [1, -1, -1, -1]]
        assert {name: value for name, value in response.headers.items() if name != "server-timing"} == {
            "content-type": "application/octet-stream",
            "content-length": "32",
            "gnnserve-variant": "x1",
            "gnnserve-revision": "f0eae20c16c00ac0-1",
            "gnnserve-objective-met": "true",
            "gnnserve-shape": "2,4",
        }
        assert response.headers["server-timing"].startswith("queue;dur=")

    on_worker(scenario)


def test_embeddings_are_float32_and_labels_int64() -> None:
    async def scenario(client: Client) -> None:
        embeddings = await ask(client, [3, 8, 3], "?return=embeddings")
        assert embeddings.headers["gnnserve-shape"] == "3,3"
        assert np.frombuffer(embeddings.content, "<f4").tolist() == [3, 3, 3, 8, 8, 8, 3, 3, 3]
        labels = await ask(client, [3, 8, 3], "?return=labels")
        assert labels.headers["gnnserve-shape"] == "3"
        assert np.frombuffer(labels.content, "<i8").tolist() == [40, 10, 40]

    on_worker(scenario)


def test_request_of_many_batches_comes_back_whole() -> None:
    async def scenario(client: Client) -> None:
        nodes = [i % 1000 for i in range(250)]
        response = await ask(client, nodes, "?return=embeddings")
        assert np.frombuffer(response.content, "<f4").reshape(250, 3)[:, 0].tolist() == nodes

    on_worker(scenario)


@pytest.mark.parametrize("content_type", ["Application/Octet-Stream", "application/octet-stream; charset=binary"])
def test_content_type_is_read_as_http_has_it(content_type: str) -> None:
    async def scenario(client: Client) -> None:
        response = await ask(client, [3], headers={"content-type": content_type})
        assert response.headers["content-type"] == "application/octet-stream"

    on_worker(scenario)


@pytest.mark.parametrize(
    ("content", "query", "code", "field", "part"),
    [
        (b"1234567", "", "InvalidBinary", "body", "7 bytes are no whole number of node ids"),
        (b"", "", "EmptyNodes", "nodes", "name at least one"),
        (b"\0" * 8 * 501, "", "TooManyNodes", "nodes", "501 nodes"),
        (np.array([1, 1000], "<i8").tobytes(), "", "UnknownNode", "nodes[1]", "node 1000 is not in the graph"),
        (np.array([1, 2, -1], "<i8").tobytes(), "", "UnknownNode", "nodes[2]", "node -1 is not in the graph"),
        (np.array([-(2**63)], "<i8").tobytes(), "", "UnknownNode", "nodes[0]", "node -9223372036854775808"),
        (b"\0" * 8, "?return=score", "InvalidValue", "return", "score is not possible here"),
        (b"\0" * 8, "?return=", "InvalidValue", "return", "nothing is not possible here"),
        (b"\0" * 8, "?return=scores&return=labels", "InvalidValue", "return", "give one of scores"),
        (b"\0" * 8, "?returns=scores", "UnknownField", "returns", "known is return"),
        (b"\0" * 8, "?return=%ff%0d%0a", "InvalidValue", "return", "is not possible here"),
    ],
)
def test_bad_request_is_refused_in_json(content: bytes, query: str, code: str, field: str, part: str) -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.post("/v1/predict" + query, content=content, headers=BINARY)
        assert error_of(response)[:3] == (400, code, field)
        assert part in error_of(response)[3]
        assert "; " in error_of(response)[3], "a remedy"
        assert (await ask(client, [1])).status_code == 200

    on_worker(scenario)


def test_labels_of_a_multi_label_graph_are_no_array() -> None:
    async def scenario(client: Client) -> None:
        assert error_of(await ask(client, [1], "?return=labels"))[:3] == (400, "NoBinaryLabels", "return")
        assert (await ask(client, [1])).status_code == 200

    on_worker(scenario, FakeWorker(multi_label=True))


def test_labels_go_by_the_thresholds_of_the_variant() -> None:
    async def scenario(client: Client) -> None:
        labels = np.frombuffer((await ask(client, [0, 3], "?return=labels")).content, "<i8")
        assert labels.tolist() == [20, 20]

    on_worker(scenario, FakeWorker(thresholds=(0.0, -2.5, 0.0, 0.0)))


def test_network_without_a_hidden_layer_has_no_embeddings() -> None:
    async def scenario(client: Client) -> None:
        assert error_of(await ask(client, [1], "?return=embeddings"))[:3] == (400, "NoEmbeddings", "return")

    on_worker(scenario, FakeWorker(layers=1))


@pytest.mark.parametrize("name", ["return", "latencyMs", "variant"])
def test_json_has_no_parameters_and_says_so(name: str) -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.post(f"/v1/predict?{name}=scores", json={"nodes": [3]})
        assert error_of(response)[:3] == (400, "UnknownField", name)
        assert "JSON has its fields in the body: nodes, objective, strict, return" in response.text

    on_worker(scenario)


# Wishes in the head


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(
    ("headers", "variant", "met"),
    [
        pytest.param({}, "x1", "true", id="none"),
        pytest.param({"gnnserve-latency-ms": "1e6"}, "x1", "true", id="a latency"),
        pytest.param({"gnnserve-latency-ms": "1e6 \t"}, "x1", "true", id="blanks around it"),
        pytest.param({"gnnserve-latency-ms": "0.001"}, "x8", "false", id="a latency out of reach"),
        pytest.param({"Gnnserve-Accuracy-Tolerance-Permille": "10"}, "x4", "true", id="a tolerance"),
        pytest.param(
            {"gnnserve-accuracy-tolerance-permille": "10", "gnnserve-latency-ms": "0.001"}, "x4", "false", id="both"
        ),
    ],
)
def test_objective_may_stand_in_the_head(headers: dict[str, str], variant: str, met: str, binary: bool) -> None:
    async def scenario(client: Client) -> None:
        if binary:
            response = await ask(client, [1], headers=headers)
            found = (response.headers["gnnserve-variant"], response.headers["gnnserve-objective-met"])
        else:
            answer = (await client.http.post("/v1/predict", json={"nodes": [1]}, headers=headers)).json()
            found = (answer["variant"], "true" if answer["objectiveMet"] else "false")
        assert found == (variant, met)

    on_worker(scenario)


@pytest.mark.parametrize(("strict", "status"), [("true", 422), ("True", 422), ("false", 200)])
def test_strictness_may_stand_in_the_head(strict: str, status: int) -> None:
    async def scenario(client: Client) -> None:
        headers = {"gnnserve-latency-ms": "1", "gnnserve-strict": strict}
        assert (await ask(client, [1], headers=headers)).status_code == status

    on_worker(scenario)


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"objective": {"accuracyTolerancePermille": 30}}, {"gnnserve-accuracy-tolerance-permille": "10"}, "x8"),
        ({"objective": {"accuracyTolerancePermille": 10}}, {"gnnserve-latency-ms": "0.001"}, "x4"),
        ({"objective": None}, {"gnnserve-accuracy-tolerance-permille": "10"}, "x4"),
        ({"objective": {}}, {"gnnserve-accuracy-tolerance-permille": "10"}, "x4"),
        ({"strict": False}, {"gnnserve-latency-ms": "1", "gnnserve-strict": "true"}, "x8"),
        ({"strict": True}, {"gnnserve-latency-ms": "1", "gnnserve-strict": "false"}, None),
    ],
)
def test_what_the_body_says_goes_first(body: dict[str, Any], headers: dict[str, str], expected: str | None) -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.post("/v1/predict", json={"nodes": [1], **body}, headers=headers)
        assert response.json().get("variant") == expected
        assert response.status_code == (422 if expected is None else 200)

    on_worker(scenario)


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("gnnserve-latency-ms", "soon", "'soon' is not a number"),
        ("gnnserve-latency-ms", "1_0", "'1_0' is not a number"),
        ("gnnserve-latency-ms", "nan", "'nan' is not a number"),
        ("gnnserve-latency-ms", "1e999", "out of range"),
        ("gnnserve-latency-ms", "0", "0 is out of range"),
        ("gnnserve-accuracy-tolerance-permille", "-1", "-1 is out of range"),
        ("gnnserve-accuracy-tolerance-permille", "9" * 100, "is out of range"),
        ("gnnserve-strict", "1", "'1' is not possible here"),
    ],
)
def test_bad_header_is_named(name: str, value: str, part: str) -> None:
    async def scenario(client: Client) -> None:
        status, code, field, message = error_of(await ask(client, [1], headers={name: value}))
        assert (status, code, field) == (400, "InvalidValue", name)
        assert part in message
        assert "; " in message, "a remedy"

    on_worker(scenario)
