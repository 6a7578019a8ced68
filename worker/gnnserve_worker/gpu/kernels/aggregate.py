"""Aggregation of hidden states, for the layers above the first: these lie in GPU memory, a row's neighbours
adjacent."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import DeviceAggregation, PaddedTree, Shares, list_step
from gnnserve_worker.gpu.kernels.gather import check_out
from gnnserve_worker.gpu.kernels.launch import as_words, launch, rows_at_once
from gnnserve_worker.gpu.kernels.rows import neighbour_roots, store_aggregated, weighted

_TILE: Final = 128
"""Columns that a program sums: 16 bytes a lane."""
_IN_FLIGHT: Final = 16
"""Neighbours that a program requests at once."""


def aggregate_hidden(
    hidden: Tensor,
    tree: PaddedTree,
    rows: int,
    aggregation: DeviceAggregation,
    out: Tensor,
    shares: Shares | None = None,
) -> None:
    """Apply `aggregation` to the hidden states of the neighbours and of the node itself, for each of the first `rows`
    rows of `tree`. `rows` is one of the tree's `ends`, except the last.

    `hidden`: float32 [rows of the next depth at least, width]. `out`: float32 or bfloat16 [rows, width], or twice the
    width when stacked, or for attention once per head; padding rows become 0. `shares` as for `gather_rows`.
    """
    if rows not in tree.ends[:-1]:
        raise ValueError(f"{rows} rows of a tree whose inner rows end at {list(tree.ends[:-1])}")
    needed = tree.ends[tree.ends.index(rows) + 1]
    if hidden.dtype != torch.float32 or hidden.dim() != 2 or len(hidden) < needed or not hidden.is_contiguous():
        raise ValueError(
            f"hidden is {hidden.dtype} {list(hidden.shape)}, expected float32 [{needed} or more, width] in C order"
        )
    width = hidden.shape[1]
    check_out(out, rows, width, aggregation)
    tile = min(_TILE, triton.next_power_of_2(width))
    tiles = triton.cdiv(width, tile)
    neighbours = min(_IN_FLIGHT, triton.next_power_of_2(max(1, *tree.fanouts)))
    at_once = rows_at_once(_IN_FLIGHT * _TILE // (neighbours * tile), neighbours * tile)
    heads = aggregation.heads_of(shares)
    weights = aggregation.weights if shares is None else None
    groups = max(1, heads)
    launch(
        _aggregate, triton.cdiv(rows, at_once) * tiles * groups,
        hidden, tree.ids, tree.counts, tree.starts, aggregation.bias,
        tree.ids if weights is None else weights.roots, tree.ids if weights is None else weights.indptr,  # not read
        tree.ids if shares is None else shares.of_neighbours, tree.ids if shares is None else shares.of_itself,
        as_words(out), rows,
        float(aggregation.own_factor),
        COLUMNS=width, TILE=tile, TILES=tiles, ROWS=at_once, NEIGHBOURS=neighbours,
        WEIGHTED=weights is not None, HEADS=heads, GROUPS=groups, MEAN=aggregation.mean, STACKED=aggregation.stacked,
        HAS_OWN=aggregation.stacked or aggregation.own_factor != 0,
        HAS_BIAS=aggregation.bias is not None, RELU=aggregation.relu,
        LIST_STEP=1 if weights is None else list_step(weights.indptr), num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _aggregate(
    hidden, ids, counts, starts, bias, roots, indptr, shares, own_shares, out, rows, own_factor,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, NEIGHBOURS: tl.constexpr,
    WEIGHTED: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, MEAN: tl.constexpr, STACKED: tl.constexpr,
    HAS_OWN: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr, LIST_STEP: tl.constexpr,
):  # fmt: skip
    """One program: TILE columns of ROWS rows, reading NEIGHBOURS of their neighbours at once."""
    row = tl.program_id(0) // (TILES * GROUPS) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(0) % (TILES * GROUPS) // TILES  # the head, of attention; or 0
    column = tl.program_id(0) % TILES * TILE + tl.arange(0, TILE)
    inside = row < rows
    within = column < COLUMNS
    node = tl.load(ids + row, mask=inside, other=-1)
    real = node >= 0
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    own = tl.full((ROWS, TILE), 0.0, tl.float32)
    if HAS_OWN:
        own_at = row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        own = tl.load(hidden + own_at, mask=real[:, None] & within[None, :], other=0.0)
    total = tl.full((ROWS, TILE), 0.0, tl.float32)
    for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
        place = first + tl.arange(0, NEIGHBOURS)[None, :]
        at = (start[:, None] + place).to(tl.int64)[:, :, None] * COLUMNS + column[None, None, :]
        wanted = place < count[:, None]
        numbers = tl.load(hidden + at, mask=wanted[:, :, None] & within[None, None, :], other=0.0)
        if WEIGHTED:
            neighbour = tl.load(ids + start[:, None] + place, mask=wanted, other=0)
            numbers *= neighbour_roots(roots, node, neighbour, wanted)[:, :, None]
        if HEADS:
            share = shares + (start[:, None] + place).to(tl.int64) * HEADS + group
            numbers *= tl.load(share, mask=wanted, other=0.0)[:, :, None]
        total += tl.sum(numbers, axis=1)
    if WEIGHTED:
        total, own = weighted(roots, indptr, node, real, count, total, own, LIST_STEP)
    if HEADS:
        own *= tl.load(own_shares + row.to(tl.int64) * HEADS + group, mask=real, other=0.0)[:, None]
    store_aggregated(
        out, row * GROUPS + group, column, inside, real, total, count, own, own_factor, bias,
        COLUMNS, MEAN, STACKED, HAS_OWN, HAS_BIAS, RELU,
    )  # fmt: skip
