"""Which factors are written where features are sparse and wide: by sizes and by the manifest's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.families import registry
from gnnserve_worker.generation.families.registry import with_fitting_factors, written_factors
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.store import Features
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository

NODES, COLUMNS = 28_281, 31_241
"""Those of deezer-europe: x1 would take 3.3 GiB, x2 1.6 and x4 0.8."""


def _spec(**variants: Any) -> GNNServiceSpec:
    routing = variants.pop("routing", {})
    return service_of("file:///x.npz", variants=variants, routing=routing).spec


def _words() -> Features:
    return sp.csr_array((NODES, COLUMNS), dtype="float32")


def test_default_factors_whose_tables_are_enormous_are_left_out_and_it_is_said() -> None:
    written = written_factors(_spec(), _words())

    assert (written.kept, written.left_out) == ((4, 8), (1, 2))
    assert written.said() == (
        "x1, x2, whose dense tables would take up to 3.3 GiB for sparse features; projected computes what x1 computes; "
        "set spec.variants.pruning.wideTables to Keep to write them"
    )


def test_default_factors_are_those_that_leave_a_column() -> None:
    assert with_fitting_factors(_spec(), 5).variants.pruning.factors == (1, 2, 4)
    assert with_fitting_factors(_spec(), 8) == _spec()


@pytest.mark.parametrize(
    "variants",
    [
        pytest.param({"pruning": {"wideTables": "Keep"}}, id="asked for"),
        pytest.param({"pruning": {"factors": [1, 2, 4]}}, id="a list of one's own"),
        pytest.param({"projection": "Disabled"}, id="nothing stands in"),
    ],
)
def test_what_a_manifest_asks_for_is_written(variants: dict[str, Any]) -> None:
    assert written_factors(_spec(**variants), _words()).left_out == ()


@pytest.mark.parametrize(
    "routing", [{"mode": "Static", "variant": "x1"}, {"mode": "Weights", "weights": {"x1": 1, "x8": 1}}]
)
def test_a_variant_that_routing_names_is_written(routing: dict[str, Any]) -> None:
    assert written_factors(_spec(routing=routing), _words()).left_out == (2,)


def test_a_variant_whose_channels_are_pruned_over_the_same_table_is_written() -> None:
    channels = [{"factor": 2, "columnFactor": 2}, {"factor": 4, "table": "Projected"}]
    assert written_factors(_spec(channels=channels), _words()).left_out == (1,)


def test_stages_of_cascades_are_written() -> None:
    cascades = [{"first": "x8", "then": "x1"}]
    assert written_factors(_spec(cascades=cascades), _words()).left_out == (2,)


def test_an_api_server_that_fills_the_default_in_changes_nothing() -> None:
    filled = _spec(pruning={"factors": [8, 4, 2, 1], "wideTables": "Auto"})

    assert written_factors(filled, _words()).kept == (4, 8)
    assert filled.recipe() == _spec().recipe()


def test_storages_add_up() -> None:
    assert written_factors(_spec(storage=["float32", "float16"]), _words()).kept == (8,)


def test_dense_and_moderately_wide_features_lose_nothing() -> None:
    few = sp.csr_array((NODES, 4000), dtype="float32")

    assert written_factors(_spec(), few).left_out == ()
    assert written_factors(_spec(), few[:3].toarray()).left_out == ()


@pytest.mark.parametrize(("most_bytes", "kept"), [(400 * 64, ["x4", "x8"]), (0, [])])
def test_a_revision_without_its_widest_variants_is_published_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, kept: list[str]
) -> None:
    monkeypatch.setattr(registry, "_MOST_TABLE_BYTES", most_bytes)
    monkeypatch.setattr(registry, "_MOST_TIMES_SOURCE", 0)
    data = planted_graph((0, 1, 2), nodes=400, columns=64, sparse=True)
    path = write_npz(tmp_path / "graph.npz", npz_arrays(data))
    training = {"epochs": 2, "batchSize": 64}
    service = service_of(path.as_uri(), model={"hidden": 8, "fanouts": [3, 2], "training": training}, variants={})
    repository = Repository(tmp_path / "repository", "default", "tiny")
    reports: list[Progress] = []

    manifest = generate(service, repository, reports.append)

    names = [variant.name for variant in manifest.profile.variants]
    assert [name for name in names if name != "projected"] == kept
    assert list(load_revision(repository, manifest.revision).variants) == names
    assert manifest.recipe == service.spec.recipe()
    assert [report.detail for report in reports if report.stage == "variants left out"] != []
    if not kept:
        assert names == ["projected"]
        assert list(manifest.tables) == ["projected-float32"]
