"""Scaling of features before training; the table stores them scaled, so serving never does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.graph.store import Features
from gnnserve_worker.tables.normalise import ROW_NORMS, divide_by_norms, row_factors

_MOST_DENSE_BYTES = 16 * 2**30
_BLOCK_VALUES = 1 << 22
"""Most numbers that are scaled at once: in float64 they take twice the memory of the result."""


@dataclass(frozen=True, slots=True)
class Normalized:
    """Scaled features, and what they were scaled by, so that later nodes can be scaled the same way."""

    features: Features
    method: Normalization
    """The method that was applied; never AUTO."""
    mean: np.ndarray | None = None
    """Mean of each column, float64 [columns]; None unless the method is STANDARDIZE."""
    deviation: np.ndarray | None = None
    """Standard deviation of each column, float64 [columns], never 0; None unless the method is STANDARDIZE."""


def normalization_of(spec: GNNServiceSpec) -> Normalization:
    """The normalization to apply. With Auto, given weights read features as they are, as they did in training;
    LightGCN's embeddings are never scaled."""
    if spec.model.learns_embeddings:
        return Normalization.DISABLED
    if (spec.model.is_given or spec.variants.given) and spec.graph.normalization is Normalization.AUTO:
        return Normalization.DISABLED
    return spec.graph.normalization


def fit_normalization(features: Features, method: Normalization, visible: np.ndarray) -> Normalized:
    """Return a scaled copy and the statistics it was scaled by.

    `visible` are the ids of nodes whose features training may see: an inductive model must not learn the mean of its
    test nodes.
    """
    if method == Normalization.AUTO:
        method = Normalization.ROW_NORMALIZE if sp.issparse(features) else Normalization.STANDARDIZE
    if method == Normalization.DISABLED:
        return Normalized(features, method)
    if method in ROW_NORMS:
        return Normalized(_divide_rows(features, ROW_NORMS[method]), method)
    if not isinstance(features, np.ndarray):
        features = _dense(features)
    mean = features[visible].mean(axis=0, dtype=np.float64)
    deviation = features[visible].std(axis=0, dtype=np.float64)
    # A column that is constant over the visible nodes has no deviation to divide by; dividing by 1 leaves it near 0.
    deviation[deviation < 1e-12] = 1.0
    scaled = np.empty(features.shape, dtype=np.float32)
    step = max(1, _BLOCK_VALUES // max(1, features.shape[1]))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        scaled[rows] = (features[rows] - mean) / deviation
    return Normalized(scaled, method, mean, deviation)


def _dense(features: sp.csr_array) -> np.ndarray:
    """Make sparse features dense, which Standardize needs. InputError: the result would be too large."""
    wanted_bytes = 4 * features.shape[0] * features.shape[1]
    if wanted_bytes > _MOST_DENSE_BYTES:
        raise InputError(
            "spec.graph.normalization",
            f"is Standardize, but the features are sparse and take {wanted_bytes / 2**30:,.0f} GiB as dense ones; "
            f"the limit is {_MOST_DENSE_BYTES // 2**30} GiB",
            "use RowNormalize, L2RowNormalize, Auto or Disabled",
        )
    return np.asarray(features.toarray())


def _divide_rows(features: Features, order: Literal[1, 2]) -> Features:
    if isinstance(features, np.ndarray):
        return divide_by_norms(features, order)
    rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    powers = np.abs(features.data).astype(np.float64) ** order
    sums = np.bincount(rows, weights=powers, minlength=features.shape[0])
    factors = row_factors(sums if order == 1 else np.sqrt(sums))
    return sp.csr_array(sp.diags_array(factors) @ features).astype(np.float32)


def keep_columns(features: Features, columns: np.ndarray) -> Features:
    """The given columns in the given order."""
    return sp.csr_array(features[:, columns]) if sp.issparse(features) else np.ascontiguousarray(features[:, columns])
