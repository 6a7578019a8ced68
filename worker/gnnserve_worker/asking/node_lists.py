"""The nodes that a node reads, as answers tell them: relation by relation, or in one list.

Which of both a graph has is decided when it is opened, and goes with what its nodes are called: where ids have no type
of their own, relations are not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.files.graph_schema import RelationManifest
from gnnserve_api.http.explain import ReadRelation

ListsByRelation = Callable[[int], Sequence[tuple[int, np.ndarray]]]
"""By the number of a node, the relations of its type, each by its place, and numbers of the nodes that it reads."""


@dataclass(frozen=True, slots=True)
class ReadList:
    """Nodes that a node reads by one relation, or all that it reads."""

    neighbours: np.ndarray
    """Their numbers, int64, ascending."""
    relation: ReadRelation | UnsetType = UNSET
    """Unset: relations are not told."""

    @property
    def name(self) -> str | UnsetType:
        return UNSET if self.relation is UNSET else self.relation.name


class NodeLists(Protocol):
    def of(self, node: int) -> tuple[ReadList, ...]:
        """Lists of a stored node, by its number, as they are now."""

    def relations_of(self, lists: Sequence[ReadList]) -> tuple[ReadRelation, ...] | UnsetType:
        """The relations of such lists; unset: they are not told."""


@dataclass(frozen=True, slots=True)
class OneList:
    """All that a node reads, whatever the relation."""

    neighbours_of: Callable[[int], np.ndarray]

    def of(self, node: int) -> tuple[ReadList, ...]:
        return (ReadList(_ascending(self.neighbours_of(node))),)

    def relations_of(self, lists: Sequence[ReadList]) -> UnsetType:
        return UNSET


@dataclass(frozen=True, slots=True)
class RelationLists:
    """Neighbours that a node reads by each relation of its type."""

    relations: tuple[RelationManifest, ...]
    lists_by_relation: ListsByRelation

    def of(self, node: int) -> tuple[ReadList, ...]:
        return tuple(
            ReadList(_ascending(listed), ReadRelation(relation.name, relation.source, len(listed)))
            for relation, listed in ((self.relations[place], listed) for place, listed in self.lists_by_relation(node))
        )

    def relations_of(self, lists: Sequence[ReadList]) -> tuple[ReadRelation, ...]:
        return tuple(one.relation for one in lists if one.relation is not UNSET)


def _ascending(listed: np.ndarray) -> np.ndarray:
    return np.sort(listed).astype(np.int64)
