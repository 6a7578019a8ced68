"""The built-in graph is real, repeatable and well-formed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.graphs.graphs import neighbours_of

from gnnserve_api.spec.graph import Builtin, GraphSource
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData


@pytest.fixture(scope="module")
def digits() -> GraphData:
    return load_source(GraphSource(builtin=Builtin.DIGITS), Path("unused"))


def test_it_has_the_1797_digits_and_their_labels(digits: GraphData) -> None:
    assert digits.graph.nodes == 1797
    assert digits.features.shape == (1797, 64)
    assert digits.features.dtype == np.float32
    assert digits.classes == tuple(range(10))
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_every_digit_is_linked_to_ten_others_both_ways(digits: GraphData) -> None:
    graph = digits.graph
    edges = {(node, other) for node in range(graph.nodes) for other in neighbours_of(graph, node)}

    assert np.diff(graph.indptr).min() >= 10
    assert all((other, node) in edges for node, other in edges)
    assert len(edges) == graph.edges
    assert all(node != other for node, other in edges)


def test_neighbours_mostly_share_the_label(digits: GraphData) -> None:
    targets = np.repeat(np.arange(digits.graph.nodes), np.diff(digits.graph.indptr))

    assert np.mean(digits.labels[targets] == digits.labels[digits.graph.indices]) > 0.9


def test_the_splits_are_60_20_20_and_disjoint(digits: GraphData) -> None:
    splits = digits.splits

    assert [len(ids) for ids in (splits.train, splits.validation, splits.test)] == [1078, 359, 360]
    together = np.concatenate([splits.train, splits.validation, splits.test])
    assert np.array_equal(np.sort(together), np.arange(1797))
    assert all((np.diff(ids) > 0).all() for ids in (splits.train, splits.validation, splits.test))


def test_every_load_gives_the_same_graph(digits: GraphData) -> None:
    again = load_source(GraphSource(builtin=Builtin.DIGITS), Path("unused"))

    np.testing.assert_array_equal(again.graph.indices, digits.graph.indices)
    np.testing.assert_array_equal(again.splits.test, digits.splits.test)


def test_the_digest_is_stable_and_safe_as_a_folder_name(digits: GraphData) -> None:
    digest = source_digest(GraphSource(builtin=Builtin.DIGITS))

    assert digits.digest == digest
    assert len(digest) == 16
    assert set(digest) <= set("0123456789abcdef")
