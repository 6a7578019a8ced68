"""Edges that a batch names both ways, where either way is an edge of its own: counted, and told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.changes.changes_reader import NODES, revision
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_worker.graph.change_batch import NO_FEATURES, ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import INTEGERS, TEXTS, TEXTS_WITH_TYPES, BatchForm
from gnnserve_worker.serving.http.changes.both_ways import count_both_ways
from gnnserve_worker.serving.security.access import Access

TWICE = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
TOKEN = "writing-0123456789ab"  # noqa: S105


def batch_of(form: BatchForm, edges: Sequence[Sequence[Any]], nodes: Sequence[Any] = ()) -> ChangeBatch:
    ids = [*nodes, *(one for edge in edges for one in edge)]
    return ChangeBatch(ChangeCounts(new_nodes=len(nodes), edges=len(edges)), form.lay_out(ids), NO_FEATURES)


@pytest.mark.parametrize("form", [INTEGERS, TEXTS])
@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ([], 0),
        ([[1, 2]], 0),
        ([[1, 2], [2, 1]], 1),
        ([[1, 2], [1, 2]], 0),
        ([[1, 2], [1, 2], [2, 1]], 1),
        ([[1, 2], [2, 3], [3, 2], [2, 1], [4, 5]], 2),
        ([[1, 1], [1, 1]], 0),
    ],
)
def test_each_edge_that_is_there_the_other_way_too_counts(form: BatchForm, edges: list[list[int]], count: int) -> None:
    assert count_both_ways(batch_of(form, edges), {""}) == count
    assert count_both_ways(batch_of(form, edges, nodes=[7, 8, 9]), {""}) == count


def test_edges_of_other_relations_do_not_count() -> None:
    edges = [
        ["user/1", "knows", "user/2"], ["user/2", "knows", "user/1"],
        ["user/1", "follows", "user/2"], ["user/2", "follows", "user/1"], ["user/3", "knows", "user/4"],
        ["user/4", "follows", "user/3"],
    ]  # fmt: skip
    assert count_both_ways(batch_of(TEXTS_WITH_TYPES, edges), {"knows"}) == 1
    assert count_both_ways(batch_of(TEXTS_WITH_TYPES, edges), {"knows", "follows"}) == 2
    assert count_both_ways(batch_of(TEXTS_WITH_TYPES, edges), set()) == 0


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("duplicates", Duplicates)
def test_the_answer_says_how_many_count_twice_and_nothing_where_none_does(
    direction: Direction, duplicates: Duplicates
) -> None:
    rules = EdgeRules(direction, duplicates)
    worker = FakeWorker(
        nodes=NODES, overlays=revision().compute.overlays.support, updates=FakeUpdates(), edge_rules=rules
    )

    async def run() -> None:
        async with running(worker, write_access=Access((TOKEN,))) as client:
            for edges, count in (([[0, 1], [2, 3]], 0), ([[0, 1], [1, 0]], 1)):
                answer = await client.http.post(
                    "/v1/changes", json={"edges": edges}, headers={"authorization": f"Bearer {TOKEN}"}
                )
                told = {"bothWays": count} if count and rules == TWICE else {}
                assert answer.json().items() - told.items() == {
                    ("offset", 1 + count), ("changes", 2), ("unchanged", 0), ("repeated", False),
                }  # fmt: skip
                assert told.items() <= answer.json().items()

    asyncio.run(run())
