"""Aggregates of hidden states that are no sums: the largest and the smallest of each column, variance and deviation.

What `layers/aggregates.py` computes on the CPU. Rows are read as `aggregate.py` reads them.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from gnnserve_api.files.layers import Aggregation
from gnnserve_worker.gpu.arrays import PaddedTree
from gnnserve_worker.gpu.kernels.launch import launch, rows_at_once

_TILE: Final = 128
_IN_FLIGHT: Final = 16
REDUCED: Final = (Aggregation.MAX, Aggregation.MIN, Aggregation.VAR, Aggregation.STD)
"""Aggregates that this kernel makes; a kernel's own number of one is its place."""
_LEAST_VARIANCE: Final = 1e-5


def reduce_hidden(hidden: Tensor, tree: PaddedTree, rows: int, kind: Aggregation, out: Tensor) -> None:
    """Reduce the hidden states of the neighbours of each of the first `rows` rows of `tree`. `hidden`: float32 [rows of
    the next depth at least, width]; `out`: float32 [rows, width], in which rows without neighbours become 0. A column
    with a NaN is NaN."""
    if kind not in REDUCED:
        raise ValueError(f"aggregation {kind}, expected one of {', '.join(REDUCED)}")
    width = hidden.shape[1]
    tile = min(_TILE, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, tile)
    neighbours = min(_IN_FLIGHT, triton.next_power_of_2(max(1, *tree.fanouts)))
    at_once = rows_at_once(_IN_FLIGHT * _TILE // (neighbours * tile), neighbours * tile)
    launch(
        _reduce, triton.cdiv(rows, at_once) * tiles,
        hidden, tree.counts, tree.starts, out, rows,
        COLUMNS=width, TILE=tile, TILES=tiles, ROWS=at_once, NEIGHBOURS=neighbours, KIND=REDUCED.index(kind),
        LEAST=_LEAST_VARIANCE, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _reduce(
    hidden, counts, starts, out, rows,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, NEIGHBOURS: tl.constexpr,
    KIND: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """One program: TILE columns of ROWS rows, reading NEIGHBOURS of their neighbours at once. KIND: 0 the largest, 1
    the smallest, 2 variance, 3 deviation."""
    row = tl.program_id(0) // TILES * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % TILES * TILE + tl.arange(0, TILE)
    inside = row < rows
    within = column < COLUMNS
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    share = tl.div_rn(1.0, tl.maximum(count, 1).to(tl.float32))[:, None]
    SIGN: tl.constexpr = -1.0 if KIND == 1 else 1.0
    found = tl.full((ROWS, TILE), float("-inf") if KIND < 2 else 0.0, tl.float32)
    wrong = tl.full((ROWS, TILE), 0, tl.int32)
    for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
        place = first + tl.arange(0, NEIGHBOURS)[None, :]
        wanted = (place < count[:, None])[:, :, None] & within[None, None, :]
        at = (start[:, None] + place).to(tl.int64)[:, :, None] * COLUMNS + column[None, None, :]
        numbers = tl.load(hidden + at, mask=wanted, other=0.0)
        if KIND < 2:
            wrong += tl.sum((numbers != numbers).to(tl.int32), axis=1)  # noqa: PLR0124 - NaN alone is not itself
            found = tl.maximum(found, tl.max(tl.where(wanted, numbers * SIGN, float("-inf")), axis=1))
        else:
            found += tl.sum(numbers, axis=1) * share
    if KIND < 2:
        found = tl.where(wrong > 0, float("nan"), found * SIGN)
    else:
        # The mean; the squares of what is left once it is taken off, since the difference of two large numbers has
        # few digits.
        mean = found
        found = tl.full((ROWS, TILE), 0.0, tl.float32)
        for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
            place = first + tl.arange(0, NEIGHBOURS)[None, :]
            wanted = (place < count[:, None])[:, :, None] & within[None, None, :]
            at = (start[:, None] + place).to(tl.int64)[:, :, None] * COLUMNS + column[None, None, :]
            numbers = tl.load(hidden + at, mask=wanted, other=0.0)
            left = tl.where(wanted, numbers - mean[:, None, :], 0.0)
            found += tl.sum(left * left, axis=1) * share
        if KIND == 3:
            found = tl.where(found <= LEAST, 0.0, tl.sqrt_rn(found))
    found = tl.where((count > 0)[:, None], found, 0.0)
    to = out + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    tl.store(to, found, mask=inside[:, None] & within[None, :])
