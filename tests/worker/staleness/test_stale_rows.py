"""Marks of stale rows, and which of them are refreshed first."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_worker.staleness.choice import choose, within
from gnnserve_worker.staleness.stale_rows import StaleRows

ROWS = 200


def marked(rows: StaleRows, amounts: dict[int, float]) -> None:
    rows.mark(np.array([*amounts], np.int64), np.array([*amounts.values()], np.float32))


def test_marks_are_those_of_a_plain_model_whatever_happens() -> None:
    draw, rows, plain = np.random.default_rng(1), StaleRows(ROWS), np.zeros(ROWS, np.float32)
    for _ in range(300):
        nodes = draw.choice(ROWS, int(draw.integers(0, 30)), replace=False)
        if draw.random() < 0.6:
            amounts = np.float32(2) ** -draw.integers(0, 30, len(nodes)).astype(np.float32)
            rows.mark(nodes, amounts)
            plain[nodes] = np.minimum(1, plain[nodes] + amounts)
        else:
            rows.clear(nodes)
            plain[nodes] = 0
        np.testing.assert_array_equal(rows.errors, plain)
        assert rows.count == np.count_nonzero(plain)
        assert rows.error == pytest.approx(plain.sum(), rel=1e-5, abs=1e-6)
        found = rows.worst(ROWS)
        assert sorted(found.tolist()) == np.flatnonzero(plain).tolist()
        # To a power of two, and what is smaller than 2^-23 in any order.
        powers = np.maximum(np.frexp(plain[found])[1], -23)
        assert (np.diff(np.minimum(powers, 0)) <= 0).all()


def test_the_worst_are_found_first_and_as_many_as_are_wanted() -> None:
    rows = StaleRows(10)
    marked(rows, {1: 0.1, 2: 0.9, 3: 0.001, 4: 0.3})
    assert rows.worst(2).tolist() == [2, 4]
    rows.clear(np.array([2]))
    assert rows.worst(10).tolist() == [4, 1, 3]


def test_of_rows_that_are_read_the_stale_ones_are_found_once_each() -> None:
    rows, read = StaleRows(10), np.array([4, 9, 12, 4, 2])
    marked(rows, {1: 0.1, 2: 0.9, 4: 0.3})
    for _ in range(2):
        assert rows.among(read, read.astype(np.int32), np.array([1])).tolist() == [4, 2, 1]
    assert rows.among(np.array([3])).tolist() == []


def test_errors_are_1_at_most() -> None:
    rows = StaleRows(4)
    for _ in range(3):
        marked(rows, {1: 0.75})
    assert (rows.errors[1], rows.error) == (1, 1)


def test_nothing_is_cleared_while_marks_are_held() -> None:
    rows = StaleRows(4)
    with rows.held():
        marked(rows, {1: 0.5})
        rows.clear(np.array([1]))
        assert (rows.count, len(rows.worst(4))) == (1, 0)
    assert rows.worst(4).tolist() == [1]
    rows.clear(np.array([1]))
    assert rows.count == 0


@pytest.mark.parametrize(
    ("most", "expected"), [(0, []), (1, [3]), (2, [3, 1]), (3, [3, 1, 4]), (9, [3, 1, 4])], ids=str
)
def test_the_rows_with_the_largest_errors_are_chosen(most: int, expected: list[int]) -> None:
    errors = np.array([0, 0.5, 0, 0.9, 0.1], np.float32)
    assert choose(errors, most).tolist() == expected


@pytest.mark.parametrize(("most", "expected"), [(0, []), (3, [0]), (5, [0, 2, 3]), (100, [0, 1, 2, 3])], ids=str)
def test_what_alone_costs_more_than_the_budget_is_passed_over(most: float, expected: list[int]) -> None:
    assert within(np.array([2.0, 90.0, 2.0, 1.0]), most).tolist() == expected
