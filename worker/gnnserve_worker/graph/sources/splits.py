"""The split of graphs without one of their own: 60/20/20 by a fixed permutation of the nodes that have a label."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.graph.store import Splits


def random_splits(known: np.ndarray) -> Splits:
    """Split the nodes that have a label (`known`, bool [nodes]). The same graph is split the same way at every import.

    With fewer than three such nodes there are no validation nodes.
    """
    nodes = np.flatnonzero(known).astype(np.int64)
    order = nodes[np.random.default_rng(0).permutation(len(nodes))]
    train, validation = int(0.6 * len(nodes)), int(0.8 * len(nodes))
    return Splits(np.sort(order[:train]), np.sort(order[train:validation]), np.sort(order[validation:]))
