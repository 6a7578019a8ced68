"""First in, first out (BGL's, without its reordering of requests): every miss is admitted, the oldest goes."""

from __future__ import annotations

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.toggles import Toggles, toggle
from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.kernel_cache import kernel


class FifoPolicy:
    name = CachePolicy.FIFO

    def __init__(self, items: int, capacity: int) -> None:
        self.capacity = min(capacity, items)
        self.resident = np.zeros(items, dtype=np.bool_)
        self._ring = np.full(max(1, self.capacity), -1, dtype=np.int64)
        """Resident items in the order of admission; -1 in places not used yet."""
        self._oldest = np.zeros(1, dtype=np.int64)
        self._toggles = Toggles(items)

    def begin(self) -> np.ndarray:
        return NO_ITEMS

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        if not self.capacity:
            return 0
        toggles = self._toggles
        toggles.reserve(len(items))
        return _access(
            items, ONCE if times is None else times, self.resident, self._ring, self._oldest,
            toggles.odd, toggles.log, toggles.count,
        )  # fmt: skip

    def end_round(self) -> ResidencyChanges:
        return self._toggles.take(self.resident)


ONCE = np.empty(0, dtype=np.int32)
"""Stands for `times` where each item was read once."""


@kernel
def _access(
    items: np.ndarray, times: np.ndarray, resident: np.ndarray, ring: np.ndarray, oldest: np.ndarray,
    odd: np.ndarray, log: np.ndarray, count: np.ndarray,
) -> int:  # fmt: skip
    hits = 0
    place = oldest[0]
    for i in range(len(items)):
        item = items[i]
        repeats = times[i] if len(times) else 1
        if repeats < 1:
            continue
        if resident[item]:
            hits += repeats
            continue
        hits += repeats - 1
        if ring[place] >= 0:
            resident[ring[place]] = False
            toggle(ring[place], odd, log, count)
        ring[place] = item
        resident[item] = True
        toggle(item, odd, log, count)
        place += 1
        if place == len(ring):
            place = 0
    oldest[0] = place
    return hits
