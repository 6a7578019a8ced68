"""`GET /v1/nodes` over a graph that nodes have left: full pages, each node once, and an end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from gnnserve_api.http.protocol import NodesAnswer
from gnnserve_client import telling
from gnnserve_client.asking import ClientState
from gnnserve_client.exchange import Call
from gnnserve_worker.asking.described_types import WITHOUT_TYPES
from gnnserve_worker.asking.naming import naming_of
from gnnserve_worker.graph.ids import integer_ids
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.nodes import MOST_NODES_OF_A_PAGE, list_nodes

STORED, CAME = 25_000, [70_001, 70_002, 70_003]


def revision_over(ids: LivingIds, room: int) -> ServedRevision:
    graph = SimpleNamespace(described=WITHOUT_TYPES, naming=naming_of(ids, room), ids=None, count=lambda: ids.nodes)
    return cast(ServedRevision, SimpleNamespace(graph=graph))


@pytest.fixture(params=["positions", "integers"])
def living(request: pytest.FixtureRequest) -> tuple[LivingIds, list[int]]:
    """Ids whose first 12,000 and last stored nodes have left, each third between them too, and one that came."""
    stored = None if request.param == "positions" else integer_ids(np.arange(STORED)[::-1].copy())
    room = STORED + len(CAME) + 100
    ids = LivingIds(stored, STORED, room)
    ids.add_integers(np.array(CAME))
    at = np.arange(STORED)
    gone = at[(at < 12_000) | (at % 3 == 0) | (at == STORED - 1)]
    ids.remove(np.append(gone, STORED + 1))
    named = np.append(at if stored is None else at[::-1], CAME)
    return ids, named[ids.kept].tolist()


def pages(revision: ServedRevision, query: str) -> Iterator[NodesAnswer]:
    start: Any = 0
    while start is not msgspec.UNSET:
        page = list_nodes(f"start={start}&{query}".encode(), revision)
        assert page.next is msgspec.UNSET or page.next > start, "it goes on"
        start = page.next
        yield page


@pytest.mark.parametrize("count", [7, 1000, MOST_NODES_OF_A_PAGE])
def test_pages_are_full_or_end_a_stretch_of_removed_nodes(living: tuple[LivingIds, list[int]], count: int) -> None:
    ids, expected = living
    listed = [*pages(revision_over(ids, STORED + 103), f"count={count}")]
    assert [each for page in listed for each in page.nodes] == expected
    assert {page.total for page in listed} == {len(expected)}
    # The first 12,000 have left, of which a request looks at 10,000.
    assert count == MOST_NODES_OF_A_PAGE or {len(page.nodes) for page in listed[1:-1]} == {count}
    assert listed[0].nodes == [] and listed[0].next == MOST_NODES_OF_A_PAGE


def test_a_search_finds_each_node_once(living: tuple[LivingIds, list[int]]) -> None:
    ids, expected = living
    found = [each for page in pages(revision_over(ids, STORED + 103), "count=5&contains=99") for each in page.nodes]
    assert found == [each for each in expected if "99" in str(each)]


@dataclass(frozen=True)
class Asking:
    """As a client's, of a worker in this process."""

    revision: ServedRevision
    is_earlier: bool
    """Whether the worker is of a release that told where to go on of searches alone."""

    def answered(self, call: Call, timeout_s: float | None) -> Generator[Any, Any, Any]:
        yield from ()
        page = list_nodes(call.path.partition("?")[2].encode(), self.revision)
        return SimpleNamespace(body=msgspec.structs.replace(page, next=msgspec.UNSET) if self.is_earlier else page)

    def decode(self, body: Any, form: type) -> Any:
        return body


def nodes_by_client(revision: ServedRevision, count: int | None, *, is_earlier: bool = False) -> list[int]:
    steps = telling.fetch_nodes(cast(ClientState, Asking(revision, is_earlier)), 0, count, None)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    return ended.value.value.tolist()


def test_a_client_gets_each_node_once(living: tuple[LivingIds, list[int]]) -> None:
    ids, expected = living
    revision = revision_over(ids, STORED + 103)
    assert nodes_by_client(revision, None) == expected
    assert nodes_by_client(revision, 11) == expected[:11]


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_client_lists_a_whole_graph_of_whichever_release(is_earlier: bool) -> None:
    whole = revision_over(LivingIds(None, STORED, STORED), STORED)
    assert nodes_by_client(whole, None, is_earlier=is_earlier) == [*range(STORED)]
