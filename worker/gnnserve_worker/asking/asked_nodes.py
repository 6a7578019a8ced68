"""Nodes that a task asks about, and with that, how requests call them. The task's opener has one of these objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, GraphSchema, SchemaNames
from gnnserve_worker.asking.described_types import TYPES_IN_TEXTS, WITHOUT_TYPES, DescribedTypes, TypesByName
from gnnserve_worker.asking.naming import NodeNaming, TargetNaming, TextsWithTypesNaming, naming_of
from gnnserve_worker.asking.type_ids import QualifiedIds, TargetIds
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


@dataclass(frozen=True, slots=True)
class CalledNodes:
    """How the nodes of a graph are called."""

    naming: NodeNaming
    ids: QualifiedIds
    described: DescribedTypes
    """How requests and answers name types."""


class AskedNodes(Protocol):
    def call(self, own: AnyIds, nodes: int, graph: GraphTypes) -> CalledNodes:
        """`own`, `nodes`: ids and number of the nodes that are answered for."""


class _TargetNodes:
    def call(self, own: AnyIds, nodes: int, graph: GraphTypes) -> CalledNodes:
        return _TARGET_NODES[graph.types.names](naming_of(own, nodes), graph)


def _by_ids(naming: NodeNaming, graph: GraphTypes) -> CalledNodes:
    return CalledNodes(naming, QualifiedIds(graph.types, graph.numbered, graph.ids), WITHOUT_TYPES)


def _by_types(naming: NodeNaming, graph: GraphTypes) -> CalledNodes:
    ids = TargetIds(graph.types, graph.numbered, graph.ids)
    return CalledNodes(TargetNaming(naming, ids), ids, TypesByName(graph.types.types))


_TARGET_NODES: Mapping[SchemaNames, Callable[[NodeNaming, GraphTypes], CalledNodes]] = {
    WITHOUT_NAMES: _by_ids,
    NAMES_OF_TYPES: _by_types,
}
"""How nodes of the first type are called, by the names that the graph has."""


class _AllNodes:
    def call(self, own: AnyIds, nodes: int, graph: GraphTypes) -> CalledNodes:
        assert own is not None  # noqa: S101  (nodes of several types in one numbering have texts)
        naming = TextsWithTypesNaming(own, nodes)
        return CalledNodes(naming, QualifiedIds(graph.types, graph.numbered, graph.ids), TYPES_IN_TEXTS)


TARGET_NODES: AskedNodes = _TargetNodes()
"""Nodes of one type: the only one, or the first of several."""
ALL_NODES: AskedNodes = _AllNodes()
"""Nodes of every type, by texts that name the type of each."""
