"""The worker's routing in simulated time, against the targets of the study whose assumptions `simulator.py` shares.

Attained: percent of the requests answered in time, refused ones counted as missed. Accuracy: the mean, in points, over
those. The study's own figures stand beside ours: its recommended policy, and an oracle that knows all arrivals, knows
no noise and may refuse any request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.load.simulator import (
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
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, at_least, at_most

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
DRIFTING_TRACES = ("poisson1.5", "onoff")
MIXED_TRACES = ("poisson0.6", "poisson1.5", "onoff", "flash")
FARTHEST_FROM_ORACLE = {"reddit": 6.0, "products": 8.0}
"""Percent of the range of accuracy."""


@dataclass(frozen=True, slots=True)
class Traces:
    duration_ms: float
    seeds: tuple[int, ...]

    def simulate(self, model: Model, kind: str, setting: Setting) -> list[Log]:
        return [simulate(model, draw_trace(kind, seed, model, self.duration_ms), setting, seed) for seed in self.seeds]


def run_part(measure: Callable[[Traces], dict[str, Any]], run: Run) -> dict[str, Any]:
    traces = Traces(QUICK_MS, QUICK_SEEDS) if run.quick else Traces(FULL_MS, FULL_SEEDS)
    return {
        "secondsPerTrace": traces.duration_ms / 1000,
        "seeds": list(traces.seeds),
        measure.__name__: measure(traces),
    }


def all_alike(run: Traces) -> dict[str, Any]:
    figures = {}
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
        Console().print(table)
    return figures


def near_oracle(_: Traces) -> dict[str, Any]:
    """The Products-like traces that the oracle was computed for."""
    figures = {}
    for kind, oracle in PRODUCTS_ORACLE.items():
        (log,) = Traces(ORACLE_MS, (ORACLE_SEED,)).simulate(PRODUCTS, kind, Setting())
        (result,) = judge(PRODUCTS, log, Setting())
        figures[kind] = {**_rounded(result), "oracle": oracle}
    return figures


def mixed(run: Traces) -> dict[str, Any]:
    figures = {}
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
        Console().print(table)
    return figures


def drifting(run: Traces) -> dict[str, Any]:
    """The device is 1.6 times slower than profiled for the middle third."""
    start, end, factor = _DRIFT
    setting = Setting(drift=(start * run.duration_ms, end * run.duration_ms, factor))
    figures = {}
    for kind in DRIFTING_TRACES:
        result = mean_of([judge(REDDIT, log, setting)[0] for log in run.simulate(REDDIT, kind, setting)])
        figures[kind] = _rounded(result)
    return figures


def retrying(run: Traces) -> dict[str, Any]:
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
    return {"inTimeLongAfter": round(share, 3), "triesPerRequest": round(mean_tries, 3)}


def _rounded(result: Any) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else round(value, 3) for name, value in asdict(result).items()}


def _shares(logs: Sequence[Log]) -> dict[str, float]:
    totals = np.sum([log.shares for log in logs], axis=0)
    return {f"x{1 << i}": round(100 * float(count / totals.sum()), 1) for i, count in enumerate(totals)}


def _full(found: Any) -> bool:
    """Whether traces are as long as those that the study's figures are of."""
    return bool(1000 * found["secondsPerTrace"] == FULL_MS)


def _attained(part: str, name: str, found: Any) -> float | None:
    return float(found[part][name]["attained"]) if _full(found) else None


def _below_oracle(part: str, name: str, model: Model, oracle: float, found: Any) -> float | None:
    """Percent of the range of accuracy."""
    if part == "all_alike" and not _full(found):
        return None
    missing = oracle - found[part][name]["accuracy"]
    return round(float(100 * missing / (model.accuracy[0] - model.accuracy[-1])), 2)


def _over_static(name: str, static: float, found: Any) -> float | None:
    return round(float(found["all_alike"][name]["accuracy"] - static), 3) if _full(found) else None


def _by_class(name: str, found: Any) -> list[float]:
    return [of_one["attained"] for of_one in found["mixed"][name].values()]


def _apart(name: str, found: Any) -> float | None:
    attained = _by_class(name, found)
    return round(max(attained) - min(attained), 2) if _full(found) else None


def _worst_class(name: str, found: Any) -> float | None:
    return round(min(_by_class(name, found)), 2) if _full(found) else None


def verdicts_of_trace(model: Model, kind: str) -> Iterator[Verdict]:
    name, studied = f"{model.name} {kind}", STUDIED[model.name][kind]
    if kind != "flash" or model is REDDIT:
        least = 98.0 if kind == "flash" else 99.0 if (model, kind) == (PRODUCTS, "diurnal") else 99.5
        yield Verdict(f"{name}: attained", at_least(least, "%"), partial(_attained, "all_alike", name))
    if studied.oracle is not None and kind != "flash":
        yield Verdict(
            f"{name}: accuracy below the oracle's, of its range", at_most(FARTHEST_FROM_ORACLE[model.name], "%"),
            partial(_below_oracle, "all_alike", name, model, studied.oracle),
        )  # fmt: skip
    if studied.best_static is not None:
        yield Verdict(
            f"{name}: accuracy over the best single variant's", at_least(-0.02, "points"),
            partial(_over_static, name, studied.best_static),
        )  # fmt: skip


def verdicts_of_mixed(model: Model, kind: str) -> Iterator[Verdict]:
    name = f"{model.name} {kind}"
    yield Verdict(f"mixed {name}: classes apart", at_most(4, "points"), partial(_apart, name))
    if model is REDDIT and kind != "flash":
        yield Verdict(f"mixed {name}: attained, worst class", at_least(99.3, "%"), partial(_worst_class, name))


VERDICTS = (
    *(verdict for model in MODELS.values() for kind in TRACES for verdict in verdicts_of_trace(model, kind)),
    *(
        Verdict(
            f"products {kind}, 60 s: accuracy below the oracle's, of its range",
            at_most(FARTHEST_FROM_ORACLE["products"], "%"),
            partial(_below_oracle, "near_oracle", kind, PRODUCTS, oracle),
        )
        for kind, oracle in PRODUCTS_ORACLE.items()
    ),
    *(verdict for model in MODELS.values() for kind in MIXED_TRACES for verdict in verdicts_of_mixed(model, kind)),
    *(
        Verdict(f"reddit {kind}, 1.6 times slower: attained", at_least(99, "%"), partial(_attained, "drifting", kind))
        for kind in DRIFTING_TRACES
    ),
    Verdict(
        "reddit flash with retries: in time long after", at_least(99.5, "%"),
        lambda found: found["retrying"]["inTimeLongAfter"],
    ),
)  # fmt: skip
BENCHMARK = Benchmark(
    "simulation",
    tuple(
        Part(measure.__name__, partial(run_part, measure))
        for measure in (all_alike, near_oracle, mixed, drifting, retrying)
    ),
    VERDICTS,
    about=__doc__,
)

if __name__ == "__main__":
    main(BENCHMARK)
