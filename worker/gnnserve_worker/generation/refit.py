"""Pruning of weights that are given and not trained here.

The first layer of a pruned variant keeps the weights of its columns. To these it adds the weights that predict, by
least squares over the nodes that training may see, what the dropped columns contributed to the layer's output. With K
the inputs that are kept and D those that are dropped, both centred:

    W' = W_K + (KᵀK + λI)⁻¹ KᵀD W_D,   b' = b + the dropped columns' mean contribution − what the change of W adds

This is ridge regression of the master's output on K, with a penalty on the distance from the master's weights: where
the data says nothing about a column, its weights stay as they were. It is solved in closed form from `moments.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from gnnserve_worker.generation.moments import Moments
from gnnserve_worker.models.architecture import FirstLayer

RIDGE = 1e-3
"""λ as a share of the mean of KᵀK's diagonal."""
MOST_NODES = 65_536
"""Most nodes that the fit is made over; a sample of this size suffices for thousands of weights."""


def refit(first: FirstLayer, moments: Moments, kept: np.ndarray) -> FirstLayer:
    """Fit a layer over the columns `kept` (ids, in their order) to the output of `first`, which reads all columns."""
    dropped = np.setdiff1d(np.arange(first.columns), kept)
    weights = [first.neighbours] if first.own is None else [first.neighbours, first.own]
    means = [moments.mean_neighbours] if moments.mean_own is None else [moments.mean_neighbours, moments.mean_own]
    of_dropped = np.concatenate([weight[dropped] for weight in weights]).astype(np.float64)
    matrix = _covariances(moments, kept, kept)
    mean_square = float(np.trace(matrix)) / len(matrix)
    matrix[np.diag_indices_from(matrix)] += RIDGE * mean_square if mean_square > 0 else 1.0
    change = scipy.linalg.solve(matrix, _covariances(moments, kept, dropped) @ of_dropped, assume_a="pos")
    bias = first.bias + np.concatenate([mean[dropped] for mean in means]) @ of_dropped
    bias -= np.concatenate([mean[kept] for mean in means]) @ change
    fitted = [weight[kept] + part for weight, part in zip(weights, np.split(change, len(weights)), strict=True)]
    return replace(
        first,
        neighbours=fitted[0].astype(np.float32),
        own=None if first.own is None else fitted[1].astype(np.float32),
        bias=bias.astype(np.float32),
    )


def sample_nodes(nodes: np.ndarray, seed: int) -> np.ndarray:
    """Draw at most `MOST_NODES` of the nodes, ascending."""
    if len(nodes) <= MOST_NODES:
        return nodes
    return np.sort(np.random.default_rng(seed).choice(nodes, MOST_NODES, replace=False))


def _covariances(moments: Moments, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Covariances of the inputs `rows` with the inputs `columns`, float64: of the neighbours first, then of the node
    itself."""
    at = np.ix_(rows, columns)
    if moments.of_own is None or moments.of_both is None:
        covariances: np.ndarray = moments.of_neighbours[at].astype(np.float64)
        return covariances
    crossed = moments.of_both[np.ix_(columns, rows)].T
    blocks = [[moments.of_neighbours[at], crossed], [moments.of_both[at], moments.of_own[at]]]
    return np.block(blocks).astype(np.float64)
