"""What is said of how long networks were trained."""

from __future__ import annotations

import msgspec
import pytest

from gnnserve_api.files.training import (
    Majority,
    TrainingAttempt,
    TrainingManifest,
    TrainingRun,
    says_attempts,
    says_length,
    says_rising,
    says_unlearnt,
)


def run(name: str, epochs: int = 30, best: int = 30, *, rising: bool = False) -> TrainingRun:
    return TrainingRun(name=name, epochs=epochs, steps=2 * epochs, best_epoch=best, validation=0.5, rising=rising)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        pytest.param(None, None, id="given weights"),
        pytest.param(TrainingManifest(epochs=30, runs=(run("x1"),)), None, id="nothing rises"),
        pytest.param(
            TrainingManifest(epochs=30, runs=(run("x1", rising=True), run("x2", rising=True))),
            "validation was still rising at epoch 30 of 30: use spec.model.training.epochs: Auto or more",
            id="everything rises",
        ),
        pytest.param(
            TrainingManifest(epochs=30, runs=(run("x1"), run("x2", rising=True), run("x4", rising=True))),
            "validation of x2 and x4 was still rising at epoch 30 of 30: use spec.model.training.epochs: Auto or more",
            id="some variants rise",
        ),
        pytest.param(
            TrainingManifest(epochs=None, runs=(run("x1", 5000, rising=True),)),
            "validation was still rising at epoch 5,000, where epochs: Auto ends at the latest: state a larger number",
            id="Auto gave up",
        ),
    ],
)
def test_validation_that_was_still_rising_is_said(training: TrainingManifest | None, said: str | None) -> None:
    assert says_rising(training) == said


@pytest.mark.parametrize(
    ("training", "said"),
    [
        pytest.param(
            TrainingManifest(epochs=30, runs=(run("x1", best=12), run("x2", best=29))),
            "30 epochs, 60 steps; the best at epoch 12 to 29",
            id="a stated number",
        ),
        pytest.param(
            TrainingManifest(epochs=None, runs=(run("x1", 100, 40), run("x2", 130, 40))),
            "Auto: 100 to 130 epochs, 200 to 260 steps; the best at epoch 40",
            id="Auto",
        ),
        pytest.param(
            TrainingManifest(epochs=30, runs=(msgspec.structs.replace(run("network"), batches="Sampled"),)),
            "30 epochs, 60 steps of sampled batches; the best at epoch 30",
            id="batches over several types",
        ),
    ],
)
def test_the_length_of_training_is_said(training: TrainingManifest, said: str) -> None:
    assert says_length(training) == said


MAJORITY = Majority(score=0.547, nodes=400)


def reached(name: str, validation: float, attempts: int = 0) -> TrainingRun:
    tried = tuple(TrainingAttempt(seed, 0.01 / (1 + 3 * seed), 200, 10, validation) for seed in range(attempts))
    return TrainingRun(name, 200, 200, best_epoch=10, validation=validation, rising=False, attempts=tried)


@pytest.mark.parametrize(
    ("training", "cure"),
    [
        pytest.param(
            TrainingManifest(epochs=30, runs=(reached("network", 0.572),), majority=MAJORITY),
            "spec.model.training.epochs: Auto tries a smaller learningRate and other seeds",
            id="a stated number",
        ),
        pytest.param(
            TrainingManifest(epochs=None, runs=(reached("network", 0.572, 4),), majority=MAJORITY),
            "4 trainings with other learning rates and seeds found none, so look at features and labels",
            id="Auto tried",
        ),
        pytest.param(
            TrainingManifest(epochs=None, runs=(reached("network", 0.572),), majority=MAJORITY),
            "try another learningRate or seed in spec.model.training",
            id="Auto had no time left",
        ),
    ],
)
def test_a_network_that_is_not_told_from_the_most_frequent_class_is_said(training: TrainingManifest, cure: str) -> None:
    assert says_unlearnt(training) == (
        "network reached 0.572 on 400 validation nodes, which is not told from the 0.547 of always giving the most "
        f"frequent class: {cure}"
    )


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(None, id="given weights"),
        pytest.param(TrainingManifest(epochs=30, runs=(reached("x1", 0.572),)), id="an earlier version"),
        pytest.param(TrainingManifest(epochs=30, runs=(reached("x1", 0.798),), majority=MAJORITY), id="it learnt"),
    ],
)
def test_nothing_is_said_of_networks_that_learnt_or_are_not_compared(training: TrainingManifest | None) -> None:
    assert says_unlearnt(training) is None


def test_only_networks_that_learnt_nothing_are_named() -> None:
    runs = (reached("x1", 0.798), reached("x8", 0.55), reached("x16", 0.5))
    said = says_unlearnt(TrainingManifest(epochs=30, runs=runs, majority=MAJORITY))
    assert said is not None
    assert said.startswith("x8 and x16 reached 0.550 and 0.500 on 400 validation nodes")


def test_attempts_are_said_in_their_order() -> None:
    assert says_attempts(reached("x1", 0.6, 2)) == (
        "validation 0.600 with seed 0 and learning rate 0.01, 0.600 with seed 1 and learning rate 0.0025"
    )
