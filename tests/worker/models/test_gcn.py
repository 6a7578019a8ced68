"""GCN as torch_geometric computes it: weights of the full graph, sampled, projected, stored, trained and ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.support.graphs.graphs import (
    dense_features,
    graph_of,
    network_manifest,
    npz_arrays,
    planted_graph,
    projected_table_of,
    random_graph,
    random_tensors,
    service_of,
    table_of,
    write_npz,
)
from tests.support.models.pyg import assert_close, edges_of_graph, explicit_sample, module_of, scores_of, to_tensors
from tests.support.models.serving_path import SHARE, infer_scores, sample_of
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnserve_api.variants import Storage
from gnnserve_worker.generation.moments import first_layer_moments
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.network import Activations
from gnnserve_worker.models.registry import build_network, first_layer, without_first_product
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.sampling.normalised import inverse_roots, weigh

NODES, WIDTH = 70, 9


def _sample(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], *, share: bool = False) -> NeighbourSample:
    sample = sample_of(graph, seeds, fanouts, share=share)
    return weigh(sample, graph.indptr, inverse_roots(graph.indptr, graph.indices), Scratch())


def _pyg_self_loops(graph: Graph) -> np.ndarray:
    """Weight of every node's self-loop, which is 1 / d, by torch_geometric's own normalisation of the full graph."""
    edges, weights = gcn_norm(edges_of_graph(graph), None, graph.nodes)
    loops = edges[0] == edges[1]
    of_itself = np.zeros(graph.nodes)
    of_itself[edges[0][loops].numpy()] = weights[loops].numpy()
    return of_itself


@torch.no_grad()
def _expected(module: Any, features: np.ndarray, graph: Graph, sample: NeighbourSample) -> np.ndarray:
    """PyG with `normalize=False` over the sample as a graph of its own, with the full graph's weights, rescaled by list
    length over sample size."""
    ids, edges = explicit_sample(sample)
    of_itself = _pyg_self_loops(graph)[ids]
    listed = np.diff(graph.indptr)[ids]
    children, parents = edges.numpy()
    sampled = np.bincount(parents, minlength=len(ids))
    weights = np.sqrt(of_itself[children] * of_itself[parents]) * listed[parents] / sampled[parents]
    weights[ids[children] == ids[parents]] = 0
    loops = torch.arange(len(ids)).repeat(2, 1)
    for conv in module.convs:
        conv.normalize = False
    scores: np.ndarray = module(
        torch.from_numpy(np.ascontiguousarray(features[ids])),
        torch.cat([edges, loops], dim=1),
        torch.from_numpy(np.concatenate([weights, of_itself]).astype(np.float32)),
    ).numpy()
    return scores


def test_roots_are_those_of_pygs_normalisation() -> None:
    graph = graph_of([[0, 0, 1], [1], [], [2, 4, 4, 4], [0, 1, 2, 3]])  # self-loops, repeated neighbours, none at all

    roots = inverse_roots(graph.indptr, graph.indices)

    np.testing.assert_allclose(roots**2, _pyg_self_loops(graph), rtol=1e-6)
    np.testing.assert_allclose(roots**-2, [2, 1, 1, 5, 5], rtol=1e-6)


@pytest.mark.campaign
@SHARE
@pytest.mark.parametrize(
    "fanouts", [(6,), (25, 10), (4, 1), (3, 40, 2), (2, 2, 2, 2), (1,) * 8, (-1,), (-1, -1)], ids=str
)
@pytest.mark.parametrize("columns", [WIDTH, 4])
def test_sampled_scores_equal_pyg_with_the_full_graphs_weights(
    fanouts: tuple[int, ...], share: bool, columns: int
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    module = module_of("GCN", fanouts, columns)
    seeds = [*range(0, NODES, 2), 8, 8]
    sample = _sample(graph, seeds, fanouts, share=share)

    network = build_network(network_manifest("GCN", fanouts), to_tensors(module), columns, False, "float32")
    scores = infer_scores(network, table_of(features), sample)

    seed_rows = np.arange(len(seeds)) if sample.seed_rows is None else sample.seed_rows
    assert_close(scores, _expected(module, features[:, :columns], graph, sample)[seed_rows])


@SHARE
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_full_neighbourhood_scores_equal_pyg_on_the_whole_graph(share: bool, layers: int) -> None:
    graph, features = random_graph(NODES, seed=3, isolated=0.2), dense_features(NODES, WIDTH, seed=4)
    fanouts = (-1,) * layers
    module = module_of("GCN", fanouts, WIDTH)
    seeds = [3, 69, 3, 0, 41]

    network = build_network(network_manifest("GCN", fanouts), to_tensors(module), WIDTH, False, "float32")
    scores = infer_scores(network, table_of(features), _sample(graph, seeds, fanouts, share=share))

    assert_close(scores, scores_of(module, features, edges_of_graph(graph))[seeds])


@pytest.mark.parametrize("fanouts", [(6,), (5, 3), (2, 2, 2), (-1, -1)], ids=str)
@pytest.mark.parametrize(
    ("storage", "tolerance"), [(Storage.FLOAT32, 1e-5), (Storage.FLOAT16, 2e-3), (Storage.INT8, 4e-2)], ids=str
)
def test_a_projected_network_equals_the_one_it_was_made_of(
    fanouts: tuple[int, ...], storage: Storage, tolerance: float
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest("GCN", fanouts, hidden=32)
    tensors = random_tensors(manifest, WIDTH, 0)
    sample = _sample(graph, [*range(NODES), 8], fanouts)
    expected = infer_scores(build_network(manifest, tensors, WIDTH, False, "float32"), table_of(features), sample)

    table = projected_table_of(features @ first_layer(tensors).neighbours, None, storage)
    network = build_network(manifest, without_first_product(tensors), table.columns, True, "float32")

    assert network.layers[0].products == ()
    assert_close(infer_scores(network, table, sample), expected, tolerance)


def test_a_sample_without_weights_is_refused() -> None:
    manifest, graph = network_manifest("GCN", (3,)), random_graph(NODES, seed=1)
    network = build_network(manifest, random_tensors(manifest, WIDTH, 0), WIDTH, False, "float32")
    sample = sample_of(graph, [1], (3,))

    with pytest.raises(ValueError, match="a sample without weights"):
        network.gather(table_of(dense_features(NODES, WIDTH, 0)), sample, Activations())


def test_moments_are_those_of_the_normalised_neighbourhood() -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    nodes = np.arange(0, NODES, 3)
    edges, weights = gcn_norm(edges_of_graph(graph), None, NODES)
    adjacency = sp.csr_array((weights.numpy(), (edges[1].numpy(), edges[0].numpy())), shape=(NODES, NODES))
    expected = (adjacency @ features)[nodes]

    tensors = random_tensors(network_manifest("GCN", (3,)), WIDTH, 0)
    moments = first_layer_moments(first_layer(tensors), features, graph, nodes)

    assert moments.of_own is None
    np.testing.assert_allclose(moments.mean_neighbours, expected.mean(axis=0), atol=1e-5)
    centred = expected - expected.mean(axis=0)
    np.testing.assert_allclose(moments.of_neighbours, centred.T @ centred, atol=1e-3)


def test_a_service_is_trained_pruned_projected_and_answers(tmp_path: Path) -> None:
    data = planted_graph([1, 5, 8], nodes=300)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(data)).as_uri()
    model = {"architecture": "GCN", "hidden": 8, "fanouts": [5, 5], "training": {"epochs": 20, "scope": "Transductive"}}
    variants = {"pruning": {"factors": [1, 2], "method": "Lasso"}, "projection": "Auto"}
    repository = Repository(tmp_path / "repository", "default", "tiny")

    manifest = generate(service_of(uri, model=model, variants=variants), repository)

    loaded = load_revision(repository, manifest.revision)
    seeds = data.splits.test
    answers = {name: infer_batch(loaded, name, seeds, key=1).scores for name in loaded.variants}
    assert {"x1", "projected"} <= answers.keys()
    assert_close(answers["projected"], answers["x1"], 1e-4)
    assert (answers["x1"].argmax(axis=1) == data.labels[seeds]).mean() > 0.7
    assert set(manifest.ranking.columns[:3]) == {1, 5, 8}
