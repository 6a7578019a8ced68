"""Loss by stale rows: how many answers are expected to differ from those of exact rows, and by which steps routing
follows that (pure).

The estimated errors of the rows that a request reads (`movement.py`) have a mean. Answers differ in proportion to it,
by a *sensitivity* that depends on the network: how far a row's movement moves scores, and how close these are to each
other. It is measured on the worker's own graph, by the changes that it gets: answers are computed from rows as they are
stored, and again once these are right. An answer that differs need not be wrong, so that the loss is an upper bound of
what accuracy loses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

_PRIOR_ERRORS, _PRIOR_DIFFERING = 1.0, 1.0
"""What counts as seen before anything was: as many answers that differ as errors, which no network that was measured
comes close to (`benchmarks/staleness/`). Where no answer differs, the bound is 3 over what was seen."""
_DEVIATIONS = 2.0
"""Deviations by which a sensitivity is above what was measured: the true one is below it 98 times in 100."""
_MOST_ERRORS = 5000.0
"""Sum of errors from which on older answers count half: networks stay, changes do not."""
_GAIN = 0.02
"""Weight of the last batch among those that read a layer."""
LEAST_PERMILLE = 1 / 16
"""Loss where any row is stale, at least, so that a tolerance of 0 excludes it."""
_STEP = 1.25
"""Ratio of two losses that routing tells apart."""
_HOLD_MS = 2000.0
"""For how long a loss has to be lower before routing goes by that: another one opens another lane."""


class StaleRead(msgspec.Struct, frozen=True):
    """Rows of a stored layer that a batch reads, some of which are stale, or others by what its requests bring."""

    made: int
    """Rows that were made anew before, and kept."""
    error: float
    """Mean estimated error of the rows that were read then."""
    brought: int = 0
    """Rows that were made for what requests bring, and not kept."""


class Sensitivity:
    """Share of answers that differ, for each unit of the mean error of the rows that they read."""

    def __init__(self) -> None:
        self.errors = self.differing = 0.0
        """Sum of the errors of answers that were compared, and how many of these differed."""

    @property
    def bound(self) -> float:
        """Upper bound of it."""
        differing = self.differing + _PRIOR_DIFFERING
        return (differing + _DEVIATIONS * math.sqrt(differing)) / (self.errors + _PRIOR_ERRORS)

    def note(self, error: float, answers: int, differing: float) -> None:
        """Count answers that were compared, with the mean error of the rows that they read. `differing`: sum of the
        shares in which they do."""
        self.errors += error * answers
        self.differing += differing
        if self.errors > _MOST_ERRORS:
            self.errors /= 2
            self.differing /= 2


class ReadErrors:
    """Errors of the rows that batches read, beside those of all rows: what is asked about may change most, and what is
    read is made anew before."""

    def __init__(self) -> None:
        self._read = self._all = 0.0

    def note(self, read: float, of_all: float) -> None:
        """A batch read rows with this mean error, while all rows had that one."""
        self._read += _GAIN * (read - self._read)
        self._all += _GAIN * (of_all - self._all)

    def expected(self, of_all: float) -> float:
        """Expected mean error of what a batch reads, where all rows have this one: the same, before any has."""
        return min(1.0, of_all * self._read / self._all) if self._all else of_all


def loss_permille(error: float, sensitivity: float) -> float:
    """Expected answers in permille that differ, where the rows that they read have this mean error."""
    return min(1000.0, 1000 * error * sensitivity)


def step_of(permille: float) -> float:
    """The next larger loss that routing tells apart; 0 alone stays 0."""
    if permille <= 0:
        return 0.0
    steps = math.ceil(math.log(max(permille, LEAST_PERMILLE) / LEAST_PERMILLE, _STEP) - 1e-9)
    return float(min(1000.0, LEAST_PERMILLE * _STEP**steps))


class LossSteps:
    """Losses that routing goes by: raised at once, and lowered when they have been lower for a while."""

    def __init__(self) -> None:
        self.permille: Mapping[str, float] = {}
        """By variant, without those that read no row that may be stale."""
        self._needed_ms: dict[str, float] = {}
        """When the loss of each was as large last."""

    def follow(self, expected: Mapping[str, float], now_ms: float) -> bool:
        """Take over what is expected now, in permille by variant. Whether routing is to go by others."""
        found = dict[str, float]()
        for name, permille in expected.items():
            step, before = step_of(permille), self.permille.get(name, 0.0)
            if step < before and now_ms - self._needed_ms[name] < _HOLD_MS:
                step = before
            else:
                self._needed_ms[name] = now_ms
            found[name] = step
        is_other, self.permille = found != self.permille, found
        return is_other
