"""Changes that last: how fast they are, how soon others have them, what readers pay, and whether answers stay right.

In one process: changes per second by one thread, where the time goes, memory, gathering over a graph that has changed
(`updates_graph.py`); answers after 100,000 changes beside those of the graph built from scratch (`updates_answers.py`).
A log of ten million edges that becomes part of the graph (`updates_compaction.py`); a start over one of small batches
(`updates_start.py`).
Through HTTP: durable changes per second, arrival at a second worker, predictions beside changes (`updates_service.py`).
Two public graphs as they grew (`updates_replay.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from benchmarks import updates_replay, updates_service
from benchmarks.results import FOLDER, commit, write_result
from benchmarks.updates_answers import ARCHITECTURES, measure_answers
from benchmarks.updates_compaction import FULL as COMPACTED
from benchmarks.updates_compaction import QUICK as FEW_COMPACTED
from benchmarks.updates_compaction import measure_compaction_elsewhere
from benchmarks.updates_graph import FULL as SHAPES
from benchmarks.updates_graph import measure_elsewhere
from benchmarks.updates_measured import ServiceFigures
from benchmarks.updates_replay import GRAPHS, measure_replay
from benchmarks.updates_results import Entries, Entry, Figures, Part, body_of, read_entries, verdicts_of
from benchmarks.updates_service import Load, measure_service
from benchmarks.updates_start import FULL as RECORDS
from benchmarks.updates_start import QUICK as FEW_RECORDS
from benchmarks.updates_start import measure_start_elsewhere
from benchmarks.updates_typed import NAME as TYPED

_CHANGES = {False: 100_000, True: 2000}
"""Changes before answers are compared, by whether the run is quick."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one shape, architecture and graph: does it work at all?")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES], default=[*SHAPES], help="default: both")
    parser.add_argument("--parts", nargs="+", type=Part, choices=[*Part], default=[*Part], help="default: all")
    parser.add_argument(
        "--loads", nargs="+", type=Load, choices=[*Load], default=[*Load],
        help=f"of the part {Part.SERVICE}, which takes ten minutes a shape; {Load.RATES} first (default: all)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    shapes = options.shapes[:1] if quick else options.shapes
    # What was measured before stays until it is measured again.
    entries: Entries = {part: {} for part in Part} if quick else read_entries(FOLDER / "updates.json")
    for part in options.parts:
        for name, measure in _measurements(part, shapes, entries, options.loads, quick=quick):
            print(f"{part}: {name}", flush=True)
            entries[part][name] = Entry(measure(), commit(), datetime.now(UTC).isoformat(timespec="seconds"))
            write_result("updates", quick, body_of(entries))
    show(entries)


def _measurements(
    part: Part, shapes: Sequence[str], entries: Entries, loads: Sequence[Load], *, quick: bool
) -> list[tuple[str, Callable[[], Figures]]]:
    """What a part measures, by name."""

    def service(name: str) -> Figures:
        return measure_service(name, of_service, loads, _of_this_commit(entries[Part.SERVICE].get(name)))

    few = slice(1 if quick else None)
    of_service = updates_service.QUICK if quick else updates_service.FULL
    of_replay = updates_replay.QUICK if quick else updates_replay.FULL
    by_part: dict[Part, list[tuple[str, Callable[[], Figures]]]] = {
        Part.GRAPH: [(name, lambda name=name: measure_elsewhere(name, quick=quick)) for name in shapes],
        Part.ANSWERS: [(name, lambda name=name: measure_answers(name, _CHANGES[quick])) for name in ARCHITECTURES[few]],
        Part.SERVICE: [(name, lambda name=name: service(name)) for name in shapes],
        Part.COMPACTION: [
            (name, lambda name=name: measure_compaction_elsewhere(name, FEW_COMPACTED if quick else COMPACTED))
            for name in (*shapes, TYPED)
        ],
        Part.START: [
            (name, lambda name=name: measure_start_elsewhere(name, FEW_RECORDS if quick else RECORDS))
            for name in (TYPED, "arxiv")[few]
        ],
        Part.REPLAY: [(name, lambda name=name: measure_replay(name, of_replay)) for name in GRAPHS[few]],
    }
    return by_part[part]


def _of_this_commit(entry: Entry | None) -> ServiceFigures | None:
    """Figures that others may be measured beside; None: there are none, or of another commit."""
    if entry is None or not isinstance(entry.figures, ServiceFigures) or dict(entry.commit) != commit():
        return None
    return entry.figures


def show(entries: Entries) -> None:
    table = Table("", "Wanted", "Measured", "")
    for name, verdict in verdicts_of(entries):
        table.add_row(name, verdict["wanted"], verdict["measured"], "met" if verdict["passed"] else "missed")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
