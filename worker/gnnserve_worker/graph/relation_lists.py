"""The lists of a graph as one array of lists: what serving samples from, and what a repository keeps.

A node's lists, one for each relation that its type reads, stand one behind the other and hold numbers of nodes
(`kernels/layout.py`). The lists of a graph of one type are the array as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import UNSET

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_worker.graph.payload import without_unused_rows
from gnnserve_worker.graph.store import Graph, GraphData, Relation

_NO_ROWS = np.zeros(0, np.int32)


def joined_lists(data: GraphData) -> Graph:
    """The lists of all relations, as a revision has them."""
    schema, lists = data.schema, [one.lists for one in data.relations]
    return Graph(*merged_lists(schema, lists), schema, merged_payload_rows(schema, lists))


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
    for place, entries in enumerate(_entries(schema, indptr, lists)):
        source = schema.place_of(schema.relations[place].source)
        indices[entries] = lists[place].indices + schema.first_nodes[source]
    return indptr, indices


def merged_payload_rows(schema: GraphSchema, lists: Sequence[Graph]) -> np.ndarray:
    """`Graph.payload_rows` of the lists that `merged_lists` makes of these: int32 [edges]; [0]: no relation has
    payload."""
    if not any(len(own.payload_rows) for own in lists):
        return np.zeros(0, np.int32)
    if len(schema.types) == len(lists) == 1:
        return np.asarray(lists[0].payload_rows, np.int32)
    indptr, indices = merged_lists(schema, lists)
    rows = np.full(len(indices), -1, np.int32)
    for own, entries in zip(lists, _entries(schema, indptr, lists), strict=True):
        if len(own.payload_rows):
            rows[entries] = own.payload_rows
    return rows


def _entries(schema: GraphSchema, indptr: np.ndarray, lists: Sequence[Graph]) -> Iterator[np.ndarray]:
    """For each relation, in their order, where its entries stand among all: int64. Relations of one target type stand
    together, in the order of the types."""
    for place, own in enumerate(lists):
        target = schema.relations[place].target
        relations = [at for at, one in enumerate(schema.relations) if one.target == target]
        kind, slot = schema.place_of(target), relations.index(place)
        first_list = sum(one.nodes * slots for one, slots in zip(schema.types[:kind], schema.slots[:kind], strict=True))
        end = first_list + schema.types[kind].nodes * len(relations)
        begins = indptr[first_list + slot : end : len(relations)]
        yield np.repeat(begins - own.indptr[:-1], np.diff(own.indptr)) + np.arange(own.edges)


def parted_lists(graph: Graph) -> tuple[Graph, ...]:
    """The lists of each relation, from which `merged_lists` makes these."""
    schema, indptr, indices = graph.schema, graph.indptr, graph.indices
    if len(schema.types) == len(schema.relations) == 1:
        return (graph,)
    parted, first_list = [], 0
    has_rows = len(graph.payload_rows) > 0
    for kind in schema.types:
        relations = [one for one in schema.relations if one.target == kind.name]
        for slot, one in enumerate(relations):
            own = np.arange(first_list + slot, first_list + kind.nodes * len(relations), len(relations))
            begins, lengths = indptr[own], indptr[own + 1] - indptr[own]
            starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            entries = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
            first_node = schema.first_nodes[schema.place_of(one.source)]
            rows = graph.payload_rows[entries] if has_rows and one.payload is not UNSET else _NO_ROWS
            parted.append(Graph(starts, (indices[entries] - first_node).astype(np.int32), payload_rows=rows))
        first_list += kind.nodes * len(relations)
    return tuple(parted)


def without_unused_payload(relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The relations without rows of payload that no entry names. Those that share a payload go on sharing it."""
    found = [*relations]
    for payload in {id(one.payload): one.payload for one in relations if one.payload is not None}.values():
        sharing = [place for place, one in enumerate(relations) if one.payload is payload]
        kept, named = without_unused_rows(payload, [relations[place].lists.payload_rows for place in sharing])
        for place, rows in zip(sharing, named, strict=True):
            lists = relations[place].lists
            own = Graph(lists.indptr, lists.indices, payload_rows=rows)
            found[place] = replace(relations[place], lists=own, payload=kept)
    return tuple(found)
