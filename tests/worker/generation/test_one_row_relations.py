"""One-row variants where nodes have lists by relation, and where links are scored: a row is a node's own, whatever its
type, for nodes that requests bring and nodes that change too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.changes.living import ROOM_BYTES
from tests.support.generation.one_row_links import BOTH, UPDATES, links_service
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.graphs import service_of as service_over
from tests.support.graphs.several_types import shop, write_folder
from tests.support.overlays.typed_overlays import described, read

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import PAIRS_SCHEMA_VERSION, TYPED_SCHEMA_VERSION, RevisionManifest
from gnnserve_api.manifest import Document, parse_document
from gnnserve_api.spec.made_variants import made_variants
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.changes.reading import read_changes

pytestmark = pytest.mark.campaign("classes", "typed_links", "links")

JSON = b"application/json"


@pytest.fixture(autouse=True, scope="module")
def _quick_profile() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        yield


@dataclass
class Living:
    """A revision that changes, as it is served."""

    manifest: RevisionManifest
    living: LivingRevision
    service: GNNService

    @property
    def served(self) -> ServedRevision:
        return served_revision(self.living.loaded, self.living)

    def outputs(self, variant: str, body: dict[str, Any]) -> np.ndarray:
        """What a variant gives of the nodes of a request, in the order of the nodes that are computed."""
        served = self.served
        question = read(served, body)
        seeds = question.nodes.copy()
        if question.overlay is None:
            return served.compute.infer(variant, seeds, 0).scores
        view = view_of(served.graph.first_new, [Part(len(seeds), question.overlay, None)], seeds)
        return served.compute.infer(variant, seeds, 0, view=view).scores

    def change(self, body: dict[str, Any]) -> None:
        self.living.apply(1, [read_changes(json.dumps(body).encode(), JSON, self.served)[1]])


def living(service: GNNService, folder: Path) -> Living:
    repository = Repository(folder / "repository", "default", "tiny")
    manifest = generate(service, repository)
    variants, measured = made_variants(service.spec), {one.name for one in manifest.profile.variants}
    # What is added unasked stays only where it was measured to be faster.
    assert measured | {*variants.optional_names()} == {*service.spec.possible_variants()}
    loaded = load_revision(repository, manifest.revision, ROOM_BYTES)
    return Living(manifest, LivingRevision(loaded, ROOM_BYTES), service)


def rows_of(kind: str) -> np.ndarray:
    features: np.ndarray = shop().nodes[kind]["features"]
    return features


def tried(manifest: RevisionManifest) -> dict[str, Sequence[str]]:
    assert manifest.training is not None
    return {run.name: [*run.tried] for run in manifest.training.runs if run.tried}


# --- classes over several types


@pytest.fixture(scope="module", params=["GraphSAGE", "GAT"])
def classes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Living:
    """Beside given weights, and with cascades."""
    folder = tmp_path_factory.mktemp(request.param)
    cascades = [{"first": "mlp0", "then": "projected", "passOnPercents": [50]}]
    variants = {"oneRow": BOTH, "storage": ["float32", "int8"], "cascades": cascades}
    _, service, _ = described(folder, request.param, variants)
    spec = service.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec["model"]["training"] |= {"epochs": 3, "batches": "Sampled"}
    spec["updates"] = UPDATES
    return living(GNNService.model_validate({**service.model_dump(by_alias=True), "spec": spec}), folder)


def test_they_stand_beside_variants_over_relations(classes: Living) -> None:
    manifest = classes.manifest
    assert tried(manifest) == {"mlp0": ["labels", "scores", "both"], "mlp1": ["labels", "scores", "both"]}
    assert manifest.schema_version == PAIRS_SCHEMA_VERSION
    forms = {name: bool(table.by_relation) for name, table in manifest.tables.items()}
    assert forms["projected"] and not forms["mlp0-float32"]
    assert {"mlp1", "mlp1-int8"}.isdisjoint(classes.service.spec.following_variants())


@pytest.mark.parametrize(("variant", "close"), [("mlp0", 1e-6), ("mlp0-int8", 2e-2)])
def test_a_node_is_answered_by_its_own_features_new_or_changed(classes: Living, variant: str, close: float) -> None:
    row = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
    overlay = {
        "nodes": [{"id": "user/900", "features": rows_of("user")[7].tolist()}],
        "overrides": [{"id": "user/8", "features": row.tolist()}],
        "edges": [["user/900", "buys", {"type": "item", "id": 3}]],
    }
    found = classes.outputs(variant, {"nodes": ["user/900", "user/7", "user/8"], "overlay": overlay})
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=close)
    assert np.abs(found[2] - classes.outputs(variant, {"nodes": ["user/8"]})[0]).max() > 1e-3


def test_a_cascade_over_relations_answers_as_a_stage_does(classes: Living) -> None:
    (cascade,) = classes.manifest.cascades
    body = {"nodes": [f"user/{place}" for place in range(30)]}
    answer, first, then = (classes.outputs(name, body) for name in (cascade.name, cascade.first, cascade.then))
    is_first, is_then = (np.isclose(answer, one, atol=1e-6).all(axis=1) for one in (first, then))
    assert (is_first | is_then).all()
    assert 0 < (~is_first).sum() < 30


def test_changes_are_followed_by_what_reads_a_nodes_own_row(classes: Living) -> None:
    """Last of these: the graph is another one afterwards."""
    row = np.array([1.5, 0.0, -2.0, 0.5], np.float32)
    overlay = {"overrides": [{"id": "user/8", "features": row.tolist()}]}
    (expected,) = classes.outputs("mlp0", {"nodes": ["user/8"], "overlay": overlay})
    classes.change(
        {
            "nodes": [{"id": "user/900", "features": row.tolist()}, {"id": "tag/900"}],
            "overrides": [{"id": "user/8", "features": row.tolist()}],
            "edges": [["user/900", "buys", {"type": "item", "id": 3}]],
            "removedNodes": ["user/3", "item/1"],
        }
    )
    found = classes.outputs("mlp0", {"nodes": ["user/900", "user/8"]})
    np.testing.assert_allclose(found, [expected, expected], rtol=0, atol=1e-6)


# --- links


@pytest.fixture(scope="module", params=["buys", "has"])
def typed_links(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Living:
    """Of `has` one end is a type without features."""
    folder = tmp_path_factory.mktemp(request.param)
    parts = shop()
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        del parts.nodes["user"][name]
    return living(links_service({"typed": write_folder(folder / "shop", parts)}, {"relation": request.param}), folder)


def test_over_types_each_end_has_a_row_of_its_own(typed_links: Living) -> None:
    manifest = typed_links.manifest
    # Rows of propagated features tell which nodes are joined.
    assert tried(manifest) == {"mlp0": ["links", "scores", "both"], "mlp1": ["scores"]}
    assert manifest.schema_version == PAIRS_SCHEMA_VERSION > TYPED_SCHEMA_VERSION
    judged = manifest.profile.variant("mlp0").test_figures
    assert judged is not None and 0 < judged.roc_auc <= 1
    assert manifest.links is not None
    for end in (manifest.links.first, manifest.links.second):
        loaded = typed_links.living.loaded
        rows = infer_batch(loaded, "mlp0", np.arange(end.start, end.start + 3), 0).scores
        assert rows.shape == (3, 8) and np.abs(rows).max(axis=1).min() > 0


def test_over_types_new_ends_are_as_stored_ones(typed_links: Living) -> None:
    task = typed_links.service.spec.task.links
    assert task is not None and task.relation is not None
    item = {"id": "item/900", "features": rows_of("item")[4].tolist()}
    new, pairs = {
        "buys": (
            [item, {"id": "user/900", "features": rows_of("user")[7].tolist()}],
            [["user/900", "item/900"], ["user/7", "item/4"]],
        ),
        "has": ([item, {"id": "tag/900"}], [["item/900", "tag/900"], ["item/4", "tag/0"]]),
    }[task.relation]
    found = typed_links.outputs("mlp0", {"pairs": pairs, "overlay": {"nodes": new}})
    names = [name for pair in pairs for name in pair]
    rows = dict(zip(names, found, strict=True))
    np.testing.assert_allclose(rows["item/900"], rows["item/4"], rtol=0, atol=1e-6)
    if task.relation == "buys":
        np.testing.assert_allclose(rows["user/900"], rows["user/7"], rtol=0, atol=1e-6)
    typed_links.change({"nodes": new})
    again = typed_links.outputs("mlp0", {"pairs": pairs[:1]})
    np.testing.assert_allclose(again, found[:2], rtol=0, atol=1e-6)


@pytest.fixture(scope="module", params=["Dot", "MLP"])
def links(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Living:
    folder = tmp_path_factory.mktemp(request.param)
    uri = write_npz(folder / "graph.npz", npz_arrays(planted_graph([1, 5, 8], nodes=120))).as_uri()
    return living(
        links_service(
            {"npz": {"uri": uri}}, {"decoder": request.param}, pruning={"factors": [1]}, storage=["float32", "int8"]
        ),
        folder,
    )


def test_pairs_are_scored_by_rows_of_nodes_alone(links: Living) -> None:
    manifest = links.manifest
    assert tried(manifest) == {"mlp0": ["links", "scores", "both"], "mlp1": ["scores"]}
    calibrated = {one.name for one in manifest.variants if one.calibration is not None}
    assert {"mlp0", "mlp0-int8", "mlp1"} <= calibrated
    features = planted_graph([1, 5, 8], nodes=120).features
    assert isinstance(features, np.ndarray)
    new = [{"id": 900, "features": features[5].tolist()}]
    for name, close in {"mlp0": 1e-6, "mlp0-int8": 2e-2}.items():
        found = links.outputs(name, {"pairs": [[900, 5]], "overlay": {"nodes": new, "edges": [[900, 7]]}})
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=close)
    links.change({"nodes": new, "overrides": [{"id": 6, "features": features[5].tolist()}]})
    found = links.outputs("mlp0", {"pairs": [[900, 5], [6, 7]]})
    np.testing.assert_allclose(found[[0, 2]], found[[1, 1]], rtol=0, atol=1e-6)


# --- what cannot be


def test_rows_that_are_embeddings_leave_nothing_to_read() -> None:
    spec = {
        "graph": {"source": {"typed": {"npz": {"uri": "file:///shop"}}}},
        "task": {"links": {}},
        "model": {"architecture": "LightGCN", "fanouts": [0]},
        "variants": {"pruning": {"factors": [1]}, "oneRow": [{"hops": 0}]},
    }
    with pytest.raises(InputError, match="embeddings that were learnt of the nodes, one row for each"):
        parse(spec)


def test_stages_over_types_are_variants_that_are_made_there() -> None:
    variants = {"oneRow": [{"hops": 0}], "cascades": [{"first": "mlp0", "then": "x1"}]}
    with pytest.raises(InputError, match="x1 is none of the variants that are made; choose from mlp0, projected"):
        parse({"graph": {"source": {"typed": {"npz": {"uri": "file:///shop"}}}}, "variants": variants})


def parse(spec: dict[str, Any]) -> GNNService:
    whole = service_over("file:///none.npz").model_dump(by_alias=True, exclude_none=True)
    return parse_document(Document("manifest", {**whole, "spec": spec}))
