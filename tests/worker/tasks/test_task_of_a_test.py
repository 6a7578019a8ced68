"""A task that only this file knows is described, labelled, explained and recommended by what it says itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.serving.serving import Client, FakeWorker, running, service

from gnnserve_api.http.protocol import PredictAnswer, PredictRequest
from gnnserve_api.http.recommend import RecommendedNode
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.tasks.classify_nodes.served_labels import ClassLabels
from gnnserve_worker.tasks.classify_nodes.serving import ClassifyNodes
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.score_links.served_labels import NoNodeLabels

WRITING = "writing-0123456789ab"


class EstimateRequest(PredictRequest[int], frozen=True, rename="camel"):
    """Nodes to estimate."""


class EstimateAnswer(PredictAnswer, frozen=True, rename="camel"):
    """A number for each node."""


class _Generic:
    """`EstimateRequest`, whose ids are integers in any case."""

    __name__ = EstimateRequest.__name__

    def __getitem__(self, _ids: type) -> Any:
        return EstimateRequest


@dataclass(frozen=True, slots=True)
class NoRecommendations:
    output: Any = "scores"
    example: int = 7
    parts: tuple[IndexPart, ...] = ()

    def fold(self, *_: Any) -> None:
        return None

    def called(self, node: Any) -> Any:
        return node

    def no_part(self, revision: str) -> RequestError:
        return RequestError(ErrorCode.NO_RECOMMENDATIONS, "node", f"numbers of {revision} are near nothing", "ask less")

    def told(self, *_: Any) -> list[RecommendedNode]:
        return []


class EstimateNodes(ClassifyNodes):
    """Numbers in place of classes; what predictions are is left as it was."""

    @property
    def description(self) -> TaskDescription:
        return TaskDescription(
            "Estimate nodes", "number", _Generic(), EstimateAnswer, ("nodes",), ("scores",), {"nodes": [7]},
            {"scores": [[0.5]]},
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        return {"classes": ("number",), "multi_label": False}

    def explained(self, nodes: Sequence[int]) -> str:
        return f"the number of node {nodes[0]} rests on nothing"

    def is_like(self, other: Any) -> bool:
        return isinstance(other, EstimateNodes)


class Unlabelled(ClassLabels):
    def items(self, request: Any) -> Sequence[Sequence[Any]]:
        raise RequestError(ErrorCode.WRONG_TASK, "labels", "no labels")


def revision() -> ServedRevision:
    made = FakeWorker().revision()
    of = made.task
    assert isinstance(of, ClassifyNodes)
    given = {
        name: getattr(of, name)
        for name in ("graph", "provenance", "classes", "multi_label", "thresholds", "missing_embeddings",
                     "most_embedding_columns", "tensors", "decoder")
    }  # fmt: skip
    task = EstimateNodes(**given)
    object.__setattr__(task, "labels", NoNodeLabels())
    said = Unlabelled(of.graph, of.classes, of.multi_label, of.decisive_scores)
    object.__setattr__(task, "live_labels", said)
    object.__setattr__(task, "recommending", NoRecommendations())
    empty = replace(made.graph, neighbours_of=lambda _node: np.array([3, 5], np.int32))
    return replace(made, task=task, graph=empty)


def served(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(FakeWorker(loaded=False), service(), write_access=Access((WRITING,))) as client:
            client.switch(revision())
            await scenario(client)

    asyncio.run(run())


def test_openapi_and_variants_have_its_words_schemas_and_examples() -> None:
    async def scenario(client: Client) -> None:
        document = (await client.http.get("/openapi.json")).json()
        post = document["paths"]["/v1/predict"]["post"]
        assert (post["summary"], post["responses"]["200"]["description"]) == (
            "Estimate nodes", "One entry per number, in the order asked.",
        )  # fmt: skip
        assert post["parameters"][0]["schema"] == {"type": "string", "enum": ["scores"], "default": "scores"}
        assert post["requestBody"]["content"]["application/json"]["example"]["return"] == ["scores"]
        schemas = document["components"]["schemas"]
        assert {"EstimateRequest", "EstimateAnswer"} <= schemas.keys()
        assert {"PredictRequest", "PredictAnswer", "PairsRequest"}.isdisjoint(schemas)
        assert schemas["EstimateRequest"]["properties"]["nodes"]["items"]["maximum"] == 999
        recommended = document["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]["application/json"]
        assert recommended["example"] == {"node": 7, "count": 10}
        told = (await client.http.get("/v1/variants")).json()
        assert told["classes"] == ["number"] and "links" not in told

    served(scenario)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/labels", {"nodes": [1], "labels": [10]}, "labels: no labels"),
        ("/v1/recommend", {"node": 1}, "are near nothing; ask less"),
    ],
)
def test_what_it_does_not_have_is_refused_in_its_words(path: str, body: dict[str, Any], words: str) -> None:
    async def scenario(client: Client) -> None:
        headers = {"authorization": f"Bearer {WRITING}"}
        response = await client.http.post(path, content=msgspec.json.encode(body), headers=headers)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]

    served(scenario)


def test_a_node_whose_answer_it_cannot_explain_is_shown_with_its_neighbours() -> None:
    async def scenario(client: Client) -> None:
        told = (await client.http.post("/v1/explain", json={"node": 9})).json()
        assert told["unexplained"] == "the number of node 9 rests on nothing"
        assert [one["id"] for one in told["neighbours"]] == [3, 5]
        assert told["label"] is None

    served(scenario)


def test_another_task_is_not_like_it() -> None:
    one, other = revision().task, FakeWorker().revision().task
    assert one.is_like(revision().task) and not one.is_like(other)
