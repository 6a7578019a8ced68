"""Room for changes behind a revision's arrays: how much, and the graph with it.

Room is address space, which costs nothing before it is used; what may be used is bounded by `spec.updates.maxDelta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_api.repository import TableManifest
from gnnserve_worker.graph.change_batch import MOST_ITEMS
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, living_lists, reversed_lists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.growing import empty_growing

_ENTRY_BYTES = 4
_MOST_NODES = 2**30
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
    return GraphRoom(max(0, min(new_nodes, _MOST_NODES - nodes)), entries)


def _row_bytes(table: TableManifest) -> int:
    table_format = FORMATS[table.storage]
    row = table_format.padded_columns(table.columns) * table_format.dtype.itemsize
    return row if table.own is None else 2 * row


def living_graph(
    stored: Graph, indices: np.ndarray, stored_ids: NodeIds | None, rules: EdgeRules, room: int
) -> LivingGraph:
    """`indices`: the graph's own, writable, with room behind. `room`: nodes that there may ever be."""

    def lists(bounds: np.ndarray, listed: np.ndarray) -> LivingLists:
        return living_lists(bounds, listed, empty_growing((room, 2), np.int64), empty_growing((room,), np.int32))

    readers = None
    if rules.direction is not Direction.UNDIRECTED:
        starts, found = reversed_lists(stored.indptr, stored.indices, stored.nodes)
        grown = empty_growing(indices.shape, np.int32)
        grown[: len(found)] = found
        readers = lists(starts, grown)
    return LivingGraph(lists(stored.indptr, indices), readers, LivingIds(stored_ids, stored.nodes, room), rules, room)


def draft_graph(published: LivingGraph, stored: Graph, indices: np.ndarray, stored_ids: NodeIds | None) -> LivingGraph:
    """Another living graph over the same files, equal to the one that was just made of them. `indices`: the graph's
    own, mapped once more, with as much room behind."""
    room = published.most_nodes
    lists = living_lists(stored.indptr, indices, empty_growing((room, 2), np.int64), empty_growing((room,), np.int32))
    return published.draft(lists, LivingIds(stored_ids, stored.nodes, room))


def roots_with_room(stored: Graph, room: int) -> np.ndarray:
    """`inverse_roots` of the graph, with room for as many nodes in all."""
    roots = inverse_roots(stored.indptr, stored.indices)
    if room == len(roots):
        return roots
    grown = empty_growing((room,), np.float32)
    grown[: len(roots)] = roots
    return grown
