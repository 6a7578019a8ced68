"""When the requests of an open loop are due, in seconds after the start.

An open loop does not wait for answers: a slow server meets the load that it would meet in production, instead of
a client that slows down with it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from enum import StrEnum


class Arrivals(StrEnum):
    POISSON = "poisson"
    """Independent clients: exponential gaps, so bursts happen."""
    FIXED = "fixed"
    """Equal gaps."""


def build_schedule(arrivals: Arrivals, rate_per_s: float, duration_s: float, seed: int) -> Iterator[float]:
    """Times of arrival, ascending and below `duration_s`; the same seed gives the same arrivals."""
    if arrivals is Arrivals.FIXED:
        return itertools.takewhile(lambda due_s: due_s < duration_s, (n / rate_per_s for n in itertools.count()))
    return _poisson(rate_per_s, duration_s, random.Random(seed))  # noqa: S311 - load, not secrets


def _poisson(rate_per_s: float, duration_s: float, generator: random.Random) -> Iterator[float]:
    due_s = generator.expovariate(rate_per_s)
    while due_s < duration_s:
        yield due_s
        due_s += generator.expovariate(rate_per_s)
