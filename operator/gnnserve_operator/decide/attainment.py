"""Are enough requests answered in time? Lots of requests are judged, so that few requests or none turn nothing over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gnnserve_operator.decide.signals import Outcomes

_FEWEST_REQUESTS = 20
"""That asked for a latency, before they are judged."""
_GOOD_LOTS = 2
"""In a row, before what was missed is met again."""
_IDLE_TICKS = 20
"""Without such requests, until the objective is neither met nor missed."""


@dataclass(frozen=True, slots=True)
class Attainment:
    holds: bool | None = None
    """None: nobody knows."""
    counted: Outcomes = field(default_factory=Outcomes)
    """Not judged yet."""
    good_lots: int = 0
    idle_ticks: int = 0


def judge_attainment(before: Attainment, outcomes: Outcomes, percentile: float) -> Attainment:
    """`outcomes`: of the last interval. Missed by one lot, met again after two."""
    if not outcomes.bounded:
        idle_ticks = before.idle_ticks + 1
        return Attainment() if idle_ticks >= _IDLE_TICKS else replace(before, idle_ticks=idle_ticks)
    counted = before.counted + outcomes
    if counted.bounded < _FEWEST_REQUESTS:
        return replace(before, counted=counted, idle_ticks=0)
    is_good = counted.met >= percentile / 100 * counted.bounded
    good_lots = before.good_lots + 1 if is_good else 0
    return Attainment(is_good and (before.holds is not False or good_lots >= _GOOD_LOTS), good_lots=good_lots)
