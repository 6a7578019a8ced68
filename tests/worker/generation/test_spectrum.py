"""Embeddings that are eigenvectors of the graph, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import graph_of

from gnnserve_worker.generation.light_gcn import leading_eigenpairs, make_of_neighbours, normalised, to_torch


def nothing(done: int) -> None:
    del done


def bipartite(firsts: int, seconds: int, links: int) -> sp.csr_array:
    draw = np.random.default_rng(0)
    rows, columns = draw.integers(0, firsts, links), firsts + draw.integers(0, seconds, links)
    lists = [np.unique(columns[rows == node]).tolist() for node in range(firsts + seconds)]
    return normalised(graph_of(lists))


@pytest.mark.parametrize("count", [1, 8])
def test_the_largest_eigenvalues_are_found_in_a_graph_of_two_sides(count: int) -> None:
    """Where each eigenvalue has a negative twin, of the same size."""
    matrix = bipartite(60, 90, 900)
    values, vectors = leading_eigenpairs(to_torch(matrix), count, 0, nothing)
    known = np.linalg.eigvalsh(matrix.toarray())[::-1]
    assert values == pytest.approx(known[:count], abs=2e-2)
    assert vectors.T @ vectors == pytest.approx(np.eye(count), abs=1e-4)
    assert values[0] == pytest.approx(1, abs=1e-5)


def test_with_all_columns_rows_multiply_to_the_graph() -> None:
    matrix = bipartite(20, 30, 120)
    values, vectors = leading_eigenpairs(to_torch(matrix), 64, 0, nothing)
    assert values.shape == (50,) and vectors.shape == (50, 50)
    assert (vectors * values) @ vectors.T == pytest.approx(matrix.toarray(), abs=1e-4)


def test_rows_of_one_side_are_made_of_the_other_where_eigenvectors_have_not_converged() -> None:
    matrix, firsts = bipartite(300, 400, 3_000), slice(300)
    values, vectors = leading_eigenpairs(to_torch(matrix), 32, 0, nothing)
    made = matrix @ vectors / values
    assert np.linalg.norm(made - vectors) > 1e-2 * np.linalg.norm(vectors)
    make_of_neighbours(matrix, values, vectors, firsts)
    assert (matrix @ vectors / values)[firsts] == pytest.approx(vectors[firsts], abs=1e-6)
