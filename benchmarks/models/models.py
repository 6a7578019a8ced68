"""Models as programs and as layers: how fast beside torch, what one that fails does to its neighbours, which models of
public repositories are served right, what each convolution costs, how accurate networks are that learn as layers, and
how accurate attention over several types is.

Each part is in a module of its own: `models_speed.py`, `models_neighbours.py`, `model_table/table.py`,
`models_operations.py`, `models_accuracy.py`, `models_typed_accuracy.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.model_table.table import TABLE_VERDICTS, run_table, show_table
from benchmarks.models.models_accuracy import ACCURACY_PARTS, ACCURACY_VERDICTS, show_accuracy
from benchmarks.models.models_neighbours import NEIGHBOURS_VERDICTS, run_neighbours, show_neighbours
from benchmarks.models.models_operations import OPERATIONS_VERDICTS, run_operations, show_operations
from benchmarks.models.models_speed import SPEED_VERDICTS, run_speed, show_speed
from benchmarks.models.models_typed_accuracy import (
    TYPED_ACCURACY_VERDICTS,
    run_typed_accuracy,
    show_typed_accuracy,
)
from benchmarks.results import Benchmark, Part, main

_SHOWS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "speed": show_speed,
    "neighbours": show_neighbours,
    "table": show_table,
    "operations": show_operations,
    "accuracies": show_accuracy,
    "typedAccuracy": show_typed_accuracy,
}
"""By what a part finds."""


def show(found: Mapping[str, Any]) -> None:
    for key, show_part in _SHOWS.items():
        if key in found:
            show_part(found)


_SERVED = ("gnnserve_cli.commands.run", "gnnserve_worker.programs.fork_server")
BENCHMARK = Benchmark(
    "models",
    (
        Part("speed", run_speed, _SERVED, ("benchmarks/peers/programs",)),
        Part("neighbours", run_neighbours, (*_SERVED, "gnnserve_cli.commands.serve", "gnnserve_cli.commands.load")),
        Part("table", run_table, ("benchmarks.model_table.catalogue", "benchmarks.model_table.checking")),
        Part("operations", run_operations, ("benchmarks.models.operation_costs",)),
        *ACCURACY_PARTS,
        Part("typed-accuracy", run_typed_accuracy, ("benchmarks.models.typed_accuracy",)),
    ),
    (
        *SPEED_VERDICTS,
        *NEIGHBOURS_VERDICTS,
        *TABLE_VERDICTS,
        *OPERATIONS_VERDICTS,
        *ACCURACY_VERDICTS,
        *TYPED_ACCURACY_VERDICTS,
    ),
    about=__doc__,
    show=show,
)


if __name__ == "__main__":
    main(BENCHMARK)
