"""Changes that last: how fast they are, how soon others have them, what readers pay, and whether answers stay right.

In one process: changes per second by one thread, where the time goes, memory, gathering over a graph that has changed
(`updates_graph.py`); answers after 100,000 changes beside those of the graph built from scratch (`updates_answers.py`).
A log of ten million edges that becomes part of the graph (`updates_compaction.py`); a start over one of small batches
(`updates_start.py`).
Through HTTP: durable changes per second, arrival at a second worker, predictions beside changes (`updates_service.py`).
Two public graphs as they grew (`updates_replay.py`).
Links: scores after changes, and recommendations beside them (`updates_links.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from benchmarks import results
from benchmarks.changes import updates_replay, updates_service
from benchmarks.changes.updates_answers import SUBJECTS, measure_answers
from benchmarks.changes.updates_compaction import FULL as COMPACTED
from benchmarks.changes.updates_compaction import QUICK as FEW_COMPACTED
from benchmarks.changes.updates_compaction import measure_compaction_elsewhere
from benchmarks.changes.updates_graph import FULL as SHAPES
from benchmarks.changes.updates_graph import measure_elsewhere
from benchmarks.changes.updates_links import ANSWERED, SERVICES, measure_link_answers, measure_recommending
from benchmarks.changes.updates_measured import ServiceFigures
from benchmarks.changes.updates_relations import NAME as TYPED
from benchmarks.changes.updates_replay import GRAPHS, measure_replay
from benchmarks.changes.updates_results import Figures, Part, entries_of, fragment_of, verdicts_of
from benchmarks.changes.updates_service import Load, measure_service
from benchmarks.changes.updates_start import FULL as RECORDS
from benchmarks.changes.updates_start import QUICK as FEW_RECORDS
from benchmarks.changes.updates_start import measure_start_elsewhere
from benchmarks.results import FOLDER, Benchmark, Run, commit, main, read_parts
from benchmarks.verdicts import Verdict, given

_CHANGES = {False: 100_000, True: 2000}
"""Changes before answers are compared, by whether the run is quick."""
_LINK_CHANGES = {False: 10_000, True: 1000}
_SERVER = ("gnnserve_cli.commands.serve",)
_PROGRAMS = {Part.SERVICE: _SERVER, Part.RECOMMENDING: _SERVER}
"""What parts start as processes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loads", nargs="+", type=Load, choices=[*Load], default=[*Load],
        help=f"of the parts {Part.SERVICE}, which take ten minutes each; {Load.RATES} first (default: all)",
    )  # fmt: skip


def graph(name: str, run: Run) -> Figures:
    return measure_elsewhere(name, quick=run.quick)


def answers(name: str, run: Run) -> Figures:
    return measure_answers(name, _CHANGES[run.quick])


def service(name: str, run: Run) -> Figures:
    effort = updates_service.QUICK if run.quick else updates_service.FULL
    return measure_service(name, effort, run.options.loads, _of_this_commit(name))


def compaction(name: str, run: Run) -> Figures:
    return measure_compaction_elsewhere(name, FEW_COMPACTED if run.quick else COMPACTED)


def start(name: str, run: Run) -> Figures:
    return measure_start_elsewhere(name, FEW_RECORDS if run.quick else RECORDS)


def replay(name: str, run: Run) -> Figures:
    return measure_replay(name, updates_replay.QUICK if run.quick else updates_replay.FULL)


def links(name: str, run: Run) -> Figures:
    return measure_link_answers(name, _LINK_CHANGES[run.quick])


def recommending(name: str, run: Run) -> Figures:
    return measure_recommending(name, updates_service.QUICK if run.quick else updates_service.FULL)


MEASURED: dict[Part, tuple[Callable[[str, Run], Figures], Sequence[str]]] = {
    Part.GRAPH: (graph, [*SHAPES]),
    Part.ANSWERS: (answers, SUBJECTS),
    Part.SERVICE: (service, [*SHAPES]),
    Part.COMPACTION: (compaction, (*SHAPES, TYPED)),
    Part.START: (start, (TYPED, "arxiv")),
    Part.REPLAY: (replay, GRAPHS),
    Part.LINKS: (links, [*ANSWERED]),
    Part.RECOMMENDING: (recommending, SERVICES),
}
"""What measures a part, and of what."""


def run_part(part: Part, name: str, run: Run) -> dict[str, Any]:
    measure, _ = MEASURED[part]
    return fragment_of(part, name, measure(name, run))


def _of_this_commit(name: str) -> ServiceFigures | None:
    """Figures that others may be measured beside; None: there are none, or of another commit."""
    record = read_parts(FOLDER / "updates.json").get(f"{Part.SERVICE} {name}")
    if record is None or record["commit"] != commit():
        return None
    figures = entries_of(record["found"])[Part.SERVICE][name]
    return figures if isinstance(figures, ServiceFigures) else None


REASONS = {
    "durable changes per second": "a change makes several stored rows anew, in tables that lie far from each other",
    "arrival at a second worker": "the load is a share of the highest rate, and the first probes meet pages that are "
    "copied and kernels that are read from files",
    "p99 of recommendations": "half of the highest rate and the recommendations together are more than the processors "
    "can do",
    "p99 of predictions": "half of the highest rate and the predictions together are more than the processors can do",
    "stored1 and stored2 exact": "a change reaches the neighbours of neighbours: their sums move, rows are made anew",
}
"""Why figures are missed."""


def verdicts(found: Any) -> Iterable[Verdict]:
    return given(dict(verdicts_of(entries_of(found))), REASONS)


_OF_PARTS = tuple((part, name) for part, (_, names) in MEASURED.items() for name in names)

BENCHMARK = Benchmark(
    "updates",
    tuple(
        results.Part(f"{part} {name}", partial(run_part, part, name), _PROGRAMS.get(part, ()))
        for part, name in _OF_PARTS
    ),
    verdicts,
    about=__doc__,
    quick=tuple(f"{part} {names[0]}" for part, (_, names) in MEASURED.items()),
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
