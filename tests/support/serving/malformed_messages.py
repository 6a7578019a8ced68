"""Calls of gRPC whose messages are wrong in some way, made from a seed, and a client that notes how they end.

Messages are cut, flipped, random, or have fields that do not fit each other: datatypes, shapes, lists, raw bytes,
parameters of every type, names and versions that there are not; metadata may be wrong too.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tests.support.serving.malformed import flip, splice

from gnnserve_worker.serving.grpc.messages import INFERENCE, ModelInferRequest, ModelInferResponse

METHOD = f"/{INFERENCE}/ModelInfer"
_OTHERS = ("ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "ModelReady")
_NAMES = ("digits", "digits", "digits", "", "other", "x" * 5000, "\0")
_VERSIONS = ("", "", "x1", "9", "y" * 3000)
_DATATYPES = ("INT64", "INT64", "FP32", "BYTES", "UINT8", "", "int64")
_SHAPES = ((1,), (3,), (3, 1), (), (0,), (-1,), (2**62,), (2**62, 2**62), (3,) * 40)
_INPUTS = ("nodes", "nodes", "nodes", "overlay.nodes", "overlay.edges", "edges", "")
_PARAMETERS = (
    "latency_ms", "accuracy_tolerance_permille", "strict", "seed", "min_offset", "timeout", "binary_data_output",
    "priority", "", "z" * 500,
)  # fmt: skip
_VALUES = (
    ("int64_param", -(2**63)), ("int64_param", 5), ("uint64_param", 2**64 - 1), ("bool_param", True),
    ("double_param", float("nan")), ("double_param", 1e308), ("string_param", "x" * 500),
)  # fmt: skip
_METADATA = (
    (), (), (), (("gnnserve-latency-ms", "nan"),), (("gnnserve-seed", "9" * 400),), (("gnnserve-strict", "perhaps"),),
    (("traceparent", "00-0-0-0"),), (("gnnserve-timeout-ms", "-1"),), (("x-envoy-expected-rq-timeout-ms", "1e999"),),
    (("gnnserve-latency-ms", "5"), ("gnnserve-latency-ms", "6")), (("a-bin", b"\xff\0"),),
)  # fmt: skip
_OURS = frozenset((grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE))
"""Statuses that say that a server is at fault: none is for a client that sends something wrong."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call."""

    path: str
    raw: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    nodes: tuple[int, ...] = ()
    """Nodes of a valid request; empty: it is none."""


@dataclass(slots=True)
class NotedCalls:
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)
    """Numbers of calls that ended as none should, and of valid ones whose answer was not right."""

    def add(self, other: NotedCalls) -> None:
        self.statuses += other.statuses
        self.wrong += other.wrong


def make(number: int, nodes: int) -> Made:
    """The call of this number to a graph with so many nodes: the same each time."""
    draw = random.Random(number)  # noqa: S311 - no secret
    asked = tuple(draw.randrange(nodes) for _ in range(draw.choice((1, 3))))
    message = ModelInferRequest(model_name="digits")
    message.inputs.add(name="nodes", datatype="INT64", shape=[len(asked)])
    message.raw_input_contents.append(struct.pack(f"<{len(asked)}q", *asked))
    way = draw.randrange(10)
    if way == 0:
        return Made(METHOD, message.SerializeToString(), (), asked)
    if way < 7:
        _misfit(draw, message)
    raw = message.SerializeToString()
    if way >= 7:
        other = draw.randbytes(draw.choice((0, 1, 40, 3000)))
        raw = draw.choice((other, raw[: draw.randrange(len(raw))], flip(draw, raw), splice(draw, raw, other)))
    path = METHOD if draw.random() < 0.8 else f"/{INFERENCE}/{draw.choice(_OTHERS)}"
    return Made(path, raw, draw.choice(_METADATA))


def _misfit(draw: random.Random, message: Any) -> None:
    """Change some fields of a request to what does not fit."""
    message.model_name, message.model_version = draw.choice(_NAMES), draw.choice(_VERSIONS)
    tensor = message.inputs[0]
    for _ in range(draw.randint(0, 3)):
        match draw.randrange(7):
            case 0:
                tensor.datatype = draw.choice(_DATATYPES)
            case 1:
                tensor.shape[:] = draw.choice(_SHAPES)
            case 2:
                tensor.name = draw.choice(_INPUTS)
            case 3:
                message.raw_input_contents[0] = draw.choice((b"", b"\0" * 7, b"\0" * 4096, b"\xff" * 24))
            case 4:
                name = draw.choice(("int64_contents", "fp32_contents", "bytes_contents", "uint_contents"))
                getattr(tensor.contents, name).append(b"x" if name == "bytes_contents" else 1)
            case 5:
                kind, value = draw.choice(_VALUES)
                setattr(message.parameters[draw.choice(_PARAMETERS)], kind, value)
            case _:
                message.outputs.add(name=draw.choice(("labels", "scores", "embeddings", "other", "")))
    if draw.random() < 0.2:
        del message.raw_input_contents[:]
    if draw.random() < 0.2:
        message.inputs.add(name=draw.choice(_INPUTS), datatype="INT64", shape=[1])


async def send_messages(
    port: int, numbers: Iterable[int], nodes: int, is_right: Callable[[list[int], list[int]], bool], at_once: int = 16
) -> NotedCalls:
    """Send the calls of these numbers, `at_once` at a time. `is_right`: whether these labels are those of the nodes."""
    noted, waiting = NotedCalls(), iter(numbers)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def send_some() -> None:
            for number in waiting:
                made = make(number, nodes)
                try:
                    answer = await channel.unary_unary(made.path)(made.raw, metadata=made.metadata, timeout=30.0)
                except grpc.aio.AioRpcError as error:
                    noted.statuses[error.code().name] += 1
                    if error.code() in _OURS or made.nodes or not error.details():
                        noted.wrong.append(number)
                    continue
                noted.statuses["OK"] += 1
                if made.nodes and not is_right(list(made.nodes), _labels_of(answer)):
                    noted.wrong.append(number)

        await asyncio.gather(*(send_some() for _ in range(at_once)))
    return noted


def _labels_of(answer: bytes) -> list[int]:
    message = ModelInferResponse.FromString(answer)
    for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
        if output.name == "labels":
            return list(struct.unpack(f"<{len(raw) // 8}q", raw))
    return []
