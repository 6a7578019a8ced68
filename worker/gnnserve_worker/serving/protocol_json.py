"""JSON in and out of `POST /v1/predict`: what a client may write, what it reads, and every message between.

msgspec validates while it parses; what spans a request and the served graph is checked here too, so that the engine
sees only requests it can answer. A message names the field, the value, what was expected and what to do.
Answers are encoded in blocks of rows, because one call for millions of scores would hold up every other client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.protocol import ErrorAnswer, ErrorDetail, PredictRequest
from gnnserve_worker.serving.engine import Answer
from gnnserve_worker.serving.served import ServedRevision

MAX_LATENCY_MS = 3_600_000
MAX_TOLERANCE_PERMILLE = 1000
_BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 5 ms."""


class ErrorCode(StrEnum):
    """Machine-readable reasons of this protocol's own; a refusal's code is its `RefusalReason`."""

    INVALID_JSON = "InvalidJson"
    INVALID_TYPE = "InvalidType"
    INVALID_VALUE = "InvalidValue"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    EMPTY_NODES = "EmptyNodes"
    TOO_MANY_NODES = "TooManyNodes"
    UNKNOWN_NODE = "UnknownNode"
    NO_EMBEDDINGS = "NoEmbeddings"
    BODY_TOO_LARGE = "BodyTooLarge"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    NOT_FOUND = "NotFound"
    INTERNAL_ERROR = "InternalError"
    CLIENT_GONE = "ClientGone"
    """Only counted: nobody is left to read it."""


class RequestError(InputError):
    """The client must change the request."""

    def __init__(self, code: ErrorCode, where: str, problem: str, remedy: str = "") -> None:
        super().__init__(where, problem, remedy)
        self.code = code


@dataclass(frozen=True, slots=True)
class Question:
    """A request that can be answered."""

    nodes: np.ndarray
    """int64, all in range."""
    objective: Objective
    strict: bool
    outputs: frozenset[str]


_decoder = msgspec.json.Decoder(PredictRequest)
_encoder = msgspec.json.Encoder()


def parse_question(body: bytes | bytearray, revision: ServedRevision, max_nodes: int) -> Question:
    request = _decode(body)
    _check_objective(request.objective)
    if not request.outputs:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "return", "the list is empty", "name at least one of labels, scores, embeddings"
        )
    if "embeddings" in request.outputs and not revision.has_embeddings:
        raise RequestError(
            ErrorCode.NO_EMBEDDINGS,
            f"return[{request.outputs.index('embeddings')}]",
            "the served network has one layer, and so no hidden layer to return as embeddings",
            "leave embeddings out",
        )
    return Question(
        nodes=_check_nodes(request.nodes, revision.nodes, max_nodes),
        objective=request.objective or NO_OBJECTIVE,
        strict=request.strict,
        outputs=frozenset(request.outputs),
    )


def encode_answer(
    answer: Answer, outputs: frozenset[str], revision: ServedRevision, objective_met: Callable[[], bool]
) -> Iterator[bytes]:
    """The body in pieces, each short work. `objective_met` is asked last, when the encoding is done as well."""
    separator = b"{"
    if "labels" in outputs:
        yield b'{"labels":'
        yield from _encode_labels(answer.scores, revision)
        separator = b","
    for name, matrix in (("scores", answer.scores), ("embeddings", answer.embeddings)):
        if name in outputs and matrix is not None:
            yield separator + f'"{name}":'.encode()
            yield from _encode_rows(matrix)
            separator = b","
    yield separator + b'"variant":' + _encoder.encode(answer.variant)
    yield b',"revision":' + _encoder.encode(revision.manifest.revision)
    yield b',"objectiveMet":' + (b"true}\n" if objective_met() else b"false}\n")


def count_numbers(answer: Answer, outputs: frozenset[str]) -> int:
    """How large the encoded answer will be, roughly."""
    labels = len(answer.scores) if "labels" in outputs else 0
    scores = answer.scores.size if "scores" in outputs else 0
    return labels + scores + (0 if answer.embeddings is None else answer.embeddings.size)


def encode_error(detail: ErrorDetail) -> bytes:
    return _encoder.encode(ErrorAnswer(detail)) + b"\n"


def _encode_labels(scores: np.ndarray, revision: ServedRevision) -> Iterator[bytes]:
    classes = np.asarray(revision.classes, np.int64)
    if not revision.multi_label:
        yield _encoder.encode(classes[scores.argmax(axis=1)].tolist())
        return
    nodes, columns = np.nonzero(scores > 0)
    flat = classes[columns].tolist()
    ends = np.searchsorted(nodes, np.arange(len(scores)), side="right").tolist()
    yield _encoder.encode([flat[start:end] for start, end in zip([0, *ends], ends, strict=False)])


def _encode_rows(matrix: np.ndarray) -> Iterator[bytes]:
    rows = max(1, _BLOCK_VALUES // max(1, matrix.shape[1]))
    if len(matrix) <= rows:
        yield _encoder.encode(matrix.tolist())
        return
    for start in range(0, len(matrix), rows):
        block = _encoder.encode(matrix[start : start + rows].tolist())
        yield (b"[" if start == 0 else b",") + block[1:-1]
    yield b"]"


def _decode(body: bytes | bytearray) -> PredictRequest:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), body) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(
            ErrorCode.INVALID_JSON, "body", f"not JSON: {error}", 'send an object such as {"nodes": [0, 1]}'
        ) from None


def _check_objective(objective: Objective | None) -> None:
    if objective is None:
        return
    latency = objective.latency_ms
    if latency is not None and not 0 < latency <= MAX_LATENCY_MS:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "objective.latencyMs",
            f"{latency:,.15g} is out of range",
            f"give milliseconds above 0 and at most {MAX_LATENCY_MS:,}",
        )
    tolerance = objective.accuracy_tolerance_permille
    if tolerance is not None and not 0 <= tolerance <= MAX_TOLERANCE_PERMILLE:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "objective.accuracyTolerancePermille",
            f"{tolerance:g} is out of range",
            f"give permille from 0 to {MAX_TOLERANCE_PERMILLE:,}; 10 is one point of accuracy",
        )


def _check_nodes(nodes: Sequence[int], graph_nodes: int, max_nodes: int) -> np.ndarray:
    if not nodes:
        raise RequestError(ErrorCode.EMPTY_NODES, "nodes", "the list is empty", "name at least one node id")
    if len(nodes) > max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_NODES,
            "nodes",
            f"{len(nodes):,} nodes, more than the {max_nodes:,} that one request may have",
            "split the list over several requests, or raise spec.worker.batching.maxQueuedSeeds",
        )
    try:
        ids = np.array(nodes, dtype=np.int64)
    except OverflowError:
        # Beyond 64 bits, and so beyond any graph.
        ids = np.array([node if 0 <= node < graph_nodes else -1 for node in nodes], dtype=np.int64)
    unknown = (ids < 0) | (ids >= graph_nodes)
    if unknown.any():
        first = int(unknown.argmax())
        raise RequestError(
            ErrorCode.UNKNOWN_NODE,
            f"nodes[{first}]",
            f"node {_shown(nodes[first])} is not in the graph",
            f"node ids are 0 to {graph_nodes - 1}",
        )
    return ids


_PATH = re.compile(r" - at `\$\.((?:nodes|objective|strict|return)[\w.\[\]]*)`$")
_REMEDIES = {
    "nodes": "give a list of node ids, each an integer from 0",
    "objective": "give an object with latencyMs, accuracyTolerancePermille, or both",
    "objective.latencyMs": "give milliseconds as a number, or leave it out",
    "objective.accuracyTolerancePermille": "give permille as a number (10 is one point), or leave it out",
    "strict": "give true or false",
    "return": "give a list of labels, scores and embeddings",
    "body": 'send an object such as {"nodes": [0, 1]}',
}


def _field_error(text: str, body: bytes | bytearray) -> RequestError:
    """msgspec's message in ours: with the value that was found and what to write instead.

    The text may quote the client's own, so nothing here relies on more than its beginning and its end.
    """
    at = _PATH.search(text)
    path = at[1] if at else ""
    problem = text[: at.start()] if at else text
    where = path or "body"
    remedy = _REMEDIES.get(re.sub(r"\[\d+\]", "", where), "")
    if problem.startswith("Object contains unknown field"):
        name = _cut(problem.removeprefix("Object contains unknown field").strip(" `"))
        known = ("latencyMs", "accuracyTolerancePermille") if path else ("nodes", "objective", "strict", "return")
        where = f"{path}.{name}" if path else name
        return RequestError(ErrorCode.UNKNOWN_FIELD, where, "there is no such field", f"known are {', '.join(known)}")
    if problem.startswith("Object missing required field"):
        return RequestError(ErrorCode.MISSING_FIELD, "nodes", "it is missing", _REMEDIES["nodes"])
    if problem.startswith("Expected"):
        expected = problem.split("`")[1].removesuffix(" | null")
        found = _found_at(body, path)
        return RequestError(
            ErrorCode.INVALID_TYPE, where, f"expected {_KINDS.get(expected, expected)}, got {found}", remedy
        )
    if problem.endswith("out of range"):
        return RequestError(ErrorCode.INVALID_VALUE, where, "the number is out of range", remedy)
    return RequestError(ErrorCode.INVALID_VALUE, where, f"{_found_at(body, path)} is not possible here", remedy)


_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "object": "an object",
    "array": "a list",
}
_SHOWN_CHARACTERS = 60


def _found_at(body: bytes | bytearray, path: str) -> str:
    """Decoding once more without types is slow, and only done for a request that is refused."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "something unreadable"
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return _shown(value)


def _shown(value: Any) -> str:
    return _cut(_encoder.encode(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
