"""Attention before rows are summed: what `tables/attention.py` computes for a row at a time, in two steps.

First the scores of every place of the tree, from rows wherever they are, or of hidden states, where they are one small
matrix product. Then each row's softmax over its neighbours and itself, a program per head. The shares that come out are
factors of the sums in `gather.py` and `aggregate.py`. Rows of a features table are read twice, once for their scores;
of a projected table the scores alone are.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import (
    AttentionRoom,
    CacheView,
    DeviceAttention,
    DeviceRows,
    DistinctRows,
    PaddedTree,
)
from gnnserve_worker.gpu.kernels.gather import check_behind, locate, padded, scale_of, shared_place
from gnnserve_worker.gpu.kernels.launch import as_words, launch, rows_at_once
from gnnserve_worker.gpu.kernels.rows import widened

_WARP_BYTES: Final = 512
_NUMBERS: Final = 1024
"""Numbers that a program scores at once, of several rows: 32 of each lane, beside the vectors that they meet."""
_POSITIONS: Final = 1024
"""Neighbours that a program shares out between at once, unless one row has more."""


def score_rows(
    rows: DeviceRows,
    columns: int,
    tree: PaddedTree,
    attention: DeviceAttention,
    room: AttentionRoom,
    cache: CacheView | None,
    behind: DeviceRows | None = None,
    distinct: DistinctRows | None = None,
) -> None:
    """Scores of every place from its table row: as a neighbour, and of rows of the tree as attending nodes too.
    `behind` and `distinct`: as those of `gather_rows`."""
    if behind is not None:
        check_behind(rows, behind)
    heads, vectors = attention.heads, attention.vectors
    summed = attention.summed_columns(columns)
    tile = triton.next_power_of_2(min(padded(rows, summed), _WARP_BYTES // rows.item_bytes))
    if cache is not None:
        tile = math.gcd(cache.block_columns, tile)
    nowhere = tree.ids
    for begin, end, count in ((0, tree.rows, 2 * heads), (tree.rows, tree.ends[-1], heads)):
        places = rows_at_once(max(1, _NUMBERS // tile), tile)
        launch(
            _score, triton.cdiv(end - begin, places),
            as_words(rows.values), rows.scales,
            None if behind is None else as_words(behind.values), None if behind is None else behind.scales,
            nowhere if cache is None else cache.directory, nowhere if cache is None else cache.pools,
            tree.ids, nowhere if vectors is None else vectors, None if distinct is None else as_words(distinct.values),
            None if distinct is None else distinct.slots, room.scores, begin, end, rows.values.shape[0],
            1 if cache is None else cache.slots_per_device,
            COLUMNS=summed, STRIDE=rows.stride, READ=padded(rows, summed), ALIGNMENT=rows.alignment_bytes,
            TILE=tile, TILES=triton.cdiv(summed, tile), PLACES=places,
            BLOCK=tile if cache is None else cache.block_columns, DEVICES=0 if cache is None else cache.pools.numel(),
            CACHED=cache is not None, SCALED=rows.scales is not None, STORED=vectors is None,
            SLOT_STRIDE=1 if distinct is None else distinct.stride,
            SCORES=2 * heads, COUNT=count, COUNT_PADDED=triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip


def score_hidden(hidden: Tensor, attention: DeviceAttention, room: AttentionRoom) -> None:
    """The same from hidden states, float32 [places at least, width]; of every place both scores."""
    if attention.vectors is None:
        raise ValueError("hidden states do not end with their scores, as rows of a projected table do")
    torch.mm(hidden[: len(room.scores)], attention.vectors.T, out=room.scores)


def share_out(tree: PaddedTree, rows: int, attention: DeviceAttention, room: AttentionRoom) -> None:
    """Shares of the neighbours of the first `rows` rows, and of each row itself, from their scores."""
    positions = triton.next_power_of_2(max(tree.fanouts))
    at_once = rows_at_once(max(1, _POSITIONS // positions), positions)
    launch(
        _share_out, triton.cdiv(rows, at_once) * attention.heads,
        room.scores, tree.ids, tree.counts, tree.starts, room.shares.of_neighbours, room.shares.of_itself, rows,
        float(attention.negative_slope),
        HEADS=attention.heads, ROWS=at_once, POSITIONS=positions, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["begin", "end", "nodes", "slots_per_device"])
def _score(
    values, scales, behind, behind_scales, directory, pools, ids, vectors, copied, slots, scores, begin, end, nodes,
    slots_per_device,
    COLUMNS: tl.constexpr, STRIDE: tl.constexpr, READ: tl.constexpr, ALIGNMENT: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, DEVICES: tl.constexpr, CACHED: tl.constexpr,
    SCALED: tl.constexpr, STORED: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    SCORES: tl.constexpr, COUNT: tl.constexpr, COUNT_PADDED: tl.constexpr,
):  # fmt: skip
    """One program: the first COUNT of a place's SCORES scores, for PLACES of the places begin … end - 1."""
    dtype: tl.constexpr = values.dtype.element_ty
    ITEM_BYTES: tl.constexpr = dtype.primitive_bitwidth // 8
    place = begin + tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inside = place < end
    node = tl.load(ids + place, mask=inside, other=-1)
    real = node >= 0
    if copied is not None:
        slot = tl.load(slots + place, mask=real, other=-1)
    number = tl.arange(0, COUNT_PADDED)
    found = tl.full((PLACES, COUNT_PADDED), 0.0, tl.float32)
    if STORED:
        for each in range(COUNT):
            address, in_cache = locate(
                values, behind, node, real, COLUMNS + each, directory, pools, nodes, slots_per_device,
                STRIDE, BLOCK, ITEM_BYTES, CACHED, DEVICES,
            )  # fmt: skip
            if copied is not None:
                address, in_cache = shared_place(
                    address, in_cache, copied, slot, COLUMNS + each, SLOT_STRIDE, ITEM_BYTES
                )
            stored = tl.load(
                address.to(tl.pointer_type(dtype)), mask=real, other=0, cache_modifier=".cg" if CACHED else ""
            )
            found = tl.where((number == each)[None, :], widened(stored)[:, None], found)
    else:
        offset = tl.arange(0, TILE)
        for tile in range(TILES):
            column = tile * TILE
            address, in_cache = locate(
                values, behind, node, real, column, directory, pools, nodes, slots_per_device,
                STRIDE, BLOCK, ITEM_BYTES, CACHED, DEVICES,
            )  # fmt: skip
            if copied is not None:
                address, in_cache = shared_place(address, in_cache, copied, slot, column, SLOT_STRIDE, ITEM_BYTES)
            pointer = tl.multiple_of(address.to(tl.pointer_type(dtype)), ALIGNMENT)
            mask = real[:, None] & (column + offset < READ)[None, :]
            numbers = widened(
                tl.load(pointer[:, None] + offset[None, :], mask=mask, other=0, cache_modifier=".cg" if CACHED else "")
            )
            for each in range(COUNT):
                vector = tl.load(vectors + each * COLUMNS + column + offset, mask=column + offset < COLUMNS, other=0.0)
                dot = tl.sum(numbers * vector[None, :], axis=1)
                found += tl.where((number == each)[None, :], dot[:, None], 0.0)
    if SCALED:
        found *= scale_of(scales, behind_scales, node, real, nodes)[:, None]
    to = scores + place.to(tl.int64)[:, None] * SCORES + number[None, :]
    tl.store(to, found, mask=inside[:, None] & (number < COUNT)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _share_out(
    scores, ids, counts, starts, of_neighbours, of_itself, rows, slope,
    HEADS: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """One program: one head of ROWS rows, all their neighbours at once."""
    head = tl.program_id(0) % HEADS
    row = tl.program_id(0) // HEADS * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    node = tl.load(ids + row, mask=inside, other=-1)
    count = tl.load(counts + row, mask=inside, other=0)
    start = tl.load(starts + row, mask=inside, other=0)
    of_row = scores + row.to(tl.int64) * (2 * HEADS) + head
    target = tl.load(of_row + HEADS, mask=inside, other=0.0)
    own = _leaky(tl.load(of_row, mask=inside, other=0.0) + target, slope)
    position = tl.arange(0, POSITIONS)[None, :]
    wanted = position < count[:, None]
    place = (start[:, None] + position).to(tl.int64)
    neighbour = tl.load(ids + place, mask=wanted, other=-1)
    score = _leaky(tl.load(scores + place * (2 * HEADS) + head, mask=wanted, other=0.0) + target[:, None], slope)
    # A node that drew itself counts once, as itself.
    score = tl.where(wanted & (neighbour != node[:, None]), score, float("-inf"))
    largest = tl.maximum(tl.max(score, axis=1), own)
    weight = tl.exp(score - largest[:, None])
    own_weight = tl.exp(own - largest)
    total = tl.sum(weight, axis=1) + own_weight
    tl.store(of_neighbours + place * HEADS + head, weight / total[:, None], mask=wanted)
    tl.store(of_itself + row.to(tl.int64) * HEADS + head, own_weight / total, mask=inside)


@triton.jit
def _leaky(number, slope):
    return tl.where(number > 0.0, number, number * slope)
