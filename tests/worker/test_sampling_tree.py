"""Padded trees for serving: support, layout, uniformity, independence, and cost at hubs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.support import sampling as reference
from tests.support.graphs import complete_graph, graph_of, neighbours_of, random_graph, read_only, star
from tests.support.statistics import is_uniform, joint_counts

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.tree import SampledTree, sample_tree

FANOUTS = pytest.mark.parametrize(
    "fanouts",
    [
        pytest.param((1,), id="one layer of one"),
        pytest.param((5,), id="one layer"),
        pytest.param((1024,), id="more than any degree"),
        pytest.param((25, 10), id="the default"),
        pytest.param((3, 40), id="a hop by the table"),
        pytest.param((40, 2, 2), id="three layers, the first by the table"),
        pytest.param((3, 2, 4, 2), id="four layers"),
    ],
)


def _sample(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int = 1) -> SampledTree:
    return sample_tree(graph.indptr, graph.indices, np.array(seeds, dtype=np.int64), fanouts, key)


def _as_lists(tree: SampledTree) -> reference.TreeReference:
    return reference.TreeReference([i.tolist() for i in tree.ids], [c.tolist() for c in tree.counts])


@FANOUTS
def test_trees_equal_a_slow_reference(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(60, seed=1, mean_degree=20)
    seeds = [*range(0, 60, 3), 7, 7]

    assert _as_lists(_sample(graph, seeds, fanouts, key=99)) == reference.sample_tree(graph, seeds, fanouts, 99)


@FANOUTS
def test_children_are_distinct_positions_among_the_neighbours(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(60, seed=2, mean_degree=20)
    tree = _sample(graph, list(range(60)), fanouts)

    for depth, fanout in enumerate(fanouts):
        for slot, node in enumerate(tree.ids[depth]):
            used = int(tree.counts[depth][slot])
            children = tree.ids[depth + 1][slot * fanout : slot * fanout + used].tolist()
            neighbours = neighbours_of(graph, node) if node >= 0 else []
            assert used == min(len(neighbours), fanout)
            # As multisets: a neighbour that is listed twice may be drawn twice, and no more often.
            assert Counter(children) <= Counter(neighbours)


@FANOUTS
def test_unused_slots_come_last_and_hold_minus_one(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(60, seed=3, isolated=0.3)
    tree = _sample(graph, list(range(60)), fanouts)

    for depth, fanout in enumerate(fanouts):
        children = tree.ids[depth + 1].reshape(-1, fanout)
        used = np.arange(fanout) < tree.counts[depth][:, None]
        assert (children[used] >= 0).all()
        assert (children[~used] == -1).all()


@FANOUTS
def test_levels_have_the_shapes_of_a_full_tree(fanouts: tuple[int, ...]) -> None:
    tree = _sample(random_graph(60, seed=4), list(range(11)), fanouts)

    slots = [11 * int(np.prod(fanouts[:depth], initial=1)) for depth in range(len(fanouts) + 1)]
    assert [len(level) for level in tree.ids] == slots
    assert [len(counts) for counts in tree.counts] == slots[:-1]
    assert {array.dtype for array in (*tree.ids, *tree.counts)} == {np.dtype(np.int32)}
    assert tree.fanouts == fanouts


def test_all_neighbours_are_taken_in_order_where_there_are_no_more_than_the_fanout() -> None:
    graph = graph_of([[2, 2, 1], [0], [], [1, 2, 0, 3]])

    tree = _sample(graph, [0, 1, 2, 3], (3,))

    assert tree.ids[1].reshape(-1, 3)[:3].tolist() == [[2, 2, 1], [0, -1, -1], [-1, -1, -1]]
    assert tree.counts[0].tolist() == [3, 1, 0, 3]


def test_an_isolated_seed_has_an_empty_tree() -> None:
    tree = _sample(graph_of([[], [0]]), [0], (3, 2))

    assert [level.tolist() for level in tree.ids] == [[0], [-1] * 3, [-1] * 6]
    assert [counts.tolist() for counts in tree.counts] == [[0], [0] * 3]


def test_repeated_seeds_draw_independently() -> None:
    tree = _sample(complete_graph(50), [4] * 100, (5,))

    draws = {tuple(row) for row in tree.ids[1].reshape(-1, 5).tolist()}
    assert tree.ids[0].tolist() == [4] * 100
    assert len(draws) > 90


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_seeds_of_any_integer_type_give_the_same_tree(dtype: type[np.integer]) -> None:
    graph = random_graph(60, seed=5)
    seeds = np.array([3, 1, 4, 1, 5], dtype=dtype)

    tree = sample_tree(graph.indptr, graph.indices, seeds, (4, 3), 8)

    assert _as_lists(tree) == reference.sample_tree(graph, [3, 1, 4, 1, 5], (4, 3), 8)


def test_seeds_may_be_a_strided_read_only_view() -> None:
    graph = read_only(random_graph(60, seed=5))
    seeds = np.arange(60)
    seeds.setflags(write=False)

    tree = sample_tree(graph.indptr, graph.indices, seeds[::7], (4, 3), 8)

    assert _as_lists(tree) == reference.sample_tree(graph, list(range(0, 60, 7)), (4, 3), 8)


@FANOUTS
def test_parts_of_a_batch_draw_what_the_whole_would(fanouts: tuple[int, ...]) -> None:
    graph = random_graph(60, seed=6, mean_degree=20)
    whole = _sample(graph, list(range(60)), fanouts, key=17)

    parts = [
        sample_tree(graph.indptr, graph.indices, np.arange(start, stop), fanouts, 17, start)
        for start, stop in ((0, 7), (7, 40), (40, 60))
    ]

    for depth, level in enumerate(whole.ids):
        np.testing.assert_array_equal(np.concatenate([part.ids[depth] for part in parts]), level)


def test_different_keys_give_different_trees() -> None:
    graph = complete_graph(100)

    assert _as_lists(_sample(graph, [0, 1], (5, 5), key=1)) != _as_lists(_sample(graph, [0, 1], (5, 5), key=2))


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [pytest.param(50, 10, id="looking back"), pytest.param(90, 45, id="by the table")],
)
def test_every_neighbour_is_equally_likely(degree: int, fanout: int) -> None:
    draws = 4000
    tree = _sample(complete_graph(degree), [0] * draws, (fanout,), key=3)

    drawn = np.bincount(tree.ids[1], minlength=degree)
    # Without replacement the counts vary less than a multinomial's: scale the deviations back to its variance.
    expected = draws * fanout / degree
    shrunk = np.sqrt((1 - fanout / degree) * degree / (degree - 1))
    assert is_uniform(expected + (drawn - expected) / shrunk)


def test_slots_draw_independently_of_their_neighbours() -> None:
    drawn = _sample(complete_graph(8), [0] * 40_000, (1,), key=4).ids[1]

    assert is_uniform(joint_counts(drawn[:-1], drawn[1:], 8))


def test_levels_draw_independently_of_each_other() -> None:
    tree = _sample(complete_graph(8), [0] * 20_000, (1, 1), key=5)

    assert is_uniform(joint_counts(tree.ids[1], tree.ids[2], 8))


@pytest.mark.parametrize("distance", [1, 2, 2**32])
def test_keys_draw_independently_of_each_other(distance: int) -> None:
    graph, seeds = complete_graph(8), [0] * 20_000

    first = _sample(graph, seeds, (1,), key=6).ids[1]
    second = _sample(graph, seeds, (1,), key=6 + distance).ids[1]

    assert is_uniform(joint_counts(first, second, 8))


def test_consecutive_keys_draw_independently_for_one_seed() -> None:
    graph = complete_graph(8)

    drawn = np.array([_sample(graph, [0], (1,), key=key).ids[1][0] for key in range(8000)])

    assert is_uniform(joint_counts(drawn[:-1], drawn[1:], 8))


def test_a_hub_of_a_million_neighbours_is_sampled_up_to_the_fanout() -> None:
    graph = star(1_000_000)

    children = _sample(graph, [0] * 8, (1000,)).ids[1].reshape(8, 1000)

    assert all(len(set(row)) == 1000 for row in children.tolist())
    assert children.min() >= 1
    assert children.max() > 900_000


def test_a_hub_costs_no_visit_of_its_edges(tmp_path: Path) -> None:
    """Of 1 GiB of neighbours in a sparse file, only the pages around the drawn ones become resident."""
    degree = 1 << 28
    path = tmp_path / "indices"
    with path.open("wb") as file:
        file.truncate(degree * 4)
    indices = np.memmap(path, dtype=np.int32, mode="r")

    tree = sample_tree(np.array([0, degree]), np.asarray(indices), np.array([0]), (25,), 1)

    assert tree.ids[1].tolist() == [0] * 25
    assert 0 < _resident_bytes(path) < 64 * 1024 * 1024


def _resident_bytes(path: Path) -> int:
    maps = Path("/proc/self/smaps").read_text().split(str(path), 1)[1]
    resident = next(line for line in maps.splitlines() if line.startswith("Rss:"))
    return int(resident.split()[1]) * 1024
