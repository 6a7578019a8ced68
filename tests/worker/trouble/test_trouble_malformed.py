"""Requests that are wrong in every way, in numbers: the worker answers on, rightly, and nothing of them stays.

`make bench-malformed` sends a hundred times as many.
"""

from __future__ import annotations

import asyncio
import http.client
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from benchmarks.answers.looks import look, wait_until_idle
from benchmarks.answers.malformed import LABEL, is_right
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.generation.repository import NODES
from tests.support.kubernetes.configmap_server import configmap_server
from tests.support.pods.pods import WorkerPod, publish_answering, table_of, worker_pod
from tests.support.serving.connections import predict, serving
from tests.support.serving.malformed import KINDS, expected_nodes, make, send_all
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import FakeWorker, held, running

from gnnserve_api.files.repository import SourceColumn
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.engine.model import ModelState
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials

REQUESTS = 1000
UNDESCRIBED = {"UnknownNode", "StoredNode", "RepeatedNode", "UnknownColumn", "MissingColumn", "WrongFeatures"}
"""What no description can say: a request may name nodes that its own overlay brings, and columns of the graph."""
UNDESCRIBED |= {"NoWriting", "NoUpdates", "NoRecommendations", "NoOverlays", "VariantUnable"}
"""No request may write to the worker of these tests, its graph does not change, it asks for no index of
embeddings, and it may not keep what leaving out an edge needs."""
LATE = {"DeadlinePassed", "DeadlineOutOfReach", "QueueFull", "TimedOut"}
"""Described, and depend on how busy the machine is: a request may allow as little time as it likes."""
UNDESCRIBED_CHANGES = {"EmptyChanges", "InvalidValue", "MissingColumn", "MissingField", "UnknownColumn", "UnknownLabel"}
"""What no description can say of changes: 64 bits of ids, 32 of features, columns and labels of the graph, headers that
go together, at least one change."""
UNDESCRIBED_CHANGES |= {"WrongFeatures", "InvalidBinary", "LogConflict", "SequencePassed"}
SURPLUS = 200


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPod]:
    folder = tmp_path_factory.mktemp("malformed")
    manifest = publish_answering(folder / "repository", "recipe", LABEL)
    with configmap_server() as api:
        api.put(table_of(manifest))
        with worker_pod(folder, api) as started:
            started.wait_until("/readyz", "ok")
            yield started


@pytest.fixture
def unharmed(pod: WorkerPod) -> Iterator[WorkerPod]:
    """Whatever the test does, the worker comes through it."""
    before = wait_until_idle(pod)
    yield pod
    after = wait_until_idle(pod, before.descriptors)
    assert after.descriptors <= before.descriptors
    assert after.anonymous_mib < before.anonymous_mib + 16
    valid = next(bad for number in range(1000) if (bad := make(number, NODES)).kind == "valid")
    connection = pod.connect()
    connection.request("POST", "/v1/predict", valid.data.partition(b"\r\n\r\n")[2])
    assert is_right(expected_nodes(valid), connection.getresponse().read())
    assert [line for line in pod.log if "exception" in line or line["level"] in {"ERROR", "CRITICAL"}] == []


def test_malformed_requests_are_answered_and_leave_nothing_behind(unharmed: WorkerPod) -> None:
    noted = send_all(unharmed.port, range(REQUESTS), NODES, is_right)
    assert (noted.unanswered, noted.wrong) == ([], [])
    assert set(noted.requests) == set(KINDS)
    assert {"200", "400", "404", "405"} <= set(noted.statuses)
    assert {status for status in noted.statuses if status.startswith("5")} <= {"501", "505"}


def test_connections_beyond_the_descriptors_keep_nobody_out_for_good(pod: WorkerPod) -> None:
    before = wait_until_idle(pod)
    limits = resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE, (before.descriptors + 50, limits[1]))
    try:
        early = pod.connect()
        early.request("GET", "/healthz")
        assert early.getresponse().read() == b"ok\n"
        with ExitStack() as idle:
            for _ in range(SURPLUS):
                idle.enter_context(socket.create_connection(("127.0.0.1", pod.port)))
            for _ in range(3):  # whoever was there is answered
                early.request("POST", "/v1/predict", b'{"nodes":[0]}')
                assert is_right([0], early.getresponse().read())
        early.close()
        # What still waits to be accepted is hung up on, and a newcomer beside it too: clients come again.
        pod.wait_for(
            lambda: answers(pod) and look(pod).descriptors <= before.descriptors,
            lambda: f"new connections are not answered, or descriptors stay: {look(pod)}, {before} before",
        )
        assert pod.process.poll() is None
    finally:
        resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE, limits)


def answers(pod: WorkerPod) -> bool:
    try:
        return pod.get("/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_answer_that_garbage_is_pipelined_behind_is_not_written_to_a_closed_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        worker = FakeWorker()
        async with serving(worker) as server:
            for second in (b"\x16\x03\x01", b"GET / HTTP/1.1\r\nhost: w\r\n\r\n"):
                wire = server.connect()
                worker.gate.clear()
                wire.send(predict(b'{"nodes":[3]}').replace(b"/v1/predict", b"/v1/predict?", 1)[:-1])
                wire.send(b"}")
                wire.leave()
                wire = server.connect()
                wire.send(predict(b'{"nodes":[3]}').replace(b"POST /v1/predict", b"POST /v1/predict/"))
                wire.send(second)
                if not wire.transport.closed:
                    wire.leave()
                worker.gate.set()
                while server.shared.tasks:
                    await asyncio.sleep(0)

    asyncio.run(run())
    assert caplog.records == [record for record in caplog.records if record.levelname == "WARNING"]


# What the description says


@pytest.mark.campaign
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_description_is_what_the_worker_does(unharmed: WorkerPod, mode: GenerationMode) -> None:
    asked = check_description(f"http://127.0.0.1:{unharmed.port}", mode, UNDESCRIBED)
    assert "/v1/predict" in asked


@pytest.mark.campaign
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_description_of_changes_is_what_the_worker_does(mode: GenerationMode, tmp_path: Path) -> None:
    (tmp_path / "writing").write_text("writing-0123456789ab")
    updates = ImpatientUpdates()
    columns = FeatureColumns(2, (SourceColumn("a", 1, None), SourceColumn("b", 1, (0.0,))))
    worker = FakeWorker(overlays=OverlaySupport(columns, no_overlay), updates=updates)
    with started(Credentials(write_tokens=tmp_path / "writing"), of=worker) as running:
        asked = check_description(
            f"http://127.0.0.1:{running.port}", mode, UNDESCRIBED_CHANGES, "/v1/changes", "writing-0123456789ab"
        )
    assert asked == {"/v1/changes"}


class ImpatientUpdates(FakeUpdates):
    """No page waits for a record."""

    async def wait_applied(self, offset: int, timeout_s: float) -> bool:
        return offset <= self.applied


def no_overlay(*_: Any) -> Any:
    raise AssertionError


def _is_undescribed(response: Any, undescribed: set[str]) -> bool:
    error = response.json()["error"]
    # Nor can a description say which conditions of a column a number can meet together.
    is_of_condition = error["code"] == "InvalidValue" and error.get("field", "").startswith("filter.")
    return is_of_condition or error["code"] in undescribed | LATE


def check_description(
    url: str, mode: GenerationMode, undescribed: set[str], path: str | None = None, token: str | None = None
) -> set[str]:
    """Ask by what the description says, or against it. `path`: the only one to ask; None: all are asked. Returns those
    that were."""
    asked = set()
    for result in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        operation = result.ok()
        has_input = operation.body or operation.query or operation.headers
        if (mode is GenerationMode.NEGATIVE and not has_input) or path not in {None, operation.path}:
            continue  # nothing could be wrong

        @settings(
            max_examples=20, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            asked.add(case.operation.path)
            writes = token is not None and case.operation.method.upper() == "POST"
            headers = {"authorization": f"Bearer {token}"} if writes else {}
            response = case.call(base_url=url, timeout=30, headers=headers)
            is_binary = case.media_type == "application/octet-stream"
            # That `return` is the binary form's alone, and that bytes come by eights: no description can say it.
            has_return = "return" in (case.query or {})
            is_ours = not case.operation.path.startswith("/v2")  # of tensors, no description can say what they hold
            if mode is GenerationMode.POSITIVE and not is_binary and is_ours:
                # What is strict may be impossible.
                allowed = {400} if has_return else {200, 422}
                told = (case.as_curl_command(), response.text)
                assert response.status_code in allowed or _is_undescribed(response, undescribed), told
            if response.status_code in {503, 504} and response.json()["error"]["code"] == "TimedOut":
                return  # described, and no error of the server: the request allowed too little time
            # The token is accepted, and schemathesis did not make it.
            case.validate_response(response, excluded_checks=[positive_data_acceptance, *([ignored_auth] * writes)])

        check()
    return asked


# Answers that were withdrawn


def test_whoever_waits_for_a_withdrawn_revision_is_refused_and_what_is_computed_is_not_told() -> None:
    worker = FakeWorker()

    async def run() -> None:
        async with running(worker) as client:
            model = client.model
            computed = await held(worker, client, node=1)
            other = asyncio.create_task(client.predict([2]))
            while model.queued_seeds == 0:
                await asyncio.sleep(0)
            model.withdraw("its table was written to")
            assert (model.lane, model.queued_seeds, model.state) == (None, 0, ModelState.LOADING)
            refused = await computed.outcome
            assert isinstance(refused, Refusal)
            assert (refused.reason, "its table was written to" in refused.message) == (RefusalReason.LOADING, True)
            assert (await other).status_code == 503
            ready = await client.http.get("/readyz")
            assert (ready.status_code, "its table was written to" in ready.text) == (503, True)
            worker.gate.set()
            client.switch(FakeWorker(shift=1).revision())
            answer = await client.predict([0])
            assert (answer.status_code, answer.json()["labels"]) == (200, [20])

    asyncio.run(run())


def test_answer_that_was_computed_but_not_told_when_its_revision_is_withdrawn_is_not_told() -> None:
    worker = FakeWorker()

    async def run() -> None:
        async with running(worker) as client:
            engine = client.engine
            computed = await held(worker, client, node=1)
            split = engine._split

            def split_and_be_withdrawn(*arguments: Any) -> Any:
                settled = split(*arguments)
                asyncio.get_running_loop().call_soon(client.model.withdraw, "its table was written to")
                return settled

            engine._split = split_and_be_withdrawn  # type: ignore[method-assign]
            worker.gate.set()
            refused = await computed.outcome
            assert isinstance(refused, Refusal)
            assert (refused.reason, "its table was written to" in refused.message) == (RefusalReason.LOADING, True)

    asyncio.run(run())


def test_withdrawal_of_a_revision_that_answers_no_more_harms_nobody() -> None:
    with started(NO_CREDENTIALS) as worker:

        def intact() -> list[str]:
            connection = worker.connect(None)
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
            connection.close()
            return [line for line in lines if line.startswith("gnnserve_repository_intact{")]

        other = FakeWorker(name="other").revision()
        for act in (worker.served.withdraw, worker.served.warn):
            act(other, "was written to")
            assert worker.served.look() is not None
        assert [line.rpartition(" ")[2] for line in intact()] == ["1.0"]


def test_nothing_is_said_of_files_before_a_revision_answers() -> None:
    lines = ServingMetrics("digits").render().decode().splitlines()
    assert not [line for line in lines if line.startswith("gnnserve_repository_intact{")]


def test_draining_worker_whose_revision_is_withdrawn_refuses_and_stops() -> None:
    worker = FakeWorker()

    async def run() -> None:
        async with running(worker) as client:
            computed = await held(worker, client, node=1)
            client.engine.drain()
            client.model.withdraw("its table was written to")
            refused = await computed.outcome
            assert isinstance(refused, Refusal)
            assert refused.reason is RefusalReason.DRAINING
            worker.gate.set()
            while client.engine.state is not ModelState.STOPPED:
                await asyncio.sleep(0)

    asyncio.run(run())
