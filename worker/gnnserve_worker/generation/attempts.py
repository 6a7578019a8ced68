"""Trains a network again where it learnt hardly anything: with `epochs: Auto`, within the epochs that Auto may take.

A network whose validation score is not told from that of the most frequent class has mostly had steps too large for it
or unlucky first weights. A smaller learning rate is tried first, then other seeds, each with both rates, until one is
told from it. The attempt with the best validation score is kept. Which attempts there are depends on the settings
alone, so equal manifests make equal networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import msgspec

from gnnserve_api.spec.model import AUTO, Training
from gnnserve_api.training import Majority, TrainingAttempt, TrainingManifest, TrainingRun
from gnnserve_worker.generation.schedule import schedule_of
from gnnserve_worker.progress import Progress, ProgressListener

MOST_ATTEMPTS = 4
_RATE_DIVISOR = 4
"""What the learning rate is divided by."""

Network = TypeVar("Network")
Network_co = TypeVar("Network_co", covariant=True)


class Learn(Protocol[Network_co]):
    def __call__(self, training: Training, most_epochs: int | None = None) -> tuple[Network_co, TrainingRun]:
        """Train by these settings. `most_epochs`: a limit below that of the settings."""
        ...


def learn_with_retries(
    learn: Learn[Network],
    training: Training,
    learning_rate: float,
    steps_per_epoch: int,
    majority: Majority | None,
    progress: ProgressListener,
) -> tuple[Network, TrainingRun]:
    """The network of the best attempt, and its record. `learning_rate`: that of the settings, or the architecture's.
    `majority` None: there is none to compare with, as where links are scored."""
    network, run = learn(training)
    if training.epochs != AUTO or majority is None or majority.is_beaten_by(run.validation):
        return network, run
    schedule = schedule_of(AUTO, steps_per_epoch)
    attempts = [_attempt_of(run, training, learning_rate)]
    left = schedule.most - run.epochs
    for settings in _others(training, learning_rate):
        if left < schedule.least or len(attempts) == MOST_ATTEMPTS:
            break
        progress(Progress(f"train {run.name} again", 1, 1, _says_why(attempts[-1], majority, settings)))
        tried, tried_run = learn(settings, left)
        left -= tried_run.epochs
        attempts.append(_attempt_of(tried_run, settings, learning_rate))
        if tried_run.validation > run.validation:
            network, run = tried, tried_run
        if majority.is_beaten_by(run.validation):
            break
    return network, msgspec.structs.replace(run, attempts=tuple(attempts) if len(attempts) > 1 else ())


def training_of(training: Training, runs: tuple[TrainingRun, ...], majority: Majority | None) -> TrainingManifest:
    """The record of all networks that were trained."""
    stated = training.epochs
    return TrainingManifest(epochs=None if stated == AUTO else stated, runs=runs, majority=majority)


def _others(training: Training, learning_rate: float) -> Iterator[Training]:
    """Settings to try after those that are stated, in order."""
    lower = learning_rate / _RATE_DIVISOR
    yield training.model_copy(update={"learning_rate": lower})
    for seed in range(training.seed + 1, training.seed + MOST_ATTEMPTS):
        yield training.model_copy(update={"seed": seed})
        yield training.model_copy(update={"seed": seed, "learning_rate": lower})


def _attempt_of(run: TrainingRun, training: Training, learning_rate: float) -> TrainingAttempt:
    return TrainingAttempt(
        seed=training.seed,
        learning_rate=training.learning_rate or learning_rate,
        epochs=run.epochs,
        best_epoch=run.best_epoch,
        validation=run.validation,
    )


def _says_why(last: TrainingAttempt, majority: Majority, settings: Training) -> str:
    rate = f", learning rate {settings.learning_rate:g}" if settings.learning_rate is not None else ""
    return (
        f"validation {last.validation:.3f} is not told from {majority.score:.3f}, that of the most frequent class: now "
        f"seed {settings.seed}{rate}"
    )
