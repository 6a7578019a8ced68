"""Payload of edges: features and times, a row for each edge.

An edge that goes both ways, and its entry in a reverse relation that importing added, share one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.graph_schema import PayloadManifest


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
