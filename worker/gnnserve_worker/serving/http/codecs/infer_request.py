"""The body of an inference request of the Open Inference Protocol: JSON, and tensors as bytes behind it.

It is read as far as it does not depend on what the tensors hold: their names, datatypes, shapes and sizes, parameters,
and the outputs that are asked for. Unknown names are refused, so that a misspelt one is not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.overlay import OverlayLimits
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary import ID_BYTES
from gnnserve_worker.serving.http.codecs.json_mistakes import BodyForm, field_error
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, check_values, without_collection
from gnnserve_worker.serving.http.codecs.served_tensors import NODES, input_kinds, output_kinds
from gnnserve_worker.serving.http.codecs.tensors import Datatype, GivenTensor, check_form
from gnnserve_worker.serving.http.overlay import support_of
from gnnserve_worker.serving.http.question import (
    ErrorCode,
    RequestError,
    Wishes,
    check_objective,
    check_outputs,
    check_seed,
    counted,
    cut,
    shown_value,
)

DEFAULT_OUTPUTS = ("labels", "scores")
"""Embeddings come only when asked for: not every variant has them."""
SIZE, AS_BYTES, ALL_AS_BYTES = "binary_data_size", "binary_data", "binary_data_output"
_LATENCY, _TOLERANCE, _STRICT, _SEED, _OFFSET = (
    "latency_ms", "accuracy_tolerance_permille", "strict", "seed", "min_offset",
)  # fmt: skip
PARAMETERS = (_LATENCY, _TOLERANCE, _STRICT, _SEED, _OFFSET, ALL_AS_BYTES)


class RequestInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that a request brings."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: Raw = msgspec.field(default_factory=Raw)
    """Elements in JSON; empty: they come as bytes."""


class RequestOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that a request asks for."""

    name: str
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inputs: tuple[RequestInput, ...]
    outputs: tuple[RequestOutput, ...] | None = None
    id: str | None = None
    parameters: dict[str, Any] | None = None
    model_name: str | None = None
    """Some clients repeat here what the path says."""
    model_version: str | None = None


class AnswerForm(msgspec.Struct, frozen=True):
    """What the answer's form depends on."""

    id: str | None
    are_binary: tuple[bool, ...]
    """Whether each output is sent as bytes, in the order asked."""


class InferBody(msgspec.Struct, frozen=True):
    """A request, without the bytes behind its JSON."""

    tensors: Mapping[str, GivenTensor]
    outputs: tuple[str, ...]
    wishes: Wishes
    offset_field: str
    """Where the wish for an offset stands, if there is one."""
    form: AnswerForm


_decoder = msgspec.json.Decoder(InferRequest)
_OBJECT = "give an object of names and values"


def _example(revision: ServedRevision) -> str:
    ids = revision.shown_ids(0, 2)
    tensor = {"name": NODES, "shape": [len(ids)], "datatype": input_kinds(revision)[NODES].datatype, "data": ids}
    return msgspec.json.encode({"inputs": [tensor]}).decode()


BODY = BodyForm(
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
    example=_example,
)


def may_bring(body: bytes) -> bool:
    """Whether the body may bring an overlay; a name may also be written with escapes."""
    return b'"overlay.' in body or b"\\u00" in body


def read_infer_body(
    body: bytes,
    json_bytes: int | None,
    model: str,
    version: str | None,
    wishes: Wishes,
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> InferBody:
    """`json_bytes`: the length of the JSON, behind which tensors stand as bytes; None: it is the whole body.
    `wishes`: those of the head; parameters go first."""
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
        request = _raw_request(body, revision)
    elif len(text) <= LARGE_BYTES:
        request = _decode(text, revision)
    else:
        check_values(text, revision, max_nodes, limits, may_bring=may_bring(text))
        with without_collection():
            request = _decode(text, revision)
    _check_place(request, model, version)
    given_wishes, all_binary = read_parameters(request.parameters or {}, wishes)
    outputs, are_binary = _read_outputs(request.outputs or (), revision, all_binary=all_binary)
    tensors = _read_inputs(request.inputs, behind, revision, limits)
    is_own = _OFFSET in (request.parameters or {})
    offset_field = f"parameters.{_OFFSET}" if is_own else "gnnserve-min-offset"
    return InferBody(tensors, outputs, given_wishes, offset_field, AnswerForm(request.id, are_binary))


def _raw_request(body: bytes, revision: ServedRevision) -> InferRequest:
    """A body without JSON: the ids alone, whose number follows from their size. All outputs are bytes."""
    kind = input_kinds(revision)[NODES]
    if kind.datatype is not Datatype.INT64 or len(body) % ID_BYTES:
        raise RequestError(
            ErrorCode.INVALID_BINARY,
            "body",
            f"{counted(len(body), 'byte')} without JSON are no tensor of {kind.datatype}",
            "send JSON, and its length in Inference-Header-Content-Length",
        )
    tensor = RequestInput(NODES, (len(body) // ID_BYTES,), kind.datatype, {SIZE: len(body)})
    return InferRequest((tensor,), parameters={ALL_AS_BYTES: True})


def _decode(text: bytes, revision: ServedRevision) -> InferRequest:
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise field_error(str(error), text, revision, BODY) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if text.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, BODY.body_remedy(revision)) from None


def _check_place(request: InferRequest, model: str, version: str | None) -> None:
    for field, told, wanted in (
        ("model_name", request.model_name, model),
        ("model_version", request.model_version, version),
    ):
        if told and told != wanted:
            found = "none" if wanted is None else shown_value(wanted)
            problem = f"{shown_value(told)}, where the path has {found}"
            raise RequestError(ErrorCode.INVALID_VALUE, field, problem, "leave it out: the path says it")


def read_parameters(given: Mapping[str, Any], wishes: Wishes) -> tuple[Wishes, bool]:
    """The wishes of a request, and whether all outputs are to be bytes. `wishes`: those of its head."""
    if not given:
        return wishes, False
    for name in given:
        if name not in PARAMETERS:
            raise _unknown_parameter(f"parameters.{cut(name)}", PARAMETERS)
    objective = Objective(
        _read(given, _LATENCY, (int, float), "a number"), _read(given, _TOLERANCE, (int, float), "a number")
    )
    if objective == NO_OBJECTIVE:
        objective = wishes.objective
    else:
        check_objective(objective, f"parameters.{_LATENCY}", f"parameters.{_TOLERANCE}")
    strict = _read(given, _STRICT, (bool,), "true or false")
    seed = _read(given, _SEED, (int,), "an integer")
    offset = _read(given, _OFFSET, (int,), "an integer")
    merged = Wishes(
        objective,
        wishes.strict if strict is None else strict,
        wishes.seed if seed is None else check_seed(seed, f"parameters.{_SEED}"),
        wishes.min_offset if offset is None else offset,
        wishes.variant,
    )
    return merged, _read(given, ALL_AS_BYTES, (bool,), "true or false") or False


def _read(given: Mapping[str, Any], name: str, types: tuple[type, ...], wanted: str, where: str = "parameters") -> Any:
    value = given.get(name)
    # In Python true is an integer as well.
    if value is None or (isinstance(value, types) and isinstance(value, bool) == (bool in types)):
        return value
    raise RequestError(
        ErrorCode.INVALID_TYPE, f"{where}.{name}", f"expected {wanted}, got {shown_value(value)}", f"give {wanted}"
    )


def _unknown_parameter(where: str, known: tuple[str, ...]) -> RequestError:
    return RequestError(ErrorCode.UNKNOWN_FIELD, where, "there is no such parameter", f"known are {', '.join(known)}")


def _read_outputs(
    given: tuple[RequestOutput, ...], revision: ServedRevision, *, all_binary: bool
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    if not given:
        return DEFAULT_OUTPUTS, (all_binary,) * len(DEFAULT_OUTPUTS)
    known = ("labels", "scores", "embeddings")
    names, are_binary = tuple(output.name for output in given), []
    for index, output in enumerate(given):
        where, parameters = f"outputs[{index}]", output.parameters or {}
        if output.name not in known:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"{where}.name", f"there is no output {shown_value(output.name)}",
                f"choose from {', '.join(kind.name for kind in output_kinds(revision))}",
            )  # fmt: skip
        if output.name in names[:index]:
            problem = f"{output.name} is asked for twice"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}.name", problem, "ask for each output once")
        for name in parameters:
            if name != AS_BYTES:
                raise _unknown_parameter(f"{where}.parameters.{cut(name)}", (AS_BYTES,))
        is_binary = _read(parameters, AS_BYTES, (bool,), "true or false", f"{where}.parameters")
        are_binary.append(all_binary if is_binary is None else is_binary)
    check_outputs(names, revision, [f"outputs[{index}].name" for index in range(len(names))])
    return names, tuple(are_binary)


def _read_inputs(
    given: tuple[RequestInput, ...], behind: int | None, revision: ServedRevision, limits: OverlayLimits
) -> dict[str, GivenTensor]:
    """`behind`: bytes behind the JSON; None: the head does not say that there are any."""
    kinds, tensors, taken = input_kinds(revision), dict[str, GivenTensor](), 0
    for index, tensor in enumerate(given):
        name, kind = tensor.name, kinds.get(tensor.name)
        if kind is None and name.startswith("overlay."):
            support_of(revision, limits)
        if kind is None:
            problem = f"there is no input {shown_value(name)}"
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD, f"inputs[{index}].name", problem, f"known are {', '.join(kinds)}"
            )
        if name in tensors:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"inputs[{index}].name", f"{name} is there twice", "give each input once"
            )
        check_form(kind, tensor.datatype, tensor.shape)
        for parameter in tensor.parameters or {}:
            if parameter != SIZE:
                raise _unknown_parameter(f"{name}.parameters.{cut(parameter)}", (SIZE,))
        size = _read(tensor.parameters or {}, SIZE, (int,), "an integer", f"{name}.parameters")
        if size is None:
            if not bytes(tensor.data):
                remedy = f"give data, or bytes behind the JSON and their number in {SIZE}"
                raise RequestError(ErrorCode.MISSING_FIELD, f"{name}.data", "it is missing", remedy)
            tensors[name] = GivenTensor(kind, tensor.shape, bytes(tensor.data))
            continue
        if bytes(tensor.data):
            problem = f"it is there, and {SIZE} as well"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{name}.data", problem, "leave out one of them")
        _check_size(behind, taken, size, name)
        tensors[name] = GivenTensor(kind, tensor.shape, b"", taken, size)
        taken += size
    if behind is not None and taken != behind:
        raise RequestError(
            ErrorCode.INVALID_BINARY,
            "body",
            f"{counted(behind, 'byte')} behind the JSON, of which its tensors have {taken:,}",
            f"let each {SIZE} be what its tensor has",
        )
    if NODES not in tensors:
        raise RequestError(ErrorCode.MISSING_FIELD, NODES, "the input is missing", "name the nodes to classify in it")
    return tensors


def _check_size(behind: int | None, taken: int, size: int, name: str) -> None:
    where = f"{name}.parameters.{SIZE}"
    if behind is None:
        raise RequestError(
            ErrorCode.INVALID_BINARY, where, "the request has no bytes behind its JSON",
            "send the length of the JSON in the header Inference-Header-Content-Length",
        )  # fmt: skip
    left = behind - taken
    if not 0 <= size <= left:
        raise RequestError(
            ErrorCode.INVALID_BINARY, where, f"{shown_value(size)}, where {counted(left, 'byte')} are left",
            "give the number of bytes that the tensor has",
        )  # fmt: skip
