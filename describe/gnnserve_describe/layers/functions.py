"""Functions of torch that parts of layers are computed by: what each makes of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from gnnserve_api.files.layers import Activation, Aggregation, Norm
from gnnserve_describe.layers.values import (
    Activated,
    Aggregated,
    Beside,
    Combined,
    EdgeColumns,
    EdgeCounts,
    EdgeEnds,
    EdgeMask,
    Edges,
    EncodedColumns,
    Extreme,
    Features,
    Normed,
    Product,
    RowsByKind,
    RowsOfEdges,
    Stacked,
    Value,
)

_Made = TypeVar("_Made", bound=Value)
Read: TypeAlias = Value | tuple[Value, ...] | None
"""Value of the result, or of each of several; None: the function is not understood with these arguments."""


class Making(Protocol):
    """Values of tensors, as a recorder keeps them."""

    def value_of(self, tensor: Any) -> Value | None: ...

    def made(self, kind: Callable[..., _Made], *parts: Any) -> _Made: ...


_REVERSED = frozenset({"__radd__", "__rmul__", "__rsub__", "__rmatmul__", "__rtruediv__", "__rdiv__"})


@dataclass(frozen=True, slots=True, eq=False)
class FunctionCall:
    name: str
    """`__name__` of the function."""
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    making: Making

    @property
    def plain_name(self) -> str:
        """Without the signs of a method, of one in place, and of exchanged operands."""
        name = self.name.strip("_")
        if self.name in _REVERSED or self.name in _IN_PLACE:
            return name[1:]
        return name

    @property
    def operands(self) -> tuple[Any, Any]:
        one, two = self.args[0], self.argument(1, "other", None)
        return (two, one) if self.name in _REVERSED else (one, two)

    def argument(self, place: int, name: str, default: Any) -> Any:
        return self.args[place] if place < len(self.args) else self.named.get(name, default)

    def changed_by(self, found: Any) -> Any:
        """The tensor that the call, which returned `found`, has changed in place. None: it has changed none."""
        if self.named.get("out") is not None:
            return self.named["out"]
        is_named = self.name in _IN_PLACE or self.name == "__setitem__" or re.fullmatch(r"[a-z]\w*[a-z0-9]_", self.name)
        is_told = self.named.get("inplace") is True or any(each is True for each in self.args[1:])
        is_same = found is self.first and is_told and self.plain_name not in SAME_NUMBERS
        return self.first if (is_named or is_same) and self.plain_name not in SAME_NUMBERS else None

    def value(self, given: Any) -> Value | None:
        return self.making.value_of(given)

    @property
    def first(self) -> Any:
        return self.args[0] if self.args else self.named.get("input")

    @property
    def rows(self) -> Value | None:
        """The first argument, where it is a matrix with a row for each node."""
        value = self.value(self.first)
        return value if value is not None and value.is_rows and self.first.dim() == 2 else None


_IN_PLACE = frozenset({"__iadd__", "__imul__", "__isub__", "__itruediv__", "__idiv__"})

SAME_NUMBERS = frozenset(
    """
    dropout dropout1d feature_dropout alpha_dropout clone contiguous detach to float double type type_as cpu
    requires_grad
    """.split()  # noqa: SIM905 - one a line would take a page
)
"""Functions that give the numbers of their first argument, those of training among them."""
CONSTANTS = frozenset({"new_zeros", "new_ones", "new_empty", "new_full", "zeros_like", "ones_like", "empty_like"})
"""Functions whose result depends on the size of their argument alone."""


# Rows


def _linear(call: FunctionCall) -> Read:
    return _product(call, call.argument(1, "weight", None), call.argument(2, "bias", None))


def _product(call: FunctionCall, weight: Any, bias: Any) -> Read:
    rows, of_edges = call.rows, call.value(call.first)
    if isinstance(of_edges, RowsOfEdges) and of_edges.weight is None and bias is None and _is_constant(call, weight):
        made = call.making.made(Product, of_edges.rows, weight, None)
        return call.making.made(RowsOfEdges, made, of_edges.relation, None, of_edges.where)
    if not torch.is_tensor(weight) or weight.dim() != 2 or not _is_constant(call, weight, bias):
        return None
    if isinstance(of_edges, EdgeColumns) and call.first.dim() == 2:
        row = torch.zeros(len(weight)) if bias is None else bias
        return call.making.made(EncodedColumns, of_edges, weight, row)
    if rows is None:
        return None
    return call.making.made(Product, rows, weight, bias)


def _matmul(call: FunctionCall) -> Read:
    _, right = call.operands
    is_plain = call.name not in _REVERSED and torch.is_tensor(right) and right.dim() == 2
    return _product(call, right.t(), None) if is_plain and _is_constant(call, right) else None


def _is_constant(call: FunctionCall, *tensors: Any) -> bool:
    return all(call.value(each) is None for each in tensors)


def _activation(
    activation: Activation, slope: str = "", default: float | None = None
) -> Callable[[FunctionCall], Read]:
    """`slope`: name of the argument, the second one, that is its slope."""

    def read(call: FunctionCall) -> Read:
        if call.rows is None:
            return None
        if isinstance(call.rows, Activated) and call.rows.activation is activation is Activation.RELU:
            return call.rows
        given = float(call.argument(1, slope, default)) if slope else None
        return call.making.made(Activated, call.rows, activation, None if given == default else given)

    return read


def _gelu(call: FunctionCall) -> Read:
    is_exact = call.argument(1, "approximate", "none") == "none"
    return call.making.made(Activated, call.rows, Activation.GELU, None) if call.rows is not None and is_exact else None


def _prelu(call: FunctionCall) -> Read:
    weight = call.argument(1, "weight", None)
    if call.rows is None or not _is_constant(call, weight):
        return None
    return call.making.made(Activated, call.rows, Activation.PRELU, None, weight)


def _clamp(call: FunctionCall) -> Read:
    low, high = call.argument(1, "min", None), call.argument(2, "max", None)
    value = call.value(call.first)
    if isinstance(value, EdgeCounts) and low == 1 and high is None:
        return call.making.made(EdgeCounts, value.relation, True, 1, value.where)
    is_relu = call.rows is not None and low == 0 and high is None and not torch.is_tensor(low)
    return call.making.made(Activated, call.rows, Activation.RELU, None) if is_relu else None


def _batch_norm(call: FunctionCall) -> Read:
    names = ("running_mean", "running_var", "weight", "bias")
    tensors = {name: call.argument(place, name, None) for place, name in enumerate(names, 1)}
    if call.rows is None or tensors["running_mean"] is None or call.argument(5, "training", False):
        return None
    return _normed(call, Norm.BATCH, tensors, call.argument(7, "eps", 1e-5))


def _layer_norm(call: FunctionCall) -> Read:
    width = call.first.shape[-1]
    if call.rows is None or tuple(call.argument(1, "normalized_shape", ())) != (width,):
        return None
    tensors = {"weight": call.argument(2, "weight", None), "bias": call.argument(3, "bias", None)}
    return _normed(call, Norm.LAYER, tensors, call.argument(4, "eps", 1e-5))


def _normed(call: FunctionCall, norm: Norm, tensors: Mapping[str, Any], epsilon: float) -> Read:
    width = call.first.shape[-1]
    if not _is_constant(call, *tensors.values()):
        return None
    whole = {
        name: (torch.zeros(width) if name == "bias" else torch.ones(width)) if each is None else each
        for name, each in tensors.items()
    }
    return call.making.made(Normed, call.rows, norm, whole, float(epsilon))


_BY_POWER = {2.0: Norm.L2, 1.0: Norm.L1}


def _normalize(call: FunctionCall) -> Read:
    norm, axis = _BY_POWER.get(call.argument(1, "p", 2.0)), call.argument(2, "dim", 1)
    is_read = norm is not None and axis in (1, -1) and call.argument(3, "eps", 1e-12) == 1e-12
    return call.making.made(Normed, call.rows, norm, {}, 1e-5) if is_read and call.rows is not None else None


# Sums


def _add(call: FunctionCall, sign: float = 1.0) -> Read:
    left, right = call.operands
    share = sign * float(call.named.get("alpha", 1))
    terms = [(factor, call.value(each)) for factor, each in ((1.0, left), (share, right))]
    rows = [(factor, value) for factor, value in terms if value is not None]
    if not all(value.is_rows for _, value in rows):
        return None
    if len(rows) == 2:
        return call.making.made(Combined, tuple(rows), None)
    ((factor, value),) = rows
    is_left = call.value(left) is not None
    return _with_row(call, factor, value, right if is_left else left, share if is_left else 1.0)


def _with_row(call: FunctionCall, factor: float, value: Value, row: Any, share: float) -> Read:
    """A value and a constant."""
    if not torch.is_tensor(row):
        return _times(call, value, factor) if row == 0 else None
    if not bool(row.any()):
        return _times(call, value, factor)
    width = (call.first if call.value(call.first) is not None else call.operands[1]).shape[-1]
    if row.numel() not in (1, width) or (row.dim() == 2 and row.shape[0] != 1):
        return None
    made = (share * row.detach()).reshape(-1).expand(width)
    if isinstance(value, Product) and value.bias is None and factor == 1:
        return call.making.made(Product, value.rows, value.weight, made)
    return call.making.made(Combined, ((factor, value),), made)


def _times(call: FunctionCall, value: Value, factor: float) -> Value:
    made: Value = value if factor == 1 else call.making.made(Combined, ((factor, value),), None)
    return made


def _mul(call: FunctionCall) -> Read:
    left, right = call.operands
    one, two = call.value(left), call.value(right)
    if one is None:
        left, right, one, two = right, left, two, one
    if isinstance(two, RowsOfEdges):
        one, two = two, one
    if isinstance(one, RowsOfEdges):
        return _weighed(call, one, two)
    if isinstance(two, RowsByKind):
        one, two = two, one
    if isinstance(one, RowsByKind):
        kinds = [_weighed(call, each, two, is_of_all=True) for each in one.kinds]
        return call.making.made(RowsByKind, tuple(kinds)) if all(each is not None for each in kinds) else None
    if isinstance(one, Aggregated) and isinstance(two, EdgeCounts) and two.power == -1:
        return _mean_of(call, one, two)
    if one is None or two is not None or not one.is_rows:
        return None
    if not torch.is_tensor(right) or right.numel() == 1:
        return _times(call, one, float(right))
    width = left.shape[-1]
    is_row = right.numel() == width and right.shape[-1] == width
    return call.making.made(Product, one, torch.diag(right.detach().reshape(-1)), None) if is_row else None


def _weighed(
    call: FunctionCall, rows: RowsOfEdges, weight: Value | None, *, is_of_all: bool = False
) -> RowsOfEdges | None:
    """`is_of_all`: weights are of all edges, whichever the rows are of."""
    is_weight = isinstance(weight, EdgeColumns) and weight.count == 1 and rows.weight is None
    if not is_weight or not isinstance(weight, EdgeColumns) or (not is_of_all and weight.where != rows.where):
        return None
    return call.making.made(RowsOfEdges, rows.rows, rows.relation, weight, rows.where)


def _div(call: FunctionCall) -> Read:
    left, right = call.operands
    one, two = call.value(left), call.value(right)
    if isinstance(one, Aggregated) and isinstance(two, EdgeCounts) and two.power == 1:
        return _mean_of(call, one, two)
    is_number = one is not None and one.is_rows and two is None and (not torch.is_tensor(right) or right.numel() == 1)
    return _times(call, one, 1.0 / float(right)) if is_number and one is not None else None


def _neg(call: FunctionCall) -> Read:
    return None if call.rows is None else _times(call, call.rows, -1.0)


def _cat(call: FunctionCall) -> Read:
    tensors, axis = call.first if call.args else call.named["tensors"], call.argument(1, "dim", 0)
    values = tuple(call.value(each) for each in tensors)
    if axis not in (1, -1) or any(
        value is None or each.dim() != 2 for value, each in zip(values, tensors, strict=True)
    ):
        return None
    parts: list[Value] = []
    for value in values:
        inner = value.values if isinstance(value, Beside) else (value,)
        for each in inner:
            joined = _joined(call, parts[-1], each) if parts and each is not None else None
            if joined is not None:
                parts[-1] = joined
            elif each is not None:
                parts.append(each)
    if len(parts) == 1:
        return parts[0]
    return call.making.made(Beside, tuple(parts)) if all(each.is_rows for each in parts) else None


def _joined(call: FunctionCall, one: Value, two: Value) -> Value | None:
    """Neighbouring columns of the same matrix."""
    if isinstance(one, Features) and isinstance(two, Features):
        is_next = one.type == two.type and one.first + one.count == two.first
        return call.making.made(Features, one.type, one.first, one.count + two.count, one.columns) if is_next else None
    if isinstance(one, EdgeColumns) and isinstance(two, EdgeColumns):
        is_next = one.relation == two.relation and one.first + one.count == two.first
        return call.making.made(EdgeColumns, one.relation, one.first, one.count + two.count) if is_next else None
    return None


def _stack(call: FunctionCall) -> Read:
    tensors, axis = call.first if call.args else call.named["tensors"], call.argument(1, "dim", 0)
    values = tuple(call.value(each) for each in tensors)
    if any(value is None or not value.is_rows for value in values):
        return None
    return call.making.made(Stacked, values, axis % 3)


def _reduced(call: FunctionCall) -> Read:
    stacked, axis = call.value(call.first), call.argument(1, "dim", None)
    axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
    if not isinstance(stacked, Stacked) or axis is None or axis % 3 != stacked.axis or call.named.get("keepdim"):
        return None
    if len(stacked.values) == 1:
        return stacked.values[0]
    match call.plain_name:
        case "sum" | "mean":
            share = 1.0 if call.plain_name == "sum" else 1.0 / len(stacked.values)
            return call.making.made(Combined, tuple((share, each) for each in stacked.values), None)
        case name:
            return call.making.made(Extreme, stacked.values, name in ("max", "amax"))


def _extreme(call: FunctionCall) -> Read:
    left, right = (call.value(each) for each in call.operands)
    if left is None or right is None or not (left.is_rows and right.is_rows):
        return None
    is_largest = call.plain_name == "maximum"
    parts: list[Value] = []
    for each in (left, right):
        parts += each.values if isinstance(each, Extreme) and each.is_largest is is_largest else (each,)
    return call.making.made(Extreme, tuple(parts), is_largest)


def _max(call: FunctionCall) -> Read:
    return _extreme(call) if torch.is_tensor(call.argument(1, "other", None)) else _reduced(call)


# Columns, and rows of edges


def _getitem(call: FunctionCall) -> Read:
    value, key = call.value(call.first), call.args[1]
    if isinstance(value, Edges) and key in (0, 1) and not torch.is_tensor(key):
        return call.making.made(EdgeEnds, value.relation, bool(key), value.where)
    ends = call.value(key)
    if isinstance(ends, EdgeEnds):
        return _rows_of_edges(call, ends)
    is_columns = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], slice) and key[0] == slice(None)
    if is_columns and isinstance(value, Features | EdgeColumns) and isinstance(key[1], slice):
        first, last, step = key[1].indices(value.count)
        return _columns(call, value, first, last - first) if step == 1 and last > first else None
    if is_columns and isinstance(value, EdgeColumns) and type(key[1]) is int and -value.count <= key[1] < value.count:
        return _columns(call, value, key[1] % value.count, 1)
    return None


def _columns(call: FunctionCall, value: Features | EdgeColumns, first: int, count: int) -> Value:
    if isinstance(value, Features):
        made: Value = call.making.made(Features, value.type, value.first + first, count, value.columns)
    else:
        made = call.making.made(EdgeColumns, value.relation, value.first + first, count, value.where)
    return made


def _split(call: FunctionCall) -> Read:
    value, size = call.value(call.first), call.argument(1, "split_size_or_sections", None)
    axis = call.argument(2, "dim", 0)
    if not isinstance(value, Features | EdgeColumns) or axis not in (1, -1):
        return None
    parts = getattr(call.first, call.plain_name)(size, axis)
    firsts = [sum(each.shape[1] for each in parts[:place]) for place in range(len(parts))]
    return tuple(_columns(call, value, first, each.shape[1]) for first, each in zip(firsts, parts, strict=True))


def _unbind(call: FunctionCall) -> Read:
    value = call.value(call.first)
    if not isinstance(value, Edges) or call.argument(1, "dim", 0) != 0:
        return None
    return tuple(call.making.made(EdgeEnds, value.relation, is_reader, value.where) for is_reader in (False, True))


def _index_select(call: FunctionCall) -> Read:
    ends = call.value(call.argument(2, "index", None))
    return _rows_of_edges(call, ends) if isinstance(ends, EdgeEnds) and call.argument(1, "dim", 0) in (0, -2) else None


def _rows_of_edges(call: FunctionCall, ends: EdgeEnds) -> Read:
    is_read = call.rows is not None and not ends.is_reader
    return call.making.made(RowsOfEdges, call.rows, ends.relation, None, ends.where) if is_read else None


def _flip(call: FunctionCall) -> Read:
    value, axes = call.value(call.first), call.argument(1, "dims", None)
    is_turned = tuple(axes if isinstance(axes, tuple | list) else (axes,)) in ((0,), (-2,))
    if not isinstance(value, Edges) or value.reverse is None or value.where is not None or not is_turned:
        return None
    return call.making.made(Edges, value.reverse, value.relation)


def _same_ends(call: FunctionCall) -> Read:
    """What edges have in another shape, a column beside a matrix mostly."""
    value = call.value(call.first)
    return value if isinstance(value, EdgeEnds | EdgeCounts | EdgeMask) else None


def _power(call: FunctionCall) -> Read:
    value, power = call.value(call.first), call.argument(1, "exponent", None)
    if not isinstance(value, EdgeCounts) or value.power != 1 or not value.is_clamped or power != -1:
        return None
    return call.making.made(EdgeCounts, value.relation, True, -1, value.where)


# Sums over edges


def _scatter_add(call: FunctionCall) -> Read:
    """zeros.scatter_add(0, ends, rows), which torch_geometric.utils.scatter does"""
    return _aggregated(call, call.argument(2, "index", None), call.argument(3, "src", None), Aggregation.SUM)


def _index_add(call: FunctionCall) -> Read:
    return _aggregated(call, call.argument(2, "index", None), call.argument(3, "source", None), Aggregation.SUM)


def _scatter_reduce(call: FunctionCall) -> Read:
    reduce = call.argument(4, "reduce", "")
    found = _REDUCTIONS.get(reduce)
    if found is None or (found is not Aggregation.SUM and call.argument(5, "include_self", True)):
        return None
    return _aggregated(call, call.argument(2, "index", None), call.argument(3, "src", None), found)


_REDUCTIONS = {"sum": Aggregation.SUM, "mean": Aggregation.MEAN, "amax": Aggregation.MAX, "amin": Aggregation.MIN}


def _aggregated(call: FunctionCall, index: Any, source: Any, aggregation: Aggregation) -> Read:
    ends, rows = call.value(index), call.value(source)
    into = call.first
    is_new = call.value(into) is None and not bool(into.any()) and call.argument(1, "dim", 0) in (0, -2)
    if not isinstance(ends, EdgeEnds) or not ends.is_reader or not is_new:
        return None
    if rows is None and torch.is_tensor(source) and bool((source == 1).all()) and into.dim() == 1:
        is_count = aggregation is Aggregation.SUM
        return call.making.made(EdgeCounts, ends.relation, False, 1, ends.where) if is_count else None
    if isinstance(rows, RowsByKind):
        parts = [_aggregate(call, each, ends, aggregation) for each in rows.kinds]
        is_sum = aggregation is Aggregation.SUM and ends.where is None
        return call.making.made(Combined, tuple((1.0, each) for each in parts), None) if is_sum else None
    is_of_ends = isinstance(rows, RowsOfEdges) and rows.where == ends.where
    return _aggregate(call, rows, ends, aggregation) if is_of_ends and isinstance(rows, RowsOfEdges) else None


def _aggregate(call: FunctionCall, rows: RowsOfEdges, ends: EdgeEnds, aggregation: Aggregation) -> Read:
    if rows.relation != ends.relation:
        return None
    return call.making.made(Aggregated, rows.rows, rows.relation, aggregation, rows.weight, rows.where)


def _mean_of(call: FunctionCall, total: Aggregated, counts: EdgeCounts) -> Read:
    is_mean = (
        total.aggregation is Aggregation.SUM
        and counts.is_clamped
        and (counts.relation, counts.where) == (total.relation, total.where)
        and total.weight is None
    )
    parts = (total.rows, total.relation, Aggregation.MEAN, None, total.where)
    return call.making.made(Aggregated, *parts) if is_mean else None


ACTIVATIONS: Mapping[str, Callable[[FunctionCall], Read]] = {
    "relu": _activation(Activation.RELU),
    "leaky_relu": _activation(Activation.LEAKY_RELU, "negative_slope", 0.01),
    "elu": _activation(Activation.ELU, "alpha", 1.0),
    "selu": _activation(Activation.SELU),
    "gelu": _gelu,
    "silu": _activation(Activation.SILU),
    "tanh": _activation(Activation.TANH),
    "sigmoid": _activation(Activation.SIGMOID),
}
"""Functions of each number by itself."""
FUNCTIONS: Mapping[str, Callable[[FunctionCall], Read]] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    **ACTIVATIONS,
    "prelu": _prelu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "normalize": _normalize,
    "add": _add,
    "sub": lambda call: _add(call, -1.0),
    "mul": _mul,
    "multiply": _mul,
    "div": _div,
    "true_divide": _div,
    "truediv": _div,
    "neg": _neg,
    "cat": _cat,
    "concat": _cat,
    "stack": _stack,
    "sum": _reduced,
    "mean": _reduced,
    "max": _max,
    "min": _max,
    "amax": _reduced,
    "amin": _reduced,
    "maximum": _extreme,
    "minimum": _extreme,
    "getitem": _getitem,
    "split": _split,
    "chunk": _split,
    "tensor_split": _split,
    "unbind": _unbind,
    "iter": _unbind,
    "index_select": _index_select,
    "flip": _flip,
    "view": _same_ends,
    "reshape": _same_ends,
    "expand": _same_ends,
    "expand_as": _same_ends,
    "unsqueeze": _same_ends,
    "pow": _power,
    "scatter_add": _scatter_add,
    "index_add": _index_add,
    "scatter_reduce": _scatter_reduce,
}
"""By their plain names."""
