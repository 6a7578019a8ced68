"""Is accuracy in service told in time, without false alarms, and at what cost to requests?

Streams of labels, through the code that a worker evaluates them by: 10,000 labelled test nodes of a generated revision,
answered by every variant. Half-way one class of at least 20 % is permuted: its nodes get another class's label. Counted
is after how many labels a variant is found to be less accurate than its profile promised, and in how many streams
without drift one is. What is promised is the accuracy on validation nodes, which the streams do not have, so that the
promise has an error of its own. Then shadows: one worker over HTTP on a core of its own, open loop, in short rounds
with and without shadows in turns; the 99th percentiles of both are compared over all rounds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.accuracy.live_accuracy_shadows import Rounds, generate, measure_shadows, open_published
from benchmarks.load.communities import Communities, prepare
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, Worded, at_most, below
from gnnserve_api.files.profile import Profile
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.serving.accuracy.tally import Tally
from gnnserve_worker.tasks.classify_nodes.served_labels import values_of
from gnnserve_worker.tasks.served_labels import Measure

LABELS, CHANGE_AT = 10_000, 5_000
LOOK_EVERY = 20
"""Labels between two looks at the figures."""
MOST_LABELS = 1000
"""Most labels after the change until it is told."""
MOST_ALARMS_PERCENT = 5
LEAST_CLASS = 0.2
MOST_COST = 1.02
"""Highest ratio of the 99th percentiles with shadows and without."""
STREAMS = {False: 100, True: 6}
GRAPHS = {
    False: Communities(
        nodes=100_000, links=1_500_000, features=512, classes=4, train=6000, validation=4000, test=40_000
    ),
    True: Communities(nodes=20_000, links=300_000, features=512, classes=4, train=3000, validation=2000, test=6000),
}
ROUNDS = {False: Rounds(count=60, seconds=4.0), True: Rounds(count=4, seconds=1.0)}
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Streams:
    labels_until_told: list[int]
    """Labels after the change, of each stream with drift; one that was never told counts all that came."""
    early: int
    """Streams with drift in which a variant was called worse before the change."""
    alarms: int
    """Streams without drift in which a variant was called worse."""
    streams: int
    """Streams of each kind."""


def run_all(run: Run) -> dict[str, Any]:
    graph = GRAPHS[run.quick]
    with tempfile.TemporaryDirectory(prefix="gnnserve-live-") as folder:
        manifest, repository = generate(prepare(graph), Path(folder))
        loaded = open_published(manifest, repository)
        assert loaded.manifest is not None  # noqa: S101
        profile = loaded.manifest.profile
        warm_up(loaded)
        streams = run_streams(loaded, profile, STREAMS[run.quick])
        print(
            f"told after {max(streams.labels_until_told)} labels at most, in {streams.streams} streams; "
            f"{streams.alarms} alarms in {streams.streams} streams without drift",
            flush=True,
        )
        del loaded
        shadows = measure_shadows(manifest, repository, ROUNDS[run.quick])
    return {
        "graph": asdict(graph),
        "variants": {variant.name: variant.validation_accuracy for variant in profile.variants},
        "streams": _describe(streams),
        "shadows": asdict(shadows),
    }


def told(found: Mapping[str, Any]) -> Worded:
    streams = found["streams"]
    of = streams["labelsUntilTold"]
    return Worded(of["max"], f"{of['max']:,} at most, {of['median']:,.0f} in the middle, of {streams['count']} streams")


def alarms(found: Mapping[str, Any]) -> Worded:
    streams = found["streams"]
    return Worded(
        100 * streams["falseAlarms"] / streams["count"], f"{streams['falseAlarms']} in {streams['count']} streams"
    )


def shadows_cost(found: Mapping[str, Any]) -> Worded:
    shadows = found["shadows"]
    return Worded(shadows["ratio"], f"{shadows['ratio']:.3f} ({shadows['low']:.3f} to {shadows['high']:.3f})")


VERDICTS = (
    Verdict(
        "labels until an interval excludes the profile, where a class of 20 % or more is permuted half-way",
        at_most(MOST_LABELS), told,
    ),
    Verdict(
        f"false alarms in a hundred streams of {LABELS:,} labels without drift", at_most(MOST_ALARMS_PERCENT), alarms
    ),
    Verdict("p99 with shadows over without", below(MOST_COST), shadows_cost),
)  # fmt: skip


def _describe(streams: Streams) -> dict[str, Any]:
    told = np.array(streams.labels_until_told)
    return {
        "count": streams.streams,
        "labelsEach": LABELS,
        "labelsUntilTold": {
            "median": float(np.median(told)),
            "p95": float(np.percentile(told, 95)),
            "max": int(told.max()),
        },
        "toldBeforeTheChange": streams.early,
        "falseAlarms": streams.alarms,
    }


def run_streams(loaded: LoadedRevision, profile: Profile, count: int) -> Streams:
    promised = msgspec.structs.replace(
        profile,
        test_nodes=0,
        variants=tuple(msgspec.structs.replace(variant, test_accuracy=None) for variant in profile.variants),
    )
    measure = served_revision(loaded).task.live_labels.measure()
    until, early, alarms = [], 0, 0
    for number in range(count):
        at = first_told(promised, measure, stream(loaded, number, drifts=True))
        early += at is not None and at <= CHANGE_AT
        until.append(LABELS - CHANGE_AT if at is None else max(0, at - CHANGE_AT))
        alarms += first_told(promised, measure, stream(loaded, count + number, drifts=False)) is not None
    return Streams(until, early, alarms, count)


def stream(loaded: LoadedRevision, number: int, *, drifts: bool) -> dict[str, np.ndarray]:
    """How right each variant is of each label, in their order. Neighbours are drawn anew for each stream."""
    draw = np.random.default_rng(number)
    nodes = draw.choice(np.asarray(loaded.labels.splits.test), LABELS).astype(np.int64)
    truths = np.asarray(loaded.labels.values)[nodes].astype(np.int64)
    if drifts:
        truths[CHANGE_AT:] = permuted(truths[CHANGE_AT:], len(loaded.labels.classes), draw)

    def answer(variant: str, start: int) -> np.ndarray:
        part = slice(start, start + _BATCH)
        return values_of(infer_batch(loaded, variant, nodes[part], (number << 32) + start).scores, truths[part])

    starts = range(0, LABELS, _BATCH)
    return {variant: np.concatenate([answer(variant, start) for start in starts]) for variant in loaded.variants}


def permuted(truths: np.ndarray, classes: int, draw: np.random.Generator) -> np.ndarray:
    """The labels, in which one class that is large enough has become another."""
    counts = np.bincount(truths, minlength=classes)
    changed = draw.choice(np.flatnonzero(counts >= LEAST_CLASS * len(truths)))
    others = [each for each in range(classes) if each != changed]
    return np.where(truths == changed, draw.choice(others), truths)


def first_told(profile: Profile, measure: Measure, values: dict[str, np.ndarray]) -> int | None:
    """Labels after which a variant is first found to be less accurate than promised; None: none ever is."""
    tally, promised = Tally(profile, measure), np.ones(LOOK_EVERY, bool)
    for end in range(LOOK_EVERY, LABELS + 1, LOOK_EVERY):
        tally.add_labels({variant: found[end - LOOK_EVERY : end] for variant, found in values.items()}, promised)
        if any(figure.is_broken for figure in tally.figures()):
            return end
    return None


BENCHMARK = Benchmark(
    "live_accuracy",
    (Part("all", run_all, ("gnnserve_cli.commands.serve", "gnnserve_cli.commands.generate")),),
    VERDICTS,
    about=__doc__,
)

if __name__ == "__main__":
    main(BENCHMARK)
