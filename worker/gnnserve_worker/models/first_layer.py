"""The linear part of a network's first layer: what ranking, pruning and projecting work on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnserve_worker.tables.gather import Aggregator


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The function: aggregate of the neighbours · `neighbours` + node's features · `own` + `bias`."""

    aggregator: Aggregator
    """How the neighbours are aggregated."""
    neighbours: np.ndarray
    """Weights of the neighbours' aggregate, float32 [columns, outputs]."""
    own: np.ndarray | None
    """Weights of the node's own features, float32 [columns, outputs]. None: one matrix multiplies the sum of both."""
    bias: np.ndarray
    """Bias, float32 [outputs]."""
    own_share: float
    """Factor of the node's own features in that sum: GIN's 1 + ε. Unused where `own` has weights of its own, and by
    attention."""
    averaged_heads: int = 1
    """Number of equal parts of the outputs whose mean the layer writes. The bias is as wide as all parts together."""

    @property
    def columns(self) -> int:
        return len(self.neighbours)

    @property
    def outputs(self) -> int:
        return int(self.neighbours.shape[1])

    def keep(self, columns: np.ndarray) -> FirstLayer:
        """The layer for inputs with the given columns only, in the given order."""
        own = None if self.own is None else self.own[columns]
        return replace(self, neighbours=self.neighbours[columns], own=own)
