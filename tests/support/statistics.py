"""Chi-square tests whose outcome is fixed, since every key is."""

from __future__ import annotations

import numpy as np
from scipy.special import chdtrc

_SIGNIFICANCE = 1e-4
"""A true hypothesis fails once in ten thousand choices of keys, and never for the keys that passed once."""


def p_value_of_uniform(observed: np.ndarray) -> float:
    """How likely counts at least as uneven are when every cell has the same probability."""
    counts = np.asarray(observed, dtype=float).reshape(-1)
    expected = counts.mean()
    assert expected >= 20, "too few draws for the chi-square approximation"
    return float(chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2) / expected))


def is_uniform(observed: np.ndarray) -> bool:
    return p_value_of_uniform(observed) > _SIGNIFICANCE


def joint_counts(first: np.ndarray, second: np.ndarray, values: int) -> np.ndarray:
    """How often each pair occurred; uniform exactly when both are uniform and independent."""
    return np.bincount(first.astype(np.int64) * values + second, minlength=values * values)
