"""The linear part of a network's first layer: what ranking, pruning and projecting work on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnserve_worker.tables.gather import Aggregator


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """aggregate of the neighbours · `neighbours` + node · `own` + `bias`."""

    aggregator: Aggregator
    """How the neighbours are aggregated."""
    neighbours: np.ndarray
    """float32 [columns, outputs]."""
    own: np.ndarray | None
    """float32 [columns, outputs]. None: there is one matrix for the sum of both inputs."""
    bias: np.ndarray
    """float32 [outputs]."""
    own_share: float
    """Factor of the node's own features in that sum: GIN's 1 + ε. Unused where `own` has weights of its own, and by
    attention."""
    averaged_heads: int = 1
    """Parts of the outputs, beside each other, whose mean the layer writes; the bias is as wide as the outputs."""

    @property
    def columns(self) -> int:
        return len(self.neighbours)

    @property
    def outputs(self) -> int:
        return int(self.neighbours.shape[1])

    def keep(self, columns: np.ndarray) -> FirstLayer:
        """For inputs with the given columns, in the given order."""
        own = None if self.own is None else self.own[columns]
        return replace(self, neighbours=self.neighbours[columns], own=own)
