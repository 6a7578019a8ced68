"""Nodes that a task asks about, and with that, how requests call them. The task's opener has one of these objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, GraphSchema, SchemaNames
from gnnserve_worker.asking.described_types import (
    TYPES_IN_TEXTS,
    WITHOUT_TYPES,
    DescribedTypes,
    TypesByName,
    TypesInOrder,
)
from gnnserve_worker.asking.naming import NodeNaming, TargetNaming, TextsWithTypesNaming, naming_of
from gnnserve_worker.asking.type_ids import LivingNames, QualifiedIds, TargetIds
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds

AnyIds = NodeIds | LivingIds | None
"""Ids of nodes; None: their positions."""


@dataclass(frozen=True, slots=True)
class GraphTypes:
    """Types of a graph as it is opened, and their ids."""

    types: GraphSchema
    """As the revision has them."""
    numbered: GraphSchema
    """As nodes are numbered: where the graph changes, room for new nodes of each type is counted."""
    ids: Mapping[str, AnyIds]
    """Ids of each type."""
    names: NodeIds | None = None
    """What the revision calls the nodes of all types in one numbering, `user/17`; None: as their types call them."""

    @property
    def asked(self) -> AnyIds:
        """Ids of the first type."""
        return self.ids[self.types.target.name]


@dataclass(frozen=True, slots=True)
class CalledNodes:
    """How the nodes of a graph are called."""

    naming: NodeNaming
    ids: QualifiedIds
    described: DescribedTypes
    """How requests and answers name types."""
    count: Callable[[], int]
    """How many of the nodes that are answered for there are now."""


class AskedNodes(Protocol):
    def call(self, nodes: int, graph: GraphTypes) -> CalledNodes:
        """`nodes`: positions of the nodes that are answered for are below it."""


class _TargetNodes:
    def call(self, nodes: int, graph: GraphTypes) -> CalledNodes:
        return _TARGET_NODES[graph.types.names](naming_of(graph.asked, nodes, graph.types.target.name), graph)


def _by_ids(naming: NodeNaming, graph: GraphTypes) -> CalledNodes:
    ids = QualifiedIds(graph.types, graph.numbered, graph.ids)
    return CalledNodes(naming, ids, WITHOUT_TYPES, lambda: ids.nodes_of(graph.types.target))


def _by_types(naming: NodeNaming, graph: GraphTypes) -> CalledNodes:
    ids = TargetIds(graph.types, graph.numbered, graph.ids)
    naming, described = TargetNaming(naming, ids), TypesByName(graph.types.types)
    return CalledNodes(naming, ids, described, lambda: ids.nodes_of(graph.types.target))


_TARGET_NODES: Mapping[SchemaNames, Callable[[NodeNaming, GraphTypes], CalledNodes]] = {
    WITHOUT_NAMES: _by_ids,
    NAMES_OF_TYPES: _by_types,
}
"""How nodes of the first type are called, by the names that the graph has."""


class _AllNodes:
    def call(self, nodes: int, graph: GraphTypes) -> CalledNodes:
        ids = QualifiedIds(graph.types, graph.numbered, graph.ids)
        return _ALL_NODES[graph.types.names](nodes, graph, ids)


def _in_one_type(nodes: int, graph: GraphTypes, ids: QualifiedIds) -> CalledNodes:
    assert graph.asked is not None  # noqa: S101  (nodes of several types in one numbering have texts)
    naming = TextsWithTypesNaming(graph.asked, nodes)
    return CalledNodes(naming, ids, TYPES_IN_TEXTS, lambda: ids.nodes_of(graph.types.target))


def _in_several_types(nodes: int, graph: GraphTypes, ids: QualifiedIds) -> CalledNodes:
    assert graph.names is not None  # noqa: S101  (nodes of several types in one numbering have texts)
    living = [one for one in graph.ids.values() if isinstance(one, LivingIds)]
    names = LivingNames(graph.names, graph.types, ids, living) if living else graph.names
    naming, described = TextsWithTypesNaming(names, nodes), TypesInOrder(graph.types.types)
    return CalledNodes(naming, ids, described, lambda: sum(map(ids.nodes_of, graph.types.types)))


_ALL_NODES: Mapping[SchemaNames, Callable[[int, GraphTypes, QualifiedIds], CalledNodes]] = {
    WITHOUT_NAMES: _in_one_type,
    NAMES_OF_TYPES: _in_several_types,
}
"""How nodes of every type are called, by the names that the graph has."""
TARGET_NODES: AskedNodes = _TargetNodes()
"""Nodes of one type: the only one, or the first of several."""
ALL_NODES: AskedNodes = _AllNodes()
"""Nodes of every type, by texts that name the type of each."""
