"""Lists of a tree by node: every row reads the list that was drawn of its node where that stands first.

A node may stand in several places of a tree, and draws a list in each. Architectures read each list where it is; a
network of listed layers is right alone where a node is one, as a program is (`programs/numbering.py`). Rows stand hop
by hop: the first row of a node is the nearest to the seeds, and the neighbours in its list have hidden states
wherever another row of the node is read.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import PaddedTree
from gnnserve_worker.gpu.kernels.launch import launch, rows_at_once
from gnnserve_worker.gpu.room import DeviceRoom

_ROWS: Final = 128
"""Rows that a program looks at: four of each lane."""


def by_first_places(tree: PaddedTree, room: DeviceRoom) -> PaddedTree:
    """Make a tree of equal places, each row with the count and beginning of the first list of its node; in the
    room."""
    rows = tree.rows
    sorted_ids, order = room.numbers(rows, torch.int32), room.numbers(rows, torch.int64)
    marks, ranks, firsts = (room.numbers(rows, torch.int32) for _ in range(3))
    counts, starts = room.numbers(rows, torch.int32), room.numbers(rows, torch.int32)
    # Equal nodes stand in the order of their rows.
    torch.sort(tree.ids[:rows], stable=True, out=(sorted_ids, order))
    at_once = rows_at_once(_ROWS, 1)
    programs = triton.cdiv(rows, at_once)
    launch(_mark_first, programs, sorted_ids, marks, rows, ROWS=at_once, num_warps=1)
    torch.cumsum(marks, 0, dtype=torch.int32, out=ranks)
    launch(_list_first, programs, marks, ranks, order, firsts, rows, ROWS=at_once, num_warps=1)
    launch(
        _take_first, programs, ranks, order, firsts, tree.counts, tree.starts, counts, starts, rows, ROWS=at_once,
        num_warps=1,
    )  # fmt: skip
    return PaddedTree(tree.fanouts, tree.ends, tree.ids, counts, starts)


def every_place(tree: PaddedTree, room: DeviceRoom) -> PaddedTree:
    """A tree whose rows are all places of this one, without neighbours: what is gathered of it is a row of each."""
    places: Tensor = tree.ids
    none = room.numbers(len(places), torch.int32)
    none.zero_()
    return PaddedTree((0,), (len(places), len(places)), places, none, none)


@triton.jit(do_not_specialize=["rows"])
def _mark_first(sorted_ids, marks, rows, ROWS: tl.constexpr):
    """Mark the first of each node's rows, in their sorted order."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = at < rows
    node = tl.load(sorted_ids + at, mask=inside, other=-1)
    before = tl.load(sorted_ids + at - 1, mask=inside & (at > 0), other=-1)
    tl.store(marks + at, ((node != before) | (at == 0)).to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _list_first(marks, ranks, order, firsts, rows, ROWS: tl.constexpr):
    """List the first row of each node."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = at < rows
    marked = tl.load(marks + at, mask=inside, other=0) > 0
    rank = tl.load(ranks + at, mask=inside, other=1) - 1
    tl.store(firsts + rank, tl.load(order + at, mask=inside, other=0).to(tl.int32), mask=marked)


@triton.jit(do_not_specialize=["rows"])
def _take_first(ranks, order, firsts, counts, starts, counts_out, starts_out, rows, ROWS: tl.constexpr):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = at < rows
    first = tl.load(firsts + tl.load(ranks + at, mask=inside, other=1) - 1, mask=inside, other=0)
    row = tl.load(order + at, mask=inside, other=0)
    tl.store(counts_out + row, tl.load(counts + first, mask=inside, other=0), mask=inside)
    tl.store(starts_out + row, tl.load(starts + first, mask=inside, other=0), mask=inside)
