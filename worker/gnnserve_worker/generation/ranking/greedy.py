"""Greedy ranking: by the first layer's absolute weights (paper A, A4).

    score_j = Σ_o |W¹[j, o]|, descending

GraphSAGE has two first-layer matrices, of the node itself and of its neighbours; both count. The method never
looks at the features, so a column with large values and small weights is underrated.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from gnnserve_worker.generation.networks import first_layer_weights


def rank(master: nn.Module) -> np.ndarray:
    neighbours, own = first_layer_weights(master)
    scores = neighbours.abs().sum(dim=1)
    if own is not neighbours:
        scores = scores + own.abs().sum(dim=1)
    return np.argsort(-scores.numpy(), kind="stable")
