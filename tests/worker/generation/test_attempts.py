"""A network that learnt hardly anything is trained again, within the epochs that Auto may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import planted_graph

from gnnserve_api.files.training import Majority, TrainingRun
from gnnserve_api.spec.model import Model, Scope, Training
from gnnserve_worker.generation import epochs as epochs_module
from gnnserve_worker.generation.epochs import MOST_ATTEMPTS, learn_with_retries
from gnnserve_worker.generation.layers import CPU
from gnnserve_worker.generation.train import TrainedModels
from gnnserve_worker.progress import Progress, silent

MAJORITY = Majority(score=0.547, nodes=400)
Settings = tuple[int, float | None]


class FakeLearner:
    """Trainings that come to the given validation scores, one after the other."""

    def __init__(self, scores: Sequence[float], epochs: int = 200) -> None:
        self._scores = iter(scores)
        self._epochs = epochs
        self.tried: list[Settings] = []
        self.limits: list[int | None] = []

    def __call__(self, training: Training, most_epochs: int | None = None) -> tuple[str, TrainingRun]:
        self.tried.append((training.seed, training.learning_rate))
        self.limits.append(most_epochs)
        score = next(self._scores)
        run = TrainingRun("x1", self._epochs, self._epochs, best_epoch=10, validation=score, rising=False)
        return f"network of {score}", run


def learnt(learner: FakeLearner, majority: Majority | None = MAJORITY, **training: Any) -> tuple[str, TrainingRun]:
    settings = Training.model_validate({"epochs": "Auto", **training})
    return learn_with_retries(learner, settings, 0.01, 1, majority, silent)


def test_what_is_told_from_the_most_frequent_class_is_trained_once() -> None:
    learner = FakeLearner([0.798])

    network, run = learnt(learner)

    assert (network, run.attempts, learner.tried) == ("network of 0.798", (), [(0, None)])


def test_a_lower_rate_is_tried_before_another_seed_until_one_learns() -> None:
    learner = FakeLearner([0.572, 0.56, 0.798])

    network, run = learnt(learner)

    assert learner.tried == [(0, None), (0, 0.0025), (1, None)]
    assert (network, run.validation) == ("network of 0.798", 0.798)
    assert [(one.seed, one.learning_rate, one.validation) for one in run.attempts] == [
        (0, 0.01, 0.572), (0, 0.0025, 0.56), (1, 0.01, 0.798),
    ]  # fmt: skip


def test_the_best_of_all_is_kept_where_none_learns() -> None:
    network, run = learnt(FakeLearner([0.56, 0.57, 0.55, 0.565]))

    assert (network, run.validation, len(run.attempts)) == ("network of 0.57", 0.57, MOST_ATTEMPTS)


def test_attempts_share_the_epochs_that_auto_may_take() -> None:
    learner = FakeLearner([0.5] * 3, epochs=2_450)

    learnt(learner)

    # A third one would be left fewer epochs than the least.
    assert learner.limits == [None, epochs_module.MOST_STEPS - 2_450]


def test_a_network_that_no_epochs_are_left_for_was_trained_once() -> None:
    learner = FakeLearner([0.5], epochs=epochs_module.MOST_STEPS)

    assert learnt(learner)[1].attempts == ()
    assert len(learner.tried) == 1


@pytest.mark.parametrize(("majority", "training"), [(None, {}), (MAJORITY, {"epochs": 30})])
def test_a_stated_number_of_epochs_and_links_are_trained_once(
    majority: Majority | None, training: dict[str, Any]
) -> None:
    learner = FakeLearner([0.5])

    assert learnt(learner, majority, **training)[1].attempts == ()
    assert len(learner.tried) == 1


def test_labels_that_nothing_tells_are_tried_again_alike_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEAST_STEPS": 4, "PATIENCE_STEPS": 3, "PATIENCE_EPOCHS": 3, "MOST_STEPS": 40}.items():
        monkeypatch.setattr(epochs_module, name, value)
    data = planted_graph((2, 5, 7), nodes=130)
    labels = np.random.default_rng(3).integers(0, 3, data.graph.nodes)
    data = replace(data, labels=labels)
    subject = labelled_set(data.graph, data.labels, 3, data.splits, Scope.INDUCTIVE)
    model = Model.model_validate({"hidden": 8, "fanouts": [4, 3], "training": {"epochs": "Auto"}})
    said: list[Progress] = []

    one, other = (TrainedModels(model, subject, data.features, said.append, CPU) for _ in range(2))
    weights, again = one.master("x1"), other.master("x1")

    assert len(one.runs[0].attempts) > 1
    assert one.runs == other.runs
    assert all(np.array_equal(tensor, again[key]) for key, tensor in weights.items())
    assert one.runs[0].validation == max(attempt.validation for attempt in one.runs[0].attempts)
    assert any("that of the most frequent class: now seed 0, learning rate 0.0025" in each.detail for each in said)
