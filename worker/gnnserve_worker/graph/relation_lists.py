"""The lists of a graph as one array of lists: what serving samples from, and what a repository keeps; and where the
nodes and lists of each type stand in it.

A node's lists, one for each relation that its type reads, stand one behind the other and hold numbers of nodes
(`kernels/layout.py`). A graph of one type has one relation: its lists are the array as they are, and the list of a node
has the node's own number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, one_type
from gnnserve_worker.graph.payload import without_unused_rows
from gnnserve_worker.graph.store import Graph, GraphData, Relation
from gnnserve_worker.kernels.layout import pack_layout

# --- one array of lists


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


# --- where they stand


DIRECTED = EdgeRules(Direction.DIRECTED)
"""Rules by which an edge is an entry of its target's list: where nothing of a source's own rules was kept."""


@dataclass(frozen=True, slots=True)
class TypePlaces:
    """Where the nodes and lists of each type begin, and which types each relation joins: int64 arrays."""

    first_nodes: np.ndarray
    """[types + 1]"""
    first_lists: np.ndarray
    """[types + 1]"""
    slots: np.ndarray
    """Lists of a node of each type."""
    slot_of: np.ndarray
    """The slot of each relation among those that its target type reads."""
    sources: np.ndarray
    """Type of the nodes that each relation reads."""
    targets: np.ndarray
    """Type of the nodes that read it."""
    rules: tuple[EdgeRules, ...]
    """How edges of each relation become entries."""
    reverses: tuple[tuple[int, ...], ...]
    """By relation, those that are its reverse: one that importing added, or several that the source lists itself."""
    has_one_list_each: bool
    """Whether every node has one list, which then has the number of its node."""

    layout: np.ndarray
    """`kernels.layout.pack_layout` of it."""

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """The types of these nodes (int64): int64."""
        return np.asarray(np.searchsorted(self.first_nodes, nodes, side="right") - 1)

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        """All lists of these nodes (int64): int64."""
        if self.has_one_list_each:
            return nodes
        kinds = self.kinds_of(nodes)
        counts = self.slots[kinds]
        firsts = self.first_lists[kinds] + (nodes - self.first_nodes[kinds]) * counts
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(firsts, counts) + within)

    def readers_of_lists(self, lists: np.ndarray) -> np.ndarray:
        """The node that each of these lists (int64) is of: int64."""
        if self.has_one_list_each:
            return lists
        # A type without lists begins where the next one does: the last of those that begin there has the list.
        kinds = np.searchsorted(self.first_lists, lists, side="right") - 1
        positions = (lists - self.first_lists[kinds]) // np.maximum(1, self.slots[kinds])
        return np.asarray(self.first_nodes[kinds] + positions)

    def list_by(self, relation: int, readers: np.ndarray) -> np.ndarray:
        """The list of each reader (int64) by a relation that its type reads: int64."""
        if self.has_one_list_each:
            return readers
        kind = self.targets[relation]
        place = readers - self.first_nodes[kind]
        return np.asarray(self.first_lists[kind] + place * self.slots[kind] + self.slot_of[relation])


def places_of(schema: GraphSchema) -> TypePlaces:
    relations = schema.relations
    sources = [schema.place_of(one.source) for one in relations]
    targets = [schema.place_of(one.target) for one in relations]
    nodes, slots = [kind.nodes for kind in schema.types], schema.slots
    reverses = [
        tuple(
            place
            for place, other in enumerate(relations)
            if (other.target, other.reverse_of, other.source) == (one.source, one.name, one.target)
        )
        for one in relations
    ]
    return TypePlaces(
        np.array(schema.first_nodes, np.int64),
        np.cumsum([0, *(count * each for count, each in zip(nodes, slots, strict=True))]),
        np.array(slots, np.int64),
        np.array([targets[:place].count(target) for place, target in enumerate(targets)], np.int64),
        np.array(sources, np.int64),
        np.array(targets, np.int64),
        tuple(one.edge_rules for one in relations),
        tuple(reverses),
        all(each == 1 for each in slots),
        pack_layout(nodes, [*zip(sources, targets, strict=True)]),
    )


def places_of_one_type(nodes: int, rules: EdgeRules = DIRECTED) -> TypePlaces:
    """Places of so many nodes of one type, with one relation."""
    return places_of(one_type(nodes, 0, edge_rules=rules))
