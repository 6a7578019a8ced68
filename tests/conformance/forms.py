"""A question in every form that a worker takes: JSON, arrays, and the Open Inference Protocol over HTTP and gRPC."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tests.support.serving.grpc_worker import GrpcClient, listening
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.asking.question import ErrorCode
from gnnserve_worker.scheduling.refusal import RefusalReason
from gnnserve_worker.serving.http.replies import ERROR_STATUS, REFUSAL_STATUS

LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, in no form yet."""

    nodes: tuple[int, ...] = (3, 8)
    latency_ms: float | None = None
    tolerance: float | None = None
    strict: bool | None = None
    seed: int | None = None
    min_offset: int | None = None
    timeout_ms: int | None = None
    priority: int | None = None
    variant: str | None = None
    output: str = "scores"


@dataclass(frozen=True, slots=True)
class Said:
    """What came back, without the form."""

    status: int
    code: str = ""
    message: str = ""
    variant: str = ""
    revision: str = ""
    objective_met: bool | None = None
    offset: int | None = None
    numbers: tuple[tuple[float, ...], ...] = ()


def stated(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def in_json(client: Client, asked: Asked) -> Said:
    fields = stated(
        strict=asked.strict, seed=asked.seed, minOffset=asked.min_offset, variant=asked.variant,
        timeoutMs=asked.timeout_ms, priority=asked.priority,
    )  # fmt: skip
    objective = stated(latencyMs=asked.latency_ms, accuracyTolerancePermille=asked.tolerance)
    response = await client.predict(asked.nodes, objective=objective, **{"return": [asked.output]}, **fields)
    answer = response.json()
    if response.status_code != 200:
        return failed(response.status_code, answer["error"]["code"], answer["error"]["message"])
    rows = tuple(map(tuple, answer[asked.output]))
    return Said(
        200, "", "", answer["variant"], answer["revision"], answer["objectiveMet"], answer.get("offset"), rows
    )  # fmt: skip


async def as_arrays(client: Client, asked: Asked) -> Said:
    fields = {
        "latency-ms": asked.latency_ms, "accuracy-tolerance-permille": asked.tolerance, "strict": asked.strict,
        "seed": asked.seed, "min-offset": asked.min_offset, "variant": asked.variant, "timeout-ms": asked.timeout_ms,
        "priority": asked.priority,
    }  # fmt: skip
    headers = {f"gnnserve-{name}": str(value) for name, value in stated(**fields).items()}
    response = await client.http.post(
        f"/v1/predict?return={asked.output}", content=np.array(asked.nodes, "<i8").tobytes(),
        headers={"content-type": "application/octet-stream", **headers},
    )  # fmt: skip
    if response.status_code != 200:
        return failed(response.status_code, response.json()["error"]["code"], response.json()["error"]["message"])
    told = response.headers
    shape = [int(length) for length in told["gnnserve-shape"].split(",")]
    rows = tuple(map(tuple, np.frombuffer(response.content, "<f4").reshape(shape).tolist()))
    offset = int(told["gnnserve-offset"]) if "gnnserve-offset" in told else None
    met = told["gnnserve-objective-met"] == "true"
    return Said(200, "", "", told["gnnserve-variant"], told["gnnserve-revision"], met, offset, rows)


async def in_protocol_json(client: Client, asked: Asked) -> Said:
    return await in_protocol(client, asked, is_binary=False)


async def in_protocol_bytes(client: Client, asked: Asked) -> Said:
    return await in_protocol(client, asked, is_binary=True)


async def in_protocol(client: Client, asked: Asked, *, is_binary: bool) -> Said:
    ids = np.array(asked.nodes, "<i8").tobytes()
    parameters = stated(
        latency_ms=asked.latency_ms, accuracy_tolerance_permille=asked.tolerance, strict=asked.strict, seed=asked.seed,
        min_offset=asked.min_offset, timeout=None if asked.timeout_ms is None else 1000 * asked.timeout_ms,
        priority=asked.priority,
    )  # fmt: skip
    tensor = {"name": "nodes", "datatype": "INT64", "shape": [len(asked.nodes)]}
    tensor |= {"parameters": {"binary_data_size": len(ids)}} if is_binary else {"data": asked.nodes}
    output = {"name": asked.output, "parameters": {"binary_data": is_binary}}
    content = json.dumps({"inputs": [tensor], "outputs": [output], "parameters": parameters}).encode()
    version = "" if asked.variant is None else f"/versions/{asked.variant}"
    response = await client.http.post(
        f"/v2/models/digits{version}/infer", content=content + (ids if is_binary else b""),
        headers={LENGTH: str(len(content))} if is_binary else {},
    )  # fmt: skip
    if response.status_code != 200:
        return failed(response.status_code, response.headers["gnnserve-error"], response.json()["error"])
    end = int(response.headers.get(LENGTH, len(response.content)))
    answer = json.loads(response.content[:end])
    told, (tensor,) = answer["parameters"], answer["outputs"]
    data = np.frombuffer(response.content[end:], "<f4") if is_binary else np.array(tensor["data"], np.float32)
    rows = tuple(map(tuple, data.reshape(tensor["shape"]).tolist()))
    return Said(
        200, "", "", answer["model_version"], told["revision"], told["objective_met"], told.get("offset"), rows
    )  # fmt: skip


def message_of(asked: Asked, *, is_raw: bool) -> dict[str, Any]:
    ids = np.array(asked.nodes, "<i8")
    tensor: dict[str, Any] = {"name": "nodes", "datatype": "INT64", "shape": [len(ids)]}
    message: dict[str, Any] = {"model_name": "digits", "model_version": asked.variant or "", "id": "q"}
    if is_raw:
        message["raw_input_contents"] = [ids.tobytes()]
    else:
        tensor["contents"] = {"int64_contents": ids.tolist()}
    parameters: dict[str, dict[str, Any]] = {
        "latency_ms": {"double_param": asked.latency_ms},
        "accuracy_tolerance_permille": {"double_param": asked.tolerance},
        "strict": {"bool_param": asked.strict},
        "seed": {"uint64_param": asked.seed},
        "min_offset": {"int64_param": asked.min_offset},
        "timeout": {"uint64_param": None if asked.timeout_ms is None else 1000 * asked.timeout_ms},
        "priority": {"uint64_param": asked.priority},
    }
    given = {name: value for name, value in parameters.items() if None not in value.values()}
    return message | {"inputs": [tensor], "outputs": [{"name": asked.output}], "parameters": given}


def in_words(message: Any) -> Said:
    """What a ModelInferResponse says."""
    (tensor,), told = message.outputs, message.parameters
    raw = message.raw_output_contents
    data = np.frombuffer(raw[0], "<f4") if raw else np.array(tensor.contents.fp32_contents, np.float32)
    rows = tuple(map(tuple, data.reshape(tensor.shape).tolist()))
    offset = told["offset"].int64_param if "offset" in told else None
    revision, met = told["revision"].string_param, told["objective_met"].bool_param
    assert message.id == "q"
    return Said(200, "", "", message.model_version, revision, met, offset, rows)


STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.FAILED_PRECONDITION: 422,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}  # fmt: skip


async def over_grpc(client: Client, asked: Asked, *, is_raw: bool) -> Said:
    ended = await CHANNELS[client].call("ModelInfer", **message_of(asked, is_raw=is_raw))
    if ended.answer is not None:
        assert bool(ended.answer.raw_output_contents) == is_raw
        return in_words(ended.answer)
    return failed(STATUSES[ended.status], ended.metadata["gnnserve-error"], ended.sentence)


async def as_message(client: Client, asked: Asked) -> Said:
    return await over_grpc(client, asked, is_raw=False)


async def as_raw_message(client: Client, asked: Asked) -> Said:
    return await over_grpc(client, asked, is_raw=True)


async def in_stream(client: Client, asked: Asked) -> Said:
    (answer,) = await CHANNELS[client].stream(message_of(asked, is_raw=True))
    if not answer.error_message:
        return in_words(answer.infer_response)
    code = answer.infer_response.parameters["error_code"].string_param
    assert answer.infer_response.id == "q"
    status = REFUSAL_STATUS[RefusalReason(code)] if code in set(RefusalReason) else ERROR_STATUS.get(ErrorCode(code))
    return failed(status or 400, code, answer.error_message)


FORMS = (in_json, as_arrays, in_protocol_json, in_protocol_bytes, as_message, as_raw_message, in_stream)
CHANNELS: dict[Client, GrpcClient] = {}
"""The gRPC listener of each running worker."""
_FIELDS = {
    "gnnserve-latency-ms": "objective.latencyMs", "parameters.latency_ms": "objective.latencyMs",
    "gnnserve-accuracy-tolerance-permille": "objective.accuracyTolerancePermille",
    "parameters.accuracy_tolerance_permille": "objective.accuracyTolerancePermille",
    "gnnserve-seed": "seed", "parameters.seed": "seed", "gnnserve-variant": "variant", "version": "variant",
    "gnnserve-min-offset": "minOffset", "parameters.min_offset": "minOffset", "outputs[0].name": "return[0]",
    "return": "return[0]", "gnnserve-timeout-ms": "timeoutMs", "parameters.timeout": "timeoutMs",
    "gnnserve-priority": "priority", "parameters.priority": "priority",
}  # fmt: skip
"""What other forms call the fields of ours."""


def failed(status: int, code: str, message: str) -> Said:
    message = re.sub(r"needs [0-9.]+ ms", "needs … ms", message)  # as this machine is fast
    where, _, rest = message.partition(": ")
    return Said(status, code, f"{_FIELDS.get(where, where)}: {rest}" if rest else message)


@asynccontextmanager
async def serving(worker: FakeWorker, of: GNNService | None = None) -> AsyncIterator[Client]:
    async with running(worker, of) as client, listening(client) as CHANNELS[client]:
        yield client
    del CHANNELS[client]
