"""Lasso ranking: which columns can be shrunk to nothing while the first layer's output stays (paper A, A5).

With the master frozen, over one factor β_j per column, on training nodes only and without the non-linearity:

    minimise ‖A¹X⁰W¹ − A¹(β⊙X⁰)W¹‖² + λ‖β‖₁,   β = 1 at first, λ rising by a constant every epoch

The residual is linear in γ = 1 − β, so the first term is γᵀGγ for one columns × columns matrix G, computed once;
every gradient step is then one small product, exact over all training nodes. GraphSAGE's output is a sum of two
such terms, neighbours' mean and the node itself, and G contains their cross terms.

What the paper leaves open, decided here: outputs are centred over the training nodes, since a retrained bias absorbs
what is constant, and the constant part of sparse non-negative features would drown the rest; the loss is divided by
its value at β = 0; steps are proximal (soft
thresholding), which reaches exact zeros; λ is in permille of the smallest one for which β = 0 is optimal. As λ
rises, columns leave for good; the ranking is by how long a column stays, then by its last |β|, since at the end
of a long path every |β| is noise (SPEC A.5, 13).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from gnnserve_api.errors import InputError
from gnnserve_api.gnnservice import LassoSettings
from gnnserve_worker.generation.networks import first_layer_weights
from gnnserve_worker.generation.train import TrainingSet
from gnnserve_worker.graph.store import Features

MAX_COLUMNS = 16_384
"""G takes 4 bytes per pair of columns: 1 GiB here."""
_CHUNK_ROWS = 2048


def gram(master: Any, features: Features, data: TrainingSet) -> torch.Tensor:
    """G, float32 [columns, columns], centred, over all training nodes and their visible neighbours."""
    columns = features.shape[1]
    if columns > MAX_COLUMNS:
        raise InputError(
            "spec.variants.pruning.method",
            f"is Lasso, but the graph has {columns:,} feature columns and Lasso handles up to {MAX_COLUMNS:,}",
            "use Greedy",
        )
    neighbours, own = first_layer_weights(master)
    shared = own is neighbours  # GIN: one matrix for the sum of both inputs
    adjacency = _training_rows(data, mean=not shared)
    of_neighbours, of_own, of_both = (torch.zeros(columns, columns) for _ in range(3))
    neighbour_sum, own_sum = torch.zeros(columns), torch.zeros(columns)
    for start in range(0, len(data.splits.train), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        aggregated = _dense(adjacency[rows] @ features)
        itself = _dense(features[data.splits.train[rows]])
        if shared:
            aggregated += itself
        else:
            of_own.addmm_(itself.T, itself)
            of_both.addmm_(itself.T, aggregated)
        of_neighbours.addmm_(aggregated.T, aggregated)
        neighbour_sum += aggregated.sum(dim=0)
        own_sum += itself.sum(dim=0)
    nodes = len(data.splits.train)
    of_neighbours -= torch.outer(neighbour_sum, neighbour_sum) / nodes
    matrix = of_neighbours * (neighbours @ neighbours.T)
    if not shared:
        of_own -= torch.outer(own_sum, own_sum) / nodes
        of_both -= torch.outer(own_sum, neighbour_sum) / nodes
        cross = of_both * (own @ neighbours.T)
        matrix += of_own * (own @ own.T) + cross + cross.T
    return matrix


def _training_rows(data: TrainingSet, *, mean: bool) -> sp.csr_array:
    """A¹ of the training nodes: float32 [training nodes, nodes]."""
    graph = data.visible
    ones = np.ones(graph.edges, dtype=np.float32)
    adjacency = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))[data.splits.train]
    if mean:
        degrees = np.maximum(np.diff(adjacency.indptr), 1).astype(np.float32)
        adjacency = sp.csr_array(sp.diags_array(1.0 / degrees) @ adjacency)
    return adjacency


def rank(gram_matrix: torch.Tensor, settings: LassoSettings) -> np.ndarray:
    """int64 permutation, most important first. `gram_matrix` is G, symmetric and positive semidefinite."""
    columns = len(gram_matrix)
    ones = torch.ones(columns)
    scale = float(ones @ gram_matrix @ ones)
    if scale <= 0:
        return np.arange(columns)  # the first layer's output is 0: no column matters
    matrix = gram_matrix * (2.0 / scale)
    step = 1.0 / _largest_eigenvalue(matrix)
    penalty_limit = float((matrix @ ones).abs().max())
    beta = ones.clone()
    last_alive = torch.zeros(columns)
    last_size = torch.zeros(columns)
    for epoch in range(settings.epochs):
        penalty = penalty_limit * (settings.initial_penalty_permille + epoch * settings.penalty_step_permille) / 1000
        for _ in range(settings.steps_per_epoch):
            moved = beta + step * (matrix @ (1.0 - beta))
            beta = torch.sign(moved) * torch.clamp(moved.abs() - step * penalty, min=0.0)
        alive = beta != 0
        last_alive[alive] = epoch + 1
        last_size[alive] = beta[alive].abs()
    return np.lexsort((-last_size.numpy(), -last_alive.numpy()))


def _largest_eigenvalue(matrix: torch.Tensor) -> float:
    """By power iteration; a little above is safe, since it only shortens the steps."""
    vector = torch.ones(len(matrix)) / len(matrix) ** 0.5
    for _ in range(50):
        product = matrix @ vector
        norm = float(product.norm())
        if norm == 0:
            return 1.0
        vector = product / norm
    return 1.05 * norm


def _dense(rows: Features) -> torch.Tensor:
    return torch.from_numpy(
        np.ascontiguousarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=np.float32)
    )
