"""Judges the findings about rankings (Dynamic GNN inference as-a-service, section 4.1, and its tables 2 and 3).

Each finding is judged from the rows of a study.

A *cell* is a graph and a model. All figures are points (percent of nodes, or of the area under the ROC curve where rows
are judged by it). Gains are over Random at the same factor; seeds are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

SHOWN_FACTOR = 4
"""The paper compares rankings at 4x only."""
NEGLIGIBLE_POINTS = 1.0
"""The paper calls more than one point significant."""
_INFORMED = ("Greedy", "Lasso")
_WIDE_SPREAD = 5.0
"""Largest over median deviation of the columns, from which on they differ wildly."""
_FEW_FEATURES = 128
"""The paper's losses are worst on its two graphs with no more: Arxiv with 128, Products with 100."""

SPREAD_SUFFIX = "_spread"
"""Suffix of graphs whose columns were made to deviate strongly, to test the one finding that is about it."""

Cell = tuple[str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one row."""

    mean: float
    values: tuple[float, ...]


class Study:
    """The rows by graph, model, method and factor."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._points: dict[tuple[Cell, str, int], Points] = {}
        self.spread: dict[Cell, float] = {}
        self.features: dict[Cell, int] = {}
        for row in rows:
            cell = (row["graph"], row["model"])
            name = "roc_auc" if row["judged_by"] == "rocAuc" else "accuracy"
            values = tuple(100 * value for value in row[f"{name}_values"])
            self._points[cell, row["method"], row["factor"]] = Points(100 * row[f"{name}_mean"], values)
            self.spread[cell] = row["deviation_spread"]
            self.features[cell] = row["features"]

    @property
    def cells(self) -> list[Cell]:
        """Cells of unchanged graphs."""
        return [cell for cell in self.spread if not cell[0].endswith(SPREAD_SUFFIX)]

    @property
    def factors(self) -> list[int]:
        return sorted({factor for _, _, factor in self._points})

    def mean(self, cell: Cell, method: str, factor: int) -> float:
        return self._points[cell, method, factor].mean

    def gain(self, cell: Cell, method: str, factor: int = SHOWN_FACTOR) -> float:
        return self.mean(cell, method, factor) - self.mean(cell, "Random", factor)

    def gains(self, method: str, factor: int = SHOWN_FACTOR) -> dict[Cell, float]:
        return {cell: self.gain(cell, method, factor) for cell in self.cells}

    def gains_by_seed(self, cell: Cell, method: str, factor: int = SHOWN_FACTOR) -> list[float]:
        ours, random = self._points[cell, method, factor].values, self._points[cell, "Random", factor].values
        return [one - other for one, other in zip(ours, random, strict=True)]

    def loss(self, cell: Cell, factor: int, method: str = "Lasso") -> float:
        """Points below 1x. Lasso is the ranking of all of the paper's tables."""
        return self.mean(cell, method, 1) - self.mean(cell, method, factor)


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: str
    """`holds`, `partly` or `does not hold`; `not measured` where the rows cannot tell."""
    because: str
    numbers: Mapping[str, Any]


def judge_findings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry per finding, with the numbers that decide it."""
    study = Study(rows)
    found = []
    for finding, judge in _FINDINGS.items():
        judgement = judge(study)
        found.append(
            {
                "finding": finding,
                "verdict": judgement.verdict,
                "because": judgement.because,
                "numbers": dict(judgement.numbers),
            }
        )
    return found


def differences_are_negligible(study: Study) -> Judgement:
    gaps = {}
    for cell in study.cells:
        points = [study.mean(cell, method, SHOWN_FACTOR) for method in ("Random", *_INFORMED)]
        gaps[cell] = max(points) - min(points)
    small = [cell for cell, gap in gaps.items() if gap < NEGLIGIBLE_POINTS]
    widest = max(gaps, key=lambda cell: gaps[cell])
    return Judgement(
        _verdict(len(small) > len(gaps) / 2, bool(small)),
        f"best and worst ranking are less than {NEGLIGIBLE_POINTS:g} point apart in {len(small)} of {len(gaps)} cells; "
        f"the median is {median(gaps.values()):.2f}, the most {gaps[widest]:.2f} ({_name(widest)})",
        {"cells": len(gaps), "negligible": len(small), "median": median(gaps.values()), "gaps": _named(gaps)},
    )


def random_is_sometimes_as_good(study: Study) -> Judgement:
    leads = {
        cell: study.mean(cell, "Random", SHOWN_FACTOR)
        - max(study.mean(cell, method, SHOWN_FACTOR) for method in _INFORMED)
        for cell in study.cells
    }
    ahead = [cell for cell, lead in leads.items() if lead >= 0]
    either = [cell for cell in study.cells if min(study.gain(cell, method) for method in _INFORMED) <= 0]
    closest = max(leads, key=lambda cell: leads[cell])
    return Judgement(
        _verdict(bool(ahead), bool(either)),
        f"Random is at least as good as both others in {len(ahead)} of {len(leads)} cells, and as one of them in "
        f"{len(either)}; at best it leads by {leads[closest]:+.2f} ({_name(closest)})",
        {"cells": len(leads), "as_good_as_both": len(ahead), "as_good_as_one": len(either), "leads": _named(leads)},
    )


def informed_rankings_gain_a_point_in_places(study: Study) -> Judgement:
    better = {cell: max(_INFORMED, key=lambda method, cell=cell: study.gain(cell, method)) for cell in study.cells}
    gains = {cell: study.gain(cell, method) for cell, method in better.items()}
    large = [cell for cell, gain in gains.items() if gain > NEGLIGIBLE_POINTS]
    in_every_seed = [cell for cell in large if min(study.gains_by_seed(cell, better[cell])) > 0]
    most = max(gains, key=lambda cell: gains[cell])
    return Judgement(
        _verdict(bool(in_every_seed), bool(large)),
        f"the better of Greedy and Lasso gains more than {NEGLIGIBLE_POINTS:g} point over Random in {len(large)} of "
        f"{len(gains)} cells, in {len(in_every_seed)} of them with every seed; the most is {gains[most]:.2f} "
        f"({_name(most)})",
        {
            "cells": len(gains),
            "over_a_point": len(large),
            "with_every_seed": len(in_every_seed),
            "gains": _named(gains),
        },
    )


def lasso_is_steadier(study: Study) -> Judgement:
    greedy, lasso = study.gains("Greedy"), study.gains("Lasso")
    worst = {"Greedy": min(greedy.values()), "Lasso": min(lasso.values())}
    below = {"Greedy": sum(gain < 0 for gain in greedy.values()), "Lasso": sum(gain < 0 for gain in lasso.values())}
    ahead = sum(lasso[cell] > greedy[cell] for cell in study.cells)
    signs = (worst["Lasso"] > worst["Greedy"], below["Lasso"] < below["Greedy"])
    return Judgement(
        _verdict(all(signs), any(signs)),
        f"against Random, Lasso is at worst {worst['Lasso']:+.2f} and Greedy {worst['Greedy']:+.2f}; Lasso is below "
        f"Random in {below['Lasso']} of {len(lasso)} cells, Greedy in {below['Greedy']}; Lasso is above Greedy in "
        f"{ahead}",
        {
            "worst": worst, "below_random": below, "lasso_above_greedy": ahead, "greedy": _named(greedy),
            "lasso": _named(lasso),
        },
    )  # fmt: skip


def greedy_fails_where_deviations_differ(study: Study) -> Judgement:
    wide = [cell for cell, spread in study.spread.items() if spread >= _WIDE_SPREAD]
    even = [cell for cell, spread in study.spread.items() if spread < _WIDE_SPREAD]
    if not wide or not even:
        return Judgement("not measured", "the graphs' columns deviate alike", {"wide": len(wide), "even": len(even)})
    below_lasso = {
        cell: study.mean(cell, "Greedy", SHOWN_FACTOR) - study.mean(cell, "Lasso", SHOWN_FACTOR)
        for cell in study.spread
    }  # fmt: skip
    of_wide, of_even = (mean(below_lasso[cell] for cell in cells) for cells in (wide, even))
    below_random = sum(study.gain(cell, "Greedy") < 0 for cell in wide)
    return Judgement(
        _verdict(of_wide < min(0.0, of_even) and below_random > len(wide) / 2, of_wide < min(0.0, of_even)),
        f"Greedy minus Lasso is {of_wide:+.2f} on average where a column deviates at least {_WIDE_SPREAD:g} times as "
        f"much as the median one ({len(wide)} cells), {of_even:+.2f} elsewhere ({len(even)}); Greedy is below Random "
        f"in {below_random} of the {len(wide)}",
        {
            "wide": [_name(cell) for cell in wide], "greedy_minus_lasso": _named(below_lasso), "mean_wide": of_wide,
            "mean_even": of_even, "below_random": below_random, "spread": _named(study.spread),
        },
    )  # fmt: skip


def accuracy_falls_with_the_factor(study: Study) -> Judgement:
    last = study.factors[-1]
    losses = {cell: study.loss(cell, last) for cell in study.cells}
    falling = [cell for cell, loss in losses.items() if loss > 0]
    return Judgement(
        _verdict(len(falling) == len(losses), len(falling) > len(losses) / 2),
        f"{last}x with Lasso is below 1x in {len(falling)} of {len(losses)} cells, by {median(losses.values()):.2f} in "
        f"the median; mean loss by factor: "
        + ", ".join(
            f"{factor}x {mean(study.loss(cell, factor) for cell in study.cells):.2f}" for factor in study.factors[1:]
        ),
        {"cells": len(losses), "below": len(falling), "losses": _named(losses)},
    )


def losses_are_worst_with_few_features(study: Study) -> Judgement:
    last = study.factors[-1]
    few = [cell for cell in study.cells if study.features[cell] <= _FEW_FEATURES]
    many = [cell for cell in study.cells if study.features[cell] > _FEW_FEATURES]
    if not few or not many:
        return Judgement("not measured", "the graphs have about as many features", {"few": len(few), "many": len(many)})
    of_few, of_many = (mean(study.loss(cell, last) for cell in cells) for cells in (few, many))
    worst = max(study.cells, key=lambda cell: study.loss(cell, last))
    return Judgement(
        _verdict(of_few > of_many and worst in few, of_few > of_many),
        f"{last}x with Lasso loses {of_few:.2f} on average with up to {_FEW_FEATURES} features ({len(few)} cells), "
        f"{of_many:.2f} with more ({len(many)}); the most is lost on {_name(worst)}: {study.loss(worst, last):.2f}",
        {"mean_few": of_few, "mean_many": of_many, "worst": _name(worst), "few": [_name(cell) for cell in few]},
    )


def accuracy_is_not_monotone(study: Study) -> Judgement:
    rises = {}
    for cell in study.cells:
        steps = [
            study.mean(cell, "Lasso", later) - study.mean(cell, "Lasso", earlier)
            for earlier, later in zip(study.factors, study.factors[1:], strict=False)
        ]
        rises[cell] = max(steps)
    rising = [cell for cell, rise in rises.items() if rise > 0]
    most = max(rises, key=lambda cell: rises[cell])
    return Judgement(
        _verdict(bool(rising), some=False),
        f"with Lasso, fewer columns are at some step more accurate in {len(rising)} of {len(rises)} cells; the largest "
        f"rise is {rises[most]:+.2f} ({_name(most)})",
        {"cells": len(rises), "rising": len(rising), "rises": _named(rises)},
    )


_FINDINGS: Mapping[str, Callable[[Study], Judgement]] = {
    "Rankings mostly differ by a negligible amount": differences_are_negligible,
    "Random is sometimes as good or better": random_is_sometimes_as_good,
    "Greedy or Lasso gain more than a point in places": informed_rankings_gain_a_point_in_places,
    "Lasso is steadier than Greedy": lasso_is_steadier,
    "Greedy fails where columns deviate very differently": greedy_fails_where_deviations_differ,
    "Accuracy falls with the factor": accuracy_falls_with_the_factor,
    "Losses are worst with few features": losses_are_worst_with_few_features,
    "Accuracy is not monotone in the factor": accuracy_is_not_monotone,
}


def _verdict(all_of_it: bool, some: bool) -> str:
    return "holds" if all_of_it else "partly" if some else "does not hold"


def _name(cell: Cell) -> str:
    return " ".join(cell)


def _named(figures: Mapping[Cell, float]) -> dict[str, float]:
    return {_name(cell): round(figure, 3) for cell, figure in figures.items()}
