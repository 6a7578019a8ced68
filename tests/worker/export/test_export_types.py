"""Networks over several types that are exported, and served again as programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.graphs.several_types import TypedParts, shop, write_hetero

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat, ExportManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.export.check import LARGE_BATCHES
from gnnserve_worker.export.write import EXPECTED, MANIFEST, check_variant, export_variant
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

USERS = 30


def parts_without_tags() -> TypedParts:
    parts = shop(users=USERS)
    del parts.nodes["tag"]
    parts.edges = {key: arrays for key, arrays in parts.edges.items() if "tag" not in key}
    return parts


def service_of(folder: Path, parts: TypedParts, model: dict[str, Any], **spec: Any) -> GNNService:
    graph = {"source": {"typed": {**write_hetero(folder, parts), "target": "user"}}, **spec.pop("graph", {})}
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "shop"},
            "spec": {"graph": graph, "model": model, **spec},
        }
    )


def generated(folder: Path, parts: TypedParts, architecture: str, **spec: Any) -> LoadedRevision:
    model = {"architecture": architecture, "fanouts": [4, 3], "hidden": 8, "training": {"epochs": 2}}
    repository = Repository(folder / "repository", "default", "shop")
    service = service_of(folder / "source", parts, model, **spec)
    return load_revision(repository, generate(service, repository).revision, build=build_exact)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("architecture", "normalization", "formats"),
    [
        ("GraphSAGE", "Standardize", [ExportFormat.TORCH, ExportFormat.ONNX]),
        ("GAT", "L2RowNormalize", [ExportFormat.ONNX]),
        ("RGCN", "Disabled", [ExportFormat.ONNX]),
    ],
)
def test_exports_over_types_are_served_again(
    tmp_path: Path, architecture: str, normalization: str, formats: list[ExportFormat]
) -> None:
    parts = parts_without_tags()
    loaded = generated(tmp_path, parts, architecture, graph={"normalization": normalization})
    folder = tmp_path / "made"
    export_variant(loaded, "default/shop", "projected", formats, folder, "a test")
    made = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    assert [each.format for each in made.checks if each.batches == LARGE_BATCHES] == formats
    assert max(each.rows for each in made.checks) > 2000
    assert max(each.largest_difference for each in made.checks) < 1e-5
    assert {each.name for each in made.inputs} == {
        "x_user", "x_item", "edges_user_knows_user", "edges_item_rev_buys_user", "edges_user_buys_item",
    }  # fmt: skip

    wanted = infer_batch(loaded.over_whole_lists("projected"), "projected", np.arange(USERS), 0)
    model = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    again = Repository(tmp_path / "again", "default", "shop")
    revision = generate(service_of(tmp_path / "source", parts, model), again)
    served = load_revision(again, revision.revision)
    found = infer_batch(served, "x1", np.arange(USERS), 0)
    for one in served.programs:
        one.close()
    assert found.embeddings is not None and wanted.embeddings is not None
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=0, atol=1e-5 * np.abs(wanted.scores).max())
    np.testing.assert_allclose(found.embeddings, wanted.embeddings, rtol=0, atol=1e-5 * np.abs(wanted.embeddings).max())


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("channels2-projected", {"channels": [{"factor": 2, "table": "Projected"}]}),
        ("x2", {"pruning": {"factors": [2]}}),
    ],
)
def test_smaller_networks_are_exported_as_they_answer(tmp_path: Path, name: str, variants: dict[str, Any]) -> None:
    loaded = generated(tmp_path, parts_without_tags(), "GraphSAGE", variants=variants)
    folder = tmp_path / "made"
    export_variant(loaded, "default/shop", name, [ExportFormat.ONNX], folder, "a test")
    made = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    assert max(each.rows for each in made.checks) > 2000
    assert max(each.largest_difference for each in made.checks) < 1e-5


def test_what_no_program_over_types_can_have_is_refused(tmp_path: Path) -> None:
    loaded = generated(tmp_path, shop(users=USERS), "GraphSAGE", variants={"stored": [1]})
    assert loaded.manifest is not None
    with pytest.raises(InputError, match=r"stored1 reads layer 1 as it was computed for each node .* export projected"):
        check_variant(loaded.manifest, "stored1")
    with pytest.raises(InputError, match="projected reads nodes of type tag, which have no features: an embedding was"):
        export_variant(loaded, "default/shop", "projected", [ExportFormat.TORCH], tmp_path / "made", "a test")
    assert not (tmp_path / "made").exists()
