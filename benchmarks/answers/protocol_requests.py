"""Requests of `protocol.py`, a question in each form; and answers, which have to be the model's.

The class of a node is its number modulo 4. A request's shape is [n], or [n, 1] for servers that take a batch of rows.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import grpc
import msgspec
import numpy as np

from benchmarks.answers.protocol_client import METHOD
from benchmarks.answers.protocol_verdicts import BINARY, GRPC, JSON, V2_BINARY, V2_JSON
from benchmarks.wrk import encode_post
from gnnserve_worker.serving.grpc.messages import ModelInferRequest, ModelInferResponse


def _post(path: str, content_type: str, encode: Callable[[list[int], list[int]], tuple[bytes, dict[str, str]]]) -> Any:
    def request(port: int, seeds: list[int], shape: list[int]) -> bytes:
        body, headers = encode(seeds, shape)
        return encode_post(port, path, content_type, body, headers)

    return request


def _in_v2_json(seeds: list[int], shape: list[int]) -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "nodes", "shape": shape, "datatype": "INT64", "data": seeds}
    return msgspec.json.encode({"inputs": [tensor], "outputs": [{"name": "scores"}]}), {}


def _in_v2_bytes(seeds: list[int], shape: list[int]) -> tuple[bytes, dict[str, str]]:
    data = np.array(seeds, "<i8").tobytes()
    tensor = {
        "name": "nodes", "shape": shape, "datatype": "INT64", "parameters": {"binary_data_size": len(data)}
    }  # fmt: skip
    wanted = {"name": "scores", "parameters": {"binary_data": True}}
    head = msgspec.json.encode({"inputs": [tensor], "outputs": [wanted]})
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def _in_grpc(_port: int, seeds: list[int], shape: list[int]) -> bytes:
    message = ModelInferRequest(model_name="digits")
    message.inputs.add(name="nodes", datatype="INT64", shape=shape)
    message.outputs.add(name="scores")
    message.raw_input_contents.append(np.array(seeds, "<i8").tobytes())
    encoded: bytes = message.SerializeToString()
    return encoded


CHECKED = [5, 6, 3]
"""Nodes that a server is asked about before it is measured."""
_OCTETS = "application/octet-stream"
_V2_PATH = "/v2/models/digits/infer"
REQUESTS: dict[str, Callable[[int, list[int], list[int]], bytes]] = {
    JSON: _post("/v1/predict", "application/json", lambda seeds, _: (
        msgspec.json.encode({"nodes": seeds, "return": ["scores"]}), {}
    )),
    BINARY: _post("/v1/predict", _OCTETS, lambda seeds, _: (np.array(seeds, "<i8").tobytes(), {})),
    V2_JSON: _post(_V2_PATH, "application/json", _in_v2_json),
    V2_BINARY: _post(_V2_PATH, _OCTETS, _in_v2_bytes),
    GRPC: _in_grpc,
}  # fmt: skip


def check_answer(form: str, port: int, request: bytes) -> None:
    """Ask about `CHECKED`, and raise ValueError where the scores are not those of the model."""
    if form == GRPC:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                answer = ModelInferResponse.FromString(channel.unary_unary(METHOD)(request, timeout=10.0))
            except grpc.RpcError as error:
                raise ValueError(str(error)) from None
            raw = answer.raw_output_contents
            found = np.frombuffer(raw[0], "<f4") if raw else np.array(answer.outputs[0].contents.fp32_contents)
    else:
        found = _scores_of(form, *_exchange(port, request))
    found = found.reshape(len(CHECKED), -1)
    if found.argmax(axis=1).tolist() != [seed % 4 for seed in CHECKED]:
        raise ValueError(f"{form}: scores {found.tolist()} are not the model's")


def _exchange(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), 10.0) as sock:
        sock.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status:
        raise ValueError(f"{status!r}: {body[:200]!r}")
    return head.lower(), body


def _scores_of(form: str, head: bytes, body: bytes) -> np.ndarray:
    if form == BINARY:
        return np.frombuffer(body, "<f4")
    if form == V2_BINARY:
        _, named, rest = head.partition(b"inference-header-content-length:")
        if not named:
            raise ValueError("the answer has no bytes")
        return np.frombuffer(body[int(rest.split(b"\r\n")[0]) :], "<f4")
    answer = msgspec.json.decode(body)
    return np.array(answer["scores"] if form == JSON else answer["outputs"][0]["data"], np.float64)
