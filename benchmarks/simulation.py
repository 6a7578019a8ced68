"""The worker's routing in simulated time, against the targets of the study whose assumptions `simulator.py` shares.

Attained: percent of the requests answered in time, refused ones counted as missed. Accuracy: the mean, in points, over
those. The study's own figures stand beside ours: its recommended policy, and an oracle that knows all arrivals, knows
no noise and may refuse any request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.simulator import (
    MIXED,
    MODELS,
    PRODUCTS,
    REDDIT,
    TRACES,
    Log,
    Model,
    Setting,
    draw_trace,
    judge,
    mean_of,
    simulate,
)
from benchmarks.verdicts import Verdict, given

FULL_MS, QUICK_MS = 300_000.0, 30_000.0
FULL_SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
ORACLE_MS, ORACLE_SEED = 60_000.0, 1
"""Length and seed of the Products-like traces that the oracle was computed for."""
_DRIFT = (1 / 3, 2 / 3, 1.6)


@dataclass(frozen=True, slots=True)
class Studied:
    """The study's figures of one trace: attained and accuracy of its recommended policy, and the oracle's accuracy."""

    attained: float
    accuracy: float
    oracle: float | None
    best_static: float | None
    """Accuracy of the most accurate single variant that attains 99.5 %."""


STUDIED = {
    "reddit": {
        "poisson0.6": Studied(99.98, 94.419, 94.420, 94.420),
        "poisson1.5": Studied(99.97, 94.278, 94.303, 94.250),
        "gamma2": Studied(99.87, 94.331, 94.367, 94.250),
        "gamma4": Studied(99.85, 94.320, 94.362, 94.250),
        "gamma8": Studied(99.82, 94.295, 94.348, 94.250),
        "onoff": Studied(100.00, 94.018, 94.074, 93.920),
        "diurnal": Studied(99.98, 93.985, 94.036, 93.300),
        "step4": Studied(99.99, 94.113, 94.136, 93.920),
        "flash": Studied(98.5, 94.12, 94.130, None),
    },
    "products": {
        "poisson0.6": Studied(99.97, 72.42, None, 72.43),
        "poisson1.5": Studied(99.89, 70.84, None, 68.45),
        "gamma2": Studied(99.79, 71.57, None, 71.10),
        "gamma4": Studied(99.81, 71.42, None, 68.45),
        "gamma8": Studied(99.83, 71.11, None, 68.45),
        "onoff": Studied(99.99, 66.29, None, 63.58),
        "diurnal": Studied(99.40, 66.57, None, None),
        "step4": Studied(99.98, 67.94, None, 63.58),
        "flash": Studied(92.32, 69.95, None, None),
    },
}
PRODUCTS_ORACLE = {"gamma4": 71.80, "onoff": 67.17}
"""Accuracies at 100 % attained, of 60 s, seed 1."""
MIXED_TRACES = ("poisson0.6", "poisson1.5", "onoff", "flash")
FARTHEST_FROM_ORACLE = {"reddit": 6.0, "products": 8.0}
"""Percent of the range of accuracy."""


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    wanted: str
    found: str
    met: bool


@dataclass(frozen=True, slots=True)
class Traces:
    duration_ms: float
    seeds: tuple[int, ...]

    def simulate(self, model: Model, kind: str, setting: Setting) -> list[Log]:
        return [simulate(model, draw_trace(kind, seed, model, self.duration_ms), setting, seed) for seed in self.seeds]


def run_part(measure: Callable[[Traces], tuple[list[Check], dict[str, Any]]], run: Run) -> dict[str, Any]:
    traces = Traces(QUICK_MS, QUICK_SEEDS) if run.quick else Traces(FULL_MS, FULL_SEEDS)
    checks, figures = measure(traces)
    return {
        "secondsPerTrace": traces.duration_ms / 1000,
        "seeds": list(traces.seeds),
        measure.__name__: figures,
        "targets": [asdict(check) for check in checks],
    }


def all_alike(run: Traces) -> tuple[list[Check], dict[str, Any]]:
    checks, figures = [], {}
    for model in MODELS.values():
        table = Table("Trace", title=f"{model.name}: one class of requests")
        for header in ("Attained %", "Accuracy", "Study's %", "Accuracy", "Oracle's", "p50 ms", "p99 ms"):
            table.add_column(header, justify="right")
        for kind in TRACES:
            logs = run.simulate(model, kind, Setting())
            result = mean_of([judge(model, log, Setting())[0] for log in logs])
            studied = STUDIED[model.name][kind]
            table.add_row(
                kind, f"{result.attained:.2f}", f"{result.accuracy:.3f}", f"{studied.attained:.2f}",
                f"{studied.accuracy:.3f}", "" if studied.oracle is None else f"{studied.oracle:.3f}",
                f"{result.p50_ms:.1f}", f"{result.p99_ms:.1f}",
            )  # fmt: skip
            figures[f"{model.name} {kind}"] = {**_rounded(result), "study": asdict(studied), "variants": _shares(logs)}
            if run.duration_ms == FULL_MS:
                # The study's figures are of traces of this length.
                checks += _judge_trace(model, kind, result.attained, result.accuracy, studied)
        Console().print(table)
    return checks, figures


def _judge_trace(model: Model, kind: str, attained: float, accuracy: float, studied: Studied) -> Iterator[Check]:
    name = f"{model.name} {kind}"
    if kind != "flash" or model is REDDIT:
        least = 98.0 if kind == "flash" else 99.0 if (model, kind) == (PRODUCTS, "diurnal") else 99.5
        yield Check(f"{name}: attained", f">= {least} %", f"{attained:.2f} %", attained >= least)
    if studied.oracle is not None and kind != "flash":
        yield _judge_distance(name, model, accuracy, studied.oracle)
    if studied.best_static is not None:
        ahead = accuracy - studied.best_static
        yield Check(f"{name}: against the best static variant", ">= -0.02 points", f"{ahead:+.3f}", ahead >= -0.02)


def _judge_distance(name: str, model: Model, accuracy: float, oracle: float) -> Check:
    percent = 100 * (oracle - accuracy) / (model.accuracy[0] - model.accuracy[-1])
    most = FARTHEST_FROM_ORACLE[model.name]
    return Check(
        f"{name}: accuracy below the oracle's", f"<= {most:g} % of the range", f"{percent:.1f} %", percent <= most
    )


def near_oracle(_run: Run) -> tuple[list[Check], dict[str, Any]]:
    """The Products-like traces that the oracle was computed for."""
    checks, figures = [], {}
    for kind, oracle in PRODUCTS_ORACLE.items():
        (log,) = Run(ORACLE_MS, (ORACLE_SEED,)).simulate(PRODUCTS, kind, Setting())
        (result,) = judge(PRODUCTS, log, Setting())
        checks.append(_judge_distance(f"products {kind}, 60 s", PRODUCTS, result.accuracy, oracle))
        figures[kind] = {**_rounded(result), "oracle": oracle}
    return checks, figures


def mixed(run: Traces) -> tuple[list[Check], dict[str, Any]]:
    checks, figures = [], {}
    setting = Setting(classes=MIXED)
    for model in MODELS.values():
        table = Table("Trace", title=f"{model.name}, mixed: attained % / accuracy / p50 / p99 ms")
        for each in MIXED:
            table.add_column(each.name, justify="right")
        for kind in MIXED_TRACES:
            logs = run.simulate(model, kind, setting)
            by_class = [mean_of(results) for results in zip(*(judge(model, log, setting) for log in logs), strict=True)]
            table.add_row(
                kind, *(f"{r.attained:.2f} / {r.accuracy:.2f} / {r.p50_ms:.0f} / {r.p99_ms:.0f}" for r in by_class)
            )
            name = f"{model.name} {kind}"
            figures[name] = {each.name: _rounded(result) for each, result in zip(MIXED, by_class, strict=True)}
            attained = [result.attained for result in by_class]
            if run.duration_ms != FULL_MS:
                continue
            spread = max(attained) - min(attained)
            checks.append(Check(f"mixed {name}: classes apart", "<= 4 points", f"{spread:.2f}", spread <= 4))
            if model is REDDIT and kind != "flash":
                worst = min(attained)
                checks.append(Check(f"mixed {name}: every class", ">= 99.3 %", f"{worst:.2f} %", worst >= 99.3))
        Console().print(table)
    return checks, figures


def drifting(run: Traces) -> tuple[list[Check], dict[str, Any]]:
    """The device is 1.6 times slower than profiled for the middle third."""
    start, end, factor = _DRIFT
    setting = Setting(drift=(start * run.duration_ms, end * run.duration_ms, factor))
    checks, figures = [], {}
    for kind in ("poisson1.5", "onoff"):
        result = mean_of([judge(REDDIT, log, setting)[0] for log in run.simulate(REDDIT, kind, setting)])
        checks.append(
            Check(
                f"reddit {kind}, 1.6 x slower: attained", ">= 99 %", f"{result.attained:.2f} %", result.attained >= 99
            )
        )
        figures[kind] = _rounded(result)
    return checks, figures


def retrying(run: Traces) -> tuple[list[Check], dict[str, Any]]:
    """What is left, long after, of a flash crowd whose clients give up at twice their objective and try thrice more."""
    setting = Setting(retries=3)
    first_ms, last_ms = 2 / 3 * run.duration_ms, 0.93 * run.duration_ms
    shares, tries = [], []
    for log in run.simulate(REDDIT, "flash", setting):
        arrived = np.array(log.arrived_ms)
        in_time = np.array(log.finished_ms) - arrived <= REDDIT.objective_ms
        late = (arrived >= first_ms) & (arrived < last_ms)
        requests = len(set(np.array(log.request)[late].tolist()))
        served = len(set(np.array(log.request)[late & in_time].tolist()))
        shares.append(100 * served / requests)
        tries.append(late.sum() / requests)
    share, mean_tries = float(np.mean(shares)), float(np.mean(tries))
    check = Check("reddit flash with retries: in time long after", ">= 99.5 %", f"{share:.2f} %", share >= 99.5)
    return [check], {"inTimeLongAfter": round(share, 3), "triesPerRequest": round(mean_tries, 3)}


def _rounded(result: Any) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else round(value, 3) for name, value in asdict(result).items()}


def _shares(logs: Sequence[Log]) -> dict[str, float]:
    totals = np.sum([log.shares for log in logs], axis=0)
    return {f"x{1 << i}": round(100 * float(count / totals.sum()), 1) for i, count in enumerate(totals)}


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    return given(
        {
            check["what"]: {"wanted": check["wanted"], "measured": check["found"], "passed": check["met"]}
            for check in found["targets"]
        }
    )


BENCHMARK = Benchmark(
    "simulation",
    tuple(
        Part(measure.__name__, partial(run_part, measure))
        for measure in (all_alike, near_oracle, mixed, drifting, retrying)
    ),
    verdicts,
    about=__doc__,
)

if __name__ == "__main__":
    main(BENCHMARK)
