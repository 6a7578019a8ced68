"""Part `operations` of `make bench-models`: what each convolution costs (`operation_costs.py`), and what is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Run
from benchmarks.verdicts import Verdict, Worded, at_most

SEEDS = {"one seed": 1, "1,024 seeds": 1024}
MANY = "1,024 seeds"
FIRST = "GraphSAGE"
"""The convolution that others are held to."""


def run_operations(run: Run) -> dict[str, Any]:
    from benchmarks.models.operation_costs import measure_operations

    return {"operations": measure_operations(quick=run.quick)}


def operation_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Kind, then of each number of seeds our time, torch_geometric's, and their ratio; then of many seeds the
    convolutions alone, the least that they could take, and the ratio of both over that of the first one."""
    for kind, by_seeds in found["kinds"].items():
        cells = []
        for one in by_seeds.values():
            ours, theirs = one["layers_ms"], one["torch_ms"]
            cells += [f"{ours:.3g}", f"{theirs:.3g}", f"{ours / theirs:.2f}"]
        if _has_rooflines(found):
            one, over = by_seeds[MANY], _over_roofline(found["kinds"])[kind]
            cells += [f"{one['alone_ms']:.3g}", f"{one['roofline_ms']:.3g}", f"{over:.2f}"]
        yield kind, *cells


def _has_rooflines(found: Mapping[str, Any]) -> bool:
    """Whether they were measured, each kind in turns with the first."""
    return all("first_ms" in one[MANY] for one in found["kinds"].values())


def _over_roofline(kinds: Mapping[str, Any]) -> dict[str, float]:
    """Time of each convolution over its own roofline, as a multiple of that ratio of the first one, which was measured
    in turns with it."""
    least_ms = float(kinds[FIRST][MANY]["roofline_ms"])
    return {kind: _over(one[MANY]) / (float(one[MANY]["first_ms"]) / least_ms) for kind, one in kinds.items()}


def _over(one: Mapping[str, Any]) -> float:
    return float(one["alone_ms"]) / float(one["roofline_ms"])


_CELLS = ("layers ms", "torch_geometric ms", "ratio")
_ALONE = ("alone ms", "roofline ms", f"over it, of {FIRST}'s")


def operation_head(found: Mapping[str, Any]) -> tuple[str, ...]:
    alone = _ALONE if _has_rooflines(found) else ()
    beside = (f"{what}, {seeds}" for seeds in SEEDS for what in _CELLS)
    return "convolution", *beside, *(f"{what}, {MANY}" for what in alone)


def show_operations(found: Mapping[str, Any]) -> None:
    table = Table(
        *operation_head(found["operations"]), title=f"networks of two hops, {found['operations']['shape']}, one thread"
    )
    for row in operation_rows(found["operations"]):
        table.add_row(*row)
    Console(width=140).print(table)


def _worst(seeds: str, found: Any) -> float:
    return max(float(one[seeds]["layers_ms"]) / float(one[seeds]["torch_ms"]) for one in _kinds(found))


def _most_over_roofline(found: Any) -> Any:
    if not _has_rooflines(found["operations"]):
        return None
    over = _over_roofline(found["operations"]["kinds"])
    worst = max(over, key=over.__getitem__)
    return Worded(over[worst], f"{over[worst]:.2f} ({worst})")


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
    Verdict(
        f"operations, {MANY}: the most that a convolution takes over its own roofline, of that ratio of {FIRST}",
        at_most(1.5, "times"),
        _most_over_roofline,
    ),
    Verdict("operations: largest difference of scores from torch_geometric's", at_most(1e-4), _difference),
)
