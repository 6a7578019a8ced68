"""An inference request of the Open Inference Protocol, whatever it is written in.

It is read as far as it does not depend on what the tensors hold: their names, datatypes and shapes, parameters, and the
outputs that are asked for. Unknown names are refused, so that a misspelt one is not ignored. Where the elements of the
tensors are is up to the form (`ElementSource`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from gnnserve_api.limits import OverlayLimits
from gnnserve_api.objective import Objective
from gnnserve_worker.asking.question import (
    CHOOSING_PARAMETERS,
    NO_WISHES,
    SEED,
    WISHES,
    ErrorCode,
    RequestError,
    Wishes,
    cut,
    shown_value,
    wishes_of_parameters,
)
from gnnserve_worker.asking.tensors import Contents, GivenTensor, check_form
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.served import OVERLAY, given_kind, input_kinds
from gnnserve_worker.tasks.served import AskedModel, OwnInputs

SIZE, AS_BYTES, ALL_AS_BYTES = "binary_data_size", "binary_data", "binary_data_output"
_LATENCY, _TOLERANCE, _STRICT = "latency_ms", "accuracy_tolerance_permille", "strict"
_INTEGERS = tuple(wish.parameter for wish in WISHES if wish.parameter)
_LARGEST = 2**64 - 1
"""The largest number of a parameter, of those that gRPC can send."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
PARAMETERS = (_LATENCY, _TOLERANCE, _STRICT, *_INTEGERS, ALL_AS_BYTES)


def may_choose_by(names: Collection[str]) -> bool:
    """Whether parameters of these names may be wishes because of which a request has to be read."""
    return any(name in names for name in CHOOSING_PARAMETERS)


def may_have_seed(names: Collection[str]) -> bool:
    """Whether parameters of these names may be a seed of the request's own."""
    return SEED.parameter in names


class RequestInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that a request brings."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: Raw = msgspec.field(default_factory=Raw)
    """Elements in JSON; empty: they are somewhere else."""


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
    """Settings that the answer's form depends on."""

    id: str | None
    are_binary: tuple[bool, ...]
    """Whether each output is sent as bytes, in the order asked."""


class InferBody(msgspec.Struct, frozen=True):
    """A request, without the elements of its tensors."""

    tensors: Mapping[str, GivenTensor]
    outputs: tuple[str, ...]
    wishes: Wishes
    """Wishes of its parameters, and of the version that it names."""
    form: AnswerForm
    own: Mapping[str, Any] = _NOTHING
    """Values of the parameters that its model alone has, by name; None: it is not given."""


class AskedOf(Protocol):
    """Tells which model of a revision is asked."""

    def __call__(self, revision: ServedRevision, /) -> AskedModel: ...


PREDICTIONS_OF: AskedOf = attrgetter("task")


class ElementSource(Protocol):
    """Where a form of requests has the elements of tensors."""

    def find(self, index: int, tensor: RequestInput, size: int | None) -> Contents:
        """The elements of the input with this index; called in their order. `size`: the number of bytes that its
        parameter says. Raises RequestError where they are not there, or in two places."""

    def check_rest(self) -> None:
        """Raises RequestError where there are elements of no input."""


def read_request(
    request: InferRequest,
    enclosed: ElementSource,
    version: str | None,
    asked: AskedModel,
    revision: ServedRevision,
    limits: OverlayLimits,
    *,
    as_bytes: bool,
) -> InferBody:
    """`version`: the variant that the place of the request names. `as_bytes`: whether outputs come as bytes where the
    request does not say it."""
    wishes, all_binary, own = _read_parameters(request.parameters or {}, asked.tensors.own)
    if version:
        wishes = msgspec.structs.replace(wishes, variant=version)
    outputs, are_binary = _read_outputs(
        request.outputs or (), asked, all_binary=as_bytes if all_binary is None else all_binary
    )
    tensors = _read_inputs(request.inputs, enclosed, asked.items_for(outputs), revision, limits)
    return InferBody(tensors, outputs, wishes, AnswerForm(request.id, are_binary), own)


def _read_parameters(given: Mapping[str, Any], own: OwnInputs) -> tuple[Wishes, bool | None, Mapping[str, Any]]:
    """The wishes of a request, whether all outputs are to be bytes, if it says so, and the model's own parameters."""
    if not given:
        return NO_WISHES, None, _NOTHING
    for name in given:
        if name not in PARAMETERS and name not in own.parameters:
            raise _unknown_parameter(f"parameters.{cut(name)}", (*own.parameters, *PARAMETERS))
    objective = Objective(
        _read(given, _LATENCY, (int, float), "a number"), _read(given, _TOLERANCE, (int, float), "a number")
    )
    strict = _read(given, _STRICT, (bool,), "true or false")
    integers = {name: _read(given, name, (int,), "an integer") for name in _INTEGERS if given.get(name) is not None}
    wishes = wishes_of_parameters(objective, strict, integers)
    all_binary = _read(given, ALL_AS_BYTES, (bool,), "true or false")
    if not own.parameters:
        return wishes, all_binary, _NOTHING
    told = {name: _read(given, name, (kind,), said) for name, (kind, said) in own.parameters.items()}
    return wishes, all_binary, told


def _read(given: Mapping[str, Any], name: str, types: tuple[type, ...], wanted: str, where: str = "parameters") -> Any:
    value, where = given.get(name), f"{where}.{name}"
    # In Python true is an integer as well.
    if value is not None and not (isinstance(value, types) and isinstance(value, bool) == (bool in types)):
        problem = f"expected {wanted}, got {shown_value(value)}"
        raise RequestError(ErrorCode.INVALID_TYPE, where, problem, f"give {wanted}")
    # JSON has integers that no float is as large as.
    if isinstance(value, int) and abs(value) > _LARGEST:
        problem = f"{shown_value(value)} is out of range"
        raise RequestError(ErrorCode.INVALID_VALUE, where, problem, f"give {wanted} of at most 64 bits")
    return value


def _unknown_parameter(where: str, known: tuple[str, ...]) -> RequestError:
    return RequestError(ErrorCode.UNKNOWN_FIELD, where, "there is no such parameter", f"known are {', '.join(known)}")


def _read_outputs(
    given: tuple[RequestOutput, ...], asked: AskedModel, *, all_binary: bool
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    if not given:
        names = asked.tensors.default_outputs
        return names, (all_binary,) * len(names)
    names, are_binary = tuple(output.name for output in given), []
    for index, output in enumerate(given):
        where, parameters = f"outputs[{index}]", output.parameters or {}
        if output.name not in asked.outputs:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"{where}.name", f"there is no output {shown_value(output.name)}",
                f"choose from {', '.join(kind.name for kind in asked.tensors.outputs())}",
            )  # fmt: skip
        if output.name in names[:index]:
            problem = f"{output.name} is asked for twice"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}.name", problem, "ask for each output once")
        for name in parameters:
            if name != AS_BYTES:
                raise _unknown_parameter(f"{where}.parameters.{cut(name)}", (AS_BYTES,))
        is_binary = _read(parameters, AS_BYTES, (bool,), "true or false", f"{where}.parameters")
        are_binary.append(all_binary if is_binary is None else is_binary)
    asked.check_outputs(names, [f"outputs[{index}].name" for index in range(len(names))])
    return names, tuple(are_binary)


def _read_inputs(
    given: tuple[RequestInput, ...],
    enclosed: ElementSource,
    asked: AskedModel,
    revision: ServedRevision,
    limits: OverlayLimits,
) -> dict[str, GivenTensor]:
    tensors = dict[str, GivenTensor]()
    for index, tensor in enumerate(given):
        name, kind = tensor.name, given_kind(tensor.name, tensor.datatype, asked, revision)
        if kind is None and name.startswith(OVERLAY):
            revision.compute.overlays.check(limits)
        if name in asked.fields_of_others:
            raise asked.wrong_task(f"inputs[{index}].name")
        if kind is None:
            known = ", ".join(input_kinds(asked, revision))
            problem = f"there is no input {shown_value(name)}"
            raise RequestError(ErrorCode.UNKNOWN_FIELD, f"inputs[{index}].name", problem, f"known are {known}")
        if name in tensors:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"inputs[{index}].name", f"{name} is there twice", "give each input once"
            )
        check_form(kind, tensor.datatype, tensor.shape)
        parameters = tensor.parameters or {}
        for parameter in parameters:
            if parameter != SIZE:
                raise _unknown_parameter(f"{name}.parameters.{cut(parameter)}", (SIZE,))
        size = _read(parameters, SIZE, (int,), "an integer", f"{name}.parameters")
        tensors[name] = GivenTensor(kind, tensor.shape, enclosed.find(index, tensor, size))
    enclosed.check_rest()
    items = asked.tensors.items
    if items not in tensors:
        raise RequestError(ErrorCode.MISSING_FIELD, items, "the input is missing", asked.tensors.missing)
    return tensors
