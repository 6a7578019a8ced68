"""How sure scores are: a temperature, fitted on validation nodes, by which the first stage of a cascade tells it. Pure.

Networks are too sure of themselves, or not enough. One number corrects that (On calibration of modern neural networks,
section 4.2): scores divided by a temperature give the labels the highest likelihood.
"""

from __future__ import annotations

import math

import numpy as np

_TEMPERATURES = (0.05, 20.0)
"""Lowest and highest; reached only where all nodes, or as good as none, are answered right."""
_HALVINGS = 50


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """The temperature at which the labels (int64 [nodes]) are likeliest; scores float32 [nodes, classes]."""
    scores = scores.astype(np.float64)
    true = scores[np.arange(len(labels)), labels].mean()

    def slope(inverse: float) -> float:
        """Derivative of the mean negative log-likelihood by the inverse temperature: it rises with that, everywhere."""
        powers = np.exp(inverse * (scores - scores.max(axis=1, keepdims=True)))
        expected = (powers * scores).sum(axis=1) / powers.sum(axis=1)
        return float(expected.mean() - true)

    low, high = (1 / temperature for temperature in reversed(_TEMPERATURES))
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / math.sqrt(low * high))
