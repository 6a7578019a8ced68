"""Every limit that a worker sets to its clients: head, body, nodes, connections."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.support.serving.connections import Server, Wire, predict, serving
from tests.support.serving.serving import FakeWorker

from gnnserve_worker.serving.http.app import MOST_CONNECTIONS, RESERVED_CONNECTIONS
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.http.wire.connection import CLIENT_LOG
from gnnserve_worker.serving.http.wire.http1 import MOST_HEAD_BYTES, MOST_HEADERS
from gnnserve_worker.serving.http.wire.limits import MOST_PIPELINED, Patience, Room
from gnnserve_worker.serving.process.open_files import room_of_process
from gnnserve_worker.serving.repeated import FirstOfAKind, limit_warnings

ROOM = Room(connections=3, reserved=2)
QUICK = Patience(request_s=300, idle_s=300, linger_s=300, unread_s=300, look_every_s=0.01)


def on_server(
    scenario: Callable[[Server], Awaitable[None]],
    room: Room = ROOM,
    patience: Patience | None = None,
    worker: FakeWorker | None = None,
) -> None:
    async def run() -> None:
        async with serving(worker, room=room, patience=patience) as server:
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
            if not wire.transport.finished:
                wire.send(request[start : start + step])
        (response,) = await wire.answers()
        await wire.finished()
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
        announced.send(b"POST /v1/predict HTTP/1.1\r\nhost: w\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
        (response,) = await announced.answers()
        assert (response.status, code_of(response.body)) == (413, "BodyTooLarge")
        chunked = server.connect()
        chunked.send(b"POST /v1/predict HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n")
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


def test_beyond_the_reserved_connections_the_one_that_was_silent_longest_makes_room() -> None:
    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(ROOM.connections + ROOM.reserved)]
        assert not any(wire.transport.closed for wire in wires)
        oldest = wires[ROOM.connections]
        probe = server.connect()
        assert [wire for wire in wires if wire.transport.closed] == [oldest]
        (response,) = oldest.responses()
        assert (response.status, code_of(response.body)) == (503, "TooManyConnections")
        oldest.leave()
        assert await answer(probe, get(b"/healthz")) == (200, "close")

    on_server(scenario)


def test_silent_connections_never_make_a_probe_fail() -> None:
    async def scenario(server: Server) -> None:
        for _ in range(50):
            silent = [server.connect() for _ in range(2 * (ROOM.connections + ROOM.reserved))]
            for path in (b"/healthz", b"/readyz"):
                probe = server.connect()
                assert (await answer(probe, get(path)))[0] == 200
                probe.leave()
            for wire in silent:
                if wire.transport.closed:
                    wire.leave()

    on_server(scenario)


def test_a_reserved_connection_whose_request_is_being_answered_keeps_its_place() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        for _ in range(ROOM.connections):
            server.connect()
        asking = [server.connect() for _ in range(ROOM.reserved)]
        for wire in asking:
            wire.send(b"POST /healthz HTTP/1.1\r\nhost: w\r\ncontent-length: 5\r\n\r\n")
        late = server.connect()
        assert late.transport.closed
        assert [response.status for response in late.responses()] == [503]
        late.leave()
        for wire in asking:
            assert [response.status for response in await wire.answers()] == [405]
            wire.leave()
        assert await answer(server.connect(), get(b"/healthz")) == (200, "close")

    on_server(scenario, worker=worker)


async def look_at(wire: Wire, times: int) -> None:
    """Until it was found idle so often."""
    while wire.connection.idle_looks() < times:
        await asyncio.sleep(0.001)


def test_the_connection_that_was_idle_longest_makes_room_for_a_new_one() -> None:
    async def scenario(server: Server) -> None:
        used, silent, begun = (server.connect() for _ in range(3))
        begun.send(b"POST /v1/pre")
        await look_at(silent, 3)
        while used.connection.idle_looks() != 1:  # it was idle for as long, and is asked again
            assert await answer(used, predict(b'{"nodes":[3]}')) == (200, "")
            await asyncio.sleep(0.001)
        new = server.connect()
        assert silent.transport.aborted
        assert not used.transport.closed
        assert await answer(new, predict(b'{"nodes":[3]}')) == (200, "")
        silent.leave()
        begun.send(predict(b'{"nodes":[3]}').removeprefix(b"POST /v1/pre"))
        assert [response.status for response in await begun.answers()] == [200]

    on_server(scenario, patience=replace(QUICK, look_every_s=0.02))


def test_a_connection_that_waits_for_an_answer_is_never_closed_for_a_new_one() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(ROOM.connections)]
        worker.gate.clear()
        for wire in wires:
            wire.send(predict(b'{"nodes":[3]}'))
        await worker.batch_started()
        idle = server.connect()  # of the reserved ones: the clock by which the others would be idle
        while idle.connection._waited_s < 0.05:
            await asyncio.sleep(0.001)
        assert await answer(server.connect(), predict(b'{"nodes":[3]}')) == (503, "close")
        assert not any(wire.transport.closed for wire in wires)
        worker.gate.set()
        for wire in wires:
            assert [response.status for response in await wire.answers()] == [200]

    on_server(scenario, patience=QUICK, worker=worker)


def test_room_is_made_by_those_who_leave() -> None:
    async def scenario(server: Server) -> None:
        wires = [server.connect() for _ in range(ROOM.connections)]
        wires[0].leave()
        assert await answer(server.connect(), predict(b'{"nodes":[3]}')) == (200, "")

    on_server(scenario)


def test_the_limits_are_those_of_the_page() -> None:
    assert (MOST_HEADERS, MOST_PIPELINED) == (128, 16)
    assert (Patience().request_s, Patience().idle_s, Patience().linger_s, Patience().unread_s) == (60, 75, 30, 60)
    assert (MOST_HEAD_BYTES, MAX_BODY_BYTES) == (64 * 1024, 16 * 1024 * 1024)
    assert (Room().connections, Room().reserved) == (MOST_CONNECTIONS, RESERVED_CONNECTIONS) == (4096, 64)


CHUNKED = b"%b HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = [
    pytest.param(b"0\r\n", b"x-%d: " + b"a" * 1000 + b"\r\n", id="trailers"),
    pytest.param(b"0\r\nx: ", b"a" * 1000, id="the value of a trailer"),
    pytest.param(b"1;", b"a" * 1000, id="what may follow a chunk's length"),
    pytest.param(b"1\r\n \r\n1;x=", b"a" * 1000, id="and behind a chunk"),
]


@pytest.mark.parametrize("line", [b"GET /healthz", b"POST /v1/predict", b"POST /nope"])
@pytest.mark.parametrize(("begin", "more"), ENDLESS)
def test_what_only_frames_a_body_is_not_read_for_ever(line: bytes, begin: bytes, more: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(CHUNKED % line + begin)
        sent = 0
        while not wire.transport.closed:
            wire.send(more.replace(b"%d", b"%d" % sent))
            sent += len(more)
            assert sent < 2 * MOST_HEAD_BYTES
            await asyncio.sleep(0)
        assert sent > MOST_HEAD_BYTES / 2
        wire.leave()

    on_server(scenario)


def test_a_body_of_many_chunks_is_no_endless_frame() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(CHUNKED % b"POST /v1/predict")
        for byte in b'{"nodes":[3]}' + b" " * 30_000:
            wire.send(b"1\r\n%c\r\n" % byte)
        wire.send(b"0\r\nx: y\r\n\r\n")
        assert (await wire.answers())[0].status == 200

    on_server(scenario)


def test_a_body_that_comes_in_single_bytes_takes_little_more_than_its_size() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        body = b'{"nodes":[3]}' + b" " * 5000
        head, _, _ = predict(body).partition(body)
        wire.send(head)
        most = 0
        for byte in body:
            wire.send(bytes([byte]))
            most = max(most, len(wire.connection._parts))
        assert (await wire.answers())[0].status == 200
        assert most < 300

    on_server(scenario)


def test_the_first_bytes_of_a_head_behind_a_body_are_counted_without_the_body() -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        first, second = predict(b'{"nodes":[3]}' + b" " * MOST_HEAD_BYTES), predict(b'{"nodes":[3]}')
        wire.send(first + second[:20])
        wire.send(second[20:])
        assert [response.status for response in await wire.answers(2)] == [200, 200]

    on_server(scenario)


@pytest.mark.parametrize(("headers", "status"), [(MOST_HEADERS - 2, 200), (MOST_HEADERS - 1, 431)])
def test_a_request_has_a_limited_number_of_headers(headers: int, status: int) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}', *[b"x: y"] * headers))
        assert [response.status for response in await wire.answers()] == [status]

    on_server(scenario)


def test_of_pipelined_requests_as_many_as_are_kept_are_answered_and_no_more_are_read() -> None:
    worker = FakeWorker()

    async def scenario(server: Server) -> None:
        wire = server.connect()
        worker.gate.clear()
        wire.send(predict(b'{"nodes":[3]}') + get(b"/healthz") * 100 + predict(b'{"nodes":[3]}'))
        await worker.batch_started()
        assert len(wire.connection.pipelined) == MOST_PIPELINED
        wire.send(get(b"/healthz") * 100)
        assert len(wire.connection.pipelined) == MOST_PIPELINED
        worker.gate.set()
        await wire.finished()
        responses = wire.responses()
        assert [response.status for response in responses] == [200] * (1 + MOST_PIPELINED)
        assert [response.headers.get("connection") for response in responses] == [None] * MOST_PIPELINED + ["close"]

    on_server(scenario, worker=worker)


@pytest.mark.parametrize("rest", [b"", b"12", b"12345"], ids=["nothing", "a part", "all"])
def test_a_client_that_was_answered_before_its_request_was_complete_is_not_kept_for_ever(rest: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(b"GET /healthz HTTP/1.1\r\nhost: w\r\ncontent-length: 5\r\n\r\n")
        assert (await wire.answers())[0].status == 200
        if rest:
            wire.send(rest)
        await wire.closed()

    times = {"idle_s": 0.02} if rest == b"12345" else {"linger_s": 0.02}
    on_server(scenario, patience=replace(QUICK, **times))


@pytest.mark.parametrize("closing", [False, True], ids=["kept", "closed"])
def test_a_client_that_takes_nothing_is_cut_off(closing: bool) -> None:
    async def scenario(server: Server) -> None:
        wire = server.connect()
        wire.send(predict(b'{"nodes":[3]}', *[b"connection: close"] * closing))
        await wire.answers()
        assert wire.transport.closed == closing
        wire.transport.unsent_bytes = 1000
        while not wire.transport.aborted:
            wire.transport.changed.clear()
            await wire.transport.changed.wait()
        wire.leave()

    on_server(scenario, patience=replace(QUICK, unread_s=0.03))


def test_a_client_that_takes_a_little_now_and_then_is_not_cut_off() -> None:
    async def scenario(server: Server) -> None:
        slow, silent = server.connect(), server.connect()
        for wire in (slow, silent):
            wire.send(predict(b'{"nodes":[3]}'))
            await wire.answers()
            wire.transport.unsent_bytes = 10_000
        for _ in range(3):
            while not silent.transport.aborted:
                slow.transport.unsent_bytes -= 1
                await asyncio.sleep(0)
            silent.leave()
            silent = server.connect()
            silent.transport.unsent_bytes = 10_000
        assert not slow.transport.aborted
        silent.leave()

    on_server(scenario, patience=replace(QUICK, unread_s=0.05))


def test_a_connection_beyond_those_for_everybody_cannot_be_held_by_a_request_that_never_ends() -> None:
    async def scenario(server: Server) -> None:
        for _ in range(ROOM.connections):
            server.connect()
        surplus = server.connect()
        surplus.send(b"G")
        surplus.send(b"ET /healthz HT")
        await surplus.closed()

    on_server(scenario, patience=replace(QUICK, surplus_s=0.05))


def test_the_refusal_names_the_room_that_there_is() -> None:
    async def scenario(server: Server) -> None:
        for _ in range(ROOM.connections):
            server.connect()
        oldest, *_others = [server.connect() for _ in range(ROOM.reserved + 1)]
        assert b"there are 3 already" in oldest.responses()[0].body

    on_server(scenario)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        pytest.param(1024, 100_000, 4096 + 64 + 192, 4096, id="raised as far as it helps"),
        pytest.param(1024, resource.RLIM_INFINITY, 4096 + 64 + 192, 4096, id="no hard limit"),
        pytest.param(1024, 2048, 2048, 2048 - 64 - 192, id="the hard limit is less"),
        pytest.param(1024, 1024, None, 1024 - 64 - 192, id="nothing to raise"),
        pytest.param(16, 16, None, 1, id="next to nothing"),
        pytest.param(100_000, 100_000, None, 4096, id="enough"),
        pytest.param(resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 4096, id="no limit"),
    ],
)
def test_there_is_room_for_as_many_connections_as_files_may_be_opened(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    raised: int | None,
    connections: int,
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    assert room_of_process(0) == Room(connections)
    assert set_to == ([] if raised is None else [(raised, hard)])
    assert ("raise the hard limit" in caplog.text) == (connections < 4096)


def test_warnings_that_a_client_can_cause_are_logged_once_in_a_while_with_their_number() -> None:
    kept = FirstOfAKind(every_s=10)

    def log(at_s: float, words: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("clients", level, __file__, 1, words, None, None)
        record.created = at_s
        return record.getMessage() if kept.filter(record) else None

    assert [log(100.0 + number, "bad") for number in range(4)] == ["bad", None, None, None]
    assert log(102.0, "another") == "another"
    assert [log(103.0, "worse", logging.ERROR) for _ in range(2)] == ["worse"] * 2
    assert log(110.5, "bad") == "bad (3 more of them since the last one that was logged)"
    assert log(121.0, "bad") == "bad"
    assert log(50.0, "bad") == "bad"  # the clock was set back


def test_malformed_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    limit_warnings(CLIENT_LOG)

    async def scenario(server: Server) -> None:
        for _ in range(50):
            wire = server.connect()
            wire.send(b"\x16\x03\x01")
            wire.leave()

    on_server(scenario)
    assert caplog.text.count("Invalid HTTP request") <= 1
