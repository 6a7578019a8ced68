"""SGC as torch_geometric computes it: propagated tables, stored scores, training, checkpoints, and nothing sampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    npz_arrays,
    planted_graph,
    projected_table_of,
    random_graph,
    random_splits,
    service_of,
    sparse_features,
    table_of,
    write_npz,
)
from tests.support.models.pyg import assert_close, edges_of_graph, module_of, scores_of, to_tensors

from gnnserve_api.families import point_of
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.training_set import NormalizedFeatures, TrainingSet, model_rows
from gnnserve_worker.graph.store import Features
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.network import Activations, Layer, Network
from gnnserve_worker.models.registry import build_network, projection_of, without_first_product
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours
from gnnserve_worker.tables.table import Table

NODES, WIDTH = 70, 9
GRAPH = random_graph(NODES, seed=3, isolated=0.2)  # with self-loops, and neighbours that are listed twice


def _model(hops: int) -> Model:
    return Model.model_validate({"architecture": "SGC", "hops": hops, "fanouts": [0]})


def _data(scope: Scope = Scope.TRANSDUCTIVE) -> TrainingSet:
    return labelled_set(GRAPH, np.zeros(NODES, dtype=np.int64), 2, random_splits(NODES, seed=2), scope)


def _served(model: Model, features: Features) -> Features:
    return model_rows(model, _data(), NormalizedFeatures(features, Normalization.DISABLED)).served


def _infer(network: Network[Layer], table: Table, seeds: list[int], *, share: bool) -> np.ndarray:
    sample = sample_neighbours(GRAPH.indptr, GRAPH.indices, np.array(seeds), (0,), 5, Scratch(), share=share)
    assert len(sample.neighbours) == 0
    scratch, scores = Activations(), np.empty((len(seeds), network.classes), np.float32)
    network.infer(network.gather(table, sample, scratch), sample, scratch, scores)
    return scores


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_scores_equal_pyg_on_the_whole_graph(hops: int, share: bool) -> None:
    features, seeds = dense_features(NODES, WIDTH, seed=4), [3, 69, 3, 0, 41]
    module = module_of("SGC", (0,), WIDTH, hops=hops)
    manifest, tensors = network_manifest("SGC", (0,), hops=hops), to_tensors(module)
    expected = scores_of(module, features, edges_of_graph(GRAPH))[seeds]
    read = _served(_model(hops), features)
    assert isinstance(read, np.ndarray)

    x1 = build_network(manifest, tensors, WIDTH, False, "float32")
    projected = build_network(manifest, without_first_product(tensors), 3, True, "float32")

    assert_close(_infer(x1, table_of(read), seeds, share=share), expected)
    table = projected_table_of(read @ projection_of(tensors).rows)
    assert_close(_infer(projected, table, seeds, share=share), expected)
    int8 = projected_table_of(read @ projection_of(tensors).rows, None, Storage.INT8)
    assert_close(_infer(projected, int8, seeds, share=share), expected, 2e-2)


def test_sparse_features_are_propagated_as_dense_ones_are() -> None:
    sparse = sparse_features(NODES, WIDTH, seed=1)

    found = _served(_model(2), sparse)

    assert not isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.toarray(), _served(_model(2), sparse.toarray()), atol=1e-6)


@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_training_nodes_are_propagated_over_what_training_may_see(make) -> None:  # type: ignore[no-untyped-def]
    features, data = make(NODES, WIDTH, 1), _data(Scope.INDUCTIVE)
    normalized = NormalizedFeatures(features, Normalization.DISABLED)
    visible = replace(data, data=data.data.with_lists(data.visible_graph), visible=data.visible)

    rows = model_rows(_model(2), data, normalized)

    trained, served, seen = (
        each if isinstance(each, np.ndarray) else each.toarray()
        for each in (rows.trained, rows.served, model_rows(_model(2), visible, normalized).served)
    )
    splits = data.splits
    np.testing.assert_array_equal(trained[splits.train], seen[splits.train])
    np.testing.assert_array_equal(trained[splits.test], served[splits.test])
    assert not np.allclose(seen[splits.train], served[splits.train])


def test_a_service_is_trained_pruned_stored_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the clock decides which variants are left.
    monkeypatch.setattr("gnnserve_worker.generation.one_relation.worth_keeping", lambda variants: variants)
    data = planted_graph([1, 5, 8], nodes=300)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(data)).as_uri()
    model = {"architecture": "SGC", "fanouts": [0], "training": {"epochs": 20}}
    variants = {"pruning": {"factors": [1, 2], "method": "Lasso"}, "storage": ["float32", "int8"]}
    repository = Repository(tmp_path / "repository", "default", "tiny")

    manifest = generate(service_of(uri, model=model, variants=variants), repository)

    loaded = load_revision(repository, manifest.revision)
    seeds = data.splits.test
    answers = {name: infer_batch(loaded, name, seeds, key=1) for name in loaded.variants}
    assert {"x1", "x2", "projected"} <= answers.keys()
    assert_close(answers["projected"].scores, answers["x1"].scores, 1e-4)
    assert all(answer.embeddings is None for answer in answers.values())
    assert (answers["x1"].scores.argmax(axis=1) == data.labels[seeds]).mean() > 0.8
    assert set(manifest.ranking.columns[:3]) == {1, 5, 8}
    assert {v.family for v in manifest.variants} == {"propagated", "propagated-projected"}
    assert not any(point_of(variant).capabilities.overlay for variant in manifest.variants)


def test_a_checkpoint_of_a_users_sgconv_is_served(tmp_path: Path) -> None:
    from torch_geometric.nn import SGConv  # it warns where `networks` was not imported before

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.conv1 = SGConv(12, 3, K=3)

    data, net = planted_graph([1, 5, 8], nodes=100), Net()
    assert isinstance(data.features, np.ndarray)
    path = tmp_path / "sgc.safetensors"
    safetensors.torch.save_file(net.state_dict(), path)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(data)).as_uri()
    model = {"architecture": "SGC", "hops": 3, "fanouts": [0], "checkpoint": {"uri": path.as_uri()}}
    repository = Repository(tmp_path / "repository", "default", "tiny")

    loaded = load_revision(
        repository, generate(service_of(uri, model=model, variants={"pruning": {"factors": [1]}}), repository).revision
    )

    with torch.no_grad():
        expected = net.conv1(torch.from_numpy(data.features), edges_of_graph(data.graph)).numpy()
    for variant in loaded.variants:
        assert_close(infer_batch(loaded, variant, np.arange(100), key=1).scores, expected)
