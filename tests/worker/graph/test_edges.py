"""Neighbour lists from edges, against sets and counters of pairs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.graphs.graphs import neighbours_of

from gnnserve_api.files.edges import Direction, Duplicates, SelfLoops
from gnnserve_worker.graph import counting_sorts
from gnnserve_worker.graph import edges as edges_module
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList
from gnnserve_worker.graph.store import Finding, Graph

Pairs = list[tuple[int, int]]


def _build(
    nodes: int,
    pairs: Pairs,
    direction: Direction = Direction.DIRECTED,
    duplicates: Duplicates = Duplicates.MERGE,
    self_loops: SelfLoops = SelfLoops.KEEP,
    piece: int = 3,
    dtype: type[np.generic] = np.int64,
) -> tuple[Graph, EdgeCounts]:
    edges = EdgeList(nodes, direction, duplicates, self_loops)
    for start in range(0, len(pairs), piece):
        ends = np.array(pairs[start : start + piece], dtype=dtype)
        edges.add(ends[:, 0], ends[:, 1])
    return edges.to_graph()


def _slowly(
    nodes: int, pairs: Pairs, direction: Direction, duplicates: Duplicates, self_loops: SelfLoops
) -> tuple[list[list[int]], EdgeCounts]:
    there = [pair for pair in pairs if all(0 <= end < nodes for end in pair)]
    kept = [pair for pair in there if self_loops is SelfLoops.KEEP or pair[0] != pair[1]]
    listed = Counter(kept if direction is not Direction.REVERSED else [(target, source) for source, target in kept])
    if duplicates is Duplicates.MERGE:
        listed = Counter(set(listed))
    merged = len(kept) - listed.total()
    messages = Counter(listed)
    if direction is Direction.UNDIRECTED:
        for (source, target), count in listed.items():
            if source == target:
                continue
            if duplicates is Duplicates.MERGE:
                messages[target, source] = 1
            else:
                messages[target, source] += count
    rows: list[list[int]] = [[] for _ in range(nodes)]
    for (source, target), count in sorted(messages.items()):
        rows[target] += [source] * count
    counts = EdgeCounts(
        len(pairs), len(pairs) - len(there), len(there) - len(kept), merged, messages.total() - listed.total()
    )
    return rows, counts


@st.composite
def _given_edges(draw: st.DrawFn) -> tuple[int, Pairs]:
    nodes = draw(st.integers(1, 12))
    end = st.integers(-1, nodes)
    return nodes, draw(st.lists(st.tuples(end, end), max_size=60))


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(
    _given_edges(), st.sampled_from(Direction), st.sampled_from(Duplicates), st.sampled_from(SelfLoops),
    st.integers(1, 70), st.sampled_from([np.int32, np.int64, np.int16]),
)  # fmt: skip
def test_neighbour_lists_are_those_of_the_slow_reference(
    given_edges: tuple[int, Pairs], direction: Direction, duplicates: Duplicates, self_loops: SelfLoops,
    piece: int, dtype: type[np.generic],
) -> None:  # fmt: skip
    nodes, pairs = given_edges

    graph, counts = _build(nodes, pairs, direction, duplicates, self_loops, piece, dtype)

    rows, expected = _slowly(nodes, pairs, direction, duplicates, self_loops)
    assert [neighbours_of(graph, node) for node in range(nodes)] == rows
    assert counts == expected
    assert (graph.indptr.dtype, graph.indices.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("duplicates", Duplicates)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_pieces_change_nothing(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, duplicates: Duplicates, threads: int
) -> None:
    monkeypatch.setattr(edges_module, "_PIECE_EDGES", 700)
    monkeypatch.setattr(counting_sorts, "thread_count", lambda: threads)
    draw = np.random.default_rng(0)
    nodes = 300
    # Few nodes have most of the edges, and many edges are there twice.
    pairs = [tuple(pair) for pair in (nodes * draw.random((20_000, 2)) ** 3).astype(int).tolist()]

    graph, counts = _build(nodes, pairs, direction, duplicates, piece=20_000)

    rows, expected = _slowly(nodes, pairs, direction, duplicates, SelfLoops.KEEP)
    assert [neighbours_of(graph, node) for node in range(nodes)] == rows
    assert counts == expected


def test_a_directed_edge_puts_its_source_into_the_list_of_its_target() -> None:
    graph, _ = _build(3, [(0, 2)], Direction.DIRECTED)

    assert [neighbours_of(graph, node) for node in range(3)] == [[], [], [0]]


def test_a_reversed_edge_puts_its_target_into_the_list_of_its_source() -> None:
    graph, _ = _build(3, [(0, 2)], Direction.REVERSED)

    assert [neighbours_of(graph, node) for node in range(3)] == [[2], [], []]


def test_an_undirected_edge_that_is_listed_both_ways_adds_and_merges_nothing() -> None:
    graph, counts = _build(3, [(0, 2), (2, 0)], Direction.UNDIRECTED)

    assert [neighbours_of(graph, node) for node in range(3)] == [[2], [], [0]]
    assert counts == EdgeCounts(read=2, dangling=0, self_loops_removed=0, merged=0, reversed_added=0)


def test_no_edges_make_a_graph_of_isolated_nodes() -> None:
    for direction in Direction:
        graph, counts = EdgeList(4, direction).to_graph()

        assert graph.indptr.tolist() == [0] * 5
        assert graph.edges == 0
        assert counts.findings() == ()


def test_the_first_dangling_edge_of_each_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges_module, "_PIECE_EDGES", 2)
    edges = EdgeList(3)

    assert edges.add(np.array([0, 1, 2]), np.array([1, 2, 0])) == -1
    assert edges.add(np.array([0, 1, 2, 5, 0]), np.array([1, 2, 0, 0, -1])) == 3
    assert edges.add(np.array([0, 2**40]), np.array([1, 0])) == 1
    _, counts = edges.to_graph()

    assert (counts.read, counts.dangling) == (10, 3)


def test_findings_tell_what_was_changed() -> None:
    _, counts = _build(3, [(0, 1), (0, 1), (1, 1)], Direction.UNDIRECTED, self_loops=SelfLoops.REMOVE)

    assert counts.findings() == (
        Finding("duplicate edges merged", 1),
        Finding("self-loops removed", 1),
        Finding("edges added in the other direction", 1),
    )
