"""Triton's own HTTP client, unchanged, against a worker, and the program of docs/open-inference.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tests.support.pages.pages import code_blocks, read_page
from tests.support.serving.serving_process import started
from tritonclient.utils import InferenceServerException

IDS = np.array([3, 8, 3])
BYTES = pytest.mark.parametrize("as_bytes", [False, True], ids=["JSON", "bytes"])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with started() as worker:
        yield worker.port


@pytest.fixture
def client(port: int) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        yield client


def nodes(ids: np.ndarray = IDS, *, as_bytes: bool = True) -> triton.InferInput:
    tensor = triton.InferInput("nodes", list(ids.shape), "INT64")
    tensor.set_data_from_numpy(ids, binary_data=as_bytes)
    return tensor


def test_health_and_readiness(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert [client.is_model_ready(*place) for place in (("digits",), ("digits", "x4"))] == [True, True]
    assert [client.is_model_ready(*place) for place in (("nope",), ("digits", "x5"))] == [False, False]


def test_what_is_served(client: triton.InferenceServerClient) -> None:
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("digits")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["nodes"]
    assert metadata["versions"] == ["x1", "x4", "x8"]
    assert client.get_model_config("digits", "x4")["input"][0]["data_type"] == "TYPE_INT64"
    assert [model["version"] for model in client.get_model_repository_index()] == ["x1", "x4", "x8"]
    client.load_model("digits")


@BYTES
def test_everything_is_the_default(client: triton.InferenceServerClient, as_bytes: bool) -> None:
    result = client.infer("digits", [nodes(as_bytes=as_bytes)])
    assert result.as_numpy("labels").tolist() == [40, 10, 40]
    assert result.as_numpy("scores").tolist() == [[-1, -1, -1, 1], [1, -1, -1, -1], [-1, -1, -1, 1]]
    assert result.as_numpy("embeddings") is None


@BYTES
def test_outputs_versions_and_parameters(client: triton.InferenceServerClient, as_bytes: bool) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=as_bytes) for name in ("embeddings", "labels")]
    result = client.infer(
        "digits", [nodes(IDS.reshape(3, 1), as_bytes=as_bytes)], model_version="x8", outputs=outputs, request_id="q 1",
        parameters={"latency_ms": 60_000.5, "strict": True},
    )  # fmt: skip
    told = result.get_response()
    assert (told["id"], told["model_version"], told["parameters"]["objective_met"]) == ("q 1", "x8", True)
    assert result.as_numpy("embeddings").tolist() == [[3, 3, 3], [8, 8, 8], [3, 3, 3]]
    assert result.as_numpy("labels").tolist() == [40, 10, 40]


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression_both_ways(client: triton.InferenceServerClient, coding: str, as_bytes: bool) -> None:
    many = np.arange(400) % 5
    plain = client.infer("digits", [nodes(many)])
    result = client.infer(
        "digits",
        [nodes(many, as_bytes=as_bytes)],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    np.testing.assert_array_equal(result.as_numpy("scores"), plain.as_numpy("scores"))


def test_requests_that_are_sent_at_once(port: int) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as client:
        pending = [client.async_infer("digits", [nodes(np.array([k]))]) for k in range(12)]
        labels = [request.get_result().as_numpy("labels").tolist() for request in pending]
    assert labels == [[10 * (k % 4 + 1)] for k in range(12)]


def test_what_was_answered_is_counted(client: triton.InferenceServerClient) -> None:
    def answered() -> Any:
        return client.get_inference_statistics("digits", "x4")["model_stats"][0]

    before = answered()
    client.infer("digits", [nodes()], model_version="x4")
    after = answered()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 1
    assert after["last_inference"] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ({"model_name": "nope"}, "404", 'there is no model "nope"'),
        ({"model_version": "x5"}, "400", 'has no variant "x5"; choose from x1, x4, x8'),
        ({"parameters": {"patience": 5}}, "400", "parameters.patience: there is no such parameter"),
        ({"priority": 5}, "400", "parameters.priority: 5 is out of range"),
        ({"inputs": [nodes(np.array([1000]))]}, "400", "node 1000 is not in the graph"),
        ({"parameters": {"latency_ms": 0.001, "strict": True}}, "422", "no variant answers 1 node within 0.001 ms"),
    ],
    ids=["model", "version", "parameter", "priority", "node", "objective"],
)
def test_errors_are_read_by_the_client(
    client: triton.InferenceServerClient, options: dict[str, Any], status: str, sentence: str
) -> None:
    asked: dict[str, Any] = {"model_name": "digits", "inputs": [nodes(np.array([3]))]}
    with pytest.raises(InferenceServerException) as error:
        client.infer(**(asked | options))
    assert (error.value.status(), sentence in error.value.message()) == (status, True)


def test_models_are_not_unloaded_by_clients(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="models are not unloaded by clients"):
        client.unload_model("digits")


def test_a_timeout_and_a_priority_of_tritons_are_what_they_are(client: triton.InferenceServerClient) -> None:
    assert client.infer("digits", [nodes()], timeout=3_600_000_000, priority=1).as_numpy("labels") is not None
    with pytest.raises(InferenceServerException, match=r"parameters\.timeout: 3,600,001 is out of range"):
        client.infer("digits", [nodes()], timeout=3_600_001_000)


def test_the_program_of_the_page_runs(port: int) -> None:
    program, *_ = code_blocks(read_page("open-inference.md"), "python")
    made: dict[str, Any] = {}
    exec(compile(re.sub("8080", str(port), program), "docs/open-inference.md", "exec"), made)  # noqa: S102
    made["client"].close()
    assert made["labels"].tolist() == [40, 40]
    assert made["scores"].shape == (2, 4)
    assert made["variant"] == "x1"
