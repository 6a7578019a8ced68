"""What every sampler for serving keeps to, on the CPU or on a GPU, whatever rows it keeps its samples in.

A sample is compared as the trees that its seeds see of the graph. Subclass `SamplerContract` and say how to sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import campaigns
from tests.support.graphs.graphs import complete_graph, graph_of, neighbours_of, random_graph, read_only, star
from tests.support.machine.memory import between_forbidden_pages
from tests.support.sampling import sampling as reference
from tests.support.statistics import is_uniform, joint_counts

from gnnserve_worker.graph.store import Graph

Tree: TypeAlias = "tuple[int, list[Tree] | list[int]]"
"""A node and what it drew: trees, or leaves' ids."""

FANOUT_CASES = [
    pytest.param((1,), id="one layer of one"),
    pytest.param((5,), id="one layer"),
    pytest.param((1024,), id="more than any degree"),
    pytest.param((25, 10), id="the default"),
    pytest.param((3, 40), id="a hop by Floyd"),
    pytest.param((40, 2, 2), id="three layers, the first by Floyd"),
    pytest.param((3, 2, 4, 2), id="four layers"),
]
FANOUTS = pytest.mark.parametrize("fanouts", FANOUT_CASES)

graphs = st.integers(1, 12).flatmap(
    lambda nodes: st.lists(st.lists(st.integers(0, nodes - 1), max_size=2 * nodes), min_size=nodes, max_size=nodes).map(
        graph_of
    )
)


def expected_trees(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int) -> list[Tree]:
    """Trees by the slow reference, one node after the other."""

    def tree(node: int, depth: int) -> Tree:
        drawn = reference.children_of(graph, node, fanouts[depth], key, depth, node)
        last = depth == len(fanouts) - 1
        return (node, drawn if last else [tree(child, depth + 1) for child in drawn])

    return [tree(seed, 0) for seed in seeds]


def leaves(trees: list[Tree]) -> list[int]:
    """Leaves of trees of one layer."""
    return [leaf for _, drawn in trees for leaf in drawn]


def listing(nodes: int, degree: int) -> Graph:
    """Every node lists 0 … degree − 1: a neighbour's id is its position, and every node draws for itself."""
    return Graph(
        np.arange(0, (nodes + 1) * degree, degree, dtype=np.int64),
        np.tile(np.arange(degree, dtype=np.int32), nodes),
    )


class SamplerContract(ABC):
    examples = 100
    """Graphs that hypothesis makes up."""
    hub_keys = 8
    """Samples of a hub."""
    draws = 4000
    """Nodes that draw, where every neighbour is equally likely."""

    @abstractmethod
    def sample(self, graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int = 1) -> list[Tree]: ...

    @FANOUTS
    def test_samples_equal_a_slow_reference(self, fanouts: tuple[int, ...]) -> None:
        graph = random_graph(90, seed=1, mean_degree=20)
        seeds = [*range(0, 90, 2), 8, 8, 1]

        assert self.sample(graph, seeds, fanouts, 99) == expected_trees(graph, seeds, fanouts, 99)

    @pytest.mark.parametrize("key", [0, 1, -1, 2**62, -(2**63), 2**63 - 1])
    def test_keys_are_any_64_bits(self, key: int) -> None:
        graph = complete_graph(40)

        assert self.sample(graph, [3, 39], (5, 3), key) == expected_trees(graph, [3, 39], (5, 3), key)

    @pytest.mark.parametrize("fanout", [*range(1, 41), 64, 65, 100])
    def test_every_fanout_and_degree_is_drawn_from_alike(self, fanout: int) -> None:
        """Degrees around the fan-out and around its double, where the way of drawing changes."""
        degrees = [0, 1, *(max(0, around + step) for around in (fanout, 2 * fanout) for step in (-1, 0, 1)), 900]
        graph = graph_of([*(range(degree) for degree in degrees), *([[]] * 900)])
        seeds = list(range(len(degrees)))

        assert self.sample(graph, seeds, (fanout,), 5) == expected_trees(graph, seeds, (fanout,), 5)

    def test_samples_of_any_graph_equal_the_reference(self) -> None:
        @settings(max_examples=campaigns.examples(self.examples), deadline=None, derandomize=True, database=None)
        @given(
            data=st.data(), graph=graphs, fanouts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
            key=st.integers(0, 2**62),
        )  # fmt: skip
        def check(data: st.DataObject, graph: Graph, fanouts: list[int], key: int) -> None:
            seeds = data.draw(st.lists(st.integers(0, graph.nodes - 1), min_size=1, max_size=6))
            trees = self.sample(graph, seeds, tuple(fanouts), key)

            assert trees == expected_trees(graph, seeds, tuple(fanouts), key)
            for node, drawn in _expanded(trees):
                assert Counter(drawn) <= Counter(neighbours_of(graph, node))

        check()

    def test_all_neighbours_are_taken_in_order_where_there_are_no_more_than_the_fanout(self) -> None:
        graph = graph_of([[2, 2, 1], [0], [], [1, 2, 0, 3]])

        lists = [drawn for _, drawn in self.sample(graph, [0, 1, 2, 3], (3,))]

        assert lists[:3] == [[2, 2, 1], [0], []]
        assert len(set(map(int, lists[3]))) == 3  # type: ignore[arg-type]

    def test_self_loops_lead_back_to_the_node(self) -> None:
        trees = self.sample(graph_of([[0], [1, 1, 1]]), [0, 1], (2, 2))

        assert trees == [(0, [(0, [0])]), (1, [(1, [1, 1]), (1, [1, 1])])]

    def test_isolated_seeds_bring_no_neighbours(self) -> None:
        assert self.sample(graph_of([[], [0]]), [0, 0], (3, 2)) == [(0, []), (0, [])]

    def test_repeated_seeds_draw_equally(self) -> None:
        first, other, again = self.sample(complete_graph(50), [4, 7, 4], (5, 5))

        assert first == again
        assert first[1] != other[1]

    def test_a_node_draws_anew_at_every_depth(self) -> None:
        """Else a seed that comes back as its own neighbour's neighbour would bring nothing new."""
        graph = graph_of([range(100), *([[0]] * 99)])
        as_seed = leaves(self.sample(graph, [0], (10,)))

        ((_, ((_, as_neighbour),)),) = self.sample(graph, [1], (10, 10))

        assert len(set(as_neighbour)) == 10
        assert as_neighbour != as_seed

    def test_the_graph_may_be_mapped(self) -> None:
        graph = random_graph(60, seed=5)
        seeds = list(range(0, 60, 7))

        assert self.sample(read_only(graph), seeds, (4, 3), 8) == expected_trees(graph, seeds, (4, 3), 8)

    def test_nothing_is_read_outside_of_the_lists(self) -> None:
        """They fill whole pages, and those before and behind may not be touched."""
        degrees = [300, 20, 0, 3, 701]
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        graph = Graph(indptr, between_forbidden_pages(np.arange(indptr[-1]).astype(np.int32) % 5))
        for fanouts in ((25, 10), (70,), (1, 1)):
            seeds = [0, 4, 1, 2, 3]

            assert self.sample(graph, seeds, fanouts, 2) == expected_trees(graph, seeds, fanouts, 2)

    @FANOUTS
    def test_parts_of_a_batch_see_what_the_whole_would(self, fanouts: tuple[int, ...]) -> None:
        graph = random_graph(60, seed=6, mean_degree=12)
        whole = self.sample(graph, list(range(60)), fanouts, 17)

        parts = [
            tree
            for start, stop in ((0, 7), (7, 40), (40, 60))
            for tree in self.sample(graph, list(range(start, stop)), fanouts, 17)
        ]

        assert parts == whole

    def test_equal_keys_draw_equally_and_others_differently(self) -> None:
        first, again, other = (self.sample(complete_graph(100), [0, 1], (5, 5), key) for key in (1, 1, 2))

        assert first == again
        assert first != other

    @pytest.mark.parametrize(
        ("degree", "fanout"),
        [
            pytest.param(50, 10, id="the first distinct draws"),
            pytest.param(15, 10, id="looking back"),
            pytest.param(90, 70, id="many"),
        ],
    )
    def test_every_neighbour_is_equally_likely(self, degree: int, fanout: int) -> None:
        draws = self.draws
        drawn = leaves(self.sample(listing(draws, degree), list(range(draws)), (fanout,), 3))

        counts = np.bincount(drawn, minlength=degree)
        # Without replacement the counts vary less than a multinomial's: scale the deviations back to its variance.
        expected = draws * fanout / degree
        shrunk = np.sqrt((1 - fanout / degree) * degree / (degree - 1))
        assert is_uniform(expected + (counts - expected) / shrunk)

    def test_nodes_draw_independently_of_their_neighbours(self) -> None:
        drawn = np.array(leaves(self.sample(listing(40_000, 8), list(range(40_000)), (1,), 4)))

        assert is_uniform(joint_counts(drawn[:-1], drawn[1:], 8))

    def test_depths_draw_independently_of_each_other(self) -> None:
        """The same nodes as seeds, and as the only neighbours of other seeds."""
        nodes = 20_000
        listed = listing(nodes, 8)
        graph = Graph(
            np.concatenate([listed.indptr, listed.indptr[-1] + np.arange(1, nodes + 1)]),
            np.concatenate([listed.indices, np.arange(nodes, dtype=np.int32)]),
        )

        first = leaves(self.sample(graph, list(range(nodes)), (1,)))
        second = leaves([tree for _, (tree,) in self.sample(graph, list(range(nodes, 2 * nodes)), (1, 1))])

        assert is_uniform(joint_counts(np.array(first), np.array(second), 8))

    @pytest.mark.parametrize("distance", [1, 2, 2**32])
    def test_keys_draw_independently_of_each_other(self, distance: int) -> None:
        graph, seeds = listing(20_000, 8), list(range(20_000))

        first, second = (np.array(leaves(self.sample(graph, seeds, (1,), key))) for key in (6, 6 + distance))

        assert is_uniform(joint_counts(first, second, 8))

    def test_a_hub_of_a_million_neighbours_is_sampled_up_to_the_fanout(self) -> None:
        graph = star(1_000_000)
        for fanout, keys in ((25, self.hub_keys), (200, 1)):
            drawn = np.array([leaves(self.sample(graph, [0], (fanout,), key)) for key in range(keys)])

            assert all(len(set(row)) == fanout for row in drawn.tolist())
            assert drawn.min() >= 1
            assert drawn.max() > 900_000

    def test_a_hub_costs_no_visit_of_its_edges(self, tmp_path: Path) -> None:
        """With 1 GiB of neighbours in a sparse file, only the pages around the drawn ones become resident."""
        degree = 1 << 28
        path = tmp_path / "indices"
        with path.open("wb") as file:
            file.truncate(degree * 4)
        indices = np.asarray(np.memmap(path, dtype=np.int32, mode="r"))

        assert self.sample(Graph(np.array([0, degree]), indices), [0], (25,)) == [(0, [0] * 25)]
        assert 0 < _resident_bytes(path) < 64 * 1024 * 1024


def _expanded(trees: list[Tree]) -> Iterator[tuple[int, list[int]]]:
    """Every node that drew, and the ids that it drew."""
    for node, drawn in trees:
        yield node, [child if isinstance(child, int) else child[0] for child in drawn]
        yield from _expanded([child for child in drawn if not isinstance(child, int)])


def _resident_bytes(path: Path) -> int:
    maps = Path("/proc/self/smaps").read_text().split(str(path), 1)[1]
    resident = next(line for line in maps.splitlines() if line.startswith("Rss:"))
    return int(resident.split()[1]) * 1024
