"""`gnnserve graph inspect` on graphs that need no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.graphs import npz_arrays, planted_graph, write_npz
from typer.testing import CliRunner

from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.mark.parametrize("source", ["Digits", str(DIGITS)])
def test_a_name_and_a_manifest_mean_the_same(source: str) -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", source], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.stderr
    assert "1,797, called 0, 1, 2, … (Positions)" in result.output
    assert "24,680, directed; 100% go both ways" in result.output
    assert "1,078 to train on, 359 to validate, 360 to test" in result.output


def test_a_file_is_inspected_as_json(tmp_path: Path) -> None:
    data = planted_graph([0, 1], nodes=40, columns=4, classes=(4, 9))
    path = write_npz(tmp_path / "graph.npz", npz_arrays(data))
    result = CliRunner().invoke(app, ["graph", "inspect", str(path), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.output)
    assert (found["nodes"], found["edges"], found["nodeIds"]) == (40, data.graph.edges, "Positions")
    assert [entry["label"] for entry in found["classes"]] == list(data.classes)
    assert sum(nodes for _, nodes in found["neighbours"]["histogram"]) == 40


def test_what_is_no_source_is_refused_with_the_known_names() -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", "nix"])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "'nix' is neither a manifest (.yaml), nor an .npz file, nor a known name" in result.stderr
    assert "ogbn-arxiv" in result.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["graph", "inspect", str(tmp_path / "nix.npz")])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "cannot read" in result.stderr
