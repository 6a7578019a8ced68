"""Features propagated over a graph ahead of time, S^K X with S = D^-1/2 (A + I) D^-1/2: what SGC's tables hold.

S is GCN's normalisation, with exactly one self-loop per node (`sampling/normalised.py`).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import ARCHITECTURES
from gnnserve_worker.sampling.normalised import inverse_roots


def propagated(model: Model, graph: Graph, features: Features) -> Features:
    """What variants of this model read of each node: the features as they are, unless the architecture propagates."""
    hops = model.network(classes=1).hops
    if not ARCHITECTURES[model.architecture].propagates or hops is None:
        return features
    adjacency = _normalised(graph)
    for _ in range(hops):
        features = adjacency @ features
    return features if isinstance(features, np.ndarray) else sp.csr_array(features)


def training_features(model: Model, data: TrainingSet, features: Features, served: Features) -> Features:
    """The same as training may see it: training nodes from the visible part of the graph alone, all others, on which it
    is only judged, as they are `served`."""
    if served is features or data.visible is data.graph:
        return served
    seen = propagated(model, data.visible, features)
    nodes = data.splits.train
    if isinstance(served, np.ndarray) and isinstance(seen, np.ndarray):
        both = served.copy()
        both[nodes] = seen[nodes]
        return both
    rows = np.arange(served.shape[0])
    rows[nodes] += len(rows)
    return sp.csr_array(sp.vstack([served, seen], format="csr")[rows])


def _normalised(graph: Graph) -> sp.csr_array:
    """S, float32 [nodes, nodes]."""
    roots = inverse_roots(graph.indptr, graph.indices)
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    weights = roots[targets] * roots[graph.indices] * (graph.indices != targets)
    adjacency = sp.csr_array((weights, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    return sp.csr_array(adjacency + sp.diags_array(roots**2))
