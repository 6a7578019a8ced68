"""Every limit that a worker sets to its clients: head, body, nodes, connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from tests.support.connections import Server, Wire, predict, serving

from gnnserve_worker.serving.app import MOST_CONNECTIONS, MOST_HEAD_BYTES, RESERVED_CONNECTIONS
from gnnserve_worker.serving.connection import Room
from gnnserve_worker.serving.predict import MAX_BODY_BYTES

ROOM = Room(connections=3, reserved=2)


def on_server(scenario: Callable[[Server], Awaitable[None]], room: Room = ROOM) -> None:
    async def run() -> None:
        async with serving(room=room) as server:
            await scenario(server)

    asyncio.run(run())


def get(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nhost: w\r\n\r\n"


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


@pytest.mark.parametrize("path", [b"/v1/predict", b"/v1/route", b"/nope"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_head_beyond_the_limit_gets_431_however_it_comes(path: bytes, at_once: bool) -> None:
    async def scenario(server: Server) -> None:
        head = b"POST " + path + b" HTTP/1.1\r\nhost: w\r\ncontent-length: 2\r\nx: " + b"a" * MOST_HEAD_BYTES
        wire = server.connect()
        request = head + b"\r\n\r\n{}"
        step = len(request) if at_once else 1000
        for start in range(0, len(request), step):
            if not wire.transport.closed:
                wire.send(request[start : start + step])
        (response,) = await wire.answers()
        await wire.closed()
        assert (response.status, code_of(response.body)) == (431, "HeadTooLarge")
        assert response.headers["connection"] == "close"

    on_server(scenario)


def test_a_head_at_the_limit_is_read() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        filler = MOST_HEAD_BYTES - len("/v1/predict" + "host" + "worker" + "content-length" + "13" + "x")
        wire.send(predict(b'{"nodes":[3]}', b"x:" + b"a" * filler))
        assert (await wire.answers())[0].status == 200

    on_server(scenario)


def test_a_body_beyond_the_limit_gets_413_announced_or_not() -> None:
    async def scenario(server: Server) -> None:
        announced = server.connect()
        announced.send(b"POST /v1/predict HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
        (response,) = await announced.answers()
        assert (response.status, code_of(response.body)) == (413, "BodyTooLarge")
        chunked = server.connect()
        chunked.send(b"POST /v1/predict HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
        for _ in range(17):
            chunked.send(piece)
            while not chunked.transport.reading:
                await asyncio.sleep(0)
        (response,) = await chunked.answers()
        assert (response.status, code_of(response.body)) == (413, "BodyTooLarge")

    on_server(scenario)


async def answer(wire: Wire, request: bytes) -> tuple[int, str]:
    wire.send(request)
    response = (await wire.answers())[-1]
    return response.status, response.headers.get("connection", "")


def test_beyond_the_connections_for_everybody_probes_and_scrapes_are_answered_and_nobody_else() -> None:
    async def scenario(server: Server) -> None:
        kept = [server.connect() for _ in range(ROOM.connections)]
        for wire in kept:  # their head is known now
            assert await answer(wire, predict(b'{"nodes":[3]}')) == (200, "")
        for path in (b"/healthz", b"/readyz", b"/metrics", b"/v1/route"):
            surplus = server.connect()
            assert await answer(surplus, get(path)) == (200, "close")
            await surplus.closed()
            surplus.leave()
        for request in (predict(b'{"nodes":[3]}'), get(b"/v1/variants"), get(b"/")):
            surplus = server.connect()
            assert await answer(surplus, request) == (503, "close")
            assert code_of(surplus.responses()[0].body) == "TooManyConnections"
            assert surplus.responses()[0].headers["retry-after"] == "1"
            await surplus.closed()
            surplus.leave()
        assert (await kept[0].answers(1))[0].status == 200  # nobody who was there was sent away
        assert not any(wire.transport.closed for wire in kept)

    on_server(scenario)


def test_beyond_the_reserved_connections_nobody_is_heard() -> None:
    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(ROOM.connections + ROOM.reserved)]
        assert not any(wire.transport.closed for wire in wires)
        late = server.connect()
        assert late.transport.closed
        (response,) = late.responses()
        assert (response.status, code_of(response.body)) == (503, "TooManyConnections")
        late.leave()
        wires[-1].leave()
        assert await answer(server.connect(), get(b"/healthz")) == (200, "close")

    on_server(scenario)


def test_room_is_made_by_those_who_leave() -> None:
    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(ROOM.connections)]
        wires[0].leave()
        assert await answer(server.connect(), predict(b'{"nodes":[3]}')) == (200, "")

    on_server(scenario)


def test_the_limits_are_those_of_the_page() -> None:
    assert (MOST_HEAD_BYTES, MAX_BODY_BYTES) == (64 * 1024, 16 * 1024 * 1024)
    assert (Room().connections, Room().reserved) == (MOST_CONNECTIONS, RESERVED_CONNECTIONS) == (4096, 64)
