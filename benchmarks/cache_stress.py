"""Ten million reads of a cache that is written at the same time, on the CPU: torn, misplaced and stale ones among them.

The protocol is the GPU's own (`caching/slots.py`), and readers are compiled kernels that look up and read as the GPU's
do, in threads without the GIL. Rows carry item, version and checksum. Then the same with each mistake made on purpose,
which readers have to find. Wanted: nothing wrong in ten million blocks read from the cache, and every mistake found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from tests.support.cache_model import Mistake, Outcome, Stress, run_stress

from benchmarks.results import write_result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache_stress", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    share = 10 if options.quick else 1
    outcomes = {
        mistake: run_stress(
            Stress(hits=10_000_000 // share, copied=100_000 // share, seed=options.seed)
            if mistake is Mistake.NONE
            # Ends as soon as something wrong is read.
            else Stress(hits=10**12, copied=10_000_000 // share, seed=options.seed, mistake=mistake)
        )
        for mistake in Mistake
    }
    Console().print(_table(outcomes))
    write_result(
        "cache_stress",
        options.quick,
        {"seed": options.seed, "mistakes": {str(mistake): asdict(outcome) for mistake, outcome in outcomes.items()}},
    )
    if outcomes[Mistake.NONE].wrong:
        sys.exit("readers found rows that are wrong")
    made = [mistake for mistake in Mistake if mistake is not Mistake.NONE]
    if unseen := [mistake for mistake in made if not outcomes[mistake].wrong]:
        sys.exit(f"readers did not find: {'; '.join(unseen)}")


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


if __name__ == "__main__":
    main()
