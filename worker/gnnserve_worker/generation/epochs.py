"""Epochs of training: one loop for all that learns, by a course; when it ends, and when it begins again.

Training ends after the stated number of epochs, or with `Auto` once validation has not improved for a while. Patience
and the least length are counted in steps, since an epoch of a small graph is one or two of them: 30 epochs over 1,800
training nodes are 60 steps, which is too few to learn from.

The loop goes through parts and batches, judges each epoch and has the best one kept. What a step is, and which weights
there are, is the learner's.

With `Auto` a network is trained again where it learnt hardly anything, within the epochs that Auto may take. A network
whose validation score is not told from that of the most frequent class has mostly had steps too large for it or unlucky
first weights. A smaller learning rate is tried first, then other seeds, each with both rates, until one is told from
it. The attempt with the best validation score is kept. Which attempts there are depends on the settings alone, so equal
manifests make equal networks.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, stdev
from typing import Literal, Protocol, TypeVar

import msgspec
import numpy as np

from gnnserve_api.files.training import Majority, TrainingAttempt, TrainingManifest, TrainingRun
from gnnserve_api.spec.model import AUTO, Training
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generated import Course, TrainingBatch, Visible

# --- when training ends


LEAST_STEPS = 200
"""Least number of steps with `Auto`: from random weights, Adam at 0.01 needs about that many."""
PATIENCE_STEPS = 150
PATIENCE_EPOCHS = 10
"""With `Auto`, training ends after the longer of the two without an improvement. The patience in epochs is for large
graphs, where one epoch has more steps than the patience in steps, and one validation score says little."""
MOST_STEPS = 5_000
MOST_EPOCHS = 100
"""With `Auto`, training ends after the longer of the two at the latest."""
_LEAST_GAIN = 0.01
"""Share by which the validation loss must fall below the lowest one so far to count as an improvement."""
_WINDOW = 1 / 3
"""Share of all epochs in the window of last ones, which is compared with an equally long window before it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Limits of training, in epochs."""

    least: int
    patience: int | None
    """Epochs without an improvement after which training ends; None: it runs for exactly `most` epochs."""
    most: int


def schedule_of(epochs: int | Literal["Auto"], steps_per_epoch: int, most_epochs: int | None = None) -> Schedule:
    """`most_epochs`: a limit below that of the settings, with `Auto`; None: theirs."""
    if epochs != "Auto":
        return Schedule(epochs, None, epochs)
    most = max(_epochs(MOST_STEPS, steps_per_epoch), MOST_EPOCHS)
    return Schedule(
        least=_epochs(LEAST_STEPS, steps_per_epoch),
        patience=max(_epochs(PATIENCE_STEPS, steps_per_epoch), PATIENCE_EPOCHS),
        most=most if most_epochs is None else min(most, most_epochs),
    )


def _epochs(steps: int, steps_per_epoch: int) -> int:
    return -(-steps // steps_per_epoch)


def expected_epochs(epochs: int | Literal["Auto"], steps_per_epoch: int) -> int:
    """How many epochs to expect before training: with Auto, where validation improves until half of the least number of
    steps and patience runs out from there."""
    schedule = schedule_of(epochs, steps_per_epoch)
    if schedule.patience is None:
        return schedule.most
    return min(max(schedule.least, schedule.least // 2 + schedule.patience), schedule.most)


@dataclass(slots=True)
class History:
    """Validation scores and losses of the epochs so far."""

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    improved_at: int = 0
    """The last epoch whose score was higher, or whose loss was lower, than in all epochs before it.

    Both count. Where nodes have several labels, the score stays 0 for many steps while the loss falls; elsewhere the
    loss may rise although the score improves.
    """
    _highest_score: float = -1.0
    _lowest_loss: float = float("inf")

    def add(self, score: float, loss: float) -> None:
        self.scores.append(score)
        self.losses.append(loss)
        if score > self._highest_score:
            self._highest_score, self.improved_at = score, len(self.scores)
        if loss < self._lowest_loss * (1 - _LEAST_GAIN):
            self._lowest_loss, self.improved_at = loss, len(self.scores)

    def ends_at(self, schedule: Schedule) -> int:
        """The epoch after which training ends if nothing improves any more."""
        if schedule.patience is None:
            return schedule.most
        return min(max(schedule.least, self.improved_at + schedule.patience), schedule.most)

    def is_rising(self, schedule: Schedule) -> bool:
        """Whether training ended by its number of epochs while validation was still improving.

        It was if the last epochs are better than those before them by more than their spread explains.
        """
        if len(self.scores) < schedule.most:
            return False
        if max(self.scores, default=0.0) > 0:
            return _is_rising(self.scores)
        return _is_rising([-loss for loss in self.losses])  # no score above 0 yet, so the loss decides


def _is_rising(values: Sequence[float]) -> bool:
    if len(values) < 2:  # one epoch has nothing to be compared with
        return False
    window = max(1, round(_WINDOW * len(values)))
    before, last = values[-2 * window : -window], values[-window:]
    if window == 1:
        return all(later > earlier for earlier, later in pairwise(values))
    error = ((stdev(before) ** 2 + stdev(last) ** 2) / window) ** 0.5
    return max(last) > max(values[:-window]) and mean(last) - mean(before) > 2 * error


# --- one training


class Learner(Protocol):
    """A network, and how steps of its training go through a graph."""

    def see(self, visible: Visible) -> None:
        """Take the neighbours of later steps from these lists."""

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        """Items of a part, step by step, in an order that is drawn."""

    def step(self, batch: TrainingBatch, key: int) -> None:
        """Learn from a batch. Equal keys draw the same neighbours."""

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        """Outputs of nodes as serving computes them, float32 [nodes, outputs], equal for equal weights."""

    def keep(self) -> None:
        """Remember the weights as they are now, in place of those that were kept before."""


@dataclass(frozen=True, slots=True)
class EpochsRun:
    """Epochs that were run; the weights of the best one are kept."""

    score: float
    """The best epoch's, on validation."""
    best: int
    """The best epoch, from 1."""
    epochs: int
    steps: int
    rising: bool
    """Whether validation was still improving at the end."""


Report = Callable[[int, int, float, int], None]
"""Called after every epoch with the epochs done, the epoch after which training ends if validation does not improve any
more, the best validation score, and the steps done."""


def run_epochs(course: Course, learner: Learner, schedule: Schedule, first_key: int, report: Report) -> EpochsRun:
    """Learn until the schedule says that it is enough. `first_key`: of the first step; later ones count up."""
    history, seen = History(), None
    best_score, best_epoch, epoch, key = -1.0, 0, 0, first_key
    while epoch < history.ends_at(schedule):
        epoch += 1
        for part in course.parts(epoch):
            if part.visible is not seen:
                seen = part.visible
                learner.see(seen)
            for items in learner.batches(part.items):
                learner.step(course.batch(items), key)
                key += 1
        score, validation_loss = course.judge(learner.examine(course.examined))
        history.add(score, validation_loss)
        if score > best_score:
            best_score, best_epoch = score, epoch
            learner.keep()
        report(epoch, history.ends_at(schedule), best_score, key - first_key)
    return EpochsRun(best_score, best_epoch, epoch, key - first_key, history.is_rising(schedule))


# --- training again


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
