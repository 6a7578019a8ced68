"""When a client asks again: what is worth it, how long it waits, and that nothing counts twice."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

import httpx
import pytest

from gnnserve_client import (
    AccessError,
    AsyncClient,
    BadRequestError,
    Changes,
    Client,
    NoAnswerError,
    NotGnnserveError,
    ObjectiveError,
    OverloadedError,
    ServerFailedError,
    TimedOutError,
    UnavailableError,
    async_exchange,
    exchange,
)

URL = "http://server:8080"
FIRST, SECOND = "first-0123456789abcdef", "second-0123456789abcdef"
Answer = httpx.Response | Exception


@dataclass(slots=True)
class Server:
    """Answers in turn what it is told to, the last of it for good."""

    answers: list[Answer]
    asked: list[httpx.Request] = field(default_factory=list)
    now_s: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(told, Exception):
            raise told
        return httpx.Response(told.status_code, headers=told.headers, content=told.content)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def ok(**fields: Any) -> httpx.Response:
    told = {"labels": [3], "variant": "x1", "revision": "r1", "objectiveMet": True}
    return httpx.Response(200, json={**told, **fields})


def refusal(status: int, code: str, message: str = "nodes: wrong; do it right", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"error": {"code": code, "message": message}}, headers=sent)


APPLIED = httpx.Response(200, json={"offset": 7, "changes": 1, "unchanged": 0})
TAKEN = httpx.Response(200, json={"accepted": 1, "refused": 0, "problems": [], "revision": "r1"})
DISCONNECTED = httpx.RemoteProtocolError("Server disconnected without sending a response.")
NOT_THERE = httpx.ConnectError("[Errno 111] Connection refused")

Opened = Callable[..., tuple[Client, Server]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A client of a server that answers these, in a time of its own; it has had an answer before, unless `is_new`."""

    def open_client(*answers: Answer, is_new: bool = False, **options: Any) -> tuple[Client, Server]:
        server = Server(list(answers))
        client = Client(URL, transport=httpx.MockTransport(server.answer), **options)
        client._asking.now_s, client._asking.chance = lambda: server.now_s, lambda: 0.0
        client._asking.has_answered = not is_new
        monkeypatch.setattr(exchange.time, "sleep", server.sleep)
        return client, server

    return open_client


def predict(client: Client, **options: Any) -> object:
    return client.predict(["ann"], **options)


def apply(client: Client) -> object:
    return client.changes.apply(Changes(edges=[(1, 2)]))


def label(client: Client) -> object:
    return client.send_labels([1], [3])


def label_with_times(client: Client) -> object:
    return client.send_labels([1], [3], ["2026-11-23T05:00:00Z"])


@pytest.mark.parametrize(
    ("ask", "failure", "attempts"),
    [
        pytest.param(predict, refusal(429, "QueueFull"), 2, id="a full queue"),
        pytest.param(predict, refusal(503, "Loading"), 2, id="a server that loads"),
        pytest.param(predict, refusal(503, "LogUnavailable"), 2, id="a log that is away, and nothing is written"),
        pytest.param(predict, httpx.Response(502, content=b"Bad Gateway"), 2, id="a proxy without a server"),
        pytest.param(predict, DISCONNECTED, 2, id="a connection that the server closed"),
        pytest.param(predict, NOT_THERE, 2, id="a server that restarts"),
        pytest.param(predict, httpx.ReadTimeout("slow"), 1, id="no time left"),
        pytest.param(predict, refusal(400, "UnknownNode"), 1, id="a request that is wrong"),
        pytest.param(predict, refusal(422, "ObjectiveInfeasible"), 1, id="an objective that no variant meets"),
        pytest.param(predict, refusal(401, "Unauthorized"), 1, id="no token"),
        pytest.param(predict, refusal(500, "InternalError"), 1, id="an error of the server"),
        pytest.param(predict, httpx.Response(404, content=b"no such page"), 1, id="another program"),
        pytest.param(label, refusal(429, "QueueFull"), 2, id="labels that were not taken"),
        pytest.param(label, refusal(503, "Draining"), 2, id="labels for a server that stops"),
        pytest.param(label, NOT_THERE, 2, id="labels that were not sent"),
        pytest.param(label, DISCONNECTED, 1, id="labels that may have been taken"),
        pytest.param(label, httpx.Response(502, content=b"Bad Gateway"), 1, id="labels behind a proxy"),
        pytest.param(label_with_times, DISCONNECTED, 2, id="labels that count once by their times"),
        pytest.param(apply, DISCONNECTED, 2, id="a batch that may have been applied"),
        pytest.param(apply, refusal(503, "LogUnavailable"), 2, id="a batch that may have become durable"),
        pytest.param(apply, refusal(503, "NotApplied"), 2, id="a batch that is durable, and not applied"),
        pytest.param(apply, refusal(503, "LogFull"), 1, id="a log for which a person has to make room"),
        pytest.param(apply, refusal(409, "NoUpdates"), 1, id="a graph that does not change"),
    ],
)  # fmt: skip
def test_what_is_asked_again(opened: Opened, ask: Callable[[Client], object], failure: Answer, attempts: int) -> None:
    answers = {predict: ok(), apply: APPLIED, label: TAKEN, label_with_times: TAKEN}
    client, server = opened(failure, answers[ask])
    if attempts == 2:
        ask(client)
    else:
        with pytest.raises((NoAnswerError, BadRequestError, AccessError, ObjectiveError, ServerFailedError,
                            UnavailableError)):  # fmt: skip
            ask(client)
    assert len(server.asked) == attempts
    assert len({request.content for request in server.asked}) == 1
    assert len({request.headers.get("gnnserve-sequence") for request in server.asked}) == 1


def test_pauses_grow_and_are_at_least_what_the_server_says(opened: Opened) -> None:
    busy = refusal(429, "QueueFull")
    client, server = opened(busy, busy, refusal(503, "Loading", retry_after="3"), busy, ok())
    client.predict(["ann"])
    assert server.pauses == [0.1, 0.2, 3.0, 0.8]
    client._asking.chance = lambda: 1.0
    server.answers = [busy, ok()]
    client.predict(["ann"])
    assert server.pauses[-1] == 0.125


def test_no_pause_ends_after_the_deadline(opened: Opened) -> None:
    client, server = opened(refusal(429, "QueueFull", retry_after="4"), timeout_s=10)
    with pytest.raises(OverloadedError) as caught:
        client.predict(["ann"])
    assert server.pauses == [4.0, 4.0]
    assert caught.value.retry_after_s == 4
    server.asked.clear()
    with pytest.raises(OverloadedError):
        client.predict(["ann"], timeout_s=3)
    assert len(server.asked) == 1


def test_a_request_with_a_latency_is_not_sent_again_when_it_has_passed(opened: Opened) -> None:
    client, server = opened(refusal(429, "DeadlineOutOfReach", retry_after="1"))
    with pytest.raises(OverloadedError):
        client.predict(["ann"], latency_ms=50)
    assert (len(server.asked), server.pauses) == (1, [])
    server.answers = [DISCONNECTED, ok()]
    assert client.predict(["ann"], latency_ms=50).labels.tolist() == [3]


def test_a_server_that_never_answered_is_not_waited_for(opened: Opened) -> None:
    client, server = opened(NOT_THERE, is_new=True)
    with pytest.raises(NoAnswerError, match=r"http://server:8080: no answer: .*refused; is the server up\?"):
        client.predict(["ann"])
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("url", "error", "remedy"),
    [
        (
            "https://server:8080",
            ssl.SSLError("[SSL: WRONG_VERSION_NUMBER]"),
            "if it speaks plain HTTP, ask http://serv",
        ),
        (
            "http://server:8080",
            RemoteDisconnected("closed without response"),
            "one with TLS is asked by https://server",
        ),
        ("https://server:8080", RemoteDisconnected("closed without response"), "`gnnserve run MANIFEST` starts one"),
    ],
)
def test_a_server_of_the_other_protocol_is_said(url: str, error: Exception, remedy: str) -> None:
    assert remedy in str(exchange.no_answer(url, error, was_sent=True))


def test_retries_can_be_turned_off(opened: Opened) -> None:
    client, server = opened(refusal(429, "QueueFull"), ok(), retry=False)
    with pytest.raises(OverloadedError):
        client.predict(["ann"])
    assert len(server.asked) == 1


def test_errors_carry_what_a_program_needs(opened: Opened) -> None:
    message = "nodes[1]: node 9 is not in the graph; node ids are 0 to 7; a new node goes into overlay.nodes"
    told = {"error": {"code": "UnknownNode", "message": message, "field": "nodes[1]"}}
    client, _ = opened(httpx.Response(400, json=told))
    with pytest.raises(BadRequestError) as caught:
        client.predict(["ann"])
    error = caught.value
    assert (error.status, error.code, error.field, error.message) == (400, "UnknownNode", "nodes[1]", message)
    assert error.remedy == "node ids are 0 to 7; a new node goes into overlay.nodes"
    assert error.retry_after_s is None
    assert str(error) == f"the server answered 400 UnknownNode: {message}"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(httpx.Response(200, content=b"<html>"), "malformed", id="no JSON"),
        pytest.param(ok(labels=[3, 4]), "2 labels for 1 nodes", id="too many labels"),
        pytest.param(httpx.Response(200, json={"labels": [3]}), "missing required field", id="half an answer"),
    ],
)
def test_answers_of_another_program_are_told_from_gnnserves(opened: Opened, answer: Answer, problem: str) -> None:
    client, _ = opened(answer)
    with pytest.raises(NotGnnserveError, match=f"the answer is not gnnserve's: .*{problem}"):
        client.predict(["ann"])


@pytest.mark.parametrize("headers", [{}, {"gnnserve-shape": "2"}, {"gnnserve-shape": "one"}], ids=str)
def test_arrays_that_are_none_are_told_too(opened: Opened, headers: dict[str, str]) -> None:
    client, _ = opened(httpx.Response(200, content=bytes(8), headers=headers))
    with pytest.raises(NotGnnserveError, match="it is no array of labels"):
        client.predict([3])


def test_a_token_that_was_rotated_is_read_again(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    client, server = opened(ok(), token_file=file)
    client.predict(["ann"])
    file.write_text(SECOND)
    server.answers = [refusal(401, "Unauthorized"), ok()]
    client.predict(["ann"])
    server.answers = [refusal(401, "Unauthorized")]
    with pytest.raises(AccessError):
        client.predict(["ann"])
    tokens = [request.headers["authorization"].split()[1] for request in server.asked]
    assert tokens == [FIRST, FIRST, SECOND, SECOND]


def test_writing_takes_the_token_that_may_write(opened: Opened) -> None:
    client, server = opened(ok(), token=FIRST, write_token=SECOND)
    client.predict(["ann"])
    server.answers = [APPLIED]
    client.changes.apply(Changes(edges=[(1, 2)]))
    server.answers = [TAKEN]
    client.send_labels([1], [3])
    assert [request.headers["authorization"] for request in server.asked] == [
        f"Bearer {FIRST}", f"Bearer {SECOND}", f"Bearer {SECOND}"
    ]  # fmt: skip
    assert FIRST not in repr(client._asking)
    assert SECOND not in repr(client._asking)


# Batches


def sent(server: Server) -> list[tuple[str, int]]:
    return [(request.headers["gnnserve-client"], int(request.headers["gnnserve-sequence"])) for request in server.asked]


def test_batches_of_a_client_are_numbered_on_and_those_of_a_name_from_the_first(opened: Opened) -> None:
    client, server = opened(APPLIED)
    told: list[int] = []
    edges = Changes(edges=[(1, 2), (3, 4), (5, 6)])
    applied = client.changes.apply(edges, batch=2, on_batch=lambda so_far: told.append(so_far.batches))
    assert (applied.batches, applied.changes, applied.last_offset, told) == (2, 2, 7, [1, 2])
    client.changes.apply(edges)
    client.changes.apply([edges, edges], client="nightly", first_sequence=5)
    own = sent(server)[0][0]
    assert sent(server) == [(own, 1), (own, 2), (own, 3), ("nightly", 5), ("nightly", 6)]


def test_the_same_batches_under_the_same_name_go_on_after_a_failure(opened: Opened) -> None:
    client, server = opened(APPLIED, refusal(503, "LogFull"))
    batches = [Changes(edges=[(node, node + 1)]) for node in range(3)]
    with pytest.raises(UnavailableError) as caught:
        client.changes.apply(batches, client="nightly")
    (note,) = caught.value.__notes__
    assert note.startswith("batch 2 of client nightly is not known to be applied; 1 before it are.")
    repeated = httpx.Response(200, json={"offset": 7, "changes": 1, "unchanged": 0, "repeated": True})
    server.answers = [refusal(409, "SequencePassed"), repeated, APPLIED]
    applied = client.changes.apply(batches, client="nightly")
    assert (applied.batches, applied.changes, applied.repeated, applied.last_offset) == (3, 3, 2, 7)


def test_a_failed_batch_of_a_clients_own_name_keeps_its_number(opened: Opened) -> None:
    client, server = opened(refusal(400, "UnknownNode"), APPLIED)
    with pytest.raises(BadRequestError):
        client.changes.apply(Changes(edges=[(1, 2)]))
    client.changes.apply(Changes(edges=[(1, 3)]))
    assert [sequence for _, sequence in sent(server)] == [1, 2]


# Event loops


def test_a_client_of_an_event_loop_asks_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(async_exchange.asyncio, "sleep", sleep)

    async def scenario() -> None:
        server = Server([refusal(429, "QueueFull", retry_after="2"), ok()])

        async def answer(request: httpx.Request) -> httpx.Response:
            return server.answer(request)

        async with AsyncClient(URL, transport=httpx.MockTransport(answer)) as client:
            client._asking.chance = lambda: 0.0
            assert (await client.predict(["ann"])).labels.tolist() == [3]
            server.answers = [refusal(400, "UnknownNode")]
            with pytest.raises(BadRequestError):
                await client.predict(["ann"])
        assert json.loads(server.asked[0].content) == {"nodes": ["ann"], "return": ["labels"]}

    asyncio.run(scenario())
    assert pauses == [2.0]


def test_a_client_of_an_event_loop_keeps_the_time_for_all_of_an_answer() -> None:
    async def scenario() -> None:
        async def answer(_: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

        async with AsyncClient(URL, transport=httpx.MockTransport(answer), timeout_s=0.01) as client:
            with pytest.raises(TimedOutError, match=r"no complete answer within 0\.0"):
                await client.predict([3])

    asyncio.run(scenario())
