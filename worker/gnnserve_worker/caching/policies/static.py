"""Static policies: they choose once, the items with the greatest weights or none."""

from __future__ import annotations

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policy import NO_CHANGES, NO_ITEMS, ResidencyChanges
from gnnserve_worker.kernel_cache import kernel


class StaticPolicy:
    """Degree (PaGraph) and Presampled (GNNLab), which differ only in where their weights come from."""

    def __init__(self, name: CachePolicy, weights: np.ndarray, capacity: int) -> None:
        self.name = name
        self.capacity = min(capacity, len(weights))
        self.resident = np.zeros(len(weights), dtype=np.bool_)
        self._weights = weights

    def begin(self) -> np.ndarray:
        chosen = heaviest(self._weights, self.capacity)
        self.resident[chosen] = True
        return chosen

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        return count_hits(self.resident, items, times)

    def end_round(self) -> ResidencyChanges:
        return NO_CHANGES


class NonePolicy:
    """Keeps nothing."""

    name = CachePolicy.NONE
    capacity = 0

    def __init__(self, items: int) -> None:
        self.resident = np.zeros(items, dtype=np.bool_)

    def begin(self) -> np.ndarray:
        return NO_ITEMS

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        return 0

    def end_round(self) -> ResidencyChanges:
        return NO_CHANGES


def heaviest(weights: np.ndarray, count: int) -> np.ndarray:
    """The `count` items with the greatest weights, int64, greatest first; of equal weights the lower item."""
    if count == 0:
        return NO_ITEMS
    # Partition first: sorting millions of weights takes ten times as long.
    border = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > border)
    equal = np.flatnonzero(weights == border)[: count - len(above)]
    chosen = np.concatenate([above, equal])
    return chosen[np.lexsort((chosen, -weights[chosen]))].astype(np.int64)


def count_hits(resident: np.ndarray, items: np.ndarray, times: np.ndarray | None) -> int:
    return _hits(resident, items) if times is None else _weighted_hits(resident, items, times)


@kernel
def _hits(resident: np.ndarray, items: np.ndarray) -> int:
    hits = 0
    for item in items:
        hits += resident[item]
    return hits


@kernel
def _weighted_hits(resident: np.ndarray, items: np.ndarray, times: np.ndarray) -> int:
    hits = 0
    for i in range(len(items)):
        if resident[items[i]]:
            hits += times[i]
    return hits
