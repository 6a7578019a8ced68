"""The nodes and edges of a graph that training may see; ranking and refitting see the same.

Inductive training, where test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.profile import Metric
from gnnserve_api.spec.model import Scope
from gnnserve_api.training import Majority
from gnnserve_worker.generation.scores import majority_of
from gnnserve_worker.graph.links import LinkSet
from gnnserve_worker.graph.store import Graph, Splits


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Graph, labels and splits that all variants of a revision are trained on. Their features differ."""

    graph: Graph
    """The graph with all edges, as requests will see it; validation uses it."""
    visible: Graph
    """The graph with the edges that training may use: with inductive training, those among training nodes."""
    labels: np.ndarray
    """int64 [nodes], or uint8 [nodes, classes] where a node may have several classes, as in `GraphData`."""
    classes: int
    splits: Splits
    metric: Metric | None = None
    """Metric by which the best epoch is chosen; None: accuracy, or micro F1 where a node may have several classes."""
    links: LinkSet | None = None
    """What is learnt instead of labels: links; None: labels are."""

    @property
    def majority(self) -> Majority | None:
        """What networks must be better than; None where links are learnt."""
        if self.links is not None:
            return None
        return majority_of(self.labels, self.classes, self.splits, self.metric)


def visible_nodes(nodes: int, splits: Splits, scope: Scope) -> np.ndarray:
    """Ids of the nodes whose features and edges training may see."""
    return np.arange(nodes) if scope == Scope.TRANSDUCTIVE else splits.train


def training_set(
    graph: Graph, labels: np.ndarray, classes: int, splits: Splits, scope: Scope, metric: Metric | None = None
) -> TrainingSet:
    if scope == Scope.TRANSDUCTIVE:
        return TrainingSet(graph, graph, labels, classes, splits, metric)
    kept = np.zeros(graph.nodes, dtype=bool)
    kept[splits.train] = True
    return TrainingSet(graph, graph.induced(kept), labels, classes, splits, metric)
