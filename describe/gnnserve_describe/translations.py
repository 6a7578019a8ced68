"""Operations that graph neural networks count edges by, and torch's exporter has no translation of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnxscript import opset18 as op

_INT64 = 7


def _bincount(self: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """Counts of each number from 0 on, at least `minlength` of them, int64; with weights, float32 or float64, their
    sums."""
    one = op.Constant(value_ints=[1])
    numbers = op.Cast(self, to=_INT64)
    # There may be none.
    largest = op.ReduceMax(op.Concat(op.Constant(value_ints=[-1]), numbers, axis=0), keepdims=1)
    size = op.Max(op.Add(largest, one), _size(minlength))
    if weights is None:
        added, none = op.Expand(one, op.Shape(self)), op.Constant(value_ints=[0])
    else:
        added, none = weights, op.CastLike(op.Constant(value_floats=[0.0]), weights)
    return op.ScatterElements(op.Expand(none, size), numbers, added, axis=0, reduction="add")


def _size(minlength: Any) -> Any:
    if isinstance(minlength, int):
        return op.Constant(value_ints=[minlength])
    return op.Reshape(op.Cast(minlength, to=_INT64), op.Constant(value_ints=[1]))


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {torch.ops.aten.bincount.default: _bincount}
"""As `torch.onnx.export` takes them."""
