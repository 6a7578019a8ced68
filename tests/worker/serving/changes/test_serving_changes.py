"""`/v1/changes`: who may write, what is answered, retries, what cannot be taken, pages of the log, metrics."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest
from tests.support.changes.changes_reader import COLUMNS, NODES, arrays, revision
from tests.support.changes.fake_updates import TIME_MS, FakeUpdates
from tests.support.serving.http_errors import error_of, samples_of
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import Client, FakeWorker, running, service

from gnnserve_api.http.changes import CHANGES_TYPE, MOST_CLIENT_CHARACTERS
from gnnserve_worker.changes.log import LogConflictError, LogError, LogFullError, SequencePassedError
from gnnserve_worker.changes.worker_log import NotAppliedError
from gnnserve_worker.graph.change_batch import ChangeCounts, ChangeProblem, ChangeRefusal, decode_batch
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import AppliedLog, ServedChanges
from gnnserve_worker.serving.http.changes import endpoint
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.process.log_follower import LogFollower
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS

READING, WRITING = "reading-0123456789ab", "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}
EDGE = {"edges": [[0, 1]]}
REFUSAL = ChangeRefusal(ChangeProblem.UNKNOWN_NODE, "edges[0][0]", "node 0 is not in the graph", "add it first")


def worker(updates: FakeUpdates | None = None) -> FakeWorker:
    return FakeWorker(
        nodes=NODES,
        overlays=revision().compute.overlays.support,
        updates=updates or FakeUpdates(),
    )


def on_worker(
    scenario: Callable[[Client, FakeUpdates], Awaitable[None]], updates: FakeUpdates | None = None, **options: Any
) -> None:
    async def run() -> None:
        log = updates or FakeUpdates()
        async with running(worker(log), write_access=Access((WRITING,)), **options) as client:
            await scenario(client, log)

    asyncio.run(run())


async def send(client: Client, body: Any = EDGE, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.http.post("/v1/changes", json=body, headers={**HEADERS, **named})


# Writing


def test_a_batch_is_answered_with_its_offset() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.unchanged = 1
        answers = [await send(client, {"edges": [[0, 1], [2, 3]]}), await send(client)]
        assert [answer.json() for answer in answers] == [
            {"offset": 1, "changes": 2, "unchanged": 1, "repeated": False},
            {"offset": 2, "changes": 1, "unchanged": 1, "repeated": False},
        ]
        assert answers[0].headers["content-type"] == "application/json"
        assert decode_batch(updates.records[0].body).counts == ChangeCounts(edges=2)
        # Without a client they are the worker's own, numbered.
        assert len({record.client for record in updates.records}) == 1
        assert [record.sequence for record in updates.records] == [1, 2]

    on_worker(scenario)


def test_the_binary_form_goes_into_the_log_as_it_is() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        body = arrays(ChangeCounts(1, edges=1), [90, 90, 1], [[1, 2, 3, 4, 5]])
        headers = {**HEADERS, "content-type": f"{CHANGES_TYPE.upper()}; v=1"}
        answer = await client.http.post("/v1/changes", content=body, headers=headers)
        assert (answer.status_code, answer.json()["changes"]) == (200, 2)
        assert updates.records[0].body == body

    on_worker(scenario)


def test_a_batch_that_is_sent_again_counts_once() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        for repeated in (False, True):
            answer = await send(client, gnnserve_client="loader", gnnserve_sequence="7")
            assert answer.json() == {"offset": 1, "changes": 1, "unchanged": 0, "repeated": repeated}
        assert [(record.client, record.sequence) for record in updates.records] == [("loader", 7)]
        counts = samples_of(await client.http.get("/metrics"))
        assert counts["gnnserve_changes_total", "applied"] == counts["gnnserve_changes_total", "repeated"] == 1

    on_worker(scenario)


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        pytest.param([("gnnserve-client", "a")], "MissingField", "gnnserve-sequence", id="no sequence"),
        pytest.param([("gnnserve-sequence", "1")], "MissingField", "gnnserve-client", id="no client"),
        pytest.param(
            [("gnnserve-client", "a b"), ("gnnserve-sequence", "1")], "InvalidValue", "gnnserve-client", id="a blank"
        ),
        pytest.param(
            [("gnnserve-client", "a" * (MOST_CLIENT_CHARACTERS + 1)), ("gnnserve-sequence", "1")], "InvalidValue",
            "gnnserve-client", id="a long name",
        ),
        pytest.param(
            [("gnnserve-client", "a"), ("gnnserve-sequence", "-1")], "InvalidValue", "gnnserve-sequence", id="below 0"
        ),
        pytest.param(
            [("gnnserve-client", "a"), ("gnnserve-sequence", str(2**63))], "InvalidValue", "gnnserve-sequence",
            id="beyond 63 bits",
        ),
        pytest.param(
            [("gnnserve-client", "a"), ("gnnserve-client", "b"), ("gnnserve-sequence", "1")], "InvalidValue",
            "gnnserve-client", id="two clients",
        ),
    ],
)  # fmt: skip
def test_client_and_sequence_are_both_there_or_none(headers: list[tuple[str, str]], code: str, field: str) -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        answer = await client.http.post("/v1/changes", json=EDGE, headers=[*HEADERS.items(), *headers])
        assert (answer.status_code, error_of(answer)["code"], error_of(answer)["field"]) == (400, code, field)
        assert not updates.records

    on_worker(scenario)


def test_a_token_that_predicts_never_writes_and_one_that_writes_never_reads() -> None:
    async def scenario(client: Client, _updates: FakeUpdates) -> None:
        for token, statuses in ((READING, (401, 200)), (WRITING, (200, 401)), ("neither-0123456789", (401, 401))):
            headers = {"authorization": f"Bearer {token}"}
            written = await client.http.post("/v1/changes", json=EDGE, headers=headers)
            read = await client.http.get("/v1/changes", headers=headers)
            assert (written.status_code, read.status_code) == statuses
        assert (await client.http.post("/v1/changes", json=EDGE)).status_code == 401

    on_worker(scenario, access=Access((READING,)))


def test_without_tokens_that_may_write_nothing_is_taken() -> None:
    async def run() -> None:
        async with running(worker()) as client:
            answer = await send(client)
            assert (answer.status_code, error_of(answer)["code"]) == (403, "NoWriting")
            assert (await client.http.get("/v1/changes")).status_code == 200

    asyncio.run(run())


def test_a_graph_that_does_not_change_says_how_to_turn_it_on() -> None:
    async def run() -> None:
        async with running(FakeWorker(), write_access=Access((WRITING,))) as client:
            for answer in (await send(client), await client.http.get("/v1/changes")):
                assert (answer.status_code, error_of(answer)["code"]) == (409, "NoUpdates")
                assert "`spec.updates: {log: {sqlite: {}}}` in the manifest" in error_of(answer)["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        pytest.param(ChangeProblem.UNKNOWN_NODE, 400, "UnknownNode", id="an unknown node"),
        pytest.param(ChangeProblem.WRONG_LENGTH, 400, "WrongFeatures", id="rows that are too narrow"),
        pytest.param(ChangeProblem.NO_ROOM, 503, "NoRoom", id="no memory for more"),
    ],
)
def test_what_the_replica_refuses_is_refused(problem: ChangeProblem, status: int, code: str) -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.check = ChangeRefusal(problem, "edges[0][0]", "it cannot be", "do another thing")
        answer = await send(client)
        assert (answer.status_code, error_of(answer)["code"]) == (status, code)
        assert error_of(answer)["message"] == "edges[0][0]: it cannot be; do another thing"
        assert (error_of(answer).get("field") == "edges[0][0]") is (status == 400)
        assert ("retry-after" in answer.headers) is (status == 503)
        counts = samples_of(await client.http.get("/metrics"))
        assert counts["gnnserve_changes_total", "refused"] == counts["gnnserve_errors_total", code] == 1

    on_worker(scenario)


def test_a_batch_that_lost_a_race_is_refused_and_stays_in_the_log_without_effect() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.refusal = REFUSAL
        for _ in range(2):
            answer = await send(client, gnnserve_client="a", gnnserve_sequence="1")
            assert (answer.status_code, error_of(answer)["code"]) == (400, "UnknownNode")
            assert "record 1 of the log, which stays without effect" in error_of(answer)["message"]
        (record,) = (await client.http.get("/v1/changes")).json()["records"]
        assert record["refused"] == "node 0 is not in the graph"

    on_worker(scenario)


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        pytest.param(LogError("the database is away"), 503, "LogUnavailable", id="away"),
        pytest.param(LogFullError("the disk is full"), 503, "LogFull", id="full"),
        pytest.param(NotAppliedError(7, LogError("it is behind")), 503, "NotApplied", id="not applied"),
        pytest.param(LogConflictError("the log is another service's"), 409, "LogConflict", id="another one's"),
        pytest.param(SequencePassedError("a", 1, 4), 409, "SequencePassed", id="compacted away"),
    ],
)
def test_a_log_that_cannot_be_written_or_read_is_told(failure: LogError, status: int, code: str) -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.append()
        updates.failure = failure
        named = await send(client, gnnserve_client="a", gnnserve_sequence="1")
        for answer in (named, await send(client), await client.http.get("/v1/changes")):
            assert (answer.status_code, error_of(answer)["code"]) == (status, code)
            assert str(failure) in error_of(answer)["message"]
            # What is durable need not be sent again.
            assert ("retry-after" in answer.headers) is (code in {"LogUnavailable", "LogFull"})
        if code == "LogUnavailable":
            assert "gnnserve-client" in error_of(await send(client))["message"]
            assert "gnnserve-client" not in error_of(named)["message"]
        updates.failure = None
        assert (await send(client)).status_code == 200

    on_worker(scenario)


def test_an_error_of_ours_gets_500_and_nothing_of_it_is_told() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.failure = ValueError("secret")  # type: ignore[assignment]
        answer = await send(client)
        assert (answer.status_code, error_of(answer)["code"]) == (500, "InternalError")
        assert "secret" not in answer.text

    on_worker(scenario)


def test_a_malformed_body_a_huge_one_and_a_query_are_refused() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        answer = await client.http.post("/v1/changes", content=b"{", headers=HEADERS)
        assert (answer.status_code, error_of(answer)["code"], error_of(answer)["field"]) == (400, "InvalidJson", "body")
        huge = await client.http.post("/v1/changes", content=b" " * (MAX_BODY_BYTES + 1), headers=HEADERS)
        assert (huge.status_code, error_of(huge)["code"]) == (413, "BodyTooLarge")
        assert "split the batch" in error_of(huge)["message"]
        asked = await client.http.post("/v1/changes?client=a", json=EDGE, headers=HEADERS)
        assert (asked.status_code, error_of(asked)["code"]) == (400, "UnknownField")
        assert not updates.records

    on_worker(scenario)


def test_a_large_body_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def read(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return original(*arguments)

    original = endpoint.read_changes
    monkeypatch.setattr(endpoint, "read_changes", read)
    monkeypatch.setattr(endpoint, "_QUICK_BYTES", 64)
    monkeypatch.setattr(endpoint, "_QUICK_BINARY_BYTES", 100)

    async def scenario(client: Client, updates: FakeUpdates) -> None:
        binary = {**HEADERS, "content-type": CHANGES_TYPE}
        few, many = (arrays(ChangeCounts(edges=count), [0, 1] * count, []) for count in (1, 2))
        for body in (few, many):
            answer = await client.http.post("/v1/changes", content=body, headers=binary)
            assert answer.status_code == 200
        for edges in (1, 20):
            assert (await send(client, {"edges": [[0, 1]] * edges})).json()["changes"] == edges
        wrong = await client.http.post("/v1/changes", content=b"[" * 100, headers=HEADERS)
        assert error_of(wrong)["code"] == "InvalidType"
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [True, False, True, False, False]

    on_worker(scenario)


def test_a_worker_that_loads_or_drains_sends_clients_elsewhere() -> None:
    async def run() -> None:
        loading = worker()
        loading.loaded = False
        async with running(loading, write_access=Access((WRITING,))) as client:
            for answer in (await send(client), await client.http.get("/v1/changes")):
                assert (answer.status_code, error_of(answer)["code"]) == (503, "Loading")
        async with running(worker(), write_access=Access((WRITING,))) as client:
            client.engine.drain()
            assert error_of(await send(client))["code"] == "Draining"

    asyncio.run(run())


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    async def scenario(client: Client, _updates: FakeUpdates) -> None:
        answer = await client.http.request(method, "/v1/changes")
        assert (answer.status_code, error_of(answer)["code"]) == (405, "MethodNotAllowed")
        assert "use GET or POST" in error_of(answer)["message"]

    on_worker(scenario)


# Reading


def test_a_page_has_records_in_order_and_where_the_log_stands() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        for number in range(3):
            updates.append(changes=10 + number, sequence=number)
        page = (await client.http.get("/v1/changes?limit=2")).json()
        assert page == {
            "records": [
                {"offset": 1 + i, "client": "another", "sequence": i, "timeMs": TIME_MS, "changes": 10 + i}
                for i in range(2)
            ],
            "first": 1, "last": 3, "applied": 3,
        }  # fmt: skip
        assert [record["offset"] for record in (await client.http.get("/v1/changes?after=2")).json()["records"]] == [3]
        beyond = (await client.http.get("/v1/changes?after=9")).json()
        assert (beyond["records"], beyond["last"]) == ([], 3)

    on_worker(scenario)


def test_content_is_told_where_it_is_asked_for() -> None:
    async def scenario(client: Client, _updates: FakeUpdates) -> None:
        await send(client, {"overrides": [{"id": 3, "features": {"hour": 4}}], "edges": [[0, 1]]})
        (record,) = (await client.http.get("/v1/changes?content=true")).json()["records"]
        assert record["content"] == {"overrides": [{"id": 3, "features": {"hour": 4}}], "edges": [[0, 1]]}

    on_worker(scenario)


def test_compacted_records_are_told_and_left_out_where_nothing_is_asked() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        updates.first = 10
        updates.append()
        page = (await client.http.get("/v1/changes")).json()
        assert ([record["offset"] for record in page["records"]], page["first"]) == ([10], 10)
        answer = await client.http.get("/v1/changes?after=3")
        assert (answer.status_code, error_of(answer)["code"]) == (409, "LogConflict")

    on_worker(scenario)


def test_a_page_waits_for_its_first_record() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        waiting = asyncio.create_task(client.http.get("/v1/changes?after=0&wait=30"))
        while not updates.waits:
            await asyncio.sleep(0)
        updates.append()
        assert [record["offset"] for record in (await waiting).json()["records"]] == [1]
        assert updates.waits == [1]

    on_worker(scenario)


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        pytest.param("begin=3", "UnknownField", "begin", id="an unknown parameter"),
        pytest.param("after=-1", "InvalidValue", "after", id="below 0"),
        pytest.param("after=", "InvalidValue", "after", id="nothing"),
        pytest.param("after=" + "9" * 5000, "InvalidValue", "after", id="5,000 digits"),
        pytest.param("limit=0", "InvalidValue", "limit", id="no records"),
        pytest.param("limit=1001", "InvalidValue", "limit", id="too many records"),
        pytest.param("wait=31", "InvalidValue", "wait", id="too long"),
        pytest.param("content=yes", "InvalidValue", "content", id="neither true nor false"),
    ],
)
def test_a_query_is_refused_by_its_parameter(query: str, code: str, field: str) -> None:
    async def scenario(client: Client, _updates: FakeUpdates) -> None:
        answer = await client.http.get(f"/v1/changes?{query}")
        assert (answer.status_code, error_of(answer)["code"], error_of(answer)["field"]) == (400, code, field)

    on_worker(scenario)


# Around it


def test_metrics_tell_offsets_and_what_was_sent() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        await send(client, {"edges": [[0, 1], [1, 2], [2, 3]]})
        updates.is_held = True
        updates.append(changes=20)
        updates.staleness_s = 0.25
        found = samples_of(await client.http.get("/metrics"))
        for name, value in (
            ("gnnserve_log_offset", 2), ("gnnserve_applied_offset", 1), ("gnnserve_changes_behind", 20),
            ("gnnserve_staleness_seconds", 0.25), ("gnnserve_log_usable", 1),
            ("gnnserve_changes_durable_seconds_count", 1),
        ):  # fmt: skip
            assert found[(name,)] == value
        assert [found["gnnserve_changes_total", outcome] for outcome in ("applied", "repeated", "failed")] == [3, 0, 0]
        updates.problem = "the database is away"
        assert samples_of(await client.http.get("/metrics"))["gnnserve_log_usable",] == 0

    on_worker(scenario)


def test_a_graph_that_does_not_change_has_no_such_metrics() -> None:
    async def run() -> None:
        async with running(FakeWorker()) as client:
            text = (await client.http.get("/metrics")).text
            assert not [word for word in ("gnnserve_changes", "offset", "staleness", "gnnserve_log") if word in text]

    asyncio.run(run())


def test_a_server_starts_the_log_tells_of_it_and_closes_it_at_the_end() -> None:
    updates = FakeUpdates()
    with started(NO_CREDENTIALS, of=worker(updates)) as running:
        assert updates.is_started
        connection = running.connect(None)
        connection.request("GET", "/v1/route")
        told = json.loads(connection.getresponse().read())["updates"]
        assert told == {"last": 0, "applied": 0, "changesBehind": 0, "stalenessSeconds": 0}
        connection.close()
        assert not updates.is_closed
    assert updates.is_closed


def test_another_revision_takes_over_with_what_was_told_or_not_at_all() -> None:
    updates = FakeUpdates()
    table = service().spec.routing_table("")
    first, behind, second = (replica_of(name) for name in ("first", "behind", "second"))
    with started(NO_CREDENTIALS) as running:
        running.served._log = LogFollower(updates)  # type: ignore[arg-type]
        running.served.switch(first, table, 0.0)
        running.served.switch(first, table, 0.0)
        assert (updates.replica, updates.handed_over) == (replica_in(first), [])
        updates.failure = LogError("the database is away")
        with pytest.raises(LogError):
            running.served.switch(behind, table, 0.0)
        assert updates.replica is replica_in(first)
        updates.failure = None
        running.served.switch(second, table, 0.0)
        assert (updates.replica, updates.handed_over) == (replica_in(second), [replica_in(second)])
        look = running.served.look()
        assert look is not None and look.route.revision == "second"


def replica_of(name: str) -> ServedRevision:
    """A revision that follows changes, whose replica only has to be told from others."""
    log = AppliedLog(SimpleNamespace())  # type: ignore[arg-type]
    return replace(FakeWorker(name=name).revision(), changes=ServedChanges(log))


def replica_in(revision: ServedRevision) -> LivingRevision:
    assert isinstance(revision.changes.log, AppliedLog)
    return revision.changes.log.replica


def test_openapi_describes_changes_with_the_ids_of_the_graph() -> None:
    async def scenario(client: Client, _updates: FakeUpdates) -> None:
        document = (await client.http.get("/openapi.json")).json()
        post, get = (document["paths"]["/v1/changes"][method] for method in ("post", "get"))
        assert set(post["requestBody"]["content"]) == {"application/json", CHANGES_TYPE}
        assert {parameter["name"] for parameter in get["parameters"]} == {"after", "limit", "content", "wait"}
        assert "security" in post
        answers = [await send(client, post["requestBody"]["content"]["application/json"]["example"])]
        answers.append(await client.http.get("/v1/changes?content=true"))
        for operation, answer in zip((post, get), answers, strict=True):
            assert answer.status_code == 200
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
        properties = document["components"]["schemas"]["PredictRequest"]["properties"]
        assert "minOffset" in properties
        predict = document["paths"]["/v1/predict"]["post"]
        assert "gnnserve-min-offset" in {parameter["name"] for parameter in predict["parameters"]}
        assert "gnnserve-offset" in predict["responses"]["200"]["headers"]

    on_worker(scenario)
    texts = [f"user-{i}" for i in range(4)]
    named = FakeWorker(
        nodes=4,
        ids=string_ids(*lay_out(texts)),
        overlays=revision(COLUMNS).compute.overlays.support,
    )

    async def described(client: Client) -> None:
        schemas = (await client.http.get("/openapi.json")).json()["components"]["schemas"]
        assert schemas["ChangesRequest"]["properties"]["removedNodes"]["items"] == {"type": "string"}
        assert schemas["NewNode"]["properties"]["id"]["type"] == "string"
        assert not [name for name in schemas if name.endswith("_")], "names of kinds of ids"
        assert "minOffset" not in schemas["PredictRequest"]["properties"]

    async def run() -> None:
        async with running(named) as client:
            await described(client)

    asyncio.run(run())


def test_batches_of_many_clients_are_in_one_order() -> None:
    async def scenario(client: Client, updates: FakeUpdates) -> None:
        names = [f"client-{i}" for i in range(8)]
        sent = [
            send(client, EDGE, gnnserve_client=name, gnnserve_sequence=str(sequence))
            for name, sequence in itertools.product(names, range(5))
        ]
        answers = [json.loads(answer.content)["offset"] for answer in await asyncio.gather(*sent)]
        assert sorted(answers) == list(range(1, 41)) == [record.offset for record in updates.records]

    on_worker(scenario)
