"""Offsets of the log in answers, and requests that wait for one (`minOffset`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.connections import Server, predict, read_responses
from tests.support.serving.connections import serving as connections
from tests.support.serving.http_errors import error_of, samples_of
from tests.support.serving.serving import NODES, Client, FakeWorker, held, running

from gnnserve_worker.serving.http import predict as module
from gnnserve_worker.serving.requests import Answer

BINARY = {"content-type": "application/octet-stream"}


def on_worker(
    scenario: Callable[[Client, FakeWorker, FakeUpdates], Awaitable[None]], worker: FakeWorker | None = None
) -> None:
    async def run() -> None:
        served = worker or FakeWorker()
        updates = served.updates = FakeUpdates()
        async with running(served) as client:
            await scenario(client, served, updates)

    asyncio.run(run())


def test_answers_tell_the_offset_that_they_have_seen() -> None:
    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        for offset in (0, 1, 12):
            updates.applied = offset
            answer = await client.predict([3])
            assert answer.json() == {
                "labels": [40], "variant": "x1", "revision": "f0eae20c16c00ac0-1", "objectiveMet": True,
                "tierPermille": 0, "offset": offset,
            }  # fmt: skip
            assert answer.text.endswith("}\n")
            array = await client.http.post("/v1/predict", content=np.array([3], "<i8").tobytes(), headers=BINARY)
            assert array.headers["gnnserve-offset"] == str(offset)

    on_worker(scenario)


def test_answers_in_pieces_tell_it_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 10)

    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.applied = 7
        answer = await client.predict([1] * 40)
        assert "content-length" not in answer.headers
        assert answer.json()["offset"] == 7

    on_worker(scenario)


def test_answers_of_a_graph_that_does_not_change_tell_none() -> None:
    async def run() -> None:
        async with running(FakeWorker()) as client:
            assert "offset" not in (await client.predict([3])).json()
            array = await client.http.post("/v1/predict", content=np.array([3], "<i8").tobytes(), headers=BINARY)
            assert "gnnserve-offset" not in array.headers

    asyncio.run(run())


def test_a_request_of_several_batches_tells_what_all_of_them_have_seen() -> None:
    updates = FakeUpdates()

    def advance(_variant: str, _seeds: np.ndarray) -> None:
        updates.applied += 1  # while a batch is computed

    async def run() -> None:
        async with running(FakeWorker(fail=advance, updates=updates)) as client:
            assert (await client.predict([1] * 250)).json()["offset"] == 0
            assert updates.applied == 3

    asyncio.run(run())


def test_a_node_that_leaves_while_a_request_waits_is_not_answered_for() -> None:
    """What is left of it, a row without neighbours, belongs to no graph that there was."""
    worker = FakeWorker(is_gone=np.zeros(NODES, np.bool_))

    async def scenario(client: Client, _worker: FakeWorker, _updates: FakeUpdates) -> None:
        assert worker.is_gone is not None
        first = await held(worker, client)
        asked = [asyncio.create_task(client.predict(nodes)) for nodes in ([3], [4, 5], [6], [5] * 250)]
        while len(client.model.accepted) < 5:
            await asyncio.sleep(0)
        worker.is_gone[5] = True
        worker.gate.set()
        answers = [await each for each in asked]
        assert [answer.status_code for answer in answers] == [200, 400, 200, 400]
        for refused in answers[1::2]:
            assert (error_of(refused)["code"], error_of(refused)["field"]) == ("UnknownNode", "nodes")
            assert "left the graph while the request waited" in error_of(refused)["message"]
        assert isinstance(await first.outcome, Answer)
        assert client.model.accepted == {}
        found = samples_of(await client.http.get("/metrics"))
        assert found["gnnserve_errors_total", "UnknownNode"] == 2

    on_worker(scenario, worker)


@pytest.mark.parametrize("in_head", [False, True], ids=["in the body", "in the head"])
def test_a_request_waits_for_its_offset_and_sees_what_came_with_it(in_head: bool) -> None:
    """The node that it asks for is there only then."""

    async def scenario(client: Client, worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.is_held = True
        updates.append()
        fields = {} if in_head else {"minOffset": 1}
        headers = {"gnnserve-min-offset": "1"} if in_head else {}
        asked = asyncio.create_task(
            client.http.post("/v1/predict", json={"nodes": [worker.nodes], **fields}, headers=headers)
        )
        while not updates.waits:
            await asyncio.sleep(0)
        assert client.app.predict.in_flight == 1
        larger = FakeWorker(name="f0eae20c16c00ac0-2", nodes=worker.nodes + 1, updates=updates)
        client.switch(larger.revision())
        updates.apply_all()
        answer = (await asked).json()
        assert (answer["offset"], answer["revision"]) == (1, "f0eae20c16c00ac0-2")
        assert updates.waits == [1]

    on_worker(scenario)


def test_an_offset_that_is_applied_is_not_waited_for() -> None:
    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.append()
        for wanted in (0, 1):
            assert (await client.predict([3], minOffset=wanted)).json()["offset"] == 1
        assert (await client.predict([3])).status_code == 200
        assert updates.waits == []

    on_worker(scenario)


@pytest.mark.parametrize("objective", [None, {"latencyMs": 30}], ids=["a second without one", "its latency"])
def test_a_request_whose_offset_does_not_come_is_refused(
    objective: dict[str, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_WITHOUT_LATENCY_MS", 20.0)

    async def scenario(client: Client, worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.append()
        answer = await client.predict([3], minOffset=9, objective=objective)
        assert (answer.status_code, error_of(answer)["code"]) == (503, "OffsetNotReached")
        assert answer.headers["retry-after"] == "1"
        assert "has applied offset 1 of 1 that it knows of, and 9 is wanted" in error_of(answer)["message"]
        assert worker.batches == []
        found = samples_of(await client.http.get("/metrics"))
        assert found["gnnserve_errors_total", "OffsetNotReached"] == 1
        assert found["gnnserve_in_flight_requests",] == 0

    on_worker(scenario)


def test_the_wait_counts_as_part_of_the_latency() -> None:
    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.is_held = True
        asked = asyncio.create_task(client.predict([3], minOffset=1))
        while not updates.waits:
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        updates.append()
        updates.apply_all()
        timing = (await asked).headers["server-timing"]
        assert float(timing.partition("queue;dur=")[2].partition(",")[0]) >= 29

    on_worker(scenario)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "field"),
    [
        pytest.param({"minOffset": -1}, {}, 400, "InvalidValue", "minOffset", id="below 0"),
        pytest.param({"minOffset": 2**63}, {}, 400, "InvalidValue", "minOffset", id="beyond 63 bits"),
        pytest.param({"minOffset": "1"}, {}, 400, "InvalidType", "minOffset", id="a text"),
        pytest.param({}, {"gnnserve-min-offset": "x"}, 400, "InvalidValue", "gnnserve-min-offset", id="in the head"),
        pytest.param(
            {}, {"gnnserve-min-offset": str(2**63)}, 400, "InvalidValue", "gnnserve-min-offset", id="too large there"
        ),
    ],
)  # fmt: skip
def test_an_offset_that_cannot_be_is_refused(
    body: dict[str, Any], headers: dict[str, str], status: int, code: str, field: str
) -> None:
    async def scenario(client: Client, _worker: FakeWorker, _updates: FakeUpdates) -> None:
        answer = await client.http.post("/v1/predict", json={"nodes": [1], **body}, headers=headers)
        assert (answer.status_code, error_of(answer)["code"], error_of(answer)["field"]) == (status, code, field)

    on_worker(scenario)


def test_a_graph_that_does_not_change_has_no_offset_to_wait_for() -> None:
    async def run() -> None:
        async with running(FakeWorker()) as client:
            answer = await client.predict([1], minOffset=1)
            assert (answer.status_code, error_of(answer)["code"]) == (409, "NoUpdates")
            nodes, wanted = np.array([1], "<i8").tobytes(), {**BINARY, "gnnserve-min-offset": "1"}
            answer = await client.http.post("/v1/predict", content=nodes, headers=wanted)
            assert error_of(answer)["code"] == "NoUpdates"

    asyncio.run(run())


def test_the_body_goes_before_the_head() -> None:
    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.append()
        answer = await client.http.post(
            "/v1/predict", json={"nodes": [1], "minOffset": 1}, headers={"gnnserve-min-offset": "50"}
        )
        assert answer.status_code == 200

    on_worker(scenario)


def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_HELD_BYTES", 100)

    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        updates.is_held = True
        waiting = asyncio.create_task(client.predict([1] * 10, minOffset=1))
        while not updates.waits:
            await asyncio.sleep(0)
        refused = await client.predict([1] * 30, minOffset=1)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "QueueFull")
        updates.append()
        updates.apply_all()
        assert (await waiting).status_code == 200
        assert (await client.predict([1] * 30, minOffset=1)).status_code == 200
        assert client.app.predict._held_bytes == 0

    on_worker(scenario)


def test_a_worker_that_drains_refuses_what_waits() -> None:
    async def scenario(client: Client, worker: FakeWorker, updates: FakeUpdates) -> None:
        computed = await held(worker, client)
        waiting = asyncio.create_task(client.predict([1], minOffset=1, objective={"latencyMs": 60_000}))
        while not updates.waits:
            await asyncio.sleep(0)
        client.engine.drain()
        refused = await waiting
        assert (refused.status_code, error_of(refused)["code"]) == (503, "Draining")
        worker.gate.set()
        await computed.outcome

    on_worker(scenario)


def test_another_revision_that_is_behind_is_waited_for() -> None:
    async def scenario(client: Client, _worker: FakeWorker, updates: FakeUpdates) -> None:
        behind = FakeUpdates()
        waiting = asyncio.create_task(client.predict([1], minOffset=1))
        while not updates.waits:
            await asyncio.sleep(0)
        client.switch(FakeWorker(name="f0eae20c16c00ac0-2", updates=behind).revision())
        updates.append()
        while len(updates.waits) < 3:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        behind.applied = 1
        assert (await waiting).json()["revision"] == "f0eae20c16c00ac0-2"

    on_worker(scenario)


# On the fast path


def on_server(scenario: Callable[[Server, FakeUpdates], Awaitable[None]]) -> None:
    async def run() -> None:
        updates = FakeUpdates()
        async with connections(FakeWorker(updates=updates)) as server:
            await scenario(server, updates)

    asyncio.run(run())


def test_a_connection_waits_for_the_offset_and_is_answered() -> None:
    async def scenario(server: Server, updates: FakeUpdates) -> None:
        wire = server.connect()
        wire.send(predict(json.dumps({"nodes": [3], "minOffset": 1}).encode()))
        while not updates.waits:
            await asyncio.sleep(0)
        assert (wire.responses(), server.client.app.predict.in_flight) == ([], 1)
        updates.append()
        (answer,) = await wire.answers()
        assert (answer.status, json.loads(answer.body)["offset"]) == (200, 1)
        assert server.client.app.predict.in_flight == 0
        wire.send(predict(b'{"nodes":[3]}'))
        assert [response.status for response in await wire.answers(2)] == [200, 200]

    on_server(scenario)


def test_a_client_that_leaves_waits_no_more() -> None:
    async def scenario(server: Server, updates: FakeUpdates) -> None:
        app = server.client.app
        for rounds in (0, 3):  # before the wait begins, and during it
            wire = server.connect()
            wire.send(predict(b'{"nodes":[3],"minOffset":1}'))
            for _ in range(rounds):
                await asyncio.sleep(0)
            wire.leave()
            for _ in range(3):
                await asyncio.sleep(0)
            assert (app.predict.in_flight, app.predict._held_bytes) == (0, 0)
            assert read_responses(wire.transport.written) == []
        assert len(updates.waits) == 1

    on_server(scenario)
