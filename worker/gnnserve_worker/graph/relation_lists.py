"""The lists of a graph as one array of lists: what serving samples from, and what a repository keeps.

A node's lists, one for each relation that its type reads, stand one behind the other and hold numbers of nodes
(`kernels/layout.py`). The lists of a graph of one type are the array as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_worker.graph.store import Graph


def merged_lists(schema: GraphSchema, lists: Sequence[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """All lists in the order of `kernels/layout.py`, from those of each relation, whose entries are positions within
    its source type: int64 [lists + 1], and numbers of nodes, int32 [edges]."""
    if len(schema.types) == len(lists) == 1:
        return np.asarray(lists[0].indptr, np.int64), np.asarray(lists[0].indices, np.int32)
    lengths = []
    read_by = {
        kind.name: [place for place, one in enumerate(schema.relations) if one.target == kind.name]
        for kind in schema.types
    }
    for kind in schema.types:
        of_type = [np.diff(lists[place].indptr) for place in read_by[kind.name]]
        lengths.append(np.stack(of_type, axis=1).ravel() if of_type else np.zeros(0, np.int64))
    indptr = np.zeros(schema.lists + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=indptr[1:])
    indices = np.empty(int(indptr[-1]), dtype=np.int32)
    first_list = 0
    for kind in schema.types:
        relations = read_by[kind.name]
        for slot, place in enumerate(relations):
            own = lists[place]
            begins = indptr[first_list + slot : first_list + kind.nodes * len(relations) : len(relations)]
            moved = np.repeat(begins - own.indptr[:-1], np.diff(own.indptr))
            source = schema.place_of(schema.relations[place].source)
            indices[moved + np.arange(own.edges)] = own.indices + schema.first_nodes[source]
        first_list += kind.nodes * len(relations)
    return indptr, indices


def parted_lists(graph: Graph) -> tuple[Graph, ...]:
    """The lists of each relation, from which `merged_lists` makes these."""
    schema, indptr, indices = graph.schema, graph.indptr, graph.indices
    if len(schema.types) == len(schema.relations) == 1:
        return (graph,)
    parted, first_list = [], 0
    for kind in schema.types:
        relations = [one for one in schema.relations if one.target == kind.name]
        for slot, one in enumerate(relations):
            own = np.arange(first_list + slot, first_list + kind.nodes * len(relations), len(relations))
            begins, lengths = indptr[own], indptr[own + 1] - indptr[own]
            starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            entries = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
            first_node = schema.first_nodes[schema.place_of(one.source)]
            parted.append(Graph(starts, (indices[entries] - first_node).astype(np.int32)))
        first_list += kind.nodes * len(relations)
    return tuple(parted)
