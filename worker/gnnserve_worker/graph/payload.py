"""Payload of edges: features and times, a row for each edge.

An edge that goes both ways, and its entry in a reverse relation that importing added, share one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.graph_schema import PayloadManifest


@dataclass(frozen=True, slots=True)
class EdgePayload:
    """Features and times of the edges of a relation: a row for each edge."""

    columns: tuple[str, ...]
    """Names of the features, in their order."""
    features: np.ndarray
    """float32 [rows, columns]"""
    time_column: str
    """Its name; empty: edges have no time."""
    times: np.ndarray
    """int64 [rows]; [0] where edges have none."""

    @property
    def manifest(self) -> PayloadManifest:
        return PayloadManifest(self.columns, self.time_column, len(self.features))

    def of_these(self, rows: np.ndarray) -> EdgePayload:
        """Payload of these rows (int64) alone, in their order."""
        times = self.times[rows] if self.time_column else self.times
        return EdgePayload(self.columns, self.features[rows], self.time_column, times)


def without_unused_rows(
    payload: EdgePayload, named: Sequence[np.ndarray]
) -> tuple[EdgePayload, tuple[np.ndarray, ...]]:
    """The payload without the rows that no entry names: those of edges that were merged, left out, or have left; and
    which rows entries then name. `named`: rows of the entries of all lists that share it, int32 each."""
    is_used = np.zeros(len(payload.features), np.bool_)
    for rows in named:
        is_used[rows] = True
    if is_used.all():
        return payload, tuple(named)
    places = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    return payload.of_these(np.flatnonzero(is_used)), tuple(places[rows] for rows in named)
