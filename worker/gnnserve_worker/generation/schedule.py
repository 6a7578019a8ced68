"""When training ends: after the stated number of epochs, or with `Auto` once validation has not improved for a while.

Pure: scores and losses go in, decisions come out. Patience and the least length are counted in steps, since an epoch of
a small graph is one or two of them: 30 epochs over 1,800 training nodes are 60 steps, which is too few to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, stdev
from typing import Literal

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
