"""Are enough requests answered in time? Lots of requests are judged, so that few requests or none turn nothing over.

A lot is as large as it takes for chance to matter little: a service that just meets its objective misses five requests
of a lot on average. The objective is missed only if chance does not explain it, and at once when that is so, however
large the lot is by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gnnserve_routing.signals import Outcomes

_FEWEST_REQUESTS = 20
"""That asked for a latency, before they are judged."""
_TOLERATED_MISSES = 5
"""In a full lot."""
_LONGEST_TICKS = 20
"""With such requests, until a lot that is not full is judged all the same."""
_CHANCE = 4.0
"""Standard deviations of the number of misses, beyond which it is not chance."""
_GOOD_LOTS = 2
"""In a row, before what was missed is met again."""
_IDLE_TICKS = 20
"""Without such requests, until the objective is neither met nor missed."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Attainment:
    holds: bool | None = None
    """None: nobody knows."""
    counted: Outcomes = field(default_factory=Outcomes)
    """Of the lot that is not full yet."""
    ticks: int = 0
    """That it took so far."""
    good_lots: int = 0
    idle_ticks: int = 0


def judge_attainment(before: Attainment, outcomes: Outcomes, percentile: float) -> Attainment:
    """`outcomes`: of the last interval. Missed by one lot, met again after two; at first 20 requests will do."""
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
    """Misses of a service that is expected to have so many."""
    return expected + _CHANCE * math.sqrt(expected) + _ROUNDING
