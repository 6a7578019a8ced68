"""The parts of the GPU benchmark, most telling first, and what is wanted of their figures.

Each part takes some minutes at most, because a lent machine ends what runs longer, and is written as it ends; what
there was no time for is said. The largest graph is made in a minute, and kept.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from rich.console import Console

from benchmarks.engine.paper_shapes import shape_of
from benchmarks.engine.paper_tables import GRAPHS, MODELS
from benchmarks.gpu.card import describe_card
from benchmarks.gpu.figures import RATE_LIMIT_MS, SHEETS, Budget, Row, lowest_rate
from benchmarks.results import Benchmark, Part, Run, read_parts
from benchmarks.shapes import prepare
from benchmarks.verdicts import Verdict, at_least, below

_TOTAL_S = 510.0
_SHARES = {
    "one_seed": 0.12,
    "link": 0.10,
    "throughput": 0.15,
    "latency": 0.30,
    "stages": 0.11,
    "updates": 0.06,
    "distinct": 0.05,
    "unseen": 0.05,
    "baseline": 0.06,
}
"""Shares of the time by part, in the order in which they are run."""
_WITHOUT_GRAPHS = {"link"}
_OF_RATES = ("reddit", "products")
"""The paper's shape of the widest rows, and that of the most nodes."""
_OF_CACHES = ("reddit", "yelp")
"""Whose tables are large beside everything else."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Settings of a part's measurement, and where it says what it has so far."""

    run: Run
    budget: Budget
    save: Callable[[Row], None]

    @property
    def quick(self) -> bool:
        return self.run.quick

    @property
    def graphs(self) -> list[str]:
        return graphs_of(self.run)

    @property
    def models(self) -> Sequence[str]:
        return MODELS[:1] if self.quick else MODELS

    def among(self, wanted: Sequence[str]) -> list[str]:
        """Graphs that are wanted; the first one where none is."""
        return [name for name in wanted if name in self.graphs] or self.graphs[:1]

    def earlier(self, part: str) -> Row:
        """What that part found, now or in an earlier run; empty: nothing yet."""
        kept = read_parts(self.run.options.out / f"gpu{'.quick' if self.quick else ''}.json")
        found: Row = kept[part]["found"][part] if part in kept else {}
        return found


def graphs_of(run: Run) -> list[str]:
    return run.options.graphs or (["flickr"] if run.quick else list(GRAPHS))


def run_part(name: str, run: Run) -> Mapping[str, Any] | None:
    """What a part found under its name, and on which card; None: there was no time for anything of it."""
    kept: list[Row] = []
    budget = Budget(run.options.seconds * _SHARES[name], time.monotonic)
    print(f"{name}: at most about {budget.total_s:.0f} s", flush=True)
    MEASURES[name](Measurement(run, budget, kept.append))
    return {name: kept[-1], "cards": {name: describe_card()}} if kept else None


# What follows imports where it runs: Triton's kernels are defined for a GPU or for the interpreter, for good.


def measure_one_seed(asked: Measurement) -> None:
    from benchmarks.gpu import parts
    from gnnserve_worker.gpu.cuda import use_first_gpu

    models = MODELS[:1]
    parts.measure_latency(
        use_first_gpu(), asked.graphs, models, asked.budget, asked.save, sizes=(1,), quick=asked.quick
    )


def measure_link(asked: Measurement) -> None:
    from benchmarks.gpu import link

    asked.save(link.measure_bandwidth(quick=asked.quick))


def measure_throughput(asked: Measurement) -> None:
    from benchmarks.gpu import link, parts
    from gnnserve_worker.gpu.cuda import use_first_gpu

    known = asked.earlier("link").get("limit_gigabytes_per_s")
    limit = float(known if known is not None else link.measure_limit(quick=asked.quick)["limit_gigabytes_per_s"])
    parts.measure_throughput(
        use_first_gpu(), asked.among(_OF_RATES), limit, asked.budget, asked.save, quick=asked.quick
    )


def measure_latency(asked: Measurement) -> None:
    from benchmarks.gpu import parts
    from gnnserve_worker.gpu.cuda import use_first_gpu

    parts.measure_latency(use_first_gpu(), asked.graphs, asked.models, asked.budget, asked.save, quick=asked.quick)


def measure_stages(asked: Measurement) -> None:
    from benchmarks.gpu import parts
    from gnnserve_worker.gpu.cuda import use_first_gpu

    parts.measure_stages(use_first_gpu(), asked.among(_OF_CACHES), asked.budget, asked.save, quick=asked.quick)


def measure_updates(asked: Measurement) -> None:
    from benchmarks.gpu import parts
    from gnnserve_worker.gpu.cuda import use_first_gpu

    parts.measure_updates(use_first_gpu(), asked.among(_OF_CACHES)[:1], asked.budget, asked.save, quick=asked.quick)


def measure_distinct(asked: Measurement) -> None:
    from benchmarks.gpu import distinct
    from gnnserve_worker.gpu.cuda import use_first_gpu

    distinct.measure_distinct(use_first_gpu(), asked.among(_OF_RATES), asked.budget, asked.save, quick=asked.quick)


def measure_unseen(asked: Measurement) -> None:
    from benchmarks.gpu import unseen
    from gnnserve_worker.gpu.cuda import use_first_gpu

    unseen.measure_unseen(use_first_gpu(), asked.among(_OF_RATES), asked.budget, asked.save, quick=asked.quick)


def measure_baseline(asked: Measurement) -> None:
    from benchmarks.gpu import parts

    ours = asked.earlier("latency").get("rows", [])
    parts.measure_baseline(asked.graphs, asked.models, ours, asked.budget, asked.save, quick=asked.quick)


MEASURES: Mapping[str, Callable[[Measurement], None]] = {
    "one_seed": measure_one_seed,
    "link": measure_link,
    "throughput": measure_throughput,
    "latency": measure_latency,
    "stages": measure_stages,
    "updates": measure_updates,
    "distinct": measure_distinct,
    "unseen": measure_unseen,
    "baseline": measure_baseline,
}
"""Measuring functions by part, in the order in which they are run."""


@contextmanager
def prepared(run: Run) -> Iterator[None]:
    """Graphs that are made: the largest takes a minute of one core. Meanwhile the link's kernels are compiled, but
    nothing is measured."""
    wanted = set(MEASURES if run.options.only is None else run.options.only.split(","))
    with ProcessPoolExecutor(len(graphs_of(run)), mp_context=get_context("spawn")) as pool:
        made: list[Future[Any]] = [pool.submit(_prepare, name) for name in graphs_of(run) if wanted - _WITHOUT_GRAPHS]
        if "link" in wanted:
            from benchmarks.gpu import link

            link.compile_kernels(quick=run.quick)
        for future in made:
            future.result()
    yield


def _prepare(name: str) -> None:
    prepare(shape_of(name))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), help="default: all")
    parser.add_argument(
        "--seconds", type=float, default=_TOTAL_S, help="for all parts; each has a share of it (default: %(default)g)"
    )


def show(found: Any) -> None:
    for name, sheet in SHEETS.items():
        if name in found:
            Console(width=140).print(sheet(found[name]).rich())


def _least_share_of_link(found: Any) -> float:
    return min(float(row["share_of_limit"]) for row in found["link"]["gather"] if row["factor"] == 1)


def _slowest_seed_ms(found: Any) -> float | None:
    return max((float(row["p50_ms"]) for row in found["one_seed"]["rows"]), default=None)


def _largest_update_cost(found: Any) -> float | None:
    return max((float(row["p99_cost"]) for row in found["updates"]["rows"]), default=None)


VERDICTS = (
    Verdict("one seed, p50, slowest graph and factor", below(0.2, "ms"), _slowest_seed_ms),
    Verdict("gathering whole rows over the link, share of its limit", at_least(0.85), _least_share_of_link),
    Verdict(
        f"seeds per second of x1 in GPU memory, p99 below {RATE_LIMIT_MS:g} ms, slowest graph", at_least(250_000),
        lambda found: lowest_rate(found["throughput"]),
    ),
    Verdict("what updates of the cache add to p99", below(0.05), _largest_update_cost),
)  # fmt: skip
BENCHMARK = Benchmark(
    "gpu",
    tuple(Part(name, partial(run_part, name)) for name in MEASURES),
    VERDICTS,
    about="The GPU worker's data path on a GPU: one seed, link, throughput, and where the time goes.",
    show=show,
    around=prepared,
    options=add_options,
)
