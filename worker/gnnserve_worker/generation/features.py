"""Scaling of features before training; the table stores them scaled, so serving never does it."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.gnnservice import Normalization
from gnnserve_worker.graph.store import Features


def normalize(features: Features, method: Normalization, visible: np.ndarray) -> Features:
    """A scaled copy. `visible` are the node ids whose features training may see: an inductive model must not
    learn the mean of its test nodes."""
    if method == Normalization.AUTO:
        method = Normalization.ROW_NORMALIZE if sp.issparse(features) else Normalization.STANDARDIZE
    if method == Normalization.DISABLED:
        return features
    if method == Normalization.ROW_NORMALIZE:
        return _row_normalize(features)
    if not isinstance(features, np.ndarray):
        raise InputError(
            "spec.graph.normalization",
            "is Standardize, but the features are sparse and would become dense",
            "use RowNormalize, Auto or Disabled",
        )
    mean = features[visible].mean(axis=0, dtype=np.float64)
    deviation = features[visible].std(axis=0, dtype=np.float64)
    # A column that is constant where training looks tells nothing; leave it near 0 rather than divide by 0.
    deviation[deviation < 1e-12] = 1.0
    scaled: np.ndarray = ((features - mean) / deviation).astype(np.float32)
    return scaled


def _row_normalize(features: Features) -> Features:
    # In float64: a sum of large float32 numbers may be beyond float32, although every quotient is within 1.
    if isinstance(features, np.ndarray):
        sums = np.abs(features).sum(axis=1, dtype=np.float64)
    else:
        rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
        sums = np.bincount(rows, weights=np.abs(features.data), minlength=features.shape[0])
    factors = np.divide(1.0, sums, out=np.ones_like(sums), where=sums > 0)
    if isinstance(features, np.ndarray):
        return (features * factors[:, None]).astype(np.float32)
    return sp.csr_array(sp.diags_array(factors) @ features).astype(np.float32)


def keep_columns(features: Features, columns: np.ndarray) -> Features:
    """The given columns in the given order."""
    return sp.csr_array(features[:, columns]) if sp.issparse(features) else np.ascontiguousarray(features[:, columns])
