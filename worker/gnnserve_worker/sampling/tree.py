"""Neighbour sampling for serving: padded trees, uniform without replacement.

At the batch sizes of requests duplicates are rare, so nothing is deduplicated or relabelled: level d is an array
of fixed shape, and the work per node is O(fan-out) whatever its degree. A seed's own layer-1 mean reuses its
hop-1 draw, as PyG does. Training and the full neighbourhood need deduplication: `subgraph.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.sampling.kernels import choose_positions, kernel, scratch_table, stream


@dataclass(frozen=True, slots=True)
class SampledTree:
    """Level 0 are the seeds; level d + 1 holds `fanouts[d]` slots for every slot of level d."""

    fanouts: tuple[int, ...]
    ids: tuple[np.ndarray, ...]
    """Global node ids, int32 [seeds · fanouts[0] ⋯ fanouts[d-1]] for level d; -1 in unused slots."""
    counts: tuple[np.ndarray, ...]
    """Used child slots of each slot, int32, for every level but the last; the used ones come first."""


def sample_tree(
    indptr: np.ndarray, indices: np.ndarray, seeds: np.ndarray, fanouts: tuple[int, ...], key: int, first: int = 0
) -> SampledTree:
    """Sample up to `fanouts[d]` distinct neighbours of every node of level d; all of them where there are fewer.

    `seeds` are node ids in range, any integer dtype. Equal keys give equal trees; a part of a batch, from its seed
    number `first` on, draws what the whole batch would have drawn for it.
    """
    ids = [np.ascontiguousarray(seeds, dtype=np.int32)]
    counts = []
    for depth, fanout in enumerate(fanouts):
        parents = ids[-1]
        children = np.empty(len(parents) * fanout, dtype=np.int32)
        used = np.empty(len(parents), dtype=np.int32)
        positions = np.empty(fanout, dtype=np.int64)
        _sample_level(
            indptr, indices, parents, fanout, key, depth, first, children, used, positions, scratch_table(fanout)
        )  # fmt: skip
        ids.append(children)
        counts.append(used)
        first *= fanout
    return SampledTree(fanouts, tuple(ids), tuple(counts))


@kernel
def _sample_level(
    indptr: np.ndarray, indices: np.ndarray, parents: np.ndarray, fanout: int, key: int, depth: int, first_slot: int,
    children: np.ndarray, used: np.ndarray, positions: np.ndarray, table: np.ndarray,
) -> None:  # fmt: skip
    for slot in range(len(parents)):
        node = parents[slot]
        base = slot * fanout
        count = 0
        if node >= 0:
            first = indptr[node]
            degree = indptr[node + 1] - first
            if degree <= fanout:
                count = degree
                for i in range(count):
                    children[base + i] = indices[first + i]
            else:
                count = fanout
                choose_positions(degree, count, stream(key, depth, first_slot + slot), positions, table)
                for i in range(count):
                    children[base + i] = indices[first + positions[i]]
        used[slot] = count
        for i in range(count, fanout):
            children[base + i] = -1
