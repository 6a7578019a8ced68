"""KServe's own clients over HTTP and gRPC against a server: `conformance_kserve.py PORT GRPC_PORT`.

It runs in KServe's environment and knows nothing of gnnserve. The model is that of `tests/conformance`: node n has the
label 10, 20, 30 or 40 by n modulo 4. The last line of its output is JSON: what is wrong with each call, empty where
nothing is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MODEL, NODES, LABELS = "digits", (3, 4), [40, 10]


def request(
    *names: str, nodes: tuple[int, ...] = NODES, model: str = MODEL, as_bytes: bool = True, **more: Any
) -> InferRequest:
    """`names`: the outputs that are asked for; none: the model's own."""
    given = InferInput("nodes", [len(nodes)], "INT64")
    given.set_data_from_numpy(np.array(nodes, dtype=np.int64), binary_data=as_bytes)
    outputs = [RequestedOutput(name, {"binary_data": as_bytes}) for name in names] or None
    return InferRequest(model_name=model, infer_inputs=[given], request_id="one", request_outputs=outputs, **more)


def judge(answer: Any, *names: str) -> str:
    found = {output.name: output.as_numpy() for output in answer.outputs}
    if [*found] != [*(names or ("labels", "scores"))]:
        return f"outputs {[*found]}"
    if found["labels"].tolist() != LABELS or found.get("scores", np.empty(2)).shape[0] != 2:
        return "another answer"
    return "" if (answer.id, answer.model_name) == ("one", MODEL) else f"id {answer.id!r} of {answer.model_name!r}"


async def is_so(wanted: bool, said: Awaitable[bool]) -> str:
    return "" if await said is wanted else f"not {wanted}"


async def refused(asked: Awaitable[Any], status: Any) -> str:
    """What is wrong with a refusal; empty where it has this status and says why."""
    try:
        await asked
    except httpx.HTTPStatusError as error:
        found, words = error.response.status_code, error.response.json().get("error")
    except grpc.aio.AioRpcError as error:
        found, words = error.code(), error.details()
    else:
        return "answered"
    return "" if found == status and words else f"{found}: {words}"


def over_http(client: Any, url: str) -> dict[str, Callable[[], Awaitable[str]]]:
    async def infer(*names: str, **fields: Any) -> str:
        return judge(await client.infer(url, request(*names, **fields), model_name=MODEL), *names)

    objective = {"latency_ms": 1000.0, "seed": 3}
    return {
        "REST: live": lambda: is_so(True, client.is_server_live(url)),
        "REST: ready": lambda: is_so(True, client.is_server_ready(url)),
        "REST: model ready": lambda: is_so(True, client.is_model_ready(url, MODEL)),
        "REST: no model ready": lambda: is_so(False, client.is_model_ready(url, "nothing")),
        "REST: infer, JSON": lambda: infer(as_bytes=False),
        "REST: infer, bytes": infer,
        "REST: one output, JSON": lambda: infer("labels", as_bytes=False),
        "REST: one output, bytes": lambda: infer("labels"),
        "REST: parameters": lambda: infer(parameters=objective),
        "REST: no such node": lambda: refused(client.infer(url, request(nodes=(5000,)), model_name=MODEL), 400),
        "REST: no such model": lambda: refused(client.infer(url, request(), model_name="nothing"), 404),
    }


def over_grpc(client: Any) -> dict[str, Callable[[], Awaitable[str]]]:
    async def infer(*names: str, headers: Any = None, **fields: Any) -> str:
        return judge(await client.infer(request(*names, **fields), headers=headers), *names)

    wrong, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    # Its client sends no fractions as parameters.
    objective = {"latency_ms": 1000, "seed": 3, "strict": False}
    return {
        "gRPC: live": lambda: is_so(True, client.is_server_live()),
        "gRPC: ready": lambda: is_so(True, client.is_server_ready()),
        "gRPC: model ready": lambda: is_so(True, client.is_model_ready(MODEL)),
        "gRPC: no model ready": lambda: is_so(False, client.is_model_ready("nothing")),
        "gRPC: infer, contents": lambda: infer(as_bytes=False),
        "gRPC: infer, bytes": infer,
        "gRPC: one output": lambda: infer("labels"),
        "gRPC: a version": lambda: infer(model_version="x4"),
        "gRPC: parameters": lambda: infer(parameters=objective),
        "gRPC: metadata": lambda: infer(headers=(("gnnserve-latency-ms", "1000.5"),)),
        "gRPC: no such node": lambda: refused(client.infer(request(nodes=(5000,))), wrong),
        "gRPC: no such model": lambda: refused(client.infer(request(model="nothing")), missing),
    }


async def main(port: str, grpc_port: str) -> None:
    rest = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    remote = InferenceGRPCClient(f"127.0.0.1:{grpc_port}", timeout=30, retries=0)
    found: dict[str, str] = {}
    for name, ask in {**over_http(rest, f"http://127.0.0.1:{port}"), **over_grpc(remote)}.items():
        try:
            found[name] = await ask()
        except Exception as error:  # noqa: BLE001  (whatever the client makes of it is the finding)
            found[name] = f"{type(error).__name__}: {error}"
    await rest.close()
    await remote.close()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
