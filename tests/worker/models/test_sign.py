"""SIGN: a perceptron over features beside their propagated ones, which samples nothing; over features alone, it answers
about nodes that requests bring."""

from __future__ import annotations

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
from tests.support.overlays.overlays import scores_of_new_node

from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.training_set import NormalizedFeatures, fit_normalization, model_rows
from gnnserve_worker.graph.store import Features
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models.network import Activations, Layer, Network
from gnnserve_worker.models.registry import build_network, projection_of, without_first_product
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours
from gnnserve_worker.tables.table import Table

NODES, WIDTH, HIDDEN = 70, 9, 8
GRAPH = random_graph(NODES, seed=3, isolated=0.2)  # with self-loops, and neighbours that are listed twice


def _model(hops: int, layers: int = 2) -> Model:
    return Model.model_validate({"architecture": "SIGN", "hops": hops, "fanouts": [0] * layers, "hidden": HIDDEN})


def _rows(model: Model, features: Features, method: Normalization = Normalization.DISABLED) -> Features:
    data = labelled_set(GRAPH, np.zeros(NODES, np.int64), 2, random_splits(NODES, seed=2), Scope.TRANSDUCTIVE)
    return model_rows(model, data, NormalizedFeatures(features, method)).served


def _infer(network: Network[Layer], table: Table, seeds: list[int], layers: int, *, share: bool) -> np.ndarray:
    fanouts = (0,) * layers
    sample = sample_neighbours(GRAPH.indptr, GRAPH.indices, np.array(seeds), fanouts, 5, Scratch(), share=share)
    assert len(sample.neighbours) == 0
    scratch, scores = Activations(), np.empty((len(seeds), network.classes), np.float32)
    embeddings = np.empty((len(seeds), network.hidden), np.float32)
    network.infer(network.gather(table, sample, scratch), sample, scratch, scores, embeddings)
    assert layers == 1 or (embeddings >= 0).all()
    return scores


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("hops", "layers"), [(0, 2), (1, 1), (2, 2), (3, 4)])
def test_scores_equal_a_perceptron_on_the_whole_graph(hops: int, layers: int, share: bool) -> None:
    features, seeds = dense_features(NODES, WIDTH, seed=4), [3, 69, 3, 0, 41]
    columns = _model(hops).row_columns(WIDTH)
    module = module_of("SIGN", (0,) * layers, columns, hidden=HIDDEN, hops=hops)
    manifest, tensors = network_manifest("SIGN", (0,) * layers, hidden=HIDDEN, hops=hops), to_tensors(module)
    expected = scores_of(module, features, edges_of_graph(GRAPH))[seeds]
    read = _rows(_model(hops), features)
    assert isinstance(read, np.ndarray)
    assert read.shape == (NODES, columns)

    x1 = build_network(manifest, tensors, columns, False, "float32")
    projected = build_network(manifest, without_first_product(tensors), manifest.projected_columns, True, "float32")

    assert_close(_infer(x1, table_of(read), seeds, layers, share=share), expected)
    product = read @ projection_of(tensors).rows
    assert_close(_infer(projected, projected_table_of(product), seeds, layers, share=share), expected)
    int8 = projected_table_of(product, None, Storage.INT8)
    assert_close(_infer(projected, int8, seeds, layers, share=share), expected, 3e-2)


def test_sparse_features_are_propagated_as_dense_ones_are() -> None:
    sparse = sparse_features(NODES, WIDTH, seed=1)

    found = _rows(_model(2), sparse)

    assert not isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.toarray(), _rows(_model(2), sparse.toarray()), atol=1e-6)


def test_propagated_columns_are_standardized_as_the_features_are() -> None:
    features = dense_features(NODES, WIDTH, seed=1)

    found = _rows(_model(2), features, Normalization.STANDARDIZE)

    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found[:, :WIDTH], features)
    of_training = found[random_splits(NODES, seed=2).train, WIDTH:]
    np.testing.assert_allclose(of_training.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(of_training.std(axis=0), 1, atol=1e-4)


@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_propagated_rows_have_the_length_of_those_of_features(make) -> None:  # type: ignore[no-untyped-def]
    features = fit_normalization(make(NODES, WIDTH, 1), Normalization.L2_ROW_NORMALIZE, np.arange(NODES)).features

    found = _rows(_model(2), features, Normalization.L2_ROW_NORMALIZE)

    dense = found if isinstance(found, np.ndarray) else found.toarray()
    lengths = np.linalg.norm(dense.reshape(NODES, 3, WIDTH), axis=2)
    assert ((np.abs(lengths - 1) < 1e-5) | (lengths == 0)).all()
    assert (lengths > 0).mean() > 0.5


def test_training_nodes_are_propagated_and_scaled_by_what_training_may_see() -> None:
    features, splits = dense_features(NODES, WIDTH, 1), random_splits(NODES, seed=2)
    data = labelled_set(GRAPH, np.zeros(NODES, np.int64), 2, splits, Scope.INDUCTIVE)
    hidden = np.setdiff1d(np.arange(NODES), splits.train)
    poisoned = features.copy()
    poisoned[hidden] = 1e6

    trained = model_rows(_model(2), data, NormalizedFeatures(features, Normalization.STANDARDIZE)).trained
    of_poisoned = model_rows(_model(2), data, NormalizedFeatures(poisoned, Normalization.STANDARDIZE)).trained

    np.testing.assert_array_equal(trained[splits.train], of_poisoned[splits.train])


def _service(tmp_path: Path, hops: int, **variants: object) -> GNNService:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(planted_graph([1, 5, 8], nodes=300))).as_uri()
    model = {"architecture": "SIGN", "fanouts": [0, 0], "hops": hops, "hidden": 16, "training": {"epochs": 20}}
    return service_of(uri, model=model, variants={"pruning": {"factors": [1, 2]}, "storage": ["float32"], **variants})


@pytest.fixture
def all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the clock decides which variants are left."""
    monkeypatch.setattr("gnnserve_worker.generation.one_relation.worth_keeping", lambda variants: variants)


@pytest.mark.usefixtures("all_are_kept")
def test_a_service_is_trained_pruned_stored_and_answers(tmp_path: Path) -> None:
    data, repository = planted_graph([1, 5, 8], nodes=300), Repository(tmp_path / "repository", "default", "tiny")

    manifest = generate(_service(tmp_path, 2, storage=["float32", "int8"]), repository)

    loaded = load_revision(repository, manifest.revision)
    seeds = data.splits.test
    answers = {name: infer_batch(loaded, name, seeds, key=1) for name in loaded.variants}
    assert_close(answers["projected"].scores, answers["x1"].scores, 1e-4)
    assert {answer.embeddings.shape for answer in answers.values() if answer.embeddings is not None} == {(60, 16)}
    assert all((answer.scores.argmax(axis=1) == data.labels[seeds]).mean() > 0.8 for answer in answers.values())
    assert sorted(manifest.ranking.columns) == [*range(3 * 12)]
    assert {v.name: v.columns for v in manifest.variants} == {
        "x1": 36, "x1-int8": 36, "x2": 18, "x2-int8": 18, "projected": 16, "projected-int8": 16,
    }  # fmt: skip
    assert {v.family for v in manifest.variants} == {"propagated", "propagated-projected"}
    assert not any(point_of(variant).capabilities.overlay for variant in manifest.variants)


@pytest.mark.usefixtures("all_are_kept")
def test_over_features_alone_it_answers_about_nodes_that_requests_bring(tmp_path: Path) -> None:
    """A new node that looks as a stored one gets its answer, whatever its neighbours are."""
    data, repository = planted_graph([1, 5, 8], nodes=300), Repository(tmp_path / "repository", "default", "tiny")
    assert isinstance(data.features, np.ndarray)

    loaded = load_revision(repository, generate(_service(tmp_path, 0), repository).revision)

    assert {loaded.variants[name].rows is not None for name in ("x1", "x2", "projected")} == {True}
    assert served_revision(loaded).compute.overlays.array_form.are_taken
    for name in loaded.variants:
        known = infer_batch(loaded, name, np.array([7]), key=1).scores
        assert_close(scores_of_new_node(loaded, name, data.features[7], neighbour=3), known, 1e-5)


def test_a_checkpoint_of_a_users_perceptron_is_served(tmp_path: Path) -> None:
    from torch_geometric.nn import MLP  # it warns where `networks` was not imported before

    torch.manual_seed(1)
    data, mlp = planted_graph([1, 5, 8], nodes=100), MLP([24, 16, 3], norm=None).eval()
    assert isinstance(data.features, np.ndarray)
    path = tmp_path / "sign.safetensors"
    safetensors.torch.save_file(mlp.state_dict(), path)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(data)).as_uri()
    model = {"architecture": "SIGN", "hops": 1, "hidden": 16, "fanouts": [0, 0], "checkpoint": {"uri": path.as_uri()}}
    repository = Repository(tmp_path / "repository", "default", "tiny")

    manifest = generate(service_of(uri, model=model, variants={"pruning": {"factors": [1, 2]}}), repository)

    loaded = load_revision(repository, manifest.revision)
    seen = labelled_set(data.graph, data.labels, 3, data.splits, Scope.TRANSDUCTIVE)
    rows = model_rows(_model(1), seen, NormalizedFeatures(data.features, Normalization.DISABLED)).served
    with torch.no_grad():
        expected = mlp(torch.from_numpy(rows)).numpy()
    assert_close(infer_batch(loaded, "x1", np.arange(100), key=1).scores, expected)


def test_a_row_has_a_block_of_columns_for_each_hop() -> None:
    assert _model(2).row_columns(10) == 30
    assert _model(0).row_columns(10) == 10
    assert not _model(0).propagates


def test_a_checkpoint_that_is_no_perceptron_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "sign.safetensors"
    safetensors.torch.save_file({"head.weight": torch.zeros(3, 24), "head.bias": torch.zeros(3)}, path)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(planted_graph([1, 5, 8], nodes=100))).as_uri()
    model = {"architecture": "SIGN", "hops": 1, "fanouts": [0], "checkpoint": {"uri": path.as_uri()}}

    with pytest.raises(InputError, match=r"looks like a perceptron .*\(head\).*; rename head\.\* to lins\.0\.\*"):
        generate(service_of(uri, model=model), Repository(tmp_path / "repository", "default", "tiny"))
