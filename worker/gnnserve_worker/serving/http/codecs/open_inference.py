"""The Open Inference Protocol's form of predictions: `POST /v2/models/{service}[/versions/{variant}]/infer`.

The model is the service, a version is a variant. What a request may ask for, and what it is refused for, is that of
every form; only names, bytes and the form of errors are the protocol's. A codec belongs to one head: to its model, its
version and the length of its JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import orjson

from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.question import CHOOSING_PARAMETERS, ErrorCode, RequestError, cut, read_whole
from gnnserve_worker.asking.tensors import read_elements
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary import ID_BYTES
from gnnserve_worker.serving.http.codecs.infer_request import may_bring, read_infer_body
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD
from gnnserve_worker.serving.http.codecs.open_inference_paths import find_inference
from gnnserve_worker.serving.http.codecs.recommending.found import recommend
from gnnserve_worker.serving.http.codecs.recommending.tensors import (
    RECOMMENDS,
    FoundTensors,
    RecommendModel,
    recommend_ask,
    told_of_index,
)
from gnnserve_worker.serving.http.tensors.answer import as_bytes
from gnnserve_worker.serving.http.tensors.asking import to_ask
from gnnserve_worker.serving.http.tensors.request import PREDICTIONS_OF, AskedOf, InferBody
from gnnserve_worker.serving.http.tensors.served import read_by
from gnnserve_worker.serving.requests import Answer, Ask, EncodedAnswer, Question
from gnnserve_worker.tasks.served import AnswerTensors

JSON_LENGTH = b"inference-header-content-length"
_BINARY_HEAD = b"content-type: application/octet-stream\r\n"
_ERROR_HEADER = b"gnnserve-error"
_CHOOSING = tuple(name.encode() for name in CHOOSING_PARAMETERS)
_SHAPE = re.compile(rb'"shape"\s*:\s*\[\s*(\d{1,9})')
_BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 2 ms."""
_LONGEST_KNOWN = 1024
"""Longest JSON that is remembered."""
_MOST_KNOWN_ANSWERS = 256
_NOTHING_MORE: Mapping[str, Any] = MappingProxyType({})
_HEAD_BYTES = 4096
"""The beginning of a body, where the shape of its nodes usually stands."""


class KnownJson(msgspec.Struct, frozen=True):
    """JSON that was read before: clients that send bytes behind it repeat it as it is."""

    text: bytes
    body_bytes: int
    seeds: int
    facts: tuple[Any, ...]
    """What else it was read by: what the served graph takes."""
    body: InferBody


class OpenInferenceCodec:
    __slots__ = ("_known", "json_bytes", "model", "name", "version")
    is_for_canary = True
    tells_times = True
    asked_of: ClassVar[AskedOf] = PREDICTIONS_OF

    def __init__(self, model: str, version: str | None = None, json_bytes: int | None = None) -> None:
        self.model = model
        self.name = model
        """What the path calls the model."""
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

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        if self.json_bytes == 0:
            return len(body) // ID_BYTES
        tensors = revision.task.tensors
        known = self._known
        if known is not None and known.body_bytes == len(body) and body.startswith(known.text):
            return known.seeds
        end = _HEAD_BYTES if self.json_bytes is None else min(self.json_bytes, _HEAD_BYTES)
        start = body.find(b'"%b"' % tensors.items.encode(), 0, end)
        found = _SHAPE.search(body, max(0, start), end) or _SHAPE.search(body, 0, end)
        return min(int(found[1]) * tensors.item_ids, len(body)) or 1 if found else 1

    def may_choose(self, body: bytes) -> bool:
        if self.version is not None:
            return True
        text = self._json(body)
        return b"\\u00" in text or any(name in text for name in _CHOOSING)

    def may_have_seed(self, body: bytes) -> bool:
        text = self._json(body)
        return b"seed" in text or b"\\u00" in text

    def may_have_overlay(self, body: bytes) -> bool:
        return may_bring(self._json(body))

    def _json(self, body: bytes) -> bytes:
        """The JSON: what stands in the bytes behind it are no names."""
        return body if self.json_bytes is None else body[: self.json_bytes]

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        """`query` is empty: `check_query` refuses every parameter."""
        read = self._read(body, revision, max_nodes, limits)
        json_bytes = self.json_bytes or 0
        return to_ask(read, lambda given: read_elements(given, body, json_bytes), revision, max_nodes, limits)

    def _read(self, body: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> InferBody:
        if not self.json_bytes or self.json_bytes > _LONGEST_KNOWN:
            asked = self.asked_of(revision)
            return read_infer_body(body, self.json_bytes, self.name, self.version, asked, revision, max_nodes, limits)
        known, facts = self._known, read_by(revision)
        # All that is known has JSON of this length.
        if (
            known is not None
            and known.body_bytes == len(body)
            and body.startswith(known.text)
            and known.facts == facts
        ):  # fmt: skip
            return known.body
        asked = self.asked_of(revision)
        read = read_infer_body(body, self.json_bytes, self.name, self.version, asked, revision, max_nodes, limits)
        tensors = asked.items_for(read.outputs).tensors
        seeds = read.tensors[tensors.items].shape[0] * tensors.item_ids or 1
        self._known = KnownJson(body[: self.json_bytes], len(body), seeds, facts, read)
        return read

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        are_binary, tensors = question.answer_form.are_binary, revision.task.items_for(question.outputs).tensors
        if not any(are_binary):
            pieces = self._pieces(answer, question, revision, is_in_time, [], tensors)
            return EncodedAnswer(JSON_HEAD, b"", pieces) if in_pieces else EncodedAnswer(JSON_HEAD, b"".join(pieces))
        buffers = [as_bytes(name, answer, question, tensors) for name in compress(question.outputs, are_binary)]
        sizes = [*map(len, buffers)]
        if question.answer_form.id is not None or answer.offset is not None or len(buffers) < len(are_binary):
            text = b"".join(self._pieces(answer, question, revision, is_in_time, sizes, tensors))
            return EncodedAnswer(_binary_head(text), b"".join([text, *buffers]))
        # Alike for many answers: nothing else of them is in it.
        is_met = is_in_time is None or is_in_time()
        key = (
            self.model, answer.variant, question.outputs, len(answer.scores), *sizes, revision.manifest.revision,
            is_met,
        )  # fmt: skip
        known = _known_answers.get(key)
        if known is None:
            text = b"".join(self._pieces(answer, question, revision, lambda: is_met, sizes, tensors))
            if len(_known_answers) >= _MOST_KNOWN_ANSWERS:
                _known_answers.clear()
            known = _known_answers[key] = _binary_head(text), text
        head, text = known
        return EncodedAnswer(head, b"".join([text, *buffers]))

    def _pieces(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        sizes: list[int],
        tensors: AnswerTensors,
        more: Mapping[str, Any] = _NOTHING_MORE,
    ) -> Iterator[bytes]:
        """The JSON of an answer in pieces, each short work. `sizes`: bytes of the outputs that come behind it. `more`:
        what its parameters tell beside what those of all answers do."""
        left = iter(sizes)
        start = {"model_name": self.name, "model_version": answer.variant}
        if question.answer_form.id is not None:
            start["id"] = question.answer_form.id
        yield orjson.dumps(start)[:-1] + b',"outputs":['
        for index, (name, is_binary) in enumerate(zip(question.outputs, question.answer_form.are_binary, strict=True)):
            datatype, shape = tensors.form_of(name, answer, question)
            begin = b'%b{"name":"%b","datatype":"%b","shape":%b,' % (
                b"," if index else b"", name.encode(), datatype.encode(), orjson.dumps(shape)
            )  # fmt: skip
            if is_binary:
                yield begin + b'"parameters":{"binary_data_size":%d}}' % next(left)
                continue
            yield begin + b'"data":['
            yield from _elements(name, answer, question, tensors)
            yield b"]}"
        parameters = _parameters(revision.manifest.revision, is_in_time is None or is_in_time(), answer.offset)
        yield b'],"parameters":%b}' % orjson.dumps(parameters if more is _NOTHING_MORE else {**parameters, **more})

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_protocol_error(detail)


class RecommendOpenInferenceCodec(OpenInferenceCodec):
    """The protocol's form of recommendations: its model's name has an end behind the service's."""

    __slots__ = ()
    is_for_canary = False
    asked_of = RecommendModel

    def __init__(self, model: str, version: str | None = None, json_bytes: int | None = None) -> None:
        super().__init__(model, version, json_bytes)
        self.model = model.removesuffix(RECOMMENDS)

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        return 1

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        asked, json_bytes = self.asked_of(revision), self.json_bytes
        read = read_infer_body(body, json_bytes, self.name, self.version, asked, revision, max_nodes, limits)
        return recommend_ask(
            read, lambda given: read_elements(given, body, json_bytes or 0), revision, max_nodes, limits
        )

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        found, form = recommend(answer, question, revision), question.answer_form
        told, tensors = msgspec.structs.replace(question, outputs=form.outputs), FoundTensors(found.items, revision)
        buffers = [as_bytes(name, answer, told, tensors) for name in compress(form.outputs, form.are_binary)]
        index = told_of_index(found.index)
        sizes = [*map(len, buffers)]
        text = b"".join(self._pieces(answer, told, revision, is_in_time, sizes, tensors, index))
        return (
            EncodedAnswer(_binary_head(text), b"".join([text, *buffers])) if buffers else EncodedAnswer(JSON_HEAD, text)
        )


_known_answers: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
"""Heads of answers whose outputs all come as bytes, and their JSON, by what they say. The sizes of the outputs and the
number of nodes tell their shapes. It belongs to the event loop."""


def _binary_head(text: bytes) -> bytes:
    return b"%b%b: %d\r\n" % (_BINARY_HEAD, JSON_LENGTH, len(text))


def _parameters(revision: str, objective_met: bool, offset: int | None) -> dict[str, Any]:
    told = {"revision": revision, "objective_met": objective_met}
    return told if offset is None else {**told, "offset": offset}


def encode_protocol_error(detail: ErrorDetail) -> EncodedAnswer:
    """The protocol's error is a sentence; the code stands in the head."""
    head = b"%b%b: %b\r\n" % (JSON_HEAD, _ERROR_HEADER, detail.code.encode())
    return EncodedAnswer(head, orjson.dumps({"error": detail.message}) + b"\n")


def open_inference_codec(path: str, headers: Mapping[bytes, bytes]) -> OpenInferenceCodec | None:
    """The codec of the request with this head; None: the path is none of a prediction. `headers`: names in lower
    case."""
    place = find_inference(path)
    if place is None:
        return None
    assert place.model is not None  # noqa: S101
    length = headers.get(JSON_LENGTH)
    remedy = "give the length of the JSON in bytes, or leave it out where all of the body is JSON"
    json_bytes = None if length is None else read_whole(length, JSON_LENGTH, remedy)
    codec = RecommendOpenInferenceCodec if place.model.endswith(RECOMMENDS) else OpenInferenceCodec
    return codec(place.model, place.version, json_bytes)


def _elements(name: str, answer: Answer, question: Question, tensors: AnswerTensors) -> Iterator[bytes]:
    """A tensor's elements in JSON, flat, in pieces with the commas between them."""
    if tensors.are_texts(name):
        yield tensors.json_texts(name, answer)
        return
    flat = tensors.numbers_of(name, answer, question).ravel()
    for start in range(0, len(flat), _BLOCK_VALUES):
        block = orjson.dumps(flat[start : start + _BLOCK_VALUES], option=orjson.OPT_SERIALIZE_NUMPY)
        yield block[1:-1] if start == 0 else b"," + block[1:-1]
