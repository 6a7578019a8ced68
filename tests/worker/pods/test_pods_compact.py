"""Jobs of compaction, and the command line's: what they publish, what they keep, and where later generations begin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.support.pods.compacting_pod import NODES, Service, new_node
from tests.support.pods.generating_pod import keep_signals, manifest_of
from typer.testing import CliRunner

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.edges import Direction
from gnnserve_api.pods.interface import PodExit
from gnnserve_cli.local_log import own_uid
from gnnserve_cli.main import app
from gnnserve_cli.manifest_edit import with_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

__all__ = ["keep_signals"]


@pytest.mark.usefixtures("keep_signals")
def test_each_job_folds_what_came_since_and_the_log_is_cut_behind_the_version_before(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    assert source.offset == 0
    service.append(new_node(1000), new_node(1001))
    first = service.made(source.revision)
    assert (first.offset, first.recipe) == (2, source.recipe)
    assert {one.name for one in first.variants} <= {one.name for one in source.variants}
    assert service.first_offset() == 1, "workers may still load the graph of the source"
    # The Job's result was lost, and it runs again.
    assert service.made(source.revision) == first
    service.append(new_node(1002), new_node(1003))
    assert service.serve(first.revision) == 4
    second = service.made(first.revision)
    assert (second.offset, service.first_offset()) == (4, 3)
    third = (service.append(new_node(1004)), service.made(second.revision))[1]
    assert (third.offset, service.first_offset()) == (5, 5)
    kept = {manifest.revision for manifest in service.repository.revisions()}
    assert kept == {source.revision, second.revision, third.revision}
    assert [service.serve(one.revision) for one in (second, third)] == [5, 5]
    assert load_revision(service.repository, third.revision).graph.nodes == NODES + 5


@pytest.mark.usefixtures("keep_signals")
def test_a_later_generation_begins_with_the_newest_version(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    service.append(new_node(1000, b"[7]"), new_node(1001, b"[null]"))
    folded = service.made(source.revision)
    assert service.made() == folded, "it is published, and nothing is trained"
    service.manifest = manifest_of(tmp_path, epochs=1)
    other = service.made()
    assert other.recipe != folded.recipe
    assert (other.graph, other.offset) == (folded.graph, 2)
    loaded = load_revision(service.repository, other.revision)
    assert loaded.graph.nodes == NODES + 2
    # The one that came with a label is trained on.
    assert NODES in loaded.labels.splits.train and NODES + 1 not in loaded.labels.splits.train
    assert [int(label) for label in loaded.labels.values[-2:]] == [loaded.labels.classes.index(7), -1]
    assert service.serve(other.revision) == 2


@pytest.mark.usefixtures("keep_signals")
@pytest.mark.parametrize(("direction", "is_kept"), [("Directed", True), ("Undirected", False)])
def test_a_direction_that_is_written_down_keeps_what_was_compacted_where_it_was_decided_so(
    tmp_path: Path, direction: str, is_kept: bool
) -> None:
    service = Service(tmp_path)
    source = service.made()
    assert service.direction_of(source.revision) is Direction.DIRECTED
    service.append(new_node(1000))
    folded = service.made(source.revision)
    assert service.direction_of(folded.revision) is Direction.DIRECTED
    stated = json.loads(service.manifest)
    stated["spec"]["graph"]["source"]["npz"]["direction"] = direction
    service.manifest = json.dumps(stated)
    other = service.made()
    assert service.direction_of(other.revision) is Direction(direction)
    assert (other.graph == folded.graph, other.offset) == ((True, 1) if is_kept else (False, 0))
    service.append(new_node(1001))
    assert service.direction_of(service.made(other.revision).revision) is Direction(direction)
    assert service.made().offset == 2


@pytest.mark.usefixtures("keep_signals")
def test_networks_are_trained_anew_where_that_is_asked_for(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    service.append(new_node(1000, b"[7]"))
    trained = service.made(source.revision, retrain=True)
    manifests = {manifest.revision: manifest for manifest in service.repository.revisions()}
    assert trained.offset == 1
    assert manifests[trained.revision].model != manifests[source.revision].model
    assert manifests[trained.revision].training is not None


@pytest.mark.usefixtures("keep_signals")
def test_a_damaged_version_is_set_aside_and_the_one_before_goes_on(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    service.append(new_node(1000))
    first = service.made(source.revision)
    service.append(new_node(1001))
    second = service.made(first.revision)
    (table,) = (service.repository.folder / "revisions" / second.revision).glob("tables/features-float32.npy")
    table.chmod(0o644)
    table.write_bytes(table.read_bytes()[:-2])
    assert service.made() == first
    assert service.serve(first.revision) == 2, "nothing is lost: the log has what the damaged version had"


@pytest.mark.usefixtures("keep_signals")
def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    service = Service(tmp_path)
    assert "holds no published revision" in service.job("0123456789ab", exit_code=PodExit.REPOSITORY)
    source = service.made()
    # Another service's.
    another = Service(tmp_path, "00000000-0000-4000-8000-000000000002")
    another.path = service.path
    service.append(new_node(1000))
    assert "not to this one" in another.job(source.revision, exit_code=PodExit.BAD_INPUT)
    folded = service.made(source.revision)
    with pytest.raises(RepositoryError, match="this service has another one"):
        Service(tmp_path, another.uid).serve(folded.revision)
    service.path.unlink()
    for beside in service.path.parent.iterdir():
        beside.unlink()
    assert "ends at offset 0" in service.job(folded.revision, exit_code=PodExit.BAD_INPUT)
    # A graph that was damaged where generation alone looks.
    (features,) = (service.repository.folder / "graphs" / folded.graph).glob("features.npy")
    features.chmod(0o644)
    features.write_bytes(features.read_bytes()[:-2])
    assert "features.npy" in service.job(folded.revision, exit_code=PodExit.REPOSITORY)


@pytest.mark.usefixtures("keep_signals")
def test_the_command_line_folds_too(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "tiny")
    service = Service(tmp_path, own_uid(repository.folder / "updates"))
    document = json.loads(service.manifest)
    document["spec"]["updates"] = {"log": {"sqlite": {}}}
    file = tmp_path / "living.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    def run(*arguments: str) -> str:
        place = ("--repository", str(tmp_path / "repository"))
        result = CliRunner().invoke(app, [*arguments, str(file), *place, "--json"])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    source = json.loads(run("generate"))["revision"]
    assert json.loads(run("changes", "compact"))["revision"] == source, "the log is empty"
    service.append(new_node(1000))
    folded = json.loads(run("changes", "compact"))
    assert folded["offset"] == 1 and folded["revision"] != source
    assert json.loads(run("generate"))["revision"] == folded["revision"]
    found = repository.find_served(json.loads(run("generate"))["recipe"], service.uid)
    assert found is not None and found.revision == folded["revision"]
    assert service.serve(folded["revision"]) == 1
    retrained_anew(tmp_path, run, folded["revision"])
    purged = json.loads(run("changes", "purge", "--yes"))
    assert purged == {"uid": service.uid, "batches": 1, "changes": 2, "graphs": 1}
    assert json.loads(run("generate"))["revision"] == source, "the graph is the source's again"
    assert own_uid(repository.folder / "updates") != service.uid
    result = CliRunner().invoke(app, ["changes", "purge", str(file), "--repository", str(tmp_path / "repository")])
    assert result.exit_code == 2 and "there is no such log" in result.stderr
    bare = tmp_path / "bare.yaml"
    del document["spec"]["updates"]
    bare.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = CliRunner().invoke(app, ["changes", "compact", str(bare), "--repository", str(tmp_path / "repository")])
    assert result.exit_code == 2 and "spec.updates: is not set" in result.stderr


def retrained_anew(root: Path, run: Callable[..., str], carried: str) -> None:
    """Training where the log has nothing new: refused with what leads there, and done by that."""
    place = ("--repository", str(root / "repository"))
    published = Repository(root / "repository", "default", "tiny").folder / "revisions" / carried
    result = CliRunner().invoke(app, ["changes", "compact", str(root / "living.yaml"), "--retrain", *place])
    assert result.exit_code == 2
    assert f"--retrain: trained nothing: the log has no change that revision {carried}" in result.stderr
    assert f"delete the folder {published} and run gnnserve generate" in " ".join(result.stderr.split())
    pinned = root / "pinned.yaml"
    pinned.write_text(with_revision((root / "living.yaml").read_text(), carried, "living.yaml"))
    result = CliRunner().invoke(app, ["changes", "compact", str(pinned), "--retrain", *place])
    assert result.exit_code == 2 and f"--retrain: beside spec.revision {carried}" in result.stderr
    before = json.loads((published / "revision.json").read_text())
    shutil.rmtree(published)
    assert json.loads(run("generate"))["revision"] == carried, "named by its recipe and graph, as before"
    after = json.loads((published / "revision.json").read_text())
    assert after["graph"] == before["graph"] and after["createdAt"] > before["createdAt"]
    weights = "variants/x1/weights.safetensors"
    assert after["files"][weights] != before["files"][weights], "trained on the graph with its changes"
