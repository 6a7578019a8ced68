"""Suspicious feature columns: ids, years, and columns that restate the class.

Such a column is not an error, since only the owner of the data can tell. It is reported with what it looks like and how
to leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gnnserve_worker.graph.store import GraphData

_MOST_COLUMNS = 1000
"""Most columns that are examined, from the first on."""
_PROBED_ROWS = 10_000
"""Rows that are examined first; only a column that looks suspicious in them is read whole."""
_FEWEST_ROWS = 20
"""Fewest rows that allow a judgement: with fewer, any column of integers may look like an id."""
_FIRST_YEAR, _LAST_YEAR = 1900, 2100


def suspicious_columns(data: GraphData) -> Iterator[str]:
    if not isinstance(data.features, np.ndarray):
        return
    start = 0
    for column in data.feature_columns[:_MOST_COLUMNS]:
        if column.width == 1 and (looks := _looks_like(data, start)):
            yield f"Column {column.name!r} is a feature and {looks}: name it in excludeFeatures if it should be none."
        start += column.width


def _looks_like(data: GraphData, place: int) -> str:
    for rows in (slice(0, _PROBED_ROWS), slice(None)):
        values = np.asarray(data.features[rows, place])
        found = _judged(values, data.labels[rows], len(data.classes))
        if not found:
            return ""
    return found


def _judged(values: np.ndarray, labels: np.ndarray, classes: int) -> str:
    distinct, codes = np.unique(values, return_inverse=True)
    if len(values) < _FEWEST_ROWS or len(distinct) < 2:
        return ""
    if labels.ndim == 1 and _tells_class(codes.reshape(-1), labels, len(distinct), classes):
        return "tells the class exactly, as if it were made from it"
    if (np.trunc(distinct) != distinct).any():
        return ""
    if distinct[0] >= _FIRST_YEAR and distinct[-1] <= _LAST_YEAR:
        return f"looks like a year ({distinct[0]:.0f} to {distinct[-1]:.0f})"
    return "looks like an id (integers, each once)" if len(distinct) == len(values) else ""


def _tells_class(codes: np.ndarray, labels: np.ndarray, distinct: int, classes: int) -> bool:
    """Whether values and classes correspond one to one. Where most nodes have a class of their own, all ids do."""
    known = labels >= 0
    if 2 * classes > np.count_nonzero(known):
        return False
    pairs = np.unique(codes[known].astype(np.int64) * classes + labels[known])
    values, found = np.unique(pairs // classes), np.unique(pairs % classes)
    return bool(distinct <= classes and len(pairs) == len(values) == len(found) > 1)
