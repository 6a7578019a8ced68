"""Short trainings that compare scopes: advice by measured validation, and none where it would be a guess."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.support.graphs.graphs import planted_graph

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.generation.trial import advise_scope, try_candidates
from gnnserve_worker.graph.inspection import inductive_share
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.progress import Progress, silent
from gnnserve_worker.tasks.classify_nodes.labels import NodeLabels


def few_labelled() -> GraphData:
    """The class shows only in the mean over neighbours, and the training nodes are not each other's."""
    data = planted_graph((0, 1, 2), nodes=600, columns=6)
    noise = np.random.default_rng(1).normal(scale=3.0, size=data.features.shape)
    splits = Splits(train=np.arange(40), validation=np.arange(40, 440), test=np.arange(440, 600))
    return dataclasses.replace(data.with_features((data.features + noise).astype(np.float32)), splits=splits)


def spec_of(scope: str) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"hidden": 16, "fanouts": [10, 10], "training": {"scope": scope, "dropout": 0.0}},
        }
    )


def seen_by(spec: GNNServiceSpec, data: GraphData) -> TrainingSet:
    classes, scope = len(data.classes), spec.model.training.scope
    problem = NodeLabels(data.labels, data.classes, data.splits)
    return training_set(data, problem, classes, scope, spec.graph.normalization)


def test_transductive_training_is_advised_where_it_was_measured_to_be_better() -> None:
    spec, seen = spec_of("Inductive"), list[Progress]()
    data = seen_by(spec, few_labelled())
    assert data.sees_few_edges
    advice = advise_scope(data, spec, seen.append)
    assert advice is not None
    assert f"inductive training sees {inductive_share(data.graph, data.splits):.1%} of the edges" in advice
    assert "use spec.model.training.scope: Transductive" in advice
    assert seen


@pytest.mark.parametrize(
    ("data", "scope"),
    [
        pytest.param(planted_graph((0, 1, 2)), "Inductive", id="training sees enough edges"),
        pytest.param(few_labelled(), "Transductive", id="training sees all edges already"),
    ],
)
def test_nothing_is_trained_where_nothing_could_be_advised(data: GraphData, scope: str) -> None:
    assert not seen_by(spec_of(scope), data).sees_few_edges


def test_links_are_not_tried_by_the_classes_that_their_nodes_happen_to_have() -> None:
    spec = GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}, "task": {"links": {}}})
    with pytest.raises(InputError, match="--try: compares short trainings by the share of nodes"):
        try_candidates(few_labelled(), spec, silent)
