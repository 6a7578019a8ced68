"""Pruning without training: moments are the inputs' covariances, and the refitted layer is the least-squares one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import dense_features, neighbours_of, network_manifest, random_graph, random_tensors

from gnnserve_worker.generation import moments as moments_module
from gnnserve_worker.generation.moments import Moments, first_layer_moments, refit, sample_nodes
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import FirstLayer
from gnnserve_worker.models.registry import first_layer

NODES, WIDTH = 300, 8
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
GRAPH = random_graph(NODES, seed=1)
KEPT = np.array([5, 0, 3])


def _features() -> np.ndarray:
    """Columns that depend on each other, of different means, so that those that are kept tell of the others."""
    draw = np.random.default_rng(2)
    return (dense_features(NODES, 4, 3) @ draw.normal(size=(4, WIDTH)) + draw.normal(size=WIDTH)).astype(np.float32)


def _first(architecture: str) -> FirstLayer:
    tensors = random_tensors(network_manifest(architecture, (-1, -1)), WIDTH, seed=4)
    if architecture == "GIN":
        tensors["convs.0.eps"][:] = 0.25
    return first_layer(tensors)


def _inputs(first: FirstLayer, features: np.ndarray, graph: Graph, nodes: np.ndarray) -> list[np.ndarray]:
    """What the layer reads, node by node, in float64: one matrix for GIN, two for GraphSAGE."""
    wide = features.astype(np.float64)
    sums = np.array([wide[neighbours_of(graph, node)].sum(axis=0) for node in nodes.tolist()])
    if first.own is None:
        return [sums + first.own_share * wide[nodes]]
    degrees = np.diff(graph.indptr)[nodes]
    return [sums / np.maximum(degrees, 1)[:, None], wide[nodes]]


def _output(first: FirstLayer, inputs: list[np.ndarray]) -> np.ndarray:
    weights = [first.neighbours] if first.own is None else [first.neighbours, first.own]
    return sum(x @ w for x, w in zip(inputs, weights, strict=True)) + first.bias


def _moments(first: FirstLayer, features: np.ndarray | sp.csr_array, nodes: np.ndarray) -> Moments:
    return first_layer_moments(first, features, GRAPH, nodes)


@ARCHITECTURES
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("chunk_rows", [7, 2048])
def test_moments_are_the_centred_covariances_of_the_inputs(
    monkeypatch: pytest.MonkeyPatch, architecture: str, sparse: bool, chunk_rows: int
) -> None:
    monkeypatch.setattr(moments_module, "_CHUNK_ROWS", chunk_rows)
    first, features, nodes = _first(architecture), _features(), np.arange(0, NODES, 3)
    inputs = _inputs(first, features, GRAPH, nodes)
    centred = [x - x.mean(axis=0) for x in inputs]

    found = _moments(first, sp.csr_array(features) if sparse else features, nodes)

    scale = float(np.abs(centred[0].T @ centred[0]).max())
    close = {"rtol": 0, "atol": 1e-5 * scale}
    np.testing.assert_allclose(found.of_neighbours, centred[0].T @ centred[0], **close)
    np.testing.assert_allclose(found.mean_neighbours, inputs[0].mean(axis=0), rtol=1e-4, atol=1e-5)
    if architecture == "GIN":
        assert found.of_own is None
        return
    assert found.of_own is not None
    np.testing.assert_allclose(found.of_own, centred[1].T @ centred[1], **close)
    np.testing.assert_allclose(found.of_both, centred[1].T @ centred[0], **close)


@ARCHITECTURES
def test_without_ridge_it_is_the_least_squares_fit_with_intercept(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setattr(moments_module, "RIDGE", 1e-9)
    first, features, nodes = _first(architecture), _features(), np.arange(NODES)
    features += dense_features(NODES, WIDTH, 6) * np.float32(0.3)  # no column follows from the others
    inputs = _inputs(first, features, GRAPH, nodes)
    wanted = _output(first, inputs)

    found = refit(first, _moments(first, features, nodes), KEPT)

    design = np.concatenate([*(x[:, KEPT] for x in inputs), np.ones((NODES, 1))], axis=1)
    best, *_ = np.linalg.lstsq(design, wanted, rcond=None)
    given = _output(found, [x[:, KEPT] for x in inputs])
    np.testing.assert_allclose(given, design @ best, rtol=0, atol=1e-3 * np.abs(wanted).max())


@ARCHITECTURES
def test_it_is_nearer_to_the_master_than_its_columns_alone(architecture: str) -> None:
    first, features, nodes = _first(architecture), _features(), np.arange(NODES)
    inputs = _inputs(first, features, GRAPH, nodes)
    kept = [x[:, KEPT] for x in inputs]

    found = refit(first, _moments(first, features, nodes), KEPT)

    wanted, alone = _output(first, inputs), _output(first.keep(KEPT), kept)
    assert np.square(_output(found, kept) - wanted).sum() < 0.5 * np.square(alone - wanted).sum()


@ARCHITECTURES
def test_with_every_column_it_is_the_master(architecture: str) -> None:
    first, order = _first(architecture), np.random.default_rng(0).permutation(WIDTH)

    found = refit(first, _moments(first, _features(), np.arange(NODES)), order)

    np.testing.assert_array_equal(found.neighbours, first.neighbours[order])
    np.testing.assert_allclose(found.bias, first.bias, rtol=1e-6)


@ARCHITECTURES
@pytest.mark.parametrize("features", [np.zeros((NODES, WIDTH), np.float32), np.ones((NODES, WIDTH), np.float32)])
def test_where_the_graph_tells_nothing_weights_stay_as_they_were(architecture: str, features: np.ndarray) -> None:
    """Even so the bias makes up for what the dropped columns always contributed."""
    first = replace(_first(architecture))
    nodes = np.flatnonzero(np.diff(GRAPH.indptr) == 4)  # of one degree: their inputs are all alike

    found = refit(first, _moments(first, features, nodes), KEPT)

    np.testing.assert_allclose(found.neighbours, first.neighbours[KEPT], rtol=0, atol=1e-6)
    inputs = _inputs(first, features, GRAPH, nodes)
    wanted, given = _output(first, inputs), _output(found, [x[:, KEPT] for x in inputs])
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4)


def test_a_large_graph_is_sampled_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments_module, "MOST_NODES", 10)
    nodes = np.arange(100, 200)
    some = sample_nodes(nodes, seed=0)
    assert len(np.unique(some)) == 10
    assert set(some.tolist()) <= set(nodes.tolist())
    assert some.tolist() == sorted(some.tolist()) == sample_nodes(nodes, seed=0).tolist()
    assert some.tolist() != sample_nodes(nodes, seed=1).tolist()
    assert sample_nodes(nodes[:10], seed=0) is not None
    np.testing.assert_array_equal(sample_nodes(nodes[:10], seed=0), nodes[:10])
