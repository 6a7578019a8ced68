"""Scores of a node with many others by a perceptron: as numpy makes them, whatever memory the others' rows lie in."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_worker.models.pair_queries import HiddenSums


@pytest.mark.parametrize(("queries", "rows", "hidden"), [(1, 0, 8), (1, 5, 1), (3, 5000, 20), (40, 100, 64)])
def test_scores_are_those_of_rectified_sums(queries: int, rows: int, hidden: int) -> None:
    draw = np.random.default_rng(0)
    halves, others = (draw.standard_normal((count, hidden)).astype(np.float32) for count in (queries, rows))
    out = draw.standard_normal(hidden).astype(np.float32)
    expected = np.maximum(0, halves[:, np.newaxis].astype(np.float64) + others) @ out + 0.25
    for memory in (others, np.asfortranarray(others)):
        memory.flags.writeable = False
        np.testing.assert_allclose(HiddenSums(halves, out, 0.25).score(memory), expected, atol=1e-4)


def test_what_is_no_number_stays_none() -> None:
    halves, rows = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    halves[0, 1] = rows[1, 2] = np.nan
    found = HiddenSums(halves, np.ones(3, np.float32), 0.0).score(rows)
    assert np.isnan(found).tolist() == [[True, True], [False, True]]
