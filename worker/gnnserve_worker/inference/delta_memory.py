"""Memory that changes of a revision take: pages of mapped files that were copied, and what lies behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.tables.growing import CopiedPages
from gnnserve_worker.tables.table import Rows, Table

_ENTRY_BYTES = 4
_ID_BYTES = 128
"""Memory of a new node beside its rows, twice: its id in a hash table, and where its list is."""
_LISTS = 2
"""Neighbour lists are kept for predictions and for who applies changes."""


class DeltaMemory:
    def __init__(
        self,
        graph: LivingGraph,
        makers: Sequence[RowMaker],
        drafted: Sequence[Table],
        first: Sequence[StoredLayerMaker],
        later: Sequence[Sequence[StoredLayerMaker]],
    ) -> None:
        """`makers`: of rows that are made of features. `drafted`: tables of such rows that are kept once more. `first`
        and `later`: makers of stored layers, those of the later ones by layer."""
        self._graph = graph
        self._nodes, self._entries = graph.ids.count, graph.lists.used_entries
        row_bytes = _row_bytes([maker.table for maker in makers]) + _row_bytes(drafted)
        aggregated = [_bytes(maker.aggregated) for maker in first if maker.aggregated is not None]
        # A sum takes as much as the row that is aggregated.
        stored_bytes = _row_bytes([maker.table for maker in first]) + aggregated + aggregated
        later_bytes = [_row_bytes([maker.table for maker in layer]) for layer in later]
        self._new_bytes = sum(row_bytes) + sum(stored_bytes) + sum(map(sum, later_bytes)) + _ID_BYTES
        self._rows = [CopiedPages(self._nodes, size) for size in row_bytes]
        self._stored = [CopiedPages(self._nodes, size) for size in stored_bytes]
        self._later = [[CopiedPages(self._nodes, size) for size in sizes] for sizes in later_bytes]
        self._lists = CopiedPages(self._entries, _ENTRY_BYTES)
        self._kinds = _LISTS + (0 if graph.readers is None else 1)
        """How many lists each node has."""

    @property
    def nbytes(self) -> int:
        """Memory that changes have taken."""
        entries = self._graph.lists.used_entries - self._entries
        new_nodes = self._graph.ids.count - self._nodes
        later = (copied for layer in self._later for copied in layer)
        pages = sum(copied.nbytes for copied in (*self._rows, *self._stored, *later))
        lists = self._kinds * (self._lists.nbytes + entries * _ENTRY_BYTES)
        return pages + lists + new_nodes * self._new_bytes

    def note_rows(self, nodes: np.ndarray) -> None:
        """Rows that are made of features are written, of these nodes (int64)."""
        for copied in self._rows:
            copied.note(nodes)

    def note_lists(self, nodes: np.ndarray) -> None:
        self._lists.note(self._graph.lists.bounds[nodes, 0])

    def note_stored(self, nodes: np.ndarray) -> None:
        """Rows of the first layer are written."""
        for copied in self._stored:
            copied.note(nodes)

    def note_later(self, layer: int, nodes: np.ndarray) -> None:
        """Rows of a later one; 0: that behind the first."""
        for copied in self._later[layer]:
            copied.note(nodes)


def _row_bytes(tables: Sequence[Table]) -> list[int]:
    """Bytes of a row in each matrix of these tables."""
    rows = [rows for table in tables for rows in {id(part): part for part in (table.rows, table.own)}.values()]
    return [_bytes(each) for each in rows]


def _bytes(rows: Rows) -> int:
    return int(rows.values.shape[1]) * rows.values.itemsize
