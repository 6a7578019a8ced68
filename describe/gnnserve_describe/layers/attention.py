"""Attention that a module computes by functions of torch: rows apart by heads, scores of edges, their softmax, and the
convolution that the sum behind it is.

`functions.py` is tried first; what stands here is of tensors with an axis of heads, and of rows of both ends of edges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnserve_api.files.layers import Convolution, ConvolutionManifest
from gnnserve_describe.layers.functions import ACTIVATIONS, FunctionCall, Making, Read
from gnnserve_describe.layers.values import (
    AddedScores,
    AttendedRows,
    ByHead,
    Combined,
    Convolved,
    EdgeEnds,
    EndProducts,
    EndRows,
    NodesBehind,
    Product,
    ProductScores,
    RowsOfEdges,
    Softmax,
    SoftmaxStep,
    Value,
)

_LEAST_TOTAL = 1e-9
"""Numbers up to this may be added to the total of a softmax, against a division by 0."""


# Rows by head


def _shaped(call: FunctionCall) -> Read:
    """A head's columns as an axis of their own, or put beside each other again."""
    value, given = call.value(call.first), call.first
    if isinstance(value, Softmax):
        return value
    named = {name: each for name, each in call.named.items() if name != "input"}
    shape = getattr(given, call.plain_name)(*call.args[1:], **named).shape
    if isinstance(value, ByHead) and len(shape) == 2 and shape[0] == given.shape[0]:
        return value.rows
    if isinstance(value, ByHead) and tuple(shape) == tuple(given.shape):
        return value
    is_apart = call.rows is not None and len(shape) == 3 and shape[0] == given.shape[0]
    return call.making.made(ByHead, call.rows, shape[1]) if is_apart else None


def _moved(call: FunctionCall) -> Read:
    """The axis of nodes behind that of heads."""
    value, axes = call.value(call.first), (call.argument(1, "source", None), call.argument(2, "destination", None))
    return (
        call.making.made(NodesBehind, value.rows, value.heads) if isinstance(value, ByHead) and axes == (0, 1) else None
    )


@dataclass(frozen=True, slots=True, eq=False)
class _FlatCall(FunctionCall):
    """A call whose first argument is rows by head, as of these rows beside each other."""

    flat: Value | None = None

    @property
    def rows(self) -> Value | None:
        return self.flat


def _activated(name: str) -> Callable[[FunctionCall], Read]:
    def read(call: FunctionCall) -> Read:
        value = call.value(call.first)
        if not isinstance(value, ByHead):
            return _sloped(call, value) if name == "leaky_relu" else None
        found = ACTIVATIONS[name](_FlatCall(call.name, call.args, call.named, call.making, value.rows))
        return call.making.made(ByHead, found, value.heads) if isinstance(found, Value) else None

    return read


def _sloped(call: FunctionCall, value: Value | None) -> Read:
    if not isinstance(value, AddedScores) or value.slope is not None:
        return None
    slope = float(call.argument(1, "negative_slope", 0.01))
    return call.making.made(AddedScores, value.relation, value.source, value.target, slope)


def _summed(call: FunctionCall) -> Read:
    """Sums or means of a head's columns, or over the heads."""
    value, axis = call.value(call.first), call.argument(1, "dim", None)
    axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
    if not isinstance(value, ByHead | EndRows | EndProducts) or axis is None or call.named.get("keepdim"):
        return None
    axis = axis % call.first.dim()
    if call.first.dim() != 3 or axis == 0:
        return None
    heads, columns = call.first.shape[1:]
    share = 1.0 / call.first.shape[axis] if call.plain_name == "mean" else 1.0
    if isinstance(value, EndProducts):
        is_score = axis == 2
        scale = torch.full((heads,), share)
        return call.making.made(ProductScores, value.relation, value.query, value.key, scale) if is_score else None
    over_columns = torch.kron(torch.eye(heads), torch.ones(1, columns))
    over_heads = torch.kron(torch.ones(1, heads), torch.eye(columns))
    made = call.making.made(Product, value.rows, share * (over_columns if axis == 2 else over_heads), None)
    if isinstance(value, EndRows):
        return call.making.made(EndRows, made, value.relation, value.is_reader, None) if axis == 2 else None
    return made


def _one_head(call: FunctionCall) -> Read:
    """rows[:, head], or rows of ends"""
    value, key = call.value(call.first), call.args[1]
    ends = call.value(key)
    if isinstance(ends, EdgeEnds):
        return _at_ends(call, ends)
    is_columns = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], slice) and key[0] == slice(None)
    if not isinstance(value, ByHead) or not is_columns or type(key[1]) is not int:
        return None
    heads, columns = call.first.shape[1:]
    chosen = torch.kron(torch.eye(heads)[key[1] % heads].unsqueeze(0), torch.eye(columns))
    return call.making.made(Product, value.rows, chosen, None)


def _scaled(call: FunctionCall, value: Value, factor: Any) -> Value | None:
    """Rows apart by head times a number, or a number of each column of each head."""
    rows, heads = (value.rows, value.heads) if isinstance(value, ByHead | EndRows) else (value, None)
    given = call.first if call.value(call.first) is value else call.operands[1]
    if not torch.is_tensor(factor) or factor.numel() == 1:
        made: Value = call.making.made(Combined, ((float(factor), rows),), None)
    else:
        row = _row_of(factor, given)
        if row is None:
            return None
        made = call.making.made(Product, rows, torch.diag(row), None)
    if isinstance(value, EndRows):
        return call.making.made(EndRows, made, value.relation, value.is_reader, heads)
    return call.making.made(ByHead, made, heads)


def _row_of(constant: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """A constant as a row of all heads' columns; None: it differs by row."""
    if constant.dim() > like.dim() or (constant.dim() == like.dim() and constant.shape[0] != 1):
        return None
    plain = constant.detach().reshape(constant.shape[-(like.dim() - 1) :])
    return torch.broadcast_to(plain, like.shape[1:]).reshape(-1)


# Rows of both ends


def _at_ends(call: FunctionCall, ends: EdgeEnds) -> Read:
    """Rows of nodes, or of a softmax, as edges have them."""
    value = call.value(call.first)
    if ends.where is not None:
        return None
    if isinstance(value, Softmax) and ends.is_reader and ends.relation == value.scores.relation:
        step = _OF_EDGES.get(value.step)
        return None if step is None else call.making.made(Softmax, value.scores, step)
    if isinstance(value, ByHead):
        return call.making.made(EndRows, value.rows, ends.relation, ends.is_reader, value.heads)
    return call.making.made(EndRows, call.rows, ends.relation, ends.is_reader, None) if call.rows is not None else None


_OF_EDGES = {
    SoftmaxStep.LARGEST: SoftmaxStep.LARGEST_OF_EDGES,
    SoftmaxStep.TOTAL: SoftmaxStep.TOTAL_OF_EDGES,
}


def _selected(call: FunctionCall) -> Read:
    ends = call.value(call.argument(2, "index", None))
    return _at_ends(call, ends) if isinstance(ends, EdgeEnds) and call.argument(1, "dim", 0) in (0, -2, -3) else None


def _end_rows(value: Value | None) -> EndRows | None:
    """Rows of one end of all edges, without a weight."""
    if isinstance(value, RowsOfEdges) and value.weight is None and value.where is None:
        return EndRows(value.rows, value.relation, False, None)
    return value if isinstance(value, EndRows) else None


def _add(call: FunctionCall) -> Read:
    left, right = call.operands
    one, two = call.value(left), call.value(right)
    if isinstance(one, ByHead) and isinstance(two, ByHead) and one.heads == two.heads:
        made = call.making.made(Combined, ((1.0, one.rows), (1.0, two.rows)), None)
        return call.making.made(ByHead, made, one.heads)
    if one is None or two is None:
        return _with_constant(call, *((one, right, left) if two is None else (two, left, right)))
    ends = [_end_rows(each) for each in (one, two)]
    if any(each is None or each.heads is not None for each in ends):
        return None
    by_end = {each.is_reader: each for each in ends if each is not None}
    if set(by_end) != {False, True} or by_end[False].relation != by_end[True].relation:
        return None
    return call.making.made(AddedScores, by_end[False].relation, by_end[False].rows, by_end[True].rows, None)


def _with_constant(call: FunctionCall, value: Value | None, constant: Any, given: Any) -> Read:
    if isinstance(value, Softmax):
        is_total = value.step is SoftmaxStep.TOTAL and not torch.is_tensor(constant) and 0 <= constant <= _LEAST_TOTAL
        return value if is_total else None
    if not isinstance(value, ByHead) or not torch.is_tensor(constant):
        return None
    row = _row_of(constant, given)
    if row is None:
        return None
    return call.making.made(ByHead, call.making.made(Combined, ((1.0, value.rows),), row), value.heads)


def _subtract(call: FunctionCall) -> Read:
    one, two = (call.value(each) for each in call.operands)
    is_largest = isinstance(two, Softmax) and two.step is SoftmaxStep.LARGEST_OF_EDGES and one is two.scores
    return call.making.made(Softmax, one, SoftmaxStep.SHIFTED) if is_largest else None


def _multiply(call: FunctionCall) -> Read:
    left, right = call.operands
    one, two = call.value(left), call.value(right)
    if two is None or one is None:
        value, factor = (one, right) if two is None else (two, left)
        if isinstance(value, ProductScores):
            return _rescaled(call, value, factor)
        return _scaled(call, value, factor) if isinstance(value, ByHead | EndRows) else None
    shares = next((each for each in (one, two) if isinstance(each, Softmax)), None)
    if shares is not None:
        rows, weights = (right, left) if shares is one else (left, right)
        return _attended(call, shares, _end_rows(two if shares is one else one), rows, weights)
    ends = [_end_rows(each) for each in (one, two)]
    by_end = {each.is_reader: each for each in ends if each is not None}
    is_both = set(by_end) == {False, True} and by_end[True].heads == by_end[False].heads is not None
    if not is_both or by_end[True].relation != by_end[False].relation:
        return None
    key, query = by_end[False], by_end[True]
    return call.making.made(EndProducts, query.rows, key.rows, key.relation, key.heads)


def _attended(call: FunctionCall, shares: Softmax, rows: EndRows | None, given: Any, weights: Any) -> Read:
    """`given`, `weights`: tensors of the rows and of the shares."""
    if (
        rows is None
        or rows.is_reader
        or rows.relation != shares.scores.relation
        or shares.step is not SoftmaxStep.SHARES
    ):
        return None
    of_head = (1,) if rows.heads is None else (rows.heads, 1)
    is_apart = given.dim() == 1 + len(of_head) and tuple(weights.shape[1:]) == of_head
    return call.making.made(AttendedRows, rows.rows, rows.heads, shares.scores) if is_apart else None


def _divide(call: FunctionCall) -> Read:
    left, right = call.operands
    one, two = call.value(left), call.value(right)
    if isinstance(one, Softmax) and isinstance(two, Softmax):
        steps = (one.step, two.step)
        is_shares = one.scores is two.scores and steps == (SoftmaxStep.EXPONENTIAL, SoftmaxStep.TOTAL_OF_EDGES)
        return call.making.made(Softmax, one.scores, SoftmaxStep.SHARES) if is_shares else None
    if two is not None or (torch.is_tensor(right) and right.dim() > 1):
        return None
    if isinstance(one, ProductScores):
        return _rescaled(call, one, 1.0 / right)
    return _scaled(call, one, 1.0 / right) if isinstance(one, ByHead | EndRows) else None


def _rescaled(call: FunctionCall, scores: ProductScores, factor: Any) -> Read:
    given = factor.detach() if torch.is_tensor(factor) else torch.tensor(float(factor))
    if given.numel() not in (1, len(scores.scale)):
        return None
    scale = scores.scale * given.reshape(-1).to(scores.scale.dtype)
    return call.making.made(ProductScores, scores.relation, scores.query, scores.key, scale)


def _einsum(call: FunctionCall) -> Read:
    """Rows by head, each head's times a matrix of its own."""
    equation = re.sub(r"\s", "", str(call.first))
    operands = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.args[1:]
    if not re.fullmatch(r"(\w)(\w)(\w),\2\3(\w)->\1\2\4", equation) or len(operands) != 2:
        return None
    value, matrices = call.value(operands[0]), operands[1]
    if not isinstance(value, ByHead) or call.value(matrices) is not None:
        return None
    blocks: Callable[..., torch.Tensor] = torch.block_diag
    whole = blocks(*(each.t() for each in matrices.detach()))
    return call.making.made(ByHead, call.making.made(Product, value.rows, whole, None), value.heads)


# The softmax, and sums


def _exponential(call: FunctionCall) -> Read:
    value = call.value(call.first)
    if isinstance(value, Softmax) and value.step is SoftmaxStep.SHIFTED:
        value = value.scores
    is_scores = isinstance(value, AddedScores | ProductScores)
    return call.making.made(Softmax, value, SoftmaxStep.EXPONENTIAL) if is_scores else None


def _summed_up(call: FunctionCall) -> Read:
    source = call.argument(3, "src", call.named.get("source"))
    return _over_lists(call, call.argument(2, "index", None), source, is_largest=False)


def _reduced(call: FunctionCall) -> Read:
    reduce, source = call.argument(4, "reduce", ""), call.argument(3, "src", None)
    is_largest = reduce == "amax" and not call.argument(5, "include_self", True)
    return _over_lists(call, call.argument(2, "index", None), source, is_largest=True) if is_largest else None


def _over_lists(call: FunctionCall, index: Any, source: Any, *, is_largest: bool) -> Read:
    ends, value = call.value(index), call.value(source)
    into = call.first
    is_new = call.value(into) is None and not bool(into.any()) and call.argument(1, "dim", 0) in (0, -into.dim())
    if not isinstance(ends, EdgeEnds) or not ends.is_reader or ends.where is not None or not is_new:
        return None
    if isinstance(value, AddedScores | ProductScores) and is_largest and value.relation == ends.relation:
        return call.making.made(Softmax, value, SoftmaxStep.LARGEST)
    is_exponential = isinstance(value, Softmax) and value.step is SoftmaxStep.EXPONENTIAL and not is_largest
    if is_exponential and isinstance(value, Softmax) and value.scores.relation == ends.relation:
        return call.making.made(Softmax, value.scores, SoftmaxStep.TOTAL)
    if isinstance(value, AttendedRows) and not is_largest and value.scores.relation == ends.relation:
        found = _convolution(value, call.making)
        is_by_head = found is not None and value.heads is not None
        return call.making.made(ByHead, found, value.heads) if is_by_head else found
    return None


def _convolution(attended: AttendedRows, making: Making) -> Convolved | None:
    """None: no convolution has these scores."""
    scores, heads = attended.scores, attended.heads or 1
    if isinstance(scores, AddedScores):
        return _added_attention(attended.rows, scores, heads, making)
    return _product_attention(attended.rows, scores, heads, making)


@dataclass(frozen=True, slots=True, eq=False)
class _Affine:
    """rows · matrixᵀ + bias"""

    rows: Value
    matrix: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, value: Value) -> _Affine:
        """By the rows that no product makes."""
        found = cls(value, torch.eye(value.width), None)
        while isinstance(found.rows, Product):
            product = found.rows
            bias = found.bias
            if product.bias is not None:
                moved = found.matrix @ product.bias
                bias = moved if bias is None else bias + moved
            found = cls(product.rows, found.matrix @ product.weight, bias)
        return found


def _added_attention(value: Value, scores: AddedScores, heads: int, making: Making) -> Convolved | None:
    """GAT, where scores of neighbours are of the rows that are summed."""
    rows, source, target = (_Affine.of(each) for each in (value, scores.source, scores.target))
    is_plain = all(each.bias is None for each in (rows, source, target)) and source.rows is rows.rows
    if not is_plain or len(source.matrix) != heads or len(target.matrix) != heads:
        return None
    width = len(rows.matrix)
    by_head = rows.matrix.detach().double().reshape(heads, width // heads, -1)
    wanted = source.matrix.detach().double()
    vectors = torch.linalg.lstsq(by_head.transpose(1, 2), wanted.unsqueeze(2), driver="gelsd").solution[..., 0]
    if not torch.allclose(torch.einsum("hci,hc->hi", by_head, vectors), wanted, rtol=1e-5, atol=1e-7):
        return None
    # The score of the node that reads is the first column of its head.
    of_target = torch.zeros(heads, width // heads, target.matrix.shape[1])
    of_target[:, 0] = target.matrix.detach()
    first = torch.zeros(1, heads, width // heads)
    first[..., 0] = 1.0
    manifest = ConvolutionManifest(
        Convolution.GAT, width=width, heads=heads, self_loops=False, bias=False,
        negative_slope=1.0 if scores.slope is None else scores.slope,
    )  # fmt: skip
    tensors = {
        "lin_src.weight": rows.matrix, "lin_dst.weight": of_target.flatten(0, 1),
        "att_src": vectors.float().unsqueeze(0), "att_dst": first,
    }  # fmt: skip
    return making.made(Convolved, manifest, tensors, scores.relation, rows.rows, target.rows, None, (), None)


def _product_attention(value: Value, scores: ProductScores, heads: int, making: Making) -> Convolved | None:
    """Transformer, without the node's own row."""
    rows, key, query = (_Affine.of(each) for each in (value, scores.key, scores.query))
    width = len(rows.matrix)
    if (
        key.rows is not rows.rows
        or len(key.matrix) != width
        or len(query.matrix) != width
        or len(scores.scale) != heads
    ):
        return None
    scale = (scores.scale * math.sqrt(width // heads)).repeat_interleave(width // heads).unsqueeze(1)
    named = {
        "lin_key": replace(key, matrix=key.matrix * scale, bias=None if key.bias is None else key.bias * scale[:, 0]),
        "lin_query": query,
        "lin_value": rows,
    }
    has_bias = any(each.bias is not None for each in named.values())
    manifest = ConvolutionManifest(Convolution.TRANSFORMER, width=width, heads=heads, root=False, bias=has_bias)
    tensors = {f"{name}.weight": each.matrix for name, each in named.items()}
    if has_bias:
        tensors |= {f"{n}.bias": torch.zeros(width) if each.bias is None else each.bias for n, each in named.items()}
    scales = ("lin_value.weight", "lin_value.bias")
    return making.made(Convolved, manifest, tensors, scores.relation, rows.rows, query.rows, None, scales, None)


ATTENTION: Mapping[str, Callable[[FunctionCall], Read]] = {
    "view": _shaped,
    "reshape": _shaped,
    "flatten": _shaped,
    "unflatten": _shaped,
    "movedim": _moved,
    "squeeze": _shaped,
    "unsqueeze": _shaped,
    **{name: _activated(name) for name in ACTIVATIONS},
    "sum": _summed,
    "mean": _summed,
    "getitem": _one_head,
    "index_select": _selected,
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "true_divide": _divide,
    "truediv": _divide,
    "einsum": _einsum,
    "exp": _exponential,
    "scatter_add": _summed_up,
    "index_add": _summed_up,
    "scatter_reduce": _reduced,
}
"""By their plain names; tried where `FUNCTIONS` makes nothing of a call."""
