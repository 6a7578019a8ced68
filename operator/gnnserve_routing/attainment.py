"""Attainment: whether enough requests are answered in time. Requests are judged in lots, so that a few of them, or
none, do not change the verdict.

A lot is large enough for chance to matter little: a service that just meets its objective misses five requests of a lot
on average. The objective counts as missed only if chance does not explain the misses, and as soon as it does not,
however large the lot is by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gnnserve_routing.signals import Outcomes

_FEWEST_REQUESTS = 20
"""Fewest requests with a latency objective that are judged."""
_TOLERATED_MISSES = 5
"""Misses that a full lot may have."""
_LONGEST_TICKS = 20
"""Ticks with such requests after which an incomplete lot is judged."""
_CHANCE = 4.0
"""Standard deviations of the number of misses that chance may explain."""
_GOOD_LOTS = 2
"""Good lots in a row after which a missed objective counts as met again."""
_IDLE_TICKS = 20
"""Ticks without such requests after which the objective is neither met nor missed."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Attainment:
    holds: bool | None = None
    """Whether the objective is met; None: not known."""
    counted: Outcomes = field(default_factory=Outcomes)
    """Outcomes of the incomplete lot."""
    ticks: int = 0
    """Ticks of the incomplete lot."""
    good_lots: int = 0
    idle_ticks: int = 0


def judge_attainment(before: Attainment, outcomes: Outcomes, percentile: float) -> Attainment:
    """Judge the outcomes of the last interval. One bad lot misses the objective, two good ones meet it again; at first
    20 requests suffice."""
    if not outcomes.bounded:
        idle_ticks = before.idle_ticks + 1
        return Attainment() if idle_ticks >= _IDLE_TICKS else replace(before, idle_ticks=idle_ticks)
    counted, ticks = before.counted + outcomes, before.ticks + 1
    asked, missed = counted.bounded, counted.bounded - counted.met
    tolerated = (100 - percentile) / 100
    full = max(_TOLERATED_MISSES / tolerated, _FEWEST_REQUESTS)
    if missed > _most_by_chance(tolerated * max(asked, full)):
        return Attainment(False)
    is_chance = missed <= _most_by_chance(tolerated * asked)
    if asked < full and (asked < _FEWEST_REQUESTS or ticks < _LONGEST_TICKS):
        is_met_at_first = before.holds is None and asked >= _FEWEST_REQUESTS and is_chance
        return replace(before, holds=is_met_at_first or before.holds, counted=counted, ticks=ticks, idle_ticks=0)
    good_lots = before.good_lots + 1 if missed <= tolerated * asked + _ROUNDING else 0
    return Attainment(is_chance and (before.holds is not False or good_lots >= _GOOD_LOTS), good_lots=good_lots)


def _most_by_chance(expected: float) -> float:
    """Most misses by chance of a service with that expected number."""
    return expected + _CHANCE * math.sqrt(expected) + _ROUNDING
