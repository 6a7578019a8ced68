"""Gathering fused with aggregation: layer 1's input, or its output, from rows in the host's memory, over the link.

A GPU reads pinned host memory over PCIe, where the first byte takes about 1.5 µs and 16 lanes of the fifth generation
bring some 55 GB/s: 55e9 · 1.5e-6 = 83 kB must be in flight at any time, 630 bytes for each of 132 processors. A program
is one warp. Of a tile of columns (up to 512 bytes of a row) each of its 32 lanes requests 16 bytes, so that a row is
requested in whole lines; and it issues 16 such reads before it uses the first (the compiler for sm_90 interleaves the
last eight with the sums, to save registers). That is 4 to 8 kB a warp, and 8 to 16 warps fit on a processor with their
70 to 170 registers a lane: at least 32 kB in flight, fifty times what the link needs, and enough for GPU memory (4.8
TB/s · 0.7 µs / 132 = 25 kB). So rows in GPU memory, or short rows, may have less in flight; and a batch of one seed, 26
rows of 11 on average, fills the link as well.

As many programs as fit iterate over all rows and tiles; each counts its cache hits and adds them to the totals once.
Leaf rows are never written back.

Rows behind the table's, which a batch's requests bring along, are read from where they are in the host's memory: a
comparison chooses the address, in kernels that are compiled for it. Batches without any run kernels that have none.

A cache block is a whole number of tiles, so that one entry of the directory serves a tile. The entry is read here and
not in an earlier kernel: it stays valid until the batch ends (`gpu/cache.py`).
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import (
    CacheView,
    DeviceAggregation,
    DeviceRows,
    DeviceTable,
    DistinctRows,
    PaddedTree,
    Shares,
    list_step,
)
from gnnserve_worker.gpu.kernels.launch import as_words, launch, resident_programs, rows_at_once
from gnnserve_worker.gpu.kernels.rows import neighbour_roots, store_aggregated, weighted, widened

_WARP_BYTES: Final = 512
"""Bytes of a row that a warp reads with one instruction, 16 a lane."""
_IN_FLIGHT: Final = 16 * 32
"""Reads that a warp issues before it waits: 16 of each lane."""
_OUT_DTYPES: Final = (torch.float32, torch.bfloat16)


def gather_rows(
    rows: DeviceRows,
    own: DeviceRows,
    columns: int,
    tree: PaddedTree,
    aggregation: DeviceAggregation,
    out: Tensor,
    cache: CacheView | None,
    shares: Shares | None = None,
    behind: DeviceTable | None = None,
    distinct: DistinctRows | None = None,
) -> None:
    """Apply `aggregation` to the first `columns` of the neighbours' rows and of the node's own, for each row of `tree`.

    `own` may be `rows`: then its reads go through the cache as well. `out` is float32 or bfloat16
    [tree.rows, columns], or twice the columns when stacked, or of attention the heads' columns; padding rows become 0.
    `shares`: what `kernels/attention.py` made for an aggregation with attention; or weights of neighbours, which then
    take the place of the aggregation's. `behind`: rows that are read as if they stood behind these, of the same kind
    and stride; the tree names them by numbers from the number of nodes on. `distinct`: rows of this chunk that were
    copied before, to be read there.
    """
    _check(rows, own, columns, tree, aggregation, out, cache)
    if behind is not None:
        check_behind(rows, behind.rows)
        check_behind(own, behind.own)
    item_bytes = rows.item_bytes
    attention = aggregation.attention
    heads = aggregation.heads_of(shares)
    # Of attention, rows may end with scores, which are not summed.
    summed = columns if attention is None else attention.summed_columns(columns)
    groups = 1 if attention is None else attention.groups
    tile = triton.next_power_of_2(min(padded(rows, summed), _WARP_BYTES // item_bytes))
    if cache is not None:
        tile = math.gcd(cache.block_columns, tile)
    tiles = triton.cdiv(summed, tile)
    in_flight = max(1, _IN_FLIGHT * rows.alignment_bytes // (tile * item_bytes))
    if groups < heads:
        # Each number has a share of its own, which takes as many registers: with twice as many, they are spilled.
        in_flight = max(1, in_flight // 2)
    neighbours = min(triton.next_power_of_2(max(1, *tree.fanouts)), in_flight)
    at_once = rows_at_once(in_flight // neighbours, neighbours * tile)
    weights = aggregation.weights if shares is None else None
    nowhere = tree.ids  # for pointers that are not read
    launch(
        _gather, resident_programs(triton.cdiv(tree.rows, at_once) * tiles * groups, out.device),
        as_words(rows.values), rows.scales, as_words(own.values), own.scales,
        None if behind is None else as_words(behind.rows.values), None if behind is None else behind.rows.scales,
        None if behind is None else as_words(behind.own.values), None if behind is None else behind.own.scales,
        nowhere if cache is None else cache.directory, nowhere if cache is None else cache.pools,
        nowhere if cache is None else cache.accesses[triton.cdiv(columns, cache.block_columns) - 1],
        nowhere if cache is None else cache.totals,
        tree.ids, tree.counts, tree.starts, aggregation.bias,
        nowhere if weights is None else weights.roots, nowhere if weights is None else weights.indptr,
        nowhere if shares is None else shares.of_neighbours, nowhere if shares is None else shares.of_itself,
        None if distinct is None else as_words(distinct.values), None if distinct is None else distinct.slots,
        as_words(out), tree.rows, rows.values.shape[0],
        1 if cache is None else cache.slots_per_device, float(aggregation.own_factor),
        COLUMNS=summed, STRIDE=rows.stride, OWN_STRIDE=own.stride,
        READ=padded(rows, summed), OWN_READ=padded(own, summed),
        ALIGNMENT=rows.alignment_bytes, OWN_ALIGNMENT=own.alignment_bytes,
        TILE=tile, TILES=tiles, ROWS=at_once, NEIGHBOURS=neighbours,
        BLOCK=tile if cache is None else cache.block_columns, DEVICES=0 if cache is None else cache.pools.numel(),
        CACHED=cache is not None, OWN_CACHED=cache is not None and own is rows,
        SLOT_STRIDE=1 if distinct is None else distinct.stride, OWN_SHARED=distinct is not None and own is rows,
        SCALED=rows.scales is not None, WEIGHTED=weights is not None,
        HEADS=heads,
        HEAD_COLUMNS=columns if attention is None else summed * groups // attention.heads, GROUPS=groups,
        MEAN=aggregation.mean, STACKED=aggregation.stacked,
        HAS_OWN=aggregation.stacked or aggregation.own_factor != 0,
        HAS_BIAS=aggregation.bias is not None, RELU=aggregation.relu,
        LIST_STEP=1 if weights is None else list_step(weights.indptr), num_warps=1,
    )  # fmt: skip


def padded(rows: DeviceRows, columns: int) -> int:
    """Columns to read so that every lane reads all its 16 bytes; they may include padding or the columns after."""
    lane_columns = rows.alignment_bytes // rows.item_bytes
    return -(-columns // lane_columns) * lane_columns


def _check(
    rows: DeviceRows,
    own: DeviceRows,
    columns: int,
    tree: PaddedTree,
    aggregation: DeviceAggregation,
    out: Tensor,
    cache: CacheView | None,
) -> None:
    if not 1 <= columns <= min(rows.stride, own.stride):
        raise ValueError(f"{columns} columns of rows of {rows.stride} and own rows of {own.stride}")
    if rows.values.dtype != own.values.dtype or rows.values.shape[0] != own.values.shape[0]:
        raise ValueError(
            f"rows are {rows.values.dtype} {list(rows.values.shape)}, own ones {own.values.dtype} "
            f"{list(own.values.shape)}: expected as many of the same kind"
        )
    check_out(out, tree.rows, columns, aggregation)
    if cache is None:
        return
    if cache.block_columns * rows.item_bytes % rows.alignment_bytes:
        raise ValueError(
            f"cache blocks of {cache.block_columns} columns of {rows.item_bytes} bytes: expected a multiple of "
            f"{rows.alignment_bytes} bytes, as rows are"
        )
    blocks, nodes = cache.directory.shape
    if nodes != rows.values.shape[0] or blocks * cache.block_columns < columns:
        raise ValueError(
            f"a cache of {blocks} blocks of {cache.block_columns} columns for {nodes:,} nodes; {columns} columns of "
            f"{rows.values.shape[0]:,} nodes are asked for"
        )


def check_behind(rows: DeviceRows, behind: DeviceRows) -> None:
    if rows.values.dtype != behind.values.dtype or rows.stride != behind.stride:
        raise ValueError(
            f"rows are {rows.stride} numbers of {rows.values.dtype}, and those behind them {behind.stride} of "
            f"{behind.values.dtype}"
        )


def check_out(out: Tensor, rows: int, columns: int, aggregation: DeviceAggregation) -> None:
    shape = (rows, aggregation.width(columns))
    if out.dtype not in _OUT_DTYPES or out.shape != shape or not out.is_contiguous():
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)}, strides {list(out.stride())}; expected float32 or bfloat16 "
            f"{list(shape)} in C order"
        )
    biased = columns if aggregation.attention is None else aggregation.attention.summed_columns(columns)
    if aggregation.bias is not None and aggregation.bias.shape != (biased,):
        raise ValueError(f"bias is {list(aggregation.bias.shape)}, expected [{biased}]")


@triton.jit
def locate(
    values, behind, node, wanted, column, directory, pools, nodes, slots_per_device,
    STRIDE: tl.constexpr, BLOCK: tl.constexpr, ITEM_BYTES: tl.constexpr, CACHED: tl.constexpr, DEVICES: tl.constexpr,
):  # fmt: skip
    """Address of `column` in the row of each `wanted` node, int64, and whether it lies in the cache. Rows from `nodes`
    on are those of `behind`, unless that is None."""
    table = values.to(tl.int64)
    if behind is not None:
        table = tl.where(node < nodes, table, behind.to(tl.int64) - nodes.to(tl.int64) * (STRIDE * ITEM_BYTES))
    address = table + (node.to(tl.int64) * STRIDE + column) * ITEM_BYTES
    if CACHED:
        wanted = in_table(behind, node, wanted, nodes)
        entry = directory + (column // BLOCK).to(tl.int64) * nodes + node
        # Read past the first-level cache, as the cache's rows below: lines left there by other kernels may be stale
        # (`caching/slots.py`).
        slot = tl.load(entry, mask=wanted, other=-1, cache_modifier=".cg")
        found = slot >= 0
        if DEVICES == 1:
            pool = tl.load(pools)
            pool_row = slot
        else:
            pool = tl.load(pools + slot // slots_per_device, mask=found, other=0)
            pool_row = slot % slots_per_device
        cached = pool + (pool_row.to(tl.int64) * BLOCK + column % BLOCK) * ITEM_BYTES
        address = tl.where(found, cached, address)
    else:
        found = node < -1  # never
    return address, found


@triton.jit
def shared_place(address, found, copied, slot, column, STRIDE: tl.constexpr, ITEM_BYTES: tl.constexpr):
    """The address of `column` in the copy that a row has at its `slot`, if it has one, which is nothing of the cache's
    then; otherwise what is given."""
    copy = copied.to(tl.int64) + (slot.to(tl.int64) * STRIDE + column) * ITEM_BYTES
    return tl.where(slot >= 0, copy, address), found & (slot < 0)


@triton.jit
def in_table(behind, node, wanted, nodes):
    """The mask of the `wanted` nodes whose rows are in the table itself, and not behind it."""
    if behind is not None:
        wanted = wanted & (node < nodes)
    return wanted


@triton.jit
def scale_of(scales, behind, node, wanted, nodes):
    """Scale of each `wanted` node's row; `behind`: those of rows from `nodes` on, or None."""
    place = scales + node
    if behind is not None:
        place = tl.where(node < nodes, place, behind + (node - nodes))
    return tl.load(place, mask=wanted, other=0.0)


# Compiled once for all buckets, graphs and caches.
@triton.jit(do_not_specialize=["rows", "nodes", "slots_per_device"], do_not_specialize_on_alignment=["accesses"])
def _gather(
    values, scales, own_values, own_scales, behind, behind_scales, own_behind, own_behind_scales,
    directory, pools, accesses, totals,
    ids, counts, starts, bias, roots, indptr, shares,
    own_shares, copied, slots, out, rows, nodes, slots_per_device, own_factor,
    COLUMNS: tl.constexpr, STRIDE: tl.constexpr, OWN_STRIDE: tl.constexpr, READ: tl.constexpr, OWN_READ: tl.constexpr,
    ALIGNMENT: tl.constexpr, OWN_ALIGNMENT: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr,
    NEIGHBOURS: tl.constexpr, BLOCK: tl.constexpr, DEVICES: tl.constexpr, CACHED: tl.constexpr,
    OWN_CACHED: tl.constexpr, SLOT_STRIDE: tl.constexpr, OWN_SHARED: tl.constexpr,
    SCALED: tl.constexpr, WEIGHTED: tl.constexpr, HEADS: tl.constexpr,
    HEAD_COLUMNS: tl.constexpr, GROUPS: tl.constexpr, MEAN: tl.constexpr, STACKED: tl.constexpr,
    HAS_OWN: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr, LIST_STEP: tl.constexpr,
):  # fmt: skip
    """One program takes every n-th of the items, each TILE columns of ROWS rows, reading NEIGHBOURS of their neighbours
    at once.

    `accesses` counts reads of a node by variants that touch as many blocks as this one. READ columns of a row may be
    read, a multiple of a lane's read; COLUMNS are wanted.
    """
    dtype: tl.constexpr = values.dtype.element_ty
    ITEM_BYTES: tl.constexpr = dtype.primitive_bitwidth // 8
    blocks_found = tl.full((ROWS, NEIGHBOURS), 0, tl.int32)
    blocks_read = tl.full((ROWS, NEIGHBOURS), 0, tl.int32)
    own_found = tl.full((ROWS,), 0, tl.int32)
    own_read = tl.full((ROWS,), 0, tl.int32)
    offset = tl.arange(0, TILE)
    for item in range(tl.program_id(0), tl.cdiv(rows, ROWS) * (TILES * GROUPS), tl.num_programs(0)):
        row = item // (TILES * GROUPS) * ROWS + tl.arange(0, ROWS)
        begin = item % TILES * TILE
        group = item % (TILES * GROUPS) // TILES  # 0, but for attention that sums the same columns for each head
        inside = row < rows
        node = tl.load(ids + row, mask=inside, other=-1)
        count = tl.load(counts + row, mask=inside, other=0)
        start = tl.load(starts + row, mask=inside, other=0)
        real = node >= 0
        # Blocks and rows are counted by the program that reads their beginning.
        begins_block = (begin % BLOCK == 0).to(tl.int32)
        begins_row = begin == 0
        if GROUPS > 1:
            begins_block *= (group == 0).to(tl.int32)
            begins_row = begins_row & (group == 0)
        # The head of each column.
        head = group
        if HEAD_COLUMNS < COLUMNS:
            head = (begin + offset) // HEAD_COLUMNS

        # Requested before the program waits for the neighbours.
        own = tl.full((ROWS, TILE), 0.0, tl.float32)
        if HAS_OWN:
            own_address, in_cache = locate(
                own_values, own_behind, node, real, begin, directory, pools, nodes, slots_per_device,
                OWN_STRIDE, BLOCK, ITEM_BYTES, OWN_CACHED, DEVICES,
            )  # fmt: skip
            own_slot = tl.full((ROWS,), -1, tl.int32)
            if OWN_SHARED:
                own_slot = tl.load(slots + row, mask=real, other=-1)
                own_address, in_cache = shared_place(
                    own_address, in_cache, copied, own_slot, begin, SLOT_STRIDE, ITEM_BYTES
                )
            own_pointer = tl.multiple_of(own_address.to(tl.pointer_type(dtype)), OWN_ALIGNMENT)
            own_mask = real[:, None] & (begin + offset < OWN_READ)[None, :]
            own_place = own_pointer[:, None] + offset[None, :]
            own = widened(tl.load(own_place, mask=own_mask, other=0, cache_modifier=".cg" if OWN_CACHED else ""))
            if SCALED:
                own *= scale_of(own_scales, own_behind_scales, node, real, nodes)[:, None]
            if OWN_CACHED:
                own_stored = in_table(behind, node, real, nodes)
                own_found += in_cache.to(tl.int32) * begins_block
                own_read += (own_stored & (own_slot < 0)).to(tl.int32) * begins_block
                if begins_row:
                    tl.atomic_add(accesses + node, 1, mask=own_stored, sem="relaxed")

        total = tl.full((ROWS, TILE), 0.0, tl.float32)
        for first in range(0, tl.max(count, axis=0), NEIGHBOURS):
            place = first + tl.arange(0, NEIGHBOURS)[None, :]
            wanted = place < count[:, None]
            neighbour = tl.load(ids + start[:, None] + place, mask=wanted, other=0)
            address, found = locate(
                values, behind, neighbour, wanted, begin, directory, pools, nodes, slots_per_device,
                STRIDE, BLOCK, ITEM_BYTES, CACHED, DEVICES,
            )  # fmt: skip
            if copied is not None:
                slot = tl.load(slots + start[:, None] + place, mask=wanted, other=-1)
                address, found = shared_place(address, found, copied, slot, begin, SLOT_STRIDE, ITEM_BYTES)
            # Hint along both axes: Triton 3.6 gives the columns' axis, once added, the smallest alignment of the
            # others.
            pointer = tl.multiple_of(address.to(tl.pointer_type(dtype)), [ALIGNMENT, ALIGNMENT])
            mask = wanted[:, :, None] & (begin + offset < READ)[None, None, :]
            places = pointer[:, :, None] + offset[None, None, :]
            numbers = widened(tl.load(places, mask=mask, other=0, cache_modifier=".cg" if CACHED else ""))
            if SCALED:
                numbers *= scale_of(scales, behind_scales, neighbour, wanted, nodes)[:, :, None]
            if WEIGHTED:
                numbers *= neighbour_roots(roots, node, neighbour, wanted)[:, :, None]
            if HEADS:
                share = shares + (start[:, None] + place).to(tl.int64) * HEADS
                if HEAD_COLUMNS < COLUMNS:
                    within = wanted[:, :, None] & (begin + offset < COLUMNS)[None, None, :]
                    numbers *= tl.load(share[:, :, None] + head[None, None, :], mask=within, other=0.0)
                else:
                    numbers *= tl.load(share + head, mask=wanted, other=0.0)[:, :, None]
            total += tl.sum(numbers, axis=1)
            if CACHED:
                stored = in_table(behind, neighbour, wanted, nodes)
                blocks_found += found.to(tl.int32) * begins_block
                counted = stored
                if copied is not None:
                    counted = stored & (slot < 0)
                blocks_read += counted.to(tl.int32) * begins_block
                if begins_row:
                    tl.atomic_add(accesses + neighbour, 1, mask=stored, sem="relaxed")
        if WEIGHTED:
            total, own = weighted(roots, indptr, node, real, count, total, own, LIST_STEP)
        if HEADS:
            own_share = own_shares + row.to(tl.int64) * HEADS
            if HEAD_COLUMNS < COLUMNS:
                own_within = real[:, None] & (begin + offset < COLUMNS)[None, :]
                own *= tl.load(own_share[:, None] + head[None, :], mask=own_within, other=0.0)
            else:
                own *= tl.load(own_share + head, mask=real, other=0.0)[:, None]
        store_aggregated(
            out, row * GROUPS + group, begin + offset, inside, real, total, count, own, own_factor, bias,
            COLUMNS, MEAN, STACKED, HAS_OWN, HAS_BIAS, RELU,
        )  # fmt: skip
    if CACHED:
        hits = tl.sum(tl.sum(blocks_found, axis=1), axis=0) + tl.sum(own_found, axis=0)
        reads = tl.sum(tl.sum(blocks_read, axis=1), axis=0) + tl.sum(own_read, axis=0)
        tl.atomic_add(totals, hits.to(tl.int64), sem="relaxed")
        tl.atomic_add(totals + 1, (reads - hits).to(tl.int64), sem="relaxed")
