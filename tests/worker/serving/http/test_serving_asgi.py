"""The ASGI side of a connection: what an application may send, what it gets, and what becomes of its mistakes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.support.serving.connections import DATE, Server, serving

from gnnserve_worker.serving.http.asgi_predict import AsgiApp, Message, Receive, Scope, Send
from gnnserve_worker.serving.http.wire.limits import Patience
from gnnserve_worker.serving.http.wire.listener import HttpListener

GET = b"GET /a%20b?c=d HTTP/1.1\r\nHost: w\r\nX-Twice: 1\r\nx-twice: 2\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD", 1)


def answering(*messages: Message) -> AsgiApp:
    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return application


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def on_server(application: AsgiApp, scenario: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as server:
            server.shared.application = application
            await scenario(server)

    asyncio.run(run())


def ask(application: AsgiApp, request: bytes = GET) -> tuple[bytes, bool]:
    """All that is written to a client that asks once, and whether it is hung up on."""
    found: list[tuple[bytes, bool]] = []

    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(request)
        while server.shared.tasks:
            await asyncio.sleep(0)
        found.append((bytes(wire.transport.written), wire.transport.finished))

    on_server(application, scenario)
    return found[0]


def test_scope_is_that_of_the_specification() -> None:
    seen: list[Scope] = []

    async def application(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send(start(204))
        await send(body())

    ask(application)
    (scope,) = seen
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"c=d",
        "root_path": "",
        "headers": [(b"host", b"w"), (b"x-twice", b"1"), (b"x-twice", b"2")],
        "client": None,
        "server": None,
    }


LINES = b"HTTP/1.1 %b\r\ndate: " + DATE + b"\r\n"
TEXT = (b"Content-Type", b"text/plain")


@pytest.mark.parametrize(
    ("messages", "request_", "written", "closed"),
    [
        pytest.param(
            [start(200, TEXT, (b"content-length", b"2")), body(b"o", more=True), body(b"k")], GET,
            LINES % b"200 OK" + b"content-type: text/plain\r\ncontent-length: 2\r\n\r\nok", False, id="a known length",
        ),
        pytest.param(
            [start(200, TEXT), body(b"o", more=True), body(b"", more=True), body(b"k" * 10), ], GET,
            LINES % b"200 OK" + b"content-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
            b"1\r\no\r\na\r\nkkkkkkkkkk\r\n0\r\n\r\n", False, id="chunks",
        ),
        pytest.param(
            [start(200, (b"content-length", b"2")), body(b"ok")], HEAD,
            LINES % b"200 OK" + b"content-length: 2\r\n\r\n", False, id="HEAD",
        ),
        pytest.param([start(200), body(b"ok")], HEAD, LINES % b"200 OK" + b"\r\n", False, id="HEAD, no length"),
        pytest.param([start(304), body()], GET, LINES % b"304 Not Modified" + b"\r\n", False, id="no body"),
        pytest.param(
            [start(599, (b"connection", b"Keep-Alive, Close"), (b"content-length", b"0")), body()], GET,
            LINES % b"599 " + b"connection: Keep-Alive, Close\r\ncontent-length: 0\r\n\r\n", True, id="closed",
        ),
    ],
)  # fmt: skip
def test_answers_are_written_as_they_are_sent(
    messages: list[Message], request_: bytes, written: bytes, closed: bool
) -> None:
    assert ask(answering(*messages), request_) == (written, closed)


async def failing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise ValueError("a bug")


@pytest.mark.parametrize(
    "application",
    [
        pytest.param(failing, id="an exception"),
        pytest.param(answering(), id="nothing"),
        pytest.param(answering(body(b"ok")), id="a body without a head"),
        pytest.param(answering(start(200, (b"x", b"a\r\nset-cookie: b"))), id="a header that splits the answer"),
        pytest.param(answering(start(200, (b"x y", b"a"))), id="a name that is none"),
    ],
)
def test_mistake_before_the_head_is_answered_with_500(application: AsgiApp, caplog: pytest.LogCaptureFixture) -> None:
    written, closed = ask(application)
    assert written == LINES % b"500 Internal Server Error" + (
        b"content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\nconnection: close\r\n\r\n"
        b"Internal Server Error"
    )
    assert closed
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([start(200), body(b"a", more=True)], id="no end"),
        pytest.param([start(200), start(200)], id="two heads"),
        pytest.param([start(200, (b"content-length", b"2")), body(b"abc")], id="more than announced"),
        pytest.param([start(200, (b"content-length", b"2")), body(b"a")], id="less than announced"),
        pytest.param([start(200), body(), body()], id="more after the end"),
    ],
)
def test_mistake_behind_the_head_ends_the_connection(messages: list[Message], caplog: pytest.LogCaptureFixture) -> None:
    written, closed = ask(answering(*messages))
    assert written.startswith(LINES % b"200 OK")
    assert b"500" not in written
    assert closed
    assert len(caplog.records) == 1


def test_application_is_told_when_its_client_leaves_or_has_its_answer() -> None:
    received: list[Message] = []

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        received.append(await receive())
        await send(start(200))  # the client is gone: nothing is written

    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 4\r\n\r\nab")
        while not received:
            await asyncio.sleep(0)
        wire.leave()
        while server.shared.tasks:
            await asyncio.sleep(0)
        assert wire.transport.written == b""

    on_server(application, scenario)
    assert received == [{"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"}]


def test_body_that_is_not_taken_pauses_its_connection() -> None:
    go_on = asyncio.Event()

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        while (await receive())["more_body"]:
            pass
        await send(start(204))
        await send(body())

    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 70000\r\n\r\n" + b"a" * 69_999)
        assert not wire.transport.reading
        go_on.set()
        while not wire.transport.reading:
            await asyncio.sleep(0)
        wire.send(b"a")
        assert [response.status for response in await wire.answers()] == [204]

    on_server(application, scenario)


def test_closing_gives_up_clients_that_do_not_complete_their_request(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with serving() as server:
            listener = HttpListener(server.client.app, Patience())
            listener.shared = server.shared
            waiting, idle = server.connect(), server.connect()
            waiting.send(b"POST /v1/predict HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n")
            await listener.close(0.0, lambda: False)
            assert idle.transport.closed
            await asyncio.gather(*server.shared.tasks, return_exceptions=True)
            assert waiting.transport.closed
            assert [response.status for response in waiting.responses()] == [500]

    asyncio.run(run())
    assert "given up: 1 requests" in caplog.text
