"""Building a policy by its name."""

from __future__ import annotations

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.fifo import FifoPolicy
from gnnserve_worker.caching.policies.frequency import FrequencyPolicy
from gnnserve_worker.caching.policies.lfu import LfuPolicy
from gnnserve_worker.caching.policies.static import NonePolicy, StaticPolicy
from gnnserve_worker.caching.policy import Policy


def build_policy(name: CachePolicy, items: int, capacity: int, weights: np.ndarray | None = None) -> Policy:
    """Build a policy for items 0 … items − 1, of which `capacity` fit.

    `weights`: how often each item is expected to be read, float32 [items], all at least 0 (`weights.py`). Degree and
    Presampled choose by it; Frequency begins with it, or without any; the others have no use for it.
    """
    if items < 0 or capacity < 0:
        raise ValueError(f"{name}: {items} items and room for {capacity}, expected neither below 0")
    if weights is not None and weights.shape != (items,):
        raise ValueError(f"{name}: weights of shape {weights.shape}, expected ({items},)")
    match name:
        case CachePolicy.FREQUENCY:
            return FrequencyPolicy(items, capacity, weights)
        case CachePolicy.DEGREE | CachePolicy.PRESAMPLED:
            if weights is None:
                raise ValueError(f"{name}: no weights, expected those that it chooses by")
            return StaticPolicy(name, weights, capacity)
        case CachePolicy.FIFO:
            return FifoPolicy(items, capacity)
        case CachePolicy.LFU:
            return LfuPolicy(items, capacity)
        case CachePolicy.NONE:
            return NonePolicy(items)
