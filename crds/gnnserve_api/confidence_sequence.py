"""Intervals of a mean that hold at every moment of a stream, however often they are looked at.

An interval of a fixed number of draws, as in `intervals.py`, errs almost surely at some time if it is computed again
after each draw. A confidence sequence does not: with the stated chance it is never wrong, at any time (Darling &
Robbins, *Confidence sequences for mean, variance, and median*, PNAS 58, 1967). The one here is Robbins' method of
mixtures over Bernoulli likelihoods (*Statistical methods related to the law of the iterated logarithm*, Annals of
Mathematical Statistics 41, 1970) with Jeffreys' prior; by Ville's inequality the mixture's likelihood ratio against the
true mean exceeds 1/chance with at most that chance. It needs the sum and the number of values alone. Values between 0
and 1 may be used as well: a Bernoulli likelihood ratio is convex in the value, so that it is a supermartingale for them
(Waudby-Smith & Ramdas, *Estimating means of bounded random variables by betting*, JRSS-B 86, 2024, on such bets).

A sliding window is a set of sequences that started at different times. The one with number j gets chance /
((j + 1)(j + 2)); these sum to the chance, so that all of them hold together, for ever.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from math import lgamma

from gnnserve_api.intervals import Interval, share_interval

CHANCE = 0.05
"""Chance that anything that is told of a revision's accuracy in service is ever wrong."""
WINDOW_VALUES = 2000
"""Most values of a window: enough to tell a loss of a few points, few enough to follow a change."""
_STARTS_PER_WINDOW = 8
_PRIOR = 0.5
_LOG_PRIOR = 2 * lgamma(_PRIOR) - lgamma(2 * _PRIOR)
_HALVINGS = 25
"""Halvings of the range of an end: it is found to 3e-8."""


def mean_interval(total: float, count: int, chance: float) -> Interval:
    """The interval of a mean after `count` values in [0, 1] with the sum `total`. At all counts together it is wrong
    with at most that chance."""
    if count < 1:
        return Interval(0.0, 1.0)
    total = min(total, float(count))  # sums of floats may exceed it
    mean = total / count
    limit = _limit(total, count, chance)
    return Interval(_boundary(total, count, limit, mean, 0.0), _boundary(total, count, limit, mean, 1.0))


def _limit(total: float, count: int, chance: float) -> float:
    """Largest log likelihood that a mean outside of the interval has: that of the mixture, less the evidence needed."""
    mixture = lgamma(total + _PRIOR) + lgamma(count - total + _PRIOR) - lgamma(count + 2 * _PRIOR) - _LOG_PRIOR
    return mixture + math.log(chance)


def _boundary(total: float, count: int, limit: float, inside: float, outside: float) -> float:
    """The end of the interval between its mean and 0 or 1: likelihood falls with the distance from the mean."""
    if _log_likelihood(total, count, outside) > limit:
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if _log_likelihood(total, count, middle) > limit:
            inside = middle
        else:
            outside = middle
    return outside


def _log_likelihood(total: float, count: int, mean: float) -> float:
    return _log_power(mean, total) + _log_power(1 - mean, count - total)


def _log_power(base: float, exponent: float) -> float:
    if exponent <= 0:
        return 0.0
    return -math.inf if base <= 0 else exponent * math.log(base)


@dataclass(slots=True)
class _Start:
    """One confidence sequence: what came since its start."""

    number: int
    total: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class WindowMean:
    """A mean of the last values."""

    mean: float
    count: int
    interval: Interval


class SlidingMean:
    """The mean of the last values of a stream, in [0, 1], with an interval that holds at every moment."""

    def __init__(self, chance: float = CHANCE, window_values: int = WINDOW_VALUES) -> None:
        """`chance`: that any interval of this stream is ever wrong."""
        self._chance = chance
        self._window_values = window_values
        self._start_every = max(1, window_values // _STARTS_PER_WINDOW)
        self._starts: deque[_Start] = deque([_Start(0)])
        """The oldest first; there is always one."""
        self._windows: tuple[WindowMean, ...] | None = None

    def add(self, total: float, count: int) -> None:
        """Add `count` values by their sum."""
        if count < 1:
            return
        newest = self._starts[-1]
        if newest.count >= self._start_every:
            self._starts.append(_Start(newest.number + 1))
        for start in self._starts:
            start.total += total
            start.count += count
        while len(self._starts) > 1 and self._starts[0].count > self._window_values:
            self._starts.popleft()
        self._windows = None

    @property
    def count(self) -> int:
        """Values in the window."""
        return self._starts[0].count

    @property
    def mean(self) -> float:
        """Mean of the values in the window; 0 without any."""
        return self._starts[0].total / max(1, self._starts[0].count)

    @property
    def interval(self) -> Interval:
        """Interval of the mean over the whole window."""
        return self._of(self._starts[0])

    @property
    def windows(self) -> tuple[WindowMean, ...]:
        """Means of what came since each start in the window, the longest first. All of their intervals hold together.
        Streams of one length that were added to together have as many, of the same values."""
        if self._windows is None:
            self._windows = tuple(
                WindowMean(start.total / max(1, start.count), start.count, self._of(start)) for start in self._starts
            )
        return self._windows

    @property
    def recent(self) -> WindowMean:
        """What came since that start in the window whose interval ends lowest: after a sudden fall the values of before
        leave the window only slowly."""
        return min(self.windows, key=lambda observed: observed.interval.high)

    def is_below(self, value: float) -> bool:
        """Whether the interval of `recent` lies below the value, without the work of finding its ends."""
        return any(
            start.total < value * start.count
            and _log_likelihood(start.total, start.count, value)
            <= _limit(start.total, start.count, self._chance_of(start))
            for start in self._starts
        )

    def _of(self, start: _Start) -> Interval:
        return mean_interval(start.total, start.count, self._chance_of(start))

    def _chance_of(self, start: _Start) -> float:
        return self._chance / ((start.number + 1) * (start.number + 2))


@dataclass(frozen=True, slots=True)
class StatedAccuracy:
    """An accuracy that a profile states, and how many nodes it was counted on."""

    accuracy: float
    nodes: int
    comparisons: int = 1
    """Variants of the profile, whose intervals are to hold together."""

    @property
    def interval(self) -> Interval:
        """The accuracies that the stated one may stand for."""
        return share_interval(self.accuracy, self.nodes, 2 * self.comparisons)

    def stream(self) -> SlidingMean:
        """An empty stream of what came true of it. One half of the chance is this stream's, one the promise's."""
        return SlidingMean(CHANCE / (2 * self.comparisons))

    def is_broken_by(self, found: SlidingMean) -> bool:
        """Whether the stream is significantly below: its interval lies below all that the promise may stand for."""
        return found.is_below(self.interval.low)
