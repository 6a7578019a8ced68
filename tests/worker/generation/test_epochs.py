"""The loop of all training, with a learner of a few numbers in place of a network."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnnserve_worker.generation.epochs import Schedule, run_epochs
from gnnserve_worker.tasks.generated import EpochPart, TrainingBatch

SCORES = [0.2, 0.6, 0.5, 0.6]
"""Validation score of each epoch."""


class Steps:
    """A `Learner` that writes down what it is asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.keys: list[int] = []
        self.kept_after: list[int] = []

    def see(self, visible: Any) -> None:
        self.seen.append(visible)

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        yield from np.split(items, 2)

    def step(self, batch: TrainingBatch, key: int) -> None:
        self.keys.append(key)

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        return nodes

    def keep(self) -> None:
        self.kept_after.append(len(self.keys))


def course(visible: list[Any]) -> Any:
    """Two parts in each epoch, over these lists."""
    scores = iter(SCORES)
    return SimpleNamespace(
        parts=lambda epoch: (EpochPart(np.arange(4), each) for each in visible),
        batch=lambda items: TrainingBatch(items, lambda outputs: outputs),
        examined=np.arange(3),
        judge=lambda outputs: (next(scores), 1.0),
    )


def test_the_first_of_the_best_epochs_is_kept_and_each_is_told() -> None:
    learner, told = Steps(), list[tuple[int, int, float, int]]()

    run = run_epochs(course(["all", "all"]), learner, Schedule(4, None, 4), 100, lambda *each: told.append(each))

    assert (run.score, run.best, run.epochs, run.steps) == (0.6, 2, 4, 16)
    assert learner.kept_after == [4, 8]
    assert learner.keys == [*range(100, 116)]
    assert told == [(1, 4, 0.2, 4), (2, 4, 0.6, 8), (3, 4, 0.6, 12), (4, 4, 0.6, 16)]


def test_neighbours_are_looked_up_anew_only_where_the_lists_are_others() -> None:
    learner, other = Steps(), Steps()

    run_epochs(course(["all", "all"]), learner, Schedule(4, None, 4), 0, lambda *_: None)
    run_epochs(course(["odd", "even"]), other, Schedule(2, None, 2), 0, lambda *_: None)

    assert learner.seen == ["all"]
    assert other.seen == ["odd", "even", "odd", "even"]
