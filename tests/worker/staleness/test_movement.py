"""Estimates of how far rows move, beside sums over whole matrices."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from gnnserve_worker.graph.living_lists import LivingLists, living_lists, reversed_lists
from gnnserve_worker.graph.relation_lists import places_of_one_type
from gnnserve_worker.staleness.movement import Moved, Movement
from gnnserve_worker.staleness.stale_rows import StaleRows

NODES = 60


def lists_of(indptr: np.ndarray, indices: np.ndarray) -> LivingLists:
    nodes = len(indptr) - 1
    return living_lists(indptr, indices, np.zeros((nodes, 2), np.int64), np.zeros(nodes, np.int32))


class Scene:
    """A directed graph in which every node reads some, and the hub is read by all."""

    def __init__(self, nodes: int = NODES, hub: int = 0) -> None:
        draw = np.random.default_rng(5)
        rows = [sorted({hub, *draw.integers(0, nodes, 4).tolist()}) for _ in range(nodes)]
        indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
        indices = np.concatenate(rows).astype(np.int32)
        self.nodes = nodes
        self.lists = lists_of(indptr, indices)
        self.readers = lists_of(*reversed_lists(indptr, indices, nodes))
        self.rows = rows
        self.entries = np.array([[3, 7], [3, 9], [8, 1]])
        self.own = np.zeros(nodes)
        np.add.at(self.own, self.entries[:, 0], [1 / len(rows[reader]) for reader in self.entries[:, 0]])

    @property
    def matrix(self) -> np.ndarray:
        """What each node reads of each other one."""
        matrix = np.zeros((self.nodes, self.nodes))
        for reader, row in enumerate(self.rows):
            matrix[reader, row] = 1 / len(row)
        return matrix

    def movement(self, roots: np.ndarray | None = None) -> Movement:
        return Movement(self.lists, self.readers, places_of_one_type(self.nodes), roots)


def whole(moved: Moved, nodes: int) -> np.ndarray:
    assert len(np.unique(moved.nodes)) == len(moved.nodes)
    assert (moved.amounts > 0).all()
    found = np.zeros(nodes)
    found[moved.nodes] = moved.amounts
    return found


def test_rows_move_by_the_shares_of_what_they_read() -> None:
    scene, renewed = Scene(), np.array([5, 11])
    movement, features = scene.movement(), np.zeros(NODES)
    features[renewed] = 1
    first = np.minimum(1, scene.own + features + scene.matrix @ features)
    reached = np.flatnonzero(first)
    for _ in range(2):  # nothing is left of the time before
        moved = movement.of_first_layer(scene.entries, renewed, reached)
        np.testing.assert_allclose(whole(moved, NODES), first, atol=1e-5)
        second = np.minimum(1, first + scene.own + scene.matrix @ first)
        moved = movement.of_next_layer(moved, scene.entries)
        np.testing.assert_allclose(whole(moved, NODES), second, atol=1e-5)


def test_neighbours_are_weighed_by_roots_of_degrees_where_the_layer_does() -> None:
    scene = Scene()
    roots = np.random.default_rng(6).random(NODES).astype(np.float32)
    weights = np.where(scene.matrix > 0, np.outer(roots, roots), 0)
    own = np.zeros(NODES)
    np.add.at(own, scene.entries[:, 0], roots[scene.entries[:, 0]] * roots[scene.entries[:, 1]])
    first = np.minimum(1, own + weights @ (0.5 * own))
    moved = scene.movement(roots).of_first_layer(scene.entries, np.zeros(0, np.int64), np.flatnonzero(first))
    np.testing.assert_allclose(whole(moved, NODES), first, atol=1e-5)


def test_every_row_that_is_reached_moves() -> None:
    moved = Scene().movement().of_first_layer(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.arange(4))
    assert sorted(moved.nodes.tolist()) == [0, 1, 2, 3]
    assert (moved.amounts < 1e-5).all()


@pytest.mark.parametrize("renewed", [[0], [5, 0, 11]], ids=str)
def test_a_hub_is_followed_in_steps(renewed: list[int]) -> None:
    scene, steps = Scene(nodes=40_000), []
    movement = Movement(
        scene.lists, scene.readers, places_of_one_type(scene.nodes), None, lambda: steps.append(1)
    )  # fmt: skip
    nodes = np.array(renewed)
    moved = movement.of_first_layer(scene.entries[:0], nodes, nodes)
    assert len(moved.nodes) == scene.nodes
    assert len(steps) >= 3


def test_a_hub_of_a_million_readers_is_marked_in_short_steps_and_a_few_numbers_a_row() -> None:
    leaves, steps = 1_000_000, [0]
    lists = lists_of(np.concatenate(([0, 0], 1 + np.arange(leaves))), np.zeros(leaves, np.int32))
    readers = lists_of(
        np.concatenate(([0], np.full(leaves + 1, leaves))).astype(np.int64), np.arange(1, leaves + 1, dtype=np.int32)
    )

    def give_way() -> None:
        steps[0] += 1

    movement, rows = Movement(lists, readers, places_of_one_type(leaves + 1), None, give_way), StaleRows(leaves + 1)
    hub, no_entries = np.zeros(1, np.int64), np.zeros((0, 2), np.int64)
    tracemalloc.start()
    try:
        moved = movement.of_first_layer(no_entries, hub, np.arange(leaves + 1))
        rows.mark(*moved, give_way)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.count == leaves + 1
    # No step looks at more than 16,384 entries, or marks more than 8,192 rows.
    assert steps[0] >= leaves / (1 << 14) + leaves / (1 << 13)
    assert peak_bytes < 64 * leaves
    assert len(rows.worst(256)) == 256
