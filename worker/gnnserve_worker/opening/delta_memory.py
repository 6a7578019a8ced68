"""Memory that changes of a revision take: pages of mapped files that were copied, and what lies behind them. Of arrays
that are copies already (`living_graphs.py`, `spread_tables.py`) no pages are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class MappedItems:
    """Parts of a revision's arrays that lie in mapped files, whose pages are copied as they are written to."""

    nodes: int
    """Nodes whose rows of tables do; 0: tables are copies."""
    entries: int
    """Entries of neighbour lists; 0: they are copies."""


class DeltaMemory:
    def __init__(
        self,
        graph: LivingGraph,
        makers: Sequence[RenewsRows],
        layers: Sequence[Sequence[MakesLayer]],
        drafted: Mapping[int, Table],
        mapped: MappedItems,
    ) -> None:
        """`makers`: of rows that are made of features. `layers`: makers of stored layers, the first layer's first.
        `drafted`: tables that are kept once more, by the identity of the revision's own."""

        def copied(maker: RenewsRows | MakesLayer) -> list[CopiedPages]:
            copies = 2 if id(maker.table) in drafted else 1
            return [CopiedPages(mapped.nodes, _bytes(rows)) for rows in _matrices(maker.table)] * copies

        def by_type(maker: RenewsRows | MakesLayer, kind: int) -> int:
            copies = 2 if id(maker.table) in drafted else 1
            neighbours, *own = map(_bytes, _matrices(maker.table))
            return copies * (neighbours * maker.rows_of_type(kind) + sum(own))

        all_makers: list[RenewsRows | MakesLayer] = [*makers, *chain(*layers)]
        kept = [[_bytes(rows) for maker in layer for rows in maker.kept()] for layer in layers]
        self._graph, self._entries, self._counts = graph, graph.lists.used_entries, _counts(graph)
        self._new_bytes = [
            _ID_BYTES + sum(by_type(maker, kind) for maker in all_makers) + sum(map(sum, kept))
            for kind in range(len(self._counts))
        ]
        """Memory of a new node of each type."""
        self._rows = [*chain(*map(copied, makers))]
        self._stored = [
            [*chain(*map(copied, layer)), *(CopiedPages(mapped.nodes, size) for size in sizes)]
            for layer, sizes in zip(layers, kept, strict=True)
        ]
        self._lists = CopiedPages(mapped.entries, _ENTRY_BYTES)
        self._kinds = _LISTS + (0 if graph.readers is None else 1)
        """How many lists each node has."""
        # The rows of payload are kept once, and which of them an entry has, with each entry but that of readers.
        self._payloads = {id(one): one for one in graph.payloads if one is not None}.values()
        self.edge_bytes = max((one.row_bytes for one in self._payloads), default=0)
        """Payload of an edge, at most."""
        self._payload_bytes = sum(one.rows * one.row_bytes for one in self._payloads)
        self._entry_bytes = (self._kinds + (_LISTS if self._payloads else 0)) * _ENTRY_BYTES

    @property
    def nbytes(self) -> int:
        """Memory that changes have taken."""
        entries = self._graph.lists.used_entries - self._entries
        counts = zip(_counts(self._graph), self._counts, self._new_bytes, strict=True)
        new_nodes = sum((count - before) * size for count, before, size in counts)
        pages = sum(copied.nbytes for copied in chain(self._rows, *self._stored)) + self._kinds * self._lists.nbytes
        payload = sum(one.rows * one.row_bytes for one in self._payloads) - self._payload_bytes
        return pages + entries * self._entry_bytes + payload + new_nodes

    def note_rows(self, nodes: np.ndarray) -> None:
        """Rows that are made of features are written, of these nodes (int64)."""
        for copied in self._rows:
            copied.note(nodes)

    def note_lists(self, lists: np.ndarray) -> None:
        """These lists (int64) are written."""
        self._lists.note(self._graph.lists.bounds[lists, 0])

    def note_stored(self, layer: int, nodes: np.ndarray) -> None:
        """Rows of a stored layer are written, of these nodes (int64); 0: the first layer."""
        for copied in self._stored[layer]:
            copied.note(nodes)


def _counts(graph: LivingGraph) -> list[int]:
    """Nodes of each type, those that have left among them."""
    return [ids.count for ids in graph.ids_of]


def _matrices(table: Table) -> list[Rows]:
    """Rows of neighbours; then those of nodes themselves, where they are others."""
    return [table.rows] if table.own is table.rows else [table.rows, table.own]


def _bytes(rows: Rows) -> int:
    return int(rows.values.shape[1]) * rows.values.itemsize
