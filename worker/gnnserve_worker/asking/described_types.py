"""Types of nodes as requests and answers name them: not at all, within texts, or by fields of their own.

Which of these a graph has is decided with how its nodes are called (`asked_nodes.py`): an object, by which all else of
answers goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest, TypeManifest
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.node_lists import ListsByRelation, NodeLists, OneList, RelationLists
from gnnserve_worker.asking.overlay_ids import BRING_IT
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.type_ids import QualifiedIds

NeighboursOf = Callable[[int], np.ndarray]
_FIELDS = ("start", "count", "contains")


@dataclass(frozen=True, slots=True)
class NodesPage:
    """Positions that follow each other, as they are called."""

    listed: list[int | str | None]
    """Id of each, as far as they are taken; None: its node has left."""
    total: int
    """Nodes that the graph has, of the type where there is one."""
    kind: NodeIdKind
    type: str | UnsetType = UNSET


class DescribedTypes(Protocol):
    @property
    def types(self) -> tuple[TypeManifest, ...]:
        """Types that answers tell; empty: nodes are of one, or called by texts that name the only one."""
        ...  # pragma: no cover

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a query that lists nodes."""
        ...  # pragma: no cover

    @property
    def hint(self) -> str:
        """What else an id may mean that the graph lacks, where requests bring nodes."""
        ...  # pragma: no cover

    @property
    def no_overlay(self) -> OverlaySchemas:
        """Schemas where nothing can be brought."""
        ...  # pragma: no cover

    def lists(self, schema: GraphSchema, lists_by_relation: ListsByRelation, neighbours_of: NeighboursOf) -> NodeLists:
        """What nodes read, as answers tell it."""
        ...  # pragma: no cover

    def bare_relations(self, schema: GraphSchema) -> tuple[RelationManifest, ...]:
        """Relations whose edges are told without a name."""
        ...  # pragma: no cover

    def page(
        self, naming: NodeNaming, ids: QualifiedIds, nodes: int, kind: TypeManifest | None, start: int, count: int
    ) -> NodesPage:
        """What is at `count` positions from `start` on. `nodes`: how many are answered for. `kind`: of that type;
        None: of the first one."""
        ...  # pragma: no cover


class _WithoutTypes:
    types: tuple[TypeManifest, ...] = ()
    fields = _FIELDS
    hint = BRING_IT
    no_overlay = overlay_schemas.NONE

    def lists(self, schema: GraphSchema, lists_by_relation: ListsByRelation, neighbours_of: NeighboursOf) -> NodeLists:
        return OneList(neighbours_of)

    def bare_relations(self, schema: GraphSchema) -> tuple[RelationManifest, ...]:
        return schema.relations[:1]

    def page(
        self, naming: NodeNaming, ids: QualifiedIds, nodes: int, kind: TypeManifest | None, start: int, count: int
    ) -> NodesPage:
        return NodesPage(naming.listed(start, start + count), nodes, naming.kind)


class _TypesInTexts(_WithoutTypes):
    no_overlay = overlay_schemas.FOLDED


@dataclass(frozen=True, slots=True)
class TypesInOrder:
    """Nodes of all types are in one numbering, called by texts that name the type. Those of one type come behind those
    of another, without the room between them."""

    types: tuple[TypeManifest, ...]

    fields = _FIELDS
    hint = BRING_IT
    no_overlay = overlay_schemas.FOLDED

    def lists(self, schema: GraphSchema, lists_by_relation: ListsByRelation, neighbours_of: NeighboursOf) -> NodeLists:
        return RelationLists(schema.relations, lists_by_relation)

    def bare_relations(self, schema: GraphSchema) -> tuple[RelationManifest, ...]:
        return ()

    def page(
        self, naming: NodeNaming, ids: QualifiedIds, nodes: int, kind: TypeManifest | None, start: int, count: int
    ) -> NodesPage:
        listed: list[int | str | None] = []
        first, end = 0, start + count
        for each in ids.types.types:
            taken = ids.taken_of(each)
            own = ids.listed(each, max(0, start - first), min(taken, end - first))
            listed += (None if one is None else f"{each.name}/{one}" for one in own)
            first += taken
        return NodesPage(listed, nodes, naming.kind)


@dataclass(frozen=True, slots=True)
class TypesByName:
    """Requests may name types, and answers tell them."""

    types: tuple[TypeManifest, ...]

    fields = (*_FIELDS, "type")
    # An id without a type is one of the stored nodes, whose own message says enough.
    hint = ""
    no_overlay = overlay_schemas.NONE

    def lists(self, schema: GraphSchema, lists_by_relation: ListsByRelation, neighbours_of: NeighboursOf) -> NodeLists:
        return RelationLists(schema.relations, lists_by_relation)

    def bare_relations(self, schema: GraphSchema) -> tuple[RelationManifest, ...]:
        return ()

    def page(
        self, naming: NodeNaming, ids: QualifiedIds, nodes: int, kind: TypeManifest | None, start: int, count: int
    ) -> NodesPage:
        shown = kind or self.types[0]
        listed = ids.listed(shown, start, start + count)
        return NodesPage(listed, ids.nodes_of(shown), ids.kind_of(shown), shown.name)


WITHOUT_TYPES: DescribedTypes = _WithoutTypes()
TYPES_IN_TEXTS: DescribedTypes = _TypesInTexts()
"""Nodes of one type without a name are called by texts that name it."""
