"""A search from graph to revision, on a small graph, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.generation.generated import generate_over
from tests.support.generation.learning import labels_of
from tests.support.graphs.graphs import dense_features, network_manifest, random_graph, random_tensors

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation import one_relation
from gnnserve_worker.generation.families.registry import with_searched_factors
from gnnserve_worker.generation.one_relation import RowNetworks
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.generation.search import search
from gnnserve_worker.generation.search.training import Promise
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress, silent
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES = 120, 6
NETWORK = network_manifest("GraphSAGE", (4, 3))


class FakeModels:
    runs = ()
    decoder: Mapping[str, np.ndarray] = {}

    def master(self, name: str) -> Tensors:
        return random_tensors(NETWORK, FEATURES, seed=1)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return random_tensors(NETWORK, len(columns), seed=2)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        raise AssertionError(name)

    def another_master(self, seed: int, name: str) -> Tensors:
        raise AssertionError(name)


def searched(
    folder: Path, features: np.ndarray | None = None, said: list[Progress] | None = None, **stated: Any
) -> RevisionManifest:
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}, "normalization": "Disabled"},
            "model": {"fanouts": [4, 3], "hidden": 8},
            "variants": {"search": "Auto", **stated},
        }
    )
    draw = np.random.default_rng(5)
    data = GraphData.of_one_type(
        source="made up", digest="5eed", graph=random_graph(NODES, 0),
        features=dense_features(NODES, FEATURES, 0) if features is None else features,
        labels=draw.integers(0, 3, NODES), classes=(0, 1, 2),
        splits=Splits(*(np.arange(start, NODES, 3) for start in range(3))), edge_rules=EdgeRules(Direction.DIRECTED),
    )  # fmt: skip
    listener = silent if said is None else said.append
    return generate_over(
        with_searched_factors(spec, FEATURES), data, labels_of(data), Repository(folder, "tests", "searched"),
        lambda data, features: FakeModels(), progress=listener,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, "0.02")


def test_a_search_publishes_what_it_kept_and_says_why(tmp_path: Path) -> None:
    manifest = searched(tmp_path, budget={"variants": 3, "seconds": 1})
    record = manifest.profile.search
    assert record is not None
    kept = [verdict.name for verdict in record.variants if verdict.is_kept]
    assert [variant.name for variant in manifest.variants] == kept
    assert 1 <= len(kept) <= 3
    names = {verdict.name for verdict in record.variants}
    assert {"x1", "projected", "projected-int8-f2x1", "stored1-f2", "stored2-bfloat16"} <= names
    revision = load_revision(Repository(tmp_path, "tests", "searched"), manifest.revision)
    for name in kept:
        assert infer_batch(revision, name, np.arange(10), 0).scores.shape == (10, 3)


def test_nothing_that_only_dropped_variants_read_stays_on_the_disk(tmp_path: Path) -> None:
    manifest = searched(tmp_path, budget={"variants": 1})
    read = {table for variant in manifest.variants for table in variant.tables}
    assert set(manifest.tables) == read


def test_a_storage_that_cannot_hold_the_numbers_is_left_out_of_the_search(tmp_path: Path) -> None:
    features = dense_features(NODES, FEATURES, 0)
    features[0, 0] = 1e9
    record = searched(tmp_path, features).profile.search
    assert record is not None
    names = {verdict.name for verdict in record.variants}
    assert "projected-float16" not in names
    assert {"projected", "projected-bfloat16"} <= names


def test_promising_networks_are_trained_and_judged_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("x4", 0.2), Promise("x2", 0.1)))
    manifest = searched(tmp_path, budget={"variants": 16})
    assert manifest.profile.search is not None
    names = {verdict.name for verdict in manifest.profile.search.variants}
    assert {"x1", "x2", "x2-int8", "x4", "x4-float16", "stored1"} <= names
    revision = load_revision(Repository(tmp_path, "tests", "searched"), manifest.revision)
    for name in (variant.name for variant in manifest.variants):
        assert infer_batch(revision, name, np.arange(10), 0).scores.shape == (10, 3)


def test_no_network_is_trained_that_the_budget_does_not_suffice_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("x4", 0.2),))
    monkeypatch.setattr(one_relation, "RowNetworks", lambda *parts: RowNetworks(*parts[:-1], network_s=61))
    said: list[Progress] = []
    record = searched(tmp_path, said=said, budget={"seconds": 60}).profile.search
    assert record is not None
    assert "x4" not in {verdict.name for verdict in record.variants}
    assert ("train x4", "left out: budget.seconds would not suffice") in {(one.stage, one.detail) for one in said}
