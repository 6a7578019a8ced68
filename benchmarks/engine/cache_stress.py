"""Ten million reads of a cache that is written at the same time, on the CPU: torn, misplaced and stale ones among them.

The protocol is the GPU's own (`caching/slots.py`), and readers are compiled kernels that look up and read as the GPU's
do, in threads without the GIL. Rows carry item, version and checksum. Then the same with each mistake made on purpose,
which readers have to find. Wanted: nothing wrong in ten million blocks read from the cache, and every mistake found.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.support.caching.cache_model import Mistake, Outcome, Stress, run_stress

from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, above, exactly


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)


def run_all(run: Run) -> dict[str, Any]:
    share, seed = 10 if run.quick else 1, run.options.seed
    outcomes = {
        mistake: run_stress(
            Stress(hits=10_000_000 // share, copied=100_000 // share, seed=seed)
            if mistake is Mistake.NONE
            # Ends as soon as something wrong is read.
            else Stress(hits=10**12, copied=10_000_000 // share, seed=seed, mistake=mistake)
        )
        for mistake in Mistake
    }
    Console().print(_table(outcomes))
    return {"seed": seed, "mistakes": {str(mistake): asdict(outcome) for mistake, outcome in outcomes.items()}}


def count_wrong(mistake: Mistake, found: Any) -> int:
    outcome = found["mistakes"][str(mistake)]
    return int(outcome["torn"] + outcome["misplaced"] + outcome["stale"])


def _table(outcomes: dict[Mistake, Outcome]) -> Table:
    table = Table("Mistake", title="Reads of a cache while it is written")
    for header in ("blocks read", "torn", "misplaced", "stale", "copied meanwhile", "rows changed", "s"):
        table.add_column(header, justify="right")
    for mistake, outcome in outcomes.items():
        table.add_row(
            mistake, f"{outcome.hits:,}", f"{outcome.torn:,}", f"{outcome.misplaced:,}", f"{outcome.stale:,}",
            f"{outcome.admitted + outcome.refreshed:,}", f"{outcome.rows_changed:,}", f"{outcome.seconds:.1f}",
        )  # fmt: skip
    return table


VERDICTS = (
    Verdict(
        "rows read that are torn, misplaced or stale", exactly(0),
        partial(count_wrong, Mistake.NONE),
    ),
    *(
        Verdict(f"such rows where a mistake is made on purpose: {mistake}", above(0), partial(count_wrong, mistake))
        for mistake in Mistake
        if mistake is not Mistake.NONE
    ),
)  # fmt: skip
BENCHMARK = Benchmark(
    "cache_stress", (Part("all", run_all),), VERDICTS, about=__doc__, options=add_options, must_pass=True
)

if __name__ == "__main__":
    main(BENCHMARK)
