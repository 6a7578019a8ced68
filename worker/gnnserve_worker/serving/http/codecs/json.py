"""JSON in and out of `POST /v1/predict`: what a client may write, what it reads, and the message for each mistake.

msgspec validates while it parses. orjson writes arrays: straight from numpy, and a float32 in as few digits as tell
it from its neighbours, where a list of Python's numbers would be twice as long and take twice the time. Answers are
encoded in blocks of rows, because one call for millions of scores would hold up every other client.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import orjson
from msgspec import UNSET

from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_api.protocol import ErrorAnswer, ErrorDetail, PredictAnswer, PredictRequest
from gnnserve_api.repository import NodeIdKind
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.question import (
    PREDICT_PATH,
    ErrorCode,
    Question,
    RequestError,
    Wishes,
    check_node_count,
    check_objective,
    check_outputs,
    cut,
    find_integers,
    find_texts,
    shown_value,
    unknown_node,
)
from gnnserve_worker.serving.requests import Answer

_BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 2 ms."""
_FEW_NODES = 32
"""Up to here Python looks at each node before numpy has begun."""
_ARRAYS = orjson.OPT_SERIALIZE_NUMPY

_decoder = msgspec.json.Decoder(PredictRequest[int])
_text_decoder = msgspec.json.Decoder(PredictRequest[str])
"""Decodes requests for graphs whose node ids are texts."""
_encoder = msgspec.json.Encoder()
_FIELDS = ("nodes", "objective", "strict", "return")
"""Fields of the body, as clients write them."""
_ALWAYS_POSSIBLE = frozenset((("labels",), ("scores",), ("labels", "scores")))
_HEAD = b"content-type: application/json\r\n"
_REFERENCE = "#/components/schemas/{name}"


class JsonCodec:
    path = PREDICT_PATH
    content_type = "application/json"

    def check_query(self, query: bytes) -> None:
        """All fields are in the body. A parameter, such as the binary form's, would be ignored."""
        for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD,
                cut(name),
                "there is no such parameter",
                f"JSON has its fields in the body: {', '.join(_FIELDS)}",
            )

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        """Ids are separated by commas; texts by commas after quotes, which few texts contain."""
        start = body.find(b"[", body.find(b'"nodes"') + 1)
        if are_texts:
            return body.count(b'",', start, body.find(b'"]', start)) + 1
        return body.count(b",", start, body.find(b"]", start)) + 1

    def may_have_objective(self, body: bytes) -> bool:
        return any(part in body for part in _OBJECTIVES)

    def parse_question(
        self, body: bytes, query: bytes, wishes: Wishes, revision: ServedRevision, max_nodes: int
    ) -> Question:
        """`query` is empty: `check_query` refuses every parameter."""
        request: PredictRequest[Any] = _decode(body, revision)
        objective = request.objective
        if objective is None or objective == NO_OBJECTIVE:
            objective = wishes.objective
        else:
            check_objective(objective, "objective.latencyMs", "objective.accuracyTolerancePermille")
        outputs = request.outputs
        if outputs not in _ALWAYS_POSSIBLE:
            _check_outputs(outputs, revision)
        nodes = request.nodes
        if not 0 < len(nodes) <= max_nodes:
            check_node_count(len(nodes), max_nodes)
        strict = wishes.strict if request.strict is UNSET else request.strict
        positions = find_texts if revision.has_text_ids else _find_integers
        return Question(positions(nodes, revision), objective, strict, outputs)

    def encode_answer(
        self,
        answer: Answer,
        outputs: tuple[str, ...],
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        if in_pieces:
            return Encoded(_HEAD, b"", _encode_blocks(answer, outputs, revision, objective_met))
        body = b"{"
        if "labels" in outputs:
            body += (
                b'"labels":' + _encode_labels(revision.decisive_scores(answer.variant, answer.scores), revision) + b","
            )
        if "scores" in outputs:
            body += b'"scores":' + orjson.dumps(answer.scores, option=_ARRAYS) + b","
        if "embeddings" in outputs:
            body += b'"embeddings":' + orjson.dumps(answer.embeddings, option=_ARRAYS) + b","
        body += _encode_rest(
            answer.variant, revision.manifest.revision, objective_met(), revision.tier_permille.get(answer.variant)
        )
        return Encoded(_HEAD, body)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        return {"schema": {"$ref": _REFERENCE.format(name=PredictRequest.__name__)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        return {"schema": {"$ref": _REFERENCE.format(name=PredictAnswer.__name__)}, "example": example}


_OBJECTIVES = (b'"objective"', b"\\u006", b"\\u007")
"""A letter of the field's name may also be an escape, `\\u006f`; other escapes, `\\u00eb`, occur in ids."""


def _check_outputs(outputs: Sequence[str], revision: ServedRevision) -> None:
    if not outputs:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "return", "the list is empty", "name at least one of labels, scores, embeddings"
        )
    check_outputs(outputs, revision, [f"return[{i}]" for i in range(len(outputs))])


def _encode_blocks(
    answer: Answer, outputs: tuple[str, ...], revision: ServedRevision, objective_met: Callable[[], bool]
) -> Iterator[bytes]:
    """The body in pieces, each short work. `objective_met` is asked last, when the encoding is done as well."""
    yield b"{"
    if "labels" in outputs:
        yield b'"labels":' + _encode_labels(revision.decisive_scores(answer.variant, answer.scores), revision) + b","
    for name, matrix in (("scores", answer.scores), ("embeddings", answer.embeddings)):
        if name in outputs and matrix is not None:
            yield b'"%b":[' % name.encode()
            yield from _encode_rows(matrix)
            yield b"],"
    yield _encode_rest(
        answer.variant, revision.manifest.revision, objective_met(), revision.tier_permille.get(answer.variant)
    )


@functools.lru_cache(256)
def _encode_rest(variant: str, revision: str, objective_met: bool, tier_permille: int | None) -> bytes:
    """The end of an answer, alike for many."""
    rest = {"variant": variant, "revision": revision, "objectiveMet": objective_met}
    if tier_permille is not None:
        rest["tierPermille"] = tier_permille
    return _encoder.encode(rest)[1:] + b"\n"


def encode_error(detail: ErrorDetail) -> bytes:
    return _encoder.encode(ErrorAnswer(detail)) + b"\n"


def _encode_labels(scores: np.ndarray, revision: ServedRevision) -> bytes:
    """`scores`: those that decide."""
    texts = revision.class_texts
    if not revision.multi_label:
        best = scores.argmax(axis=1)
        if texts:
            return b"[" + b",".join([texts[column] for column in best.tolist()]) + b"]"
        return orjson.dumps(revision.class_ids[best], option=_ARRAYS)
    nodes, columns = np.nonzero(scores > 0)
    flat = [revision.classes[column] for column in columns.tolist()] if texts else revision.class_ids[columns].tolist()
    ends = np.searchsorted(nodes, np.arange(len(scores)), side="right").tolist()
    return _encoder.encode([flat[start:end] for start, end in zip([0, *ends], ends, strict=False)])


def _encode_rows(matrix: np.ndarray) -> Iterator[bytes]:
    """All rows, without the brackets around them."""
    rows = max(1, _BLOCK_VALUES // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), rows):
        block = orjson.dumps(matrix[start : start + rows], option=_ARRAYS)
        yield block[1:-1] if start == 0 else b"," + block[1:-1]


def _decode(body: bytes, revision: ServedRevision) -> PredictRequest[int] | PredictRequest[str]:
    try:
        return (_text_decoder if revision.has_text_ids else _decoder).decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), body, revision) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, _body_remedy(revision)) from None


def _find_integers(nodes: tuple[int, ...], revision: ServedRevision) -> np.ndarray:
    try:
        wanted = np.array(nodes, dtype=np.int64)
    except OverflowError:
        # Beyond 64 bits, and so no node's; unless one before it is unknown too.
        first = next(i for i, node in enumerate(nodes) if not -(2**63) <= node < 2**63)
        if first > 0:
            _find_integers(nodes[:first], revision)
        raise unknown_node(first, shown_value(nodes[first]), revision) from None
    if revision.ids is None and len(nodes) <= _FEW_NODES and min(nodes) >= 0 and max(nodes) < revision.nodes:
        return wanted
    return find_integers(wanted, revision)


_PATH = re.compile(r" - at `\$\.((?:nodes|objective|strict|return)[\w.\[\]]*)`$")
_NODES_REMEDIES = {
    NodeIdKind.POSITIONS: "give a list of node ids, each an integer from 0",
    NodeIdKind.INTEGERS: "node ids of this graph are integers: give a list of them; GET /v1/nodes lists them",
    NodeIdKind.STRINGS: "node ids of this graph are texts: give a list of them; GET /v1/nodes lists them",
}
_REMEDIES = {
    "objective": "give an object with latencyMs, accuracyTolerancePermille, or both",
    "objective.latencyMs": "give milliseconds as a number, or leave it out",
    "objective.accuracyTolerancePermille": "give permille as a number (10 is one point), or leave it out",
    "strict": "give true or false",
    "return": "give a list of labels, scores and embeddings",
}


def _body_remedy(revision: ServedRevision) -> str:
    shown = ", ".join(map(shown_value, revision.shown_ids(0, 2)))
    return f'send an object such as {{"nodes": [{shown}]}}'


def _remedy(where: str, revision: ServedRevision) -> str:
    match re.sub(r"\[\d+\]", "", where):
        case "body":
            return _body_remedy(revision)
        case "nodes":
            return _NODES_REMEDIES[revision.node_ids]
        case field:
            return _REMEDIES.get(field, "")


def _field_error(text: str, body: bytes, revision: ServedRevision) -> RequestError:
    """msgspec's message in ours: with the value that was found and what to write instead.

    The text may quote the client's own, so nothing here relies on more than its beginning and its end.
    """
    at = _PATH.search(text)
    path = at[1] if at else ""
    problem = text[: at.start()] if at else text
    where = path or "body"
    remedy = _remedy(where, revision)
    if problem.startswith("Object contains unknown field"):
        name = cut(problem.removeprefix("Object contains unknown field").strip(" `"))
        known = ("latencyMs", "accuracyTolerancePermille") if path else _FIELDS
        where = f"{path}.{name}" if path else name
        return RequestError(ErrorCode.UNKNOWN_FIELD, where, "there is no such field", f"known are {', '.join(known)}")
    if problem.startswith("Object missing required field"):
        return RequestError(ErrorCode.MISSING_FIELD, "nodes", "it is missing", _remedy("nodes", revision))
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


def _found_at(body: bytes, path: str) -> str:
    """Decoding once more without types is slow, and only done for a request that is refused."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "something unreadable"
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return shown_value(value)
