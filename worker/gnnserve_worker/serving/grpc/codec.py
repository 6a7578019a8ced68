"""The Open Inference Protocol's form of predictions over gRPC: `ModelInferRequest` and `ModelInferResponse`.

What a request may ask for, and what it is refused for, is in `http/tensors/`; only messages are read and made here. A
codec belongs to one request. The elements of tensors come in the request's way: as bytes where it brings them as bytes,
or else in the lists of their datatypes; its parameter `binary_data_output` says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from google.protobuf.message import DecodeError

from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted
from gnnserve_worker.asking.tensors import (
    AsBytes,
    Contents,
    Datatype,
    GivenTensor,
    ListedElements,
    read_elements,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.grpc.known_messages import LONGEST_KNOWN, KnownMessages
from gnnserve_worker.serving.grpc.messages import ModelInferRequest, ModelInferResponse, encode_length
from gnnserve_worker.serving.http.codecs.recommending.found import recommend
from gnnserve_worker.serving.http.codecs.recommending.tensors import (
    RECOMMENDS,
    FoundTensors,
    RecommendModel,
    recommend_ask,
    told_of_index,
)
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.http.tensors.answer import as_bytes
from gnnserve_worker.serving.http.tensors.asking import to_ask
from gnnserve_worker.serving.http.tensors.request import (
    PREDICTIONS_OF,
    SIZE,
    AnswerForm,
    AskedOf,
    InferBody,
    InferRequest,
    RequestInput,
    RequestOutput,
    may_choose_by,
    may_have_seed,
    read_request,
)
from gnnserve_worker.serving.http.tensors.served import OVERLAY, read_by
from gnnserve_worker.serving.requests import Answer, Ask, EncodedAnswer, Question
from gnnserve_worker.tasks.served import AnswerTensors

_LISTS = {Datatype.INT64: "int64_contents", Datatype.FP32: "fp32_contents", Datatype.BYTES: "bytes_contents"}
"""The list that a message has for the elements of an input."""
_ID, _RAW_OUTPUT = b"\x1a", b"\x32"
"""Tags of the fields of an answer that are written apart from the rest."""
_PACKED = {Datatype.FP32: b"\x32", Datatype.BOOL: b"\x0a"}
"""Field numbers of lists that stand in a message as their elements stand in memory."""


def read_message(kind: Any, raw: bytes) -> Any:
    """A message of this class. Raises RequestError."""
    if len(raw) > MAX_BODY_BYTES:
        problem = f"over the limit of {counted(MAX_BODY_BYTES, 'byte')}"
        raise RequestError(ErrorCode.BODY_TOO_LARGE, "message", problem, "split the nodes over several requests")
    try:
        return kind.FromString(raw)
    except DecodeError:
        problem, remedy = f"it is no {kind.DESCRIPTOR.name}", "send what the protocol's .proto file describes"
        raise RequestError(ErrorCode.INVALID_BINARY, "message", problem, remedy) from None


class InferCodec:
    __slots__ = ("_bytes", "_known", "_message", "_request", "id", "model", "name", "version")
    is_for_canary = True
    tells_times = False  # metadata takes gRPC as long to send as all else of an answer takes us
    asked_of: ClassVar[AskedOf] = PREDICTIONS_OF

    def __init__(self, raw: bytes, known: KnownMessages | None = None) -> None:
        """`raw`: the message. Raises RequestError where it is none. `known`: those of the server; None: none are
        known."""
        message = self._message = None if known is None else known.find_message(raw)
        self._bytes: tuple[bytes, ...]
        if message is not None:
            request = message.request
            self.id = ""
            self._bytes = (raw[len(message.begin) :],)
        else:
            request = read_message(ModelInferRequest, raw)
            self.id = request.id
            self._bytes = tuple(request.raw_input_contents)
            # What is left of the message is what clients repeat.
            request.ClearField("id")
            request.ClearField("raw_input_contents")
        self._request = request
        self._known = known
        self.model: str = request.model_name
        self.name = self.model
        """What the request calls the model."""
        self.version: str | None = request.model_version or None
        """The variant that the request names."""

    def check_query(self, query: bytes) -> None:
        """gRPC has no queries."""

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        """`body`: the message, which is read already."""
        if self._message is not None:
            return self._message.seeds
        tensors = revision.task.tensors
        for tensor in self._request.inputs:
            if tensor.name == tensors.items:
                shape = tensor.shape
                return min(max(1, shape[0] * tensors.item_ids), len(body)) if shape else 1
        return 1

    def may_choose(self, _body: bytes) -> bool:
        return self.version is not None or may_choose_by(self._request.parameters)

    def may_have_seed(self, _body: bytes) -> bool:
        return may_have_seed(self._request.parameters)

    def may_have_overlay(self, _body: bytes) -> bool:
        return any(tensor.name.startswith(OVERLAY) for tensor in self._request.inputs)

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        return to_ask(self._read(body, revision, limits), read_elements, revision, max_nodes, limits)

    def _read(self, raw: bytes, revision: ServedRevision, limits: OverlayLimits) -> InferBody:
        known, data = self._known, self._bytes
        if known is None or not data:
            return self._read_anew(revision, limits)
        message = self._message
        rest: bytes = self._request.SerializeToString() if message is None else message.rest
        if len(rest) > LONGEST_KNOWN:
            return self._read_anew(revision, limits)
        key = (rest, len(data), read_by(revision))
        found = known.find(key)
        if found is None:
            read = self._read_anew(revision, limits)
            if not any(given.parameters for given in self._request.inputs):  # they may tell the number of bytes
                known.remember(key, read)
                if len(data) == 1 and not self.id:
                    known.remember_message(raw, self._request, rest, data[0], self.estimate_seeds(raw, revision))
            return read
        tensors = {
            name: GivenTensor(given.kind, given.shape, AsBytes(each))
            for (name, given), each in zip(found.tensors.items(), data, strict=True)
        }
        form = found.form if not self.id else AnswerForm(self.id, found.form.are_binary)
        return InferBody(tensors, found.outputs, found.wishes, form, found.own)

    def _read_anew(self, revision: ServedRevision, limits: OverlayLimits) -> InferBody:
        asked, data = self._request, self._bytes
        request = InferRequest(
            tuple(
                RequestInput(given.name, tuple(given.shape), given.datatype, _values_of(given.parameters))
                for given in asked.inputs
            ),
            tuple(RequestOutput(wanted.name, _values_of(wanted.parameters)) for wanted in asked.outputs),
            self.id or None,
            _values_of(asked.parameters),
        )
        return read_request(
            request, _InMessage(asked.inputs, data), self.version, self.asked_of(revision), revision, limits,
            as_bytes=bool(data),
        )  # fmt: skip

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        """`in_pieces`: a message is whole; its elements are copied, and not written one by one."""
        tensors = revision.task.items_for(question.outputs).tensors
        # A message has either bytes for all of its outputs or for none.
        if any(question.answer_form.are_binary):
            return EncodedAnswer(b"", self._encode_bytes(answer, question, revision, is_in_time))
        response = _begin(self.name, answer.variant, (), revision.manifest.revision, answer.offset)
        response.id = question.answer_form.id or ""
        for name in question.outputs:
            datatype, shape = tensors.form_of(name, answer, question)
            output = response.outputs.add(name=name, datatype=datatype, shape=shape)
            _fill(output.contents, name, datatype, answer, question, tensors)
        response.parameters["objective_met"].bool_param = is_in_time is None or is_in_time()
        return EncodedAnswer(b"", response.SerializeToString())

    def _encode_bytes(
        self, answer: Answer, question: Question, revision: ServedRevision, is_in_time: Callable[[], bool] | None
    ) -> bytes:
        """A message may be written in parts, one behind the other: the most of it is alike for many answers."""
        tensors = revision.task.items_for(question.outputs).tensors
        outputs: list[tuple[str, str, tuple[int, ...]]] = []
        parts: list[bytes | memoryview] = [b""]
        for name in question.outputs:
            datatype, shape = tensors.form_of(name, answer, question)
            outputs.append((name, datatype, tuple(shape)))
            data = as_bytes(name, answer, question, tensors)
            parts += (_RAW_OUTPUT, encode_length(len(data)), data)
        if question.answer_form.id:
            encoded = question.answer_form.id.encode()
            parts += (_ID, encode_length(len(encoded)), encoded)
        encode = _encode_begin if answer.offset is None else _encode_begin.__wrapped__
        is_met = is_in_time is None or is_in_time()
        parts[0] = encode(
            self.name, answer.variant, tuple(outputs), revision.manifest.revision, answer.offset, is_met
        )  # fmt: skip
        return b"".join(parts)

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_grpc_error(detail)


class RecommendInferCodec(InferCodec):
    """The protocol's form of recommendations: its model's name has an end behind the service's."""

    __slots__ = ()
    is_for_canary = False
    asked_of = RecommendModel

    def __init__(self, read: InferCodec) -> None:
        """`read`: what read the message."""
        for name in InferCodec.__slots__:
            setattr(self, name, getattr(read, name))
        self.model = read.name.removesuffix(RECOMMENDS)

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        return 1

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        return recommend_ask(self._read_anew(revision, limits), read_elements, revision, max_nodes, limits)

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
        tensors = FoundTensors(found.items, revision)
        response = _begin(self.name, answer.variant, (), revision.manifest.revision, answer.offset)
        response.id = form.id or ""
        for name in form.outputs:
            datatype, shape = tensors.form_of(name, answer, question)
            output = response.outputs.add(name=name, datatype=datatype, shape=shape)
            # A message has either bytes for all of its outputs or for none.
            if any(form.are_binary):
                response.raw_output_contents.append(bytes(as_bytes(name, answer, question, tensors)))
            else:
                _fill(output.contents, name, datatype, answer, question, tensors)
        for name, value in told_of_index(found.index).items():
            setattr(response.parameters[name], _PARAMETERS[type(value)], value)
        response.parameters["objective_met"].bool_param = is_in_time is None or is_in_time()
        return EncodedAnswer(b"", response.SerializeToString())


_PARAMETERS = {int: "int64_param", float: "double_param", str: "string_param"}
"""The field that a message has for a parameter of each type."""
_Outputs = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, datatype and shape of each output."""


def _begin(model: str, variant: str, outputs: _Outputs, revision: str, offset: int | None) -> Any:
    """An answer without its elements, its id, and whether its objective was met."""
    response = ModelInferResponse(model_name=model, model_version=variant)
    for name, datatype, shape in outputs:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
    response.parameters["revision"].string_param = revision
    if offset is not None:
        response.parameters["offset"].int64_param = offset
    return response


@functools.lru_cache(256)
def _encode_begin(
    model: str, variant: str, outputs: _Outputs, revision: str, offset: int | None, objective_met: bool
) -> bytes:
    response = _begin(model, variant, outputs, revision, offset)
    response.parameters["objective_met"].bool_param = objective_met
    encoded: bytes = response.SerializeToString()
    return encoded


def encode_grpc_error(detail: ErrorDetail) -> EncodedAnswer:
    """The sentence is the status's message; the code stands in the metadata."""
    return EncodedAnswer(b"gnnserve-error: %b\r\n" % detail.code.encode(), detail.message.encode())


def _values_of(parameters: Any) -> dict[str, Any] | None:
    """Parameters by name; one without a value is as absent."""
    if not parameters:
        return None
    found = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        found[name] = None if choice is None else getattr(parameter, choice)
    return found


class _InMessage:
    """Elements in a message: as bytes of all inputs, or in a list of each."""

    def __init__(self, inputs: Any, raw: Sequence[bytes]) -> None:
        """`raw`: bytes of each input; empty: their elements are in lists."""
        self._inputs = inputs
        self._raw = raw

    def find(self, index: int, tensor: RequestInput, size: int | None) -> Contents:
        name, contents = tensor.name, self._inputs[index].contents
        if self._raw:
            if contents.ByteSize():
                problem = "it is there, and raw_input_contents as well"
                raise RequestError(ErrorCode.INVALID_VALUE, f"{name}.contents", problem, "leave out one of them")
            if index >= len(self._raw):
                raise self._wrong_count()
            data = self._raw[index]
            if size is not None and size != len(data):
                problem = f"{size:,}, where raw_input_contents has {counted(len(data), 'byte')} for it"
                raise RequestError(
                    ErrorCode.INVALID_BINARY, f"{name}.parameters.{SIZE}", problem, "leave it out: the message says it"
                )
            return AsBytes(data)
        if size is not None:
            raise RequestError(
                ErrorCode.INVALID_BINARY, f"{name}.parameters.{SIZE}", "the request has no bytes",
                "send them in raw_input_contents, or leave it out",
            )  # fmt: skip
        return ListedElements(_listed(name, Datatype(tensor.datatype), contents))

    def check_rest(self) -> None:
        if self._raw and len(self._raw) != len(self._inputs):
            raise self._wrong_count()

    def _wrong_count(self) -> RequestError:
        entries = "1 entry" if len(self._raw) == 1 else f"{len(self._raw):,} entries"
        return RequestError(
            ErrorCode.INVALID_BINARY, "raw_input_contents",
            f"{entries} for {counted(len(self._inputs), 'input')}", "send one for each, in their order",
        )  # fmt: skip


def _listed(name: str, datatype: Datatype, contents: Any) -> Any:
    """The elements of an input from the list of its datatype."""
    wanted = _LISTS[datatype]
    filled: Mapping[Any, Any] = dict(contents.ListFields())
    other = next((field.name for field in filled if field.name != wanted), None)
    if other is not None:
        problem = f"{other} has elements, where {datatype} is expected"
        raise RequestError(ErrorCode.INVALID_TYPE, f"{name}.contents", problem, f"send them in {wanted}")
    values = getattr(contents, wanted)
    if datatype is not Datatype.FP32 or not values:
        return values
    # As they stand in the message behind field and length: to take them one by one would hold up other clients.
    return np.frombuffer(contents.SerializeToString()[-4 * len(values) :], "<f4")


def _fill(
    contents: Any, name: str, datatype: Datatype, answer: Answer, question: Question, tensors: AnswerTensors
) -> None:
    """Put an output's elements into the list of its datatype."""
    if tensors.are_texts(name):
        contents.bytes_contents.extend(tensors.texts_of(name, answer))
        return
    numbers = tensors.numbers_of(name, answer, question)
    if datatype is Datatype.INT64:
        contents.int64_contents.extend(numbers.tolist())
    else:
        data = numbers.data.cast("B")
        contents.MergeFromString(b"".join((_PACKED[datatype], encode_length(len(data)), data)))
