"""A module called once, while functions of torch and convolutions of torch_geometric are recorded as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from gnnserve_describe.blame import blame_of_caller
from gnnserve_describe.layers.attention import ATTENTION
from gnnserve_describe.layers.calls import ConvolutionCall
from gnnserve_describe.layers.convolutions import convolution_of, jumping_tensors
from gnnserve_describe.layers.functions import CONSTANTS, FUNCTIONS, SAME_NUMBERS, FunctionCall, Read
from gnnserve_describe.layers.kinds import KINDS
from gnnserve_describe.layers.typed import read_hgt
from gnnserve_describe.layers.values import (
    Attended,
    Combined,
    Convolved,
    EdgeColumns,
    Features,
    NotLayersError,
    Product,
    TypedAttention,
    Unread,
    Value,
    Weighed,
)

_Made = TypeVar("_Made", bound=Value)
_Leaf = Callable[["_ModuleCall"], "Value | Mapping[str, Value]"]


class Recorder(TorchFunctionMode):
    """Within it each tensor that is computed of a recorded one has a value."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[int, Value] = {}
        self._kept: list[Any] = []
        """Tensors, and what values are made of, so that no other object has their `id`."""
        self._made: dict[Any, Value] = {}
        self.is_inside = False
        """Whether a convolution computes, whose functions are its own."""

    def give(self, tensor: torch.Tensor, value: Value) -> None:
        self._kept.append(tensor)
        self._values[id(tensor)] = value

    def value_of(self, tensor: Any) -> Value | None:
        """None: it is no tensor, or one that is not computed of the graph."""
        return self._values.get(id(tensor)) if torch.is_tensor(tensor) else None

    def made(self, kind: Callable[..., _Made], *parts: Any) -> _Made:
        """A value of such parts, the same one each time."""
        key = (kind, *map(_key_of, parts))
        if key not in self._made:
            self._kept.append(parts)
            self._made[key] = kind(*parts)
        return self._made[key]  # type: ignore[return-value]

    def unread(self, what: str) -> Unread:
        blame = blame_of_caller()
        where = str(blame)
        return Unread(f"{what} is no part of a layer{f' ({where})' if where else ''}")

    @contextmanager
    def hooks(self, module: torch.nn.Module) -> Iterator[None]:
        """Within it convolutions inside of the module are recorded as a whole."""
        handles = []
        for each in module.modules():
            leaf = _leaf_of(each)
            if leaf is not None:
                begun = _Begun(self, leaf)
                handles.append(each.register_forward_pre_hook(begun.begin, with_kwargs=True))
                handles.append(each.register_forward_hook(begun.end, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in _tensors_in((args, kwargs)) if id(each) in self._values]
        if self.is_inside or not given:
            return func(*args, **kwargs)
        call = FunctionCall(func.__name__, args, kwargs, self)
        value = self._value_of_call(call)
        found = func(*args, **kwargs)
        if isinstance(found, Iterator):
            found = list(found)
            self._note(call, given, found, value)
            return iter(found)
        changed = call.changed_by(found)
        if changed is not None:
            self._note_changed(call, given, changed, value)
        else:
            self._note(call, given, found, value)
        return found

    def _value_of_call(self, call: FunctionCall) -> Read:
        """By the first table that makes something of it."""
        reads = (each[call.plain_name] for each in (FUNCTIONS, KINDS, ATTENTION) if call.plain_name in each)
        return next((found for read in reads if (found := read(call)) is not None), None)

    def _note(self, call: FunctionCall, given: list[torch.Tensor], found: Any, value: Read) -> None:
        """Give results their values; without one, that of an argument whose numbers they have."""
        if call.plain_name in CONSTANTS:
            return
        values = value if isinstance(value, tuple) else (value,)
        for place, result in enumerate(_tensors_in(found)):
            own = values[place] if place < len(values) else None
            self.give(result, own or self._same(call, given, result) or self._cause(call, given))

    def _cause(self, call: FunctionCall, given: list[torch.Tensor]) -> Unread:
        """The first function that was not understood."""
        causes = (self._values[id(each)] for each in given)
        return next((each for each in causes if isinstance(each, Unread)), None) or self.unread(call.name)

    def _same(self, call: FunctionCall, given: list[torch.Tensor], result: torch.Tensor) -> Value | None:
        """The value of an argument that the result has the numbers of."""
        first = given[0]
        is_float = result.dtype in (torch.float32, torch.float64) or result.dtype == first.dtype
        if call.plain_name in SAME_NUMBERS and first.shape == result.shape and is_float:
            return self._values[id(first)]
        for each in given:
            if each.data_ptr() != result.data_ptr() or each.numel() != result.numel() or not each.numel():
                continue
            value = self._values[id(each)]
            is_vector = (isinstance(value, EdgeColumns) and value.count == 1) or (value.is_rows and value.width == 1)
            if is_vector or (each.shape == result.shape and each.stride() == result.stride()):
                return value
        return None

    def _note_changed(self, call: FunctionCall, given: list[torch.Tensor], changed: torch.Tensor, value: Read) -> None:
        """Tensors that share memory with what was changed: they have its new value where they are all of it."""
        made = value if changed is call.first and isinstance(value, Value) else self._cause(call, given)
        memory = _memory_of(changed)
        others = [each for each in self._kept if torch.is_tensor(each) and _memory_of(each) == memory]
        for each in others:
            is_whole = each.shape == changed.shape and each.data_ptr() == changed.data_ptr()
            self._values[id(each)] = made if is_whole else self._cause(call, given)
        self.give(changed, made)


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _key_of(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_key_of, part))
    if isinstance(part, Mapping):
        return tuple((name, _key_of(each)) for name, each in part.items())
    return ("object", id(part)) if isinstance(part, Value | torch.Tensor) else part


def _tensors_in(given: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(given):
        yield given
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _tensors_in(each)
    elif isinstance(given, Mapping):
        for each in given.values():
            yield from _tensors_in(each)


# Convolutions


@dataclass(frozen=True, slots=True, eq=False)
class _ModuleCall:
    recorder: Recorder
    module: torch.nn.Module
    given: Mapping[str, Any]
    """Arguments by the names of its parameters."""


@dataclass(slots=True, eq=False)
class _Begun:
    """Calls of one module."""

    recorder: Recorder
    leaf: _Leaf
    values: list[Value | Mapping[str, Value] | None] = field(default_factory=list)
    """Values that calls give which have not ended, by the names of the types where these are several."""

    def begin(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        recorder = self.recorder
        is_given = any(recorder.value_of(each) is not None for each in _tensors_in((args, kwargs)))
        if recorder.is_inside or not is_given:
            self.values.append(None)
            return
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        try:
            value: Value | Mapping[str, Value] = self.leaf(_ModuleCall(recorder, module, given))
        except NotLayersError as error:
            value = Unread(str(error))
        self.values.append(value)
        recorder.is_inside = True

    def end(self, module: torch.nn.Module, args: Any, kwargs: Any, found: Any) -> None:
        del module, args, kwargs
        value = self.values.pop()
        if value is None:
            return
        self.recorder.is_inside = False
        if isinstance(value, Mapping):
            for kind, rows in value.items():
                self.recorder.give(found[kind], rows)
            return
        for place, each in enumerate(_tensors_in(found)):
            self.recorder.give(each, value if place == 0 else self.recorder.unread("attention of edges"))


def _leaf_of(module: torch.nn.Module) -> _Leaf | None:
    if type(module).__name__ == "HGTConv":
        return _typed
    if hasattr(module, "propagate") and hasattr(module, "message"):
        return _convolved
    if type(module).__name__ == "JumpingKnowledge" and getattr(module, "mode", "") == "lstm":
        return _weighed
    return None


def _weighed(call: _ModuleCall) -> Value:
    values = tuple(call.recorder.value_of(each) for each in call.given["xs"])
    if any(each is None for each in values):
        raise NotLayersError("JumpingKnowledge reads rows that are not computed of the graph")
    return call.recorder.made(Weighed, values, jumping_tensors(call.module))


def _typed(call: _ModuleCall) -> Mapping[str, Value]:
    """Output of HGTConv for each type."""
    recorder = call.recorder
    found = read_hgt(_call_of(call))
    return {
        kind: recorder.made(TypedAttention, *(getattr(each, part.name) for part in fields(each)))
        for kind, each in found.items()
    }


def _call_of(call: _ModuleCall) -> ConvolutionCall:
    recorder = call.recorder

    def whole(features: Features) -> Features:
        return recorder.made(Features, features.type, 0, features.columns, features.columns)

    return ConvolutionCall(call.module, call.given, recorder.value_of, nested, whole)


def _convolved(call: _ModuleCall) -> Value:
    recorder, tensors = call.recorder, [*call.module.parameters(), *call.module.buffers()]
    if call.given.get("x") is not None and any(recorder.value_of(each) is not None for each in tensors):
        raise NotLayersError(f"{type(call.module).__name__} has weights that are features of nodes")

    found = convolution_of(_call_of(call))
    made = tuple(
        recorder.made(Convolved, *(getattr(each, part.name) for part in fields(each))) for each in found.convolutions
    )
    if found.shares_softmax:
        return recorder.made(Attended, made)
    terms: list[Value] = [*made]
    terms += [] if found.own is None else [recorder.made(Product, *found.own, None)]
    if len(terms) == 1 and found.bias is None:
        return terms[0]
    return recorder.made(Combined, tuple((1.0, each) for each in terms), found.bias)


def nested(module: torch.nn.Module, width: int, value: Value) -> Value:
    """Value of a module of rows alone, as of GIN's products."""
    recorder = Recorder()
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
    rows = torch.linspace(-1.0, 1.0, 3 * width, dtype=dtype).reshape(3, width)
    recorder.give(rows, value)
    with torch.no_grad(), recorder.hooks(module), recorder:
        found = module(rows)
    return recorder.value_of(found) or Unread("the products of a convolution do not read its rows")
