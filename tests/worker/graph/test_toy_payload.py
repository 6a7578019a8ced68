"""A relation of a test whose edges have features and a time, from source to sample: assembled as sources are, sampled,
brought by requests and changed, in a graph of one type and in one of several. Each edge is told by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.support.graphs.payload_lists import lists_with_payload
from tests.support.graphs.toy_payload import (
    BOUGHT,
    ITEMS,
    KEPT,
    MERGED,
    PAID,
    USERS,
    Told,
    assembled,
    edges_of,
    one_type,
    several_types,
)

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import parted_lists
from gnnserve_worker.graph.sources.assembly import GivenRelation
from gnnserve_worker.graph.store import Graph


def test_edges_of_one_type_are_sampled_with_their_payload() -> None:
    kept: Told = {(str(target), str(source), amount, at) for source, target, amount, at in PAID}
    assert one_type(KEPT).sampled() == kept
    assert one_type(MERGED).sampled() == kept - {("1", "0", 5.0, 10)}


def test_a_reverse_relation_has_the_payload_of_the_edges_that_it_reverses() -> None:
    kept: Told = {(f"user/{user}", f"item/{item}", amount, at) for user, item, amount, at in BOUGHT}
    assert several_types(KEPT).sampled() == kept
    toy = several_types(MERGED)
    assert toy.sampled() == kept - {("user/0", "item/2", 20.0, 5)}
    there, back = (one.payload for one in toy.data.relations)
    assert there is back
    assert there is not None
    assert there.features[:, 0].tolist() == [30.0, 40.0, 25.0], "no row of the edge that was merged"


def test_a_request_brings_edges_of_one_type_with_their_payload() -> None:
    brought = {
        "nodes": [{"id": 99, "features": [3]}],
        "edges": [[99, 1], [0, 99], [0, 1]],
        "edgeFeatures": [[100], [200], [300]],
        "edgeTimes": [8, 9, 10],
    }
    merged, kept = (one_type(rules).sampled(brought, [1, 99]) for rules in (MERGED, KEPT))
    of_both: Told = {("1", "new", 100.0, 8), ("new", "0", 200.0, 9), ("1", "2", 7.5, 3), ("1", "4", 0.5, 9)}
    # Where equal edges are merged, the stored one has what the request says of it; elsewhere it is one more.
    assert merged == of_both | {("1", "0", 300.0, 10)}
    assert kept == of_both | {("1", "0", 300.0, 10), ("1", "0", 5.0, 10), ("1", "0", 6.0, 12)}


def test_a_request_brings_edges_of_several_types_with_their_payload() -> None:
    brought = {
        "nodes": [{"id": "user/99", "features": [3]}],
        "edges": [["user/99", "buys", "item/3"], ["user/0", "buys", "item/2"], ["user/0", "buys", "item/1"]],
        "edgeFeatures": [[100], [200], [300]],
        "edgeTimes": [8, 9, 10],
    }
    told = several_types(MERGED).sampled(brought, ["user/99", "user/0"])
    assert told == {
        ("new", "item/3", 100.0, 8), ("user/0", "item/2", 200.0, 9), ("user/0", "item/1", 300.0, 10),
    }  # fmt: skip


def test_changes_bring_edges_of_one_type_with_their_payload_and_take_them_away() -> None:
    def changed(rules: EdgeRules) -> Told:
        edges, rows = [[6, 1], [0, 1]], [(100.0, 8), (300.0, 11)]
        return one_type(rules).changed([6], edges, rows, [[2, 1], [3, 3]]).sampled()

    untouched: Told = {("0", "1", 1.0, 4), ("1", "4", 0.5, 9)}
    of_both: Told = untouched | {("1", "6", 100.0, 8), ("1", "0", 300.0, 11)}
    assert changed(MERGED) == of_both
    assert changed(KEPT) == of_both | {("1", "0", 5.0, 10), ("1", "0", 6.0, 12)}


def test_changes_bring_edges_of_several_types_with_their_payload_and_take_them_away() -> None:
    edges = [["user/6", "buys", "item/3"], ["user/0", "buys", "item/2"]]
    rows, removed = [(100.0, 8), (200.0, 9)], [["user/1", "buys", "item/2"]]
    toy = several_types(MERGED).changed(["user/6"], edges, rows, removed)
    assert toy.sampled() == {("user/0", "item/2", 200.0, 9), ("user/5", "item/0", 40.0, 7)}
    assert toy.sampled(nodes=[6]) == {("user/6", "item/3", 100.0, 8)}


@pytest.mark.campaign
@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize(
    "rules",
    [EdgeRules(*each) for each in itertools.product(Direction, Duplicates, SelfLoops)],
    ids=lambda rules: rules.in_words,
)
def test_lists_with_payload_are_those_without_and_their_rows_those_of_a_plain_sort(
    rules: EdgeRules, has_times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnserve_worker.graph.edges._PIECE_EDGES", 64)
    draw = np.random.default_rng(1)
    ends = draw.integers(0, 12, (2, 300))
    times = draw.integers(0, 5, 300 if has_times else 0)
    payload = EdgePayload((), np.zeros((300, 0), np.float32), "at" if has_times else "", times)

    def built(*, has_payload: bool) -> tuple[Graph, EdgeCounts]:
        edges = EdgeList(12, rules.direction, rules.duplicates, rules.self_loops, has_payload=has_payload)
        dangling = np.array([[12, 3], [4, -1]])
        edges.add(*dangling)  # which have no row
        edges.add(*ends[:, :100])
        edges.add(*ends[:, 100:])
        return edges.to_graph(payload if has_payload else None)

    (found, counts), (bare, expected_counts) = built(has_payload=True), built(has_payload=False)
    assert counts == expected_counts
    assert not len(bare.payload_rows)
    expected = lists_with_payload(ends[0], ends[1], 12, rules, payload)
    for graph in (found, bare):
        np.testing.assert_array_equal(graph.indptr, expected.indptr)
        np.testing.assert_array_equal(graph.indices, expected.indices)
    np.testing.assert_array_equal(found.payload_rows, expected.payload_rows)


def test_lists_of_each_relation_are_parted_with_their_rows() -> None:
    toy = several_types(KEPT)
    for found, one in zip(parted_lists(toy.graph), toy.data.relations, strict=True):
        np.testing.assert_array_equal(found.payload_rows, one.lists.payload_rows)
        np.testing.assert_array_equal(found.indices, one.lists.indices)


def test_payload_of_fewer_edges_than_there_are_is_refused() -> None:
    sources, targets, payload = edges_of(BOUGHT)
    given = GivenRelation(
        "user", "buys", "item", sources[:3], targets[:3], "edges/user__buys__item.npz", ("s", "t"), payload=payload
    )
    with pytest.raises(InputError, match="has features or times of 4 edges, and 3 edges; write one row for every edge"):
        assembled([("user", USERS), ("item", ITEMS)], [given], reverse="Add")
