"""Committed figures: real runs, with what is needed to judge them, and all that docs/benchmarks.md says there are."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.catalogue import MODULES, benchmark
from benchmarks.results import FOLDER, fragments, merge, plain, read_parts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks.md"
PEERS_SHAPES = ("arxiv", "reddit")
"""What `bench-peers` measures unless it is told otherwise."""
_ROW = re.compile(r"\| `(?:make )?[^`]+` \| .* \| `(?P<file>[a-z_]+\.json)`(?: \((?P<note>[^)]+)\))? \|$", re.MULTILINE)
PART = {"commit", "date", "machine", "versions", "duration_s", "depends", "found"}
_NOT_YET_RUN = "not yet run"
_SHAPES = "shapes: "
_GRAPHS = "graphs: "


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


RESULTS = _git("ls-tree", "--name-only", "HEAD", "benchmarks/results/").split()


@dataclass(frozen=True, slots=True)
class Row:
    """Of the table at the top of docs/benchmarks.md: the file that a target writes, and what is said of it."""

    file: str
    note: str | None


def read_rows(page: str) -> list[Row]:
    table = page.partition("| target | question | writes |\n")[2].partition("\n\n")[0]
    return [Row(found["file"], found["note"]) for found in _ROW.finditer(table)]


ROWS = read_rows(PAGE.read_text())


@pytest.mark.parametrize("path", RESULTS)
def test_every_part_of_a_committed_result_is_a_full_run_and_says_where_and_when(path: str) -> None:
    result = json.loads(_git("show", f"HEAD:{path}"))
    assert result.keys() == {"benchmark", "parts", "verdicts"}
    for name, record in result["parts"].items():
        assert record.keys() == PART, name
        assert record["commit"] is None or not record["commit"]["dirty"], name
    for figure, verdict in result["verdicts"].items():
        assert {"wanted", "measured", "passed"} <= verdict.keys(), figure


@pytest.mark.parametrize("name", MODULES)
def test_a_committed_result_has_parts_of_its_benchmark_alone_with_all_that_they_depend_on(name: str) -> None:
    parts = {part.name: part for part in benchmark(name).parts}
    kept = read_parts(FOLDER / f"{name}.json")
    assert kept.keys() <= parts.keys()
    for part, record in kept.items():
        # What it depended on when it ran: imports have come and gone since.
        assert record["depends"], part


def test_every_row_of_the_page_names_a_file_and_every_note_is_understood() -> None:
    table = PAGE.read_text().partition("|---|---|---|\n")[2].partition("\n\n")[0]
    assert len(ROWS) == len(table.splitlines())
    assert all(row.note in {None, _NOT_YET_RUN} or str(row.note).startswith((_SHAPES, _GRAPHS)) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_a_file_of_the_page_is_committed_unless_the_page_says_that_it_was_not_yet_run(row: Row) -> None:
    # Those that are about to be committed count too.
    committed = bool(_git("ls-files", f"benchmarks/results/{row.file}"))
    assert committed != (row.note == _NOT_YET_RUN), f"{row.file}: the page says {row.note!r}"


def test_every_committed_file_is_on_the_page() -> None:
    assert {Path(path).name for path in RESULTS} <= {row.file for row in ROWS}


def test_the_peers_were_compared_on_every_shape_that_the_run_was_asked_for() -> None:
    result = plain(merge(fragments(read_parts(FOLDER / "peers.json"))))
    (note,) = (row.note for row in ROWS if row.file == "peers.json")
    said = PEERS_SHAPES if note is None else tuple(note.removeprefix(_SHAPES).split(", "))
    assert tuple(result["shapes"]) == said


def test_the_frontier_was_measured_on_the_graphs_that_the_page_says() -> None:
    result = plain(merge(fragments(read_parts(FOLDER / "frontier.json"))))
    (note,) = (row.note for row in ROWS if row.file == "frontier.json")
    assert note is not None
    assert note.removeprefix(_GRAPHS).split(", ") == [measured["graph"] for measured in result["graphs"]]


def test_a_note_is_read_off_its_row() -> None:
    page = "| target | question | writes |\n|---|---|---|\n| `make a` | b (c)? | `a.json` (not yet run) |\n\n| `d` |"
    assert read_rows(page) == [Row("a.json", _NOT_YET_RUN)]
