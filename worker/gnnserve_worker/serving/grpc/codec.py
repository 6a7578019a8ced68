"""The Open Inference Protocol's form of predictions over gRPC: `ModelInferRequest` and `ModelInferResponse`.

What a request may ask for, and what it is refused for, is in `http/tensors/`; only messages are read and made here. A
codec belongs to one request. The elements of tensors come in the request's way: as bytes where it brings them as bytes,
or else in the lists of their datatypes; its parameter `binary_data_output` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.grpc.messages import ModelInferRequest, ModelInferResponse
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.http.question import ErrorCode, Question, RequestError, counted
from gnnserve_worker.serving.http.tensors.answer import are_texts, as_bytes, form_of, numbers_of, texts_of_labels
from gnnserve_worker.serving.http.tensors.asking import to_question
from gnnserve_worker.serving.http.tensors.datatypes import AsBytes, Contents, Datatype, Listed, read_elements
from gnnserve_worker.serving.http.tensors.request import (
    SIZE,
    InferRequest,
    RequestInput,
    RequestOutput,
    may_state_objective,
    read_request,
)
from gnnserve_worker.serving.http.tensors.served import NODES
from gnnserve_worker.serving.http.wishes import Wishes
from gnnserve_worker.serving.requests import Answer

_LISTS = {Datatype.INT64: "int64_contents", Datatype.FP32: "fp32_contents", Datatype.BYTES: "bytes_contents"}
"""The list that a message has for the elements of an input."""
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
    __slots__ = ("_request", "model", "version")

    def __init__(self, raw: bytes) -> None:
        """`raw`: the message. Raises RequestError where it is none."""
        self._request = read_message(ModelInferRequest, raw)
        self.model: str = self._request.model_name
        self.version: str | None = self._request.model_version or None
        """The variant that the request names."""

    @property
    def id(self) -> str:
        return str(self._request.id)

    def check_query(self, query: bytes) -> None:
        """gRPC has no queries."""

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        """`body`: the message, which is read already."""
        nodes = next((tensor for tensor in self._request.inputs if tensor.name == NODES), None)
        return 1 if nodes is None or not nodes.shape else min(max(1, nodes.shape[0]), len(body))

    def may_choose(self, _body: bytes) -> bool:
        return self.version is not None or may_state_objective(self._request.parameters)

    def may_have_overlay(self, _body: bytes) -> bool:
        return any(tensor.name != NODES for tensor in self._request.inputs)

    def parse_question(
        self,
        body: bytes,
        query: bytes,
        wishes: Wishes,
        revision: ServedRevision,
        max_nodes: int,
        limits: OverlayLimits,
    ) -> Question:
        asked = self._request
        request = InferRequest(
            tuple(
                RequestInput(given.name, tuple(given.shape), given.datatype, _values_of(given.parameters))
                for given in asked.inputs
            ),
            tuple(RequestOutput(wanted.name, _values_of(wanted.parameters)) for wanted in asked.outputs),
            asked.id or None,
            _values_of(asked.parameters),
        )
        brings_bytes = bool(asked.raw_input_contents)
        read = read_request(request, _InMessage(asked), wishes, revision, limits, as_bytes=brings_bytes)
        return to_question(read, self.version, read_elements, revision, max_nodes, limits)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        """`in_pieces`: a message is whole; its elements are copied, and not written one by one."""
        response = ModelInferResponse(
            model_name=self.model, model_version=answer.variant, id=question.form.id or ""
        )  # fmt: skip
        # A message has either bytes for all of its outputs or for none.
        is_binary = any(question.form.are_binary)
        for name in question.outputs:
            datatype, shape = form_of(name, answer, revision)
            output = response.outputs.add(name=name, datatype=datatype, shape=shape)
            if is_binary:
                response.raw_output_contents.append(bytes(as_bytes(name, answer, revision)))
            else:
                _fill(output.contents, name, datatype, answer, revision)
        told = response.parameters
        told["revision"].string_param = revision.manifest.revision
        if answer.offset is not None:
            told["offset"].int64_param = answer.offset
        told["objective_met"].bool_param = objective_met()
        return Encoded(b"", response.SerializeToString())

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_grpc_error(detail)


def encode_grpc_error(detail: ErrorDetail) -> Encoded:
    """The sentence is the status's message; the code stands in the metadata."""
    return Encoded(b"gnnserve-error: %b\r\n" % detail.code.encode(), detail.message.encode())


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

    def __init__(self, request: Any) -> None:
        self._inputs = request.inputs
        self._raw = request.raw_input_contents

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
        return Listed(_listed(name, Datatype(tensor.datatype), contents))

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


def _fill(contents: Any, name: str, datatype: Datatype, answer: Answer, revision: ServedRevision) -> None:
    """Put an output's elements into the list of its datatype."""
    if are_texts(name, revision):
        contents.bytes_contents.extend(texts_of_labels(answer, revision))
        return
    numbers = numbers_of(name, answer, revision)
    if datatype is Datatype.INT64:
        contents.int64_contents.extend(numbers.tolist())
    else:
        data = numbers.data.cast("B")
        contents.MergeFromString(b"".join((_PACKED[datatype], _varint(len(data)), data)))


def _varint(number: int) -> bytes:
    """A length as it stands in a message: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))
