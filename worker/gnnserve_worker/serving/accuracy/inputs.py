"""Have the features changed that requests bring? Their columns' means beside those of the stored nodes.

A changed input is the likeliest cause of a lost accuracy: a column in another unit, or one that is filled no more. A
column counts as changed when its mean has moved by half of its deviation or more, and by far more than chance does.
"""

from __future__ import annotations

import math

import numpy as np

from gnnserve_api.http.live_accuracy import InputDrift
from gnnserve_worker.asking.features import StoredFeatures
from gnnserve_worker.graph.feature_columns import FeatureColumns

MOST_TOLD = 5
"""Columns that are told, those that moved most."""
_LEAST_DEVIATIONS = 0.5
_STANDARD_ERRORS = 6.0
"""Several thousand columns are looked at again and again, and rows of a request are alike."""
_LEAST_ROWS, _WINDOW_ROWS = 100, 2000
_ROWS_OF_REQUEST = 16
"""Rows that are looked at of one request: a few microseconds."""
_STORED_VALUES, _MOST_STORED_ROWS = 1_000_000, 1000
"""Numbers, and rows, that are read of stored nodes, once for a revision."""
_MOST_DEVIATIONS = 1e6
"""What is told of a column that does not vary among stored nodes."""


class InputMeans:
    """Sums of the features that requests bring, over the last one to two thousand rows."""

    def __init__(self, columns: FeatureColumns, stored: np.ndarray) -> None:
        """`stored`: features of some stored nodes, float32 [nodes, features], as in the source."""
        self._columns = columns
        self._stored_rows = max(1, len(stored))
        self._mean = stored.mean(axis=0, dtype=np.float64)
        self._deviation = stored.std(axis=0, dtype=np.float64)
        self._sums = np.zeros((2, columns.features))
        """Float64 [2, features]: of the rows before, and of the latest ones."""
        self._rows = [0, 0]

    def add(self, features: np.ndarray) -> None:
        """Add the rows of one request, float32 [rows, features], or the first of them."""
        rows = features[:_ROWS_OF_REQUEST]
        self._sums[1] += rows.sum(axis=0)
        self._rows[1] += len(rows)
        if self._rows[1] >= _WINDOW_ROWS // 2:
            self._sums = np.array([self._sums[1], np.zeros(self._columns.features)])
            self._rows = [self._rows[1], 0]

    def drifted(self) -> tuple[InputDrift, ...]:
        """Columns whose mean is another than that of the stored nodes, the one that moved most first."""
        count = sum(self._rows)
        if count < _LEAST_ROWS:
            return ()
        mean = self._sums.sum(axis=0) / count
        # A column that does not vary may be off by its rounding.
        scale = np.maximum(self._deviation, 1e-6 * np.maximum(1.0, np.abs(self._mean)))
        moved = np.abs(mean - self._mean) / scale
        noise = _STANDARD_ERRORS * (1 / math.sqrt(count) + 1 / math.sqrt(self._stored_rows))
        largest = np.argsort(-moved)[:MOST_TOLD]
        return tuple(
            InputDrift(
                self._columns.name_of(column),
                float(mean[column]),
                float(self._mean[column]),
                float(min(moved[column], _MOST_DEVIATIONS)),
            )
            for column in largest.tolist()
            if moved[column] >= max(_LEAST_DEVIATIONS, noise)
        )


def input_means(stored: StoredFeatures | None, nodes: int) -> InputMeans | None:
    """An empty one, beside evenly spread stored nodes of so many; None where the revision does not keep their
    features."""
    if stored is None or stored.features_of is None:
        return None
    rows = max(1, min(nodes, _MOST_STORED_ROWS, _STORED_VALUES // max(1, stored.columns.features)))
    return InputMeans(stored.columns, stored.features_of(np.linspace(0, nodes - 1, rows).astype(np.int64)))
