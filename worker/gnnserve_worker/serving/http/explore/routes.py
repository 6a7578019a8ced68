"""Paths of the page `/explore`: the page itself, and what of a node only it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from gnnserve_api.http.explain import ExplainAnswer, ExplainRequest
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine.model import ServedModel
from gnnserve_worker.serving.http.asgi_predict import ClientGoneError, read_body
from gnnserve_worker.serving.http.explore.explain import explain
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, error_response, json_content
from gnnserve_worker.serving.http.page import build_page
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.requests import Answer, Failure, NodeLeft, NotFinite, Reply

EXPLAIN_PATH = "/v1/explain"
EXPLORE_PATH = "/explore"


def add_explore(
    app: FastAPI, service: str, model: ServedModel, predict: Predict, as_response: Callable[[Reply], Response]
) -> None:
    page = build_page(service, "explore.html")

    @app.head(EXPLORE_PATH, include_in_schema=False)
    @app.get(EXPLORE_PATH, include_in_schema=False)
    async def get_page() -> HTMLResponse:
        return HTMLResponse(page.body, headers=page.headers)

    @app.post(
        EXPLAIN_PATH,
        tags=["predict"],
        response_class=Response,
        responses={
            200: {"content": json_content(ExplainAnswer)},
            400: error_response("The request is malformed, names what the graph lacks, or the revision cannot tell."),
            413: error_response("The body is too large."),
            429: error_response("The queue is full.", RETRY_AFTER),
            503: error_response("There is no revision to answer from yet.", RETRY_AFTER),
        },
        openapi_extra={"requestBody": {"required": True, "content": json_content(ExplainRequest)}},
    )
    async def post_explain(request: Request) -> Response:
        """Neighbours of a node, or of both of a pair, by their influence on its answer: each edge is left out in
        turn."""
        try:
            body = await read_body(request.scope, request.receive)
            lane = model.lane
            found = model.refuse() if lane is None else await explain(body, lane, model)
        except RequestError as error:
            return as_response(predict.refuse_request(error))
        except ClientGoneError:
            predict.count_gone()
            return Response()
        match found:
            case ExplainAnswer():
                return Response(msgspec.json.encode(found) + b"\n", media_type="application/json")
            case Refusal():
                return as_response(predict.refuse(found))
            case NodeLeft():
                left = RequestError(ErrorCode.UNKNOWN_NODE, "node", "it left the graph meanwhile", "name another one")
                return as_response(predict.refuse_request(left))
            case Failure() | NotFinite() | Answer():
                return as_response(predict.fail(RuntimeError(f"an edge was left out, and the answer is {found}")))
            case _:
                assert_never(found)
