"""Connections of threads: kept, looked at before they are used again, and given up when something is amiss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.support.machine.fake_server import Asked, Told, fake_server
from tests.support.machine.waiting import WAIT_S, until

from gnnserve_client.address import parse_url
from gnnserve_client.direct import DirectConnection, has_ended
from gnnserve_client.errors import NoAnswerError, TimedOutError
from gnnserve_client.exchange import Call, Send

FIRST = "first-0123456789abcdef"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Kind: a\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"


def send(path: str = "/", timeout_s: float = 10, token: str | None = None, body: bytes | None = None) -> Send:
    headers = {} if body is None else {"Content-Type": "application/octet-stream"}
    return Send(Call("GET" if body is None else "POST", path, headers, body), token, timeout_s)


def ok(_: Asked) -> Told:
    return Told(body=b"fine")


def test_an_exchange_sends_what_it_is_told_and_reads_all_of_the_answer() -> None:
    large = bytes(range(256)) * 1024
    with fake_server(lambda asked: Told(201, asked.body, {"X-Kind": "b"})) as server:
        connection = DirectConnection(parse_url(server.url))
        reply = connection.exchange(send("/v1/predict?return=labels", token=FIRST, body=large))
        connection.close()
    assert (reply.status, reply.headers["x-kind"], reply.body) == (201, "b", large)
    assert reply.elapsed_ms > 0
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/predict?return=labels")
    assert asked.headers["authorization"] == f"Bearer {FIRST}"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.headers["content-type"] == "application/octet-stream"


def test_an_idle_connection_is_used_again_and_threads_get_one_each() -> None:
    together = threading.Barrier(3, timeout=WAIT_S)

    def meet(asked: Asked) -> Told:
        if asked.path == "/meet":
            together.wait()
        return ok(asked)

    with fake_server(meet) as server:
        connection = DirectConnection(parse_url(server.url))
        for _ in range(3):
            connection.exchange(send())
        (kept,) = connection.idle
        with ThreadPoolExecutor(3) as threads:
            assert {reply.body for reply in threads.map(connection.exchange, [send("/meet")] * 3)} == {b"fine"}
        assert len(connection.idle) == 3
        assert kept in connection.idle
        connection.close()
        assert connection.idle == []


def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    with fake_server(lambda _: Told(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")) as server:
        connection = DirectConnection(parse_url(server.url))
        for _ in range(3):
            assert connection.exchange(send()).body == b"ab"
            (kept,) = connection.idle
            until(partial(has_ended, kept), "the server closes")
        connection.close()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        pytest.param(CHUNKED, b"abc", id="chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nup to its end", b"up to its end", id="no length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", b"a", id="close"),
    ],
)
def test_answers_of_every_framing_are_read(raw: bytes, body: bytes) -> None:
    with fake_server(lambda _: Told(raw=raw)) as server:
        connection = DirectConnection(parse_url(server.url))
        assert connection.exchange(send()).body == body
        assert len(connection.idle) == (raw is CHUNKED)
        connection.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(lambda _: Told(hang_up=True), "Remote end closed connection", id="no answer"),
        pytest.param(
            lambda _: Told(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), "IncompleteRead", id="half of it"
        ),
        pytest.param(
            lambda _: Told(raw=CHUNKED[:-12]), "IncompleteRead", id="half of the chunks"
        ),
        pytest.param(lambda _: Told(raw=b"\x1b[31m hello\r\n\r\n"), r"\?\[31m hello", id="no HTTP"),
    ],
)  # fmt: skip
def test_answers_that_are_not_complete_are_errors(answer: Callable[[Asked], Told], problem: str) -> None:
    with fake_server(answer) as server:
        connection = DirectConnection(parse_url(server.url))
        with pytest.raises(NoAnswerError, match=problem) as caught:
            connection.exchange(send())
        assert caught.value.was_sent
        assert connection.idle == []
        server.stop()
        with pytest.raises(NoAnswerError, match="Connection refused") as caught:
            connection.exchange(send())
        assert not caught.value.was_sent


def test_an_answer_that_does_not_come_in_time_ends_the_exchange() -> None:
    gate = threading.Event()

    def wait(asked: Asked) -> Told:
        gate.wait(10)
        return ok(asked)

    with fake_server(wait) as server:
        connection = DirectConnection(parse_url(server.url))
        with pytest.raises(TimedOutError, match=r"no complete answer within 0\.02 s"):
            connection.exchange(send(timeout_s=0.02))
        gate.set()
        assert connection.exchange(send()).body == b"fine"
        connection.close()
