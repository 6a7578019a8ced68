"""The part of a graph that the scores of some nodes depend on, with whole neighbour lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.store import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    nodes: np.ndarray
    """int64: nodes of the graph, ascending."""
    lists: Graph
    """Their lists, in the numbering of `nodes`."""

    def places(self, nodes: np.ndarray) -> np.ndarray:
        """Where these nodes are among them."""
        return np.searchsorted(self.nodes, nodes)


def neighbourhood_of(graph: Graph, seeds: np.ndarray, hops: int) -> Neighbourhood:
    """All nodes within so many hops of `seeds`. Lists of nodes within `hops` - 1 are whole, those of the last ones lack
    what is further away."""
    is_in = np.zeros(graph.nodes, dtype=bool)
    is_in[seeds] = True
    border = np.unique(seeds)
    for _ in range(hops):
        if is_in.all():  # of a large graph, whose entries need not be copied
            break
        read = _entries(graph, border)
        border = np.unique(read[~is_in[read]])
        if not len(border):
            break
        is_in[border] = True
    nodes = np.flatnonzero(is_in)
    if len(nodes) == graph.nodes:
        return Neighbourhood(nodes, graph)
    places = np.full(graph.nodes, -1, dtype=np.int32)
    places[nodes] = np.arange(len(nodes))
    found = places[_entries(graph, nodes)]
    owners = np.repeat(np.arange(len(nodes)), np.diff(graph.indptr)[nodes])[found >= 0]
    indptr = np.searchsorted(owners, np.arange(len(nodes) + 1)).astype(np.int64)
    return Neighbourhood(nodes, Graph(indptr, np.ascontiguousarray(found[found >= 0])))


def _entries(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """All entries of the lists of these nodes, list after list."""
    begins, counts = graph.indptr[:-1][nodes], np.diff(graph.indptr)[nodes]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    entries: np.ndarray = graph.indices[np.repeat(begins, counts) + within]
    return entries
