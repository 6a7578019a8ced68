"""Pruning of weights that are given and not trained here.

The first layer of a pruned variant keeps the weights of its columns and adds what they can tell of the columns that are
gone: over the nodes that training may see, the least-squares prediction of what the dropped columns contributed to the
layer's output. With K the inputs that are kept, D those that are dropped, centred:

    W' = W_K + (KᵀK + λI)⁻¹ KᵀD W_D,   b' = b + the dropped columns' mean contribution − what the change of W adds

which is the least-squares fit of the master's output by a layer over K, drawn by λ towards the master's own weights:
where a graph tells nothing about a column, its weights stay as they were. Closed form, from `moments.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from gnnserve_worker.generation.moments import Moments
from gnnserve_worker.models.first_layer import FirstLayer

RIDGE = 1e-3
"""λ, as a share of the kept inputs' mean square."""
MOST_NODES = 65_536
"""Whose inputs are looked at; a sample of so many tells thousands of weights apart."""


def refit(first: FirstLayer, moments: Moments, kept: np.ndarray) -> FirstLayer:
    """The layer over the columns `kept` (ids, in their order) whose output is nearest to that of `first` over all."""
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
    """At most `MOST_NODES` of them, ascending."""
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
