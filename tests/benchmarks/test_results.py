"""Committed figures: real runs, with what is needed to judge them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.page.catalogue import MODULES, benchmark
from benchmarks.results import FOLDER, fragments, merge, plain, read_parts

ROOT = Path(__file__).parents[2]
PART = {"commit", "date", "machine", "versions", "duration_s", "depends", "found"}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


RESULTS = _git("ls-tree", "--name-only", "HEAD", "benchmarks/results/").split()


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


@pytest.mark.parametrize("name", MODULES)
def test_verdicts_of_a_committed_result_are_those_of_today(name: str) -> None:
    result = json.loads((FOLDER / f"{name}.json").read_text())
    judged = benchmark(name).judged(plain(merge(fragments(result["parts"]))))
    assert result["verdicts"] == json.loads(json.dumps(judged)), "run make verdicts figures"
