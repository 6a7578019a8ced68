"""`gnnserve plan` prints a table and sentences, or JSON."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.support.pages.pages import ROOT
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


def told(manifest: Path, tmp_path: Path) -> list[str]:
    """Its lines, each in one."""
    options = ["--repository", str(tmp_path / "repository")]
    done = CliRunner().invoke(app, ["plan", str(manifest), *options], env={"COLUMNS": "10000"})
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "repository" / "default").exists()  # nothing is published
    return done.stdout.splitlines()


def test_over_several_types_a_plan_has_what_is_learnt_and_written(tmp_path: Path) -> None:
    learnt, written, latencies, seconds = told(ROOT / "examples" / "reviews" / "reviews.yaml", tmp_path)
    assert learnt == "Learnt: network: every variant is made of it."
    assert written == "Written: stored1, stored1-int8, projected, projected-int8."
    assert latencies.startswith("Latencies are not modelled: those over graphs of one type alone are. Accuracies")
    assert "as guessed from the graph's sizes" in seconds


def test_of_links_a_plan_has_what_is_learnt_and_written(tmp_path: Path) -> None:
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(MANIFEST + "  task: {links: {dimensions: 8}}\n")
    *learnt, written, latencies, _ = told(manifest, tmp_path)
    assert [line.split(": ")[1] for line in learnt] == ["x1", "rank by Greedy", "x4"]
    assert written == "Written: x1, x4, stored1, projected."
    assert latencies.startswith("Latencies are not modelled: those of classes of nodes alone are.")


def test_of_embeddings_a_plan_ranks_no_columns(tmp_path: Path) -> None:
    learnt, written, *_ = told(ROOT / "examples" / "shop" / "shop.yaml", tmp_path)
    assert learnt == "Learnt: x1: embeddings of all nodes are learnt, and served as they are."
    assert written == "Written: x1."


def test_of_a_program_a_plan_has_what_is_learnt_and_written(tmp_path: Path) -> None:
    manifest = tmp_path / "digits.yaml"
    model = "model: {program: {uri: made}, expected: {uri: made/expected.npz}}"
    plain = MANIFEST.replace("model: {hidden: 16, fanouts: [4, 2]}", model)
    manifest.write_text(plain.replace("pruning: {factors: [1, 4]}, stored: [1]", "storage: [float32, int8]"))
    learnt, written, latencies, _ = told(manifest, tmp_path)
    assert learnt == "Nothing is learnt: all weights are given."
    assert written == "Written: x1, x1-int8."
    assert latencies.startswith("Latencies are not modelled: what a program takes is not known before it is run.")
    manifest.write_text(manifest.read_text().replace("int8]", "int8], oneRow: [{hops: 0}]"))
    learnt, written, *_ = told(manifest, tmp_path)
    assert learnt.startswith("Learnt: mlp0: spec.variants.oneRow: it reads its own features of a node")
    assert written == "Written: x1, x1-int8, mlp0, mlp0-int8."


def test_a_search_over_several_types_tells_all_that_it_looks_at(tmp_path: Path) -> None:
    folder = tmp_path / "reviews"
    shutil.copytree(ROOT / "examples" / "reviews", folder)
    manifest = folder / "reviews.yaml"
    listed = "storage: [float32, int8]\n    stored: [1]"
    manifest.write_text(manifest.read_text().replace(listed, "search: Auto"))
    *learnt, written, _, _ = told(manifest, tmp_path)
    assert {"network", "mlp0", "mlp2"} <= {line.split(": ")[1] for line in learnt}
    assert {"projected-int8", "stored1", "mlp0"} <= {*written.removeprefix("Written: ").rstrip(".").split(", ")}


@pytest.mark.parametrize("beside", ["", "  updates: {log: {sqlite: {}}}\n"])
def test_variants_that_answer_nothing_beside_changes_are_named_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    monkeypatch.setattr(planning, "measure_made_up", partial(measure_made_up, size_s=0.02))
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(MANIFEST.replace("stored: [1]", "stored: [2]") + beside)
    told = CliRunner().invoke(app, ["plan", str(manifest), "--repository", str(tmp_path / "repository"), "--json"])
    assert told.exit_code == 0, told.output
    assert ("note: no request is answered by stored2 while spec.updates is given: " in told.stderr) is bool(beside)
    assert json.loads(told.stdout)["writes"]


def test_json_of_a_plan_without_latencies_says_why(tmp_path: Path) -> None:
    options = ["--repository", str(tmp_path / "repository"), "--json"]
    done = CliRunner().invoke(app, ["plan", str(ROOT / "examples" / "reviews" / "reviews.yaml"), *options])
    found = json.loads(done.stdout)
    assert (found["variants"], found["modelError"]) == ([], None)
    assert found["notModelled"] == "those over graphs of one type alone are"
    assert found["writes"] == ["stored1", "stored1-int8", "projected", "projected-int8"]
    assert found["totalS"] > 0
