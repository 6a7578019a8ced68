"""Choice of stale rows that are refreshed first (pure)."""

from __future__ import annotations

import numpy as np


def choose(errors: np.ndarray, most: int) -> np.ndarray:
    """Places of the `most` largest of these estimated errors that are above 0, the largest first: int64. `errors`: of
    the rows that are read, each once, float32 [rows]."""
    stale = np.flatnonzero(errors > 0)
    if len(stale) > most:
        stale = stale[np.argpartition(errors[stale], len(stale) - most)[len(stale) - most :]] if most else stale[:0]
    return stale[np.argsort(-errors[stale], kind="stable")]


def within(costs: np.ndarray, most: float) -> np.ndarray:
    """Places of those that fit into a budget one after the other, int64: one that costs more than all of it is passed
    over. `costs`: of each, in order; `most`: the budget, in the same unit."""
    fitting = np.flatnonzero(costs <= most)
    return fitting[np.cumsum(costs[fitting]) <= most]


def beyond(errors: np.ndarray, share: float) -> np.ndarray:
    """Places of the largest of these errors, as many as leave at most that share of their sum, the largest first:
    int64. `share`: of 0 or less nothing is left."""
    order = np.argsort(-errors, kind="stable")
    left = errors.sum(dtype=np.float64) - np.cumsum(errors[order], dtype=np.float64)
    if share <= 0:
        return order
    return order[: int(np.searchsorted(-left, -share * errors.sum(dtype=np.float64))) + 1]
