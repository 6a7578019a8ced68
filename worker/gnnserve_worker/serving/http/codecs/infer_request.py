"""The body of an inference request of the Open Inference Protocol over HTTP: JSON, and tensors as bytes behind it.

What does not depend on how it is written is in `tensors/request.py`.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gnnserve_api import decoding
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.body_form import UNREADABLE, BodyForm, body_error
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, shown_value
from gnnserve_worker.asking.tensors import Contents, Datatype, InJson, TrailingElements
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary import ID_BYTES
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, check_values, without_collection
from gnnserve_worker.serving.http.tensors.request import (
    ALL_AS_BYTES,
    SIZE,
    InferBody,
    InferRequest,
    RequestInput,
    read_request,
)
from gnnserve_worker.serving.http.tensors.served import example_input, input_kinds
from gnnserve_worker.tasks.served import AskedModel

_decoder = decoding.decoder(InferRequest)
_OBJECT = "give an object of names and values"


def _form_of(asked: AskedModel) -> BodyForm:
    """The form of a body, with an example of a model's own; to be made where a body is wrong."""
    return replace(
        _FORM, example=lambda revision: msgspec.json.encode({"inputs": [example_input(asked, revision)]}).decode()
    )


_FORM = BodyForm(
    members={
        "": ("inputs", "outputs", "id", "parameters", "model_name", "model_version"),
        "inputs[]": ("name", "shape", "datatype", "data", "parameters"),
        "outputs[]": ("name", "parameters"),
    },
    ids=frozenset(),
    remedies={
        "inputs": "give a list of tensors",
        "inputs[]": "give a tensor: an object with name, shape, datatype and data",
        "inputs[].shape": "give a list of integers",
        "inputs[].shape[]": "give an integer",
        "inputs[].datatype": "give the name of a datatype, such as INT64",
        "inputs[].parameters": _OBJECT,
        "outputs": "give a list of objects, each with the name of an output",
        "outputs[]": "give an object with the name of an output",
        "outputs[].parameters": _OBJECT,
        "parameters": _OBJECT,
        "id": "give a text, or leave it out",
    },
    example=lambda _: "",
)


def may_bring(body: bytes) -> bool:
    """Whether the body may bring an overlay; a name may also be written with escapes."""
    return b'"overlay.' in body or b"\\u00" in body


def read_infer_body(
    body: bytes,
    json_bytes: int | None,
    model: str,
    version: str | None,
    asked: AskedModel,
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> InferBody:
    """`json_bytes`: the length of the JSON, behind which tensors stand as bytes; None: it is the whole body. `model`:
    what the path calls `asked`."""
    text, behind = body, None
    if json_bytes is not None:
        text, behind = body[:json_bytes], len(body) - json_bytes
    if behind is not None and behind < 0:
        raise RequestError(
            ErrorCode.INVALID_BINARY,
            "body",
            f"{counted(len(body), 'byte')}, fewer than the {json_bytes:,} of JSON that the head says",
            "send the length of the JSON in Inference-Header-Content-Length",
        )
    if json_bytes == 0:
        request = _raw_request(body, asked, revision)
    elif len(text) <= LARGE_BYTES:
        request = _decode(text, asked, revision)
    else:
        check_values(text, revision, max_nodes, limits, may_bring=may_bring(text))
        with without_collection():
            request = _decode(text, asked, revision)
    _check_place(request, model, version)
    return read_request(request, _InBody(behind), version, asked, revision, limits, as_bytes=False)


class _InBody:
    """Elements in a body: in its JSON, or as bytes behind it."""

    def __init__(self, behind: int | None) -> None:
        """`behind`: bytes behind the JSON; None: the head does not say that there are any."""
        self._behind = behind
        self._taken = 0
        """Bytes behind the JSON that belong to the inputs so far."""

    def find(self, _index: int, tensor: RequestInput, size: int | None) -> Contents:
        text = bytes(tensor.data)
        if size is None:
            if not text:
                remedy = f"give data, or bytes behind the JSON and their number in {SIZE}"
                raise RequestError(ErrorCode.MISSING_FIELD, f"{tensor.name}.data", "it is missing", remedy)
            return InJson(text)
        if text:
            problem = f"it is there, and {SIZE} as well"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{tensor.name}.data", problem, "leave out one of them")
        self._check_size(size, tensor.name)
        start, self._taken = self._taken, self._taken + size
        return TrailingElements(start, size)

    def _check_size(self, size: int, name: str) -> None:
        where = f"{name}.parameters.{SIZE}"
        if self._behind is None:
            raise RequestError(
                ErrorCode.INVALID_BINARY, where, "the request has no bytes behind its JSON",
                "send the length of the JSON in the header Inference-Header-Content-Length",
            )  # fmt: skip
        left = self._behind - self._taken
        if not 0 <= size <= left:
            raise RequestError(
                ErrorCode.INVALID_BINARY, where, f"{shown_value(size)}, where {counted(left, 'byte')} are left",
                "give the number of bytes that the tensor has",
            )  # fmt: skip

    def check_rest(self) -> None:
        if self._behind is not None and self._taken != self._behind:
            raise RequestError(
                ErrorCode.INVALID_BINARY,
                "body",
                f"{counted(self._behind, 'byte')} behind the JSON, of which its tensors have {self._taken:,}",
                f"let each {SIZE} be what its tensor has",
            )


def _decode(text: bytes, asked: AskedModel, revision: ServedRevision) -> InferRequest:
    try:
        return _decoder.decode(text)
    except UNREADABLE as error:
        raise body_error(error, text, revision, _form_of(asked)) from None


def _raw_request(body: bytes, asked: AskedModel, revision: ServedRevision) -> InferRequest:
    """A body without JSON: the ids alone, whose number follows from their size. All outputs are bytes."""
    tensors = asked.tensors
    kind, item_bytes = input_kinds(asked, revision)[tensors.items], ID_BYTES * tensors.item_ids
    if kind.datatype is not Datatype.INT64 or len(body) % item_bytes:
        raise RequestError(
            ErrorCode.INVALID_BINARY,
            "body",
            f"{counted(len(body), 'byte')} without JSON are no tensor of {kind.datatype}",
            "send JSON, and its length in Inference-Header-Content-Length",
        )
    shape = (len(body) // item_bytes, *kind.shape[1:])
    tensor = RequestInput(kind.name, shape, kind.datatype, {SIZE: len(body)})
    return InferRequest((tensor,), parameters={ALL_AS_BYTES: True})


def _check_place(request: InferRequest, model: str, version: str | None) -> None:
    for field, told, wanted in (
        ("model_name", request.model_name, model),
        ("model_version", request.model_version, version),
    ):
        if told and told != wanted:
            found = "none" if wanted is None else shown_value(wanted)
            problem = f"{shown_value(told)}, where the path has {found}"
            raise RequestError(ErrorCode.INVALID_VALUE, field, problem, "leave it out: the path says it")
