"""Neighbour sampling that holds every node once: for training, and for the full neighbourhood.

Large batches meet the same nodes again and again, and a full neighbourhood would explode as a tree. Nodes are
numbered in the order of discovery and expanded at their first appearance, as PyG's NeighborSampler does, so one
CSR serves all layers: layer l of L reads the rows of the first `ends[L - l]` nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import choose_positions, scratch_bitmap, scratch_table, stream
from gnnserve_worker.sampling.normalised import inverse_roots


@dataclass(frozen=True, slots=True)
class SubgraphWeights:
    """GCN's weights of the full graph, scaled to the sample (`normalised.py`)."""

    of_neighbours: np.ndarray
    """float32, of each entry of `neighbours`."""
    of_itself: np.ndarray
    """float32, of every node that was expanded."""


@dataclass(frozen=True, slots=True)
class SampledSubgraph:
    nodes: np.ndarray
    """Global id of each local node, int32 [ends[-1]], seeds first."""
    ends: tuple[int, ...]
    """Nodes discovered within d hops of a seed, for d = 0 … layers."""
    indptr: np.ndarray
    """int64 [ends[-2] + 1]: where the sampled neighbours of each expanded node begin in `neighbours`."""
    neighbours: np.ndarray
    """Local ids, int32."""
    seed_rows: np.ndarray
    """Local id of each seed, int32; repeated seeds share a row."""
    weights: SubgraphWeights | None = None
    """Where the sampler weighs neighbours."""


class SubgraphSampler:
    """Keeps one int32 per node of the graph between calls. To be used by one thread at a time."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, *, weighted: bool = False) -> None:
        """`weighted`: subgraphs have the weights of GCN's symmetric normalisation."""
        self._roots = inverse_roots(indptr, indices) if weighted else None
        self._indptr = indptr
        self._indices = indices
        self._local = np.full(len(indptr) - 1, -1, dtype=np.int32)

    def sample(self, seeds: np.ndarray, fanouts: tuple[int, ...], key: int) -> SampledSubgraph:
        """Sample up to `fanouts[d]` distinct neighbours of each node first met at hop d; -1 takes all of them."""
        seed_rows = np.empty(len(seeds), dtype=np.int32)
        nodes = np.empty(len(seeds), dtype=np.int32)
        count = _number_seeds(seeds.astype(np.int32), self._local, nodes, seed_rows)
        nodes = nodes[:count]
        ends, indptr_parts, neighbour_parts = [count], [np.zeros(1, dtype=np.int64)], []
        frontier_start, edges = 0, 0
        for depth, fanout in enumerate(fanouts):
            frontier = nodes[frontier_start:]
            degrees = self._indptr[frontier.astype(np.int64) + 1] - self._indptr[frontier]
            taken = degrees if fanout < 0 else np.minimum(degrees, fanout)
            starts = np.concatenate([[0], np.cumsum(taken)])
            reached = np.concatenate([nodes, np.empty(min(int(starts[-1]), len(self._local)), dtype=np.int32)])
            neighbours = np.empty(int(starts[-1]), dtype=np.int32)
            count = _sample_hop(
                self._indptr, self._indices, frontier, starts,
                key, depth,
                self._local, reached, len(nodes), neighbours,
                np.empty(max(1, fanout), dtype=np.int64), scratch_bitmap(), scratch_table(fanout),
            )  # fmt: skip
            frontier_start = len(nodes)
            nodes = reached[:count]
            ends.append(count)
            indptr_parts.append(starts[1:] + edges)
            edges += len(neighbours)
            neighbour_parts.append(neighbours)
        self._local[nodes] = -1
        indptr, sampled = np.concatenate(indptr_parts), np.concatenate(neighbour_parts)
        weights = None if self._roots is None else self._weigh(self._roots, nodes, indptr, sampled)
        return SampledSubgraph(nodes, tuple(ends), indptr, sampled, seed_rows, weights)

    def _weigh(
        self, roots: np.ndarray, nodes: np.ndarray, indptr: np.ndarray, neighbours: np.ndarray
    ) -> SubgraphWeights:
        expanded = nodes[: len(indptr) - 1].astype(np.int64)
        counts = np.diff(indptr)
        listed = self._indptr[expanded + 1] - self._indptr[expanded]
        factors = roots[expanded] * (listed / np.maximum(counts, 1)).astype(np.float32)
        weights = np.repeat(factors, counts) * roots[nodes[neighbours]]
        # Its own self-loop is weighed apart.
        weights[neighbours == np.repeat(np.arange(len(expanded)), counts)] = 0
        return SubgraphWeights(weights, roots[expanded] ** 2)


@kernel
def _number_seeds(seeds: np.ndarray, local: np.ndarray, nodes: np.ndarray, seed_rows: np.ndarray) -> int:
    count = 0
    for i in range(len(seeds)):
        node = seeds[i]
        if local[node] < 0:
            local[node] = count
            nodes[count] = node
            count += 1
        seed_rows[i] = local[node]
    return count


@kernel
def _sample_hop(
    indptr: np.ndarray, indices: np.ndarray, frontier: np.ndarray, starts: np.ndarray, key: int, depth: int,
    local: np.ndarray, nodes: np.ndarray, count: int, neighbours: np.ndarray,
    positions: np.ndarray, bitmap: np.ndarray, table: np.ndarray,
) -> int:  # fmt: skip
    for i in range(len(frontier)):
        first = indptr[frontier[i]]
        degree = indptr[frontier[i] + 1] - first
        begin = starts[i]
        taken = starts[i + 1] - begin
        if taken < degree:
            choose_positions(degree, taken, stream(key, depth, i), positions, 0, bitmap, table)
        for j in range(taken):
            node = indices[first + (positions[j] if taken < degree else j)]
            if local[node] < 0:
                local[node] = count
                nodes[count] = node
                count += 1
            neighbours[begin + j] = local[node]
    return count
