"""Graphs in the shape of the five data sets of Dynamic GNN inference as-a-service, table 1.

Structure alone, for traces and the simulator.

A node of rank r is drawn with a probability that falls as r^-0.45, as either end of a link (Chung-Lu), as the graphs of
`benchmarks/shapes.py` are made. Links of real graphs also stay together: `within` is the share of them that stay in a
community, so that the neighbourhood of a hot subgraph is smaller than the graph. Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.engine.paper_tables import GRAPHS
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import GOLDEN, mix

EXPONENT = 0.45
COMMUNITY_NODES = 1000
"""Nodes in a community, approximately."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    nodes: int
    edges: int
    """Directed edges, each link counted twice; the few repeated draws are left out."""


SHAPES = {name: GraphShape(graph.nodes, graph.edges) for name, graph in GRAPHS.items()}


def build_graph(shape: GraphShape, seed: int, within: float = 0.0) -> Graph:
    """A symmetric graph with ascending lists, without loops and repeated edges."""
    communities = max(1, round(shape.nodes / COMMUNITY_NODES)) if within > 0 else 1
    # Ids are permuted, so that a node's id says nothing about its degree and community.
    names = np.random.default_rng(seed).permutation(shape.nodes).astype(np.int32)
    ends = np.empty((shape.edges // 2, 2), dtype=np.int32)
    _draw_links(names, communities, within, EXPONENT, np.uint64(seed), ends)
    degrees = np.bincount(ends.ravel(), minlength=shape.nodes)
    starts = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    lists = np.empty(ends.size, dtype=np.int32)
    _fill_lists(ends, starts[:-1].copy(), lists)
    indptr = np.zeros(shape.nodes + 1, dtype=np.int64)
    edges = _sort_lists(starts, lists, indptr)
    return Graph(indptr, lists[:edges].copy())


@kernel
def _draw_links(
    names: np.ndarray, communities: int, within: float, exponent: float, seed: np.uint64, ends: np.ndarray
) -> None:
    """Draw links, int32 [links, 2]. Rank r is the (r // communities)-th node of community r % communities."""
    nodes = len(names)
    power = 1.0 / (1.0 - exponent)
    unit = 2.0**-53
    state = mix(seed)
    for link in range(len(ends)):
        state += GOLDEN
        first = min(nodes - 1, int(nodes * (np.float64(mix(state) >> np.uint64(11)) * unit) ** power))
        state += GOLDEN
        stays = np.float64(mix(state) >> np.uint64(11)) * unit < within
        state += GOLDEN
        share = (np.float64(mix(state) >> np.uint64(11)) * unit) ** power
        if stays:
            community = first % communities
            members = (nodes - community + communities - 1) // communities
            second = min(members - 1, int(members * share)) * communities + community
        else:
            second = min(nodes - 1, int(nodes * share))
        ends[link, 0] = names[first]
        ends[link, 1] = names[second]


@kernel
def _fill_lists(ends: np.ndarray, places: np.ndarray, lists: np.ndarray) -> None:
    for link in range(len(ends)):
        low, high = ends[link, 0], ends[link, 1]
        lists[places[low]] = high
        places[low] += 1
        lists[places[high]] = low
        places[high] += 1


@kernel
def _sort_lists(starts: np.ndarray, lists: np.ndarray, indptr: np.ndarray) -> int:
    """Sort each list in place, dropping the node itself and repeated entries. Returns the number of entries left."""
    kept = 0
    for node in range(len(starts) - 1):
        row = np.sort(lists[starts[node] : starts[node + 1]])
        last = -1
        for neighbour in row:
            if neighbour not in (last, node):
                lists[kept] = neighbour
                kept += 1
                last = neighbour
        indptr[node + 1] = kept
    return kept
