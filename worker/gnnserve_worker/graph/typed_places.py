"""Where the nodes and lists of each type begin in a graph of several types that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.typed import TypedGraphManifest


@dataclass(frozen=True, slots=True)
class TypedPlaces:
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
    reverses: Mapping[int, int]
    """By relation, the one that importing added as its reverse."""

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """The types of these nodes (int64): int64."""
        return np.asarray(np.searchsorted(self.first_nodes, nodes, side="right") - 1)

    def lists_of(self, nodes: np.ndarray) -> np.ndarray:
        """All lists of these nodes (int64): int64."""
        kinds = self.kinds_of(nodes)
        counts = self.slots[kinds]
        firsts = self.first_lists[kinds] + (nodes - self.first_nodes[kinds]) * counts
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(firsts, counts) + within)

    def readers_of_lists(self, lists: np.ndarray) -> np.ndarray:
        """The node that each of these lists (int64) is of: int64."""
        # A type without lists begins where the next one does: the last of those that begin there has the list.
        kinds = np.searchsorted(self.first_lists, lists, side="right") - 1
        positions = (lists - self.first_lists[kinds]) // np.maximum(1, self.slots[kinds])
        return np.asarray(self.first_nodes[kinds] + positions)

    def list_by(self, relation: int, readers: np.ndarray) -> np.ndarray:
        """The list of each reader (int64) by a relation that its type reads: int64."""
        kind = self.targets[relation]
        place = readers - self.first_nodes[kind]
        return np.asarray(self.first_lists[kind] + place * self.slots[kind] + self.slot_of[relation])


def places_of(typed: TypedGraphManifest) -> TypedPlaces:
    targets = [typed.place_of(relation.target) for relation in typed.relations]
    slots = [targets.count(place) for place in range(len(typed.types))]
    lists = [kind.nodes * count for kind, count in zip(typed.types, slots, strict=True)]
    named = {(one.source, one.name, one.target): place for place, one in enumerate(typed.relations)}
    return TypedPlaces(
        np.array(typed.first_nodes, np.int64),
        np.cumsum([0, *lists]),
        np.array(slots, np.int64),
        np.array([targets[:place].count(target) for place, target in enumerate(targets)], np.int64),
        np.array([typed.place_of(relation.source) for relation in typed.relations], np.int64),
        np.array(targets, np.int64),
        {
            named[one.target, one.reverse_of, one.source]: place
            for place, one in enumerate(typed.relations)
            if one.reverse_of is not None
        },
    )
