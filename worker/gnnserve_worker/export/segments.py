"""Sums and maxima by segment in ONNX, without a scatter that adds.

ONNX has one operator for them, ScatterND with a reduction, and ONNX Runtime runs it on several threads which lose
updates of a row that two of them write: scores differ from call to call. Here the edges are sorted by target, so that
those of a target lie beside each other. Targets of about as many edges are reduced together: their values are gathered,
[targets, edges, columns], and a maximum or a product with the edges' weights takes the edges away. Each pass of a loop
takes the targets with the most edges, down to half as many, so that one with very many does not fill up all others.
Every target is written once, to a row of its own, and what is not a number stays with its target.

Translations of the two operators of `modules.py`, for `torch.onnx.export`; needs onnxscript, which is of an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnxscript import BOOL, FLOAT, INT64, ir, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

_FUNCTIONS = Opset("gnnserve.segments", 1)


@script(_FUNCTIONS, default_opset=op)
def _sort(room: FLOAT[...], index: INT64[...]) -> tuple[INT64[...], INT64[...], INT64[...], INT64[...]]:
    """Where the edges of each segment are: the places of all, by segment; for each segment where it starts among these,
    its length, and its row of `room`. The last row of `room` stands for no target and has no segment."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    size = op.Shape(index)
    later = op.Slice(index, one, size, zero)
    falls = op.Cast(op.Less(later, op.Slice(index, zero, size - one, zero)), to=7)
    if op.Cast(op.ReduceSum(falls, zero, keepdims=0), to=9):
        rows, order = op.TopK(index, size, axis=0, largest=0, sorted=1)
    else:
        rows = op.Identity(index)
        order = op.Range(op.Constant(value_int=0), op.Squeeze(size, zero), op.Constant(value_int=1))
    last = op.Shape(room, start=0, end=1) - one
    count = op.ReduceSum(op.Cast(op.Less(rows, last), to=7), zero)
    rows = op.Slice(rows, zero, count, zero)
    order = op.Slice(order, zero, count, zero)
    before = op.Slice(op.Concat(op.Constant(value_ints=[-1]), rows, axis=0), zero, count, zero)
    starts = op.Squeeze(op.NonZero(op.Not(op.Equal(rows, before))), zero)
    ends = op.Slice(op.Concat(starts, count, axis=0), one, size + one, zero)
    return order, starts, ends - starts, op.Gather(rows, starts)


@script(_FUNCTIONS, default_opset=op)
def _reduce(
    none: FLOAT[...], values: FLOAT[...], places: INT64[...], weights: FLOAT[...], starts: INT64[...],
    lengths: INT64[...], maxima: BOOL, weighted: BOOL,
) -> tuple[FLOAT[...], INT64[...]]:  # fmt: skip
    """Sums or maxima of segments, and the number of the segment that each is of: float32 [segments, columns], or
    [segments, heads, columns]. `none`: no such rows. `places`: each edge's row of `values`, by segment. `weights`: of
    each edge for each head, [edges, heads]; not read unless `weighted`."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    # As many are added up in one go: sums of a thousand numbers in order would round more.
    most = op.Constant(value_ints=[64])
    found = op.Identity(none)
    to_rows = op.Concat(op.Constant(value_ints=[-1]), op.Shape(none, start=1), axis=0)
    done = op.Slice(starts, zero, zero, zero)
    left = op.Range(op.Constant(value_int=0), op.Size(starts), op.Constant(value_int=1))
    more = op.Greater(op.Size(left), op.Constant(value_int=0))
    # At most four variables go from pass to pass: onnxscript 0.7 mixes up the results of loops that have five.
    while more:
        length = op.Gather(lengths, left)
        longest = op.ReduceMax(length, zero)
        # All that are left, where little is wasted.
        total = op.ReduceSum(length, zero)
        allowed = op.Max(total + total / two, op.Constant(value_ints=[2048]))
        is_taken = op.Or(op.Greater(length * two, longest), op.LessOrEqual(op.Shape(left) * longest, allowed))
        taken = op.Compress(left, is_taken)
        chunks = (longest + most - one) / most
        width = (longest + chunks - one) / chunks
        steps = op.Range(op.Constant(value_int=0), op.Squeeze(width * chunks, zero), op.Constant(value_int=1))
        last = op.Unsqueeze(op.Gather(lengths, taken), one) - one
        # The last edge fills up, as a number of the same target, which counts for nothing.
        edges = op.Unsqueeze(op.Gather(starts, taken), one) + op.Min(steps, last)
        grouped = op.Gather(values, op.Gather(places, edges))
        is_edge = op.LessOrEqual(steps, last)
        shape = op.Concat(op.Shape(taken), chunks, width, op.Constant(value_ints=[-1]), axis=0)
        if weighted:
            factors = op.Where(op.Unsqueeze(is_edge, two), op.Gather(weights, edges), op.Constant(value_float=0.0))
            factors = op.Transpose(op.Reshape(factors, shape), perm=[0, 1, 3, 2])
        else:
            # Not transposed: a product with one row has its own, faster way.
            one_row = op.Concat(op.Shape(taken), chunks, one, width, axis=0)
            factors = op.Reshape(op.Cast(is_edge, to=1), one_row)
        if maxima:
            reduced = op.ReduceMax(grouped, one, keepdims=0)
        else:
            reduced = op.ReduceSum(op.MatMul(factors, op.Reshape(grouped, shape)), one, keepdims=0)
        found = op.Concat(found, op.Reshape(reduced, to_rows), axis=0)
        done = op.Concat(done, taken, axis=0)
        left = op.Compress(left, op.Not(is_taken))
        more = op.Greater(op.Size(left), op.Constant(value_int=0))
    return found, done


def _index_add(room: Any, dim: int, index: Any, source: Any, alpha: float = 1.0) -> Any:
    """`Tensor.index_add` along rows."""
    _require(dim == 0 and alpha == 1.0, "index_add of columns, or with a factor")
    match _inputs_of("Mul", source):
        case [values, weights] if len(room.shape) == 3:
            factors = [*_inputs_of("Unsqueeze", values)[:1], *_inputs_of("Unsqueeze", weights)[:1]]
            if len(factors) == 2 and values.shape[1] == 1 and weights.shape[2] == 1:
                # Rows of each edge, [edges, 1, columns], times [edges, heads, 1]: they are never written out.
                return _scatter(room, index, factors[0], factors[1], False, op.Add)
    return _scatter(room, index, source, None, False, op.Add)


def _scatter_reduce(room: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """`Tensor.scatter_reduce` of maxima along rows, with the same index for all columns."""
    columns = [each for made in _inputs_of("Expand", index)[:1] for each in _inputs_of("Unsqueeze", made)[:1]]
    is_met = dim == 0 and reduce == "amax" and include_self and [len(each.shape) for each in columns] == [1]
    _require(is_met, f"scatter_reduce of columns, with an index for each, or by {reduce}")
    return _scatter(room, columns[0], src, None, True, op.Max)


def _scatter(room: Any, index: Any, values: Any, weights: Any | None, maxima: bool, combine: Any) -> Any:
    # Whatever is reduced by one index is sorted once.
    key = f"{_FUNCTIONS.domain} of {room.shape[0]}"
    if key not in index.meta:
        index.meta[key] = _sort(room, index)
    places, starts, lengths, rows = index.meta[key]
    if _is_one_each(values) and not maxima:
        found = op.Unsqueeze(op.Cast(lengths, to=1), [1])
    else:
        found, done = _reduce_all(room, values, weights, places, starts, lengths, maxima)
        rows = op.Gather(rows, done)
    # Each row once: threads have nothing to race for.
    return op.ScatterND(room, op.Unsqueeze(rows, [1]), combine(op.Gather(room, rows), found))


def _reduce_all(
    room: Any, values: Any, weights: Any | None, places: Any, starts: Any, lengths: Any, maxima: bool
) -> tuple[Any, Any]:
    """What `_reduce` finds, of values that `index_add` or `scatter_reduce` is given."""
    is_weighted = weights is not None
    weights = op.Gather(weights, places) if is_weighted else room
    match _inputs_of("Gather", values):
        case [table, gathered]:
            # Rows of a table already: they are read there, and not copied first.
            values, places = table, op.Gather(gathered, places)
    flags = [op.Cast(op.Constant(value_int=int(flag)), to=9) for flag in (maxima, is_weighted)]
    found: tuple[Any, Any] = _reduce(op.Slice(room, [0], [0], [0]), values, places, weights, starts, lengths, *flags)
    return found


def _is_one_each(values: Any) -> bool:
    """Whether it is `new_ones`, so that sums are lengths."""
    filled = [each for cast in _inputs_of("CastLike", values)[:1] for each in _inputs_of("Expand", cast)[:1]]
    constants = [ir.convenience.get_const_tensor(each) for each in filled]
    return [each is not None and each.numpy().tolist() for each in constants] == [1.0]


def _inputs_of(operator: str, value: Any) -> list[Any]:
    """Inputs of the node that makes the value; none where another operator makes it."""
    made = value.producer()
    return list(made.inputs) if made is not None and made.op_type == operator else []


def _require(is_met: bool, used: str) -> None:
    if not is_met:
        raise NotImplementedError(f"{used} has no translation to ONNX; see {__name__}")


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.index_add.default: _index_add,
    torch.ops.aten.scatter_reduce.two: _scatter_reduce,
}
