"""How good scores are: accuracy, or F1-micro for multi-label graphs (Dynamic GNN inference as-a-service, section 4)."""

from __future__ import annotations

import numpy as np

from gnnserve_api.profile import Metric


def metric_of(multi_label: bool) -> Metric:
    return "f1Micro" if multi_label else "accuracy"


def evaluate(scores: np.ndarray, labels: np.ndarray) -> float:
    """A fraction of 1. `scores` float32 [nodes, classes] before softmax or sigmoid; `labels` int64 [nodes] for
    accuracy, uint8 [nodes, classes] for F1-micro, where a class counts as predicted above 0."""
    if labels.ndim == 1:
        return float(np.mean(scores.argmax(axis=1) == labels))
    predicted = scores > 0
    true = labels != 0
    hits = int(np.count_nonzero(predicted & true))
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(true))
    return 2 * hits / total if total else 1.0
