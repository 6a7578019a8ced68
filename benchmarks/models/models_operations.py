"""Part `operations` of `make bench-models`: what each convolution costs (`operation_costs.py`), and what is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Run
from benchmarks.verdicts import Verdict, at_most

SEEDS = {"one seed": 1, "1,024 seeds": 1024}


def run_operations(run: Run) -> dict[str, Any]:
    from benchmarks.models.operation_costs import measure_operations

    return {"operations": measure_operations(quick=run.quick)}


def operation_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Kind, then of each number of seeds our time, torch_geometric's, and their ratio."""
    for kind, by_seeds in found["kinds"].items():
        cells = []
        for one in by_seeds.values():
            ours, theirs = one["layers_ms"], one["torch_ms"]
            cells += [f"{ours:.3g}", f"{theirs:.3g}", f"{ours / theirs:.2f}"]
        yield kind, *cells


_CELLS = ("layers ms", "torch_geometric ms", "ratio")
HEAD = ("convolution", *(f"{what}, {seeds}" for seeds in SEEDS for what in _CELLS))


def show_operations(found: Mapping[str, Any]) -> None:
    table = Table(*HEAD, title=f"networks of two hops, {found['operations']['shape']}, one thread")
    for row in operation_rows(found["operations"]):
        table.add_row(*row)
    Console(width=140).print(table)


def _worst(seeds: str, found: Any) -> float:
    return max(float(one[seeds]["layers_ms"]) / float(one[seeds]["torch_ms"]) for one in _kinds(found))


def _difference(found: Any) -> float | None:
    measured = [each for one in _kinds(found) for each in one.values()]
    return max((float(one["difference"]) for one in measured if "difference" in one), default=None)


def _kinds(found: Any) -> list[Any]:
    return [*found["operations"]["kinds"].values()]


OPERATIONS_VERDICTS = (
    *(
        Verdict(
            f"operations, {seeds}: the slowest convolution's time over that of torch_geometric, cut",
            at_most(1.0, "times"),
            partial(_worst, seeds),
        )
        for seeds in SEEDS
    ),
    Verdict("operations: largest difference of scores from torch_geometric's", at_most(1e-4), _difference),
)
