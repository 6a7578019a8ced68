"""Choosing positions: the random numbers, the first distinct draws, and Floyd's algorithm under both samplers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.sampling import sampling as reference
from tests.support.statistics import is_uniform

from gnnserve_worker.kernels.primitives import choose_positions, scratch_bitmap, scratch_table, stream

ALL_PATHS = pytest.mark.parametrize(
    ("degree", "count"),
    [
        pytest.param(2, 1, id="one of two"),
        pytest.param(6, 3, id="half of them, the fewest left over for distinct draws"),
        pytest.param(7, 4, id="looking back"),
        pytest.param(33, 32, id="the most that is found by looking back"),
        pytest.param(34, 33, id="the fewest that need the table"),
        pytest.param(127, 64, id="64 by the table"),
        pytest.param(128, 64, id="the most that are distinct draws"),
        pytest.param(1000, 65, id="few of many by the table"),
        pytest.param(1000, 40, id="few of many"),
        pytest.param(1025, 1024, id="all but one at the largest fan-out"),
        pytest.param(3_000_000_000, 5, id="a degree beyond 31 bits"),
        pytest.param(2_000_000_000, 1024, id="the largest fan-out of a huge hub"),
    ],
)


def _choose(degree: int, count: int, state: int, first: int = 0) -> tuple[list[int], np.ndarray]:
    out, table = np.full(first + count + 3, -7, dtype=np.int64), scratch_table(count)
    choose_positions(degree, count, np.uint64(state), out, first, scratch_bitmap(), table)
    assert (out[:first] == -7).all()
    assert (out[first + count :] == -7).all()
    return out[first : first + count].tolist(), table


@ALL_PATHS
@pytest.mark.parametrize("first", [0, 5])
def test_positions_equal_those_of_a_set_based_reference(degree: int, count: int, first: int) -> None:
    for key in range(20):
        state = reference.stream(key, 1, key * 7)
        assert _choose(degree, count, state, first)[0] == reference.choose(degree, count, state)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(data=st.data(), degree=st.integers(2, 300), state=st.integers(0, 2**64 - 1))
def test_positions_are_distinct_and_in_range(data: st.DataObject, degree: int, state: int) -> None:
    count = data.draw(st.integers(1, degree - 1))
    chosen, table = _choose(degree, count, state)

    assert len(set(chosen)) == count
    assert min(chosen) >= 0
    assert max(chosen) < degree
    assert (table == -1).all()
    assert chosen == reference.choose(degree, count, state)


@ALL_PATHS
def test_scratch_is_clean_after_every_call(degree: int, count: int) -> None:
    for key in range(20):
        _, table = _choose(degree, count, reference.stream(key, 0, 0))
        assert (table == -1).all()


@pytest.mark.parametrize("count", [33, 34, 63, 64, 65, 500, 511, 512, 513, 1000, 1024])
def test_scratch_is_clean_however_full_it_was(count: int) -> None:
    table, out, bitmap = scratch_table(count), np.empty(count, dtype=np.int64), scratch_bitmap()
    for state in range(50):
        choose_positions(count + 1, count, np.uint64(reference.mix(state)), out, 0, bitmap, table)
        assert (table == -1).all()
        assert len(set(out.tolist())) == count


def test_what_an_earlier_call_left_in_the_bitmap_changes_nothing() -> None:
    bitmap, table, out = np.full_like(scratch_bitmap(), 2**64 - 1), scratch_table(8), np.empty(8, dtype=np.int64)
    for state in range(50):
        choose_positions(100, 8, np.uint64(state), out, 0, bitmap, table)
        assert out.tolist() == reference.choose(100, 8, state)


@pytest.mark.parametrize("fanout", [1, 2, 31, 32, 33, 64, 65, 1023, 1024])
def test_scratch_is_a_power_of_two_and_at_most_half_full(fanout: int) -> None:
    size = len(scratch_table(fanout))

    assert size.bit_count() == 1
    assert size >= 2 * fanout


@pytest.mark.parametrize("key", [0, 1, 2**40, 2**62, 2**63 - 1])
@pytest.mark.parametrize(("depth", "node"), [(0, 0), (3, 1), (1, 2**31 - 1)])
def test_streams_equal_the_reference(key: int, depth: int, node: int) -> None:
    assert int(stream(key, depth, node)) == reference.stream(key, depth, node)


@pytest.mark.parametrize(
    ("degree", "count", "subsets"),
    [pytest.param(7, 3, 35, id="distinct draws"), pytest.param(7, 4, 35, id="looking back")],
)
def test_every_subset_is_equally_likely(degree: int, count: int, subsets: int) -> None:
    seen: dict[tuple[int, ...], int] = {}
    for node in range(14_000):
        chosen = tuple(sorted(_choose(degree, count, reference.stream(11, 0, node))[0]))
        seen[chosen] = seen.get(chosen, 0) + 1

    assert len(seen) == subsets
    assert is_uniform(np.array(list(seen.values())))


def test_every_subset_is_equally_likely_by_the_table() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for node in range(24_000):
        chosen, _ = _choose(35, 33, reference.stream(12, 0, node))
        left_out = tuple(sorted(set(range(35)) - set(chosen)))
        seen[left_out] = seen.get(left_out, 0) + 1

    assert len(seen) == 595
    assert is_uniform(np.array(list(seen.values())))


def test_every_order_of_distinct_draws_is_equally_likely() -> None:
    """Then also every position in the list, and prefixes of a draw are draws."""
    seen = np.zeros((6, 6))
    for node in range(6000):
        chosen, _ = _choose(6, 2, reference.stream(13, 0, node))
        seen[chosen[0], chosen[1]] += 1

    assert (np.diag(seen) == 0).all()
    assert is_uniform(seen[~np.eye(6, dtype=bool)])
