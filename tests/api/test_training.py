"""What is said of how long networks were trained."""

from __future__ import annotations

import pytest

from gnnserve_api.training import TrainingManifest, TrainingRun, says_length, says_rising


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
    ],
)
def test_the_length_of_training_is_said(training: TrainingManifest, said: str) -> None:
    assert says_length(training) == said
