"""The graph of a revision with room for changes, and the draft that changes are applied to first.

How much room there is says `repository/room.py`.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import LivingLists, living_lists, reversed_lists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.growing import empty_growing


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
