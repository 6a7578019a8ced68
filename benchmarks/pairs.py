"""Costs that are measured in pairs, old and new right after each other: their ratio, and when it is worse.

A shared machine drifts by more than what is looked for, so no figure is compared with one of another run: only the
ratios of pairs count. A ratio is of a cost (time, time per request, bytes), new over old: above 1 is worse. Its
interval is Student's t over the pairs' logarithms, 95 %.

How much worse is a loss, and how far noise may excuse one, is stated before a run (`Allowed`): the interval alone would
excuse a run by its own noise, and the noisier the more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.verdicts import Verdict, Worded, that

Pairs = Sequence[tuple[float, float]]
"""(old, new) costs of each pair, above 0."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Largest ratios that do not count as worse, as parts of 1: constants of a benchmark."""

    loss: float
    """Largest loss that is none."""
    noise: float = 0.0
    """How far below the ratio the lower end of its interval may lie and still be believed."""

    def accepts(self, ratio: Ratio) -> bool:
        return self.lower_end(ratio) <= 1 + self.loss

    def lower_end(self, ratio: Ratio) -> float:
        """Lower end of the interval, or of what noise is allowed to excuse, whichever is higher."""
        return max(ratio.low, ratio.ratio / (1 + self.noise))

    @property
    def words(self) -> str:
        if not self.noise:
            return f"ratio at most {1 + self.loss:g}"
        end = f"at most {1 + self.loss:g} at the lower end of the 95 % interval"
        return f"{end}, or {100 * self.noise:g} % below the ratio where that is higher"


@dataclass(frozen=True, slots=True)
class Ratio:
    ratio: float
    """Geometric mean over the pairs, new over old."""
    low: float
    high: float
    """95 % interval."""
    pairs: int

    @property
    def words(self) -> str:
        return f"{self.ratio} ({self.low} to {self.high}), {self.pairs} pairs"


def compute_ratio(pairs: Pairs) -> Ratio:
    logs = np.log([new / old for old, new in pairs])
    mean = float(logs.mean())
    half = 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    low, ratio, high = (round(math.exp(value), 4) for value in (mean - half, mean, mean + half))
    return Ratio(ratio, low, high, len(pairs))


def verdict_of(figure: str, allowed: Allowed, find: Callable[[Any], Ratio], reason: str = "") -> Verdict:
    """A verdict on a ratio, which `find` finds in what was measured. `reason`: as `Verdict` has it."""

    def measure(found: Any) -> Worded:
        ratio = find(found)
        return Worded(allowed.accepts(ratio), ratio.words)

    return Verdict(figure, that(allowed.words), measure, reason)


def recorded(
    ratios: Mapping[str, Ratio], costs: Mapping[str, Pairs], allowed: Callable[[str], Allowed]
) -> dict[str, Any]:
    """Ratios as a result file has them, by figure, beside what is allowed of each."""
    return {
        "ratios": {figure: found.ratio for figure, found in ratios.items()},
        "intervals": {figure: [found.low, found.high] for figure, found in ratios.items()},
        "pairs": {figure: found.pairs for figure, found in ratios.items()},
        "allowed": {figure: asdict(allowed(figure)) for figure in ratios},
        "costs": {figure: [list(pair) for pair in found] for figure, found in costs.items()},
    }


def read_ratio(found: Any, figure: str) -> Ratio:
    """Raises KeyError where it was not measured."""
    low, high = found["intervals"][figure]
    return Ratio(found["ratios"][figure], low, high, found["pairs"][figure])
