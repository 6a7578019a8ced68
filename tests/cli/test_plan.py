"""`gnnserve plan` prints a table and sentences, or JSON."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.support.pages import ROOT
from typer.testing import CliRunner

from gnnserve_cli.main import app
from gnnserve_worker.generation.search import plan as planning
from gnnserve_worker.generation.search.made_up import measure_made_up

MANIFEST = """
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: digits}
spec:
  graph: {source: {builtin: Digits}}
  model: {hidden: 16, fanouts: [4, 2]}
  variants: {pruning: {factors: [1, 4]}, stored: [1]}
"""


def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    monkeypatch.setattr(planning, "measure_made_up", partial(measure_made_up, size_s=0.02))
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(MANIFEST)
    repository = tmp_path / "repository"
    done = CliRunner().invoke(app, ["plan", str(manifest), "--repository", str(repository), *options])
    assert done.exit_code == 0, done.output
    assert not (repository / "default").exists()  # nothing is published
    return done.stdout


def test_the_table_has_a_line_for_each_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = planned(tmp_path, monkeypatch).splitlines()
    assert lines[0].split()[:3] == ["Variant", "Family", "Rows/seed"]
    rows = {line.split()[0]: line for line in lines[2:6]}
    assert rows.keys() == {"x1", "x4", "projected", "stored1"}
    assert rows["x4"].endswith("trained: x4")
    assert rows["stored1"].endswith("derived")
    learnt = [line for line in lines if line.startswith("Learnt: ")]
    assert [line.split(": ")[1] for line in learnt] == ["x1", "rank by Greedy", "x4"]
    assert "x1, projected and stored1 are made of it" in learnt[0]
    assert lines[-1].startswith("Generation would take about ")


def test_json_has_the_same_for_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(planned(tmp_path, monkeypatch, "--json"))
    assert {one["name"] for one in found["variants"]} == {"x1", "x4", "projected", "stored1"}
    assert set(found["variants"][0]["p50Ms"]) == {"1", "32", "1024"}
    assert found["learnt"][2] == {"name": "x4", "needs": ["rank by Greedy"], "why": found["learnt"][2]["why"]}
    assert found["totalS"] == pytest.approx(
        found["firstNetworkS"] + found["otherNetworksS"] + found["measuringS"], rel=1e-4
    )


def test_a_graph_of_several_types_is_refused_before_it_is_read() -> None:
    done = CliRunner().invoke(app, ["plan", str(ROOT / "examples" / "reviews" / "reviews.yaml")])
    assert done.exit_code == 2
    assert "spec.graph.source.typed: is not planned" in done.output


def test_a_program_is_not_modelled(tmp_path: Path) -> None:
    manifest = tmp_path / "digits.yaml"
    model = "model: {program: {uri: made}, expected: {uri: made/expected.npz}}"
    manifest.write_text(MANIFEST.replace("model: {hidden: 16, fanouts: [4, 2]}", model).replace(", stored: [1]", ""))
    done = CliRunner().invoke(app, ["plan", str(manifest), "--repository", str(tmp_path / "repository")])
    assert done.exit_code != 0
    assert "spec.model.program: is not planned" in " ".join(f"{done.stderr} {done.exception}".split())
