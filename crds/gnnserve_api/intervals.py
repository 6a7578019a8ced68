"""How far an accuracy that was counted over so many nodes can be from the one that it stands for.

Whether two networks were told apart is asked of the same nodes in pairs (McNemar's exact test, Psychometrika 12, 1947):
nodes that both get right, or both wrong, say nothing about which is better.

Score intervals, since accuracies come near to 1, where the usual p ± z·√(p(1−p)/n) fails: Wilson's for one share
(JASA 22, 1927), Newcombe's hybrid of two for a difference (Statistics in Medicine 17, 1998, method 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE_PERCENT = 95
_CHANCE = 1 - CONFIDENCE_PERCENT / 100


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def share_interval(share: float, count: int, comparisons: int = 1) -> Interval:
    """Interval that holds the true share in 95 of 100 cases, when `share` of `count` independent draws were found. Of
    several `comparisons` all intervals hold in 95 of 100 cases (Bonferroni), whether they depend on each other or not.
    """
    if count < 1:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf(1 - _CHANCE / comparisons / 2)
    weight = z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    # At 0 and at 1 the interval ends there; rounding must not leave them outside.
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def difference_interval(
    first: float, first_count: int, second: float, second_count: int, comparisons: int = 1
) -> Interval:
    """Interval of `first` − `second`, two shares of different draws. Over the same draws it is wider than necessary."""
    one = share_interval(first, first_count, comparisons)
    other = share_interval(second, second_count, comparisons)
    difference = first - second
    return Interval(
        difference - math.hypot(first - one.low, other.high - second),
        difference + math.hypot(one.high - first, second - other.low),
    )


def are_told_apart(first_only: int, second_only: int) -> bool:
    """Whether the two-sided exact test tells that one is right more often. `first_only`: draws where only the first was
    right, or more so than the second."""
    differing = first_only + second_only
    fewer = min(first_only, second_only)
    # In logarithms: 2 ** differing exceeds a float from 1,024 on.
    logarithms = [
        math.lgamma(differing + 1) - math.lgamma(k + 1) - math.lgamma(differing - k + 1) - differing * math.log(2)
        for k in range(fewer + 1)
    ]
    return 2 * math.fsum(math.exp(each) for each in logarithms) < _CHANCE


def is_mean_told(mean: float, deviation: float, count: int) -> bool:
    """Whether the mean of so many independent numbers is told from 0. `deviation`: their standard deviation."""
    return abs(mean) > NormalDist().inv_cdf(1 - _CHANCE / 2) * deviation / math.sqrt(max(1, count))
