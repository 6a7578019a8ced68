"""`POST /v1/explain` about pairs: an influence is what the probability of a link loses without the edge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.generation.recommended_links import Published, of_users, one_type, published
from tests.support.serving.serving import FakeWorker, running

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.sampling.batch_view import Part, view_of


def of_types(root: Any) -> dict[str, Any]:
    spec = of_users(root)
    return spec | {"model": {"fanouts": [-1, -1], "hidden": 8, "training": {"epochs": 2, "batchSize": 32}}}


SERVICES = {
    "one type": (lambda root: one_type(root, "Dot"), (17, 3)),
    "several types": (of_types, ("user/3", "item/5")),
    "LightGCN": (of_users, ("user/3", "item/5")),
}


@pytest.fixture(scope="module", params=SERVICES)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Published, tuple[Any, Any]]]:
    spec, pair = SERVICES[request.param]
    root = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    yield published(root, spec(root)), pair


def ask(revision: ServedRevision, *bodies: dict[str, Any]) -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return [await client.http.post("/v1/explain", json=body) for body in bodies]

    return asyncio.run(scenario())


def test_an_influence_is_what_the_link_loses_without_the_edge(service: tuple[Published, tuple[Any, Any]]) -> None:
    made, pair = service
    revision = made.served()
    (response,) = ask(revision, {"pair": pair, "count": 100})
    assert response.status_code == 200, response.text
    told = response.json()
    variant, graph, links = told["variant"], revision.graph, revision.task.links
    numbers = [graph.naming.find_any(id_, "") for id_ in pair]
    lists = [[one.neighbours for one in graph.lists.of(number)] for number in numbers]

    def row(end: int, left_out: tuple[int, int] | None = None) -> np.ndarray:
        arrange = revision.compute.overlays.stand_in(numbers[end])
        assert not isinstance(arrange, str)
        read = [
            one if left_out is None or left_out[0] != place else one[one != left_out[1]]
            for place, one in enumerate(lists[end])
        ]
        overlay, seeds = arrange(read)
        view = view_of(graph.first_new, [Part(1, overlay, 0)], seeds)
        return np.array(revision.compute.infer(variant, seeds, 0, view=view).scores)

    def probability(first: np.ndarray, second: np.ndarray) -> float:
        return float(links.probabilities(variant, links.decoder.score(first, second))[0])

    whole = [row(0), row(1)]
    expected = {}
    for end, lists_of_end in enumerate(lists):
        for place, listed in enumerate(lists_of_end):
            relation = graph.lists.of(numbers[end])[place].name
            for other in np.unique(listed).tolist():
                rows = [*whole]
                rows[end] = row(end, (place, other))
                key = (pair[end], relation if isinstance(relation, str) else None, graph.naming.shown_any(other))
                expected[key] = probability(*whole) - probability(*rows)
    found = {(one["of"], one.get("relation"), one["id"]): one["influence"] for one in told["neighbours"]}
    most = max(map(abs, expected.values()))
    assert found == pytest.approx(expected, abs=1e-2 * most)
    assert most > 1e-5
    assert told["pair"] == [*pair]
    assert told["probability"] == pytest.approx(probability(*whole), abs=1e-5)
    assert told["score"] == pytest.approx(float(links.decoder.score(*whole)[0]), abs=1e-4)
    assert told["degree"] == sum(len(one) for of_end in lists for one in of_end)
    assert {"node", "label", "class"}.isdisjoint(told)
    sizes = [abs(one["influence"]) for one in told["neighbours"]]
    assert sizes == sorted(sizes, reverse=True)


_DRAWN = 2
SAMPLED = {
    "one type": (lambda root: one_type(root, "Dot"), (17, 3), {}),
    "several types": (of_types, ("user/3", "item/5"), {}),
    "by relation": (
        of_types,
        ("user/3", "item/5"),
        {"relationFanouts": [{"relation": "user knows user", "fanouts": [1, 1]}], "fanouts": [_DRAWN, _DRAWN]},
    ),
}


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT"])
def test_a_neighbour_that_is_not_drawn_has_no_influence(kind: str, architecture: str, tmp_path: Path) -> None:
    """In a shorter list others would be drawn, and what these change be told as the influence of many."""
    made, pair, model = SAMPLED[kind]
    spec = made(tmp_path)
    del spec["embeddings"]
    spec["model"] |= {"fanouts": [_DRAWN, _DRAWN], "architecture": architecture, **model}
    revision = published(tmp_path, spec).served()
    (response,) = ask(revision, {"pair": pair, "count": 100})
    assert response.status_code == 200, response.text
    told, by_list = response.json(), dict[tuple[Any, Any], list[float]]()
    for one in told["neighbours"]:
        by_list.setdefault((one["of"], one.get("relation")), []).append(abs(one["influence"]))
    assert max(map(len, by_list.values())) > 2 * _DRAWN
    for of, influences in by_list.items():
        assert sum(one > 1e-6 for one in influences) <= _DRAWN, of
    assert any(one > 1e-5 for influences in by_list.values() for one in influences)


def test_edges_of_both_nodes_are_tried_in_turns_and_a_node_alone_has_none(
    service: tuple[Published, tuple[Any, Any]],
) -> None:
    made, pair = service
    few, alone, unknown, missing = ask(
        made.served(), {"pair": pair, "count": 2}, {"node": pair[0]}, {"pair": pair, "variant": "x9"}, {},
    )  # fmt: skip
    assert len(few.json()["neighbours"]) == 2
    assert alone.json()["unexplained"] == (
        "pairs of nodes are scored here, and a node alone has no answer: name a pair"
    )
    assert all("influence" not in one and "of" not in one for one in alone.json()["neighbours"])
    assert unknown.json()["error"]["field"] == "variant"
    assert (missing.status_code, missing.json()["error"]["field"]) == (400, "node")


def test_nodes_of_types_stand_at_their_own_end_alone(service: tuple[Published, tuple[Any, Any]]) -> None:
    made, pair = service
    (response,) = ask(made.served(), {"pair": [*reversed(pair)]})
    if isinstance(pair[0], int):
        assert response.status_code == 200
    else:
        assert (response.status_code, response.json()["error"]["field"]) == (400, "pair[0]")
        assert 'node "item/5" is not of type user' in response.json()["error"]["message"]


def test_where_no_variant_gives_embeddings_of_what_requests_bring_neighbours_are_told_alone(tmp_path: Path) -> None:
    spec = one_type(tmp_path, "Dot")
    variants = {"pruning": {"factors": []}, "projection": "Disabled", "stored": [1], "oneRow": [{"hops": 0}]}
    del spec["embeddings"]
    revision = published(tmp_path, spec | {"variants": variants}).served()
    (response,) = ask(revision, {"pair": [17, 3], "count": 2})
    assert response.status_code == 200, response.text
    told = response.json()
    why = "no variant that reads edges answers requests with an overlay and embeddings, which influences take"
    assert told["unexplained"] == why
    assert len(told["neighbours"]) == 2 and all("influence" not in one for one in told["neighbours"])
