"""An inference request of the Open Inference Protocol, whatever it is written in.

It is read as far as it does not depend on what the tensors hold: their names, datatypes and shapes, parameters, and the
outputs that are asked for. Unknown names are refused, so that a misspelt one is not ignored. Where the elements of the
tensors are is up to the form (`Enclosed`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.overlay import OverlayLimits
from gnnserve_worker.asking.question import (
    ErrorCode,
    RequestError,
    check_objective,
    check_priority,
    check_seed,
    check_timeout,
    cut,
    shown_value,
)
from gnnserve_worker.asking.tensors import Contents, GivenTensor, check_form
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.served import NODES, given_kind, input_kinds
from gnnserve_worker.serving.http.wishes import Wishes

OUTPUT_NAMES = ("labels", "scores", "embeddings")
"""Names of outputs that some service has."""
DEFAULT_OUTPUTS = ("labels", "scores")
"""Embeddings come only when asked for: not every variant has them."""
SIZE, AS_BYTES, ALL_AS_BYTES = "binary_data_size", "binary_data", "binary_data_output"
_LATENCY, _TOLERANCE, _STRICT, _SEED, _OFFSET, _TIMEOUT, _PRIORITY = (
    "latency_ms", "accuracy_tolerance_permille", "strict", "seed", "min_offset", "timeout", "priority",
)  # fmt: skip
_LARGEST = 2**64 - 1
"""The largest number of a parameter, of those that gRPC can send."""
PARAMETERS = (_LATENCY, _TOLERANCE, _STRICT, _SEED, _OFFSET, _TIMEOUT, _PRIORITY, ALL_AS_BYTES)


def may_choose_by(names: Collection[str]) -> bool:
    """Whether parameters of these names may be an objective or a priority of the request's own."""
    return _LATENCY in names or _TOLERANCE in names or _PRIORITY in names


def may_have_seed(names: Collection[str]) -> bool:
    """Whether parameters of these names may be a seed of the request's own."""
    return _SEED in names


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
    """What the answer's form depends on."""

    id: str | None
    are_binary: tuple[bool, ...]
    """Whether each output is sent as bytes, in the order asked."""


class InferBody(msgspec.Struct, frozen=True):
    """A request, without the elements of its tensors."""

    tensors: Mapping[str, GivenTensor]
    outputs: tuple[str, ...]
    wishes: Wishes
    offset_field: str
    """Where the wish for an offset stands, if there is one."""
    form: AnswerForm


class Enclosed(Protocol):
    """Where a form of requests has the elements of tensors."""

    def find(self, index: int, tensor: RequestInput, size: int | None) -> Contents:
        """The elements of the input with this index; called in their order. `size`: the number of bytes that its
        parameter says. Raises RequestError where they are not there, or in two places."""

    def check_rest(self) -> None:
        """Raises RequestError where there are elements of no input."""


def read_request(
    request: InferRequest,
    enclosed: Enclosed,
    wishes: Wishes,
    revision: ServedRevision,
    limits: OverlayLimits,
    *,
    as_bytes: bool,
) -> InferBody:
    """`wishes`: those of the head; parameters go first. `as_bytes`: whether outputs come as bytes where the request
    does not say it."""
    parameters = request.parameters or {}
    given_wishes, all_binary = _read_parameters(parameters, wishes)
    if all_binary is None:
        all_binary = as_bytes
    outputs, are_binary = _read_outputs(request.outputs or (), revision, all_binary=all_binary)
    tensors = _read_inputs(request.inputs, enclosed, revision, limits)
    offset_field = f"parameters.{_OFFSET}" if _OFFSET in parameters else "gnnserve-min-offset"
    return InferBody(tensors, outputs, given_wishes, offset_field, AnswerForm(request.id, are_binary))


def _read_parameters(given: Mapping[str, Any], wishes: Wishes) -> tuple[Wishes, bool | None]:
    """The wishes of a request, and whether all outputs are to be bytes, if it says so. `wishes`: those of its head."""
    if not given:
        return wishes, None
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
    # Triton's: microseconds, and 0 for none.
    timeout_us = _read(given, _TIMEOUT, (int,), "an integer")
    priority = _read(given, _PRIORITY, (int,), "an integer")
    merged = Wishes(
        objective,
        wishes.strict if strict is None else strict,
        wishes.seed if seed is None else check_seed(seed, f"parameters.{_SEED}"),
        wishes.min_offset if offset is None else offset,
        wishes.variant,
        wishes.timeout_ms if not timeout_us else check_timeout(timeout_us / 1000, f"parameters.{_TIMEOUT}"),
        wishes.priority if not priority else check_priority(priority, f"parameters.{_PRIORITY}"),
    )
    return merged, _read(given, ALL_AS_BYTES, (bool,), "true or false")


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
    given: tuple[RequestOutput, ...], revision: ServedRevision, *, all_binary: bool
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    if not given:
        return DEFAULT_OUTPUTS, (all_binary,) * len(DEFAULT_OUTPUTS)
    names, are_binary = tuple(output.name for output in given), []
    for index, output in enumerate(given):
        where, parameters = f"outputs[{index}]", output.parameters or {}
        if output.name not in OUTPUT_NAMES:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"{where}.name", f"there is no output {shown_value(output.name)}",
                f"choose from {', '.join(kind.name for kind in revision.task.tensors.outputs())}",
            )  # fmt: skip
        if output.name in names[:index]:
            problem = f"{output.name} is asked for twice"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}.name", problem, "ask for each output once")
        for name in parameters:
            if name != AS_BYTES:
                raise _unknown_parameter(f"{where}.parameters.{cut(name)}", (AS_BYTES,))
        is_binary = _read(parameters, AS_BYTES, (bool,), "true or false", f"{where}.parameters")
        are_binary.append(all_binary if is_binary is None else is_binary)
    revision.task.check_outputs(names, [f"outputs[{index}].name" for index in range(len(names))])
    return names, tuple(are_binary)


def _read_inputs(
    given: tuple[RequestInput, ...], enclosed: Enclosed, revision: ServedRevision, limits: OverlayLimits
) -> dict[str, GivenTensor]:
    tensors = dict[str, GivenTensor]()
    for index, tensor in enumerate(given):
        name, kind = tensor.name, given_kind(tensor.name, tensor.datatype, revision)
        if kind is None and name.startswith("overlay."):
            revision.compute.overlays.support(limits)
        if kind is None:
            known = ", ".join(input_kinds(revision))
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
    if NODES not in tensors:
        raise RequestError(ErrorCode.MISSING_FIELD, NODES, "the input is missing", "name the nodes to classify in it")
    return tensors
