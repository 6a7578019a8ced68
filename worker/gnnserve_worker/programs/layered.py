"""Inputs by layer, as a program that `gnnserve export` wrote takes them: rows, and of each layer edges and targets."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.programs.numbering import first_leaf_of, sources_of
from gnnserve_worker.sampling.neighbours import NeighbourSample

ROWS, OWN_ROWS = "rows", "own_rows"
"""Inputs of the first layer alone."""
EDGES, TARGETS, EDGE_WEIGHTS, OWN_WEIGHTS = "edges", "targets", "edge_weights", "own_weights"
"""Inputs of a layer; behind each stand `_` and the layer's number, the first being 1."""
SCORES, EMBEDDINGS = "scores", "embeddings"


def nodes_and_leaves(sample: NeighbourSample) -> np.ndarray:
    """Names of the nodes that the first layer reads: of the sample's rows, and of its leaves one for each edge."""
    return np.concatenate([sample.nodes, sample.neighbours[first_leaf_of(sample) :]])


def targets_of_layer(sample: NeighbourSample, number: int) -> int:
    """Rows that the layer of this number writes: the first one writes all rows of the sample."""
    return sample.ends[len(sample.ends) - number]


def edges_of_layer(sample: NeighbourSample, number: int) -> np.ndarray:
    """Where each edge's source is in what the layer reads, and the number of its target: int64 [2, edges]."""
    count = targets_of_layer(sample, number)
    targets = np.repeat(np.arange(count), np.diff(sample.starts[: count + 1]))
    return np.stack([sources_of(sample)[: len(targets)], targets])


def counted_edges(sample: NeighbourSample, edges: np.ndarray) -> np.ndarray:
    """Whether each edge comes from another node than the one that reads it."""
    other: np.ndarray = sample.neighbours[: edges.shape[1]] != sample.nodes[edges[1]]
    return other
