"""The frontier of accuracy and latency: what families of variants give, on public graphs and on Reddit's shape.

Per graph: accuracy over three seeds of training, latency at 1, 32 and 1024 seeds of a batch, both about stored nodes
and about nodes that arrive as overlays. Wanted of each graph: a variant at most 0.3 points below x1 and at least ten
times as fast at 1024 seeds, whose table does not hold the answers themselves. Over several types the whole network is
`projected`, which no variant computes more than, and twice as fast is wanted. The hypervolume is the area under a set's
frontier, of accuracy above the majority's and of the logarithm of how much faster than x1 it is. Shapes of the paper's
data sets tell the time of a stored layer, and of making it (`frontier_shapes.py`).
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.frontier_graphs import (
    GRAPHS,
    GRID,
    Measured,
    Point,
    Unseen,
    measure_graph,
    search_graph,
    train_graph,
)
from benchmarks.accuracy.frontier_shapes import SHAPES, MeasuredShape, measure_shape, shape_verdicts
from benchmarks.accuracy.frontier_types import TYPED, measure_types, train_types
from benchmarks.relations.relations_accuracy import SHARED
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, given
from gnnserve_api.variants import variant_name

SEEDS, LARGE = 3, 1024
WANTED_LOSS_POINTS, WANTED_SPEED, WANTED_SPEED_OF_TYPES = 0.3, 10.0, 2.0
"""Over several types less is to be gained: what is compared with reads products already."""
WANTED_VOLUME, SEARCHED_GRAPH, WANTED_SEARCH_S = 1.3, "amazon_computers", 600
_T_OF_95_PERCENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Student's t by the number of seeds, two-sided."""
_STORED_GRAPH = "stored-deeper"
"""Family of variants that answer about the stored graph alone: a later layer is stored."""
STAGES = {"train": train_graph, "search": search_graph}
"""What comes before latencies are measured, and may be run apart from it."""
_STAGES_OF_TYPES = {"train": train_types}

Measurement = TypeVar("Measurement")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep revisions here, so that what is trained is not trained again; default: nowhere",
    )
    parser.add_argument(
        "--until",
        choices=STAGES,
        help="end each graph with this stage, whose results --folder keeps, and write nothing: train may run beside "
        "other work, search may not",
    )
    parser.add_argument(
        "--without-search", action="store_true", help="measure all but the search, which may take half an hour a graph"
    )


def run_graph(name: str, run: Run) -> dict[str, Any] | None:
    if run.quick:
        return _run(name, run, STAGES, partial(measure_graph, with_unseen=False))
    return _run(name, run, STAGES, partial(measure_graph, with_search=not run.options.without_search))


def _run(
    name: str, run: Run, stages: Mapping[str, Callable[[str, int, Path], None]],
    measure: Callable[[str, int, Path], Measured],
) -> dict[str, Any] | None:  # fmt: skip
    seeds, until = 1 if run.quick else SEEDS, run.options.until
    if until is not None and run.options.folder is None:
        raise SystemExit("--until needs --folder: what it makes would be lost")
    with _kept_in(run.options.folder) as root:
        if until is not None:
            if until in stages:
                stages[until](name, SEEDS, root)
            print(f"{name}: {until} is kept in {run.options.folder}")
            return None
        measured = measure(name, seeds, root)
    Console(width=140).print(table_of(measured))
    return {"graphs": [{**asdict(measured), "hypervolume": hypervolumes(measured)}]}


def run_types(name: str, run: Run) -> dict[str, Any] | None:
    """A graph of several types, over which a search is not measured."""
    if not (SHARED / name).is_dir():
        print(f"left out: {SHARED} does not have {name}", flush=True)
        return None
    return _run(name, run, _STAGES_OF_TYPES, measure_types)


def run_shape(name: str, _: Run) -> dict[str, Any]:
    return {"shapes": [asdict(measure_shape(name))]}


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[Path]:
    """Where revisions are generated; None: a folder that is removed afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="gnnserve-frontier-") as temporary:
        yield Path(temporary)


REASONS = {
    "arrive as overlays": "every variant joins the requests' overlays, and a stored layer corrects the stored "
    "neighbours that they reach, at random places of its tables",
    "do not read": "reading the requests and making rows of the new nodes is left, which every variant does",
}
"""Why figures about new nodes are missed."""


def verdicts(found: Any) -> Iterator[Verdict]:
    # Keys of JSON are text: seeds of a batch become numbers again.
    for raw in found.get("graphs", ()):
        yield from given(dict(verdicts_of(msgspec.convert(raw, Measured, strict=False))), REASONS)
    for raw in found.get("shapes", ()):
        yield from given(shape_verdicts(msgspec.convert(raw, MeasuredShape, strict=False)))


# --- graphs


def loss_points(graph: Measured, point: Point) -> tuple[float, float]:
    """Points of accuracy below the base: the mean over seeds, and the end of its 95 % interval, paired by seed."""
    best = find(graph, graph.base)
    lost = [100 * (mine - its) for mine, its in zip(best.accuracies, point.accuracies, strict=False)]
    mean = statistics.mean(lost)
    if len(lost) < 2:
        return mean, math.inf
    return mean, mean + _T_OF_95_PERCENT[len(lost)] * statistics.stdev(lost) / math.sqrt(len(lost))


def speed(graph: Measured, point: Point) -> float:
    return find(graph, graph.base).p50_ms[LARGE] / point.p50_ms[LARGE]


def find(graph: Measured, name: str) -> Point:
    return next(point for point in graph.points if point.name == name)


def candidates(graph: Measured) -> list[Point]:
    """Variants that were made with every seed, without those that hold the answers themselves."""
    seeds = len(find(graph, graph.base).accuracies)
    return [
        point
        for point in graph.points
        if len(point.accuracies) == seeds and point.family != _STORED_GRAPH and point.name != graph.base
    ]


def verdicts_of(graph: Measured) -> Iterable[tuple[str, dict[str, Any]]]:
    wanted_speed = WANTED_SPEED_OF_TYPES if graph.graph in TYPED else WANTED_SPEED
    wanted = f"at most {WANTED_LOSS_POINTS} points below {graph.base} (95 % interval), at least {wanted_speed:g} times "
    best = max(candidates(graph), key=lambda point: (_is_close(graph, point), speed(graph, point)))
    (mean, upper), times = loss_points(graph, best), speed(graph, best)
    yield (
        graph.graph,
        {
            "wanted": f"{wanted}as fast",
            "measured": f"{best.name}: {0 - mean:+.2f} points (lost at most {upper:.2f}), {times:.0f} times",
            "passed": _is_close(graph, best) and times >= wanted_speed,
            "reason": f"{graph.base} reads few columns and is cheap itself; reading the seeds and writing the answers "
            "is left",
        },
    )
    if graph.searched:
        volumes = hypervolumes(graph)
        ratio = volumes["searched"] / volumes["grid"] if volumes["grid"] else math.inf
        yield (
            f"{graph.graph}, hypervolume of the search over that of factors {', '.join(map(str, GRID))}",
            {"wanted": WANTED_VOLUME, "measured": round(ratio, 2), "passed": ratio >= WANTED_VOLUME},
        )
    if graph.graph == SEARCHED_GRAPH and graph.search_s is not None:
        yield (
            f"{graph.graph}, time of the search",
            {"wanted": f"at most {WANTED_SEARCH_S} s", "measured": f"{graph.search_s:.0f} s",
             "passed": graph.search_s <= WANTED_SEARCH_S},
        )  # fmt: skip
    yield from _unseen_verdict(
        graph, "nodes that arrive as overlays", {point.name: point.unseen for point in graph.points}
    )
    yield from _unseen_verdict(
        graph, "new nodes that stored ones do not read", {point.name: point.reading for point in graph.points}
    )


def _unseen_verdict(
    graph: Measured, about: str, told: Mapping[str, Unseen | None]
) -> Iterable[tuple[str, dict[str, Any]]]:
    of_x1 = told.get(graph.base)
    able = [(point.name, of_new) for point in candidates(graph) if (of_new := told[point.name]) is not None]
    if of_x1 is None or not able:
        return
    name, unseen = max(
        able, key=lambda item: (100 * (of_x1.accuracy - item[1].accuracy) <= WANTED_LOSS_POINTS, -item[1].p50_ms)
    )
    lost, times = 100 * (of_x1.accuracy - unseen.accuracy), of_x1.p50_ms / unseen.p50_ms
    yield (
        f"{graph.graph}, {about}",
        {
            "wanted": f"at most {WANTED_LOSS_POINTS} points below {graph.base}, at least {WANTED_SPEED:g} times as "
            "fast",
            "measured": f"{name}: {0 - lost:+.2f} points, {times:.1f} times",
            "passed": lost <= WANTED_LOSS_POINTS and times >= WANTED_SPEED,
        },
    )


def _is_close(graph: Measured, point: Point) -> bool:
    return loss_points(graph, point)[1] <= WANTED_LOSS_POINTS


def hypervolumes(graph: Measured) -> dict[str, float]:
    grid = [point for point in graph.points if point.name in {variant_name(factor) for factor in GRID}]
    overall = [point for point in graph.points if point.family != _STORED_GRAPH]
    searched = [point for point in graph.searched if point.family != _STORED_GRAPH]
    sets = {"grid": grid, "searched": searched, "all": overall}
    return {name: round(hypervolume(graph, points), 3) for name, points in sets.items() if points}


def hypervolume(graph: Measured, points: Sequence[Point]) -> float:
    """Area that the points dominate: points of accuracy above the majority's, times natural logarithms of how many
    times faster than the base they are, at 1024 seeds, of the first seed of training. Slower ones add nothing."""
    area, most = 0.0, 0.0
    ordered = sorted(points, key=lambda point: -speed(graph, point))
    edges = [*(math.log(max(1.0, speed(graph, point))) for point in ordered), 0.0]
    for number, point in enumerate(ordered):
        most = max(most, 100 * (point.accuracies[0] - graph.majority))
        area += most * (edges[number] - edges[number + 1])
    return area


def table_of(graph: Measured) -> Table:
    table = Table(title=f"{graph.graph}: {graph.nodes:,} nodes, {graph.metric}, majority {graph.majority:.3f}")
    below = f"below {graph.base}"
    for heading in ("variant", "accuracy", "±", below, "p50 1", "p50 32", "p50 1024", "times", "unseen", "p50"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for point in graph.points:
        spread = statistics.stdev(point.accuracies) if len(point.accuracies) > 1 else 0.0
        unseen = ("", "") if point.unseen is None else (f"{point.unseen.accuracy:.4f}", f"{point.unseen.p50_ms:.2f}")
        table.add_row(
            point.name,
            f"{statistics.mean(point.accuracies):.4f}",
            f"{spread:.4f}",
            f"{loss_points(graph, point)[0]:+.2f}",
            *(f"{point.p50_ms[seeds]:.3f}" for seeds in (1, 32, LARGE)),
            f"{speed(graph, point):.1f}",
            *unseen,
        )
    return table


BENCHMARK = Benchmark(
    "frontier",
    (
        *(Part(f"shape {name}", partial(run_shape, name)) for name in SHAPES),
        *(Part(name, partial(run_graph, name)) for name in GRAPHS),
        *(Part(name, partial(run_types, name)) for name in TYPED),
    ),
    verdicts,
    about=__doc__,
    quick=(GRAPHS[0], TYPED[0]),
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
