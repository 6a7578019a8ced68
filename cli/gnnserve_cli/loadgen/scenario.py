"""Load that changes while it is measured: the rate curves behind `--scenario`, and arrivals that follow them.

A curve is given by its peak, so that one number says how hard it gets. Arrivals are renewals with gamma-distributed
gaps in operational time (the expected number of requests so far), warped by the curve: whatever the rate, the same
burstiness.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

STEP_S = 0.01
"""A curve is constant within a step: far shorter than anything that reacts to it."""
LEAST_STEPS = 1000
"""Fewest steps, for short runs, so that every curve keeps its shape."""
MOST_STEPS = 1_000_000
"""Most steps, for runs of hours, whose steps are longer: all are made before the first request."""

STEP_LOW = 0.25
FLASH_BASE = 1 / 12
FLASH_RISE, FLASH_DECAY = 1 / 150, 1 / 20
"""Shares of the duration: 2 s and 15 s of five minutes."""
DIURNAL_LOW = 1 / 17.5
DIURNAL_SQUARED_VARIATION = 2.0
BURSTS_LOW = 0.1
BURST_S, GAP_S = 1.0, 2.0
"""Means of exponential lengths. Not scaled by the duration: bursts are defined by being shorter than any control loop
over metrics."""


class Scenario(StrEnum):
    STEP = "step"
    """A quarter of the peak for a third of the time, the peak for a third, a quarter again."""
    FLASH = "flash"
    """A twelfth of the peak; after a third of the time a crowd brings the peak within 1/150 of the duration, and
    decays with a time constant of 1/20 of it."""
    DIURNAL = "diurnal"
    """One slow wave (sin²) from 6 % of the peak to the peak and back, with bursty arrivals."""
    BURSTS = "bursts"
    """The peak for about a second, a tenth of it for about two, both exponentially distributed."""


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Requests per second over time, constant within each step."""

    step_s: float
    rates_per_s: tuple[float, ...]
    squared_variation: float = 1.0
    """Variance over squared mean of the gaps, in operational time; 1: Poisson."""


def build_curve(scenario: Scenario, peak_per_s: float, duration_s: float, seed: int) -> RateCurve:
    """`seed` decides where bursts lie; the other shapes are always the same."""
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(duration_s / STEP_S)))
    step_s = duration_s / steps
    share_at = _share_of_peak(scenario, duration_s, seed)
    rates = tuple(peak_per_s * share_at((number + 0.5) / steps) for number in range(steps))
    return RateCurve(step_s, rates, DIURNAL_SQUARED_VARIATION if scenario is Scenario.DIURNAL else 1.0)


def build_arrivals(curve: RateCurve, seed: int) -> Iterator[float]:
    """Seconds after the start, ascending; the same seed gives the same arrivals."""
    generator = random.Random(seed)  # noqa: S311 - load, not secrets
    shape, scale = 1 / curve.squared_variation, curve.squared_variation
    next_due = generator.gammavariate(shape, scale)
    expected = 0.0
    for number, rate_per_s in enumerate(curve.rates_per_s):
        of_step = rate_per_s * curve.step_s
        while next_due < expected + of_step:
            yield (number + (next_due - expected) / of_step) * curve.step_s
            next_due += generator.gammavariate(shape, scale)
        expected += of_step


def _share_of_peak(scenario: Scenario, duration_s: float, seed: int) -> Callable[[float], float]:
    """Rate as a share of the peak, by time as a share of the duration."""
    match scenario:
        case Scenario.STEP:
            return _step
        case Scenario.FLASH:
            return _flash
        case Scenario.DIURNAL:
            return _diurnal
        case Scenario.BURSTS:
            return _bursts(duration_s, seed)


def _step(time: float) -> float:
    return 1.0 if 1 / 3 <= time < 2 / 3 else STEP_LOW


def _flash(time: float) -> float:
    since = time - 1 / 3
    rise = min(max(since / FLASH_RISE, 0.0), 1.0)
    decay = math.exp(-max(since - FLASH_RISE, 0.0) / FLASH_DECAY)
    return FLASH_BASE + (1 - FLASH_BASE) * rise * decay


def _diurnal(time: float) -> float:
    return DIURNAL_LOW + (1 - DIURNAL_LOW) * math.sin(math.pi * time) ** 2


def _bursts(duration_s: float, seed: int) -> Callable[[float], float]:
    """Load in bursts. It may be asked for ascending times only."""
    generator = random.Random(f"bursts {seed}")  # noqa: S311 - load, not secrets; a stream apart from the arrivals'
    is_burst, ends_s = False, generator.expovariate(1 / GAP_S)

    def share_at(time: float) -> float:
        nonlocal is_burst, ends_s
        while time * duration_s >= ends_s:
            is_burst = not is_burst
            ends_s += generator.expovariate(1 / (BURST_S if is_burst else GAP_S))
        return 1.0 if is_burst else BURSTS_LOW

    return share_at
