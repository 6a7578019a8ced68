"""Memory that changes of a revision take: pages of mapped files that were copied, and what lies behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.models.rows import RenewsRows
from gnnserve_worker.models.stored_layers import MakesLayer
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
        makers: Sequence[RenewsRows],
        drafted: Mapping[int, Table],
        layers: Sequence[Sequence[MakesLayer]],
    ) -> None:
        """`makers`: of rows that are made of features. `drafted`: tables that are kept once more, by the identity of
        the revision's own. `layers`: makers of stored layers, the first layer's first."""
        self._graph = graph
        self._nodes, self._entries = graph.taken, graph.lists.used_entries

        def tables_bytes(tables: Iterable[Table]) -> list[int]:
            return [*chain(*(_row_bytes(table) * (2 if id(table) in drafted else 1) for table in tables))]

        row_bytes = tables_bytes(maker.table for maker in makers)
        layer_bytes = [
            [
                *tables_bytes(maker.table for maker in layer),
                *(_bytes(rows) for maker in layer for rows in maker.kept()),
            ]
            for layer in layers
        ]
        self._new_bytes = sum(row_bytes) + sum(map(sum, layer_bytes)) + _ID_BYTES
        self._rows = [CopiedPages(self._nodes, size) for size in row_bytes]
        self._stored = [[CopiedPages(self._nodes, size) for size in sizes] for sizes in layer_bytes]
        self._lists = CopiedPages(self._entries, _ENTRY_BYTES)
        self._kinds = _LISTS + (0 if graph.readers is None else 1)
        """How many lists each node has."""

    @property
    def nbytes(self) -> int:
        """Memory that changes have taken."""
        entries = self._graph.lists.used_entries - self._entries
        new_nodes = self._graph.taken - self._nodes
        pages = sum(copied.nbytes for copied in chain(self._rows, *self._stored))
        lists = self._kinds * (self._lists.nbytes + entries * _ENTRY_BYTES)
        return pages + lists + new_nodes * self._new_bytes

    def note_rows(self, nodes: np.ndarray) -> None:
        """Rows that are made of features are written, of these nodes (int64)."""
        for copied in self._rows:
            copied.note(nodes)

    def note_lists(self, nodes: np.ndarray) -> None:
        self._lists.note(self._graph.lists.bounds[nodes, 0])

    def note_stored(self, layer: int, nodes: np.ndarray) -> None:
        """Rows of a stored layer are written, of these nodes (int64); 0: the first layer."""
        for copied in self._stored[layer]:
            copied.note(nodes)


class CopiedDeltaMemory(DeltaMemory):
    """Memory that changes take where arrays are copies already (`living_graphs.py`, `spread_tables.py`): what lies
    behind them."""

    def __init__(
        self, graph: LivingGraph, makers: Sequence[RenewsRows | MakesLayer], drafted: Mapping[int, Table]
    ) -> None:
        """`makers`: of rows of each table. `drafted`: as of `DeltaMemory`."""
        self._graph = graph
        self._stored_entries = graph.lists.used_entries
        row_bytes = [_bytes(maker.table.rows) * (2 if id(maker.table) in drafted else 1) for maker in makers]
        self._bytes_of = [
            _ID_BYTES + sum(size * (one.rows_of_type(kind) + 1) for size, one in zip(row_bytes, makers, strict=True))
            for kind in range(len(graph.ids_of))
        ]
        self._counts = [ids.count for ids in graph.ids_of]

    @property
    def nbytes(self) -> int:
        entries = self._graph.lists.used_entries - self._stored_entries
        new_nodes = [ids.count - count for ids, count in zip(self._graph.ids_of, self._counts, strict=True)]
        rows = sum(count * size for count, size in zip(new_nodes, self._bytes_of, strict=True))
        return rows + (_LISTS + 1) * entries * _ENTRY_BYTES

    def note_rows(self, nodes: np.ndarray) -> None:
        """Nothing is copied."""

    def note_lists(self, nodes: np.ndarray) -> None:
        """Nothing is copied."""

    def note_stored(self, layer: int, nodes: np.ndarray) -> None:
        """Nothing is copied."""


def _row_bytes(table: Table) -> list[int]:
    """Bytes of a row in each of the table's matrices."""
    return [_bytes(each) for each in {id(part): part for part in (table.rows, table.own)}.values()]


def _bytes(rows: Rows) -> int:
    return int(rows.values.shape[1]) * rows.values.itemsize
