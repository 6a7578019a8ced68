"""Random ranking: a seeded permutation, the baseline that an informed ranking must beat
(Dynamic GNN inference as-a-service, section 3.2).
"""

from __future__ import annotations

import numpy as np


def rank(columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(columns)
