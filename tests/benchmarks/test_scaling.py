"""The graphs of the scaling benchmark."""

from __future__ import annotations

import numpy as np
from benchmarks.scaling import HUBS, MEAN_DEGREE, random_graph


def test_hubs_have_their_degree_and_are_listed_by_many() -> None:
    hubs = np.arange(HUBS, dtype=np.int64)
    indptr, indices = random_graph(5_000, 2_000, hubs)
    degrees = np.diff(indptr)
    assert (degrees[hubs] == 2_000).all()
    assert degrees[HUBS:].max() <= 2 * MEAN_DEGREE
    assert len(indices) == indptr[-1]
    assert (indices < HUBS).mean() > 5 * HUBS / 5_000


def test_without_hubs_the_mean_degree_is_kept() -> None:
    _, indices = random_graph(20_000, 0, np.zeros(0, dtype=np.int64))
    assert abs(len(indices) / 20_000 - MEAN_DEGREE) < 0.5
    assert (indices >= 0).all() and (indices < 20_000).all()
