"""Shadows: answers that were given are computed again by the most accurate variant, to tell how often both agree.

One answer at a time is kept, when there is time for another: between two of them nothing is copied. The share of the
worker's time that this may take is the routing table's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.inference.served import ServedRevision


@dataclass(frozen=True, slots=True)
class Sample:
    """Nodes of an answer, and what was decided of them."""

    variant: str
    """The variant that answered."""
    nodes: np.ndarray
    """int64, positions in the graph."""
    decided: np.ndarray
    """int64 [nodes], or uint8 [nodes, classes] where nodes may have several labels."""


class Shadows:
    def __init__(self) -> None:
        self.permille = 0
        """Most of the time, in permille, that they may take; 0: none are made."""
        self.sample: Sample | None = None
        """The answer that is to be computed again."""

    @property
    def wants_answer(self) -> bool:
        return self.permille > 0 and self.sample is None

    def take(self, revision: ServedRevision, variant: str, nodes: np.ndarray, scores: np.ndarray) -> None:
        """Keep an answer's nodes and what was decided of them, by copies."""
        self.sample = Sample(variant, nodes.copy(), revision.task.labels.decide(variant, scores))
