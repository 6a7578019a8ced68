"""The nodes and edges of a graph that training may see; ranking and refitting see the same.

Inductive training, where test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Scope
from gnnserve_worker.generation.features import Normalized, fit_normalization
from gnnserve_worker.graph.store import Graph, GraphData, Relation, Splits
from gnnserve_worker.tasks.generated import LearningProblem


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Graph, problem and splits that all variants of a revision are trained on. Their features differ."""

    graph: Graph
    """The graph with all edges, as requests will see it; validation uses it."""
    visible: Graph
    """The graph with the edges that training may use: with inductive training, those among training nodes."""
    classes: int
    """Width of the networks' outputs, as `NetworkManifest.classes`."""
    splits: Splits
    problem: LearningProblem[Graph]
    """What networks learn."""


def visible_nodes(nodes: int, splits: Splits, scope: Scope) -> np.ndarray:
    """Ids of the nodes whose features and edges training may see."""
    return np.arange(nodes) if scope == Scope.TRANSDUCTIVE else splits.train


def training_set(
    graph: Graph, problem: LearningProblem[Graph], classes: int, splits: Splits, scope: Scope
) -> TrainingSet:
    if scope == Scope.TRANSDUCTIVE:
        return TrainingSet(graph, graph, classes, splits, problem)
    kept = np.zeros(graph.nodes, dtype=bool)
    kept[splits.train] = True
    return TrainingSet(graph, graph.induced(kept), classes, splits, problem)


@dataclass(frozen=True, slots=True)
class RelationTrainingSet:
    """Graph and problem that a network over relations is trained on: scaled features by type, means by relation."""

    data: GraphData
    schema: GraphSchema
    features: Sequence[Normalized | None]
    """Features by type; None: it has none."""
    means: Sequence[sp.csr_array]
    """By relation, float32 [nodes of the target, nodes of the source]: rows that average what a node reads."""
    visible: Sequence[Relation]
    """Relations with the edges that training may see: those of `data`, where it may see all."""
    problem: LearningProblem[Sequence[Relation]]
    """What networks learn."""


def relation_training_set(
    data: GraphData, method: Normalization, scope: Scope, problem: LearningProblem[Sequence[Relation]]
) -> RelationTrainingSet:  # fmt: skip
    """With inductive training, edges of nodes of the classified type that are not for training are hidden, and so are
    the features of these nodes; nodes of other types belong to no part of the split, and are always seen."""
    schema = data.schema
    is_seen = np.ones(data.target.nodes, dtype=bool)
    if scope is Scope.INDUCTIVE:
        is_seen[:] = False
        is_seen[data.splits.train] = True
    seen = {kind.name: np.ones(kind.nodes, dtype=bool) for kind in data.types} | {data.target.name: is_seen}
    features = [
        None if kind.features is None else fit_normalization(kind.features, method, np.flatnonzero(seen[kind.name]))
        for kind in data.types
    ]
    means = [means_by_relation(data, one) for one in data.relations]
    if scope is Scope.TRANSDUCTIVE:
        return RelationTrainingSet(data, schema, features, means, data.relations, problem)
    visible = [replace(one, lists=_kept(one.lists, seen[one.source], seen[one.target])) for one in data.relations]
    return RelationTrainingSet(data, schema, features, means, visible, problem)


def means_by_relation(data: GraphData, relation: Relation) -> sp.csr_array:
    """As `RelationTrainingSet.means`. The relation's lists need not be those of the graph."""
    return mean_rows(relation.lists.indptr, relation.lists.indices, data.type_named(relation.source).nodes)


def mean_rows(indptr: np.ndarray, indices: np.ndarray, sources: int) -> sp.csr_array:
    """Rows that average what each list names of so many rows, float32 [lists, sources]."""
    degrees = np.diff(indptr)
    values = np.repeat((1.0 / np.maximum(degrees, 1)).astype(np.float32), degrees)
    return sp.csr_array((values, indices, indptr), shape=(len(degrees), sources))


def _kept(lists: Graph, sources: np.ndarray, targets: np.ndarray) -> Graph:
    """The edges whose two ends are kept: bool of each position of either type."""
    of_edge = lists.targets()
    is_kept = targets[of_edge] & sources[lists.indices]
    counts = np.bincount(of_edge[is_kept], minlength=lists.nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Graph(indptr, np.ascontiguousarray(lists.indices[is_kept]))
