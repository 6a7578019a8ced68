"""Is this commit slower than another one? Clean checkouts of both take turns in one run, pair by pair.

Each pair measures both commits right after each other, in an order that changes, and only the ratios of pairs count
(`benchmarks/pairs.py`). Servers, engines and operators are started anew for every pair: two starts of one commit differ
by more than what is looked for, and pairs of one start would all share it.

Both commits serve from one repository, which the old one made: so the new one also shows that it needs no new
generation. Parts compare this commit with `BASELINE` (or `--base`); the parts `arxiv-first` and `reddit-first` with
`FIRST_BASELINE`, and only what a request costs. The part `counts` counts calls and modules, which no noise moves.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.commits import Commit, check_out
from benchmarks.pairs import Allowed, compute_ratio, read_ratio, recorded, verdict_of
from benchmarks.regression.regression_costs import (
    HTTP_COSTS,
    OVER_FIRST,
    SECOND_START,
    MeasurePair,
    measure_decision,
    measure_engine,
    measure_operator,
    measure_serving,
    one_by_one,
    publish,
)
from benchmarks.regression.regression_counts import count, count_rows, count_verdicts
from benchmarks.regression.regression_steps import MANIFESTS, StepTimes, measure_steps, median_steps, step_rows
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import SHAPES
from benchmarks.verdicts import Verdict

BASELINE = "8d35b362"
"""The commit that ended the last issue of this project: whatever is measured over it was changed since."""
FIRST_BASELINE = "4c3f189"
"""An early commit, over which small losses of many issues would add up unseen. What a service was has changed since, so
only what a request costs is compared (`OVER_FIRST`)."""
SERVING = Allowed(loss=0.03, noise=0.04)
START = Allowed(loss=0.03, noise=0.05)
ENGINE = Allowed(loss=0.03, noise=0.06)
DECISION = Allowed(loss=0.05, noise=0.02)
OPERATOR = Allowed(loss=0.03, noise=0.02)
GENERATION = Allowed(loss=0.03, noise=0.06)
"""What is allowed of each kind of cost. `noise`: how far ten pairs scattered in earlier runs."""
FIRST = Allowed(loss=0.0)
"""Over the first baseline nothing is: the ratio itself is judged, of twice as many pairs."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. A pair of servers takes about 25 s: it starts both (3 s each) and puts each under three
    loads."""

    pairs: int
    warm_up_pairs: int
    load_s: int
    engine_s: float
    operator_settles_s: float


QUICK = Effort(pairs=1, warm_up_pairs=0, load_s=1, engine_s=0.5, operator_settles_s=1.0)
FULL = Effort(pairs=10, warm_up_pairs=1, load_s=3, engine_s=2.0, operator_settles_s=4.0)
FIRST_PAIRS, GENERATION_PAIRS = 20, 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two commits that a part compares, and how much it measures."""

    old: Commit
    new: Commit
    scratch: Path
    effort: Effort

    def take(self, measure: MeasurePair, prefix: str = "") -> dict[str, list[tuple[float, float]]]:
        """Costs of all pairs, by figure."""
        costs: dict[str, list[tuple[float, float]]] = {}
        Turns(costs, (self.old, self.new), prefix, self.effort.warm_up_pairs).take(self.effort.pairs, measure)
        return costs

    def record(self, costs: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
        """A part's fragment."""
        ratios = {figure: compute_ratio(found) for figure, found in costs.items()}
        return {
            "head": self.new.id,
            "bases": dict.fromkeys(ratios, self.old.id),
            **recorded(ratios, costs, allowed_of),
        }


@dataclass(frozen=True, slots=True)
class Turns:
    costs: dict[str, list[tuple[float, float]]]
    """(old, new) of each pair, by figure."""
    both: tuple[Commit, Commit]
    prefix: str
    warm_up_pairs: int
    """Pairs that do not count, before those that do: they compile kernels and fill the page cache."""

    def take(self, pairs: int, measure: MeasurePair) -> None:
        """Adds the costs of so many pairs. Every other pair begins with the new commit."""
        for number in range(1 - self.warm_up_pairs, pairs + 1):
            found = measure(self.both if number % 2 else self.both[::-1])
            if number > 0:
                for figure, cost in found["old"].items():
                    self.costs.setdefault(f"{self.prefix}{figure}", []).append((cost, found["new"][figure]))
            print(f"{self.prefix}pair {number} of {pairs}: {json.dumps(found)}", flush=True)


# --- what is compared, part by part

_ALLOWED = {
    f", over {FIRST_BASELINE}": FIRST,
    SECOND_START: START,
    **{cost.figure: SERVING for cost in HTTP_COSTS},
    "seeds in the engine": ENGINE,
    "decision, ": DECISION,
    "operator beside ": OPERATOR,
    "generation of ": GENERATION,
}
"""By what the name of a figure holds."""


def allowed_of(figure: str) -> Allowed:
    """Raises LookupError for a figure that nothing is allowed of."""
    for words, allowed in _ALLOWED.items():
        if words in figure:
            return allowed
    raise LookupError(figure)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", default=BASELINE, help=f"the commit to compare with; default: {BASELINE}")
    told = f"default: {FULL.pairs}, and {FIRST_PAIRS} over {FIRST_BASELINE}"
    parser.add_argument("--pairs", type=int, help=told)


@contextmanager
def scratch(_run: Run) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gnnserve-regression-") as name:
        yield Path(name)


def comparison(run: Run, base: str, pairs: int = FULL.pairs) -> Comparison:
    effort = QUICK if run.quick else replace(FULL, pairs=run.options.pairs or pairs)
    return Comparison(check_out("old", base), check_out("new", "HEAD"), run.context, effort)


def over_base(run: Run, pairs: int = FULL.pairs) -> Comparison:
    """SystemExit for the first baseline, over which other parts compare less."""
    pair = comparison(run, run.options.base, pairs)
    if pair.old.id.startswith(FIRST_BASELINE):
        raise SystemExit(
            f"--base {run.options.base}: over {FIRST_BASELINE} only one seed and 32 connections are compared; run the "
            "parts arxiv-first and reddit-first (ONLY=arxiv-first,reddit-first)"
        )
    return pair


def run_http(shape: str, run: Run) -> dict[str, Any]:
    pair = over_base(run)
    subject = publish(SHAPES[shape], pair.scratch, pair.old)
    return pair.record(pair.take(measure_serving(subject, pair.effort.load_s, HTTP_COSTS, starts=True), f"{shape}: "))


def run_first(shape: str, run: Run) -> dict[str, Any]:
    pair = comparison(run, FIRST_BASELINE, FIRST_PAIRS)
    subject = publish(SHAPES[shape], pair.scratch, pair.old)
    costs = pair.take(measure_serving(subject, pair.effort.load_s, OVER_FIRST, starts=False), f"{shape}: ")
    return pair.record({f"{figure}, over {FIRST_BASELINE}": found for figure, found in costs.items()})


def run_engine(shape: str, run: Run) -> dict[str, Any]:
    pair = over_base(run)
    subject = publish(SHAPES[shape], pair.scratch, pair.old)
    return pair.record(pair.take(one_by_one(measure_engine(subject, pair.effort.engine_s)), f"{shape}: "))


def run_decisions(run: Run) -> dict[str, Any]:
    pair = over_base(run)
    return pair.record(pair.take(one_by_one(measure_decision)))


def run_operator(run: Run) -> dict[str, Any]:
    pair = over_base(run)
    return pair.record(pair.take(one_by_one(measure_operator(pair.scratch, pair.effort.operator_settles_s))))


def run_steps(run: Run) -> dict[str, Any]:
    pair = over_base(run, GENERATION_PAIRS)
    costs: dict[str, list[tuple[float, float]]] = {}
    steps: dict[str, Any] = {}
    for name, manifest in MANIFESTS.items():
        taken: StepTimes = {}
        costs |= pair.take(measure_steps(manifest, taken))
        steps[name] = median_steps(taken, pair.effort.warm_up_pairs)
    return {**pair.record(costs), "steps": steps}


def run_counts(run: Run) -> dict[str, Any]:
    pair = over_base(run)
    counts = {commit.name: count(commit) for commit in (pair.old, pair.new)}
    return {"head": pair.new.id, "counted_base": pair.old.id, "counts": counts}


def verdicts(found: Any) -> list[Verdict]:
    ratios = found.get("ratios", ())
    return [
        *(verdict_of(figure, allowed_of(figure), partial(read_ratio, figure=figure)) for figure in ratios),
        *(count_verdicts(found["counts"]) if "counts" in found else ()),
    ]


def show(found: Any) -> None:
    if "counts" in found:
        counted = Table("Counted", f"at {found['counted_base'][:7]}", "now")
        for row in count_rows(found["counts"]):
            counted.add_row(*row)
        Console(width=120).print(counted)
    if "steps" in found:
        stages = Table("Step of a generation, median", "base", "now")
        for row in step_rows(found["steps"]):
            stages.add_row(*row)
        Console(width=120).print(stages)
    table = Table("Cost", title="new over old: above 1 is worse")
    for header in ("old", "new/old", "95 % interval", "pairs"):
        table.add_column(header, justify="right")
    for figure in found.get("ratios", ()):
        ratio = read_ratio(found, figure)
        table.add_row(
            figure, found["bases"][figure][:7], f"{ratio.ratio:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}",
            str(ratio.pairs),
        )  # fmt: skip
    Console(width=120).print(table)


_SERVER = ("gnnserve_cli.__main__",)
BENCHMARK = Benchmark(
    "regression",
    (
        *(Part(f"{shape}-http", partial(run_http, shape), _SERVER) for shape in ("arxiv", "reddit")),
        *(Part(f"{shape}-engine", partial(run_engine, shape), _SERVER) for shape in ("arxiv", "reddit")),
        Part("decisions", run_decisions, ("benchmarks.load.decision",)),
        Part("operator", run_operator, ("gnnserve_operator.__main__",)),
        *(Part(f"{shape}-first", partial(run_first, shape), _SERVER) for shape in ("arxiv", "reddit")),
        Part("generation", run_steps, ("gnnserve_worker.generation.pipeline", "tools.step_times")),
        Part("counts", run_counts, (*_SERVER, "tools.counted_server", "tools.opened")),
    ),
    verdicts,
    about=__doc__,
    quick=("arxiv-http", "arxiv-engine", "decisions", "operator"),
    show=show,
    around=scratch,
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
