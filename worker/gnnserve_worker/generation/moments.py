"""Second moments of what the first layer reads: its inputs' covariances over some nodes, without the 1/n; and layers
without some of these inputs, fitted by them.

The output of a linear layer over any choice and scaling of columns follows from them, so that ranking by Lasso and
refitting a pruned layer are small dense problems, whatever the graph's size.

Weights that are given, and not trained here, are pruned so: the first layer of a pruned variant keeps the weights of
its columns. To these it adds the weights that predict, by least squares over the nodes that training may see, what the
dropped columns contributed to the layer's output. With K the inputs that are kept and D those that are dropped, both
centred:

    W' = W_K + (KᵀK + λI)⁻¹ KᵀD W_D,   b' = b + the dropped columns' mean contribution − what the change of W adds

This is ridge regression of the master's output on K, with a penalty on the distance from the master's weights: where
the data says nothing about a column, its weights stay as they were. It is solved in closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.architecture import FirstLayer
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.table import Aggregator

# --- moments


MAX_COLUMNS = 16_384
"""Most columns that moments are computed for. A matrix takes 4 bytes per pair of columns, 1 GiB at this limit."""
_CHUNK_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of N, the aggregate of the neighbours, and X, the node itself, each [nodes, columns] and centred over the
    nodes.

    Where the layer has one matrix for both (as GIN has), N is their sum and there is no X.
    """

    of_neighbours: np.ndarray
    """NᵀN, float32 [columns, columns]."""
    of_own: np.ndarray | None
    """XᵀX, float32 [columns, columns]; None where there is no X."""
    of_both: np.ndarray | None
    """XᵀN, float32 [columns, columns]; None where there is no X."""
    mean_neighbours: np.ndarray
    """Mean of N before it was centred, float64 [columns]."""
    mean_own: np.ndarray | None
    """Mean of X before it was centred, float64 [columns]; None where there is no X."""


def first_layer_moments(first: FirstLayer, features: Features, graph: Graph, nodes: np.ndarray) -> Moments:
    """Compute the moments over `nodes` (ids, at least one) and their neighbours in `graph`.

    Features may have at most `MAX_COLUMNS` columns.
    """
    columns = features.shape[1]
    shared = first.own is None
    own_share = np.float32(_own_share(first))
    adjacency = aggregation_of(graph, nodes, first.aggregator)
    of_neighbours, of_own, of_both = (np.zeros((columns, columns), dtype=np.float32) for _ in range(3))
    product = np.empty_like(of_neighbours)
    neighbour_sum, own_sum = np.zeros(columns), np.zeros(columns)
    for start in range(0, len(nodes), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        aggregated = _dense(adjacency[rows] @ features)
        itself = _dense(features[nodes[rows]])
        if shared:
            aggregated = aggregated + own_share * itself
        else:
            of_own += np.matmul(itself.T, itself, out=product)
            of_both += np.matmul(itself.T, aggregated, out=product)
            own_sum += itself.sum(axis=0, dtype=np.float64)
        of_neighbours += np.matmul(aggregated.T, aggregated, out=product)
        neighbour_sum += aggregated.sum(axis=0, dtype=np.float64)
    count = len(nodes)
    of_neighbours -= np.outer(neighbour_sum, neighbour_sum / count)
    if shared:
        return Moments(of_neighbours, None, None, neighbour_sum / count, None)
    of_own -= np.outer(own_sum, own_sum / count)
    of_both -= np.outer(own_sum, neighbour_sum / count)
    return Moments(of_neighbours, of_own, of_both, neighbour_sum / count, own_sum / count)


def _own_share(first: FirstLayer) -> float:
    """Weight of the node's own features that is added to its row of `aggregation_of`."""
    match first.aggregator:
        case Aggregator.MEAN | Aggregator.SUM | Aggregator.NONE:
            return first.own_share
        case Aggregator.NORMALISED_SUM | Aggregator.ATTENTION:
            return 0.0  # its self-loop is one of the edges
        case _:
            assert_never(first.aggregator)


def aggregation_of(graph: Graph, nodes: np.ndarray, aggregator: Aggregator) -> sp.csr_array:
    """How neighbours are aggregated for `nodes`: float32 [given nodes, all nodes]."""
    ones = np.ones(graph.edges, dtype=np.float32)
    adjacency = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))[nodes]
    match aggregator:
        case Aggregator.MEAN:
            degrees = np.maximum(np.diff(adjacency.indptr), 1).astype(np.float32)
            return sp.csr_array(sp.diags_array(1.0 / degrees) @ adjacency)
        case Aggregator.SUM:
            return adjacency
        case Aggregator.NONE:
            return sp.csr_array(adjacency.shape, dtype=np.float32)
        case Aggregator.NORMALISED_SUM:
            roots = inverse_roots(graph.indptr, graph.indices)
            targets = np.repeat(nodes, np.diff(adjacency.indptr))
            adjacency.data = roots[targets] * roots[adjacency.indices] * (adjacency.indices != targets)
            return _with_self_loops(adjacency, nodes, roots[nodes] ** 2)
        case Aggregator.ATTENTION:
            # Attention weights are learnt per head. Here every neighbour and the node itself have the same weight.
            targets = np.repeat(nodes, np.diff(adjacency.indptr))
            adjacency.data = (adjacency.indices != targets).astype(np.float32)
            counts = np.asarray(adjacency.sum(axis=1)) + np.float32(1.0)
            both = _with_self_loops(adjacency, nodes, np.ones(len(nodes), dtype=np.float32))
            return sp.csr_array(sp.diags_array((1.0 / counts).astype(np.float32)) @ both)
        case _:
            assert_never(aggregator)


def _with_self_loops(adjacency: sp.csr_array, nodes: np.ndarray, weights: np.ndarray) -> sp.csr_array:
    loops = sp.csr_array((weights, nodes, np.arange(len(nodes) + 1)), shape=adjacency.shape, dtype=np.float32)
    return adjacency + loops


def _dense(rows: Features) -> np.ndarray:
    return np.ascontiguousarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=np.float32)


# --- what several matrices add up


@dataclass(frozen=True, slots=True)
class SumMoments:
    """Moments of rows whose products are added up. Inputs: columns of all rows, one matrix behind the other."""

    weights: np.ndarray
    """Matrices of all rows below each other, float64 [inputs, outputs]."""
    starts: np.ndarray
    """Where the inputs of each matrix begin, and where the last ones end: int64 [matrices + 1]."""
    moments: np.ndarray
    """float64 [inputs, inputs], centred where there is a bias."""
    mean: np.ndarray
    """float64 [inputs]; 0 where there is no bias."""

    @staticmethod
    def of(matrices: Sequence[np.ndarray], blocks: Iterable[np.ndarray], *, has_bias: bool) -> SumMoments:
        """`matrices`: [columns, outputs] each; `blocks`: rows of all beside each other, float32, that add up to
        [nodes, inputs]."""
        weights, starts = np.concatenate(matrices).astype(np.float64), np.cumsum([0, *map(len, matrices)])
        moments, total, count = np.zeros((len(weights), len(weights))), np.zeros(len(weights)), 0
        for rows in blocks:
            moments += rows.T @ rows
            total += rows.sum(axis=0, dtype=np.float64)
            count += len(rows)
        mean = total / max(1, count) if has_bias else np.zeros(len(weights))
        moments -= np.outer(mean, total)
        return SumMoments(weights, starts, moments, mean)

    def gram(self, matrices: Sequence[int], width: int) -> np.ndarray:
        """As `ranking.gram_of`, of the columns that these matrices (places) share: float64 [width, width]."""
        places = [slice(int(self.starts[one]), int(self.starts[one]) + width) for one in matrices]
        products = (self.moments[a, b] * (self.weights[a] @ self.weights[b].T) for a in places for b in places)
        return sum(products, np.zeros((width, width)))

    def fitted(self, kept: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Each matrix for the columns (ids) that are kept of its rows, and what is added to the bias."""
        own = [start + ids for start, ids in zip(self.starts, kept, strict=False)]
        left = np.concatenate(own)
        gone = np.setdiff1d(np.arange(len(self.weights)), left)
        dropped = self.weights[gone]
        change = standing_in(self.moments[np.ix_(left, left)], self.moments[np.ix_(left, gone)], dropped)
        added = self.mean[gone] @ dropped - self.mean[left] @ change
        ends = np.cumsum([len(each) for each in own])[:-1]
        return np.split((self.weights[left] + change).astype(np.float32), ends), added.astype(np.float32)


def in_chunks(nodes: np.ndarray) -> Iterator[np.ndarray]:
    """Some of the nodes at a time."""
    return (nodes[start : start + _CHUNK_ROWS] for start in range(0, len(nodes), _CHUNK_ROWS))


# --- layers that are fitted by them


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
    change = standing_in(_covariances(moments, kept, kept), _covariances(moments, kept, dropped), of_dropped)
    bias = first.bias + np.concatenate([mean[dropped] for mean in means]) @ of_dropped
    bias -= np.concatenate([mean[kept] for mean in means]) @ change
    fitted = [weight[kept] + part for weight, part in zip(weights, np.split(change, len(weights)), strict=True)]
    return replace(
        first,
        neighbours=fitted[0].astype(np.float32),
        own=None if first.own is None else fitted[1].astype(np.float32),
        bias=bias.astype(np.float32),
    )


def standing_in(of_kept: np.ndarray, of_both: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """What is added to the weights of inputs that are kept, float64 [kept, outputs]. `of_kept`: their covariances.
    `of_both`: theirs with those that are dropped, [kept, dropped]. `dropped`: weights of the latter."""
    matrix = of_kept.copy()
    mean_square = float(np.trace(matrix)) / len(matrix)
    matrix[np.diag_indices_from(matrix)] += RIDGE * mean_square if mean_square > 0 else 1.0
    change: np.ndarray = scipy.linalg.solve(matrix, of_both @ dropped, assume_a="pos")
    return change


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
