"""The nodes and edges of a graph that training may see; ranking and refitting see the same.

Inductive training, where test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.model import Scope
from gnnserve_worker.graph.store import Graph, Splits
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
