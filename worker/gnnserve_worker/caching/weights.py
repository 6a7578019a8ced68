"""Expected reads of each node: static policies choose by them, and Frequency begins with them."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours

_BATCH = 256
"""Seeds per batch of a trial run."""


def degree_weights(indices: np.ndarray, nodes: int) -> np.ndarray:
    """Number of neighbour lists that name each node, float32 [nodes] (PaGraph's static cache)."""
    return np.bincount(indices, minlength=nodes).astype(np.float32)


def presampled_weights(
    indptr: np.ndarray, indices: np.ndarray, seeds: np.ndarray, fanouts: tuple[int, ...], key: int
) -> np.ndarray:
    """How often a trial run from `seeds` reads each node, float32 [nodes] (GNNLab's pre-sampling)."""
    counts = np.zeros(len(indptr) - 1, dtype=np.int64)
    scratch = Scratch()
    for number, start in enumerate(range(0, len(seeds), _BATCH)):
        batch = np.ascontiguousarray(seeds[start : start + _BATCH], dtype=np.int64)
        sample = sample_neighbours(indptr, indices, batch, fanouts, key + number, scratch, share=False)
        _count(sample.nodes, counts)
        _count(sample.neighbours, counts)
    return counts.astype(np.float32)


def expected_weights(indptr: np.ndarray, indices: np.ndarray, fanouts: tuple[int, ...]) -> np.ndarray:
    """The mean of `presampled_weights` over all seeds, exactly, in one pass over the edges per hop.

    float32 [nodes]: reads per seed. A list of d nodes passes on min(1, fan-out / d) to each of them.
    """
    nodes = len(indptr) - 1
    rows = np.full(nodes, 1 / max(1, nodes))
    total = np.zeros(nodes)
    for fanout in fanouts:
        drawn = np.zeros(nodes)
        _pass_on(indptr, indices, fanout, rows, drawn)
        # A row is read for the node itself, and every neighbour that it draws is read too.
        total += rows + drawn
        rows = drawn
    return total.astype(np.float32)


@kernel
def _count(nodes: np.ndarray, counts: np.ndarray) -> None:
    for node in nodes:
        counts[node] += 1


@kernel
def _pass_on(indptr: np.ndarray, indices: np.ndarray, fanout: int, rows: np.ndarray, drawn: np.ndarray) -> None:
    for node in range(len(indptr) - 1):
        degree = indptr[node + 1] - indptr[node]
        if degree == 0:
            continue
        share = rows[node] if fanout < 0 or fanout >= degree else rows[node] * fanout / degree
        for edge in range(indptr[node], indptr[node + 1]):
            drawn[indices[edge]] += share
