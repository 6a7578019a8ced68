"""Stored layers that may be stale: which rows are worth making anew, what that takes, and changes per second.

A part for each of five public graphs, one of them of several types; two and three layers; means, maxima and attention:
answers that differ from exact after 1, 5 and 20 % of the edges have come, and of new nodes, against the share of the
changed rows that are made anew, by the estimate that workers go by, at random, by degree, and by the true error. Then
the time of requests by that share (`costs.py`), hidden nodes that requests bring to a worker (`requests.py`), a stream
of answers with tolerances (`tolerances.py`), and changes per second of arxiv's shape with two stored layers that are
kept exact, and that are marked as stale.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.frontier_graphs import DATASETS
from benchmarks.changes.updates_graph import GraphEffort, publish
from benchmarks.changes.updates_graph import Subject as ChangedShape
from benchmarks.changes.updates_measured import ApplyRate
from benchmarks.relations.relations_accuracy import SHARED, SOURCES
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.staleness.costs import STORED, WHOLE, Effort, measure_costs, publish_stored
from benchmarks.staleness.networks import AGGREGATIONS, Edges, Subject, train
from benchmarks.staleness.overlays import OverlayDifferences, overlay_differences
from benchmarks.staleness.requests import TOGETHER, RequestCost, measure_requests
from benchmarks.staleness.rules import (
    ESTIMATE,
    ORACLE,
    SHARES,
    Differences,
    Scene,
    common_edges,
    differences,
    scenes,
    states_over,
)
from benchmarks.staleness.tolerances import StreamEffort, TolerancesKept, measure_stream
from benchmarks.staleness.turns import WAYS, TurnsEffort, WayFigures, measure_way, possible_per_s
from benchmarks.verdicts import Verdict, Worded, above, at_least, at_most, that
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.spec.graph import GraphSource
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.staleness.loss import Sensitivity

GRAPHS = ("amazon_photo", "amazon_computers", "coauthor_cs", "facebook_pages", "acm")
DEPTHS = (2, 3)
DEEPEST = DEPTHS[-1]
BROUGHT, QUICK_BROUGHT = 100, 5
"""New nodes that are asked about one by one."""
EPOCHS, QUICK_EPOCHS, QUICK_DEPTHS = 40, 3, (3,)
COSTS_OF, CHANGES_OF = "amazon_computers", "arxiv"
FULL_STREAM, QUICK_STREAM = StreamEffort(420, 40, 40), StreamEffort(6, 40, 16)
FULL_COSTS, QUICK_COSTS = Effort(requests=300, repeats=15), Effort(requests=30, repeats=3)
FULL_CHANGES, QUICK_CHANGES = (GraphEffort(seconds, sum_changes=0, pairs=0) for seconds in (5.0, 0.2))
FULL_TURNS, QUICK_TURNS = TurnsEffort(6, 4.0, 3.0), TurnsEffort(1, 0.5, 0.5)
WANTED_OF_QUIET = 1.2
WANTED_EXACT_PER_S, WANTED_STALE_PER_S = 56_000, 200_000
_PROFILE_S = "0.2"
"""Latencies of the profile are not read."""
WANTED_OF_NONE, WANTED_OF_ORACLE, AT = 0.5, 2.0, SHARES.index(0.2)
WANTED_CORRELATION = 0.5
MOST_EXCEEDED = 0.02
"""As often as a sensitivity may be above its bound (`worker/gnnserve_worker/staleness/loss.py`)."""
_MORE_THAN_ALL = "half of the highest rate and the predictions together are more than the processors can do"
_SPREAD = "the error is spread over more rows: by the true error little less differs"


def run_graph(name: str, run: Run) -> dict[str, Any] | None:
    if name in SOURCES and not (SHARED / name).is_dir():
        print(f"left out: {SHARED} does not have {name}", flush=True)
        return None
    with tempfile.TemporaryDirectory(prefix="gnnserve-staleness-") as folder:
        data = load_source(_source(name), Path(folder))
    subject, edges = Subject.of(data), Edges.of(data)
    every = [*scenes(edges, subject, data.splits.test)]
    trained_over, found = edges.where(common_edges(every)), list[Differences]()
    brought, most = list[OverlayDifferences](), QUICK_BROUGHT if run.quick else BROUGHT
    for layers in QUICK_DEPTHS if run.quick else DEPTHS:
        for aggregation in AGGREGATIONS:
            began_s = time.monotonic()
            network = train(subject, trained_over, aggregation, layers, QUICK_EPOCHS if run.quick else EPOCHS)
            trained_s = time.monotonic() - began_s
            after = states_over(network, subject, edges)
            found += [differences(name, aggregation, network, subject, data.schema, edges, one, after) for one in every]
            if layers == DEEPEST:
                one = overlay_differences(name, aggregation, network, subject, data.schema, edges, every[-1], most)
                brought += [] if one is None else [one]
            took_s = time.monotonic() - began_s
            print(f"{name}, {layers} layers, {aggregation}: {took_s:.0f} s, {trained_s:.0f} of training", flush=True)
    return {"differences": [asdict(one) for one in found], "overlays": [asdict(one) for one in brought]}


_MOST_EDGES, _NEW_NODES = -2, -1
"""Places among `scenes`."""


@dataclass(frozen=True, slots=True)
class _Published:
    repository: Repository
    revision: str
    edges: Edges
    scene: Scene
    labels: np.ndarray
    """int64 [nodes]"""


def _source(name: str) -> GraphSource:
    if name in SOURCES:
        given: dict[str, Any] = {"typed": {"npz": {"uri": (SHARED / name).resolve().as_uri()}, **SOURCES[name]}}
    else:
        given = {"npz": {"uri": (DATASETS / f"{name}.npz").resolve().as_uri()}}
    return GraphSource.model_validate(given)


@contextmanager
def _published(run: Run, scene: int) -> Iterator[_Published]:
    """The revision of the graph before what a scene (its place among `scenes`) brings, with a network trained on it."""
    os.environ[BUDGET_VARIABLE] = _PROFILE_S
    with tempfile.TemporaryDirectory(prefix="gnnserve-staleness-") as folder:
        data = load_source(_source(COSTS_OF), Path(folder))
        subject, edges = Subject.of(data), Edges.of(data)
        brought = [*scenes(edges, subject, data.splits.test)][scene]
        network = train(subject, edges.where(brought.is_old), "mean", 3, QUICK_EPOCHS if run.quick else EPOCHS)
        repository, revision = publish_stored(data, subject, edges, network, brought, Path(folder))
        yield _Published(repository, revision, edges, brought, subject.labels.numpy())


def run_costs(run: Run) -> dict[str, Any]:
    effort, stream = (QUICK_COSTS, QUICK_STREAM) if run.quick else (FULL_COSTS, FULL_STREAM)
    with _published(run, _MOST_EDGES) as one:
        costs = measure_costs(COSTS_OF, one.repository, one.revision, one.edges, one.scene, effort)
        kept = measure_stream(COSTS_OF, one.repository, one.revision, one.edges, one.scene, one.labels, stream)
        return {"costs": [asdict(costs)], "streams": [asdict(kept)]}


def run_requests(run: Run) -> dict[str, Any]:
    effort = QUICK_COSTS if run.quick else FULL_COSTS
    with _published(run, _NEW_NODES) as one:
        costs = measure_requests(COSTS_OF, one.repository, one.revision, one.edges, one.scene, one.labels, effort)
        return {"requests": [asdict(costs)]}


def run_changes(run: Run) -> dict[str, Any]:
    subject = ChangedShape(*publish(CHANGES_OF, layers=2))
    effort = QUICK_CHANGES if run.quick else FULL_CHANGES
    rates = [*subject.deeper_rates(effort), *subject.deeper_rates(effort, RefreshBudget())]
    return {"shapes": [{"shape": CHANGES_OF, "rates": msgspec.to_builtins(rates)}]}


def run_turns(run: Run) -> dict[str, Any]:
    subject, effort = ChangedShape(*publish(CHANGES_OF)), QUICK_TURNS if run.quick else FULL_TURNS
    possible = possible_per_s(subject, effort)
    return {"turns": [asdict(measure_way(way, subject, possible, effort)) for way in WAYS]}


# --- verdicts


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    measured = _differences_of(found)
    of_none, of_oracle = that(f"at most {WANTED_OF_NONE:g}"), that(f"at most {WANTED_OF_ORACLE:g}")
    for layers, scene in product(DEPTHS, dict.fromkeys(one.scene for one in measured)):
        chosen = [one for one in measured if (one.layers, one.scene) == (layers, scene)]
        if chosen:
            words = f"{layers} layers, {scene}: differing answers, 20 % of the changed rows made anew"
            yield Verdict(f"{words}, of those with none", of_none, partial(_beside_none, chosen), _SPREAD)
            yield Verdict(f"{words}, of those by the true error", of_oracle, partial(_beside_oracle, chosen))
    if brought := msgspec.convert(found.get("overlays", []), list[OverlayDifferences], strict=False):
        words = "new nodes of requests, 3 layers: differing answers, 20 % of the rows that overlays change made anew"
        yield Verdict(f"{words}, of those with none", of_none, partial(_overlays_beside_none, brought))
        yield Verdict(f"{words}, of those by the true error", of_oracle, partial(_overlays_beside_oracle, brought))
    correlations = [one.rank_correlation for one in measured]
    yield Verdict(
        "rank correlation of the estimate with the true error, median", at_least(WANTED_CORRELATION),
        lambda _: round(statistics.median(correlations), 2) if correlations else None,
    )  # fmt: skip
    sensitivities = [one.sensitivity for one in measured if one.sensitivity is not None]
    if sensitivities:
        yield Verdict(
            "share of answers that differ for each unit of the mean estimated error that they read, largest",
            at_most(round(Sensitivity().bound, 2)), lambda _: round(max(sensitivities), 2),
        )  # fmt: skip
    yield from _about_tolerances()
    yield from _about_speed()
    if found.get("requests"):
        yield from _about_requests()
    yield Verdict(
        "p99 of predictions beside changes at half of the possible rate, over without: the best way that keeps up",
        that(f"at most {WANTED_OF_QUIET:g}"), _best_way, _MORE_THAN_ALL,
    )  # fmt: skip


def _about_tolerances() -> Iterator[Verdict]:
    """Verdicts about a stream of answers, left out where it was not run."""
    yield Verdict(
        "answers with tolerances: windows whose accuracy is below that of exact ones by more than is tolerated",
        that(f"at most {100 * MOST_EXCEEDED:g} %"), _exceeded,
    )  # fmt: skip
    yield Verdict(
        "answers with tolerances: those that differ from exact ones, of what is tolerated, at the worst tolerance",
        at_most(1.0), lambda found: max(_share_of_tolerance(one) for one in _kept_of(found)),
    )  # fmt: skip


def _kept_of(found: Any) -> list[TolerancesKept]:
    return [one for stream in found["streams"] for one in msgspec.convert(stream["kept"], list[TolerancesKept])]


def _exceeded(found: Any) -> Worded:
    kept = _kept_of(found)
    exceeded, windows = (sum(getattr(one, name) for one in kept) for name in ("exceeded", "windows"))
    answers = sum(one.answers for one in kept)
    words = f"{exceeded} of {windows} ({answers:,} answers, {sum(one.stored for one in kept):,} from stored rows)"
    return Worded(exceeded <= MOST_EXCEEDED * windows, words)


def _share_of_tolerance(kept: TolerancesKept) -> float:
    tolerated = kept.tolerance_permille / 1000 * kept.answers
    return round(kept.differing / tolerated, 3) if tolerated else math.inf if kept.differing else 0.0


def _differences_of(found: Mapping[str, Any]) -> list[Differences]:
    return msgspec.convert(found.get("differences", []), list[Differences], strict=False)


def _about_speed() -> Iterator[Verdict]:
    """Verdicts about times and rates, left out where their parts were not run."""
    for stale, wanted in ((False, WANTED_EXACT_PER_S), (True, WANTED_STALE_PER_S)):
        kept = "marked as stale" if stale else "kept exact"
        yield Verdict(
            f"changes/s with two stored layers, {kept}", at_least(wanted), partial(_changes_per_s, stale=stale)
        )
    yield Verdict(
        "changes/s with two stored layers, marked as stale and then all made exact", at_least(WANTED_EXACT_PER_S),
        _right_changes_per_s,
    )  # fmt: skip
    for seeds in (1, FULL_COSTS.large):
        yield Verdict(
            f"{seeds:,} nodes, three layers: times as fast as whole neighbourhoods, 20 % of stale rows made anew",
            above(1.0), partial(_times_of_whole, seeds=seeds),
        )  # fmt: skip


def _about_requests() -> Iterator[Verdict]:
    """Verdicts about hidden nodes that requests bring to a worker."""
    made = "20 % of the rows that they change made anew"
    yield Verdict(
        f"hidden nodes brought to a worker: differing answers, {made}, of those with none",
        that(f"at most {WANTED_OF_NONE:g}"), _requests_beside_none,
    )  # fmt: skip
    for seeds in (1, TOGETHER):
        yield Verdict(
            f"{seeds:,} hidden nodes brought to a worker: times as fast as whole neighbourhoods, {made}", above(1.0),
            partial(_requests_beside_whole, seeds=seeds),
        )  # fmt: skip


def _requests_of(found: Any, seeds: int) -> dict[tuple[str, float | None], RequestCost]:
    costs = [msgspec.convert(one, RequestCost, strict=False) for each in found["requests"] for one in each["costs"]]
    return {(one.variant, one.share): one for one in costs if one.seeds == seeds}


def _requests_beside_none(found: Any) -> Worded:
    by_way = _requests_of(found, 1)
    none, some, all_made = (by_way[STORED, share] for share in (SHARES[0], SHARES[AT], SHARES[-1]))
    if not none.differing:
        return Worded(False, "nothing to judge: with none made anew every answer is the exact one's")
    ratio = some.differing / none.differing
    right = f"right {none.right:.1f}, {some.right:.1f} and with all rows {all_made.right:.1f} %"
    words = f"{ratio:.2f} ({none.differing:.2f} % to {some.differing:.2f} %; {right})"
    return Worded(ratio <= WANTED_OF_NONE, words)


def _requests_beside_whole(found: Any, *, seeds: int) -> float | None:
    by_way = _requests_of(found, seeds)
    if not by_way:
        return None
    return round(by_way[WHOLE, None].p50_us / by_way[STORED, SHARES[AT]].p50_us, 1)


def _changes_per_s(found: Any, *, stale: bool) -> int:
    return max(
        int(rate["changes_per_s"]) for shape in found["shapes"] for rate in shape["rates"] if rate["stale"] is stale
    )


def _best_way(found: Any) -> Worded:
    ways = msgspec.convert(found["turns"], list[WayFigures])
    # One that leaves changes behind may look better than it is.
    best = min([one for one in ways if one.keeps_up] or ways, key=lambda one: one.ratio)
    words = f"{best.ratio:g} ({best.low:g} to {best.high:g}), {best.way}"
    words += "" if best.keeps_up else f", and {best.applied_per_s:,} of {best.changes_per_s:,} changes/s applied"
    return Worded(best.keeps_up and best.ratio <= WANTED_OF_QUIET, words)


def _right_changes_per_s(found: Any) -> int | None:
    """None: the run measured no such rate."""
    rates = [msgspec.convert(rate, ApplyRate) for shape in found["shapes"] for rate in shape["rates"]]
    return max((rate.right_changes_per_s for rate in rates if rate.right_s is not None), default=None)


def _times_of_whole(found: Any, *, seeds: int) -> float:
    (costs,) = found["costs"]
    by_way = {(one["variant"], one["share"]): one["p50_us"] for one in costs["costs"] if one["seeds"] == seeds}
    return round(by_way[WHOLE, None] / by_way[STORED, SHARES[AT]], 1)


def _beside_none(chosen: Sequence[Differences], _: Any) -> Worded:
    none = statistics.fmean(one.none for one in chosen)
    estimate, random = (_mean(chosen, rule) for rule in (ESTIMATE, "random"))
    ratio = estimate / none if none else 0.0
    return Worded(
        ratio <= WANTED_OF_NONE, f"{ratio:.2f} ({none:.2f} % to {estimate:.2f} % on average; at random {random:.2f} %)"
    )


def _beside_oracle(chosen: Sequence[Differences], _: Any) -> Worded:
    return _oracle_worded(_mean(chosen, ESTIMATE), _mean(chosen, ORACLE))


def _oracle_worded(estimate: float, oracle: float) -> Worded:
    words = f"{estimate / oracle:.2f}" if oracle else f"{estimate:.2f} % and none"
    return Worded(estimate <= WANTED_OF_ORACLE * oracle, f"{words} ({estimate:.2f} % and {oracle:.2f} % on average)")


def _overlays_beside_none(brought: Sequence[OverlayDifferences], _: Any) -> Worded:
    none, estimate = statistics.fmean(one.none for one in brought), _mean(brought, ESTIMATE)
    accuracy = [statistics.fmean(one.accuracy[place] for one in brought) for place in (0, AT, -1)]
    right = f"right {accuracy[0]:.1f}, {accuracy[1]:.1f} and with all rows {accuracy[2]:.1f} %"
    ratio = estimate / none if none else 0.0
    return Worded(ratio <= WANTED_OF_NONE, f"{ratio:.2f} ({none:.2f} % to {estimate:.2f} % on average; {right})")


def _overlays_beside_oracle(brought: Sequence[OverlayDifferences], _: Any) -> Worded:
    return _oracle_worded(_mean(brought, ESTIMATE), _mean(brought, ORACLE))


def _mean(chosen: Sequence[Differences | OverlayDifferences], rule: str) -> float:
    return statistics.fmean(one.by_rule[rule][AT - 1] for one in chosen)


def show(found: Mapping[str, Any]) -> None:
    table, measured = Table(title="answers that differ from exact, %"), _differences_of(found)
    rules = dict.fromkeys(rule for one in measured for rule in one.by_rule)
    for heading in ("graph", "layers", "", "changes: none made anew", *(f"{rule}, 5 / 20 %" for rule in rules)):
        table.add_column(heading)
    for one in measured:
        cells = (f"{shares[0]:.2f} / {shares[1]:.2f}" for shares in one.by_rule.values())
        table.add_row(one.graph, str(one.layers), one.aggregation, f"{one.scene}: {one.none:.2f}", *cells)
    Console(width=140).print(table)
    if found.get("overlays"):
        table = Table(title="new nodes of requests: answers that differ from exact, %")
        for heading in (
            "graph",
            "",
            "nodes",
            "rows changed",
            "none made anew",
            "estimate, 5 / 20 %",
            "true error",
            "right",
        ):
            table.add_column(heading)
        for one in msgspec.convert(found["overlays"], list[OverlayDifferences], strict=False):
            cells = (f"{shares[0]:.2f} / {shares[1]:.2f}" for shares in one.by_rule.values())
            right = " / ".join(f"{share:.1f}" for share in one.accuracy)
            table.add_row(
                one.graph, one.aggregation, str(one.asked), f"{one.rows:.1f}", f"{one.none:.2f}", *cells, right
            )
        Console(width=140).print(table)
    for costs in found.get("costs", ()):
        table = Table(title=f"{costs['graph']}, {costs['stale_rows']:,} stale rows")
        for heading in ("variant", "nodes", "share of stale rows made anew", "rows", "p50, µs", "differing, %"):
            table.add_column(heading)
        for one in costs["costs"]:
            table.add_row(*("" if value is None else str(value) for value in one.values()))
        Console(width=140).print(table)
    for requests in found.get("requests", ()):
        table = Table(title=f"{requests['graph']}, {requests['hidden']:,} hidden nodes of {requests['edges']} edges")
        for heading in (
            "variant",
            "nodes",
            "share of changed rows made anew",
            "rows",
            "p50, µs",
            "differing, %",
            "right, %",
        ):
            table.add_column(heading)
        for one in requests["costs"]:
            table.add_row(*("" if value is None else str(value) for value in one.values()))
        Console(width=140).print(table)
    if "turns" in found:
        table = Table(title="predictions beside changes")
        for heading in ("way", "predictions/s", "changes/s", "applied/s", "p99 without, ms", "with", "times", "", ""):
            table.add_column(heading)
        for one in found["turns"]:
            table.add_row(*map(str, one.values()))
        Console(width=140).print(table)
    for stream in found.get("streams", ()):
        table = Table(title=f"{stream['graph']}, {stream['changes']:,} changes, sensitivity {stream['sensitivity']}")
        for heading in ("tolerance, ‰", "answers", "from stored rows", "rows made", "differing", "lost", "windows", ""):
            table.add_column(heading)
        for one in stream["kept"]:
            table.add_row(*map(str, one.values()))
        Console(width=140).print(table)


BENCHMARK = Benchmark(
    "staleness",
    (
        *(Part(name, partial(run_graph, name)) for name in GRAPHS),
        Part("costs", run_costs),
        Part("requests", run_requests),
        Part("changes", run_changes),
        Part("turns", run_turns),
    ),
    verdicts,
    about=__doc__,
    quick=("acm", "costs", "requests"),
    show=show,
)

if __name__ == "__main__":
    main(BENCHMARK)
