"""A graph as training may see it; ranking and refitting see the same.

Inductive training, where test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from gnnserve_api.graph_schema import AS_LISTED, GraphSchema
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Scope
from gnnserve_worker.generation.features import Normalized, fit_normalization
from gnnserve_worker.graph.store import Graph, GraphData, Relation, Splits
from gnnserve_worker.tasks.course import Visible
from gnnserve_worker.tasks.generated import LearningProblem


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Graph and problem that all networks of a revision are trained on. Which features they read differs."""

    data: GraphData
    """The graph with all edges, as requests will see it; validation uses it."""
    visible: Visible
    """Relations with the edges that training may see: those of `data`, where it may see all."""
    features: Sequence[Normalized | None]
    """Scaled features by type; None: it has none."""
    classes: int
    """Width of the networks' outputs, as `NetworkManifest.classes`."""
    problem: LearningProblem
    """What networks learn."""

    @property
    def schema(self) -> GraphSchema:
        return self.data.schema

    @property
    def splits(self) -> Splits:
        return self.data.splits

    # --- where nodes are of one type

    @property
    def graph(self) -> Graph:
        """The lists of the one relation."""
        return self.data.graph

    @property
    def visible_graph(self) -> Graph:
        """The lists of the one relation that training may see."""
        (relation,) = self.visible
        return relation.lists

    @property
    def normalized(self) -> Normalized:
        """Features of the one type."""
        (features,) = self.features
        if features is None:
            raise ValueError("nodes without features")
        return features


def of_target_alone(data: TrainingSet) -> TrainingSet:
    """Its nodes of the first type alone, which read none: what networks over one row of a node are trained on."""
    kind = data.data.target
    none = Graph(np.zeros(kind.nodes + 1, np.int64), np.zeros(0, np.int32))
    relations = (Relation(kind.name, "", kind.name, none, edge_rules=AS_LISTED),)
    alone = replace(data.data, types=(kind,), relations=relations)
    return replace(data, data=alone, visible=relations, features=data.features[:1])


def visible_nodes(nodes: int, splits: Splits, scope: Scope) -> np.ndarray:
    """Ids of the nodes whose features and edges training may see."""
    return np.arange(nodes) if scope == Scope.TRANSDUCTIVE else splits.train


def training_set(
    data: GraphData, problem: LearningProblem, classes: int, scope: Scope, method: Normalization
) -> TrainingSet:
    """With inductive training, edges of nodes of the first type that are not for training are hidden, and so are the
    features of these nodes; nodes of other types belong to no part of the split, and are always seen."""
    features = scaled_features(data, scope, method)
    visible: Visible = data.relations
    if scope is Scope.INDUCTIVE:
        seen = _seen(data, scope)
        visible = [replace(one, lists=_kept(one.lists, seen[one.source], seen[one.target])) for one in data.relations]
    return TrainingSet(data, visible, features, classes, problem)


def scaled_features(data: GraphData, scope: Scope, method: Normalization) -> list[Normalized | None]:
    """Features of each type, scaled by those that training may see; None: it has none."""
    seen = _seen(data, scope)
    return [
        None if kind.features is None else fit_normalization(kind.features, method, np.flatnonzero(seen[kind.name]))
        for kind in data.types
    ]


def _seen(data: GraphData, scope: Scope) -> dict[str, np.ndarray]:
    """Whether training may see each node, by the name of its type: bool [nodes]."""
    seen = {kind.name: np.ones(kind.nodes, dtype=bool) for kind in data.types}
    if scope is Scope.INDUCTIVE:
        seen[data.target.name][:] = False
        seen[data.target.name][data.splits.train] = True
    return seen


def means_by_relation(data: GraphData, relation: Relation) -> sp.csr_array:
    """Rows that average what each node of the target reads of those of the source, float32 [targets, sources]. The
    relation's lists need not be those of the graph."""
    return mean_rows(relation.lists.indptr, relation.lists.indices, data.type_named(relation.source).nodes)


def mean_rows(indptr: np.ndarray, indices: np.ndarray, sources: int) -> sp.csr_array:
    """Rows that average what each list names of so many rows, float32 [lists, sources]."""
    degrees = np.diff(indptr)
    values = np.repeat((1.0 / np.maximum(degrees, 1)).astype(np.float32), degrees)
    return sp.csr_array((values, indices, indptr), shape=(len(degrees), sources))


def _kept(lists: Graph, sources: np.ndarray, targets: np.ndarray) -> Graph:
    """The edges whose two ends are kept: bool of each position of either type."""
    return lists.of_entries(targets[lists.targets()] & sources[lists.indices])
