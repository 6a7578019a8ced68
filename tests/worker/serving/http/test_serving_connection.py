"""A client's connection, byte by byte: what takes the fast path, what the application gets, and both agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.serving.connections import DATE, Server, predict, serving
from tests.support.serving.serving import FakeWorker, service

from gnnserve_worker.asking.question import WISH_HEADERS
from gnnserve_worker.serving.http.wire.limits import Patience


def on_server(scenario: Callable[[Server], Awaitable[None]], worker: FakeWorker | None = None, **of: Any) -> None:
    patience = of.pop("patience", None)

    async def run() -> None:
        async with serving(worker, service(**of), patience) as server:
            await scenario(server)

    asyncio.run(run())


def asgi_requests(server: Server) -> list[str]:
    """Paths of the requests that reach the ASGI application, of connections made from now on."""
    seen: list[str] = []

    async def record(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await server.client.app(scope, receive, send)

    server.shared.application = record
    return seen


def labels(body: bytes) -> list[int]:
    found: list[int] = json.loads(body)["labels"]
    return found


async def metric(server: Server, line: str) -> float:
    text = (await server.client.http.get("/metrics")).text
    return next((float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line)), 0.0)


# The fast path


def test_answer_goes_out_in_one_piece_behind_the_date() -> None:
    async def scenario(server: Server) -> None:
        seen = asgi_requests(server)
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}'))
        (response,) = await wire.answers()
        assert (response.status, labels(response.body)) == (200, [40])
        assert list(response.headers) == ["date", "content-type", "server-timing", "content-length"]
        assert response.headers["date"] == DATE.decode()
        assert (seen, wire.transport.closed, server.client.app.predict.in_flight) == ([], False, 0)

    on_server(scenario)


def test_request_may_arrive_in_any_two_parts() -> None:
    async def scenario(server: Server) -> None:
        data = predict(b'{"nodes":[3,1]}', b"content-type: application/json")
        wire = server.connect()
        for cut in range(1, len(data)):
            wire.send(data[:cut])
            wire.send(data[cut:])
            assert labels((await wire.answers(cut))[-1].body) == [40, 20]

    on_server(scenario)


def test_head_that_was_seen_before_serves_every_body_of_its_length() -> None:
    async def scenario(server: Server) -> None:
        wire, other = server.connect(), server.connect()
        for count, (node, label) in enumerate([(3, 40), (0, 10), (1, 20), (2, 30)], start=1):
            for end in (wire, other):
                end.send(predict(b'{"nodes":[%d]}' % node))
                assert labels((await end.answers(count))[-1].body) == [label]
        # Another length, another header, another query: other heads.
        wire.send(predict(b'{"nodes":[3, 3]}'))
        assert labels((await wire.answers(5))[-1].body) == [40, 40]
        wire.send(predict(b'{"nodes":[3]}', b"gnnserve-accuracy-tolerance-permille: 10"))
        assert json.loads((await wire.answers(6))[-1].body)["variant"] == "x4"
        wire.send(predict(b'{"nodes":[3]}'))
        assert json.loads((await wire.answers(7))[-1].body)["variant"] == "x1"

    on_server(scenario)


def test_known_head_is_not_taken_for_one_when_its_body_is_still_on_the_way_or_more_follows() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        data = predict(b'{"nodes":[3]}')
        for _ in range(2):
            wire.send(data)
        assert len(await wire.answers(2)) == 2
        wire.send(data[:-3])
        wire.send(data[-3:])
        assert len(await wire.answers(3)) == 3
        wire.send(data + data[:40])
        wire.send(data[40:])
        assert [labels(r.body) for r in await wire.answers(5)] == [[40]] * 5

    on_server(scenario)


def test_body_that_looks_like_a_head_is_a_body() -> None:
    async def scenario(server: Server) -> None:
        inner = predict(b'{"nodes":[3]}')
        wire = server.connect()
        wire.send(inner)
        wire.send(predict(inner))
        wire.send(predict(b"\r\n\r\n" + inner))
        wire.send(b"\r\n\r\n" + inner)
        statuses = [response.status for response in await wire.answers(4)]
        assert statuses == [200, 400, 400, 200]

    on_server(scenario)


def test_known_heads_are_bounded() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        for number in range(3000):
            wire.send(predict(b'{"nodes":[]}', b"x-request-id: %d" % number))
        assert len(wire.responses()) == 3000
        assert len(server.shared.known.by_bytes) <= 1024
        wire.send(predict(b'{"nodes":[]}', b"x-long: " + b"x" * 10_000))
        assert max(map(len, server.shared.known.by_bytes)) < 2000

    on_server(scenario)


def test_pipelined_requests_are_answered_in_order() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        wire = server.connect()
        worker.gate.clear()
        asked = [predict(b'{"nodes":[%d]}' % node) for node in (0, 1, 2, 3)]
        wire.send(asked[0] + asked[1] + b"GET /readyz HTTP/1.1\r\nhost: worker\r\n\r\n" + asked[2])
        await worker.batch_started()
        assert wire.responses() == []
        worker.gate.set()
        responses = await wire.answers(4)
        assert [r.body == b"ok\n" or labels(r.body) for r in responses] == [[10], [20], True, [30]]
        wire.send(asked[3])
        assert labels((await wire.answers(5))[-1].body) == [40]

    on_server(scenario, worker)


def test_refused_and_answered_requests_may_be_pipelined_too() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(b"{") + predict(b'{"nodes":[-1]}') + predict(b'{"nodes":[1]}') + predict(b"[]"))
        assert [response.status for response in await wire.answers(4)] == [400, 400, 200, 400]

    on_server(scenario)


@pytest.mark.parametrize(
    ("headers", "version", "closed"),
    [
        ((), b"1.1", False),
        ((b"connection: keep-alive",), b"1.1", False),
        ((b"Connection: Close",), b"1.1", True),
        ((), b"1.0", True),
        ((b"connection: keep-alive",), b"1.0", True),
        ((b"proxy-connection: keep-alive",), b"1.0", True),
    ],
)
def test_connection_is_kept_as_the_client_asks(headers: tuple[bytes, ...], version: bytes, closed: bool) -> None:
    async def scenario(server: Server) -> None:
        for path in (b"/v1/predict", b"/v1/predict/"):  # ours, and the application's
            wire = server.connect()
            wire.send(predict(b'{"nodes":[3]}', *headers, version=version).replace(b"/v1/predict", path, 1))
            (response,) = await wire.answers()
            assert (response.headers.get("connection"), wire.transport.closed) == ("close" if closed else None, closed)

    on_server(scenario)


def test_leaving_worker_closes_after_each_answer() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(2)]
        worker.gate.clear()
        wires[0].send(predict(b'{"nodes":[3]}'))
        await worker.batch_started()
        server.client.app.leaving = True
        worker.gate.set()
        wires[1].send(predict(b'{"nodes":[-1]}'))
        for wire, status in zip(wires, (200, 400), strict=True):
            (response,) = await wire.answers()
            assert (response.status, response.headers["connection"]) == (status, "close")
            assert wire.transport.closed

    on_server(scenario, worker)


def test_stopping_server_lets_the_request_that_waits_be_answered_and_closes_the_others() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        waiting, idle, half = (server.connect() for _ in range(3))
        idle.send(predict(b'{"nodes":[3]}'))
        await idle.answers()
        worker.gate.clear()
        waiting.send(predict(b'{"nodes":[3]}'))
        half.send(predict(b'{"nodes":[3]}')[:-1])
        await worker.batch_started()
        await worker.batch_started()
        for connection in list(server.shared.connections):
            connection.shut_down()
        assert (waiting.transport.closed, idle.transport.closed, half.transport.closed) == (False, True, False)
        worker.gate.set()
        (response,) = await waiting.answers()
        assert (response.status, response.headers["connection"], waiting.transport.closed) == (200, "close", True)

    on_server(scenario, worker)


def test_client_that_leaves_is_forgotten_and_counted() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        first, second = server.connect(), server.connect()
        worker.gate.clear()
        first.send(predict(b'{"nodes":[1]}'))
        await worker.batch_started()
        second.send(predict(b'{"nodes":[2]}'))
        assert (server.client.engine.queued_seeds, server.client.app.predict.in_flight) == (1, 2)
        for wire in (first, second):
            wire.leave()
        assert (server.client.engine.queued_seeds, server.client.app.predict.in_flight) == (0, 0)
        worker.gate.set()
        assert await metric(server, 'gnnserve_errors_total{reason="ClientGone"') == 2
        third = server.connect()
        third.send(predict(b'{"nodes":[3]}'))
        assert labels((await third.answers())[0].body) == [40]
        assert [seeds for _, seeds in worker.batches] == [[1], [3]]
        assert first.transport.written == b""

    on_server(scenario, worker)


@pytest.mark.parametrize("query", [b"", b"?"])
def test_answers_with_many_numbers_leave_others_their_turn_and_wait_for_their_reader(query: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire, other = server.connect(), server.connect()
        nodes = [i % 1000 for i in range(40_000)]
        wire.send(predict(json.dumps({"nodes": nodes, "return": ["labels", "scores"]}).encode(), query=query))
        while b"\r\n\r\n" not in wire.transport.written:
            await asyncio.sleep(0)
        wire.connection.pause_writing()
        written = -1
        while written != len(wire.transport.written):
            written = len(wire.transport.written)
            other.send(predict(b'{"nodes":[3]}'))
            await other.answers(len(other.responses()) + 1)
        assert wire.responses() == []
        assert server.client.app.predict.in_flight == 1
        wire.connection.resume_writing()
        (response,) = await wire.answers()
        assert response.headers["transfer-encoding"] == "chunked"
        answer = json.loads(response.body)
        assert len(answer["labels"]) == len(answer["scores"]) == 40_000
        assert answer["scores"][39_999] == [-1, -1, -1, 1]
        wire.send(predict(b'{"nodes":[3]}'))
        await wire.answers(2)
        assert server.client.app.predict.in_flight == 0

    on_server(scenario, max_seeds=40_000, max_queued_seeds=40_000)


def test_client_that_leaves_half_way_through_a_large_answer_stops_it() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(json.dumps({"nodes": [0] * 40_000, "return": ["scores"]}).encode()))
        while b"\r\n\r\n" not in wire.transport.written:
            await asyncio.sleep(0)
        wire.connection.pause_writing()
        wire.leave()
        while server.shared.tasks:
            await asyncio.sleep(0)
        assert server.client.app.predict.in_flight == 0

    on_server(scenario, max_seeds=40_000, max_queued_seeds=40_000)


# What the application gets


def test_chunked_body_is_read() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        head = b"POST /v1/predict HTTP/1.1\r\nhost: worker\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.send(head + b"8\r\n" + b'{"nodes"' + b"\r\n")
        wire.send(b"5\r\n:[3]}\r\n0\r\n\r\n")
        assert labels((await wire.answers())[0].body) == [40]

    on_server(scenario)


def test_client_that_expects_to_be_told_to_continue_is_told() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        data = predict(b'{"nodes":[3]}', b"expect: 100-continue")
        end = data.index(b"\r\n\r\n") + 4
        wire.send(data[:end])
        while b"100 Continue" not in wire.transport.written:
            await asyncio.sleep(0)
        wire.send(data[end:])
        responses = await wire.answers(2)
        assert [response.status for response in responses] == [100, 200]

    on_server(scenario)


@pytest.mark.parametrize(
    ("header", "statuses"),
    [
        (b"expect: 100-Continue", [100, 200]),
        (b"expect: 100-continue, 100-continue", [100, 200]),
        (b"expect:", [200]),
    ],
)
def test_bodies_that_do_not_wait_are_answered(header: bytes, statuses: list[int]) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}', header))
        responses = await wire.answers(len(statuses))
        assert [response.status for response in responses] == statuses
        assert labels(responses[-1].body) == [40]

    on_server(scenario)


def test_a_client_of_the_first_version_does_not_wait_to_be_told_to_continue() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        head = b"POST /v1/predict HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 13\r\n\r\n"
        wire.send(head)
        wire.send(b'{"nodes":[3]}')
        (response,) = await wire.answers()
        assert labels(response.body) == [40]

    on_server(scenario)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_offer_of_another_protocol_is_ignored(protocol: bytes) -> None:
    """As of Java's client, which offers HTTP/2 with every first request."""

    async def scenario(server: Server) -> None:
        wire = server.connect()
        for number, name in enumerate((b"Upgrade", b"upgrade", b"Upgrade"), start=1):
            data = predict(b'{"nodes":[3]}', b"Connection: Upgrade, HTTP2-Settings", name + b": " + protocol)
            end = data.index(b"\r\n\r\n") + 4
            wire.send(data[:end])
            wire.send(data[end:])
            assert labels((await wire.answers(number))[-1].body) == [40]

    on_server(scenario)


def test_body_behind_an_offer_that_was_not_seen_in_time_never_passes_for_a_request() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        body = b"GET /healthz HTTP/1.1\r\nhost: smuggled\r\n\r\n"
        data = predict(body, b"connection: upgrade", b"upgrade: h2c")
        cut = data.index(b"upgrade: h2c") + 9  # its head comes in two packets
        wire.send(data[:cut])
        wire.send(data[cut : -len(body)])
        wire.send(body)
        await wire.finished()
        assert [response.status for response in wire.responses()] == [400]

    on_server(scenario)


@pytest.mark.parametrize("path", [b"/v1/predict", b"/docs"])
def test_head_without_an_end_is_refused(path: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"POST " + path + b" HTTP/1.1\r\nhost: w\r\nx: ")
        for _ in range(65):
            if not wire.transport.finished:
                wire.send(b"a" * 1024)
        (response,) = wire.responses()
        assert (response.status, wire.transport.finished) == (431, True)
        assert b"65,536 bytes" in response.body

    on_server(scenario)


def test_body_beyond_the_limit_is_refused_and_what_follows_is_answered() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"POST /v1/predict HTTP/1.1\r\nhost: worker\r\ncontent-length: 17000000\r\n\r\n")
        assert (await wire.answers())[0].status == 413
        for _ in range(17):
            wire.send(b" " * 1_000_000)
        wire.send(predict(b'{"nodes":[3]}'))
        assert labels((await wire.answers(2))[-1].body) == [40]

    on_server(scenario)


def test_client_that_does_not_read_is_answered_when_it_does() -> None:
    async def scenario(server: Server) -> None:
        seen = asgi_requests(server)
        wire = server.connect()
        wire.connection.pause_writing()
        wire.send(predict(b'{"nodes":[3]}'))
        while not seen or server.client.app.predict.in_flight == 0:
            await asyncio.sleep(0)
        assert wire.responses() == []
        wire.connection.resume_writing()
        assert labels((await wire.answers())[0].body) == [40]

    on_server(scenario)


@pytest.mark.parametrize(
    "request_line", [b"GET /v1/predict", b"POST /v1/predict/", b"POST /v1/%70redict", b"POST http://worker/v1/predict"]
)
def test_other_requests_reach_the_application(request_line: bytes) -> None:
    async def scenario(server: Server) -> None:
        seen = asgi_requests(server)
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}').replace(b"POST /v1/predict", request_line))
        await wire.answers()
        assert len(seen) == 1

    on_server(scenario)


POST = b"POST /v1/predict HTTP/1.1\r\nhost: w\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = [
    pytest.param(POST + b"content-length: x\r\n\r\n", id="a length that is no number"),
    pytest.param(POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\n{}\n", id="two lengths"),
    pytest.param(POST + b"content-length: 3, 3\r\n\r\n{}\n", id="a list of lengths"),
    pytest.param(POST + b"content-length: +3\r\n\r\n{}\n", id="a length with a sign"),
    pytest.param(POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", id="a length and chunks"),
    pytest.param(POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", id="chunks and a length"),
    pytest.param(POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", id="chunked twice"),
    pytest.param(POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="chunked is not the last"),
    pytest.param(POST + b"transfer-encoding: identity\r\n\r\n", id="a coding that ends nowhere"),
    pytest.param(POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", id="an invisible character"),
    pytest.param(POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", id="a blank before the colon"),
    pytest.param(POST + b"x: a\r\n b\r\n\r\n", id="a folded header"),
    pytest.param(POST + b"x: y\ncontent-length: 3\r\n\r\n{}\n", id="a bare LF"),
    pytest.param(POST + b"x: y\rcontent-length: 3\r\n\r\n{}\n", id="a bare CR"),
    pytest.param(POST + b"x: a\0b\r\n\r\n", id="a NUL"),
    pytest.param(CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", id="a chunk with a prefix"),
    pytest.param(CHUNKED + b"2\n{}\n0\n\n", id="chunks with bare LFs"),
    pytest.param(CHUNKED + b"2\r\n{}0\r\n\r\n", id="a chunk without an end"),
    pytest.param(b"POST /v1/predict HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks in HTTP/1.0"),
    pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", id="no host"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", id="two hosts"),
    pytest.param(b"GET /healthz HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", id="two hosts in HTTP/1.0"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nhost: a b\r\n\r\n", id="a host with a blank"),
    pytest.param(b"GET healthz HTTP/1.1\r\nhost: w\r\n\r\n", id="a path without its slash"),
    pytest.param(b"GET /\xff HTTP/1.1\r\nhost: w\r\n\r\n", id="a path beyond ASCII"),
    pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
]


@pytest.mark.parametrize("data", SMUGGLED)
def test_what_is_not_http_or_could_be_read_in_two_ways_gets_400_and_is_closed(data: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(data)
        (response,) = await wire.answers()
        await wire.finished()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (400, "MalformedRequest")
        assert response.headers["connection"] == "close"

    on_server(scenario)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "UnsupportedCoding"),
        (POST + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501, "UnsupportedCoding"),
        (b"GET /healthz HTTP/2.0\r\nhost: w\r\n\r\n", 505, "UnsupportedVersion"),
        (b"GET /healthz HTTP/1.2\r\nhost: w\r\n\r\n", 505, "UnsupportedVersion"),
        (b"GET /healthz HTTP/3.0\r\nhost: w\r\n\r\n", 505, "UnsupportedVersion"),
        (b"GET /healthz\r\n\r\n", 505, "UnsupportedVersion"),
        (POST + b"expect: 200-ok\r\ncontent-length: 2\r\n\r\n", 417, "ExpectationFailed"),
        (POST + b"expect: 100-continue, x=1\r\ncontent-length: 2\r\n\r\n", 417, "ExpectationFailed"),
        (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nhost: w\r\n\r\n", 431, "HeadTooLarge"),
        (b"GET /?" + b"a" * 66_000 + b" HTTP/1.1\r\nhost: w\r\n\r\n", 431, "HeadTooLarge"),
    ],
)
def test_what_is_not_supported_is_refused_as_such_and_closed(data: bytes, status: int, code: str) -> None:
    async def scenario(server: Server) -> None:
        for step in (len(data), 1000):
            wire = server.connect()
            for start in range(0, len(data), step):
                if not wire.transport.finished:
                    wire.send(data[start : start + step])
            (response,) = await wire.answers()
            await wire.finished()
            assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)

    on_server(scenario)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1\r\nhost:", b"HTTP/1.1\r\nHost: [::1]:8080", b"HTTP/1.0", b"HTTP/1.0\r\nhost: w"]
)
def test_hosts_that_http_allows_are_answered(head: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"GET /healthz " + head + b"\r\n\r\n")
        assert [response.status for response in await wire.answers()] == [200]

    on_server(scenario)


BODIES = [
    (b'{"nodes":[1,2],"return":["labels","scores","embeddings"]}', ()),
    (b'{"nodes":[1],"objective":{"latencyMs":0.001}}', ()),
    (b'{"nodes":[1],"objective":{"latencyMs":1},"strict":true}', ()),
    (b'{"nodes":[1]}', (b"gnnserve-latency-ms: soon",)),
    (b'{"nodes":[1]}', (b"gnnserve-latency-ms: 1", b"gnnserve-strict: true")),
    (b'{"nodes":[1000]}', ()),
    (b'{"nodes":', ()),
    (b"", ()),
    (b"\1\0\0\0\0\0\0\0", (b"content-type: application/octet-stream",)),
    (b"\1\0\0\0\0\0\0", (b"content-type: application/octet-stream",)),
]


@pytest.mark.parametrize(("body", "headers"), BODIES)
def test_both_ways_say_the_same(body: bytes, headers: tuple[bytes, ...]) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(body, *headers))
        (short,) = await wire.answers()
        named = dict(header.decode().split(": ") for header in headers)
        long = await server.client.http.post("/v1/predict", content=body, headers=named)
        assert (short.status, short.body) == (long.status_code, long.content)
        ours, theirs = dict(short.headers), dict(long.headers)
        for differing in ("date", "server-timing"):
            ours.pop(differing, None)
            theirs.pop(differing, None)
        assert ours == theirs

    on_server(scenario)


FRAMED = {
    "fast path": b'content-length: 13\r\n\r\n{"nodes":[3]}',
    "application": b'transfer-encoding: chunked\r\n\r\nd\r\n{"nodes":[3]}\r\n0\r\n\r\n',
}


@pytest.mark.parametrize("framed", FRAMED.values(), ids=FRAMED)
@pytest.mark.parametrize("name", sorted(WISH_HEADERS))
def test_a_wish_in_two_headers_is_refused(name: bytes, framed: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        repeated = b"%b: 1\r\n%b: 1\r\n" % (name, name.title())
        wire.send(b"POST /v1/predict HTTP/1.1\r\nhost: w\r\n" + repeated + framed)
        (response,) = await wire.answers()
        error = json.loads(response.body)["error"]
        assert (response.status, error["code"], error["field"]) == (400, "InvalidValue", name.decode())
        assert error["message"] == f"{name.decode()}: the request has 2 of these headers; send one"
        assert not wire.transport.closed

    on_server(scenario)


# Patience


QUICK = Patience(request_s=0.02, idle_s=0.02, look_every_s=0.01)


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/pre", predict(b'{"nodes":[3]}')[:-1], b"GET /readyz HTTP/1.1\r\n",
     b"POST /v1/predict HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n5\r\n"],
    ids=["nothing", "half a line", "half a body", "half a head", "half a chunk"],
)  # fmt: skip
def test_client_that_never_completes_its_request_is_closed(sent: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        if sent:
            wire.send(sent)
        await wire.finished()
        assert wire.transport.written == b""
        wire.leave()

    on_server(scenario, patience=QUICK)


@pytest.mark.parametrize("path", [b"/v1/predict", b"/readyz"])
def test_idle_client_is_closed_after_its_answer(path: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}').replace(b"/v1/predict", path))
        await wire.answers()
        await wire.finished()

    on_server(scenario, patience=QUICK)


@pytest.mark.parametrize("chunked", [False, True], ids=["fast path", "the application"])
def test_client_that_waits_for_its_answer_is_not_closed(chunked: bool) -> None:
    worker = FakeWorker()
    data = predict(b'{"nodes":[3]}')
    if chunked:
        data = (
            b'POST /v1/predict HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\nd\r\n{"nodes":[3]}\r\n0\r\n\r\n'
        )

    async def scenario(server: Server) -> None:
        patient, idle = server.connect(), server.connect()
        worker.gate.clear()
        patient.send(data)
        await worker.batch_started()
        await idle.closed()
        late = server.connect()
        await late.closed()
        assert not patient.transport.closed
        worker.gate.set()
        assert labels((await patient.answers())[0].body) == [40]

    on_server(scenario, worker, patience=QUICK)
