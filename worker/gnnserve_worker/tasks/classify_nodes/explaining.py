"""Scores of a node as they are explained: by the class that has the highest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.protocol import Label
from gnnserve_worker.tasks.served import ScoredNodes


@dataclass(frozen=True, slots=True)
class ClassScores:
    classes: Classes
    multi_label: bool
    decisive_scores: Callable[[str, np.ndarray], np.ndarray]
    """Scores of a variant as labels are decided by them."""

    def column_of(self, answer: ScoredNodes) -> int:
        return int(self.decisive_scores(answer.variant, answer.scores)[0].argmax())

    def class_of(self, column: int) -> Label:
        return self.classes[column]

    def probability(self, answer: ScoredNodes, column: int) -> float:
        scores = answer.scores[0].astype(np.float64)
        if self.multi_label:
            return float(1 / (1 + np.exp(-scores[column])))
        shifted = np.exp(scores - scores.max())
        return float(shifted[column] / shifted.sum())
