"""The fused path that serves equals torch_geometric's models on the same sampled neighbourhood."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.graphs import (
    Tensors,
    dense_features,
    graph_of,
    network_manifest,
    random_graph,
    random_tensors,
    table_of,
)
from tests.support.pyg import assert_close, edges_of_graph, explicit_tree, last_hidden_of, module_of, scores_of

from gnnserve_worker.generation.networks import to_tensors
from gnnserve_worker.graph.gather import gather_subgraph, gather_tree
from gnnserve_worker.models.build import build_network
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.sampling.tree import sample_tree

NODES, WIDTH = 70, 9
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
FANOUTS = pytest.mark.parametrize(
    "fanouts", [(6,), (100,), (25, 10), (4, 1), (5, 3, 2), (3, 40, 2), (2, 2, 2, 2)], ids=str
)


@ARCHITECTURES
@FANOUTS
@pytest.mark.parametrize("columns", [WIDTH, 4, 1], ids=lambda c: f"{c} columns")
def test_scores_equal_pyg_on_the_same_sampled_neighbourhood(
    architecture: str, fanouts: tuple[int, ...], columns: int
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    module = module_of(architecture, fanouts, columns)
    seeds = np.array([*range(0, NODES, 2), 8, 8])
    tree = sample_tree(graph.indptr, graph.indices, seeds, fanouts, 5)

    network = build_network(network_manifest(architecture, fanouts), to_tensors(module), columns)
    batch = gather_tree(table_of(features), columns, tree, mean=network.aggregation == "mean")
    scores, _ = network.infer(batch)

    ids, edges = explicit_tree(tree)
    expected = scores_of(module, np.ascontiguousarray(features[ids, :columns]), edges)
    assert scores.dtype == np.float32
    assert_close(scores, expected[: len(seeds)])


@ARCHITECTURES
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_full_neighbourhood_scores_equal_pyg_on_the_whole_graph(architecture: str, layers: int) -> None:
    graph, features = random_graph(NODES, seed=3, isolated=0.2), dense_features(NODES, WIDTH, seed=4)
    fanouts = (-1,) * layers
    module = module_of(architecture, fanouts, WIDTH)
    seeds = np.array([3, 69, 3, 0, 41])
    subgraph = SubgraphSampler(graph.indptr, graph.indices).sample(seeds, fanouts, 0)

    network = build_network(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    batch = gather_subgraph(table_of(features), WIDTH, subgraph, mean=network.aggregation == "mean")
    scores, _ = network.infer(batch)

    assert_close(scores, scores_of(module, features, edges_of_graph(graph))[seeds])


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(25, 10), (5, 3, 2), (2, 2, 2, 2)], ids=str)
def test_embeddings_are_pygs_last_hidden_layer(architecture: str, fanouts: tuple[int, ...]) -> None:
    graph, features = random_graph(NODES, seed=5), dense_features(NODES, WIDTH, seed=6)
    module = module_of(architecture, fanouts, WIDTH)
    seeds = np.arange(20)
    tree = sample_tree(graph.indptr, graph.indices, seeds, fanouts, 5)

    network = build_network(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    _, embeddings = network.infer(gather_tree(table_of(features), WIDTH, tree, mean=network.aggregation == "mean"))

    ids, edges = explicit_tree(tree)
    assert embeddings is not None
    assert_close(embeddings, last_hidden_of(module, features[ids], edges)[: len(seeds)])


@ARCHITECTURES
def test_embeddings_of_the_full_neighbourhood_come_one_per_requested_seed(architecture: str) -> None:
    graph, features = random_graph(NODES, seed=5), dense_features(NODES, WIDTH, seed=6)
    fanouts = (-1, -1)
    module = module_of(architecture, fanouts, WIDTH)
    seeds = np.array([9, 2, 9])
    subgraph = SubgraphSampler(graph.indptr, graph.indices).sample(seeds, fanouts, 0)

    network = build_network(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    _, embeddings = network.infer(
        gather_subgraph(table_of(features), WIDTH, subgraph, mean=network.aggregation == "mean")
    )

    assert embeddings is not None
    assert_close(embeddings, last_hidden_of(module, features, edges_of_graph(graph))[seeds])


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(4,), (-1,)], ids=str)
def test_a_one_layer_network_has_no_embeddings(architecture: str, fanouts: tuple[int, ...]) -> None:
    graph, manifest = random_graph(NODES, seed=7), network_manifest(architecture, fanouts)
    network = build_network(manifest, random_tensors(manifest, WIDTH, 0), WIDTH)
    table, seeds = table_of(dense_features(NODES, WIDTH, seed=8)), np.array([1, 2])
    mean = network.aggregation == "mean"

    if fanouts == (-1,):
        batch = gather_subgraph(
            table, WIDTH, SubgraphSampler(graph.indptr, graph.indices).sample(seeds, fanouts, 0), mean=mean
        )
    else:
        batch = gather_tree(table, WIDTH, sample_tree(graph.indptr, graph.indices, seeds, fanouts, 0), mean=mean)

    scores, embeddings = network.infer(batch)

    assert scores.shape == (2, 3)
    assert embeddings is None


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(3,), (3, 2), (3, 2, 2)], ids=str)
def test_isolated_nodes_are_scored_by_their_own_features(architecture: str, fanouts: tuple[int, ...]) -> None:
    graph, features = graph_of([[], [], []]), dense_features(3, WIDTH, seed=9)
    module = module_of(architecture, fanouts, WIDTH)
    tree = sample_tree(graph.indptr, graph.indices, np.array([2, 0]), fanouts, 0)

    network = build_network(network_manifest(architecture, fanouts), to_tensors(module), WIDTH)
    scores, _ = network.infer(gather_tree(table_of(features), WIDTH, tree, mean=network.aggregation == "mean"))

    assert_close(scores, scores_of(module, features, edges_of_graph(graph))[[2, 0]])


@ARCHITECTURES
def test_inference_changes_neither_weights_nor_batch(architecture: str) -> None:
    graph, manifest = random_graph(NODES, seed=1), network_manifest(architecture, (3, 2))
    network = build_network(manifest, random_tensors(manifest, WIDTH, 0), WIDTH)
    tree = sample_tree(graph.indptr, graph.indices, np.arange(10), (3, 2), 0)
    batch = gather_tree(table_of(dense_features(NODES, WIDTH, 0)), WIDTH, tree, mean=network.aggregation == "mean")

    first, first_embeddings = network.infer(batch)
    second, second_embeddings = network.infer(batch)

    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first_embeddings, second_embeddings)


def _without(key: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name != key}


def _with_shape(key: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, key: np.zeros(shape, dtype=np.float32)}


@pytest.mark.parametrize(
    ("architecture", "spoil", "message"),
    [
        pytest.param(
            "GraphSAGE", _without("convs.1.lin_r.weight"),
            r"weights lack 'convs\.1\.lin_r\.weight'; they have convs\.0\.lin_l\.bias, ",
            id="a missing tensor is named, with those that are there",
        ),
        pytest.param(
            "GIN", _without("convs.0.nn.lins.1.bias"), r"weights lack 'convs\.0\.nn\.lins\.1\.bias'",
            id="GIN too names a missing tensor",
        ),
        pytest.param(
            "GraphSAGE", _with_shape("convs.0.lin_l.weight", 8, 5), r"'convs\.0\.lin_l\.weight' have shape \[8, 5\], "
            r"expected \[8, 9\]", id="weights of another variant's width are refused",
        ),
        pytest.param(
            "GraphSAGE", _with_shape("convs.1.lin_l.bias", 1), r"'convs\.1\.lin_l\.bias' have shape \[1\], "
            r"expected \[3\]", id="a bias that numpy would broadcast is refused",
        ),
        pytest.param(
            "GIN", _with_shape("convs.1.nn.lins.1.weight", 3, 8), r"have shape \[3, 8\], expected \[3, 3\]",
            id="GIN's second matrix is square",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(
    architecture: str, spoil: Callable[[Tensors], Tensors], message: str
) -> None:
    manifest = network_manifest(architecture, (5, 3))

    with pytest.raises(ValueError, match=message):
        build_network(manifest, spoil(random_tensors(manifest, WIDTH, 0)), WIDTH)


def test_weights_of_another_architecture_are_refused() -> None:
    tensors = random_tensors(network_manifest("GIN", (5, 3)), WIDTH, 0)

    with pytest.raises(ValueError, match=r"weights lack 'convs\.0\.lin_l\.weight'"):
        build_network(network_manifest("GraphSAGE", (5, 3)), tensors, WIDTH)


def test_weights_of_another_precision_are_read_as_float32() -> None:
    manifest = network_manifest("GraphSAGE", (5,))
    tensors = {name: tensor.astype(np.float64) for name, tensor in random_tensors(manifest, WIDTH, 0).items()}

    network = build_network(manifest, tensors, WIDTH)

    scores = network.layers[0].apply(np.ones((1, WIDTH), np.float32), np.ones((1, WIDTH), np.float32))
    assert scores.dtype == np.float32


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="'GAT' is not a valid Architecture"):
        build_network(network_manifest("GAT", (5,)), {}, WIDTH)
