"""The trained side equals torch_geometric: scores, gradients and checkpoint keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.support.graphs.graphs import (
    dense_features,
    graph_of,
    network_manifest,
    random_graph,
    random_tensors,
    sparse_features,
)
from tests.support.models.pyg import assert_close, edges_of_graph, module_of, scores_of, to_tensors
from torch_geometric.nn import GCN

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.generation.blocks import block_of
from gnnserve_worker.generation.layers import Rows, SparseRows, rows_of
from gnnserve_worker.generation.networks import MODULES, network_of
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models import registry
from gnnserve_worker.models.registry import first_layer, keep_columns_of, with_first_layer, without_first_product
from gnnserve_worker.sampling.subgraph import SubgraphSampler

NODES, WIDTH = 60, 11
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN", "GCN", "GAT"])
MODELS = pytest.mark.parametrize(
    ("architecture", "mlp_hidden"),
    [
        pytest.param("GraphSAGE", None, id="GraphSAGE"),
        pytest.param("GIN", None, id="GIN"),
        pytest.param("GIN", 5, id="GIN, narrow inside"),
        pytest.param("GCN", None, id="GCN"),
        pytest.param("GAT", None, id="GAT"),
    ],
)
KINDS = pytest.mark.parametrize(
    "make", [pytest.param(dense_features, id="dense"), pytest.param(sparse_features, id="sparse")]
)
LAYERS = pytest.mark.parametrize("layers", [1, 2, 3])


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


def _scores(module: torch.nn.Module, features: Features, graph: Graph, seeds: np.ndarray, layers: int) -> torch.Tensor:
    sampler = SubgraphSampler(graph.indptr, graph.indices, weighted=isinstance(module, GCN))
    block = block_of(sampler.sample(seeds, (-1,) * layers, 0), features)
    return network_of(module, dropout=0.5).outputs(block, trains=module.training)


def test_every_architecture_has_its_object_and_its_module() -> None:
    assert set(registry.ARCHITECTURES) == set(Architecture)
    assert all(spec.architecture is name for name, one in registry.ARCHITECTURES.items() for spec in one.specs)
    assert all(one.specs for one in registry.ARCHITECTURES.values())
    # Embeddings are learnt apart (generation/light_gcn.py).
    assert set(MODULES) == set(registry.OF_ONE_TYPE) - {Architecture.LIGHT_GCN}


@MODELS
@KINDS
@LAYERS
def test_scores_equal_pyg_on_the_whole_graph(
    architecture: str, mlp_hidden: int | None, make: Callable[..., Features], layers: int
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), make(NODES, WIDTH, 2)
    module = module_of(architecture, (-1,) * layers, WIDTH, mlp_hidden=mlp_hidden)
    seeds = np.array([5, 59, 5, 0, 17])

    scores = _scores(module, features, graph, seeds, layers).detach().numpy()

    assert_close(scores, scores_of(module, _dense(features), edges_of_graph(graph))[seeds])


@pytest.mark.campaign
@MODELS
@KINDS
@LAYERS
def test_gradients_equal_pygs(
    architecture: str, mlp_hidden: int | None, make: Callable[..., Features], layers: int
) -> None:
    graph, features = random_graph(NODES, seed=3, isolated=0.2), make(NODES, WIDTH, 4)
    module = module_of(architecture, (-1,) * layers, WIDTH, mlp_hidden=mlp_hidden)
    seeds, labels = np.arange(NODES), torch.arange(NODES) % 3
    parameters = dict(module.named_parameters())

    ours = torch.autograd.grad(
        torch.nn.functional.cross_entropy(_scores(module, features, graph, seeds, layers), labels),
        list(parameters.values()),
    )
    theirs = torch.autograd.grad(
        torch.nn.functional.cross_entropy(module(torch.from_numpy(_dense(features)), edges_of_graph(graph)), labels),
        list(parameters.values()),
    )

    for name, one, other in zip(parameters, ours, theirs, strict=True):
        scale = max(float(other.abs().max()), 1e-3)
        assert float((one - other).abs().max()) < 1e-4 * scale, name


@ARCHITECTURES
@KINDS
def test_a_batch_without_a_single_edge_is_scored(architecture: str, make: Callable[..., Features]) -> None:
    graph, features = graph_of([[], [], []]), make(3, WIDTH, 5)
    module = module_of(architecture, (-1, -1), WIDTH)

    scores = _scores(module, features, graph, np.array([2, 0]), 2).detach().numpy()

    assert_close(scores, scores_of(module, _dense(features), edges_of_graph(graph))[[2, 0]])


@ARCHITECTURES
def test_dropout_acts_in_training_only(architecture: str) -> None:
    graph, features = random_graph(NODES, seed=6), dense_features(NODES, WIDTH, 7)
    module, seeds = module_of(architecture, (-1, -1), WIDTH), np.arange(20)

    still = _scores(module, features, graph, seeds, 2)
    module.train()
    dropped = _scores(module, features, graph, seeds, 2)

    assert torch.equal(still, _scores(module.eval(), features, graph, seeds, 2))
    assert not torch.allclose(still, dropped)


def test_dense_rows_are_those_of_the_nodes_in_their_order() -> None:
    features = dense_features(NODES, WIDTH, 0)

    rows = rows_of(features, np.array([7, 0, 7], dtype=np.int32))

    assert isinstance(rows, torch.Tensor)
    np.testing.assert_array_equal(rows.numpy(), features[[7, 0, 7]])


def test_sparse_rows_stay_sparse_beside_their_transpose() -> None:
    features = sparse_features(NODES, WIDTH, 0)

    rows: Rows = rows_of(features, np.array([7, 0, 7], dtype=np.int32))

    assert isinstance(rows, SparseRows)
    assert rows.rows.layout == rows.transposed.layout == torch.sparse_csr
    expected = features.toarray()[[7, 0, 7]]
    np.testing.assert_array_equal(rows.rows.to_dense().numpy(), expected)
    np.testing.assert_array_equal(rows.transposed.to_dense().numpy(), expected.T)


@pytest.mark.parametrize(("density", "is_dense"), [(0.05, False), (0.2, True)])
def test_many_rows_that_propagation_has_filled_become_dense(density: float, is_dense: bool) -> None:
    features, nodes = sparse_features(1024, 1100, 0, density), np.arange(1024, dtype=np.int32)[::-1].copy()

    rows: Rows = rows_of(features, nodes)

    assert isinstance(rows, torch.Tensor) is is_dense
    found = rows if isinstance(rows, torch.Tensor) else rows.rows.to_dense()
    np.testing.assert_array_equal(found.numpy(), features.toarray()[nodes])


def test_sparse_rows_with_unsorted_columns_are_read_rightly() -> None:
    data, indices = np.array([1, 2, 3], dtype=np.float32), np.array([2, 0, 1])
    features = sp.csr_array((data, indices, np.array([0, 2, 3])), shape=(2, 3))

    rows = rows_of(features, np.array([0, 1]))

    assert isinstance(rows, SparseRows)
    assert rows.rows.to_dense().tolist() == [[2, 0, 1], [0, 3, 0]]
    assert rows.transposed.to_dense().tolist() == [[2, 0], [0, 3], [1, 0]]


@ARCHITECTURES
@LAYERS
def test_tensors_load_into_a_fresh_pyg_model(architecture: str, layers: int) -> None:
    fanouts = (-1,) * layers
    trained = module_of(architecture, fanouts, WIDTH)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.25)
    fresh = module_of(architecture, fanouts, WIDTH)

    state = {key: torch.from_numpy(value) for key, value in to_tensors(trained).items()}
    fresh.load_state_dict(state, strict=True)

    for one, other in zip(trained.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)


@ARCHITECTURES
def test_tensors_have_exactly_the_keys_that_serving_reads(architecture: str) -> None:
    manifest = network_manifest(architecture, (5, 3))

    tensors = to_tensors(module_of(architecture, (5, 3), WIDTH))

    expected = random_tensors(manifest, WIDTH, 0)
    assert {key: (t.shape, t.dtype) for key, t in tensors.items()} == {
        key: (t.shape, t.dtype) for key, t in expected.items()
    }


def test_tensors_are_copies_that_further_training_leaves_alone() -> None:
    module = module_of("GraphSAGE", (5, 3), WIDTH)
    before = to_tensors(module)
    kept = {key: value.copy() for key, value in before.items()}

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)

    for key, value in kept.items():
        np.testing.assert_array_equal(before[key], value)


@ARCHITECTURES
def test_reordered_columns_give_the_same_scores(architecture: str) -> None:
    graph, features = random_graph(NODES, seed=8), dense_features(NODES, WIDTH, 9)
    module, seeds = module_of(architecture, (-1, -1), WIDTH), np.arange(NODES)
    order = np.random.default_rng(0).permutation(WIDTH)
    before = _scores(module, features, graph, seeds, 2).detach().numpy()

    reordered = keep_columns_of(to_tensors(module), order)
    module.load_state_dict({key: torch.from_numpy(value) for key, value in reordered.items()}, strict=False)
    after = _scores(module, np.ascontiguousarray(features[:, order]), graph, seeds, 2).detach().numpy()

    assert_close(after, before)


@ARCHITECTURES
def test_first_layer_weights_map_columns_to_hidden_units(architecture: str) -> None:
    module = module_of(architecture, (5, 3), WIDTH, hidden=8)

    tensors = to_tensors(module)

    first = first_layer(tensors)

    assert (first.columns, first.outputs) == (WIDTH, 8)
    if architecture in ("GCN", "GAT"):
        assert first.own is None
        np.testing.assert_array_equal(first.neighbours, tensors["convs.0.lin.weight"].T)
        np.testing.assert_array_equal(first.bias, tensors["convs.0.bias"])
    elif architecture == "GIN":
        assert first.own is None
        assert first.own_share == 1.25
        np.testing.assert_array_equal(first.neighbours, tensors["convs.0.nn.lins.0.weight"].T)
        np.testing.assert_array_equal(first.bias, tensors["convs.0.nn.lins.0.bias"])
    else:
        assert first.own is not None
        np.testing.assert_array_equal(first.neighbours, tensors["convs.0.lin_l.weight"].T)
        np.testing.assert_array_equal(first.own, tensors["convs.0.lin_r.weight"].T)
        np.testing.assert_array_equal(first.bias, tensors["convs.0.lin_l.bias"])


@ARCHITECTURES
def test_a_first_layer_goes_back_where_it_came_from(architecture: str) -> None:
    tensors = to_tensors(module_of(architecture, (5, 3), WIDTH))

    again = with_first_layer(tensors, first_layer(tensors))

    assert again.keys() == tensors.keys()
    for key, tensor in again.items():
        np.testing.assert_array_equal(tensor, tensors[key])
        assert tensor.flags.c_contiguous


@pytest.mark.parametrize(
    ("architecture", "gone"),
    [
        ("GraphSAGE", {"convs.0.lin_l.weight", "convs.0.lin_r.weight"}),
        ("GIN", {"convs.0.nn.lins.0.weight"}),
        ("GCN", {"convs.0.lin.weight"}),
        ("GAT", {"convs.0.lin.weight", "convs.0.att_src", "convs.0.att_dst"}),
    ],
)
def test_a_projected_network_lacks_only_what_met_the_features(architecture: str, gone: set[str]) -> None:
    tensors = to_tensors(module_of(architecture, (5, 3), WIDTH))

    assert without_first_product(tensors).keys() == tensors.keys() - gone
