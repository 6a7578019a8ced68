"""Seeds that a batch holds several times."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.sampling.neighbours import LAST_GENERATION


@pytest.mark.parametrize("seeds", [[5, 5], [3, 9, 3, 9, 3], [0, 0, 0], [2**31 - 1, 7, 2**31 - 1]], ids=str)
def test_every_seed_is_found_once_in_the_order_of_first_use(seeds: list[int]) -> None:
    found = find_distinct(np.array(seeds), DistinctScratch())

    assert found is not None
    assert found.seeds.tolist() == list(dict.fromkeys(seeds))
    assert found.seeds[found.places].tolist() == seeds
    assert (found.seeds.dtype, found.places.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("seeds", [[], [4], [4, 2], list(range(1000))], ids=len)
def test_where_none_is_repeated_there_is_nothing_to_gain(seeds: list[int]) -> None:
    assert find_distinct(np.array(seeds, dtype=np.int64), DistinctScratch()) is None


@pytest.mark.parametrize(("repeated", "is_worth_it"), [(15, False), (16, True)])
def test_a_few_among_many_are_not_worth_the_copies(repeated: int, is_worth_it: bool) -> None:
    seeds = np.concatenate([np.arange(1024 - repeated), np.zeros(repeated, np.int64)])

    assert (find_distinct(seeds, DistinctScratch()) is not None) == is_worth_it


def test_equal_seeds_of_different_views_are_distinct() -> None:
    given = np.array([4, 9, 4, 4, 4, 9, 9])
    view = view_of(10, [Part(3, None, None), Part(2, None, seed=1), Part(2, None, seed=2)], given)
    assert view is not None

    found = find_distinct(given, DistinctScratch(), view.sampling)

    assert found is not None and found.views is not None
    assert found.places.tolist() == [0, 1, 0, 2, 2, 3, 3]
    assert list(zip(found.seeds.tolist(), found.views.tolist(), strict=True)) == [(4, 0), (9, 0), (4, 1), (9, 2)]
    distinct = view.of_distinct(found.views)
    assert [distinct.touches(slice(i, i + 1)) for i in range(4)] == [False, False, True, True]
    assert view.touches(slice(3, 4)), "the batch's own view stays as it is"


def test_scratch_is_used_again_by_batches_of_any_size() -> None:
    draw, scratch = np.random.default_rng(0), DistinctScratch()
    for _ in range(300):
        seeds = draw.integers(0, 40, draw.integers(50, 700))
        found = find_distinct(seeds, scratch)
        assert found is not None
        np.testing.assert_array_equal(found.seeds[found.places], seeds)
        assert len(set(found.seeds.tolist())) == len(found.seeds)


def test_generations_begin_anew_before_they_are_used_up() -> None:
    scratch, seeds = DistinctScratch(), np.array([1, 2, 1])
    find_distinct(seeds, scratch)
    scratch.known.generation[0] = LAST_GENERATION
    for _ in range(3):
        found = find_distinct(seeds, scratch)
        assert found is not None
        assert found.places.tolist() == [0, 1, 0]
    assert scratch.known.generation[0] < LAST_GENERATION


def test_seeds_as_they_come_out_of_a_request_are_taken() -> None:
    """They are read-only."""
    found = find_distinct(np.frombuffer(np.array([6, 6], np.int64).tobytes(), np.int64), DistinctScratch())

    assert found is not None
    assert found.seeds.tolist() == [6]
