"""Answers that are sent before their request has come: a client that reads nothing before it has sent everything gets
them, and costs the worker no more than a limited time and number of bytes that are not kept."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.machine.waiting import WAIT_S, until
from tests.support.serving.certificates import make_key_pair, trusting
from tests.support.serving.connections import Server, Wire, predict, read_responses, serving
from tests.support.serving.secured_worker import Running, started
from tests.support.serving.serving import FakeWorker

from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.http.wire import connection as connection_module
from gnnserve_worker.serving.http.wire.limits import MOST_LINGERED_BYTES, MOST_PIPELINED, Patience, Room
from gnnserve_worker.serving.http.wire.listener import HttpListener
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.serving.security.tls import KeyPairFiles

ACCEPTED = "alpha-0123456789abcdef"
BODY_BYTES = 17 * 1024 * 1024
"""More than the buffers of both sockets hold, so that a client cannot have sent it before it is answered."""
_PIECE = b"x" * 2**20
_TRUSTED = b"authorization: Bearer " + ACCEPTED.encode()
_JSON = b"content-type: application/json"
_LENGTH = b"content-length: %d" % BODY_BYTES


def head(first: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([first, b"host: w", *headers, b"", b""])


def post(path: bytes, *headers: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return head(b"POST %b %b" % (path, version), _TRUSTED, _JSON, *headers)


REFUSALS = {
    "no token": (head(b"POST /v1/predict HTTP/1.1", _LENGTH), 401),
    "no request may write": (post(b"/v1/labels", _LENGTH), 403),
    "no such path": (post(b"/nowhere", _LENGTH), 404),
    "another method": (post(b"/healthz", _LENGTH), 405),
    "another method of a prediction": (post(b"/v1/predict", _LENGTH).replace(b"POST", b"PUT", 1), 405),
    "announced as too large": (post(b"/v1/predict", _LENGTH), 413),
    "another coding of the content": (
        post(b"/v1/predict", b"content-length: %d" % MAX_BODY_BYTES, b"content-encoding: br"),
        415,
    ),
    "an expectation": (post(b"/v1/predict", _LENGTH, b"expect: wonders"), 417),
    "two hosts": (post(b"/v1/predict", _LENGTH, b"host: other"), 400),
    "two lengths": (post(b"/v1/predict", _LENGTH, b"content-length: 1"), 400),
    "no HTTP": (b"\x16\x03\x01" * 20, 400),
    "a long head": (b"POST /v1/predict HTTP/1.1\r\nhost: w\r\nx: ", 431),
    "many headers": (post(b"/v1/predict", _LENGTH, *[b"x: y"] * 200), 431),
    "another coding of the transfer": (
        post(b"/v1/predict", b"transfer-encoding: gzip, chunked") + b"%x\r\n" % BODY_BYTES,
        501,
    ),
    "another version": (post(b"/v1/predict", _LENGTH, version=b"HTTP/7.3"), 505),
    "an offer of another protocol": (post(b"/nowhere", _LENGTH, b"connection: upgrade", b"upgrade: h2c"), 404),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeyPairFiles, Path]:
    folder = tmp_path_factory.mktemp("linger")
    tokens = folder / "tokens"
    tokens.write_text(f"{ACCEPTED}\n")
    return make_key_pair(folder), tokens


@pytest.fixture(scope="module", params=["plain", "TLS", "beside another service"])
def worker(request: pytest.FixtureRequest, files: tuple[KeyPairFiles, Path]) -> Iterator[tuple[Running, Path | None]]:
    pair, tokens = files
    tls = pair if request.param == "TLS" else None
    with started(Credentials(tls, tokens), has_neighbour=request.param == "beside another service") as running:
        yield running, None if tls is None else pair.certificate


@contextmanager
def connected(running: Running, trusted: Path | None = None) -> Iterator[socket.socket]:
    with ExitStack() as opened:
        sock = opened.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S))
        if trusted is None:
            yield sock
            return
        context = trusting(trusted)
        yield opened.enter_context(context.wrap_socket(sock, server_hostname="localhost"))


def send_all(sock: socket.socket, begin: bytes) -> None:
    """Send a head and its body, as a client does that reads nothing before."""
    sock.sendall(begin)
    sent = 0
    while sent < BODY_BYTES:
        sock.sendall(_PIECE)
        sent += len(_PIECE)


def read_answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """The first answer. Fails where the connection is reset before it has come."""
    received = b""
    while not (found := read_responses(received)):
        piece = sock.recv(65536)
        assert piece, f"closed behind {received!r}"
        received += piece
    return found[0].status, found[0].headers, found[0].body


def read_end(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


@pytest.mark.campaign
@pytest.mark.parametrize("closing", [False, True], ids=["kept alive", "to be closed"])
def test_every_early_refusal_can_be_read_by_a_client_that_sends_everything_first(
    worker: tuple[Running, Path | None], closing: bool
) -> None:
    running, trusted = worker
    for name, (refused, status) in REFUSALS.items():
        begin = refused.replace(b"host: w\r\n", b"host: w\r\nconnection: close\r\n", 1) if closing else refused
        with connected(running, trusted) as sock:
            send_all(sock, begin)
            answered, headers, body = read_answer(sock)
            assert answered == status, (name, body)
            assert "error" in json.loads(body), name
            if closing and b"connection: close" in begin:
                assert headers["connection"] == "close", name


def test_body_that_grows_too_large_can_be_refused_readably(worker: tuple[Running, Path | None]) -> None:
    running, trusted = worker
    with connected(running, trusted) as sock:
        sock.sendall(post(b"/v1/predict", b"transfer-encoding: chunked", b"connection: close"))
        for _ in range(20):
            sock.sendall(b"%x\r\n%b\r\n" % (len(_PIECE), _PIECE))
        sock.sendall(b"0\r\n\r\n")
        assert read_answer(sock)[0] == 413
        read_end(sock)


def test_connection_is_closed_as_soon_as_the_refused_request_has_come(worker: tuple[Running, Path | None]) -> None:
    running, trusted = worker
    with connected(running, trusted) as sock:
        send_all(sock, post(b"/nowhere", _LENGTH, b"connection: close"))
        assert read_answer(sock)[0] == 404
        read_end(sock)  # by TLS too, whose sending half cannot be closed by itself


def test_more_pipelined_requests_than_are_kept_do_not_cost_the_answers_of_those_that_are(
    worker: tuple[Running, Path | None],
) -> None:
    running, trusted = worker
    body = b"x" * 2**20
    with connected(running, trusted) as sock:
        begin = post(b"/nowhere", b"content-length: %d" % len(body))
        for _ in range(2 * MOST_PIPELINED):
            sock.sendall(begin + body)
        received = b""
        while not received.count(b"NotFound"):
            received += sock.recv(65536)
        assert read_responses(received)[0].status == 404


def test_stopping_server_lets_a_refused_client_end(files: tuple[KeyPairFiles, Path]) -> None:
    with started(Credentials(None, files[1])) as running, connected(running) as sock:
        sock.sendall(post(b"/nowhere", _LENGTH))
        sock.sendall(_PIECE)
        running.worker._process.should_exit = True
        until(lambda: not accepts(running), "it accepts no more")
        for _ in range(BODY_BYTES // len(_PIECE) - 1):
            sock.sendall(_PIECE)
        assert read_answer(sock)[0] == 404
        read_end(sock)


def accepts(running: Running) -> bool:
    try:
        with connected(running):
            return True
    except OSError:
        return False


_INFER = "/inference.GRPCInferenceService/ModelInfer"
_WITH_TOKEN = (("authorization", f"Bearer {ACCEPTED}"),)


@pytest.mark.parametrize(
    ("method", "metadata", "size_bytes", "status"),
    [
        pytest.param(_INFER, (), BODY_BYTES, grpc.StatusCode.UNAUTHENTICATED, id="no token"),
        pytest.param("/no.Such/Call", _WITH_TOKEN, BODY_BYTES, grpc.StatusCode.UNIMPLEMENTED, id="no such call"),
        pytest.param(_INFER, _WITH_TOKEN, 40 * 2**20, grpc.StatusCode.RESOURCE_EXHAUSTED, id="a large message"),
    ],
)
def test_call_of_grpc_that_is_refused_unread_gets_its_status(
    files: tuple[KeyPairFiles, Path],
    method: str,
    metadata: tuple[tuple[str, str], ...],
    size_bytes: int,
    status: grpc.StatusCode,
) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with (
        started(Credentials(None, files[1]), with_grpc=True) as running,
        grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}", options=options) as channel,
    ):
        call = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"x" * size_bytes, metadata=metadata, timeout=WAIT_S)
        assert caught.value.code() is status


# Bounds

QUICK = Patience(
    request_s=300, idle_s=300, linger_s=300, linger_silent_s=300, unread_s=300, surplus_s=300, look_every_s=0.01
)
LATER = post(b"/nowhere", _LENGTH, b"connection: close")
UNREADABLE = b"\x16\x03\x01" * 20


def on_server(scenario: Callable[[Server], Awaitable[None]], patience: Patience = QUICK, **of: Any) -> None:
    async def run() -> None:
        async with serving(FakeWorker(), patience=patience, **of) as server:
            await scenario(server)

    asyncio.run(run())


async def lingering(server: Server, begin: bytes = LATER) -> Wire:
    """A client whose request was answered, and the connection half closed."""
    wire = server.connect()
    wire.send(begin)
    await wire.answers()
    while not wire.transport.ended:
        await asyncio.sleep(0)
    assert not wire.transport.closed
    return wire


def test_documented_limits_of_lingering() -> None:
    assert (Patience().linger_s, Patience().linger_silent_s, MOST_LINGERED_BYTES) == (30, 5, 256 * 2**20)


@pytest.mark.parametrize("begin", [LATER, UNREADABLE], ids=["refused", "unreadable"])
def test_client_that_sends_nothing_more_is_closed(begin: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = await lingering(server, begin)
        await wire.closed()

    on_server(scenario, replace(QUICK, linger_silent_s=0.02))


@pytest.mark.campaign
@pytest.mark.parametrize("sends", [False, True], ids=["sends nothing", "sends on"])
def test_client_that_still_takes_its_answer_is_not_cut_off(sends: bool) -> None:
    async def scenario(server: Server) -> None:
        wire = await lingering(server)
        for unsent_bytes in range(40, 0, -1):
            wire.transport.unsent_bytes = unsent_bytes
            if sends:
                wire.send(b"x")
            await asyncio.sleep(0.01)
            assert not wire.transport.closed
        wire.transport.unsent_bytes = 0
        await wire.closed()

    on_server(scenario, replace(QUICK, linger_s=0.1, linger_silent_s=0.1))


@pytest.mark.parametrize("begin", [LATER, UNREADABLE], ids=["refused", "unreadable"])
def test_client_that_sends_a_little_now_and_then_is_cut_off_in_the_end(begin: bytes) -> None:
    async def scenario(server: Server) -> None:
        wire = await lingering(server, begin)
        while not wire.transport.aborted:
            wire.send(b"x")
            await asyncio.sleep(0.001)

    on_server(scenario, replace(QUICK, linger_s=0.05, linger_silent_s=0.05))


@pytest.mark.parametrize("kept", [False, True], ids=["to be closed", "kept alive"])
def test_client_that_sends_without_end_is_cut_off_and_nothing_of_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(connection_module, "MOST_LINGERED_BYTES", 64 * 2**20)

    async def scenario(server: Server) -> None:
        begin = post(b"/nowhere", b"content-length: 999999999999999", *[b"connection: close"] * (not kept))
        wire = server.connect()
        wire.send(begin)
        await wire.answers()
        tracemalloc.start()
        sent_bytes = 0
        while not wire.transport.aborted:
            wire.send(_PIECE)
            sent_bytes += len(_PIECE)
            await asyncio.sleep(0)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sent_bytes == 65 * 2**20
        assert peak_bytes < 4 * 2**20

    on_server(scenario)


def test_what_comes_behind_the_last_answer_is_not_answered() -> None:
    async def scenario(server: Server) -> None:
        ask = predict(b'{"nodes":[3]}')
        first = server.connect()
        first.send(ask)  # its head is known from now on
        await first.answers()
        for begin in (UNREADABLE, LATER, ask + ask):
            server.client.app.leaving = begin == ask + ask  # of two requests at once it answers the first
            wire = await lingering(server, begin)
            for _ in range(3):
                wire.send(ask)
                await asyncio.sleep(0)
            assert len(wire.responses()) == 1

    on_server(scenario)


def test_what_comes_behind_a_refused_request_that_has_ended_is_not_computed() -> None:
    async def run() -> None:
        fake, ask = FakeWorker(), predict(b'{"nodes":[3]}')
        async with serving(fake, patience=QUICK) as server:
            other = server.connect()
            other.send(ask)  # its head is known from now on
            await other.answers()
            wire = await lingering(server, post(b"/nowhere", b"content-length: 4", b"connection: close"))
            wire.send(b"body")
            wire.send(ask)
            other.send(ask)
            await other.answers(2)
            assert len(fake.batches) == 2
            assert [len(seeds) for _, seeds in fake.batches] == [1, 1]
            assert server.client.app.predict.in_flight == 0

    asyncio.run(run())


def test_lingering_clients_make_room_for_new_ones() -> None:
    room = Room(connections=3, reserved=2)

    async def scenario(server: Server) -> None:
        wires = [await lingering(server) for _ in range(room.connections)]
        for wire in wires:
            new = server.connect()
            assert wire.transport.aborted
            new.send(predict(b'{"nodes":[3]}'))
            assert (await new.answers())[0].status == 200
            wire.leave()

    on_server(scenario, room=room)


def test_lingering_clients_never_make_a_probe_fail() -> None:
    room = Room(connections=3, reserved=2)

    async def scenario(server: Server) -> None:
        for _ in range(room.connections):
            server.connect()
        for _ in range(5):
            surplus = [await lingering(server) for _ in range(room.reserved)]
            probe = server.connect()
            assert [wire.transport.aborted for wire in surplus] == [True, False]
            probe.send(b"GET /healthz HTTP/1.1\r\nhost: w\r\n\r\n")
            assert (await probe.answers())[0].status == 200
            for wire in (*surplus, probe):
                wire.leave()

    on_server(scenario, room=room)


def test_stopping_server_does_not_wait_for_lingering_clients_for_long() -> None:
    async def scenario(server: Server) -> None:
        listener = HttpListener(server.client.app, QUICK)
        listener.shared = server.shared
        wires = [await lingering(server, begin) for begin in (LATER, UNREADABLE)]
        kept = server.connect()
        kept.send(LATER.replace(b"connection: close\r\n", b""))
        await kept.answers()
        assert not kept.transport.ended
        closing = asyncio.create_task(listener.close(0.05, lambda: False))
        while not kept.transport.ended:
            await asyncio.sleep(0)
        assert not any(wire.transport.closed for wire in (*wires, kept))
        await closing
        assert all(wire.transport.aborted for wire in (*wires, kept))

    on_server(scenario)
