"""Triton's own gRPC client, unchanged, against a worker, and the gRPC program of docs/open-inference.md."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.support.machine.waiting import WAIT_S
from tests.support.pages.pages import code_blocks, read_page
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import FakeWorker
from tritonclient.utils import InferenceServerException

from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS

IDS = np.array([3, 8, 3])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with started(NO_CREDENTIALS, with_grpc=True) as worker:
        yield worker.grpc_port


@pytest.fixture
def client(port: int) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        yield client


def nodes(ids: np.ndarray = IDS) -> triton.InferInput:
    tensor = triton.InferInput("nodes", list(ids.shape), "INT64")
    tensor.set_data_from_numpy(ids)
    return tensor


def test_health_and_readiness(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert [client.is_model_ready(*place) for place in (("digits",), ("digits", "x4"))] == [True, True]
    assert [client.is_model_ready(*place) for place in (("nope",), ("digits", "x5"))] == [False, False]


def test_what_is_served(client: triton.InferenceServerClient) -> None:
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("digits")
    assert [tensor.name for tensor in metadata.inputs] == ["nodes"]
    assert list(metadata.versions) == ["x1", "x4", "x8"]
    config = client.get_model_config("digits", "x4", as_json=True)["config"]
    assert config["input"][0]["data_type"] == "TYPE_INT64"
    assert config["parameters"]["revision"]["string_value"] == "f0eae20c16c00ac0-1"
    assert [model.version for model in client.get_model_repository_index().models] == ["x1", "x4", "x8"]


def test_labels_and_scores_are_the_default(client: triton.InferenceServerClient) -> None:
    result = client.infer("digits", [nodes()])
    assert result.as_numpy("labels").tolist() == [40, 10, 40]
    assert result.as_numpy("scores").tolist() == [[-1, -1, -1, 1], [1, -1, -1, -1], [-1, -1, -1, 1]]
    assert result.as_numpy("embeddings") is None


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_outputs_versions_and_parameters(client: triton.InferenceServerClient, compression: str | None) -> None:
    outputs = [triton.InferRequestedOutput(name) for name in ("embeddings", "labels")]
    result = client.infer(
        "digits", [nodes(IDS.reshape(3, 1))], model_version="x8", outputs=outputs, request_id="q 1",
        parameters={"latency_ms": 60_000.5, "strict": True, "seed": 7}, compression_algorithm=compression,
    )  # fmt: skip
    told = result.get_response()
    assert (told.id, told.model_version, told.parameters["objective_met"].bool_param) == ("q 1", "x8", True)
    assert result.as_numpy("embeddings").tolist() == [[3, 3, 3], [8, 8, 8], [3, 3, 3]]
    assert result.as_numpy("labels").tolist() == [40, 10, 40]


def test_headers_are_metadata(client: triton.InferenceServerClient) -> None:
    result = client.infer("digits", [nodes()], headers={"gnnserve-accuracy-tolerance-permille": "12"})
    assert result.get_response().model_version == "x4"


def test_requests_that_are_sent_at_once(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for k in range(12):
        client.async_infer("digits", [nodes(np.array([k]))], lambda result, error: answers.put((result, error)))
    found = [answers.get(timeout=WAIT_S) for _ in range(12)]
    labels = sorted(result.as_numpy("labels").tolist() for result, error in found if error is None)
    assert labels == sorted([10 * (k % 4 + 1)] for k in range(12))


def test_a_stream_is_answered_in_order_and_goes_on_after_an_error(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for k in (3, 1000, 8):
        client.async_stream_infer("digits", [nodes(np.array([k]))], request_id=f"q{k}")
    (first, _), (_, wrong), (last, _) = (answers.get(timeout=WAIT_S) for _ in range(3))
    client.stop_stream()
    assert [(told.get_response().id, told.as_numpy("labels").tolist()) for told in (first, last)] == [
        ("q3", [40]), ("q8", [10]),
    ]  # fmt: skip
    assert "nodes[0]: node 1000 is not in the graph" in wrong.message()


def test_what_was_answered_is_counted(client: triton.InferenceServerClient) -> None:
    def answered() -> Any:
        return client.get_inference_statistics("digits", "x4").model_stats[0]

    before = answered()
    client.infer("digits", [nodes()], model_version="x4")
    after = answered()
    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 1
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.last_inference > 1_700_000_000_000
    assert [model.version for model in client.get_inference_statistics().model_stats] == ["x1", "x4", "x8"]


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ({"model_name": "nope"}, "NOT_FOUND", 'there is no model "nope"'),
        ({"model_version": "x5"}, "INVALID_ARGUMENT", 'has no variant "x5"; choose from x1, x4, x8'),
        ({"parameters": {"patience": 5}}, "INVALID_ARGUMENT", "parameters.patience: there is no such parameter"),
        ({"priority": 5}, "INVALID_ARGUMENT", "parameters.priority: 5 is out of range"),
        ({"inputs": [nodes(np.array([1000]))]}, "INVALID_ARGUMENT", "node 1000 is not in the graph"),
        ({"parameters": {"latency_ms": 0.001, "strict": True}}, "FAILED_PRECONDITION", "within 0.001 ms"),
        ({"headers": {"gnnserve-seed": "x"}}, "INVALID_ARGUMENT", "gnnserve-seed: 'x' is no whole number"),
    ],
    ids=["model", "version", "parameter", "priority", "node", "objective", "header"],
)
def test_errors_are_read_by_the_client(
    client: triton.InferenceServerClient, options: dict[str, Any], status: str, sentence: str
) -> None:
    asked: dict[str, Any] = {"model_name": "digits", "inputs": [nodes(np.array([3]))]}
    with pytest.raises(InferenceServerException) as error:
        client.infer(**(asked | options))
    assert (error.value.status(), sentence in error.value.message()) == (f"StatusCode.{status}", True)


def test_a_loaded_model_may_be_loaded_and_is_not_unloaded(client: triton.InferenceServerClient) -> None:
    client.load_model("digits")
    with pytest.raises(InferenceServerException, match="models are not unloaded by clients"):
        client.unload_model("digits")


def test_what_the_worker_does_not_have_is_unimplemented(client: triton.InferenceServerClient) -> None:
    for ask in (client.get_system_shared_memory_status, client.get_trace_settings, client.get_log_settings):
        with pytest.raises(InferenceServerException, match="there is no such call") as error:
            ask()
        assert error.value.status() == "StatusCode.UNIMPLEMENTED"


def test_a_deadline_ends_a_request_that_waits() -> None:
    worker = FakeWorker()
    with (
        started(NO_CREDENTIALS, of=worker, with_grpc=True) as running,
        triton.InferenceServerClient(f"127.0.0.1:{running.grpc_port}") as client,
    ):
        worker.gate.clear()
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("digits", [nodes()], client_timeout=0.2)
        worker.gate.set()
        assert client.infer("digits", [nodes()]).as_numpy("labels").tolist() == [40, 10, 40]


def test_the_program_of_the_page_runs(port: int) -> None:
    *_, program = code_blocks(read_page("open-inference.md"), "python")
    made: dict[str, Any] = {}
    exec(compile(re.sub("8001", str(port), program), "docs/open-inference.md", "exec"), made)  # noqa: S102
    made["client"].close()
    assert made["labels"].tolist() == [40, 40]
    assert made["scores"].shape == (2, 4)
    assert made["variant"] == "x1"
