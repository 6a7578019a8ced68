"""docs/capabilities.md holds: what it says goes together is generated, served and asked, and what it says does not is
refused in its own sentence, before anything is trained.

`make test-matrix` runs all cells, each protocol for each column, and sets that have each pair of features, and threes
that meet. `make test` runs a sample, with a set of each kind of graph and task, another one with each commit;
GNNSERVE_MATRIX_SEED=N draws that of N.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import yaml
from tests.matrix.cells import ADMITTED, LAYERED, REFUSED, Cell, fields_of, kind_of, sets_in_turn, sets_of
from tests.matrix.columns import COLUMNS_OF_PAGE
from tests.matrix.requests import refusals_of, told_on_page
from tests.matrix.scene import ask_in_every_form, ask_scene, is_asked_about, run, scene_of
from tools.run_tests import commit_count
from typer.testing import CliRunner

from gnnserve_api.generated.capabilities import CAPABILITIES_PATH, SERVED_PART, SETUPS, manifest_of
from gnnserve_cli.main import app

WHOLE = os.environ.get("GNNSERVE_MATRIX") == "whole"
SEED = int(os.environ.get("GNNSERVE_MATRIX_SEED") or commit_count())
_DRAWN = 2
"""Cells of one feature in a sample, beside a set of several features of each kind of graph and task."""


def drawn() -> list[Cell]:
    if WHOLE:
        return [*ADMITTED, *(cell for setup in SETUPS for cell in sets_of(setup))]
    layered = [cell for cell in ADMITTED if cell.setup in LAYERED]
    return [*random.Random(SEED).sample(layered, _DRAWN), *sets_in_turn(SEED)]  # noqa: S311


def columns_drawn() -> list[str]:
    return [*COLUMNS_OF_PAGE] if WHOLE else [random.Random(SEED).choice(LAYERED).name]  # noqa: S311


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of each column's files, written when it is first asked for."""

    class Folders(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            folder = tmp_path_factory.mktemp("column")
            COLUMNS_OF_PAGE[name].write(folder)
            self[name] = folder
            return folder

    return Folders()


@pytest.mark.parametrize("cell", drawn(), ids=str)
def test_what_goes_together_is_generated_served_and_asked(cell: Cell, files: dict[str, Path], tmp_path: Path) -> None:
    with scene_of(cell, COLUMNS_OF_PAGE[cell.setup.name], tmp_path, files[cell.setup.name]) as scene:
        run(ask_scene(scene))


@pytest.mark.parametrize("name", columns_drawn())
def test_a_question_has_one_answer_in_every_form(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    column = COLUMNS_OF_PAGE[name]
    with scene_of(Cell(column.setup, ()), column, tmp_path, files[name]) as scene:
        run(ask_in_every_form(scene))


@pytest.mark.parametrize("name", columns_drawn())
def test_requests_are_answered_and_refused_as_the_page_says(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """`make capabilities` writes the page anew."""
    assert refusals_of(COLUMNS_OF_PAGE[name], files[name], tmp_path) == told_on_page(name)


def test_every_cell_that_does_not_go_together_is_refused_in_the_sentence_of_the_page(tmp_path: Path) -> None:
    lines = CAPABILITIES_PATH.read_text().partition(SERVED_PART)[0].splitlines()
    rows = dict(_row(line) for line in lines if line.startswith("| ["))
    sentences = dict(line.split(". ", 1) for line in lines if line[:1].isdigit())
    said: dict[str, Cell] = {}
    for cell in REFUSED:
        place, (feature,) = [one.name for one in SETUPS].index(cell.setup.name), cell.features
        sentence = sentences[rows[feature.name][place]]
        assert sentence == cell.refusal
        said.setdefault(sentence, cell)
    for sentence, cell in said.items():
        manifest = tmp_path / "service.yaml"
        manifest.write_text(yaml.safe_dump(manifest_of(cell.spec)))
        result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "1000"})
        assert result.exit_code != 0, str(cell)
        assert sentence in result.output, str(cell)


def test_each_sample_has_a_set_of_each_kind_of_graph_and_task_and_in_turn_all_are_drawn() -> None:
    left, kinds = {str(cell) for setup in LAYERED for cell in sets_of(setup)}, {kind_of(setup) for setup in LAYERED}
    for turn in range(3 * max(len(sets_of(setup)) for setup in LAYERED)):
        sample = sets_in_turn(turn)
        assert {kind_of(one.setup) for one in sample} == kinds
        left -= {str(cell) for cell in sample}
    assert not left


def test_every_field_of_the_page_is_asked_about() -> None:
    for cell in ADMITTED:
        for path, _ in fields_of(cell.spec):
            assert is_asked_about(path), f"{path} of {cell}: say in tests/matrix/scene.py what is asked of it"


def _row(line: str) -> tuple[str, list[str]]:
    first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
    return first.split("](")[0].removeprefix("["), cells
