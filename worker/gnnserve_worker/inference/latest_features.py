"""Features that changes of the graph have brought, as in the source: what filters read of nodes that are new or have
others than they had. The revision itself keeps features in the form of tables alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.growth import GrowingArray

_PLACE_BYTES = 128
"""Memory of a node beside its numbers."""


@dataclass(frozen=True, slots=True)
class LatestValues:
    """A column of some nodes."""

    nodes: np.ndarray
    """Their numbers in the graph, int64, distinct."""
    values: np.ndarray
    """float32 [nodes]"""


class LatestFeatures:
    """One thread notes, others may read."""

    def __init__(self, width: int) -> None:
        """`width`: features in a row of a batch."""
        self._width = width
        self._places: dict[int, int] = {}
        self._nodes = GrowingArray((), np.int64)
        self._rows = GrowingArray((width,), np.float32)
        """NaN: the column is as it was stored."""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return len(self._places) * (4 * self._width + _PLACE_BYTES)

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """Take note of a batch that is applied; called for each."""
        if not self._width:
            return
        nodes, new = np.concatenate((found.new, found.overridden)), len(found.new)
        with self._lock:
            unknown = [node for node in dict.fromkeys(nodes.tolist()) if node not in self._places]
            self._places.update(zip(unknown, range(len(self._nodes), len(self._nodes) + len(unknown)), strict=True))
            self._nodes.extend(np.array(unknown, np.int64))
            self._rows.extend(np.full((len(unknown), self._width), np.nan, np.float32))
            rows, places = self._rows.items, np.array([self._places[node] for node in nodes.tolist()], np.int64)
            # A node may be new and get other features in one batch, in this order.
            for part in (slice(new), slice(new, None)):
                brought, of = batch.features[part], places[part]
                rows[of] = np.where(np.isnan(brought), rows[of], brought)

    def column(self, feature: int) -> LatestValues:
        """Nodes that have got another number in that column of their type, or have come with it."""
        if feature >= self._width:
            return LatestValues(np.zeros(0, np.int64), np.zeros(0, np.float32))
        with self._lock:
            values = self._rows.items[:, feature]
            known = ~np.isnan(values)
            return LatestValues(self._nodes.items[known], values[known])
