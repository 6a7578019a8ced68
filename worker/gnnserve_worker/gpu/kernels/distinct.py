"""Rows that a chunk reads several times, gathered once over the link into the GPU's memory.

Neighbours are drawn from lists in which hubs stand again and again, and a node that draws neighbours is read for itself
as well, so that a chunk asks for the same row of a table in the host's memory several times. Here a chunk's places are
sorted by their nodes; each node that is read more than once and is not wholly in the cache gets a slot, its row is
copied there once, and the kernels that follow read it there (`gather.py`, `attention.py`). A row that is read once is
left where it is: copying it would cost and save nothing. So is what finds no slot any more.

Every array has the same length for every batch of a bucket, so that all of it can be captured. Whether it pays depends
on the card, its link and the graph, and is measured (`gpu/sharing.py`).
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl

from gnnserve_worker.gpu.arrays import CacheView, DeviceRows, DistinctRoom, DistinctRows, PaddedTree
from gnnserve_worker.gpu.kernels.gather import locate, padded
from gnnserve_worker.gpu.kernels.launch import as_words, launch, resident_programs, rows_at_once

_WARP_BYTES: Final = 512
_IN_FLIGHT: Final = 16 * 32
"""Reads that a warp issues before it waits, as of `gather.py`."""
_PLACES: Final = 128
"""Places that a program looks at: four of each lane."""


def share_rows(
    rows: DeviceRows,
    columns: int,
    tree: PaddedTree,
    cache: CacheView | None,
    room: DistinctRoom,
    *,
    reads_own: bool,
    reads_scores: bool,
) -> DistinctRows:
    """Copy the first `columns` of each row that the tree's places read several times, and say where it is then.

    `reads_own`: the node's own row is one of these as well. `reads_scores`: every place is read once more, for its
    scores. The room's `counts` become the rows that were copied, and the reads of them, without those for scores.
    """
    places = tree.ids.numel()
    distinct = room.cut(rows, columns, places)
    sorted_ids, order, marks, ranks = (each[:places] for each in (room.sorted_ids, room.order, room.marks, room.ranks))
    torch.sort(tree.ids, out=(sorted_ids, order))
    at_once = rows_at_once(_PLACES, 1)
    programs = triton.cdiv(places, at_once)
    nowhere = tree.ids  # for pointers that are not read
    blocks = 0 if cache is None else triton.cdiv(columns, cache.block_columns)
    launch(
        _mark, programs,
        sorted_ids, order, nowhere if cache is None else cache.directory, marks, room.counts,
        places, tree.seeds, tree.rows, rows.values.shape[0],
        PLACES=at_once, BLOCKS=blocks, READS_OWN=reads_own, READS_SCORES=reads_scores, num_warps=1,
    )  # fmt: skip
    torch.cumsum(marks, 0, dtype=torch.int32, out=ranks)
    capacity = len(distinct.values)
    launch(_list_nodes, programs, sorted_ids, marks, ranks, room.nodes, places, capacity, PLACES=at_once, num_warps=1)
    launch(
        _assign_slots, programs,
        sorted_ids, order, ranks, room.nodes, distinct.slots, room.counts, places, capacity, tree.seeds, tree.rows,
        PLACES=at_once, READS_OWN=reads_own, num_warps=1,
    )  # fmt: skip
    read = padded(rows, columns)
    tile = triton.next_power_of_2(min(read, _WARP_BYTES // rows.item_bytes))
    if cache is not None:
        tile = math.gcd(cache.block_columns, tile)
    at_once = rows_at_once(max(1, _IN_FLIGHT * rows.alignment_bytes // (tile * rows.item_bytes)), tile)
    tiles = triton.cdiv(columns, tile)
    launch(
        _fetch_rows, resident_programs(triton.cdiv(capacity, at_once) * tiles, distinct.values.device),
        as_words(rows.values), room.nodes, ranks,
        nowhere if cache is None else cache.directory, nowhere if cache is None else cache.pools,
        nowhere if cache is None else cache.totals, as_words(distinct.values), room.counts,
        places, capacity, rows.values.shape[0], 1 if cache is None else cache.slots_per_device,
        STRIDE=rows.stride, READ=read, ALIGNMENT=rows.alignment_bytes, TILE=tile, TILES=tiles, ROWS=at_once,
        SLOT_STRIDE=distinct.values.shape[1], BLOCK=tile if cache is None else cache.block_columns,
        DEVICES=0 if cache is None else cache.pools.numel(), CACHED=cache is not None, num_warps=1,
    )  # fmt: skip
    return distinct


@triton.jit
def _reads_of(place, inside, seeds, rows, READS_OWN: tl.constexpr):
    """Reads of each place's row by a gather: one as a neighbour, and one for itself where it has a hidden state."""
    reads = (place >= seeds).to(tl.int32)
    if READS_OWN:
        reads += (place < rows).to(tl.int32)
    return tl.where(inside, reads, 0)


@triton.jit(do_not_specialize=["places", "seeds", "rows", "nodes"])
def _mark(
    sorted_ids, order, directory, marks, counts, places, seeds, rows, nodes,
    PLACES: tl.constexpr, BLOCKS: tl.constexpr, READS_OWN: tl.constexpr, READS_SCORES: tl.constexpr,
):  # fmt: skip
    """Mark the first of each node's places, in their sorted order, if its row is to be copied."""
    at = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inside = at < places
    node = tl.load(sorted_ids + at, mask=inside, other=-1)
    before = tl.load(sorted_ids + at - 1, mask=inside & (at > 0), other=-1)
    after = tl.load(sorted_ids + at + 1, mask=at + 1 < places, other=-1)
    reads = _reads_of(tl.load(order + at, mask=inside, other=0), inside, seeds, rows, READS_OWN)
    if READS_SCORES:
        reads += 1
    marked = (node >= 0) & (node < nodes) & (node != before) & ((node == after) | (reads > 1))
    if BLOCKS > 0:
        is_missing = node < -1  # nowhere yet
        for block in range(BLOCKS):
            entry = directory + nodes.to(tl.int64) * block + node
            # Past the first-level cache, as in `gather.py`.
            is_missing = is_missing | (tl.load(entry, mask=marked, other=0, cache_modifier=".cg") < 0)
        marked = marked & is_missing
    tl.store(marks + at, marked.to(tl.int32), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(counts + tl.arange(0, 2), tl.full((2,), 0, tl.int32))


@triton.jit(do_not_specialize=["places", "capacity"])
def _list_nodes(sorted_ids, marks, ranks, nodes_of, places, capacity, PLACES: tl.constexpr):
    """List the marked nodes by their slots."""
    at = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inside = at < places
    slot = tl.load(ranks + at, mask=inside, other=0) - 1
    marked = tl.load(marks + at, mask=inside, other=0) > 0
    node = tl.load(sorted_ids + at, mask=inside, other=-1)
    tl.store(nodes_of + slot, node, mask=marked & (slot < capacity))


@triton.jit(do_not_specialize=["places", "capacity", "seeds", "rows"])
def _assign_slots(
    sorted_ids, order, ranks, nodes_of, slots, counts, places, capacity, seeds, rows,
    PLACES: tl.constexpr, READS_OWN: tl.constexpr,
):  # fmt: skip
    """Give every place of a listed node its slot, and all others -1; count the reads of those."""
    at = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inside = at < places
    node = tl.load(sorted_ids + at, mask=inside, other=-1)
    # The last node that was marked so far: this one, or another one before it.
    slot = tl.load(ranks + at, mask=inside, other=0) - 1
    has_slot = (slot >= 0) & (slot < capacity) & (node >= 0)
    is_listed = has_slot & (tl.load(nodes_of + slot, mask=has_slot, other=-1) == node)
    place = tl.load(order + at, mask=inside, other=0)
    tl.store(slots + place, tl.where(is_listed, slot, -1), mask=inside)
    reads = _reads_of(place, is_listed, seeds, rows, READS_OWN)
    tl.atomic_add(counts + 1, tl.sum(reads, axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["places", "capacity", "nodes", "slots_per_device"])
def _fetch_rows(
    values, nodes_of, ranks, directory, pools, totals, out, counts, places, capacity, nodes, slots_per_device,
    STRIDE: tl.constexpr, READ: tl.constexpr, ALIGNMENT: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, SLOT_STRIDE: tl.constexpr, BLOCK: tl.constexpr, DEVICES: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """One program takes every n-th of the items, each TILE columns of ROWS slots."""
    dtype: tl.constexpr = values.dtype.element_ty
    ITEM_BYTES: tl.constexpr = dtype.primitive_bitwidth // 8
    count = tl.minimum(tl.load(ranks + places - 1), capacity)
    if tl.program_id(0) == 0:
        tl.store(counts, count)
    offset = tl.arange(0, TILE)
    blocks_found = tl.full((ROWS,), 0, tl.int32)
    blocks_read = tl.full((ROWS,), 0, tl.int32)
    for item in range(tl.program_id(0), tl.cdiv(count, ROWS) * TILES, tl.num_programs(0)):
        slot = item // TILES * ROWS + tl.arange(0, ROWS)
        begin = item % TILES * TILE
        inside = slot < count
        node = tl.load(nodes_of + slot, mask=inside, other=0)
        address, found = locate(
            values, None, node, inside, begin, directory, pools, nodes, slots_per_device,
            STRIDE, BLOCK, ITEM_BYTES, CACHED, DEVICES,
        )  # fmt: skip
        pointer = tl.multiple_of(address.to(tl.pointer_type(dtype)), ALIGNMENT)
        mask = inside[:, None] & (begin + offset < READ)[None, :]
        numbers = tl.load(
            pointer[:, None] + offset[None, :], mask=mask, other=0, cache_modifier=".cg" if CACHED else ""
        )
        to = out + slot.to(tl.int64)[:, None] * SLOT_STRIDE + begin + offset[None, :]
        tl.store(to, numbers, mask=mask)
        if CACHED:
            begins_block = (begin % BLOCK == 0).to(tl.int32)
            blocks_found += found.to(tl.int32) * begins_block
            blocks_read += inside.to(tl.int32) * begins_block
    if CACHED:
        hits, reads = tl.sum(blocks_found, axis=0), tl.sum(blocks_read, axis=0)
        tl.atomic_add(totals, hits.to(tl.int64), sem="relaxed")
        tl.atomic_add(totals + 1, (reads - hits).to(tl.int64), sem="relaxed")
