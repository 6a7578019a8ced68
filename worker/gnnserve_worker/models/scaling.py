"""Scaling of features that requests and changes bring, by what the revision's were scaled by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_rows import FeatureRows, row_at
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.models.nonzero import Order
from gnnserve_worker.tables.normalise import ROW_NORMS


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a revision's features were scaled."""

    method: Normalization
    """The method that was applied; never AUTO."""
    mean: np.ndarray | None = None
    """float64 [features], with STANDARDIZE."""
    deviation: np.ndarray | None = None
    """float64 [features], with STANDARDIZE."""

    def check(self, features: int) -> None:
        """ValueError: moments are missing, or not those of so many features."""
        for name, moment in (("mean", self.mean), ("deviation", self.deviation)):
            if moment is not None and (moment.shape != (features,) or moment.dtype != np.float64):
                raise ValueError(f"{name!r} is {moment.dtype} {list(moment.shape)}, expected float64 {[features]}")
        if self.method is Normalization.STANDARDIZE and (self.mean is None or self.deviation is None):
            raise ValueError("features were standardized, and 'mean' or 'deviation' is missing")

    def scale(self, features: FeatureRows, read: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
        """The given columns of those rows of the features (int64), scaled: float32 [rows read, width], zeros behind
        them."""
        make = np.empty if width == len(columns) else np.zeros
        scaled: np.ndarray = make((len(read), width), np.float32)
        mean, factors = _NO_MOMENTS, _NO_MOMENTS
        if self.mean is not None and self.deviation is not None:
            mean, factors = self.mean, 1.0 / self.deviation
        _scale(features.addresses, features.columns, read, self.order, mean, factors, columns, scaled)
        return scaled

    @property
    def order(self) -> Order:
        """Order of the norm by which a row is divided; 0: it is not."""
        return ROW_NORMS.get(self.method, 0)

    @property
    def can_be_undone(self) -> bool:
        """Whether scaled features tell those of the source: not where rows were divided by norms, which are lost."""
        return self.method not in ROW_NORMS

    def undo(self, scaled: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Features as in the source, float32 [rows, features], of all scaled ones. `columns`: the source's column of
        each, int64."""
        rows = scaled.astype(np.float64)
        if self.mean is not None and self.deviation is not None:
            rows = rows * self.deviation[columns] + self.mean[columns]
        features = np.empty(rows.shape, np.float32)
        features[:, columns] = rows
        return features


_NO_MOMENTS = np.zeros(0)


@kernel
def _scale(
    addresses: np.ndarray, width: int, read: np.ndarray, order: int, mean: np.ndarray, factors: np.ndarray,
    columns: np.ndarray, scaled: np.ndarray,
) -> None:  # fmt: skip
    is_in_order = True
    for i in range(len(columns)):
        is_in_order = is_in_order and columns[i] == i
    sums = np.empty(_BESIDE, np.float64)
    for place in range(len(read)):
        row = row_at(addresses[read[place]], width)
        written = scaled[place]
        # Columns in order are read and written as vectors: without a look-up for each, and without a division.
        if is_in_order and len(mean) > 0:
            for i in range(len(columns)):
                written[i] = (row[i] - mean[i]) * factors[i]
        elif is_in_order:
            factor = _factor_of(row, order, sums)
            for i in range(len(columns)):
                written[i] = row[i] * factor
        else:
            factor = _factor_of(row, order, sums)
            for i in range(len(columns)):
                column = columns[i]
                written[i] = (row[column] - mean[column]) * factors[column] if len(mean) > 0 else row[column] * factor


_BESIDE = 16
"""Sums that are made beside each other, as a vector."""


@inlined
def _factor_of(row: np.ndarray, order: int, sums: np.ndarray) -> float:
    """What a row is multiplied by so that its norm is 1; 1 for a row of zeros, and without an order. In float64: in
    float32 the norm of large features overflows, although the quotients do not."""
    if order == 0:
        return 1.0
    sums[:] = 0.0
    whole = len(row) - len(row) % _BESIDE
    for begin in range(0, whole, _BESIDE):
        for i in range(_BESIDE):
            value = np.float64(row[begin + i])
            sums[i] += abs(value) if order == 1 else value * value
    for i in range(whole, len(row)):
        value = np.float64(row[i])
        sums[0] += abs(value) if order == 1 else value * value
    norm = 0.0
    for i in range(_BESIDE):
        norm += sums[i]
    if order > 1:
        norm = np.sqrt(norm)
    return float(1.0 / norm) if norm > 0 else 1.0
