"""Problems that networks learn in tests: labels of made-up nodes, in place of those of an imported graph."""

from __future__ import annotations

import numpy as np

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.tasks.classify_nodes.labels import NodeLabels


def labels_of(data: GraphData, choice: MetricChoice = MetricChoice.AUTO) -> NodeLabels:
    return NodeLabels(data.labels, data.classes, data.splits, choice)


def labelled_set(
    graph: Graph, labels: np.ndarray, classes: int, splits: Splits, scope: Scope,
    choice: MetricChoice = MetricChoice.AUTO,
) -> TrainingSet:  # fmt: skip
    """A set without features: tests give networks the rows that they read."""
    names = tuple(range(classes))
    none = np.zeros((graph.nodes, 0), np.float32)
    data = GraphData.of_one_type("made up", "0", graph, none, labels, names, splits, EdgeRules(Direction.DIRECTED))
    return training_set(data, labels_of(data, choice), classes, scope, Normalization.DISABLED)
