"""Cost of one decision of the fast loop: closing a batch, and admitting a request, with 4 variants.

The worker is near its limit, where decisions cost most: many variants are considered, and some requests are left
behind. The queue is filled again before each batch, outside of the clock. Wanted: under 50 µs per batch with 8 classes
of requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.load.simulator import MAX_QUEUED_SEEDS, MAX_SEEDS, REDDIT
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, below
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.variants import VariantChooser

WANTED_US = 50.0
_SPAN_PERMILLE = 10 * (REDDIT.accuracy[0] - REDDIT.accuracy[-1])
CLASSES = {
    "1 class, lone requests": [Objective(120)],
    "1 class": [Objective(120)],
    "8 classes": [
        Objective(latency, tolerance)
        for latency in (48, 90, 120, 480)
        for tolerance in (0.16 * _SPAN_PERMILLE, _SPAN_PERMILLE + 1e-6)
    ],
}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    batches: int
    requests_per_batch: float
    decision_p50_us: float
    """Time from the worker that is free to the batch whose variant and size are known: `Decider.decide` and looking at
    the queue's groups."""
    decision_p99_us: float
    take_p50_us: float
    """The same, and taking each request of the batch out of the queue."""
    admission_p50_us: float
    admission_p99_us: float


def run_all(run: Run) -> dict[str, Any]:
    batches = 500 if run.quick else 10_000
    return {"cases": [asdict(measure(name, objectives, batches)) for name, objectives in CLASSES.items()]}


def show(found: Mapping[str, Any]) -> None:
    table = Table("Queue", title="One decision")
    for header in ("requests a batch", "decide p50 µs", "p99", "with taking p50", "admit p50 µs", "p99"):
        table.add_column(header, justify="right")
    for case in (Case(**one) for one in found["cases"]):
        table.add_row(case.name, f"{case.requests_per_batch:.1f}", *(
            f"{value:.1f}" for value in (
                case.decision_p50_us, case.decision_p99_us, case.take_p50_us, case.admission_p50_us,
                case.admission_p99_us,
            )
        ))  # fmt: skip
    Console().print(table)


def measure(name: str, objectives: Sequence[Objective], batches: int) -> Case:
    draw = np.random.default_rng(0)
    chooser = VariantChooser(REDDIT.profile(), MAX_SEEDS)
    batcher = Batcher(chooser, RoutingTable(revision="r", recipe="r"), MAX_QUEUED_SEEDS)
    lone = name.endswith("lone requests")
    decider = batcher.decider
    now_ms, key = 0.0, 0
    decisions, takes, admissions, requests = [], [], [], 0
    looked_s = [0.0]
    look, decide = batcher.closer.look, decider.decide

    def timed_look(*given: Any) -> Any:
        looked_s[0] = time.perf_counter()
        return look(*given)

    def timed_decide(*given: Any) -> Any:
        plan = decide(*given)
        decisions.append(time.perf_counter() - looked_s[0])
        return plan

    batcher.closer.look, decider.decide = timed_look, timed_decide  # type: ignore[method-assign]
    capacity = REDDIT.capacity(1)
    took_ms = 0.0
    for _ in range(batches):
        # As many as x2 can answer in the meantime, and the strict classes allow nothing faster.
        arriving = 1 if lone else max(1, round(capacity * took_ms / 48 * draw.gamma(2, 0.5)))
        for seeds in np.clip(draw.lognormal(3.55, 0.8, arriving), 1, 512).astype(int).tolist():
            objective = objectives[int(draw.integers(len(objectives)))]
            request = Request(key, seeds, objective, now_ms)
            key += 1
            began_s = time.perf_counter()
            batcher.admit(request, False, now_ms)
            admissions.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        batch = batcher.take(now_ms).batch
        takes.append(time.perf_counter() - began_s)
        if batch is None:
            continue
        requests += len(batch.pieces)
        took_ms = batch.predicted_ms
        now_ms += took_ms
        batcher.finish()
        batcher.observe(batch, took_ms, took_ms, now_ms)
        if lone:
            now_ms += took_ms
    return Case(
        name, batches, round(requests / batches, 1), _percentile_us(decisions, 50), _percentile_us(decisions, 99),
        _percentile_us(takes, 50), _percentile_us(admissions, 50), _percentile_us(admissions, 99),
    )  # fmt: skip


def _percentile_us(seconds: Sequence[float], percentile: float) -> float:
    return round(1e6 * float(np.percentile(seconds, percentile)), 2)


VERDICTS = (
    Verdict(
        f"a decision about a batch, p99, {[*CLASSES][-1]}", below(WANTED_US, "µs"),
        lambda found: next(case["decision_p99_us"] for case in found["cases"] if case["name"] == [*CLASSES][-1]),
    ),
)  # fmt: skip
BENCHMARK = Benchmark("decision", (Part("all", run_all),), VERDICTS, about=__doc__, show=show)

if __name__ == "__main__":
    main(BENCHMARK)
