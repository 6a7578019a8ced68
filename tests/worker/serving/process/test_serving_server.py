"""The worker as a process: sockets, keep-alive, clients that leave, signals, and a busy port."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from collections.abc import Iterator

import pytest
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.connections import predict, read_responses
from tests.support.serving.serving import HELD_NODE, FakeWorker, service, with_compute
from tests.support.serving.serving_process import Worker, started

from gnnserve_api.errors import RepositoryError, ResourceError
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.server import serve_revision


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with started() as running:
        yield running


def ask(connection: http.client.HTTPConnection, *nodes: int) -> None:
    connection.request("POST", "/v1/predict", json.dumps({"nodes": nodes}))


def answer(connection: http.client.HTTPConnection) -> tuple[int, dict[str, object]]:
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, str]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def metric(connection: http.client.HTTPConnection, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(connection, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0


def test_connection_is_kept_alive_over_answers_and_errors(worker: Worker) -> None:
    connection = worker.connect()
    sock = connection.sock
    for nodes, status in ([(1,), 200], [(-1,), 400], [(2,), 200]):
        ask(connection, *nodes)
        assert answer(connection)[0] == status
    assert connection.sock is sock


def test_huge_body_is_refused_and_the_connection_still_works(worker: Worker) -> None:
    connection = worker.connect()
    connection.request("POST", "/v1/predict", b" " * (17 * 2**20))
    status, body = answer(connection)
    assert (status, body["error"]["code"]) == (413, "BodyTooLarge")  # type: ignore[index]
    ask(connection, 1)
    assert answer(connection)[0] == 200


_ONE, _TWO = predict(b'{"nodes":[1]}'), predict(b'{"nodes":[2,2]}')
_CHUNKED = b'POST /v1/predict HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\nd\r\n{"nodes":[1]}\r\n0\r\n\r\n'
_LARGE = json.dumps({"nodes": [3] * 500, "return": ["labels", "scores", "embeddings"]}).encode()


@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([_ONE, _ONE, _TWO], [200] * 3),
        ([bytes([byte]) for byte in _ONE], [200]),
        ([_ONE + _TWO + _CHUNKED + _ONE, _ONE], [200] * 5),
        ([_ONE[:50], _ONE[50:] + _TWO[:70], _TWO[70:]], [200] * 2),
        ([predict(b'{"nodes":[1]}', b"expect: 100-continue"), _ONE], [200] * 2),
        ([predict(b"{"), _ONE, predict(_LARGE), _ONE], [400, 200, 200, 200]),
        ([predict(b"\1" + b"\0" * 7, b"content-type: application/octet-stream"), _ONE], [200] * 2),
        ([predict(b" " * 2_000_000 + b'{"nodes":[1]}'), _ONE], [200] * 2),
    ],
    ids=["in turn", "byte by byte", "pipelined", "cut anywhere", "expect", "refused and large", "binary", "long"],
)
def test_bytes_on_the_wire_are_answered_in_order(worker: Worker, parts: list[bytes], statuses: list[int]) -> None:
    received = bytearray()
    with socket.create_connection(("127.0.0.1", worker.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
        while len(found := [r for r in read_responses(received) if r.status != 100]) < len(statuses):
            data = client.recv(65536)
            assert data, "closed"
            received += data
    assert [response.status for response in found] == statuses
    ours = [json.loads(r.body)["labels"] for r in found if r.status == 200 and r.body[:1] == b"{"]
    assert all(set(labels) <= {20, 30, 40} for labels in ours)


def test_request_of_a_client_that_left_is_dropped() -> None:
    # A worker of its own: one that has answered many requests may expect so little of the held batch that it computes
    # it on the event loop.
    with started() as worker:
        holder, leaver, observer = worker.connect(), worker.connect(), worker.connect()
        ask(holder, HELD_NODE)
        worker.wait_until_held()
        ask(leaver, 5)
        while metric(observer, 'gnnserve_queue_seeds{service="digits"}') != 1:
            pass
        leaver.close()
        while metric(observer, 'gnnserve_errors_total{reason="ClientGone",service="digits"}') != 1:
            pass
        assert metric(observer, 'gnnserve_queue_seeds{service="digits"}') == 0
        worker.release()
        assert answer(holder)[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_worker_answers_what_it_accepted_refuses_the_rest_and_exits_with_success(
    number: signal.Signals,
) -> None:
    with started() as worker:
        computed, queued, late, prober = (worker.connect() for _ in range(4))
        ask(computed, HELD_NODE)
        worker.wait_until_held()
        ask(queued, 5)
        while metric(prober, 'gnnserve_queue_seeds{service="digits"}') != 1:
            pass
        worker.process.send_signal(number)
        # Before it drains, it says for a moment that it is about to, and accepts what comes then.
        while "draining" not in get(prober, "/readyz")[1]:
            pass
        ask(late, 6)
        response = late.getresponse()
        assert (response.status, response.getheader("retry-after")) == (503, "1")
        newcomer = worker.connect()
        ask(newcomer, 7)
        assert answer(newcomer)[0] == 503
        worker.release()
        assert (answer(computed)[0], answer(queued)[0]) == (200, 200)
        assert worker.process.wait(timeout=WAIT_S) == 0
        assert worker.process.stderr is not None
        assert worker.process.stderr.read() == ""


def test_second_interrupt_does_not_wait_for_the_queue() -> None:
    with started() as worker:
        computed, queued, prober = (worker.connect() for _ in range(3))
        ask(computed, HELD_NODE)
        worker.wait_until_held()
        ask(queued, 5)
        while metric(prober, 'gnnserve_queue_seeds{service="digits"}') != 1:
            pass
        worker.process.send_signal(signal.SIGINT)
        # Before it drains, it says for a moment that it is about to, and accepts what comes then.
        while "draining" not in get(prober, "/readyz")[1]:
            pass
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(timeout=WAIT_S) == 0


def test_busy_port_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"127\.0\.0\.1:{port}: the port is in use; .*--port"):
            bind("127.0.0.1", port)


def test_freed_port_can_be_taken_at_once() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            first.accept()[0].close()
            client.recv(1)
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("192.0.2.1", 8080, "does not have the address"), ("127.0.0.1", 70_000, "no such port")],
)
def test_impossible_address_is_named(host: str, port: int, message: str) -> None:
    with pytest.raises(ResourceError, match=message):
        bind(host, port)


def test_worker_that_cannot_load_its_revision_ends_with_the_reason() -> None:
    def fail() -> None:
        raise RepositoryError("tables/features.npy", "is gone", "generate it again")

    revision = with_compute(FakeWorker().revision(), warm_up=fail)
    announced: list[str] = []
    with pytest.raises(RepositoryError, match="is gone"):
        serve_revision(revision, service(), bind("127.0.0.1", 0), lambda: announced.append("ready"))
    assert announced == []


def test_port_taken_between_binding_and_serving_is_named() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, bind("127.0.0.1", port) as second:
        second.listen()
        with pytest.raises(ResourceError, match=f":{port}: the port is in use"):
            serve_revision(FakeWorker().revision(), service(), first, lambda _: None)
