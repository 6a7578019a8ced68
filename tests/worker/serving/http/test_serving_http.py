"""The HTTP interface: what goes in, what comes out, and every refusal between; sockets are `test_serving_server`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from fastapi.openapi.models import OpenAPI
from tests.support.serving.http_errors import error_of, overload, samples_of, slow_worker
from tests.support.serving.serving import (
    CLASSES,
    Client,
    FakeWorker,
    accepted,
    profile,
    running,
    service,
    variant,
    with_compute,
)

from gnnserve_api.objective import Objective
from gnnserve_worker.asking.question import ENVOY_TIMEOUT_HEADER, OFFSET_WISH_HEADER, WISH_HEADERS
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.hooks import Begun, Respond
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.requests import Arrival


def on_worker(scenario: Callable[[Client], Awaitable[None]], worker: FakeWorker | None = None, **of: Any) -> None:
    async def run() -> None:
        async with running(worker or FakeWorker(), service(**of)) as client:
            await scenario(client)

    asyncio.run(run())


# Answers


def test_labels_alone_are_the_default_and_are_the_graphs_own() -> None:
    async def scenario(client: Client) -> None:
        response = await client.predict([3, 0, 3])
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.json() == {
            "labels": [40, 10, 40], "variant": "x1", "revision": "f0eae20c16c00ac0-1", "objectiveMet": True,
            "tierPermille": 0,
        }  # fmt: skip
        tolerant = await client.predict([3], objective={"accuracyTolerancePermille": 12})
        assert (tolerant.json()["variant"], tolerant.json()["tierPermille"]) == ("x4", 10)

    on_worker(scenario)


def test_scores_and_embeddings_come_when_asked_for() -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.predict([3, 8], **{"return": ["embeddings", "scores"]})).json()
        assert answer["scores"] == [[-1, -1, -1, 1], [1, -1, -1, -1]]
        assert answer["embeddings"] == [[3, 3, 3], [8, 8, 8]]
        assert "labels" not in answer

    on_worker(scenario)


def test_multi_label_answers_are_lists_of_classes_with_positive_scores() -> None:
    def infer_pairs(worker: FakeWorker) -> FakeWorker:
        plain = worker.infer

        class Pairs(FakeWorker):
            def infer(self, variant: str, seeds: np.ndarray, key: int, **options: Any) -> Any:
                inference = plain(variant, seeds, key, **options)
                inference.scores[seeds == 1] = [1, -1, 2, 0]
                inference.scores[seeds == 2] = -1
                return inference

        return Pairs(multi_label=True)

    async def scenario(client: Client) -> None:
        assert (await client.predict([0, 1, 2, 1])).json()["labels"] == [[10], [10, 30], [], [10, 30]]
        assert (await client.predict([2])).json()["labels"] == [[]]

    on_worker(scenario, infer_pairs(FakeWorker()))


def test_labels_go_by_the_thresholds_of_the_variant_and_scores_stay_as_they_are() -> None:
    """Scores are 1 for one class and -1 for the others."""

    async def scenario(client: Client) -> None:
        answer = (await client.predict([0, 1, 2], **{"return": ["labels", "scores"]})).json()
        assert answer["labels"] == [[20], [20], [20, 30]]
        assert answer["scores"][0] == [1, -1, -1, -1]

    on_worker(scenario, FakeWorker(multi_label=True, thresholds=(1.5, -1.5, 0.0, 0.0)))


@pytest.mark.parametrize("multi_label", [False, True])
def test_large_answers_are_streamed_and_equal_small_ones(multi_label: bool) -> None:
    async def scenario(client: Client) -> None:
        nodes = [i % 1000 for i in range(20_000)]
        response = await client.predict(nodes, **{"return": ["labels", "scores", "embeddings"]})
        assert "content-length" not in response.headers
        answer = response.json()
        small = (await client.predict(nodes[:50], **{"return": ["labels", "scores", "embeddings"]})).json()
        for name in ("labels", "scores", "embeddings"):
            assert len(answer[name]) == 20_000
            assert answer[name][:50] == small[name]
        assert answer["embeddings"][-1] == [999, 999, 999]

    on_worker(scenario, FakeWorker(multi_label=multi_label), max_seeds=10_000, max_queued_seeds=20_000)


@pytest.mark.parametrize(
    ("objective", "variant", "met"),
    [
        pytest.param({}, "x1", True, id="empty states nothing"),
        pytest.param(None, "x1", True, id="null states nothing"),
        pytest.param({"latencyMs": 3_600_000}, "x1", True, id="a latency alone"),
        pytest.param({"accuracyTolerancePermille": 10}, "x4", True, id="a tolerance alone"),
        pytest.param({"latencyMs": 3_600_000, "accuracyTolerancePermille": 10}, "x1", True, id="both"),
        pytest.param({"latencyMs": None, "accuracyTolerancePermille": 30}, "x8", True, id="null is absent"),
        pytest.param({"latencyMs": 0.001}, "x8", False, id="out of reach"),
    ],
)
def test_objective_decides_the_variant(objective: dict[str, Any] | None, variant: str, met: bool) -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.predict([1], objective=objective)).json()
        assert (answer["variant"], answer["objectiveMet"]) == (variant, met)

    on_worker(scenario)


def test_answer_carries_its_own_breakdown() -> None:
    async def scenario(client: Client) -> None:
        timing = (await client.predict([1])).headers["server-timing"]
        assert re.fullmatch(
            r"queue;dur=\d+\.\d{3}, sample;dur=0\.001, gather;dur=0\.002, compute;dur=0\.003", timing
        ), timing

    on_worker(scenario)


ALL_TIMES = {"gnnserve-timing": "all"}


def test_a_client_that_asks_is_told_reading_and_writing_too() -> None:
    async def scenario(client: Client) -> None:
        timing = (await client.http.post("/v1/predict", json={"nodes": [1]}, headers=ALL_TIMES)).headers[
            "server-timing"
        ]
        found = [entry.partition(";dur=") for entry in timing.split(", ")]
        assert [name for name, _, _ in found] == ["receive", "queue", "sample", "gather", "compute", "send"]
        assert all(float(duration) >= 0 for _, _, duration in found)

    on_worker(scenario)


def test_reading_is_not_waiting_for_a_client_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        predict = client.app.predict
        start, read = predict.start, predict.read

        def start_long_ago(head: Arrival, body: bytes, respond: Respond) -> Begun:
            return start(head, body, respond, monotonic_ms() - 5_000)

        monkeypatch.setattr(predict, "start", start_long_ago)
        monkeypatch.setattr(predict, "read", lambda arrival, now_ms: read(arrival, now_ms - 5_000))
        timing = (await client.http.post("/v1/predict", json={"nodes": [1]}, headers=ALL_TIMES)).headers[
            "server-timing"
        ]
        told = dict(entry.split(";dur=") for entry in timing.split(", "))
        assert float(told["receive"]) >= 5_000
        assert float(told["queue"]) < 5_000

    on_worker(scenario)


def test_times_that_are_not_there_are_refused() -> None:
    async def scenario(client: Client) -> None:
        refused = await client.http.post("/v1/predict", json={"nodes": [1]}, headers={"gnnserve-timing": "some"})
        assert refused.status_code == 400
        assert refused.json()["error"] == {
            "code": "InvalidValue",
            "field": "gnnserve-timing",
            "message": "gnnserve-timing: 'some' is not possible here; give all, or leave the header out",
        }

    on_worker(scenario)


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", None])
def test_content_type_is_not_insisted_on(content_type: str | None) -> None:
    async def scenario(client: Client) -> None:
        headers = {"content-type": content_type} if content_type else {}
        response = await client.http.post("/v1/predict", content=b'{"nodes":[1]}', headers=headers)
        assert response.json()["labels"] == [20]

    on_worker(scenario)


# Bad input

BAD_BODIES = [
    pytest.param(b"", "InvalidJson", "body", "body: it is empty; send an object such as", id="no body"),
    pytest.param(b" \n", "InvalidJson", "body", "it is empty", id="nothing but blanks"),
    pytest.param(b"{", "InvalidJson", "body", "truncated", id="half an object"),
    pytest.param(b'{"nodes":[1],}', "InvalidJson", "body", "byte 13", id="a trailing comma"),
    pytest.param(b'{"nodes":[1]} x', "InvalidJson", "body", "byte 15", id="text after the object"),
    pytest.param(b'{"nodes":[NaN]}', "InvalidJson", "body", "byte", id="NaN"),
    pytest.param(b"\xff\xfe{}", "InvalidJson", "body", "byte 0", id="another encoding"),
    pytest.param(b'{"nodes":[1],"\xff":2}', "InvalidJson", "body", "UTF-8", id="broken text"),
    pytest.param(b"[" * 100_000, "InvalidType", "body", "got [[[", id="endless nesting"),
    pytest.param(b"[1, 2]", "InvalidType", "body", "expected an object, got [1,2]", id="a list"),
    pytest.param(b"null", "InvalidType", "body", "got null", id="null"),
    pytest.param(b"{}", "MissingField", "nodes", "it is missing", id="no nodes"),
    pytest.param(b'{"nodes":[]}', "EmptyNodes", "nodes", "empty", id="an empty list"),
    pytest.param(b'{"nodes":null}', "InvalidType", "nodes", "expected a list, got null", id="null nodes"),
    pytest.param(b'{"nodes":7}', "InvalidType", "nodes", "expected a list, got 7", id="one node, no list"),
    pytest.param(b'{"nodes":[1,"2"]}', "InvalidType", "nodes[1]", 'an integer, got "2"', id="a text node"),
    pytest.param(b'{"nodes":[1,true]}', "InvalidType", "nodes[1]", "an integer, got true", id="a boolean node"),
    pytest.param(b'{"nodes":[2.5]}', "InvalidType", "nodes[0]", "an integer, got 2.5", id="a fractional node"),
    pytest.param(b'{"nodes":[1e2]}', "InvalidType", "nodes[0]", "an integer, got 1e2", id="a float node"),
    pytest.param(b'{"nodes":[[1]]}', "InvalidType", "nodes[0]", "an integer, got [1]", id="a nested list"),
    pytest.param(b'{"nodes":[1,-1]}', "UnknownNode", "nodes[1]", "node -1 is not in the graph", id="a negative node"),
    pytest.param(b'{"nodes":[1000]}', "UnknownNode", "nodes[0]", "node ids are 0 to 999", id="one past the last node"),
    pytest.param(b'{"nodes":[0,18446744073709551616]}', "UnknownNode", "nodes[1]", "0 to 999", id="a 65-bit node"),
    pytest.param(b'{"nodes":[' + b"9" * 400 + b"]}", "UnknownNode", "nodes[0]", "999… is not", id="a 400-digit node"),
    pytest.param(b'{"nodes":[' + b"9" * 9999 + b"]}", "InvalidValue", "nodes[0]", "out of range", id="9,999 digits"),
    pytest.param(b'{"nodes":[0,-9223372036854775809]}', "UnknownNode", "nodes[1]", "0 to 999", id="very negative"),
    pytest.param(json.dumps({"nodes": [0] * 501}).encode(), "TooManyNodes", "nodes", "501 nodes", id="too many nodes"),
    pytest.param(b'{"nodes":[1],"node":2}', "UnknownField", "node", "known are nodes", id="an unknown field"),
    pytest.param(b'{"nodes":[1],"strict":1}', "InvalidType", "strict", "true or false, got 1", id="a numeric strict"),
    pytest.param(b'{"nodes":[1],"objective":5}', "InvalidType", "objective", "an object, got 5", id="no object"),
    pytest.param(
        b'{"nodes":[1],"objective":{"latency":5}}', "UnknownField", "objective.latency", "known are latencyMs",
        id="an unknown objective",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"latencyMs":"5"}}', "InvalidType", "objective.latencyMs", 'a number, got "5"',
        id="a text latency",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"latencyMs":0}}', "InvalidValue", "objective.latencyMs", "0 is out of range",
        id="no latency at all",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"latencyMs":-3}}', "InvalidValue", "objective.latencyMs", "-3 is out of range",
        id="a negative latency",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"latencyMs":1e999}}', "InvalidValue", "objective.latencyMs", "out of range",
        id="an infinite latency",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"accuracyTolerancePermille":-1}}', "InvalidValue",
        "objective.accuracyTolerancePermille", "-1 is out of range", id="a negative tolerance",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"accuracyTolerancePermille":1001}}', "InvalidValue",
        "objective.accuracyTolerancePermille", "from 0 to 1,000", id="more than everything tolerated",
    ),
    pytest.param(
        b'{"nodes":[1],"objective":{"accuracyTolerancePermille":1000.0001}}', "InvalidValue",
        "objective.accuracyTolerancePermille", "1,000.0001 is out of range", id="a little more than everything",
    ),
    pytest.param(b'{"nodes":[1],"return":[]}', "InvalidValue", "return", "empty", id="nothing to return"),
    pytest.param(b'{"nodes":[1],"return":[5]}', "InvalidType", "return[0]", "text, got 5", id="a number to return"),
    pytest.param(b'{"nodes":[1],"return":"labels"}', "InvalidType", "return", "a list", id="return without a list"),
    pytest.param(
        b'{"nodes":[1],"return":["label"]}', "InvalidValue", "return[0]", '"label" is not possible', id="no such output"
    ),
    pytest.param(b'{" - at `$.nodes[9]`":1}', "UnknownField", "- at `$.nodes[9]", "no such", id="a misleading field"),
    pytest.param(b'{"a` - at `$.nodes[9]":1}', "UnknownField", "nodes[9].a", "no such", id="an even worse one"),
    pytest.param(b'{"' + b"x" * 9999 + b'":1}', "UnknownField", "x" * 60 + "…", "no such", id="a long field"),
    pytest.param(b'{"\\ud800":1}', "InvalidJson", "body", "", id="half a character"),
    pytest.param(
        b'{"nodes":[1],"return":["Expected - at `$.nodes[9]"]}', "InvalidValue", "return[0]", "is not possible",
        id="a misleading output",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code", "field", "part"), BAD_BODIES)
def test_bad_body_is_refused_by_field_and_value_and_the_next_request_is_answered(
    body: bytes, code: str, field: str, part: str
) -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.post("/v1/predict", content=body)
        error = error_of(response)
        assert (response.status_code, error["code"], error["field"]) == (400, code, field), error
        assert part.lower() in error["message"].lower()
        assert "; " in error["message"], "a remedy"
        assert len(error["message"]) < 400
        assert (await client.predict([1])).status_code == 200

    on_worker(scenario)


def test_embeddings_of_a_network_without_a_hidden_layer_are_refused() -> None:
    async def scenario(client: Client) -> None:
        response = await client.predict([1], **{"return": ["labels", "embeddings"]})
        error = error_of(response)
        assert (response.status_code, error["code"], error["field"]) == (400, "NoEmbeddings", "return[1]")
        assert (await client.predict([1], **{"return": ["scores"]})).status_code == 200

    on_worker(scenario, FakeWorker(layers=1))


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_huge_body_is_refused(chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    async def scenario(client: Client) -> None:
        content = pieces() if chunked else b" " * (MAX_BODY_BYTES + 1)
        response = await client.http.post("/v1/predict", content=content)
        assert (response.status_code, error_of(response)["code"]) == (413, "BodyTooLarge")
        assert (await client.predict([1])).status_code == 200

    on_worker(scenario)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_refused(method: str) -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.request(method, "/v1/predict")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert error_of(response)["code"] == "MethodNotAllowed"

    on_worker(scenario)


def test_unknown_paths_get_an_error_of_the_same_shape() -> None:
    async def scenario(client: Client) -> None:
        response = await client.http.get("/v1/predictions")
        assert (response.status_code, error_of(response)["code"]) == (404, "NotFound")
        assert "/v1/predictions" in error_of(response)["message"]

    on_worker(scenario)


# What cannot be met


def test_strict_request_that_no_variant_can_meet_gets_422() -> None:
    async def scenario(client: Client) -> None:
        response = await client.predict([1], objective={"latencyMs": 1}, strict=True)
        assert (response.status_code, error_of(response)["code"]) == (422, "ObjectiveInfeasible")
        assert "the fastest, x8, needs 2.02 ms" in error_of(response)["message"]
        assert "retry-after" not in response.headers

    on_worker(scenario)


def test_full_queue_gets_429_and_when_to_come_back() -> None:
    worker = FakeWorker()

    async def scenario(client: Client) -> None:
        worker.gate.clear()
        running_one = asyncio.create_task(client.predict([1]))
        await worker.batch_started()
        waiting_one = asyncio.create_task(client.predict([1] * 500))
        while client.engine.queued_seeds == 0:
            await asyncio.sleep(0)
        response = await client.predict([2])
        assert (response.status_code, error_of(response)["code"]) == (429, "QueueFull")
        assert int(response.headers["retry-after"]) >= 1
        worker.gate.set()
        assert [(await task).status_code for task in (running_one, waiting_one)] == [200, 200]
        assert (await client.predict([2])).status_code == 200

    on_worker(scenario, worker)


def test_deadline_out_of_reach_gets_429_while_requests_without_one_wait() -> None:
    worker = FakeWorker(profile=profile(variant("x1", 0.9, 60_000)))

    async def scenario(client: Client) -> None:
        worker.gate.clear()
        first = asyncio.create_task(client.predict([1]))
        await worker.batch_started()
        patient = asyncio.create_task(client.predict([1] * 400))
        while client.engine.queued_seeds == 0:
            await asyncio.sleep(0)
        refused = await client.predict([2], objective={"latencyMs": 90_000})
        assert (refused.status_code, error_of(refused)["code"]) == (429, "DeadlineOutOfReach")
        assert int(refused.headers["retry-after"]) >= 1
        worker.gate.set()
        assert [(await task).status_code for task in (first, patient)] == [200, 200]

    on_worker(scenario, worker)


def test_worker_without_a_revision_gets_503_wherever_it_would_need_one() -> None:
    async def scenario(client: Client) -> None:
        for response in (
            await client.predict([1]),
            await client.predict(["not even a node"]),
            await client.http.get("/v1/variants"),
            await client.http.get("/v1/route"),
        ):
            assert (response.status_code, error_of(response)["code"]) == (503, "Loading")
            assert response.headers["retry-after"] == "1"
        ready = await client.http.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "the worker is loading\n")
        for path in ("/healthz", "/metrics", "/docs", "/openapi.json"):
            assert (await client.http.get(path)).status_code == 200

    on_worker(scenario, FakeWorker(loaded=False))


def test_worker_without_a_revision_says_what_it_waits_for() -> None:
    async def scenario(client: Client) -> None:
        client.model.problem = "the ConfigMap default/digits-routing does not exist yet"
        expected = "the ConfigMap default/digits-routing does not exist yet"
        assert expected in error_of(await client.predict([1]))["message"]
        assert (await client.http.get("/readyz")).text == f"the worker is loading: {expected}\n"

    on_worker(scenario, FakeWorker(loaded=False))


def test_draining_worker_gets_503_while_it_finishes() -> None:
    worker = FakeWorker()

    async def scenario(client: Client) -> None:
        worker.gate.clear()
        accepted = asyncio.create_task(client.predict([1]))
        await worker.batch_started()
        client.engine.drain()
        response = await client.predict([2])
        assert (response.status_code, error_of(response)["code"]) == (503, "Draining")
        assert "retry-after" in response.headers
        assert (await client.http.get("/readyz")).text == "the worker is draining\n"
        worker.gate.set()
        assert (await accepted).status_code == 200

    on_worker(scenario, worker)


def test_error_of_ours_gets_500_with_an_id_and_no_details() -> None:
    def fail(_variant: str, seeds: np.ndarray) -> None:
        if 13 in seeds:
            raise ValueError("secret")

    async def scenario(client: Client) -> None:
        response = await client.predict([13])
        error = error_of(response)
        assert (response.status_code, error["code"]) == (500, "InternalError")
        assert re.search(r"under [0-9a-f]{16}$", error["message"])
        assert "secret" not in response.text
        assert (await client.predict([1])).status_code == 200

    on_worker(scenario, FakeWorker(fail=fail))


# Around it


def test_readiness_and_health_of_a_ready_worker() -> None:
    async def scenario(client: Client) -> None:
        assert [(await client.http.get(path)).status_code for path in ("/readyz", "/healthz")] == [200, 200]

    on_worker(scenario)


def test_variants_show_the_profile() -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.http.get("/v1/variants")).json()
        assert (answer["service"], answer["revision"], answer["profile"]["metric"]) == (
            "digits",
            "f0eae20c16c00ac0-1",
            "accuracy",
        )
        assert [(v["name"], v["validationAccuracy"]) for v in answer["profile"]["variants"]] == [
            ("x1", 0.90), ("x4", 0.89), ("x8", 0.87),
        ]  # fmt: skip
        assert [(tier["tolerancePermille"], tier["variant"]) for tier in answer["tiers"]] == [
            (0, "x1"), (10, "x4"), (30, "x8"),
        ]  # fmt: skip

    on_worker(scenario)


def test_route_names_the_base_variant_and_why() -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.http.get("/v1/route")).json()
        assert (answer["baseVariant"], answer["allowedVariants"]) == ("x4", ["x1", "x4"])
        assert answer["objective"] == {"latencyMs": None, "accuracyTolerancePermille": 10}
        assert "fastest" in answer["reason"]
        assert answer["batching"] == {"maxSeeds": 100, "maxQueuedSeeds": 500}
        assert answer["problem"] is None

    on_worker(scenario, objective={"accuracyTolerancePermille": 10})


def test_route_tells_why_what_is_declared_does_not_answer() -> None:
    async def scenario(client: Client) -> None:
        client.model.problem = "revision abc cannot be loaded: its table was altered"
        assert (await client.http.get("/v1/route")).json()["problem"] == client.model.problem
        assert (await client.http.get("/readyz")).status_code == 200

    on_worker(scenario)


def test_route_and_variants_name_the_device_and_the_route_what_is_the_matter_with_it() -> None:
    async def scenario(client: Client) -> None:
        route = (await client.http.get("/v1/route")).json()
        assert (route["device"], "deviceProblem" in route) == ("CPU", False)
        lane = client.model.lane
        assert lane is not None
        stats = DeviceStats("CPU", "no GPU is seen")
        served = with_compute(lane.revision, device_stats=lambda: stats)
        assert client.model.table is not None
        client.model.switch(served, client.model.table)
        route = (await client.http.get("/v1/route")).json()
        assert (route["device"], route["deviceProblem"]) == ("CPU", "no GPU is seen")
        assert b'gnnserve_device_info{device="CPU",service="digits"} 1.0' in (await client.http.get("/metrics")).content
        stats = DeviceStats("NVIDIA H200")
        for path in ("/v1/route", "/v1/variants"):
            assert (await client.http.get(path)).json()["device"] == "NVIDIA H200"

    on_worker(scenario)


def test_leaving_worker_answers_and_sends_clients_elsewhere() -> None:
    async def scenario(client: Client) -> None:
        assert "connection" not in (await client.predict([1])).headers
        client.app.leaving = True
        for response in (await client.predict([1]), await client.http.get("/v1/route")):
            assert (response.status_code, response.headers["connection"]) == (200, "close")
        bad = await client.predict([-1])
        assert (bad.status_code, bad.headers["connection"]) == (400, "close")
        ready = await client.http.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "the worker is about to drain\n")
        assert (await client.http.get("/healthz")).status_code == 200

    on_worker(scenario)


def test_metrics_tell_prometheus_what_happened() -> None:
    async def scenario(client: Client) -> None:
        await client.predict([1] * 150)
        await client.predict([1], objective={"accuracyTolerancePermille": 10})
        await client.predict([-1])
        await client.predict([1], objective={"latencyMs": 1}, strict=True)
        response = await client.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        samples = samples_of(response)
        assert samples["gnnserve_requests_total", "unbounded"] == 2
        assert samples["gnnserve_routing_info", "x1", "Adaptive"] == 1
        assert samples["gnnserve_cost_correction", "x8"] > 0
        assert samples["gnnserve_request_seconds_count", "x1"] == 1
        assert samples["gnnserve_request_seconds_count", "x4"] == 1
        assert samples["gnnserve_stage_seconds_count", "queue", "x1"] == 1
        assert samples["gnnserve_stage_seconds_count", "gather", "x1"] == 2
        assert samples["gnnserve_batches_total", "x1"] == 2
        assert samples["gnnserve_batch_seeds_total", "x1"] == 150
        assert samples["gnnserve_batch_seeds_squared_total", "x1"] == 100**2 + 50**2
        assert samples["gnnserve_batch_seconds_total", "x1"] > 0
        assert samples["gnnserve_batch_seed_seconds_total", "x1"] > samples["gnnserve_batch_seconds_total", "x1"]
        assert samples["gnnserve_offered_seeds_total",] == 152
        assert samples["gnnserve_errors_total", "UnknownNode"] == 1
        assert samples["gnnserve_errors_total", "ObjectiveInfeasible"] == 1
        assert samples["gnnserve_queue_seeds",] == 0
        assert samples["gnnserve_in_flight_requests",] == 0
        assert samples["gnnserve_variant_accuracy", "validation", "x4"] == 0.89
        assert samples["gnnserve_revision_info", "9f86d081884c7d65", "f0eae20c16c00ac0", "f0eae20c16c00ac0-1"] == 1

    on_worker(scenario)


def test_openapi_describes_the_predict_path_and_every_refusal() -> None:
    async def scenario(client: Client) -> None:
        document = (await client.http.get("/openapi.json")).json()
        OpenAPI.model_validate(document)
        assert {path for path in document["paths"] if not path.startswith("/v2")} == {
            "/v1/predict", "/v1/variants", "/v1/nodes", "/v1/route", "/v1/accuracy", "/v1/labels", "/v1/changes",
            "/v1/recommend", "/v1/explain", "/v1/history", "/healthz", "/readyz", "/metrics",
        }  # fmt: skip
        predict = document["paths"]["/v1/predict"]["post"]
        assert set(predict["responses"]) == {
            "200", "400", "405", "413", "415", "417", "422", "429", "431", "500", "501", "503", "504", "505",
        }  # fmt: skip
        parameters = {parameter["name"] for parameter in predict["parameters"]}
        # Of a graph that does not change no offset can be asked for; gateways send their header by themselves.
        described = WISH_HEADERS - {OFFSET_WISH_HEADER, ENVOY_TIMEOUT_HEADER}
        assert parameters == {"return", *(header.decode() for header in described)}
        assert set(predict["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
        binary = await client.http.post(
            "/v1/predict", content=b"\1" + b"\0" * 7, headers={"content-type": "application/octet-stream"}
        )
        described = {name.lower() for name in predict["responses"]["200"]["headers"]}
        assert described == {name for name in binary.headers if name.startswith(("gnnserve-", "server-"))}
        schemas = document["components"]["schemas"]
        references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
        assert references <= set(schemas)
        assert '"null"' not in json.dumps(schemas), "Swagger UI of the bundle reads OpenAPI 3.0"
        for content in (predict["requestBody"]["content"], predict["responses"]["200"]["content"]):
            media = content["application/json"]
            jsonschema.validate(media["example"], {**media["schema"], "components": document["components"]})
        answered = await client.http.post(
            "/v1/predict", json=predict["requestBody"]["content"]["application/json"]["example"]
        )
        assert answered.status_code == 200
        answer_schema = {**predict["responses"]["200"]["content"]["application/json"]["schema"]}
        jsonschema.validate(answered.json(), {**answer_schema, "components": document["components"]})

    on_worker(scenario)


def test_docs_need_no_network() -> None:
    async def scenario(client: Client) -> None:
        page = await client.http.get("/docs")
        assert page.status_code == 200
        assert "://" not in page.text
        for asset in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            response = await client.http.get("/" + asset)
            assert (response.status_code, len(response.content) > 500) == (200, True), asset

    on_worker(scenario)


def test_classes_are_those_of_the_graph() -> None:
    async def scenario(client: Client) -> None:
        answer = (await client.predict(list(range(len(CLASSES))))).json()
        assert answer["labels"] == list(CLASSES)

    on_worker(scenario)


# Overload


def test_refused_requests_are_not_even_read_but_counted() -> None:
    worker = slow_worker()

    async def scenario(client: Client) -> None:
        await overload(client, worker)
        before = samples_of(await client.http.get("/metrics"))
        unread = await client.http.post(
            "/v1/predict", content=b'{"return": ["labels", "scores"], "nodes": [' + b"1, " * 39 + b'?], "strict": 0, 1'
        )
        # Neither is an id with an escape, as programs write whatever is not ASCII.
        escaped = await client.http.post("/v1/predict", content=b'{"nodes": ["Zo\\u00eb"' + b", 1" * 39 + b"], 1")
        binary = await client.http.post(
            "/v1/predict", content=b"\xff" * 8 * 40, headers={"content-type": "application/octet-stream"}
        )
        overlays = [
            await client.http.post("/v1/predict", content=content, headers={"content-type": content_type})
            for content, content_type in (
                (b'{"nodes": [1' + b", 1" * 39 + b'], "overlay": {"edges": [[0, ?', "application/json"),
                (b"\x28" + b"\0" * 7 + b"\1" + b"\xff" * 8 * 50, "application/vnd.gnnserve.overlay"),
            )
        ]
        for response in (unread, escaped, binary, *overlays):
            assert response.status_code == 429
            assert error_of(response)["code"] == "DeadlineOutOfReach"
            assert int(response.headers["retry-after"]) >= 1
        after = samples_of(await client.http.get("/metrics"))
        for name, grown in (
            (("gnnserve_offered_seeds_total",), 200),
            (("gnnserve_requests_total", "refused"), 5),
            (("gnnserve_errors_total", "DeadlineOutOfReach"), 5),
            (("gnnserve_overlay_requests_total",), 2),
            (("gnnserve_overlay_edges_total",), 0),
        ):
            assert after[name] - before[name] == grown
        worker.gate.set()

    on_worker(scenario, worker, objective={"latencyMs": 30_000})


def test_texts_that_are_not_read_are_counted_with_commas_and_brackets_in_them() -> None:
    worker = slow_worker()
    worker.ids = string_ids(*lay_out([f"{i}" for i in range(worker.nodes)]))
    odd = ["a, b", "[c]", "e]", "d],", "nodes"] * 8

    async def overloaded(client: Client) -> None:
        worker.gate.clear()
        accepted(client.model, [1] * 100, Objective(accuracy_tolerance_permille=0))
        await worker.batch_started()
        assert error_of(await client.predict(["1"] * 40))["code"] == "DeadlineOutOfReach"
        for body in (
            json.dumps({"nodes": odd, "return": ["labels", "scores"]}),
            json.dumps({"return": ["labels", "scores"], "nodes": odd}, separators=(",", ":")),
        ):
            before = samples_of(await client.http.get("/metrics"))
            response = await client.http.post("/v1/predict", content=body)
            assert (response.status_code, error_of(response)["code"]) == (429, "DeadlineOutOfReach")
            after = samples_of(await client.http.get("/metrics"))
            name = ("gnnserve_offered_seeds_total",)
            assert after[name] - before[name] == len(odd)
        worker.gate.set()

    on_worker(overloaded, worker, objective={"latencyMs": 30_000})


def test_requests_with_an_objective_of_their_own_are_read_all_the_same() -> None:
    worker = slow_worker()

    body = json.dumps({"nodes": [1] * 40, "objective": {"latencyMs": 3_600_000}})
    escaped = body.replace("objective", "\\u006fbjective")

    async def scenario(client: Client) -> None:
        await overload(client, worker)
        patient = [
            client.predict([1] * 40, objective={"latencyMs": 3_600_000}),
            client.http.post(
                "/v1/predict",
                content=escaped,
                headers={"content-type": "application/json"},
            ),
            client.http.post(
                "/v1/predict",
                content=b"\1" + b"\0" * 7,
                headers={"content-type": "application/octet-stream", "gnnserve-latency-ms": "3600000"},
            ),
        ]
        answers = [asyncio.create_task(answer) for answer in patient]
        while client.app.predict.in_flight < len(answers):
            await asyncio.sleep(0)
        worker.gate.set()
        assert [(await answer).status_code for answer in answers] == [200] * 3

    on_worker(scenario, worker, objective={"latencyMs": 30_000})
