"""Intervals of accuracies, against published figures and by what must hold of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_api.intervals import are_told_apart, difference_interval, share_interval


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998 (two-sided intervals for the single proportion), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval(right: int, of: int, low: float, high: float) -> None:
    found = share_interval(right / of, of)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(
    ("one", "other", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),  # Newcombe 1998 (differences), table II, method 10
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombes_interval(one: tuple[int, int], other: tuple[int, int], low: float, high: float) -> None:
    found = difference_interval(one[0] / one[1], one[1], other[0] / other[1], other[1])
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 5000), st.floats(0, 1))
def test_an_interval_holds_what_was_found_and_stays_a_share(count: int, share: float) -> None:
    found = share_interval(share, count)
    assert 0 <= found.low <= share <= found.high <= 1


def test_intervals_of_several_comparisons_are_as_wide_as_all_of_them_need() -> None:
    one, of_ten = difference_interval(0.5, 1000, 0.5, 1000), difference_interval(0.5, 1000, 0.5, 1000, 10)
    # The normal quantiles of 0.05 and of 0.05 / 10, two-sided.
    assert of_ten.high / one.high == pytest.approx(2.807 / 1.960, rel=2e-3)
    assert difference_interval(0.5, 1000, 0.5, 1000, 1) == one


def test_no_nodes_tell_nothing() -> None:
    assert (share_interval(0.0, 0).low, share_interval(0.0, 0).high) == (0, 1)


@pytest.mark.parametrize(
    ("first_only", "second_only", "told"),
    [
        (0, 0, False),
        (1, 0, False),
        (5, 0, False),  # 2 / 2**5 = 0.0625
        (6, 0, True),  # 0.031
        (12, 4, False),  # 0.077
        (13, 4, True),  # 0.049
        (4, 13, True),
        (2_000, 1_900, False),
        (2_000, 1_800, True),
    ],
)
def test_mcnemars_exact_test_counts_nodes_that_differ(first_only: int, second_only: int, told: bool) -> None:
    assert are_told_apart(first_only, second_only) is told
