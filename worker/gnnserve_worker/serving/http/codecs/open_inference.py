"""The Open Inference Protocol's form of predictions: `POST /v2/models/{service}[/versions/{variant}]/infer`.

The model is the service, a version is a variant. What a request may ask for, and what it is refused for, is that of
every form; only names, bytes and the form of errors are the protocol's. A codec belongs to one head: to its model, its
version and the length of its JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import orjson

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import OverlaySupport, ServedRevision
from gnnserve_worker.serving.http.codecs.binary import ID_BYTES
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.codecs.infer_request import InferBody, may_bring, read_infer_body
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD, find_listed
from gnnserve_worker.serving.http.codecs.open_inference_paths import find_inference
from gnnserve_worker.serving.http.codecs.served_tensors import (
    EDGES,
    NEW_FEATURES,
    NEW_NODES,
    NODES,
    OVERRIDE_FEATURES,
    OVERRIDES,
)
from gnnserve_worker.serving.http.codecs.tensors import Datatype, Elements, encode_texts, read_elements
from gnnserve_worker.serving.http.overlay import BRING_IT, NamedIds, check_finite, check_sizes, place_ids, support_of
from gnnserve_worker.serving.http.question import (
    VARIANT_HEADER,
    ErrorCode,
    Question,
    RequestError,
    Wishes,
    check_node_count,
    check_variant,
    counted,
    cut,
    find_integers,
    find_texts,
    read_whole,
    require_offset,
)
from gnnserve_worker.serving.requests import Answer

JSON_LENGTH = b"inference-header-content-length"
_BINARY_HEAD = b"content-type: application/octet-stream\r\n"
_ERROR_HEADER = b"gnnserve-error"
_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*(\d{1,9})')
_BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 2 ms."""
_LONGEST_KNOWN = 1024
"""Longest JSON that is remembered."""
_HEAD_BYTES = 4096
"""The beginning of a body, where the shape of its nodes usually stands."""


class KnownJson(msgspec.Struct, frozen=True):
    """JSON that was read before: clients that send bytes behind it repeat it as it is."""

    text: bytes
    body_bytes: int
    facts: tuple[Any, ...]
    """What else it was read by: the wishes of the head, and what the served graph takes."""
    body: InferBody


class OpenInferenceCodec:
    __slots__ = ("_known", "json_bytes", "model", "version")

    def __init__(self, model: str, version: str | None = None, json_bytes: int | None = None) -> None:
        self.model = model
        self.version = version
        """The variant that the path names."""
        self.json_bytes = json_bytes
        """Length of the JSON before tensors as bytes; None: the whole body is JSON."""
        self._known: KnownJson | None = None

    def check_query(self, query: bytes) -> None:
        name = cut(query.partition(b"=")[0].decode("latin-1"))
        raise RequestError(
            ErrorCode.UNKNOWN_FIELD, name, "there is no such parameter", "give parameters in the body, not behind ?"
        )

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        if self.json_bytes == 0:
            return len(body) // ID_BYTES
        start = body.find(b'"nodes"', 0, _HEAD_BYTES)
        found = _SHAPE.search(body, max(0, start), _HEAD_BYTES) or _SHAPE.search(body, 0, _HEAD_BYTES)
        return min(int(found[1]), len(body)) or 1 if found else 1

    def may_choose(self, body: bytes) -> bool:
        return self.version is not None or b"latency_ms" in body or b"tolerance" in body or b"\\u00" in body

    def may_have_overlay(self, body: bytes) -> bool:
        return may_bring(body)

    def parse_question(
        self,
        body: bytes,
        query: bytes,
        wishes: Wishes,
        revision: ServedRevision,
        max_nodes: int,
        limits: OverlayLimits,
    ) -> Question:
        """`query` is empty: `check_query` refuses every parameter."""
        read = self._read(body, wishes, revision, max_nodes, limits)
        wanted = read.wishes
        if wanted.min_offset is not None:  # before ids are looked up, which the changes may bring
            require_offset(wanted.min_offset, wanted.objective, revision, read.offset_field)
        check_node_count(read.tensors[NODES].shape[0], max_nodes)
        sizes = {name: given.shape[0] for name, given in read.tensors.items()}
        brings = any(size for name, size in sizes.items() if name != NODES)  # what is empty is as absent
        variant = self.version or wanted.variant
        if variant is not None:
            where = "version" if self.version else VARIANT_HEADER.decode()
            check_variant(variant, read.outputs, brings, revision, where)
        support = None
        if brings:
            support = support_of(revision, limits)
            _check_overlay(sizes, support, limits)
        json_bytes = self.json_bytes or 0
        elements = {name: read_elements(given, body, json_bytes) for name, given in read.tensors.items()}
        if support is None:
            otherwise = BRING_IT if revision.overlays is not None and limits.max_nodes else ""
            overlay, seeds = None, _find(elements[NODES], revision, otherwise)
        else:
            overlay, seeds = _arrange(elements, revision, support)
        return Question(seeds, wanted.objective, wanted.strict, read.outputs, overlay, wanted.seed, variant, read.form)

    def _read(
        self, body: bytes, wishes: Wishes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
    ) -> InferBody:
        if not self.json_bytes or self.json_bytes > _LONGEST_KNOWN:
            return read_infer_body(
                body, self.json_bytes, self.model, self.version, wishes, revision, max_nodes, limits
            )  # fmt: skip
        text, known = body[: self.json_bytes], self._known
        features = None if revision.overlays is None else revision.overlays.columns.features
        facts = (wishes, revision.has_text_ids, features, revision.has_embeddings)
        if (
            known is not None
            and known.text == text
            and known.body_bytes == len(body)
            and known.facts == facts
        ):  # fmt: skip
            return known.body
        read = read_infer_body(body, self.json_bytes, self.model, self.version, wishes, revision, max_nodes, limits)
        self._known = KnownJson(text, len(body), facts, read)
        return read

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        are_binary = question.form.are_binary
        if not any(are_binary):
            pieces = self._pieces(answer, question, revision, objective_met, [])
            return Encoded(JSON_HEAD, b"", pieces) if in_pieces else Encoded(JSON_HEAD, b"".join(pieces))
        outputs = zip(question.outputs, are_binary, strict=True)
        buffers = [_as_bytes(name, answer, revision) for name, is_binary in outputs if is_binary]
        head = b"".join(self._pieces(answer, question, revision, objective_met, [len(buffer) for buffer in buffers]))
        length = b"%b: %d\r\n" % (JSON_LENGTH, len(head))
        return Encoded(_BINARY_HEAD + length, b"".join([head, *buffers]))

    def _pieces(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        sizes: list[int],
    ) -> Iterator[bytes]:
        """The JSON of an answer in pieces, each short work. `sizes`: bytes of the outputs that come behind it."""
        left = iter(sizes)
        start = {"model_name": self.model, "model_version": answer.variant}
        if question.form.id is not None:
            start["id"] = question.form.id
        yield orjson.dumps(start)[:-1] + b',"outputs":['
        for index, (name, is_binary) in enumerate(zip(question.outputs, question.form.are_binary, strict=True)):
            datatype, shape = _form_of(name, answer, revision)
            begin = b'%b{"name":"%b","datatype":"%b","shape":%b,' % (
                b"," if index else b"", name.encode(), datatype.encode(), orjson.dumps(shape)
            )  # fmt: skip
            if is_binary:
                yield begin + b'"parameters":{"binary_data_size":%d}}' % next(left)
                continue
            yield begin + b'"data":['
            yield from _elements(name, answer, revision)
            yield b"]}"
        parameters: dict[str, Any] = {"revision": revision.manifest.revision, "objective_met": objective_met()}
        if answer.offset is not None:
            parameters["offset"] = answer.offset
        yield b'],"parameters":%b}' % orjson.dumps(parameters)

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_protocol_error(detail)


def encode_protocol_error(detail: ErrorDetail) -> Encoded:
    """The protocol's error is a sentence; the code stands in the head."""
    head = b"%b%b: %b\r\n" % (JSON_HEAD, _ERROR_HEADER, detail.code.encode())
    return Encoded(head, orjson.dumps({"error": detail.message}) + b"\n")


def open_inference_codec(path: str, headers: Mapping[bytes, bytes]) -> OpenInferenceCodec | None:
    """The codec of the request with this head; None: the path is none of a prediction. `headers`: names in lower
    case."""
    place = find_inference(path)
    if place is None:
        return None
    assert place.model is not None  # noqa: S101
    length = headers.get(JSON_LENGTH)
    remedy = "give the length of the JSON in bytes, or leave it out where all of the body is JSON"
    return OpenInferenceCodec(
        place.model, place.version, None if length is None else read_whole(length, JSON_LENGTH, remedy)
    )


# What a request brings


def _find(nodes: Elements, revision: ServedRevision, otherwise: str) -> np.ndarray:
    if isinstance(nodes, np.ndarray):
        return find_integers(nodes, revision, otherwise)
    if revision.has_text_ids:
        return find_texts(nodes, revision, otherwise)
    return find_listed(tuple(nodes), revision, otherwise)


def _check_overlay(sizes: Mapping[str, int], support: OverlaySupport, limits: OverlayLimits) -> None:
    """`sizes`: lengths of the request's tensors."""
    new, overrides = sizes.get(NEW_NODES, 0), sizes.get(OVERRIDES, 0)
    check_sizes(new, overrides, sizes.get(EDGES, 0), support.columns.features, limits)
    for ids, features in ((NEW_NODES, NEW_FEATURES), (OVERRIDES, OVERRIDE_FEATURES)):
        rows, nodes = sizes.get(features, 0), sizes.get(ids, 0)
        if rows != nodes:
            problem = f"{counted(rows, 'row')}, where {ids} has {counted(nodes, 'node')}"
            raise RequestError(ErrorCode.WRONG_FEATURES, features, problem, "give a row of all features for each")


def _arrange(
    elements: Mapping[str, Elements], revision: ServedRevision, support: OverlaySupport
) -> tuple[Overlay, np.ndarray]:
    ids = NamedIds(*(_listed(elements.get(name, [])) for name in (NODES, NEW_NODES, EDGES, OVERRIDES)))
    placed = place_ids(ids, revision)
    rows = [np.asarray(elements.get(name, ()), np.float32) for name in (NEW_FEATURES, OVERRIDE_FEATURES)]
    features = np.concatenate(rows).reshape(-1, support.columns.features)
    check_finite(features, len(ids.new))
    return support.arrange(features, placed.overridden, placed.edges, placed.asked)


def _listed(elements: Elements) -> list[Any]:
    return elements.tolist() if isinstance(elements, np.ndarray) else elements


# What an answer has


def _form_of(name: str, answer: Answer, revision: ServedRevision) -> tuple[Datatype, list[int]]:
    nodes = len(answer.scores)
    if name == "labels" and not revision.multi_label:
        return (Datatype.BYTES if revision.class_texts else Datatype.INT64), [nodes]
    if name == "labels":
        return Datatype.BOOL, [nodes, len(revision.classes)]
    return Datatype.FP32, [nodes, _matrix_of(name, answer).shape[1]]


def _matrix_of(name: str, answer: Answer) -> np.ndarray:
    matrix = answer.embeddings if name == "embeddings" else answer.scores
    assert matrix is not None  # noqa: S101
    return matrix


def _best(answer: Answer, revision: ServedRevision) -> np.ndarray:
    """The column of each node's label: int64 [nodes]."""
    best: np.ndarray = revision.decisive_scores(answer.variant, answer.scores).argmax(axis=1)
    return best


def _elements(name: str, answer: Answer, revision: ServedRevision) -> Iterator[bytes]:
    """A tensor's elements in JSON, flat, in pieces with the commas between them."""
    if name == "labels" and not revision.multi_label and revision.class_texts:
        texts = revision.class_texts
        yield b",".join([texts[column] for column in _best(answer, revision).tolist()])
        return
    flat = _numbers(name, answer, revision).ravel()
    for start in range(0, len(flat), _BLOCK_VALUES):
        block = orjson.dumps(flat[start : start + _BLOCK_VALUES], option=orjson.OPT_SERIALIZE_NUMPY)
        yield block[1:-1] if start == 0 else b"," + block[1:-1]


def _numbers(name: str, answer: Answer, revision: ServedRevision) -> np.ndarray:
    """A tensor whose elements have a fixed size, C-contiguous, little-endian."""
    if name != "labels":
        return np.ascontiguousarray(_matrix_of(name, answer), "<f4")
    if revision.multi_label:
        return np.ascontiguousarray(revision.decisive_scores(answer.variant, answer.scores) > 0)
    return np.ascontiguousarray(revision.class_ids[_best(answer, revision)], "<i8")


def _as_bytes(name: str, answer: Answer, revision: ServedRevision) -> bytes | memoryview:
    if name == "labels" and not revision.multi_label and revision.class_texts:
        texts = [str(label).encode() for label in revision.classes]
        return encode_texts([texts[column] for column in _best(answer, revision).tolist()])
    return _numbers(name, answer, revision).data.cast("B")
