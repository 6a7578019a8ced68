"""How to ask each server for the scores of some nodes, and how to read its answer."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from benchmarks.wrk import encode_post

JSON, BINARY = "application/json", "application/octet-stream"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Protocol:
    path: str
    content_type: str
    encode: Callable[[Sequence[int]], bytes]
    decode: Callable[[bytes, int], np.ndarray]
    """Body and number of seeds to float [seeds, classes]. ValueError: not such a body."""

    def request(self, port: int, seeds: Sequence[int]) -> bytes:
        """The whole HTTP request, for wrk."""
        return encode_post(port, self.path, self.content_type, self.encode(seeds))

    def ask(self, port: int, seeds: Sequence[int]) -> np.ndarray:
        """Asks once, over a connection of its own. OSError or ValueError."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", self.path, self.encode(seeds), {"Content-Type": self.content_type})
            response = connection.getresponse()
            body = response.read()
        except http.client.HTTPException as error:
            raise ValueError(repr(error)) from error
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {body[:200]!r}")
        return self.decode(body, len(seeds))


def _decode_scores(body: bytes, seeds: int) -> np.ndarray:
    answer = msgspec.json.decode(body)
    return _rows(answer["scores"] if isinstance(answer, dict) else answer, seeds)


def _decode_v2(body: bytes, seeds: int) -> np.ndarray:
    return _rows(msgspec.json.decode(body)["outputs"][0]["data"], seeds)


def _decode_float32(body: bytes, seeds: int) -> np.ndarray:
    return _rows(np.frombuffer(body, dtype="<f4"), seeds)


def _rows(scores: object, seeds: int) -> np.ndarray:
    return np.asarray(scores, dtype=np.float64).reshape(seeds, -1)


def _encode_v2(seeds: Sequence[int]) -> bytes:
    tensor = {"name": "seeds", "shape": [len(seeds), 1], "datatype": "INT64", "data": list(seeds)}
    return msgspec.json.encode({"inputs": [tensor]})


def _encode_nodes(seeds: Sequence[int]) -> bytes:
    return msgspec.json.encode({"nodes": list(seeds), "return": ["scores"]})


def _encode_int64(seeds: Sequence[int]) -> bytes:
    return np.asarray(seeds, dtype="<i8").tobytes()


def _no_scores(body: bytes, seeds: int) -> np.ndarray:
    if not body:
        raise ValueError("an empty body")
    return np.zeros((seeds, 0))


GNNSERVE_JSON = Protocol("/v1/predict", JSON, _encode_nodes, _decode_scores)
GNNSERVE_BINARY = Protocol("/v1/predict", BINARY, _encode_int64, _decode_float32)
SEEDS_JSON = Protocol("/predict", JSON, lambda seeds: msgspec.json.encode({"seeds": list(seeds)}), _decode_scores)
V2_JSON = Protocol("/v2/models/sage/infer", JSON, _encode_v2, _decode_v2)
"""The Open Inference Protocol."""
ECHO = Protocol("/", JSON, _encode_nodes, _no_scores)
