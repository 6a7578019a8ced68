"""Graphs of several types of nodes and relations, in memory, as they were imported.

Within its type a node has a position, from 0. All nodes together have one numbering, type after type in the order of
`TypedGraphData.types`, whose first one is the type that is classified: the position of such a node is its number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.repository import ChangedSource
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.store import FeatureColumn, Features, Finding, Graph, Splits


@dataclass(frozen=True, slots=True)
class NodeType:
    name: str
    nodes: int
    features: Features | None
    """As in the source; None: nodes of this type have none, and get embeddings that are learned."""
    feature_columns: tuple[FeatureColumn, ...] = ()
    """Columns in the order of the features; empty where the source names no columns."""
    ids: NodeIds | None = None
    """The source's own ids of these nodes; None: it numbers them from 0."""


@dataclass(frozen=True, slots=True)
class EdgeSplits:
    """The edges of a relation as the source lists them, each with its part."""

    sources: np.ndarray
    """Positions within the source type, integers [edges]."""
    targets: np.ndarray
    """Positions within the target type, as many."""
    parts: np.ndarray
    """0 train, 1 validation, 2 test, as many."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Edges of one kind, from nodes of one type to nodes of one type, which read them."""

    source: str
    """Type of the nodes that are read."""
    name: str
    target: str
    """Type of the nodes that read."""
    lists: Graph
    """Row i lists the nodes of the source type, by position, that node i of the target type reads."""
    reverse_of: str | None = None
    """The relation that it is the reverse of, which importing added; None: it is the source's."""
    merges: bool = False
    """Whether edges between the same two nodes count once."""
    both_ways: bool = False
    """Whether an edge between two nodes of one type lets either read the other."""
    edge_splits: EdgeSplits | None = None
    """None: the source does not say which edges are held out where links are scored."""

    @property
    def key(self) -> str:
        """For people: `paper written_by author`."""
        return f"{self.source} {self.name} {self.target}"


@dataclass(frozen=True, slots=True)
class TypedGraphData:
    """A typed graph as it was imported, checked and ready for generation."""

    source: str
    """Name for messages."""
    digest: str
    """Identity of the content: hex, safe as a folder name."""
    types: tuple[NodeType, ...]
    """The target type first."""
    relations: tuple[Relation, ...]
    """In the order of their target types, so that those that a type reads stand together."""
    labels: np.ndarray
    """Labels of the target type: int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] of 0
    and 1 when multi-label."""
    classes: Classes
    splits: Splits
    """Positions of nodes of the target type."""
    findings: tuple[Finding, ...] = ()
    """What importing changed or left out."""
    made_of: ChangedSource | None = None
    """None: it is its source's, without changes of a log."""
    names: NodeIds | None = None
    """Where links are scored: what all nodes are called, as `user/17`, in their numbering, and splits are of all nodes.
    None: nodes are classified."""

    @property
    def target(self) -> NodeType:
        """The type that is classified."""
        return self.types[0]

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.types)

    @property
    def edges(self) -> int:
        """Edges of all relations; an edge whose reverse was added counts twice."""
        return sum(relation.lists.edges for relation in self.relations)

    def type_named(self, name: str) -> NodeType:
        return next(kind for kind in self.types if kind.name == name)

    def read_by(self, target: str) -> tuple[Relation, ...]:
        """The relations that nodes of the type read."""
        return tuple(relation for relation in self.relations if relation.target == target)
