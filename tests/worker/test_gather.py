"""Gathering fused with aggregation, against the same thing written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs import dense_features, graph_of, random_graph, table_of

from gnnserve_worker.graph.gather import GatheredBatch, aggregate_rows, gather_subgraph, gather_tree
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler
from gnnserve_worker.sampling.tree import SampledTree, sample_tree

NODES, WIDTH = 80, 7
MEAN_AND_SUM = pytest.mark.parametrize("mean", [pytest.param(True, id="mean"), pytest.param(False, id="sum")])
COLUMNS = pytest.mark.parametrize("columns", [1, 3, WIDTH])
FANOUTS = pytest.mark.parametrize("fanouts", [(4,), (5, 3), (3, 2, 4), (2, 2, 2, 2)], ids=str)


@pytest.fixture
def graph() -> Graph:
    return random_graph(NODES, seed=1, isolated=0.2)


@pytest.fixture
def features() -> np.ndarray:
    return dense_features(NODES, WIDTH, seed=2)


def _tree(graph: Graph, fanouts: tuple[int, ...], seeds: np.ndarray | None = None) -> SampledTree:
    return sample_tree(graph.indptr, graph.indices, np.arange(0, NODES, 2) if seeds is None else seeds, fanouts, 3)


def _subgraph(graph: Graph, fanouts: tuple[int, ...]) -> SampledSubgraph:
    return SubgraphSampler(graph.indptr, graph.indices).sample(np.arange(0, NODES, 5), fanouts, 3)


def _combine(rows: np.ndarray, *, mean: bool) -> np.ndarray:
    if len(rows) == 0:
        return np.zeros(rows.shape[1])
    return rows.astype(np.float64).mean(axis=0) if mean else rows.astype(np.float64).sum(axis=0)


def _rows_of_tree(tree: SampledTree) -> list[tuple[int, list[int]]]:
    """Node and sampled neighbours of every used slot above the leaves, level by level."""
    rows = []
    for depth, fanout in enumerate(tree.fanouts):
        for slot, node in enumerate(tree.ids[depth].tolist()):
            if node >= 0:
                used = int(tree.counts[depth][slot])
                rows.append((node, tree.ids[depth + 1][slot * fanout : slot * fanout + used].tolist()))
    return rows


def _rows_of_subgraph(subgraph: SampledSubgraph) -> list[tuple[int, list[int]]]:
    return [
        (
            int(subgraph.nodes[row]),
            subgraph.nodes[subgraph.neighbours[subgraph.indptr[row] : subgraph.indptr[row + 1]]].tolist(),
        )
        for row in range(subgraph.ends[-2])
    ]


def _assert_gathered(
    batch: GatheredBatch, rows: list[tuple[int, list[int]]], features: np.ndarray, columns: int, *, mean: bool
) -> None:
    prefix = features[:, :columns]
    np.testing.assert_array_equal(batch.own, prefix[[node for node, _ in rows]])
    expected = np.array([_combine(prefix[children], mean=mean) for _, children in rows])
    np.testing.assert_allclose(batch.neighbours, expected, rtol=1e-5, atol=1e-6)
    assert batch.own.dtype == batch.neighbours.dtype == np.float32


@FANOUTS
@COLUMNS
@MEAN_AND_SUM
def test_trees_gather_what_numpy_would(
    graph: Graph, features: np.ndarray, fanouts: tuple[int, ...], columns: int, mean: bool
) -> None:
    tree = _tree(graph, fanouts)

    batch = gather_tree(table_of(features), columns, tree, mean=mean)

    _assert_gathered(batch, _rows_of_tree(tree), features, columns, mean=mean)


@pytest.mark.parametrize("fanouts", [(4,), (5, 3), (-1, -1), (2, 2, 2, 2)], ids=str)
@COLUMNS
@MEAN_AND_SUM
def test_subgraphs_gather_what_numpy_would(
    graph: Graph, features: np.ndarray, fanouts: tuple[int, ...], columns: int, mean: bool
) -> None:
    subgraph = _subgraph(graph, fanouts)

    batch = gather_subgraph(table_of(features), columns, subgraph, mean=mean)

    _assert_gathered(batch, _rows_of_subgraph(subgraph), features, columns, mean=mean)


@FANOUTS
def test_bytes_of_a_tree_are_rows_times_columns_times_four(
    graph: Graph, features: np.ndarray, fanouts: tuple[int, ...]
) -> None:
    tree = _tree(graph, fanouts)
    own_and_children = sum(1 + len(children) for _, children in _rows_of_tree(tree))

    assert gather_tree(table_of(features), 3, tree, mean=True).gathered_bytes == own_and_children * 3 * 4


def test_bytes_of_a_subgraph_are_rows_times_columns_times_four(graph: Graph, features: np.ndarray) -> None:
    subgraph = _subgraph(graph, (5, 3))
    own_and_children = sum(1 + len(children) for _, children in _rows_of_subgraph(subgraph))

    assert gather_subgraph(table_of(features), 3, subgraph, mean=True).gathered_bytes == own_and_children * 3 * 4


@FANOUTS
def test_ends_count_the_rows_within_each_hop(graph: Graph, features: np.ndarray, fanouts: tuple[int, ...]) -> None:
    tree = _tree(graph, fanouts)

    batch = gather_tree(table_of(features), 2, tree, mean=True)

    levels = [int((level >= 0).sum()) for level in tree.ids[:-1]]
    assert batch.ends == tuple(np.cumsum(levels).tolist())
    assert len(batch.own) == batch.ends[-1]


@FANOUTS
@MEAN_AND_SUM
def test_upper_layers_of_a_tree_aggregate_over_the_sampled_children(
    graph: Graph, features: np.ndarray, fanouts: tuple[int, ...], mean: bool
) -> None:
    tree = _tree(graph, fanouts)
    batch = gather_tree(table_of(features), 2, tree, mean=mean)
    for rows in batch.ends[:-1]:
        # A hidden state that is a function of the node: then the children's rows can be named by their ids.
        hidden = features[[node for node, _ in _rows_of_tree(tree)]]
        expected = [_combine(features[children], mean=mean) for _, children in _rows_of_tree(tree)[:rows]]

        aggregated = aggregate_rows(hidden, batch, rows, mean=mean)

        np.testing.assert_allclose(aggregated, np.array(expected), rtol=1e-5, atol=1e-6)


@MEAN_AND_SUM
def test_upper_layers_of_a_subgraph_aggregate_over_the_sampled_children(
    graph: Graph, features: np.ndarray, mean: bool
) -> None:
    subgraph = _subgraph(graph, (4, 3, 2))
    batch = gather_subgraph(table_of(features), 2, subgraph, mean=mean)
    hidden = features[subgraph.nodes[: subgraph.ends[-2]]]
    for rows in batch.ends[:-1]:
        expected = [_combine(features[children], mean=mean) for _, children in _rows_of_subgraph(subgraph)[:rows]]

        aggregated = aggregate_rows(hidden, batch, rows, mean=mean)

        np.testing.assert_allclose(aggregated, np.array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fanouts", [(3,), (3, 2, 2)], ids=str)
def test_a_batch_of_isolated_nodes_has_no_neighbours(fanouts: tuple[int, ...]) -> None:
    graph, features = graph_of([[], [], []]), dense_features(3, 2, 0)
    tree = sample_tree(graph.indptr, graph.indices, np.array([2, 0]), fanouts, 1)

    batch = gather_tree(table_of(features), 2, tree, mean=True)

    np.testing.assert_array_equal(batch.own, features[[2, 0]])
    assert batch.neighbours.tolist() == [[0, 0], [0, 0]]
    assert batch.gathered_bytes == 2 * 2 * 4


@MEAN_AND_SUM
def test_one_neighbour_is_copied_to_the_bit(mean: bool) -> None:
    graph, features = graph_of([[1], []]), dense_features(2, 3, 0)
    tree = sample_tree(graph.indptr, graph.indices, np.array([0]), (4,), 1)

    batch = gather_tree(table_of(features), 3, tree, mean=mean)

    np.testing.assert_array_equal(batch.neighbours[0], features[1])
