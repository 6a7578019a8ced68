"""Room for changes behind a revision's arrays: how much.

Room is address space, which costs nothing before it is used; what may be used is bounded by `spec.updates.maxDelta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnserve_api.files.repository import TableManifest
from gnnserve_worker.graph.change_batch import MOST_ITEMS
from gnnserve_worker.tables.formats import FORMATS

_ENTRY_BYTES = 4
MOST_NODES = 2**30
"""Positions are int32, and nodes of requests' overlays are numbered behind the graph's."""
_TIMES = 8
"""Lists move as they grow, to places up to twice as long, and leave others behind that are half as long in all."""


@dataclass(frozen=True, slots=True)
class GraphRoom:
    nodes: int
    """Nodes beyond the revision's own."""
    entries: int
    """Entries of neighbour lists beyond its own."""


def room_of(tables: Mapping[str, TableManifest], nodes: int, edges: int, max_delta_bytes: int) -> GraphRoom:
    """Room for all changes that fit into that memory, and one batch more: memory is asked about before a batch is
    applied, and room is never."""
    node_bytes = sum(_row_bytes(table) for table in tables.values())
    new_nodes = max_delta_bytes // max(1, node_bytes) + MOST_ITEMS
    entries = _TIMES * (edges + 2 * MOST_ITEMS + max_delta_bytes // _ENTRY_BYTES)
    return GraphRoom(max(0, min(new_nodes, MOST_NODES - nodes)), entries)


def _row_bytes(table: TableManifest) -> int:
    table_format = FORMATS[table.storage]
    row = table_format.padded_columns(table.columns) * table_format.dtype.itemsize
    return row if table.own is None else 2 * row
