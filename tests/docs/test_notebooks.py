"""Notebooks of examples/ run from their first cell to the last, and end with a picture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.pages.pages import ROOT
from tools.notebooks import run

FOLDER = ROOT / "examples" / "notebooks"
PANDAS = ROOT / ".venv" / "notebooks"
"""pandas is beside the other packages: pyarrow would import it into every program of the tests."""


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_a_notebook_runs_and_what_it_shows_is_committed(name: str, tmp_path: Path) -> None:
    assert PANDAS.is_dir(), f"{PANDAS} is missing: make .venv/installed"
    copy = Path(shutil.copy(FOLDER / name, tmp_path))
    committed = json.loads(copy.read_text(encoding="utf-8"))
    path = os.pathsep.join((str(ROOT), str(PANDAS)))
    command = [sys.executable, "-m", "tools.notebooks", "--write", name]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(copy.read_text(encoding="utf-8"))
    for before, after in zip(committed["cells"], shown["cells"], strict=True):
        assert kinds(before) == kinds(after), "".join(after["source"])
    assert "image/png" in {kind for cell in shown["cells"] for kind in kinds(cell)}


def kinds(cell: dict) -> list[str]:
    """Kinds of what a cell shows, in order."""
    return [kind for output in cell.get("outputs", ()) for kind in output.get("data", {output["output_type"]: ""})]


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    notebook = {"cells": [{"cell_type": "code", "source": ["x = 1\n", "print(x)\n", "x + 1"]}]}
    run(notebook)
    printed, value = notebook["cells"][0]["outputs"]
    assert (printed["text"], value["data"]["text/plain"]) == (["1\n"], ["2"])
