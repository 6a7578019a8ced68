"""Net changes of a round for policies that admit every miss: the items that changed an odd number of times."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.caching.policy import NO_CHANGES, ResidencyChanges
from gnnserve_worker.growth import enlarged
from gnnserve_worker.kernel_cache import inlined, kernel


class Toggles:
    def __init__(self, items: int) -> None:
        self.odd = np.zeros(items, dtype=np.bool_)
        self.log = np.empty(64, dtype=np.int64)
        self.count = np.zeros(1, dtype=np.int64)

    def reserve(self, accesses: int) -> None:
        """Make room for the changes of `accesses` reads: each may admit one item and evict one."""
        wanted = int(self.count[0]) + 2 * accesses
        self.log = enlarged(self.log, int(self.count[0]), wanted)

    def take(self, resident: np.ndarray) -> ResidencyChanges:
        if not self.count[0]:
            return NO_CHANGES
        kept = _keep_odd(self.log, self.count, self.odd)
        changed = self.log[:kept].copy()
        is_in = resident[changed]
        return ResidencyChanges(changed[~is_in], changed[is_in])


@inlined
def toggle(item: int, odd: np.ndarray, log: np.ndarray, count: np.ndarray) -> None:
    odd[item] = not odd[item]
    log[count[0]] = item
    count[0] += 1


@kernel
def _keep_odd(log: np.ndarray, count: np.ndarray, odd: np.ndarray) -> int:
    """Move each item that changed an odd number of times to the front of the log, and clear the rest."""
    kept = 0
    for i in range(count[0]):
        item = log[i]
        if odd[item]:
            odd[item] = False
            log[kept] = item
            kept += 1
    count[0] = 0
    return kept
