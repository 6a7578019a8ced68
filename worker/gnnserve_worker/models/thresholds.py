"""From scores to labels: what is taken from the score of each class before anything is decided.

A node has the classes that are above 0 then; of classes that exclude each other, the highest. How thresholds are chosen
is `tasks/classify_nodes/thresholds.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def decisive_scores(scores: np.ndarray, thresholds: Sequence[float] | np.ndarray | None) -> np.ndarray:
    """float32 [nodes, classes]: the scores, less the threshold of each class. None: as they are."""
    if thresholds is None:
        return scores
    less: np.ndarray = scores - np.asarray(thresholds, dtype=np.float32)
    return less
