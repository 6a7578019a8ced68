"""Embeddings beside an index: which nodes are next, what is found among them, what there is room for."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.models.pair_queries import Products
from gnnserve_worker.nearest.recent import RecentVectors, merged
from gnnserve_worker.nearest.search import ExactIndex, unit

INDEXED, POSITIONS, COLUMNS = 6, 12, 4
NOBODY = np.zeros(POSITIONS, bool)
NOTHING = np.zeros(0, np.int64)


def rows(*nodes: int) -> np.ndarray:
    """Embeddings that point in directions of their own."""
    return np.random.default_rng(3).normal(size=(POSITIONS, COLUMNS)).astype(np.float32)[list(nodes)] * 5


def recent(most_nodes: int = 100) -> RecentVectors:
    return RecentVectors(INDEXED, POSITIONS, COLUMNS, most_nodes * 4 * COLUMNS)


def touched(of: RecentVectors, *nodes: int) -> None:
    of.touch(np.array(nodes, np.int64))


def computed(of: RecentVectors, count: int = 100) -> list[int]:
    taken = of.take(count, NOBODY)
    of.put(taken, rows(*taken.tolist()))
    return taken.tolist()


def test_new_nodes_are_first_and_each_node_is_computed_once() -> None:
    kept = recent()
    touched(kept, 3, 3, 1)
    touched(kept, 7, 1)
    assert kept.pending == 3
    assert computed(kept, 2) == [7, 1]
    assert (kept.pending, kept.count) == (1, 2)
    assert computed(kept) == [3]
    assert computed(kept) == []


def test_a_node_that_is_touched_while_it_is_computed_is_computed_again() -> None:
    kept = recent()
    touched(kept, 3)
    taken = kept.take(1, NOBODY)
    touched(kept, 3)
    kept.put(taken, rows(2))
    assert (kept.pending, kept.count) == (1, 1)
    assert computed(kept) == [3]
    assert (kept.pending, kept.count) == (0, 1)


def test_what_is_found_beside_an_index_is_what_one_index_of_all_would_find() -> None:
    before, after = rows(*range(POSITIONS)), rows(*range(POSITIONS))
    after[2], after[8] = rows(5)[0] + 0.1, rows(5)[0] - 0.2
    kept = recent()
    touched(kept, 2, 7, 8)
    taken = kept.take(100, NOBODY)
    kept.put(taken, after[taken])
    there = np.array([0, 1, 2, 3, 4, 5, 7, 8])
    allowed = np.isin(np.arange(POSITIONS), there)
    excluded = np.array([4, 7])
    query = Products(unit(rows(5)))

    of_index = ExactIndex(unit(before[:INDEXED])).search(
        query, 4, excluded[excluded < INDEXED], kept.left_to_index[:INDEXED]
    )
    found = merged(of_index, kept.search(query, 4, excluded, allowed), 4)

    whole = ExactIndex(unit(after)).search(query, 4, excluded, allowed)
    assert found.positions.tolist() == whole.positions.tolist()
    assert np.allclose(found.products, whole.products)


def test_nodes_that_left_are_forgotten() -> None:
    kept = recent()
    touched(kept, 1, 7, 8)
    computed(kept)
    touched(kept, 7, 2)
    gone = NOBODY.copy()
    gone[[7, 2]] = True
    assert kept.take(100, gone).tolist() == []
    assert (kept.pending, kept.count) == (0, 2)
    found = kept.search(Products(unit(rows(8))), 5, NOTHING, None)
    assert found.positions.tolist()[0] == 8
    assert sorted(found.positions.tolist()) == [1, 8]
    gone[8] = True  # before it is touched
    assert kept.search(Products(unit(rows(8))), 5, NOTHING, None, gone).positions.tolist() == [1]


def test_nodes_of_the_index_leave_room_for_new_ones_and_what_finds_none_stays_pending() -> None:
    kept = recent(most_nodes=4)
    touched(kept, 0, 1, 2)
    assert computed(kept) == [0, 1]
    touched(kept, 6, 7, 8)
    assert computed(kept) == [6, 7]
    assert (kept.pending, kept.count) == (2, 4)
    assert kept.left_to_index[:3].tolist() == [False, False, True]
    touched(kept, 1)  # it has its place
    assert computed(kept) == [1]


def test_what_cannot_be_computed_waits_for_the_next_change() -> None:
    kept = recent()
    touched(kept, 3)
    kept.give_up(kept.take(1, NOBODY))
    assert (kept.pending, computed(kept)) == (1, [])
    touched(kept, 3)
    assert computed(kept) == [3]
    assert kept.pending == 0
