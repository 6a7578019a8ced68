"""Paths of the page `/explore`: the page itself, and what of a node only it asks for."""

from __future__ import annotations

from typing import assert_never

import msgspec

from gnnserve_api.explain import ExplainAnswer, ExplainRequest
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.http.asgi_predict import Receive, Scope, read_body
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD
from gnnserve_worker.serving.http.explore.explain import explain
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, error_response, json_content
from gnnserve_worker.serving.http.page import build_page
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.http.question import ErrorCode, RequestError
from gnnserve_worker.serving.http.replies import Reply
from gnnserve_worker.serving.http.rest.routes import Operation, Routes
from gnnserve_worker.serving.model import ServedModel
from gnnserve_worker.serving.requests import Answer, Failure, NodeLeft, NotFinite

EXPLAIN_PATH = "/v1/explain"
EXPLORE_PATH = "/explore"


def add_explore(routes: Routes, service: str, model: ServedModel, predict: Predict) -> None:
    page = build_page(service, "explore.html")

    @routes.add(EXPLORE_PATH, ("GET", "HEAD"))
    async def get_page(_scope: Scope, _receive: Receive) -> Reply:
        return page.reply

    explained = Operation(
        "predict",
        {
            200: {"content": json_content(ExplainAnswer)},
            400: error_response("The request is malformed, names what the graph lacks, or the revision cannot tell."),
            413: error_response("The body is too large."),
            429: error_response("The queue is full.", RETRY_AFTER),
            503: error_response("There is no revision to answer from yet.", RETRY_AFTER),
        },
        body=json_content(ExplainRequest),
    )

    @routes.add(EXPLAIN_PATH, ("POST",), explained)
    async def post_explain(scope: Scope, receive: Receive) -> Reply:
        """Neighbours of a node by their influence on its answer: each edge is left out in turn."""
        try:
            body = await read_body(scope, receive)
            lane = model.lane
            found = model.refuse() if lane is None else await explain(body, lane, model)
        except RequestError as error:
            return predict.refuse_request(error)
        match found:
            case ExplainAnswer():
                return Reply(200, JSON_HEAD, msgspec.json.encode(found) + b"\n")
            case Refusal():
                return predict.refuse(found)
            case NodeLeft():
                left = RequestError(ErrorCode.UNKNOWN_NODE, "node", "it left the graph meanwhile", "name another one")
                return predict.refuse_request(left)
            case Failure() | NotFinite() | Answer():
                return predict.fail(RuntimeError(f"an edge was left out, and the answer is {found}"))
            case _:
                assert_never(found)
