"""Embeddings that are eigenvectors of the graph, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import graph_of

from gnnserve_worker.generation.light_gcn import Eigenpairs, eigenpairs_by_round, normalised, to_torch


def bipartite(firsts: int, seconds: int, links: int) -> sp.csr_array:
    draw = np.random.default_rng(0)
    rows, columns = draw.integers(0, firsts, links), firsts + draw.integers(0, seconds, links)
    lists = [np.unique(columns[rows == node]).tolist() for node in range(firsts + seconds)]
    return normalised(graph_of(lists))


def converged(matrix: sp.csr_array, count: int) -> Eigenpairs:
    return list(eigenpairs_by_round(to_torch(matrix), count, seed=0))[-1]


@pytest.mark.parametrize("count", [1, 8])
def test_the_largest_eigenvalues_are_found_in_a_graph_of_two_sides(count: int) -> None:
    """Where each eigenvalue has a negative twin, of the same size."""
    matrix = bipartite(60, 90, 900)
    found = converged(matrix, count)
    values, vectors = found.values, found.vectors
    known = np.linalg.eigvalsh(matrix.toarray())[::-1]
    assert values == pytest.approx(known[:count], abs=1e-4)
    assert vectors.T @ vectors == pytest.approx(np.eye(count), abs=1e-4)
    assert values[0] == pytest.approx(1, abs=1e-5)


def test_with_all_columns_rows_multiply_to_the_graph() -> None:
    matrix = bipartite(20, 30, 120)
    found = converged(matrix, 64)
    values, vectors = found.values, found.vectors
    assert found.round == 1
    assert values.shape == (50,) and vectors.shape == (50, 50)
    assert (vectors * values) @ vectors.T == pytest.approx(matrix.toarray(), abs=1e-4)


def test_rows_made_from_links_are_the_stored_ones_where_no_gap_is_behind_the_wanted_eigenvalues() -> None:
    matrix = bipartite(300, 400, 3_000)
    found = converged(matrix, 32)
    rows = found.vectors * np.sqrt(found.values)
    made = matrix @ rows / found.values
    assert found.rows_differ <= 1e-3
    assert np.linalg.norm(made - rows) <= 1.01e-3 * np.linalg.norm(rows)


def test_an_eigenvalue_that_more_vectors_have_than_are_computed_converges() -> None:
    """As many parts without edges between them, each with an eigenvalue of 1."""
    pairs = 200
    matrix = normalised(graph_of([[node ^ 1] for node in range(2 * pairs)]))
    found = converged(matrix, 8)
    assert found.values == pytest.approx(np.ones(8), abs=1e-5)
    assert matrix @ found.vectors == pytest.approx(found.vectors, abs=1e-3)


def test_a_graph_without_edges_has_eigenvalues_of_zero() -> None:
    found = converged(normalised(graph_of([[] for _ in range(100)])), 4)
    assert found.values == pytest.approx(np.zeros(4)) and found.rows_differ == 0
