"""Folders that `gnnserve export` writes, served again: each kind of variant, in each storage of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from tests.support.changes.listed import SAGE
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.graphs.several_types import shop, write_hetero

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat, ExportManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.export.write import EXPECTED, MANIFEST, README, check_variant, export_variant
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

STORAGES = ["float32", "int8"]
VARIANTS: dict[str, Any] = {
    "pruning": {"factors": [1, 2]},
    "storage": STORAGES,
    "channels": [{"factor": 2}, {"factor": 2, "table": "Projected"}],
}
KEPT = {"stored": [1], "cascades": [{"first": "projected", "then": "x1", "passOnPercents": [50]}]}
"""Stages of cascades are kept, however fast they are."""
LISTED = {
    "before": [{"products": [{"width": 6, "activation": "Relu"}]}],
    "layers": [{"conv": "APPNP", "alpha": 0.1}, SAGE],
    "head": [{}],
    "fanouts": [4, 3],
    "training": {"epochs": 1},
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A graph and a model over it."""

    source: dict[str, Any]
    model: dict[str, Any]
    variants: dict[str, Any]
    families: frozenset[str] = frozenset()
    """Families whose variants are served again."""

    def service(self, model: dict[str, Any], normalization: str, **variants: Any) -> GNNService:
        made = service_of("file:///none.npz", model=model, variants=variants, normalization=normalization)
        document = made.model_dump(by_alias=True, exclude_none=True)
        document["spec"]["graph"]["source"] = self.source
        return GNNService.model_validate(document)

    def generated(self, folder: Path) -> LoadedRevision:
        repository = Repository(folder, "default", "tiny")
        made = generate(self.service(self.model, "Standardize", **self.variants), repository)
        return load_revision(repository, made.revision, build=build_exact)


def plain(folder: Path) -> dict[str, Any]:
    uri = write_npz(folder / "graph.npz", npz_arrays(planted_graph([1, 4, 7], nodes=150))).as_uri()
    return {"npz": {"uri": uri}}


def typed(folder: Path) -> dict[str, Any]:
    parts = shop(users=30)
    del parts.nodes["tag"]
    parts = replace(parts, edges={key: arrays for key, arrays in parts.edges.items() if "tag" not in key})
    return {"typed": {**write_hetero(folder, parts), "target": "user"}}


def architecture(name: str, **fields: Any) -> dict[str, Any]:
    return {"architecture": name, "fanouts": [4, 3], "hidden": 8, "training": {"epochs": 1}, **fields}


ORIGINS = {
    "an architecture": (plain, architecture("GraphSAGE"), VARIANTS | {"stored": [1]}, {"pruned", "channels"}),
    "several types": (typed, architecture("GraphSAGE"), VARIANTS, {"pruned", "projected", "channels-projected"}),
    "listed layers": (plain, LISTED, VARIANTS | KEPT, {"layers", "pruned-layers", "projected-layers"}),
}


@pytest.fixture(scope="module", params=ORIGINS)
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Origin:
    source, model, variants, families = ORIGINS[request.param]
    return Origin(source(tmp_path_factory.mktemp("source")), model, variants, frozenset(families))


@pytest.fixture(scope="module")
def loaded(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> LoadedRevision:
    return origin.generated(tmp_path_factory.mktemp("made"))


@pytest.mark.campaign
def test_each_variant_that_is_exported_is_served_again(origin: Origin, loaded: LoadedRevision, tmp_path: Path) -> None:
    assert loaded.manifest is not None
    served = {}
    for variant in loaded.manifest.variants:
        try:
            check_variant(loaded.manifest, variant.name)
        except InputError:
            continue
        made, folder = exported(loaded, variant.name, tmp_path)
        if made.can_be_served:
            assert made.expected == EXPECTED
            served[variant.name] = (variant.family, loaded.manifest.tables[variant.table].storage)
            assert_it_is_served(origin, loaded, made, folder, tmp_path / f"again-{variant.name}")
    assert {storage for _, storage in served.values()} == {*STORAGES}
    assert {family for family, _ in served.values()} >= origin.families


def exported(loaded: LoadedRevision, name: str, parent: Path) -> tuple[ExportManifest, Path]:
    folder = parent / name
    export_variant(loaded, "default/tiny", name, [ExportFormat.ONNX], folder, "a test")
    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest), folder


def assert_it_is_served(
    origin: Origin, loaded: LoadedRevision, made: ExportManifest, folder: Path, again: Path
) -> None:
    """As its network answers over rows that are as exact as features."""
    program = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    # Programs of graphs scale features themselves.
    normalization = "Disabled" if made.rows is None else "Standardize"
    service = origin.service(program, normalization, storage=["float32"])
    repository = Repository(again, "default", "tiny")
    revision = load_revision(repository, generate(service, repository).revision)
    try:
        exact, nodes = made.variant.removesuffix("-int8"), np.arange(revision.answered_nodes)
        found = infer_batch(revision, "x1", nodes, 0).scores
        expected = infer_batch(loaded.over_whole_lists(exact), exact, nodes, 0).scores
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=made.variant)
    finally:
        for one in revision.programs:
            one.close()


@pytest.mark.parametrize("name", ["an architecture", "listed layers"])
def test_without_exact_rows_an_export_says_that_scores_are_to_be_given(name: str, tmp_path: Path) -> None:
    source, model, _, _ = ORIGINS[name]
    loaded = Origin(source(tmp_path), model, {"storage": ["int8"]}).generated(tmp_path / "repository")
    made, folder = exported(loaded, "x1-int8", tmp_path)
    assert made.expected is UNSET
    assert not (folder / EXPECTED).exists()
    page = (folder / README).read_text(encoding="utf-8")
    assert "expected: {uri: SCORES}" in page
    assert "With `float32` among `variants.storage`" in page
