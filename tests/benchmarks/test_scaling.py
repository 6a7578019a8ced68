"""The graphs and batches of the scaling benchmark, and what it makes of its times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.engine import scaling
from benchmarks.engine.scaling import (
    CACHES_APART,
    FANOUTS,
    HUBS,
    MEAN_DEGREE,
    SHARING_SEEDS,
    Effort,
    array_bytes,
    build_revision,
    crossover,
    draw_apart,
    draw_repeated,
    draw_zipf,
    nodes_of_share,
    random_graph,
    sharing_below,
    time_repeated,
    time_sharing,
)

from gnnserve_worker.inference.batch import infer_batch, plan_chunks
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.sampling.neighbours import distinct_share


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


@pytest.mark.parametrize("share", [0.35, 0.8, 0.99])
def test_graphs_are_as_large_as_the_expected_share_takes(share: float) -> None:
    draws = SHARING_SEEDS * (1 + FANOUTS[0]) // thread_count()
    assert distinct_share(draws, nodes_of_share(share)) == pytest.approx(share, abs=1e-3)


def test_the_engine_shares_as_it_is_told_and_by_its_own_threshold_afterwards() -> None:
    def shares() -> bool:
        return plan_chunks(1024, FANOUTS, 512, 1e6, 2).share

    before = shares()
    with sharing_below(2.0):
        assert shares()
    with sharing_below(0.0):
        assert not shares()
    assert shares() == before


def test_the_crossover_lies_between_the_points_around_it() -> None:
    def points(*ratios: float) -> list[dict[str, float]]:
        return [{"share": 0.8 + 0.1 * i, "with_over_without": ratio} for i, ratio in enumerate(ratios)]

    assert crossover(points(0.7, 0.9, 1.1)) == pytest.approx(0.95)
    assert crossover(points(0.7, 0.8, 0.9)) is None


def test_repeated_seeds_are_as_many_as_asked_for_and_equally_frequent() -> None:
    for batch in draw_repeated(10_000, 8, 3):
        seeds, counts = np.unique(batch, return_counts=True)
        assert len(seeds) == 8
        assert (counts == 128).all()


def test_some_seeds_of_a_zipf_batch_come_often_and_most_once() -> None:
    (batch,) = draw_zipf(100_000, 1)
    _, counts = np.unique(batch, return_counts=True)
    assert batch.min() >= 0 and batch.max() < 100_000
    assert counts.max() > 40
    assert np.median(counts) == 1


@pytest.fixture
def revision(tmp_path: Path) -> LoadedRevision:
    return build_revision(tmp_path, *random_graph(2_000, 0, np.zeros(0, dtype=np.int64)), factors=[1])


def test_a_batch_comes_again_after_several_caches_have_been_read(
    revision: LoadedRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_bytes = 1 << 20
    monkeypatch.setattr(scaling, "last_cache_bytes", lambda: cache_bytes)
    batches = draw_apart(revision, 2_000, 1, Effort(0.0, batches=1))
    read_bytes = sum(infer_batch(revision, "x1", batch, key=i).gathered_bytes for i, batch in enumerate(batches))
    assert read_bytes > 0.8 * CACHES_APART * cache_bytes  # their number is from the mean of a few
    assert len(draw_apart(revision, 2_000, 1, Effort(0.0, batches=5_000))) == 5_000
    assert array_bytes(revision) >= 2_000 * 32 * 4


def test_sharing_and_repeated_seeds_are_timed_both_ways(revision: LoadedRevision) -> None:
    effort = Effort(0.0, 1)
    assert set(time_sharing(revision, effort)) == {"with_ms", "without_ms", "with_over_without"}
    (point,) = time_repeated(revision, {"8": draw_repeated(2_000, 8, 1)}, effort)
    assert point["distinct"] == 8
    assert set(point) == {"seeds", "distinct", "once_ms", "each_ms", "once_over_each"}
