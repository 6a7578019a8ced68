"""Attention of listed layers, over hidden states: scores of edges, shares by a softmax of each list, and sums.

What `layers/convolutions/attention.py` computes on the CPU. A score is the sum of one of each end (GAT), of a product
of both ends together (GATv2), or the product of a query and a key (Transformer). Scores and shares of an edge stand at
the place of the neighbour. Several rows of a node read one list and write equal numbers: shares are written beside
scores and not over them, which others may still read.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import PaddedTree, Shares
from gnnserve_worker.gpu.kernels.launch import launch, rows_at_once

_TILE: Final = 128
_IN_FLIGHT: Final = 16
_POSITIONS: Final = 1024
"""Neighbours that a program shares out between at once, unless one row has more."""


def joint_scores(
    sources: Tensor, targets: Tensor, vector: Tensor, slope: float, tree: PaddedTree, rows: int, heads: int,
    scores: Tensor, own: Tensor | None,
) -> None:  # fmt: skip
    """Score edges by `vector` · leaky(source + target), head by head. `sources`: float32 [places, heads · columns];
    `targets`: float32 [rows at least, heads · columns]; `vector`: float32 [heads · columns]. `scores`: float32 [places,
    heads]; `own`: of each row with itself, float32 [rows, heads]; None: rows do not read themselves."""
    _score_edges(sources, targets, vector, slope, tree, rows, heads, scores, own, apart=0, of_head=0)


def key_scores(
    keys: Tensor, queries: Tensor, tree: PaddedTree, rows: int, heads: int, columns: int, scores: Tensor, *,
    is_apart: bool,
) -> None:  # fmt: skip
    """Score edges by the product of a query of the row and a key of the neighbour. `keys`: float32 [places, columns],
    or, `is_apart`, heads times the columns, a part for each head; `queries`: float32 [rows at least, heads · columns].
    Both may be the first columns of wider rows. `scores`: float32 [places, heads]."""
    _score_edges(keys, queries, None, 0.0, tree, rows, heads, scores, None, apart=columns * is_apart, of_head=columns)


def _score_edges(
    sources: Tensor, targets: Tensor, vector: Tensor | None, slope: float, tree: PaddedTree, rows: int, heads: int,
    scores: Tensor, own: Tensor | None, *, apart: int, of_head: int,
) -> None:  # fmt: skip
    columns = of_head or targets.shape[1] // heads
    tile = min(_TILE, triton.next_power_of_2(columns))
    neighbours = min(_IN_FLIGHT, triton.next_power_of_2(max(1, *tree.fanouts)))
    at_once = rows_at_once(1, neighbours * tile)
    launch(
        _score_edge, triton.cdiv(rows, at_once) * heads,
        sources, targets, vector, tree.counts, tree.starts, scores, own, rows, float(slope),
        SOURCE_STRIDE=sources.stride(0), TARGET_STRIDE=targets.stride(0),
        APART=columns if vector is not None else apart, COLUMNS=columns,
        TILE=tile, TILES=triton.cdiv(columns, tile), ROWS=at_once, NEIGHBOURS=neighbours, HEADS=heads, num_warps=1,
    )  # fmt: skip


def share_edges(
    scores: Tensor, targets: Tensor | None, own: Tensor | None, slope: float, tree: PaddedTree, rows: int,
    shares: Shares, *, has_self_loops: bool,
) -> None:  # fmt: skip
    """Shares of the neighbours of the first `rows` rows, and of each row itself where it has a loop, by a softmax of
    their scores. `scores`: float32 [places, heads], perhaps of wider rows: of edges; or, with `targets`, float32 [rows
    at least, heads], of either end, whose leaky sum is the score. `own`: as of `joint_scores`. A list without edges
    shares nothing."""
    heads = shares.of_neighbours.shape[1]
    positions = triton.next_power_of_2(max(1, *tree.fanouts))
    at_once = rows_at_once(max(1, _POSITIONS // positions), positions)
    launch(
        _share_edge, triton.cdiv(rows, at_once) * heads,
        scores, targets, own, tree.ids, tree.counts, tree.starts, shares.of_neighbours, shares.of_itself, rows,
        float(slope),
        STRIDE=scores.stride(0), TARGET_STRIDE=0 if targets is None else targets.stride(0), HEADS=heads, ROWS=at_once,
        POSITIONS=positions, LOOPS=has_self_loops, num_warps=1,
    )  # fmt: skip


def sum_shares(
    hidden: Tensor, tree: PaddedTree, rows: int, shares: Shares, columns: int, out: Tensor, *, is_apart: bool,
    has_self_loops: bool,
) -> None:  # fmt: skip
    """Sum hidden states by the shares of each head, for the first `rows` rows. `hidden`: float32 [places, columns], or,
    `is_apart`, heads times the columns, a part for each head; perhaps of wider rows. `out`: float32 [rows, heads,
    columns], perhaps the first columns of wider heads."""
    heads = out.shape[1]
    tile = min(_TILE, triton.next_power_of_2(columns))
    tiles = triton.cdiv(columns, tile)
    neighbours = min(_IN_FLIGHT, triton.next_power_of_2(max(1, *tree.fanouts)))
    at_once = rows_at_once(_IN_FLIGHT * _TILE // (neighbours * tile), neighbours * tile)
    launch(
        _sum_shared, triton.cdiv(rows, at_once) * tiles * heads,
        hidden, tree.counts, tree.starts, shares.of_neighbours, shares.of_itself, out, rows,
        STRIDE=hidden.stride(0), APART=columns * is_apart, OUT_STRIDE=out.stride(0), OUT_APART=out.stride(1),
        COLUMNS=columns, TILE=tile, TILES=tiles, ROWS=at_once, NEIGHBOURS=neighbours, HEADS=heads,
        LOOPS=has_self_loops, num_warps=1,
    )  # fmt: skip


@triton.jit
def _leaky(number, slope):
    return tl.where(number > 0.0, number, number * slope)


@triton.jit(do_not_specialize=["rows"])
def _score_edge(
    sources, targets, vector, counts, starts, scores, own, rows, slope,
    SOURCE_STRIDE: tl.constexpr, TARGET_STRIDE: tl.constexpr, APART: tl.constexpr, COLUMNS: tl.constexpr,
    TILE: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, NEIGHBOURS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One program: one head of ROWS rows, NEIGHBOURS of their neighbours at once."""
    head = tl.program_id(0) % HEADS
    row = tl.program_id(0) // HEADS * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    of_target = targets + row.to(tl.int64) * TARGET_STRIDE + head * COLUMNS
    offset = tl.arange(0, TILE)
    for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
        position = first + tl.arange(0, NEIGHBOURS)[None, :]
        wanted = position < count[:, None]
        place = (start[:, None] + position).to(tl.int64)
        found = tl.full((ROWS, NEIGHBOURS), 0.0, tl.float32)
        for tile in range(TILES):
            column = tile * TILE + offset
            within = column < COLUMNS
            target = tl.load(of_target[:, None] + column[None, :], mask=inside[:, None] & within[None, :], other=0.0)
            at = sources + place[:, :, None] * SOURCE_STRIDE + (head * APART + column)[None, None, :]
            source = tl.load(at, mask=wanted[:, :, None] & within[None, None, :], other=0.0)
            if vector is not None:
                factor = tl.load(vector + head * COLUMNS + column, mask=within, other=0.0)
                joint = _leaky(source + target[:, None, :], slope) * factor[None, None, :]
            else:
                joint = source * target[:, None, :]
            found += tl.sum(joint, axis=2)
        tl.store(scores + place * HEADS + head, found, mask=wanted)
    if own is not None:
        itself = tl.full((ROWS,), 0.0, tl.float32)
        for tile in range(TILES):
            column = tile * TILE + offset
            mask = inside[:, None] & (column < COLUMNS)[None, :]
            target = tl.load(of_target[:, None] + column[None, :], mask=mask, other=0.0)
            at = sources + row.to(tl.int64)[:, None] * SOURCE_STRIDE + (head * APART + column)[None, :]
            factor = tl.load(vector + head * COLUMNS + column, mask=column < COLUMNS, other=0.0)
            itself += tl.sum(_leaky(tl.load(at, mask=mask, other=0.0) + target, slope) * factor[None, :], axis=1)
        tl.store(own + row.to(tl.int64) * HEADS + head, itself, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _share_edge(
    scores, targets, own, ids, counts, starts, of_neighbours, of_itself, rows, slope,
    STRIDE: tl.constexpr, TARGET_STRIDE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
    POSITIONS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """One program: one head of ROWS rows, all their neighbours at once."""
    head = tl.program_id(0) % HEADS
    row = tl.program_id(0) // HEADS * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    position = tl.arange(0, POSITIONS)[None, :]
    wanted = position < count[:, None]
    place = (start[:, None] + position).to(tl.int64)
    score = tl.load(scores + place * STRIDE + head, mask=wanted, other=0.0)
    target = tl.full((ROWS,), 0.0, tl.float32)
    if targets is not None:
        target = tl.load(targets + row.to(tl.int64) * TARGET_STRIDE + head, mask=inside, other=0.0)
        score = _leaky(score + target[:, None], slope)
    reads = wanted
    itself = tl.full((ROWS,), float("-inf"), tl.float32)
    if LOOPS:
        # A node that drew itself counts once, as itself.
        node = tl.load(ids + row, mask=inside, other=-1)
        reads = wanted & (tl.load(ids + place, mask=wanted, other=-1) != node[:, None])
        if own is not None:
            itself = tl.load(own + row.to(tl.int64) * HEADS + head, mask=inside, other=0.0)
        else:
            itself = _leaky(tl.load(scores + row.to(tl.int64) * STRIDE + head, mask=inside, other=0.0) + target, slope)
    score = tl.where(reads, score, float("-inf"))
    largest = tl.maximum(tl.max(score, axis=1), itself)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weight = tl.exp(score - largest[:, None])
    own_weight = tl.exp(itself - largest)
    # torch_geometric's least total, by which an empty list is no division by 0.
    total = tl.sum(weight, axis=1) + own_weight + 1e-16
    tl.store(of_neighbours + place * HEADS + head, weight / total[:, None], mask=wanted)
    if LOOPS:
        tl.store(of_itself + row.to(tl.int64) * HEADS + head, own_weight / total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _sum_shared(
    hidden, counts, starts, shares, own_shares, out, rows,
    STRIDE: tl.constexpr, APART: tl.constexpr, OUT_STRIDE: tl.constexpr, OUT_APART: tl.constexpr,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, NEIGHBOURS: tl.constexpr,
    HEADS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """One program: TILE columns of one head of ROWS rows, reading NEIGHBOURS of their neighbours at once."""
    row = tl.program_id(0) // (TILES * HEADS) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(0) % (TILES * HEADS) // TILES
    column = tl.program_id(0) % TILES * TILE + tl.arange(0, TILE)
    inside = row < rows
    within = column < COLUMNS
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    total = tl.full((ROWS, TILE), 0.0, tl.float32)
    for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
        position = first + tl.arange(0, NEIGHBOURS)[None, :]
        wanted = position < count[:, None]
        place = (start[:, None] + position).to(tl.int64)
        at = hidden + place[:, :, None] * STRIDE + (head * APART + column)[None, None, :]
        numbers = tl.load(at, mask=wanted[:, :, None] & within[None, None, :], other=0.0)
        share = tl.load(shares + place * HEADS + head, mask=wanted, other=0.0)
        total += tl.sum(numbers * share[:, :, None], axis=1)
    mask = inside[:, None] & within[None, :]
    if LOOPS:
        own_at = hidden + row.to(tl.int64)[:, None] * STRIDE + (head * APART + column)[None, :]
        own_share = tl.load(own_shares + row.to(tl.int64) * HEADS + head, mask=inside, other=0.0)
        total += tl.load(own_at, mask=mask, other=0.0) * own_share[:, None]
    to = out + row.to(tl.int64)[:, None] * OUT_STRIDE + head * OUT_APART + column[None, :]
    tl.store(to, total, mask=mask)
