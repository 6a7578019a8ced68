"""Epochs of training: one loop for all that learns, by a course.

The loop goes through parts and batches, judges each epoch and has the best one kept. What a step is, and which weights
there are, is the learner's. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.generation.schedule import History, Schedule
from gnnserve_worker.tasks.course import Batch, Course, Visible


class Learner(Protocol):
    """A network, and how steps of its training go through a graph."""

    def see(self, visible: Visible) -> None:
        """Take the neighbours of later steps from these lists."""

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        """Items of a part, step by step, in an order that is drawn."""

    def step(self, batch: Batch, key: int) -> None:
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
