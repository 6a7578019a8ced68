"""Neighbour sampling into padded trees: equal, bit for bit, to `sampling/neighbours.py` without shared rows.

There is one launch per hop. A lane of a warp samples a node: it keeps the drawn positions in its registers, so that a
search for duplicates costs one comparison per position in that lane alone, and 32 nodes proceed side by side until the
last of them is complete. Fan-outs beyond 64 take several lanes a node. A node costs O(fan-out) reads whatever its
degree: where its list begins and ends, then all drawn entries, requested at once; so over the link a hop waits twice,
about 1.5 µs each, for as many nodes as fit on the GPU.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnserve_worker.gpu.arrays import PADDING, DeviceGraph, PaddedTree, list_step
from gnnserve_worker.gpu.kernels.launch import INTERPRETED, launch
from gnnserve_worker.gpu.kernels.random import GOLDEN, below, salt_of, stream
from gnnserve_worker.gpu.kernels.rows import list_bounds

_NODES: Final = 4096 if INTERPRETED else 32
"""Most nodes that a program samples: one a lane. The interpreter's cost is per operation, hence its larger number."""
_POSITIONS: Final = 65_536 if INTERPRETED else 2048
"""Positions that a program keeps, unless one node has more: 64 registers of each lane."""
_MOST_WARPS: Final = 8


def sample_tree(
    graph: DeviceGraph, seeds: Tensor, key: Tensor, tree: PaddedTree, positions: Tensor | None = None
) -> None:
    """Fill `tree` with up to `fanouts[d]` distinct neighbours of every node of hop d.

    `seeds`: int64 [tree.seeds], node ids in range; -1: padding. `key`: int64 [1]. Both are read on the device.
    `positions`: int64 [places of the tree], filled with the place of each neighbour in the graph's `indices`; -1 where
    there is none, and seeds have none. None: positions are not named, and the code is compiled without them.
    """
    if seeds.dtype != torch.int64 or seeds.shape != (tree.seeds,) or not seeds.is_contiguous():
        raise ValueError(f"seeds are {seeds.dtype} {list(seeds.shape)}, expected torch.int64 [{tree.seeds}]")
    if key.dtype != torch.int64 or key.numel() != 1:
        raise ValueError(f"key is {key.dtype} {list(key.shape)}, expected torch.int64 [1]")
    if positions is not None:
        if positions.dtype != torch.int64 or positions.shape != tree.ids.shape or not positions.is_contiguous():
            raise ValueError(
                f"positions are {positions.dtype} {list(positions.shape)}, expected torch.int64 {list(tree.ids.shape)}"
            )
        positions[: tree.seeds] = PADDING
    for depth, fanout in enumerate(tree.fanouts):
        begin, end = tree.begin(depth), tree.ends[depth]
        if begin == end:
            break  # nothing was drawn in the hop before
        places = triton.next_power_of_2(max(1, fanout))
        nodes = max(1, min(_NODES, _POSITIONS // places))
        if INTERPRETED:
            nodes = min(nodes, triton.next_power_of_2(end - begin))
        launch(
            _sample_hop, triton.cdiv(end - begin, nodes),
            graph.indptr, graph.indices, seeds, key, tree.ids, tree.counts, positions, begin, end,
            SEEDS=depth == 0, FANOUT=fanout, PLACES=places, NODES=nodes, SALT=salt_of(depth),
            LIST_STEP=list_step(graph.indptr),
            num_warps=min(_MOST_WARPS, max(1, nodes * places // _POSITIONS)),
        )  # fmt: skip


@triton.jit(do_not_specialize=["begin", "end"])
def _sample_hop(
    indptr, indices, seeds, key_pointer, ids, counts, positions, begin, end,
    SEEDS: tl.constexpr, FANOUT: tl.constexpr, PLACES: tl.constexpr, NODES: tl.constexpr, SALT: tl.constexpr,
    LIST_STEP: tl.constexpr,
):  # fmt: skip
    """Sample rows begin … end - 1 of the tree, whose neighbours' places begin at `end`.

    PLACES is the power of two that FANOUT fits in; NODES is a power of two as well. Values per position are [PLACES,
    NODES]: the last axis goes over the lanes.
    """
    row = begin + tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = row < end
    if SEEDS:
        node = tl.load(seeds + row, mask=inside, other=-1).to(tl.int32)
        tl.store(ids + row, node, mask=inside)
    else:
        node = tl.load(ids + row, mask=inside, other=-1)
    real = node >= 0
    bounds = list_bounds(indptr, node, LIST_STEP)
    first = tl.load(bounds, mask=real, other=0)
    degree = (tl.load(bounds + 1, mask=real, other=0) - first).to(tl.int32)
    count = tl.minimum(degree, FANOUT)
    tl.store(counts + row, count, mask=inside)

    place = tl.arange(0, PLACES)[:, None]
    key = tl.load(key_pointer).to(tl.uint64, bitcast=True)
    state = stream(key, SALT, tl.maximum(node, 0))
    drawing = degree > FANOUT
    first_distinct = degree >= (2 * FANOUT if FANOUT <= 64 else 2**31 - 1)
    kept = tl.where(drawing, 0, FANOUT)
    chosen = tl.full((PLACES, NODES), -1, tl.int32)
    # One more draw for every node that has too few: the first distinct ones of its stream, or Floyd's algorithm, which
    # keeps one each time (`sampling.kernels.choose_positions`).
    while tl.min(kept, axis=0) < FANOUT:
        state += GOLDEN
        top = degree - FANOUT + kept
        pick = below(tl.where(first_distinct, degree, top + 1), state)
        seen = tl.max((chosen == pick[None, :]).to(tl.int32), axis=0) > 0
        value = tl.where(seen, top, pick)
        keeps = (kept < FANOUT) & ((seen & first_distinct) == 0)
        chosen = tl.where((place == kept[None, :]) & keeps[None, :], value[None, :], chosen)
        kept += keeps.to(tl.int32)

    position = tl.where(drawing[None, :], chosen, place)
    neighbour = tl.load(indices + first[None, :] + position, mask=place < count[None, :], other=-1)
    own_places = end + (row - begin) * FANOUT
    # Places beyond the fan-out belong to the next row: do not write them.
    tl.store(ids + own_places[None, :] + place, neighbour, mask=(place < FANOUT) & inside[None, :])
    if positions is not None:
        entry = tl.where(place < count[None, :], first[None, :] + position, -1)
        tl.store(positions + own_places[None, :] + place, entry, mask=(place < FANOUT) & inside[None, :])
