"""Greedy ranking: by the first layer's absolute weights (Dynamic GNN inference as-a-service, section 3.2).

    score_j = Σ_o |W¹[j, o]|, descending

GraphSAGE has two first-layer matrices, of the node itself and of its neighbours; both count. The method never
looks at the features, so a column with large values and small weights is underrated.
"""

from __future__ import annotations

import numpy as np

from gnnserve_worker.models.first_layer import FirstLayer


def rank(first: FirstLayer) -> np.ndarray:
    scores = np.abs(first.neighbours).sum(axis=1)
    if first.own is not None:
        scores = scores + np.abs(first.own).sum(axis=1)
    return np.argsort(-scores, kind="stable")
