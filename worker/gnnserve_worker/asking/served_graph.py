"""The graph of a served revision, as questions are about it: its nodes, what they are called, whom they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema, one_type
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.asking.asked_nodes import TARGET_NODES, AskedNodes, GraphTypes
from gnnserve_worker.asking.described_types import DescribedTypes
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.node_lists import ListsByRelation, NodeLists
from gnnserve_worker.asking.type_ids import QualifiedIds
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds


@dataclass(frozen=True, slots=True)
class ServedGraph:
    naming: NodeNaming
    """How requests and answers call the nodes that are answered for."""
    types: GraphSchema
    """Types of nodes and relations, as the revision has them. A graph of one type has one of each, without names."""
    ids: QualifiedIds
    """Ids of each of `types`."""
    described: DescribedTypes
    """How requests and answers name types."""
    count: Callable[[], int]
    """How many of the nodes that are answered for there are now."""
    lists_by_relation: ListsByRelation
    """Numbers of the nodes that a stored node (its number) reads, as it is now, int32: by each relation of its type,
    with the relation's place."""
    neighbours_of: Callable[[int], np.ndarray]
    """Positions in the neighbour list of a stored node, as it is now, int32; over several types, numbers of the nodes
    that it reads by any relation."""
    readers_of: Callable[[int], np.ndarray]
    """Numbers of the nodes whose neighbour lists name a stored node, int64; all lists are looked through for it where
    the graph does not change."""
    labels: np.ndarray | None = None
    """Labels of stored nodes as the graph's source has them: int64 [nodes], classes, -1 where unknown; or uint8 [nodes,
    classes]. Mapped. None: they are not known."""
    lists: NodeLists = field(init=False)
    """The same as answers tell it."""
    nodes: int = field(init=False)
    """Positions of nodes that are answered for are below it. Where the graph changes, room for new nodes is counted."""
    numbered: GraphSchema = field(init=False)
    """`types` as nodes are numbered: where the graph changes, room for new nodes of each type is counted."""
    first_new: int = field(init=False)
    """Nodes that requests bring are numbered from it on: behind all nodes, those of other types among them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", self.naming.nodes)
        lists = self.described.lists(self.types, self.lists_by_relation, self.neighbours_of)
        object.__setattr__(self, "lists", lists)
        object.__setattr__(self, "numbered", self.ids.numbered)
        object.__setattr__(self, "first_new", self.ids.numbered.first_nodes[-1])


def types_of_one(ids: NodeIds | LivingIds | None, nodes: int, features: int | None, edges: int) -> GraphTypes:
    """Types and relations of a graph whose nodes have one type. `ids`: None: positions."""
    kind = NodeIdKind.POSITIONS if ids is None else ids.kind
    types = one_type(nodes, edges, features, kind.value)
    return GraphTypes(types, types, {"": ids})


def plain_graph(ids: NodeIds | LivingIds | None, nodes: int, asked: AskedNodes = TARGET_NODES) -> ServedGraph:
    """A graph of which no more is known than its nodes, called by `ids`; None: by positions."""
    of_one = types_of_one(ids, nodes, None, 0)
    called, empty = asked.call(nodes, of_one), np.zeros(0, np.int32)
    return ServedGraph(
        called.naming, of_one.types, called.ids, called.described, called.count, lambda _: ((0, empty),),
        lambda _: empty, lambda _: empty,
    )  # fmt: skip
