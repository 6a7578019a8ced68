"""Scaling of dense features by the norms of their rows: before training, and for nodes that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from gnnserve_api.spec.graph import Normalization

ROW_NORMS: Mapping[Normalization, Literal[1, 2]] = {
    Normalization.ROW_NORMALIZE: 1,
    Normalization.L2_ROW_NORMALIZE: 2,
}
"""Order of the norm by which a row is divided, for the methods that divide rows."""


def divide_by_norms(rows: np.ndarray, order: Literal[1, 2]) -> np.ndarray:
    """Each row divided by its norm, float32; a row of zeros stays. Computed in float64: in float32 the norm of large
    features overflows, although the quotients do not."""
    if order == 1:
        norms = np.abs(rows).sum(axis=1, dtype=np.float64)
    else:
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    scaled: np.ndarray = (rows * row_factors(norms)[:, None]).astype(np.float32)
    return scaled


def row_factors(norms: np.ndarray) -> np.ndarray:
    """What rows with these norms are multiplied by, float64."""
    factors: np.ndarray = np.divide(1.0, norms, out=np.ones_like(norms), where=norms > 0)
    return factors
