"""Cascades on public graphs: accuracy against p50 and bytes over the whole range of thresholds.

Per graph the single variants are generated as a user's would be, once for each seed of training. Accuracies of a
cascade follow from the scores of its stages, as in the engine; latency and bytes are measured in the engine, of the
first seed, all variants and thresholds in turns. Wanted of each graph: a cascade above the convex hull of the single
variants. Which one is looked at is chosen on validation nodes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.cascade_curves import (
    COSTS,
    Curve,
    Graph,
    Oracle,
    Single,
    Threshold,
    body_of,
    margin_points,
    verdicts_of,
)
from benchmarks.accuracy.frontier_graphs import DATASETS, service_of
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, given
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.profile import Metric
from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_api.variants import cascade_name
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import BUDGET_VARIABLE, scores_of
from gnnserve_worker.inference.batch import infer_batch, infer_each, warm_up, with_cascades
from gnnserve_worker.inference.latency import measure_latencies
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.labels import fit_temperature
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate
from gnnserve_worker.tasks.deciding import BY_CLASS, class_confidences, threshold_for

GRAPHS = {"amazon_computers": 2, "coauthor_cs": 1, "tolokers": 2}
"""Seeds of training of each graph. mlp2 of coauthor_cs has 20,415 columns: its training takes minutes."""
_QUICK_GRAPHS = ("cora",)
_VARIANTS = {
    "pruning": {"factors": [1], "wideTables": "Keep"},
    "storage": ["float32", "int8"],
    "stored": [1],
    "oneRow": [{"hops": 0}, {"hops": 2}],
}
_QUICK_VARIANTS = {**_VARIANTS, "storage": ["int8"], "oneRow": [{"hops": 2}]}
PAIRS = (
    ("mlp2-int8", "x1-int8"),
    ("mlp2-int8", "projected-int8"),
    ("mlp2-int8", "stored1-int8"),
    ("mlp0-int8", "x1-int8"),
    ("mlp0-int8", "projected-int8"),
    ("mlp0-int8", "stored1-int8"),
    ("mlp0-int8", "mlp2-int8"),
    ("stored1-int8", "x1-int8"),
    ("stored1-int8", "mlp2-int8"),
)
"""First stage and the other."""
PERCENTS = (0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 90)
_QUICK_PERCENTS = (2, 10, 50)
_BATCH, _BUDGET_S, _ROUNDS = 1024, 40.0, (7, 200)


def run_graph(name: str, run: Run) -> dict[str, Any]:
    os.environ[BUDGET_VARIABLE] = "0.1"  # the profile's own latencies are not read
    graph = measure_graph(name, GRAPHS.get(name, 1), _QUICK_PERCENTS if run.quick else PERCENTS, quick=run.quick)
    Console(width=140).print(table_of(graph))
    return {"graphs": [{**asdict(graph), "margins": body_of(graph)}]}


# --- one seed of training


@dataclass(frozen=True, slots=True)
class Judged:
    """Accuracy of nodes that took no part in training, from scores that the engine gave once."""

    metric: Metric
    labels: Mapping[str, np.ndarray]
    """By split: validation, test."""
    scores: Mapping[str, Mapping[str, np.ndarray]]
    """By split and variant."""

    @staticmethod
    def of(loaded: LoadedRevision) -> Judged:
        assert loaded.manifest is not None  # noqa: S101
        nodes = {"validation": loaded.labels.splits.validation, "test": loaded.labels.splits.test}
        scores = {
            split: {name: scores_of(loaded, name, chosen) for name in loaded.variants}
            for split, chosen in nodes.items()
        }
        labels = {split: np.array(loaded.labels.values[chosen]) for split, chosen in nodes.items()}
        return Judged(loaded.manifest.profile.metric, labels, scores)

    def accuracy(self, split: str, scores: np.ndarray) -> float:
        return round(evaluate(scores, self.labels[split], self.metric), 5)

    def right(self, name: str) -> np.ndarray:
        """Whether the variant's label is right, for each test node."""
        right: np.ndarray = self.scores["test"][name].argmax(axis=1) == self.labels["test"]
        return right

    def temperature(self, first: str) -> float:
        return fit_temperature(self.scores["validation"][first], self.labels["validation"])

    def cascade(self, first: str, then: str, percent: float) -> CascadeManifest:
        temperature = self.temperature(first)
        return CascadeManifest(
            name=f"{cascade_name(first, then, 0)}-{percent:g}",
            family="stored-graph-cascade",
            first=first,
            then=then,
            temperature=temperature,
            threshold=threshold_for(class_confidences(self.scores["validation"][first], temperature), percent),
        )

    def passed_on(self, split: str, cascade: CascadeManifest) -> np.ndarray:
        sure = class_confidences(self.scores[split][cascade.first], cascade.temperature)
        below: np.ndarray = sure < np.float32(cascade.threshold)
        return below

    def accuracy_of(self, split: str, cascade: CascadeManifest) -> float:
        scores = self.scores[split]
        below = self.passed_on(split, cascade)
        return self.accuracy(split, np.where(below[:, None], scores[cascade.then], scores[cascade.first]))

    def oracle(self, first: str, then: str) -> Oracle:
        passed_on = ~self.right(first) & self.right(then)
        scores = self.scores["test"]
        both = np.where(passed_on[:, None], scores[then], scores[first])
        return Oracle(float(passed_on.mean()), self.accuracy("test", both))


# --- a graph


def measure_graph(name: str, seeds: int, percents: Sequence[float], *, quick: bool) -> Graph:
    started = time.perf_counter()
    source = GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))
    with tempfile.TemporaryDirectory(prefix="gnnserve-cascade-") as folder:
        variants = _QUICK_VARIANTS if quick else _VARIANTS
        loaded = [_generated(name, source, Path(folder), seed, variants) for seed in range(seeds)]
        judged = [Judged.of(each) for each in loaded]
        # Without `projected-int8` where generation found another variant better in all.
        pairs = [pair for pair in PAIRS if all(stage in each.variants for stage in pair for each in loaded)]
        points = {(*pair, percent): judged[0].cascade(*pair, percent) for pair in pairs for percent in percents}
        costs = _costs(loaded[0], [*points.values()], 2.0 if quick else _BUDGET_S)
        singles = tuple(
            Single(
                variant,
                *(tuple(one.accuracy(split, one.scores[split][variant]) for one in judged) for split in _SPLITS),
                *costs[variant],
            )
            for variant in loaded[0].variants
            if all(variant in each.variants for each in loaded)
        )
        curves = tuple(
            Curve(
                first,
                then,
                round(judged[0].temperature(first), 3),
                tuple(
                    _threshold(judged, first, then, percent, costs[points[first, then, percent].name])
                    for percent in percents
                ),
                _mean_oracle([one.oracle(first, then) for one in judged]),
            )
            for first, then in pairs
        )
        nodes, metric = loaded[0].graph.nodes, judged[0].metric
    return Graph(name, metric, nodes, singles, curves, round(time.perf_counter() - started, 1))


_SPLITS = ("validation", "test")


def _generated(name: str, source: GraphSource, root: Path, seed: int, variants: Mapping[str, Any]) -> LoadedRevision:
    repository = Repository(root, "benchmarks", f"{name.replace('_', '-')}-{seed}")
    return load_revision(repository, generate(service_of(name, source, seed, variants), repository).revision)


def _threshold(judged: Sequence[Judged], first: str, then: str, percent: float, cost: tuple[float, float]) -> Threshold:
    cascades = [(one, one.cascade(first, then, percent)) for one in judged]
    passed_on = [one.passed_on("test", cascade) for one, cascade in cascades]

    def right(name: str) -> float:
        return mean(float(one.right(name)[below].mean()) if below.any() else 0.0 for one, below in _zipped())

    def _zipped() -> Iterator[tuple[Judged, np.ndarray]]:
        return zip(judged, passed_on, strict=True)

    validation, test = (tuple(one.accuracy_of(split, cascade) for one, cascade in cascades) for split in _SPLITS)
    share = mean(float(below.mean()) for below in passed_on)
    return Threshold(percent, share, right(first), right(then), validation, test, *cost)


def _mean_oracle(oracles: Sequence[Oracle]) -> Oracle:
    return Oracle(mean(one.share for one in oracles), mean(one.test for one in oracles))


def _costs(
    loaded: LoadedRevision, cascades: Sequence[CascadeManifest], budget_s: float
) -> dict[str, tuple[float, float]]:
    """By name: p50 in ms of a batch of test nodes, and the bytes that it reads."""
    warm_up(loaded)
    infer = partial(with_cascades(partial(infer_each, loaded), cascades, BY_CLASS), with_embeddings=False)
    names = [*loaded.variants, *(cascade.name for cascade in cascades)]
    found = measure_latencies(infer, names, loaded.labels.splits.test, _BATCH, budget_s=budget_s, rounds=_ROUNDS)
    _check_first(loaded, cascades[0])
    # No cascade is faster than its first stage; where one seems to be, the machine was.
    least = {cascade.name: found[cascade.first].p50_ms for cascade in cascades}
    return {
        name: (max(point.p50_ms, least.get(name, 0.0)), float(point.gathered_bytes)) for name, point in found.items()
    }


def _check_first(loaded: LoadedRevision, cascade: CascadeManifest) -> None:
    """The engine must answer as the accuracies are worked out: each node by one of the stages."""
    infer, nodes = partial(infer_batch, loaded), loaded.labels.splits.test[:_BATCH]
    answer = with_cascades(infer, [cascade], BY_CLASS)(cascade.name, nodes, 0).scores
    first, then = (infer(stage, nodes, 0).scores for stage in (cascade.first, cascade.then))
    below = class_confidences(first, cascade.temperature) < np.float32(cascade.threshold)
    if not np.allclose(answer, np.where(below[:, None], then, first), rtol=1e-5, atol=1e-5):
        raise RuntimeError(f"{cascade.name} answers otherwise than its stages")


def table_of(graph: Graph) -> Table:
    title = f"{graph.graph}: {graph.nodes:,} nodes, {graph.metric}, {graph.seconds:.0f} s"
    table = Table(title=title)
    for heading in ("variant", "passed on", "validation", "test", "p50 1024", "bytes", "over p50", "over bytes"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    rows: list[tuple[str, str, Single | Threshold]] = [(single.name, "", single) for single in graph.singles]
    rows += [
        (f"{curve.first} then {curve.then}", f"{point.percent:g} %", point)
        for curve in graph.curves
        for point in curve.points
    ]
    for name, share, one in rows:
        margins = [f"{margin_points(graph, one, cost):+.2f}" for cost in COSTS.values()]
        accuracies = [f"{mean(one.validation):.4f}", f"{mean(one.test):.4f}"]
        table.add_row(name, share, *accuracies, f"{one.p50_ms:.3f}", f"{one.gathered_bytes:,.0f}", *margins)
    return table


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    graphs = msgspec.convert(found["graphs"], list[Graph], strict=False)
    return given({name: verdict for graph in graphs for name, verdict in verdicts_of(graph)})


BENCHMARK = Benchmark(
    "cascade",
    tuple(Part(name, partial(run_graph, name)) for name in (*GRAPHS, *_QUICK_GRAPHS)),
    verdicts,
    about=__doc__,
    quick=_QUICK_GRAPHS,
)

if __name__ == "__main__":
    main(BENCHMARK)
