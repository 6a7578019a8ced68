"""`gnnserve validate` on the manifest that ships, and on one that is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from gnnserve_cli.main import app

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"


def test_what_was_understood_is_printed() -> None:
    result = CliRunner().invoke(app, ["validate", str(DIGITS)])
    assert result.exit_code == 0, result.stderr
    understood = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert understood["service"].strip() == "default/digits"
    assert understood["source"].strip() == "builtin Digits"
    assert understood["variants"].strip() == "x1, x2, x4, x8, x16, ranked by Lasso"
    assert understood["tables"].strip() == "float32; projection Auto"
    assert understood["objective"].strip() == "none: the most accurate variant answers"


def test_objectives_are_spelled_out(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text() + "  objective: {latencyMs: 5, accuracyTolerancePermille: 10}\n")
    result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    assert "latency within 5 ms, accuracy at most 10 permille below the best" in result.output


def test_what_workers_ask_for_is_among_what_concerns_a_cluster(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text() + "  worker: {replicas: 2, gpu: {count: 4}}\n")
    result = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
    assert "2 workers with 4 nvidia.com/gpu, " in result.output


def test_the_device_is_said_and_what_changes_nothing_on_it(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    for worker, device, idle in (
        ("{}", "Auto; all free memory of the GPU; cache Frequency", []),
        ("{gpuMemory: 2Gi, cache: {policy: LFU}}", "Auto; at most 2Gi of the GPU; cache LFU", []),
        ("{device: CPU}", "CPU", []),
        ("{device: CPU, gpuMemory: 2Gi, cache: {policy: LFU}}", "CPU", ["gpuMemory", "cache"]),
    ):
        manifest.write_text(f"{DIGITS.read_text()}  worker: {worker}\n")
        plain = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"})
        assert re.search(r"^device +(.+)$", plain.stdout, re.MULTILINE)[1] == device  # type: ignore[index]
        as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
        assert json.loads(as_json.stdout)["valid"] is True
        notes = "".join(f"note: spec.worker.{field} changes nothing: spec.worker.device is CPU\n" for field in idle)
        assert plain.stderr == as_json.stderr == notes


def test_given_weights_and_storages_are_named(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    text = DIGITS.read_text().replace("  variants:\n", "  variants:\n    storage: [float32, int8]\n")
    manifest.write_text(text.replace("  model:\n", "  model:\n    checkpoint: {uri: file:///a.safetensors}\n"))
    understood = CliRunner().invoke(app, ["validate", str(manifest)], env={"COLUMNS": "200"}).output
    assert "weights        file:///a.safetensors, not trained" in understood
    assert "tables         float32, int8; projection Auto" in understood
    assert "training" not in understood


def test_json_says_whether_and_why() -> None:
    valid = CliRunner().invoke(app, ["validate", str(DIGITS), "--json"])
    assert valid.exit_code == 0
    assert json.loads(valid.output)["spec"]["variants"]["pruning"]["factors"] == [1, 2, 4, 8, 16]


def test_every_problem_is_listed_and_the_exit_code_says_invalid(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(DIGITS.read_text().replace("hidden: 128", "hidden: 0\n    widht: 3"))
    plain = CliRunner().invoke(app, ["validate", str(manifest)])
    assert plain.exit_code == 2
    assert "spec.model.hidden" in plain.stderr
    assert "spec.model.widht" in plain.stderr

    as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
    assert as_json.exit_code == 2
    answer = json.loads(as_json.output)
    assert answer["valid"] is False
    assert "spec.model.widht" in answer["problem"]


def test_a_path_that_is_no_text_is_valid_json_too() -> None:
    as_json = CliRunner().invoke(app, ["validate", "no\udcff.yaml", "--json"])
    assert as_json.exit_code == 2
    assert json.loads(as_json.output)["problem"].startswith(r"no\udcff.yaml: no such file")


def test_half_a_character_is_a_problem_and_its_json_is_valid(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text('metadata: {name: "\\ud800"}')
    as_json = CliRunner().invoke(app, ["validate", str(manifest), "--json"])
    assert as_json.exit_code == 2
    assert r"\ud800 is half a character" in json.loads(as_json.output)["problem"]


def test_one_of_something_is_not_several(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    text = DIGITS.read_text().replace("epochs: Auto", "epochs: 1")
    manifest.write_text(text)
    assert "1 epoch, " in CliRunner().invoke(app, ["validate", str(manifest)]).output
