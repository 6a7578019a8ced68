"""Going back to a revision by name: what a Job finds and tells, and what servers answer from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.pods.compacting_pod import NODES, Service, new_node
from tests.support.pods.generating_pod import keep_signals, manifest_of

from gnnserve_api.manifest import parse_manifest
from gnnserve_api.pods.generation import GenerationResult
from gnnserve_api.pods.interface import PodExit
from gnnserve_worker.compaction.answering import find_answering
from gnnserve_worker.opening.revision import load_revision

__all__ = ["keep_signals"]


def naming(service: Service, revision: str) -> str:
    """The manifest with `spec.revision`."""
    parsed = parse_manifest(manifest_of(service.root, epochs=3), "m")
    spec = parsed.spec.model_copy(update={"revision": revision})
    return parsed.model_copy(update={"spec": spec}).model_dump_json(by_alias=True, exclude_none=True)


def went_on(root: Path) -> tuple[Service, GenerationResult, GenerationResult]:
    """A service with two models, the older one first."""
    service = Service(root)
    old = service.made()
    service.manifest = manifest_of(root, epochs=1)
    return service, old, service.made()


@pytest.mark.usefixtures("keep_signals")
def test_a_job_finds_it_and_trains_nothing(tmp_path: Path) -> None:
    service, old, new = went_on(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in service.repository.folder.rglob("*.npy")}
    service.manifest = naming(service, old.revision)
    found = service.made()
    assert (found.revision, found.variants, found.offset) == (old.revision, old.variants, 0)
    assert found.recipe not in {old.recipe, new.recipe}
    assert found.recipe == parse_manifest(service.manifest, "m").spec.recipe(), "what the operator waits for"
    assert {path: path.stat().st_mtime_ns for path in service.repository.folder.rglob("*.npy")} == before


@pytest.mark.usefixtures("keep_signals")
def test_one_that_is_not_there_or_damaged_is_refused_with_what_there_is(tmp_path: Path) -> None:
    service, old, new = went_on(tmp_path)
    service.manifest = naming(service, "0123456789ab")
    said = service.job(exit_code=PodExit.BAD_INPUT)
    assert said.startswith("spec.revision: 0123456789ab is not published; there are, newest first: ")
    assert said.index(new.revision) < said.index(old.revision)
    (weights,) = service.repository.folder.glob(f"revisions/{old.revision}/variants/x1/weights.safetensors")
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-2])
    service.manifest = naming(service, old.revision)
    said = service.job(exit_code=PodExit.BAD_INPUT)
    assert said.startswith(f"spec.revision: {old.revision} cannot be answered from: ")
    assert weights.exists(), "it cannot be made again, and is left as it is"


@pytest.mark.usefixtures("keep_signals")
def test_the_log_is_applied_to_it_and_compacted_into_it(tmp_path: Path) -> None:
    service, old, new = went_on(tmp_path)
    service.append(new_node(1000), new_node(1001))
    service.manifest = naming(service, old.revision)
    assert service.serve(service.made().revision) == 2
    folded = service.made(old.revision, retrain=True)
    assert (folded.offset, folded.recipe) == (2, service.made().recipe)
    manifests = {one.revision: one for one in service.repository.revisions()}
    assert manifests[folded.revision].recipe == old.recipe
    assert (
        manifests[folded.revision].files["variants/x1/weights.safetensors"]
        == (manifests[old.revision].files["variants/x1/weights.safetensors"])
    ), "its model, not trained anew"
    assert service.made() == folded, "over the graph as it is now"
    # Versions that come later take none away that is named.
    for id_ in (1002, 1003, 1004):
        service.append(new_node(id_))
        folded = service.made(folded.revision)
    spec = parse_manifest(service.manifest, "m").spec
    answering = find_answering(spec, service.repository, service.uid)
    assert answering is not None and answering.revision == folded.revision
    assert load_revision(service.repository, folded.revision).graph.nodes == NODES + 5
    assert find_answering(spec, service.repository, None) == manifests[old.revision]
    assert new.revision in manifests


@pytest.mark.usefixtures("keep_signals")
def test_over_a_graph_that_was_compacted_since_its_model_gets_tables_of_that(tmp_path: Path) -> None:
    service, old, new = went_on(tmp_path)
    for ids in ((1000, 1001), (1002, 1003)):
        service.append(*map(new_node, ids))
        new = service.made(new.revision)
    assert service.first_offset() == 3, "what the older model lacks is cut from the log"
    service.manifest = naming(service, old.revision)
    found = service.made()
    assert (found.offset, found.graph) == (4, new.graph)
    assert service.made() == found, "it is published"
    manifests = {one.revision: one for one in service.repository.revisions()}
    name = "variants/x1/weights.safetensors"
    assert manifests[found.revision].files[name] == manifests[old.revision].files[name]
    assert manifests[found.revision].recipe == old.recipe
    assert load_revision(service.repository, found.revision).graph.nodes == NODES + 4
    service.append(new_node(1004))
    assert service.serve(found.revision) == 5
    assert service.made(found.revision).offset == 5


@pytest.mark.usefixtures("keep_signals")
def test_where_its_recipe_was_trained_anew_since_that_is_what_there_is(tmp_path: Path) -> None:
    service, old, _ = went_on(tmp_path)
    service.manifest = manifest_of(tmp_path)
    service.append(new_node(1000, b"[7]"))
    again = service.made(old.revision, retrain=True)
    service.manifest = naming(service, old.revision)
    said = service.job(exit_code=PodExit.BAD_INPUT)
    assert "over the present one its recipe was trained anew; name revision " + again.revision in said


@pytest.mark.usefixtures("keep_signals")
def test_a_model_that_is_kept_has_its_version_kept_where_its_weights_are_nowhere_else(tmp_path: Path) -> None:
    service = Service(tmp_path)
    source = service.made()
    service.append(new_node(1000))
    service.made(source.revision)
    service.manifest = with_history(manifest_of(tmp_path, epochs=1), 2)
    alone = service.made()
    assert alone.offset == 1
    service.manifest = with_history(manifest_of(tmp_path), 2)
    folded = service.made()
    for id_ in (1001, 1002, 1003):
        service.append(new_node(id_))
        folded = service.made(folded.revision)
    graphs = {one.revision: one.graph for one in service.repository.revisions()}
    assert graphs[alone.revision] == alone.graph and folded.offset == 4
    assert len({*graphs.values()}) == 4, "the source's, the two newest, and the one of the other model"


def with_history(manifest: str, most: int) -> str:
    parsed = json.loads(manifest)
    parsed["spec"]["repository"] = {"history": most}
    return json.dumps(parsed)
