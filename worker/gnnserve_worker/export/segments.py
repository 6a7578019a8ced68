"""Sums and maxima by segment in ONNX, without a scatter that adds.

ONNX has one operator for them, ScatterND with a reduction, and ONNX Runtime runs it on several threads which lose
updates of a row that two of them write: scores differ from call to call. Here the edges are sorted by target, so that
those of a target lie beside each other, and are folded: each pass replaces up to `width` neighbouring values of one
target by their sum, until every target has one. Only then it is written, to a row of its own. A sum of n numbers is
made of log(n) passes, which rounds less than a sum in order, and what is not a number stays with its target.

Translations of the two operators of `modules.py`, for `torch.onnx.export`; needs onnxscript, which is of an extra.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnxscript import BOOL, FLOAT, INT64, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

_FUNCTIONS = Opset("gnnserve.segments", 1)


@script(_FUNCTIONS, default_opset=op)
def _sort(room: FLOAT[...], index: INT64[...]) -> tuple[INT64[...], INT64[...], INT64[...], INT64[...]]:
    """Where the values of each segment are: the places of all, by segment; for each its segment's number and its rank
    in it; and the row of `room` of each segment. The last row of `room` stands for no target and has no segment."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    rows, order = op.TopK(index, op.Shape(index), axis=0, largest=0, sorted=1)
    last = op.Shape(room, start=0, end=1) - one
    count = op.ReduceSum(op.Cast(op.Less(rows, last), to=7), zero)
    rows = op.Slice(rows, zero, count, zero)
    order = op.Slice(order, zero, count, zero)
    before = op.Slice(op.Concat(op.Constant(value_ints=[-1]), rows, axis=0), zero, count, zero)
    is_first = op.Not(op.Equal(rows, before))
    starts = op.Squeeze(op.NonZero(is_first), zero)
    segment = op.CumSum(op.Cast(is_first, to=7), zero) - one
    places = op.Range(op.Constant(value_int=0), op.Squeeze(count, zero), op.Constant(value_int=1))
    rank = places - op.Gather(starts, segment)
    return order, segment, rank, op.Gather(rows, starts)


@script(_FUNCTIONS, default_opset=op)
def _reduce(
    values: FLOAT[...], at: INT64[...], segment: INT64[...], rank: INT64[...], segments: INT64[...],
    neutral: FLOAT[...], maxima: BOOL,
) -> FLOAT[...]:  # fmt: skip
    """Sum or maximum of each segment's values, float32 [segments, columns]. `at`: the places in `values` of those that
    `segment` and `rank` tell of. `neutral`: the number that changes no result."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    four = op.Constant(value_ints=[4])
    filler = op.Expand(neutral, op.Concat(one, op.Shape(values, start=1), axis=0))
    more = op.Greater(op.Size(segment), segments)
    while more:
        count = op.Shape(segment)
        # At most twice the mean segment, so that a long one does not fill up all others.
        width = op.Min(op.ReduceMax(rank, zero) + one, op.Max(four, count * op.Constant(value_ints=[2]) / segments))
        first = op.Squeeze(op.NonZero(op.Equal(op.Mod(rank, width), zero)), zero)
        groups = op.Gather(segment, first)
        steps = op.Range(op.Constant(value_int=0), op.Squeeze(width, zero), op.Constant(value_int=1))
        members = op.Min(op.Unsqueeze(first, one) + steps, count)
        owners = op.Gather(op.Concat(segment, op.Constant(value_ints=[-1]), axis=0), members)
        members = op.Where(op.Equal(owners, op.Unsqueeze(groups, one)), members, count)
        places = op.Gather(op.Concat(at, op.Shape(values, start=0, end=1), axis=0), members)
        grouped = op.Gather(op.Concat(values, filler, axis=0), places)
        if maxima:  # noqa: SIM108 - the script has If, and no conditional expressions
            values = op.ReduceMax(grouped, one, keepdims=0)
        else:
            values = op.ReduceSum(grouped, one, keepdims=0)
        segment = groups
        rank = op.Gather(rank, first) / width
        at = op.Range(op.Constant(value_int=0), op.Size(segment), op.Constant(value_int=1))
        more = op.Greater(op.Size(segment), segments)
    return op.Gather(values, at)


def _index_add(room: Any, dim: int, index: Any, source: Any, alpha: float = 1.0) -> Any:
    """`Tensor.index_add` along rows."""
    _require(dim == 0 and alpha == 1.0, "index_add of columns, or with a factor")
    return _scatter(room, index, source, False, op.Add)


def _scatter_reduce(room: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """`Tensor.scatter_reduce` of maxima along rows, with the same index for all columns."""
    _require(dim == 0 and reduce == "amax" and include_self, f"scatter_reduce of columns, or by {reduce}")
    return _scatter(room, op.Squeeze(op.Slice(index, [0], [1], [1]), [1]), src, True, op.Max)


def _scatter(room: Any, index: Any, source: Any, maxima: bool, combine: Any) -> Any:
    order, segment, rank, rows = _sort(room, index)
    gathered = source.producer()
    if gathered is not None and gathered.op_type == "Gather":
        # Values that are rows of a table already: they are read there, and not copied first.
        source, places = gathered.inputs
        order = op.Gather(places, order)
    neutral = op.Constant(value_float=-math.inf if maxima else 0.0)
    flag = op.Cast(op.Constant(value_int=int(maxima)), to=9)
    found = _reduce(source, order, segment, rank, op.Size(rows), neutral, flag)
    # Each row once: threads have nothing to race for.
    return op.ScatterND(room, op.Unsqueeze(rows, [1]), combine(op.Gather(room, rows), found))


def _require(is_met: bool, used: str) -> None:
    if not is_met:
        raise NotImplementedError(f"{used} has no translation to ONNX; see {__name__}")


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.index_add.default: _index_add,
    torch.ops.aten.scatter_reduce.two: _scatter_reduce,
}
