"""The lists of a graph of several types as one array of lists: what serving samples from, and what a repository keeps.

A node's lists, one for each relation that its type reads, stand one behind the other and hold numbers of nodes
(`typed.py`). One array serves kernels better than one for each relation, whose number no compiled code would know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.typed import RelationManifest, TypedGraphManifest, TypeManifest
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.kernels.layout import pack_layout


@dataclass(frozen=True, slots=True)
class TypedGraph(Graph):
    """Lists of all nodes: `indptr` is int64 [lists + 1], `indices` numbers of nodes. Of a graph that changes, `indptr`
    is int64 [lists, 2], and nodes of each type are counted with the room for new ones (`living_typed.py`)."""

    typed: TypedGraphManifest
    layout: np.ndarray
    """`layout.pack_layout` of it, for kernels."""

    @property
    def nodes(self) -> int:
        return self.typed.first_nodes[-1]

    def list_of(self, node: int) -> np.ndarray:
        """The nodes that it reads, by whichever relation: int32 numbers, relation after relation."""
        first, count = self._lists_of(node)
        if not count:
            return self.indices[:0]
        return np.concatenate([self.one_list(place) for place in range(first, first + count)])

    def lists_by_relation(self, node: int) -> list[tuple[int, np.ndarray]]:
        """Each relation that it reads, by its place, and the nodes that it reads by it: int32 numbers, ascending."""
        first, _ = self._lists_of(node)
        return [(place, self.one_list(first + slot)) for slot, place in enumerate(self._read_by(node))]

    def _read_by(self, node: int) -> list[int]:
        ends = zip(self.typed.first_nodes[1:], self.typed.types, strict=True)
        name = next(kind.name for end, kind in ends if node < end)
        return [place for place, relation in enumerate(self.typed.relations) if relation.target == name]

    def one_list(self, place: int) -> np.ndarray:
        """The nodes of one list: int32 numbers, ascending."""
        return Graph.list_of(self, place)

    def targets(self) -> np.ndarray:
        """The node that reads each entry of `indices`, int64 [edges]."""
        per_node = np.repeat(self._slots(), [kind.nodes for kind in self.typed.types])
        of_list = np.repeat(np.arange(self.nodes, dtype=np.int64), per_node)
        return np.repeat(of_list, np.diff(self.indptr))

    def _slots(self) -> list[int]:
        read = [relation.target for relation in self.typed.relations]
        return [read.count(kind.name) for kind in self.typed.types]

    def first_list_of(self, node: int) -> int:
        """The first of its lists."""
        return self._lists_of(node)[0]

    def _lists_of(self, node: int) -> tuple[int, int]:
        """The first of its lists, and how many it has."""
        first, before = 0, 0
        for kind, count in zip(self.typed.types, self._slots(), strict=True):
            if node < before + kind.nodes:
                return first + (node - before) * count, count
            first, before = first + kind.nodes * count, before + kind.nodes
        raise IndexError(node)


def typed_graph(typed: TypedGraphManifest, indptr: np.ndarray, indices: np.ndarray) -> TypedGraph:
    """`indptr` and `indices`: as `merged_lists` made them."""
    nodes = [kind.nodes for kind in typed.types]
    ends = [(typed.place_of(relation.source), typed.place_of(relation.target)) for relation in typed.relations]
    return TypedGraph(indptr, indices, typed, pack_layout(nodes, ends))


def describe_typed(data: TypedGraphData) -> TypedGraphManifest:
    return TypedGraphManifest(
        types=tuple(
            TypeManifest(
                name=kind.name,
                nodes=kind.nodes,
                features=None if kind.features is None else kind.features.shape[1],
                node_ids="Positions" if kind.ids is None else kind.ids.kind.value,
            )
            for kind in data.types
        ),
        relations=tuple(
            RelationManifest(
                one.source, one.name, one.target, one.lists.edges, one.reverse_of, one.merges, one.both_ways
            )
            for one in data.relations
        ),
    )


def merged_lists(typed: TypedGraphManifest, lists: Sequence[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """All lists in the order of `kernels/layout.py`, from those of each relation, whose entries are positions within
    its source type: int64 [lists + 1], and numbers of nodes, int32 [edges]."""
    lengths = []
    read_by = {
        kind.name: [place for place, one in enumerate(typed.relations) if one.target == kind.name]
        for kind in typed.types
    }
    for kind in typed.types:
        of_type = [np.diff(lists[place].indptr) for place in read_by[kind.name]]
        lengths.append(np.stack(of_type, axis=1).ravel() if of_type else np.zeros(0, np.int64))
    indptr = np.zeros(typed.lists + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=indptr[1:])
    indices = np.empty(int(indptr[-1]), dtype=np.int32)
    first_list = 0
    for kind in typed.types:
        relations = read_by[kind.name]
        for slot, place in enumerate(relations):
            own = lists[place]
            begins = indptr[first_list + slot : first_list + kind.nodes * len(relations) : len(relations)]
            moved = np.repeat(begins - own.indptr[:-1], np.diff(own.indptr))
            source = typed.place_of(typed.relations[place].source)
            indices[moved + np.arange(own.edges)] = own.indices + typed.first_nodes[source]
        first_list += kind.nodes * len(relations)
    return indptr, indices


def parted_lists(typed: TypedGraphManifest, indptr: np.ndarray, indices: np.ndarray) -> tuple[Graph, ...]:
    """The lists of each relation, from which `merged_lists` makes these."""
    parted, first_list = [], 0
    for kind in typed.types:
        relations = [one for one in typed.relations if one.target == kind.name]
        for slot, one in enumerate(relations):
            own = np.arange(first_list + slot, first_list + kind.nodes * len(relations), len(relations))
            begins, lengths = indptr[own], indptr[own + 1] - indptr[own]
            starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            entries = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
            first_node = typed.first_nodes[typed.place_of(one.source)]
            parted.append(Graph(starts, (indices[entries] - first_node).astype(np.int32)))
        first_list += kind.nodes * len(relations)
    return tuple(parted)
