"""What training may see of a graph, and what ranking and refitting see with it.

Inductive training, where test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.profile import Metric
from gnnserve_api.spec.model import Scope
from gnnserve_worker.graph.store import Graph, Splits


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What every variant of a revision is trained on; only the features differ between them."""

    graph: Graph
    """All edges: validation sees what serving will see."""
    visible: Graph
    """The edges that training may use: among training nodes only when inductive."""
    labels: np.ndarray
    """As in GraphData."""
    classes: int
    splits: Splits
    metric: Metric | None = None
    """By what the best epoch is chosen; None: accuracy, or F1-micro where a node may have several classes."""


def visible_nodes(nodes: int, splits: Splits, scope: Scope) -> np.ndarray:
    """Ids of the nodes that training may see, labels apart."""
    return np.arange(nodes) if scope == Scope.TRANSDUCTIVE else splits.train


def training_set(
    graph: Graph, labels: np.ndarray, classes: int, splits: Splits, scope: Scope, metric: Metric | None = None
) -> TrainingSet:
    if scope == Scope.TRANSDUCTIVE:
        return TrainingSet(graph, graph, labels, classes, splits, metric)
    kept = np.zeros(graph.nodes, dtype=bool)
    kept[splits.train] = True
    return TrainingSet(graph, graph.induced(kept), labels, classes, splits, metric)
