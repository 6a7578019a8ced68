"""Helpers of kernels that read rows: widening numbers, and `tables.table.Aggregation` on a tile of columns."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(numbers):
    """The numbers as float32; uint16 holds the bits of bfloat16."""
    if numbers.dtype == tl.uint16:
        numbers = (numbers.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return numbers.to(tl.float32)


@triton.jit
def _narrowed(numbers, dtype: tl.constexpr):
    """The numbers as float32, or as the bits of bfloat16, rounded to nearest, ties to even."""
    if dtype == tl.uint16:
        bits = numbers.to(tl.uint32, bitcast=True)
        numbers = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).to(tl.uint16)
    return numbers


@triton.jit
def _finished(numbers, bias, column, real, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr):
    if HAS_BIAS:
        numbers += tl.load(bias + column, mask=column < COLUMNS, other=0.0)[None, :]
    if RELU:
        numbers = tl.where(numbers < 0.0, 0.0, numbers)
    return tl.where(real[:, None], numbers, 0.0)


@triton.jit
def neighbour_roots(roots, node, neighbour, wanted):
    """Roots of the neighbours of each `node`, [rows, neighbours]; 0 for the node itself, whose self-loop is weighed
    apart."""
    root = tl.load(roots + neighbour, mask=wanted, other=0.0)
    return tl.where(neighbour == node[:, None], 0.0, root)


@triton.jit
def list_bounds(indptr, node, STEP: tl.constexpr):
    """Where the beginning of each node's list stands; its end follows. STEP: `arrays.list_step`."""
    place = indptr + node
    if STEP > 1:
        place = indptr + node.to(tl.int64) * STEP
    return place


@triton.jit
def weighted(roots, indptr, node, real, count, total, own, LIST_STEP: tl.constexpr):
    """`total`, a sum of neighbours times their roots, and `own` with the factors of their rows, as
    `sampling/normalised.py` has them."""
    root = tl.load(roots + node, mask=real, other=0.0)
    bounds = list_bounds(indptr, node, LIST_STEP)
    listed = tl.load(bounds + 1, mask=real, other=0) - tl.load(bounds, mask=real, other=0)
    factor = root * tl.div_rn(listed.to(tl.float32), tl.maximum(count, 1).to(tl.float32))
    return total * factor[:, None], own * (root * root)[:, None]


@triton.jit
def store_aggregated(
    out, row, column, inside, real, total, count, own, own_factor, bias,
    COLUMNS: tl.constexpr, MEAN: tl.constexpr, STACKED: tl.constexpr, HAS_OWN: tl.constexpr, HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
):  # fmt: skip
    """Write the columns `column` (a tile) of the rows that are `inside`; rows that are not `real` become 0.

    `total`, the sum over a row's `count` neighbours, and `own`, the node's numbers, are float32 [rows, tile].
    """
    dtype: tl.constexpr = out.dtype.element_ty
    mask = inside[:, None] & (column < COLUMNS)[None, :]
    if MEAN:
        total *= tl.div_rn(1.0, tl.maximum(count, 1).to(tl.float32))[:, None]
    if STACKED:
        to = out + row.to(tl.int64)[:, None] * (2 * COLUMNS) + column[None, :]
        own = _finished(own, bias, column, real, COLUMNS, HAS_BIAS, RELU)
        tl.store(to + COLUMNS, _narrowed(own, dtype), mask=mask)
    else:
        to = out + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        if HAS_OWN:
            total += own * own_factor
    tl.store(to, _narrowed(_finished(total, bias, column, real, COLUMNS, HAS_BIAS, RELU), dtype), mask=mask)
