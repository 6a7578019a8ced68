"""Seconds of each step of a generation, of two commits, for three of the examples: nodes of one type, of several, and
links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from tools.step_times import time_steps

from benchmarks.commits import ROOT, Commit
from benchmarks.regression.regression_costs import MeasurePair

MANIFESTS = {name: ROOT / f"examples/{name}/{name}.yaml" for name in ("accounts", "reviews", "shop")}
"""By the name of an example: accounts have one type of nodes, reviews several, and a shop has links."""
StepTimes = dict[str, dict[str, list[float]]]
"""Seconds of each pair, by stage, by the name of the commit."""


def measure_steps(manifest: Path, taken: StepTimes) -> MeasurePair:
    """Seconds of a whole generation; what each stage took is added to `taken`, warm-up pairs too."""

    def measure(both: Sequence[Commit]) -> dict[str, dict[str, float]]:
        return {commit.name: {f"generation of {manifest.stem}": sum(_time(commit).values())} for commit in both}

    def _time(commit: Commit) -> dict[str, float]:
        steps = time_steps(manifest, commit.folder)
        for stage, step_s in steps.items():
            taken.setdefault(commit.name, {}).setdefault(stage, []).append(step_s)
        return steps

    return measure


def median_steps(taken: StepTimes, warm_up_pairs: int) -> dict[str, dict[str, float]]:
    """The median of each stage's seconds, by stage, by the name of the commit."""
    return {
        name: {stage: round(median(found[warm_up_pairs:] or found), 3) for stage, found in stages.items()}
        for name, stages in taken.items()
    }


def step_rows(steps: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[tuple[str, str, str]]:
    """Rows of a table: a stage, its seconds at the old commit and at the new one; "–": it has none of that name."""
    for name, found in steps.items():
        old, new = found["old"], found["new"]
        for stage in dict.fromkeys([*old, *new]):
            yield f"{name}: {stage}", _told(old.get(stage)), _told(new.get(stage))


def _told(step_s: float | None) -> str:
    return "–" if step_s is None else f"{step_s:.2f} s"
