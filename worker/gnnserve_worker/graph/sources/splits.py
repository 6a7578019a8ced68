"""The split of graphs that come without one: 60/20/20 by a fixed permutation of the nodes that have a label."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.graph.store import Splits


def random_splits(known: np.ndarray) -> Splits:
    """`known` bool [nodes]: which have a label. The same graph is split the same way at every import.

    With fewer than three such nodes the validation nodes are empty.
    """
    nodes = np.flatnonzero(known).astype(np.int64)
    order = nodes[np.random.default_rng(0).permutation(len(nodes))]
    train, validation = int(0.6 * len(nodes)), int(0.8 * len(nodes))
    return Splits(np.sort(order[:train]), np.sort(order[train:validation]), np.sort(order[validation:]))
