"""The protocol in real threads: a smaller `make stress-cache`."""

import pytest
from tests.support.caching.cache_model import Mistake, Stress, run_stress


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2])
def test_readers_find_no_torn_misplaced_or_stale_row_while_it_is_written(seed):
    outcome = run_stress(Stress(hits=2_000_000, copied=5000, seed=seed))
    assert outcome.wrong == 0, outcome
    assert outcome.hits >= 2_000_000
    assert outcome.admitted + outcome.refreshed >= 5000
    assert outcome.rows_changed > 100


@pytest.mark.campaign
@pytest.mark.parametrize("mistake", [mistake for mistake in Mistake if mistake is not Mistake.NONE])
def test_readers_find_each_mistake(mistake):
    # It ends with the first row that is wrong: most often within a second.
    outcome = run_stress(Stress(hits=10**12, copied=10**9, mistake=mistake))
    assert outcome.wrong > 0
