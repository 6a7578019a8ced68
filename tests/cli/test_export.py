"""`gnnserve export` over a repository: which revision it takes, where it writes, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.repository.repository import Repository

VARIANT = MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")


def publish(root: Path, service: str = "papers") -> str:
    network = Model(hidden=4, fanouts=(3, 2)).network(3)
    repository = Repository(root, "default", service)
    return publish_made_up(repository, made_up_graph(20, 3, 5, 3), network, [VARIANT]).revision


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_a_variant_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = publish(tmp_path / "repository")
    monkeypatch.chdir(tmp_path)

    told = run(revision, "x1", "--repository", "repository").splitlines()

    folder = f"x1-{revision}"
    assert told[0] == f"{folder}: x1 of default/papers, revision {revision}"
    assert told[1].startswith("model.pt2: scores of 8 nodes and 3 nodes, and of 20 batches of up to 8,0")
    assert " rows, are gnnserve's own within " in told[1]
    files = sorted(path.name for path in (tmp_path / folder).iterdir())
    assert files == ["README.md", "example.safetensors", "export.json", "model.pt2", "rows.safetensors"]
    assert f"--out: '{folder}' exists" in run(revision, "x1", "--repository", "repository", code=ExitCode.BAD_INPUT)


def test_json_is_what_is_in_the_folder(tmp_path: Path) -> None:
    revision = publish(tmp_path)
    told = json.loads(run(revision, "x1", "--repository", tmp_path, "--out", tmp_path / "made", "--json"))
    assert told["programs"] == {"torch": "model.pt2"}
    assert told["checks"] == json.loads((tmp_path / "made" / "export.json").read_text(encoding="utf-8"))["checks"]


def test_a_revision_of_several_services_needs_the_name_of_one(tmp_path: Path) -> None:
    revision = publish(tmp_path)
    assert publish(tmp_path, "copies") == revision
    common = ("--repository", tmp_path)
    problem = run(revision, "x1", *common, code=ExitCode.BAD_INPUT)
    assert f"--service: is not given, and default/copies, default/papers have {revision}" in problem
    problem = run(revision, "x3", *common, "--service", "papers", code=ExitCode.BAD_INPUT)
    assert f"VARIANT: revision {revision} has no 'x3'; name one of x1" in problem
    problem = run(revision, "x1", *common, "--service", "else", code=ExitCode.BAD_INPUT)
    assert "holds no 'else'; name one of default/copies, default/papers" in problem


def test_a_revision_that_is_not_there_is_refused(tmp_path: Path) -> None:
    revision = publish(tmp_path)
    problem = run("none", "x1", "--repository", tmp_path, code=ExitCode.BAD_INPUT)
    assert f"REVISION: {tmp_path} has no 'none'; name one of {revision}" in problem
    problem = run("none", "x1", "--repository", tmp_path / "none", code=ExitCode.BAD_INPUT)
    assert f"--repository: '{tmp_path / 'none'}' is no folder; give a repository folder\n" in problem
    missing = tmp_path / "missing" / "made"
    problem = run(revision, "x1", "--repository", tmp_path, "--out", missing, code=ExitCode.BAD_INPUT)
    assert f"--out: '{missing.parent}' is no folder" in problem


def test_a_damaged_revision_is_told_as_such(tmp_path: Path) -> None:
    revision = publish(tmp_path)
    file = tmp_path / "default" / "papers" / "revisions" / revision / "revision.json"
    file.write_bytes(file.read_bytes()[:-20])
    assert str(file) in run(revision, "x1", "--repository", tmp_path, code=ExitCode.REPOSITORY)


def test_onnx_needs_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    problem = run("any", "x1", "--repository", tmp_path, "--format", "onnx", code=ExitCode.RESOURCE)
    assert "--format onnx: needs onnxscript, which is not installed; `pip install 'gnnserve[export]'`" in problem


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = publish(tmp_path / "repository")
    made = tmp_path / "made"
    made.mkdir()

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    arguments = (revision, "x1", "--repository", tmp_path / "repository", "--out", made / "x1")
    told = run(*arguments, code=ExitCode.RESOURCE)
    assert f"error: --out: '{made}/x1' cannot be written: No space left on device; free some space" in told
    assert [*made.iterdir()] == []
