"""Where the nodes and neighbour lists of each type stand in a graph, and by which rules edges of each relation become
entries of lists. A graph of one type has one relation, and the list of a node has the node's own number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_api.graph_schema import GraphSchema, one_type
from gnnserve_worker.kernels.layout import pack_layout

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
