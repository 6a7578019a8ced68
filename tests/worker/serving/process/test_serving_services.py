"""Several services in one server: addresses, tokens, metrics, readiness and trouble of their own."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.connections import predict
from tests.support.serving.serving import FakeWorker, service
from tests.support.serving.several_services import NAMES, Running, started
from tritonclient.utils import InferenceServerException

from gnnserve_api.errors import GnnserveError
from gnnserve_worker.serving.engine.answer_health import LEAST_FAILURES
from gnnserve_worker.serving.engine.model import ModelState, ServedModel
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.http.wire.limits import Room
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process import process, server
from gnnserve_worker.serving.security.credentials import Credentials


def test_each_service_answers_at_its_own_address_by_its_own_revision() -> None:
    with started() as running:
        first = running.server.services["first"]
        assert first.revision is None
        running.switch("first", FakeWorker(name="a"))
        assert first.revision == running.get("first", "/v1/route").json()["revision"]
        assert (running.get("first", "/readyz").status_code, running.get("second", "/readyz").status_code) == (200, 503)
        assert running.ask("second").status_code == 503
        running.switch("second", FakeWorker(name="b", shift=1))
        answers = {name: running.ask(name).json() for name in NAMES}
        assert [answers[name]["labels"] for name in NAMES] == [[10], [20]]
        assert answers["first"]["revision"] != answers["second"]["revision"]
        for name in NAMES:
            counted = running.get(name, "/metrics").text.splitlines()
            assert f'gnnserve_requests_total{{outcome="unbounded",service="{name}"}} 1.0' in counted
            assert not any(f'service="{other}"' in line for line in counted for other in NAMES if other != name)


def test_other_threads_learn_of_failing_answers_what_the_event_loop_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_variant: str, _seeds: np.ndarray) -> None:
        raise IndexError("a table of wrong bytes")

    seen_by: set[threading.Thread] = set()
    why_failing = ServedModel.why_failing

    def noted(model: ServedModel) -> str:
        seen_by.add(threading.current_thread())
        return why_failing(model)

    monkeypatch.setattr(ServedModel, "why_failing", noted)
    failing, other = FakeWorker(name="a", fail=fail).revision(), FakeWorker(name="b").revision()
    with started() as running:
        served = running.server.services["first"]
        served.switch(failing, service().spec.routing_table(failing.manifest.revision), 0.0)
        assert served.why_failing(failing) == ""
        for _ in range(LEAST_FAILURES):
            assert running.ask("first").status_code == 500
        assert served.why_failing(failing).startswith(f"{LEAST_FAILURES} of its last {LEAST_FAILURES} answers failed")
        assert served.why_failing(other) == ""
    assert threading.current_thread() not in seen_by


def test_connections_that_are_given_up_are_closed_with_their_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LINGER_S", 0.05)
    with started() as running:
        connections = running.server.services["second"].listener.shared.connections
        url = httpx.URL(running.urls["second"])
        with socket.create_connection((url.host, url.port), WAIT_S) as client:
            client.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert running.get("second", "/readyz").status_code == 503  # which is read after it
            assert connections
            running.server.remove("second")
            assert all(connection.transport.is_closing() for connection in connections)


def test_a_service_whose_batches_fail_or_that_is_withdrawn_leaves_the_other_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_variant: str, _seeds: np.ndarray) -> None:
        raise MemoryError("no room for the rows")

    with started() as running:
        running.switch("first", FakeWorker(name="a", fail=fail))
        running.switch("second", FakeWorker(name="b"))
        for _ in range(3):
            assert running.ask("first").status_code == 500
            assert running.ask("second").status_code == 200
        broken = FakeWorker(name="a").revision()
        first = running.server.services["first"]
        first.switch(broken, service().spec.routing_table(broken.manifest.revision), 0.0)
        first.withdraw(broken, "its table was written to")
        assert running.ask("first").status_code == 503
        assert "written to" in running.get("first", "/readyz").text
        assert running.ask("second").status_code == 200
        assert running.get("second", "/readyz").status_code == 200
        assert running.get("first", "/healthz").status_code == 200
    caplog.clear()


def test_tokens_are_each_services_own(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in NAMES}
    for name, file in files.items():
        file.write_text(f"{name}-{'x' * 20}\n")
    with started({name: Credentials(tokens=file) for name, file in files.items()}) as running:
        for name in NAMES:
            running.switch(name, FakeWorker(name=name))
        for name in NAMES:
            for holder in NAMES:
                status = running.ask(name, authorization=f"Bearer {holder}-{'x' * 20}").status_code
                assert status == (200 if name == holder else 401)


def test_v2_names_are_those_of_the_address() -> None:
    with started() as running:
        for name in NAMES:
            running.switch(name, FakeWorker(name=name))
        assert running.get("first", "/v2/models/first/ready").status_code == 200
        found = running.get("first", "/v2/models/second/ready")
        assert found.status_code == 404
        assert "second" in json.dumps(found.json())


def test_a_server_may_begin_without_services_and_end_so() -> None:
    with started(names=()) as running:
        running.add("first")
        assert running.get("first", "/readyz").status_code == 503
        running.switch("first", FakeWorker())
        assert running.ask("first").json()["labels"] == [10]
        running.server.remove("first")
        assert running.server.services == {}


def test_services_come_and_go_while_others_answer() -> None:
    answered: list[int] = []
    asking = True

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            while asking:
                answered.append(client.post("/v1/predict", json={"nodes": [0]}).status_code)

    with started() as running:
        running.switch("first", FakeWorker(name="a"))
        asker = threading.Thread(target=ask, args=(running.urls["first"],))
        asker.start()
        for shift in range(3):
            running.add("third", share=2.0)
            running.switch("third", FakeWorker(name="c", shift=shift))
            assert running.ask("third").json()["labels"] == [10 * (shift + 1)]
            running.server.remove("third")
            with pytest.raises(httpx.ConnectError):
                running.ask("third")
            seen = len(answered)
            while len(answered) < seen + 20:
                pass
        asking = False
        asker.join()
        assert running.ask("second").status_code == 503, "nothing was brought to it"
    assert set(answered) == {200}


def test_a_removed_service_answers_what_it_accepted_and_refuses_the_rest() -> None:
    slow = FakeWorker(name="a")
    outcomes: queue.Queue[httpx.Response] = queue.Queue()
    with started() as running, httpx.Client(base_url=running.urls["first"], timeout=WAIT_S) as kept:
        running.switch("first", slow)
        running.switch("second", FakeWorker(name="b"))
        assert kept.post("/v1/predict", json={"nodes": [1]}).status_code == 200
        slow.gate.clear()
        asked = [threading.Thread(target=lambda: outcomes.put(running.ask("first"))) for _ in range(3)]
        for one in asked:
            one.start()
        served = running.server.services["first"]
        while len(served._model.accepted) < len(asked):
            pass
        removal = threading.Thread(target=lambda: running.server.remove("first"))
        removal.start()
        while served._model.state is not ModelState.DRAINING:
            pass
        refused = kept.post("/v1/predict", json={"nodes": [1]})
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert removal.is_alive()
        slow.gate.set()
        removal.join(WAIT_S)
        for one in asked:
            one.join()
        assert [outcomes.get().status_code for _ in asked] == [200] * len(asked)
        assert running.ask("second").status_code == 200


def test_a_service_that_leaves_is_a_lame_duck_for_as_long_as_its_server_would_be() -> None:
    with started(lame_duck_s=3600) as running:
        for name in NAMES:
            running.switch(name, FakeWorker(name=name))
        removal = threading.Thread(target=lambda: running.server.remove("first"))
        removal.start()
        while running.get("first", "/readyz").status_code == 200:
            pass
        answer = running.ask("first")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert running.get("second", "/readyz").status_code == 200
        assert running.ask("second").headers.get("connection") != "close"
        running.server._process._lame_duck_s = 0.0  # as a second signal does
        removal.join(WAIT_S)
        assert running.ask("second").status_code == 200


def test_a_server_that_ends_finishes_what_is_being_removed() -> None:
    slow = FakeWorker(name="a")
    outcomes: queue.Queue[httpx.Response] = queue.Queue()
    with started() as running:
        running.switch("first", slow)
        slow.gate.clear()
        asked = threading.Thread(target=lambda: outcomes.put(running.ask("first")))
        asked.start()
        slow.started.acquire()
        removal = threading.Thread(target=lambda: running.server.remove("first"))
        removal.start()
        while "first" in running.server.services:
            pass
        running.server._process.should_exit = True
        slow.gate.set()
    removal.join(WAIT_S)
    asked.join(WAIT_S)
    assert outcomes.get().status_code == 200


def test_a_service_that_cannot_be_added_leaves_the_others() -> None:
    with started() as running:
        running.switch("second", FakeWorker(name="b"))
        with pytest.raises(ValueError, match="there is a model first; remove it first"):
            running.add("first")
        with pytest.raises(GnnserveError):
            running.add("third", credentials=Credentials(tokens=Path("/nowhere/tokens")))
        running.add("third")
        assert running.get("third", "/healthz").status_code == 200
        assert running.ask("second").status_code == 200


def test_connections_are_divided_anew_among_the_services_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "room_of_process", lambda _handshakes, services: Room(12 // services))

    def rooms(running: Running) -> dict[str, int]:
        return {name: of.listener.shared.places.room.connections for name, of in running.server.services.items()}

    with started() as running:
        assert rooms(running) == {"first": 6, "second": 6}
        running.add("third")
        assert rooms(running) == {"first": 4, "second": 4, "third": 4}
        running.server.remove("third")
        running.server.remove("first")
        assert rooms(running) == {"second": 12}


def test_grpc_comes_and_goes_with_its_service() -> None:
    with started() as running:
        running.switch("first", FakeWorker(name="a"))
        for _ in range(2):
            kept = bind("127.0.0.1", 0)
            host, port = kept.getsockname()
            with socket.create_server((host, port)), pytest.raises(GnnserveError, match=f"{port}: the port is in use"):
                running.add_with_grpc("third", kept)
            running.add_with_grpc("third", kept)
            running.switch("third", FakeWorker(name="c"))
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                nodes = triton.InferInput("nodes", [1], "INT64")
                nodes.set_data_from_numpy(np.array([3]))
                assert client.infer("third", [nodes]).as_numpy("labels").tolist() == [40]
                running.server.remove("third")
                with pytest.raises(InferenceServerException):
                    client.infer("third", [nodes], client_timeout=WAIT_S)
        assert running.ask("first").status_code == 200


def test_requests_of_a_service_are_read_between_those_that_wait_for_another_one() -> None:
    connections, read = 200, list[str]()

    def record(name: str, predict: Predict) -> None:
        start = predict.start

        def start_and_record(*arguments: Any) -> Any:
            read.append(name)
            return start(*arguments)

        predict.start = start_and_record  # type: ignore[method-assign]

    with started() as running, contextlib.ExitStack() as open_sockets:
        for name in NAMES:
            running.switch(name, FakeWorker())
            record(name, running.server.services[name].app.predict)

        def connect(name: str) -> socket.socket:
            address = running.server.services[name].sock.getsockname()
            return open_sockets.enter_context(socket.create_connection(address, WAIT_S))

        clients = [connect(name) for name in ("first",) * connections + ("second",)]
        # All of them have been read from before they send at once.
        for client in clients:
            client.sendall(predict(b'{"nodes":[3]}'))
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        read.clear()
        is_blocked, may_go_on = threading.Event(), threading.Event()
        running.server.call_later(lambda: (is_blocked.set(), may_go_on.wait(WAIT_S)))
        assert is_blocked.wait(WAIT_S)
        for client in clients:
            client.sendall(predict(b'{"nodes":[3]}'))
        may_go_on.set()
        for client in clients:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert read.count("first") == connections
    assert read.index("second") < connections // 2


def test_connections_from_before_go_on_when_a_second_service_comes() -> None:
    with started(names=("first",)) as running, httpx.Client(timeout=WAIT_S) as client:
        running.switch("first", FakeWorker())
        url = f"{running.urls['first']}/v1/predict"
        assert client.post(url, json={"nodes": [3]}).json()["labels"] == [40]
        (connection,) = running.server.services["first"].listener.shared.connections
        running.add("second")
        running.switch("second", FakeWorker())
        assert client.post(url, json={"nodes": [3]}).json()["labels"] == [40]
        assert running.ask("second").status_code == 200
        assert running.server.services["first"].listener.shared.connections == {connection}
        assert connection.transport.get_protocol() is not connection
