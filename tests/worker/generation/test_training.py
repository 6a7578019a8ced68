"""Training sees what its scope allows, is repeatable, and keeps its best epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import graph_of, neighbours_of, planted_graph

from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_worker.generation import blocks, train
from gnnserve_worker.generation.epochs import LEAST_STEPS, Schedule
from gnnserve_worker.generation.train import TrainedNetwork, predict, train_on_rows
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.models import registry
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler
from gnnserve_worker.tables.table import Aggregator
from gnnserve_worker.tasks.classify_nodes import learning
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate

INFORMATIVE = (2, 5, 7)
SAMPLED = [name for name, spec in registry.OF_ONE_TYPE.items() if spec.aggregator is not Aggregator.NONE]
"""Those whose features are propagated before training are in models/test_sgc.py."""
ARCHITECTURES = pytest.mark.parametrize("architecture", SAMPLED)


def _model(epochs: int | str = 3, architecture: str = "GraphSAGE", **training: Any) -> Model:
    settings = {"epochs": epochs, "batchSize": 64, **training}
    return Model.model_validate({"architecture": architecture, "hidden": 16, "fanouts": [4, 3], "training": settings})


def _train(data: GraphData, model: Model, scope: Scope = Scope.INDUCTIVE) -> TrainedNetwork:
    subject = labelled_set(data.graph, data.labels, len(data.classes), data.splits, scope)
    return train_on_rows(subject, data.features, model)


def _assert_same_weights(one: TrainedNetwork, other: TrainedNetwork) -> None:
    for key, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor, other.tensors[key])


def _same_weights(one: TrainedNetwork, other: TrainedNetwork) -> bool:
    others = other.tensors
    return all(np.array_equal(tensor, others[key]) for key, tensor in one.tensors.items())


def _without_hidden_nodes(data: GraphData) -> Graph:
    """Only edges among training nodes, built the slow way."""
    train_nodes = set(data.splits.train.tolist())
    return graph_of(
        [
            [n for n in neighbours_of(data.graph, node) if n in train_nodes] if node in train_nodes else []
            for node in range(data.graph.nodes)
        ]
    )


@ARCHITECTURES
def test_inductive_training_never_reads_the_features_of_other_nodes(architecture: str) -> None:
    data, model = planted_graph(INFORMATIVE), _model(1, architecture)
    features = np.array(data.features)
    features[np.setdiff1d(np.arange(data.graph.nodes), data.splits.train)] = np.nan

    poisoned = _train(data.with_features(features), model)

    assert all(np.isfinite(tensor).all() for tensor in poisoned.tensors.values())
    _assert_same_weights(poisoned, _train(data, model))


@ARCHITECTURES
def test_transductive_training_reads_the_features_of_other_nodes(architecture: str) -> None:
    data, model = planted_graph(INFORMATIVE), _model(1, architecture)
    features = np.array(data.features)
    features[np.setdiff1d(np.arange(data.graph.nodes), data.splits.train)] = np.nan

    poisoned = _train(data.with_features(features), model, Scope.TRANSDUCTIVE)

    assert not all(np.isfinite(tensor).all() for tensor in poisoned.tensors.values())


def test_inductive_training_never_follows_the_edges_of_other_nodes() -> None:
    data, model = planted_graph(INFORMATIVE), _model(1)

    pruned = _train(data.with_lists(_without_hidden_nodes(data)), model)

    _assert_same_weights(pruned, _train(data, model))


def test_transductive_training_follows_the_edges_of_other_nodes() -> None:
    data, model = planted_graph(INFORMATIVE), _model(1)

    pruned = _train(data.with_lists(_without_hidden_nodes(data)), model, Scope.TRANSDUCTIVE)

    assert not _same_weights(pruned, _train(data, model, Scope.TRANSDUCTIVE))


@pytest.mark.parametrize("scope", list(Scope))
def test_training_never_reads_the_labels_of_other_nodes(scope: Scope) -> None:
    """One epoch, so that validation has nothing to choose between."""
    data, model = planted_graph(INFORMATIVE), _model(1)
    labels = data.labels.copy()
    hidden = np.setdiff1d(np.arange(data.graph.nodes), data.splits.train)
    labels[hidden] = (labels[hidden] + 1) % 3

    _assert_same_weights(_train(replace(data, labels=labels), model, scope), _train(data, model, scope))


def test_the_visible_graph_is_the_one_among_training_nodes() -> None:
    data = planted_graph(INFORMATIVE)

    visible = labelled_set(data.graph, data.labels, 3, data.splits, Scope.INDUCTIVE).visible_graph

    expected = _without_hidden_nodes(data)
    np.testing.assert_array_equal(visible.indptr, expected.indptr)
    np.testing.assert_array_equal(visible.indices, expected.indices)


def test_validation_sees_all_edges_whatever_the_scope() -> None:
    data = planted_graph(INFORMATIVE)

    assert labelled_set(data.graph, data.labels, 3, data.splits, Scope.INDUCTIVE).graph is data.graph


@pytest.mark.campaign
@ARCHITECTURES
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_equal_seeds_give_equal_weights(architecture: str, sparse: bool) -> None:
    data, model = planted_graph(INFORMATIVE, sparse=sparse), _model(2, architecture)

    _assert_same_weights(_train(data, model), _train(data, model))


def test_different_seeds_give_different_weights() -> None:
    data = planted_graph(INFORMATIVE)

    assert not _same_weights(_train(data, _model(seed=0)), _train(data, _model(seed=1)))


def test_every_step_draws_anew_and_every_validation_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[SubgraphSampler, list[int]] = {}

    class Recording(SubgraphSampler):
        def sample(self, seeds: np.ndarray, fanouts: tuple[int, ...], key: int) -> SampledSubgraph:
            keys.setdefault(self, []).append(key)
            return super().sample(seeds, fanouts, key)

    monkeypatch.setattr(blocks, "SubgraphSampler", Recording)

    _train(planted_graph(INFORMATIVE), _model(3))

    of_training, of_validation = keys.values()
    assert len(set(of_training)) == len(of_training) == 3 * 4
    assert len(of_validation) == 3
    assert len(set(of_validation)) == 1
    assert not set(of_training) & set(of_validation)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "case",
    [
        pytest.param({"architecture": "GraphSAGE"}, id="GraphSAGE"),
        pytest.param({"architecture": "GIN", "training": {"learningRate": 0.01}}, id="GIN"),
        pytest.param({"sparse": True}, id="sparse features"),
        pytest.param({"fanouts": [-1, -1]}, id="all neighbours"),
        pytest.param({"fanouts": [3]}, id="one layer"),
        pytest.param({"fanouts": [3, 2, 2]}, id="three layers"),
        pytest.param({"multi_label": True}, id="several labels per node"),
    ],
)
def test_planted_classes_are_learnt(case: dict[str, Any]) -> None:
    data = planted_graph(INFORMATIVE, sparse=case.get("sparse", False), multi_label=case.get("multi_label", False))
    model = Model.model_validate(
        {
            "architecture": case.get("architecture", "GraphSAGE"),
            "hidden": 16,
            "fanouts": case.get("fanouts", [4, 3]),
            "training": {"epochs": 25, "batchSize": 64, **case.get("training", {})},
        }
    )

    assert _train(data, model).run.score > 0.85


def test_the_epoch_with_the_best_validation_score_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.2, 0.7, 0.7, 0.1])
    monkeypatch.setattr(learning, "evaluate", lambda *_: next(scores))
    data = planted_graph(INFORMATIVE)

    best = _train(data, _model(4))

    assert (best.run.score, best.run.best) == (0.7, 2)
    monkeypatch.undo()
    _assert_same_weights(best, _train_last_epoch(data, 2, monkeypatch))


def _train_last_epoch(data: GraphData, epochs: int, monkeypatch: pytest.MonkeyPatch) -> TrainedNetwork:
    rising = iter(range(1, epochs + 1))
    monkeypatch.setattr(learning, "evaluate", lambda *_: float(next(rising)))
    return _train(data, _model(epochs))


def test_every_epoch_reports_the_best_score_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.2, 0.7, 0.5])
    monkeypatch.setattr(learning, "evaluate", lambda *_: next(scores))
    data = planted_graph(INFORMATIVE)
    reports: list[tuple[int, int, float]] = []

    train_on_rows(
        labelled_set(data.graph, data.labels, 3, data.splits, Scope.INDUCTIVE),
        data.features,
        _model(3),
        lambda done, ends_at, score, _: reports.append((done, ends_at, score)),
    )

    assert reports == [(1, 3, 0.2), (2, 3, 0.7), (3, 3, 0.7)]


def test_the_best_epoch_is_the_best_by_the_chosen_metric() -> None:
    data, model = planted_graph(INFORMATIVE), _model(3)
    judged = labelled_set(data.graph, data.labels, 3, data.splits, Scope.INDUCTIVE, MetricChoice.ROC_AUC)

    trained = train_on_rows(judged, data.features, model)

    validation = data.splits.validation
    scores = predict(trained.tensors, data.features, data.graph, validation, model, 3)
    assert trained.run.score == pytest.approx(evaluate(scores, data.labels[validation], "rocAuc"))


def test_auto_trains_a_small_graph_for_hundreds_of_steps_and_beats_a_few_epochs() -> None:
    """80 training nodes in one batch: 3 epochs are 3 steps."""
    data = planted_graph(INFORMATIVE, nodes=130)

    few, auto = (_train(data, _model(epochs, batchSize=1024)).run for epochs in (3, "Auto"))

    assert (few.epochs, few.steps, few.rising) == (3, 3, True)
    assert auto.steps == auto.epochs >= LEAST_STEPS
    assert auto.best <= auto.epochs
    assert auto.score > few.score


def test_auto_is_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of dozens of epochs shows it as one of hundreds would."""
    monkeypatch.setattr(train, "schedule_of", lambda *_: Schedule(least=10, patience=8, most=40))
    data, model = planted_graph(INFORMATIVE, nodes=130), _model("Auto", batchSize=1024)

    one, other = _train(data, model), _train(data, model)

    assert one.run == other.run
    _assert_same_weights(one, other)


def test_auto_ends_once_validation_has_not_improved_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "schedule_of", lambda *_: Schedule(least=2, patience=3, most=50))
    scores = iter([0.2, 0.7, 0.5, 0.6, 0.7])
    monkeypatch.setattr(learning, "evaluate", lambda *_: next(scores))
    # At this rate neither scores nor losses move.
    best = _train(planted_graph(INFORMATIVE), _model("Auto", learningRate=1e-9))

    assert (best.run.best, best.run.epochs, best.run.steps) == (2, 5, 5 * 4)


def test_training_nodes_without_any_visible_edge_are_trained_on() -> None:
    """An inductive split can cut every edge."""
    data = planted_graph(INFORMATIVE)
    hidden = int(data.splits.test[0])
    cut = data.with_lists(graph_of([[hidden]] * data.graph.nodes))

    trained = _train(cut, _model(1))

    assert all(np.isfinite(tensor).all() for tensor in trained.tensors.values())


def test_predictions_are_repeatable_and_cover_more_nodes_than_one_chunk() -> None:
    data, model = planted_graph(INFORMATIVE), _model(1)
    tensors = _train(data, model).tensors
    nodes = np.tile(np.arange(data.graph.nodes), 11)[:4200]

    first, second = (predict(tensors, data.features, data.graph, nodes, model, 3) for _ in range(2))

    assert first.shape == (4200, 3)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("architecture", "given", "used"),
    [
        pytest.param("GraphSAGE", None, 0.01, id="GraphSAGE's default"),
        pytest.param("GIN", None, 0.001, id="GIN's default"),
        pytest.param("GIN", 0.02, 0.02, id="the manifest's own"),
    ],
)
def test_the_learning_rate_is_the_architectures_unless_stated(
    monkeypatch: pytest.MonkeyPatch, architecture: str, given: float | None, used: float
) -> None:
    rates: list[float] = []
    plain = torch.optim.Adam

    def recording(groups: Any) -> torch.optim.Adam:
        rates.extend(group["lr"] for group in groups if group["params"])
        return plain(groups)

    monkeypatch.setattr(torch.optim, "Adam", recording)

    _train(planted_graph(INFORMATIVE), _model(1, architecture, learningRate=given))

    assert rates == [used]


def test_a_training_set_says_what_it_holds() -> None:
    data = planted_graph(INFORMATIVE)

    whole = labelled_set(data.graph, data.labels, 3, data.splits, Scope.TRANSDUCTIVE)

    assert whole.visible is whole.data.relations
    assert (whole.graph, whole.splits, whole.classes) == (data.graph, data.splits, 3)
