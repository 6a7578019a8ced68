"""Choosing positions: the random numbers and Floyd's algorithm under both samplers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import sampling as reference
from tests.support.statistics import is_uniform

from gnnserve_worker.sampling.kernels import choose_positions, scratch_table, stream

BOTH_PATHS = pytest.mark.parametrize(
    ("degree", "count"),
    [
        pytest.param(2, 1, id="one of two"),
        pytest.param(7, 3, id="a few of a few"),
        pytest.param(33, 32, id="the most that is found by looking back"),
        pytest.param(34, 33, id="the fewest that need the table"),
        pytest.param(1000, 40, id="few of many by the table"),
        pytest.param(1025, 1024, id="all but one at the largest fan-out"),
        pytest.param(3_000_000_000, 5, id="a degree beyond 31 bits"),
        pytest.param(2_000_000_000, 1024, id="the largest fan-out of a huge hub"),
    ],
)


def _choose(degree: int, count: int, state: int) -> tuple[list[int], np.ndarray]:
    out, table = np.empty(count, dtype=np.int64), scratch_table(count)
    choose_positions(degree, count, np.uint64(state), out, table)
    return out.tolist(), table


@BOTH_PATHS
def test_positions_equal_those_of_a_set_based_reference(degree: int, count: int) -> None:
    for key in range(20):
        state = reference.stream(key, 1, key * 7)
        assert _choose(degree, count, state)[0] == reference.choose(degree, count, state)


@BOTH_PATHS
def test_positions_are_distinct_and_in_range(degree: int, count: int) -> None:
    chosen, _ = _choose(degree, count, reference.stream(5, 0, 9))

    assert len(set(chosen)) == count
    assert min(chosen) >= 0
    assert max(chosen) < degree


@BOTH_PATHS
def test_scratch_is_clean_after_every_call(degree: int, count: int) -> None:
    for key in range(20):
        _, table = _choose(degree, count, reference.stream(key, 0, 0))
        assert (table == -1).all()


@pytest.mark.parametrize("count", [33, 34, 63, 64, 65, 500, 511, 512, 513, 1000, 1024])
def test_scratch_is_clean_however_full_it_was(count: int) -> None:
    table, out = scratch_table(count), np.empty(count, dtype=np.int64)
    for state in range(50):
        choose_positions(count + 1, count, np.uint64(reference.mix(state)), out, table)
        assert (table == -1).all()
        assert len(set(out.tolist())) == count


@pytest.mark.parametrize("fanout", [1, 2, 31, 32, 33, 64, 65, 1023, 1024])
def test_scratch_is_a_power_of_two_and_at_most_half_full(fanout: int) -> None:
    size = len(scratch_table(fanout))

    assert size.bit_count() == 1
    assert size >= 2 * fanout


@pytest.mark.parametrize("key", [0, 1, 2**40, 2**62, 2**63 - 1])
@pytest.mark.parametrize(("depth", "slot"), [(0, 0), (3, 1), (1, 2**31)])
def test_streams_equal_the_reference(key: int, depth: int, slot: int) -> None:
    assert int(stream(key, depth, slot)) == reference.stream(key, depth, slot)


def test_every_subset_is_equally_likely_when_looking_back() -> None:
    seen = np.zeros((7, 7, 7))
    for slot in range(14_000):
        chosen, _ = _choose(7, 3, reference.stream(11, 0, slot))
        seen[tuple(sorted(chosen))] += 1

    subsets = seen[seen > 0]
    assert len(subsets) == 35
    assert is_uniform(subsets)


def test_every_subset_is_equally_likely_by_the_table() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for slot in range(24_000):
        chosen, _ = _choose(35, 33, reference.stream(12, 0, slot))
        left_out = tuple(sorted(set(range(35)) - set(chosen)))
        seen[left_out] = seen.get(left_out, 0) + 1

    assert len(seen) == 595
    assert is_uniform(np.array(list(seen.values())))
