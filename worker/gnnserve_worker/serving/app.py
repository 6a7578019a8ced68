"""The HTTP interface of a worker, as an ASGI application.

`POST /v1/predict` is a plain ASGI callable: at a few hundred microseconds per answer, a framework would double the
cost. Everything else is FastAPI. Status codes are given here and nowhere else.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from swagger_ui_bundle import swagger_ui_path

from gnnserve_api.protocol import ErrorDetail, VariantsAnswer
from gnnserve_api.routing import Route
from gnnserve_worker.serving import openapi
from gnnserve_worker.serving.batcher import Refusal, RefusalReason
from gnnserve_worker.serving.choice import decide_route
from gnnserve_worker.serving.engine import Answer, Engine, EngineState, Failure, Lane, Outcome, Pending, monotonic_ms
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.protocol_json import (
    ErrorCode,
    Question,
    RequestError,
    count_numbers,
    encode_answer,
    encode_error,
    parse_question,
)

MAX_BODY_BYTES = 16 * 1024 * 1024
PREDICT_PATH = "/v1/predict"
_STREAM_FROM_NUMBERS = 65_536
"""Answers with more numbers are sent in pieces, with other clients in between."""
_WATCH_AFTER_S = 0.05
"""A client is watched for leaving only when its answer takes longer: a watcher costs as much as a short answer."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_REFUSAL_STATUS = {
    RefusalReason.OBJECTIVE_INFEASIBLE: 422,
    RefusalReason.QUEUE_FULL: 429,
    RefusalReason.DEADLINE_OUT_OF_REACH: 429,
    RefusalReason.DEADLINE_PASSED: 429,
    RefusalReason.LOADING: 503,
    RefusalReason.DRAINING: 503,
}
_ERROR_STATUS = {ErrorCode.BODY_TOO_LARGE: 413, ErrorCode.METHOD_NOT_ALLOWED: 405}
_JSON = (b"content-type", b"application/json")


class _ClientGoneError(Exception):
    """Nobody is left to answer."""


class ServingApp:
    """The application; what it answers from is the engine's lane of the moment."""

    def __init__(self, service: str, engine: Engine, metrics: ServingMetrics) -> None:
        self.leaving = False
        """Answer on, but ask clients to go elsewhere: `/readyz` says no, and no connection is kept."""
        self._predict = Predict(engine, metrics)
        self._rest = _build_rest(service, self, engine, metrics)
        metrics.watch(queue_seeds=lambda: engine.queued_seeds, in_flight=lambda: self._predict.in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.leaving:
            send = _closing(send)
        if scope["type"] == "http" and scope["path"] == PREDICT_PATH:
            await self._predict(scope, receive, send)
        else:
            await self._rest(scope, receive, send)


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_and_close


class Predict:
    """`POST /v1/predict`: parse, ask the engine, encode."""

    def __init__(self, engine: Engine, metrics: ServingMetrics) -> None:
        self.in_flight = 0
        self._engine = engine
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            await self._respond(scope, receive, send)
        except RequestError as error:
            status = _ERROR_STATUS.get(error.code, 400)
            headers = [(b"allow", b"POST")] if error.code is ErrorCode.METHOD_NOT_ALLOWED else []
            field = error.where if status == 400 else None
            await self._send_error(send, status, ErrorDetail(error.code, str(error), field), headers)
        except _ClientGoneError:
            self._metrics.count_error(ErrorCode.CLIENT_GONE)
        finally:
            self.in_flight -= 1

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise RequestError(
                ErrorCode.METHOD_NOT_ALLOWED, PREDICT_PATH, f"{scope['method']} is not possible", "use POST"
            )
        body = await _read_body(scope, receive)
        arrived_ms = monotonic_ms()
        # From here to its last byte the request belongs to this lane, whatever is switched to meanwhile.
        lane = self._engine.lane
        if lane is None:
            await self._send_refusal(send, self._engine.refuse())
            return
        question = parse_question(body, lane.revision, lane.batching.max_queued_seeds)
        pending = self._engine.submit(
            lane, question.nodes, question.objective, question.strict, "embeddings" in question.outputs, arrived_ms
        )
        outcome = pending if isinstance(pending, Refusal) else await self._outcome(pending, receive)
        match outcome:
            case Answer():
                await self._send_answer(send, lane, question, outcome)
            case Refusal():
                await self._send_refusal(send, outcome)
            case Failure(error_id):
                message = f"an error of the worker; its log has the details under {error_id}"
                await self._send_error(send, 500, ErrorDetail(ErrorCode.INTERNAL_ERROR, message), [])

    async def _outcome(self, pending: Pending, receive: Receive) -> Outcome:
        watcher: asyncio.Task[None] | None = None

        def watch() -> None:
            nonlocal watcher
            watcher = asyncio.create_task(_cancel_when_gone(receive, pending))

        timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, watch)
        try:
            return await pending.outcome
        except asyncio.CancelledError:
            self._engine.cancel(pending)
            if pending.outcome.cancelled() and watcher is not None and watcher.done():
                raise _ClientGoneError from None
            raise
        finally:
            timer.cancel()
            if watcher is not None:
                watcher.cancel()

    async def _send_answer(self, send: Send, lane: Lane, question: Question, answer: Answer) -> None:
        times = answer.times
        timing = (
            f"queue;dur={answer.queue_ms:.3f}, sample;dur={times.sample_ms:.3f}, "
            f"gather;dur={times.gather_ms:.3f}, compute;dur={times.compute_ms:.3f}"
        )
        headers = [_JSON, (b"server-timing", timing.encode())]
        pieces = encode_answer(answer, question.outputs, lane.revision, lambda: answer.objective_met(monotonic_ms()))
        if count_numbers(answer, question.outputs) <= _STREAM_FROM_NUMBERS:
            await _send(send, 200, headers, b"".join(pieces))
        else:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # another client's turn
            await send({"type": "http.response.body", "body": b""})
        self._metrics.observe_answer(answer.variant, answer.queue_ms, monotonic_ms() - answer.arrived_ms)

    async def _send_refusal(self, send: Send, refusal: Refusal) -> None:
        self._metrics.count_error(refusal.reason)
        status, headers, body = _refusal_response(refusal)
        await _send(send, status, [_JSON, *headers], body)

    async def _send_error(
        self, send: Send, status: int, detail: ErrorDetail, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self._metrics.count_error(detail.code)
        await _send(send, status, [_JSON, *headers], encode_error(detail))


async def _read_body(scope: Scope, receive: Receive) -> bytes | bytearray:
    for name, value in scope["headers"]:
        # By its digits first: Python refuses to read a number of thousands of them.
        if name == b"content-length" and (len(value) > 18 or int(value) > MAX_BODY_BYTES):
            raise _too_large()
    message = await _receive_part(receive)
    if not message.get("more_body", False):
        return message.get("body", b"")  # type: ignore[no-any-return]
    body = bytearray(message.get("body", b""))
    while message.get("more_body", False):
        message = await _receive_part(receive)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return body


async def _receive_part(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _ClientGoneError
    return message


def _too_large() -> RequestError:
    return RequestError(
        ErrorCode.BODY_TOO_LARGE,
        "body",
        f"over the limit of {MAX_BODY_BYTES:,} bytes",
        "split the nodes over several requests",
    )


async def _cancel_when_gone(receive: Receive, pending: Pending) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    pending.outcome.cancel()


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _refusal_response(refusal: Refusal) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    seconds = refusal.retry_after_s
    headers = [] if seconds is None else [(b"retry-after", str(seconds).encode())]
    return _REFUSAL_STATUS[refusal.reason], headers, encode_error(ErrorDetail(refusal.reason, refusal.message))


def _build_rest(service: str, serving: ServingApp, engine: Engine, metrics: ServingMetrics) -> FastAPI:
    version = importlib.metadata.version("gnnserve")
    # Its own pages come from a CDN, and its description lacks the predict path: both are made below.
    app = FastAPI(
        title=f"gnnserve: {service}",
        version=version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )

    def about_lane(describe: Callable[[Lane], msgspec.Struct]) -> Response:
        if engine.lane is None:
            status, headers, body = _refusal_response(engine.refuse())
            named = {name.decode(): value.decode() for name, value in headers}
            return Response(body, status, named, media_type="application/json")
        return Response(_json(describe(engine.lane)), media_type="application/json")

    @app.get("/v1/variants", tags=["variants"], response_class=Response, responses=_described(VariantsAnswer))
    async def get_variants() -> Response:
        """The variants and their profile: accuracy, latency by number of nodes, size and memory."""
        return about_lane(lambda lane: _variants(service, lane))

    @app.get("/v1/route", tags=["variants"], response_class=Response, responses=_described(Route))
    async def get_route() -> Response:
        """Which variant answers a one-node request that states no objective, and why."""
        return about_lane(
            lambda lane: decide_route(
                lane.chooser, lane.revision.manifest.revision, lane.objective, lane.batching, engine.problem
            )
        )

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["health"], response_class=Response, responses={503: {"description": "Restart it."}})
    async def healthz() -> Response:
        """Whether the process can still answer. Anything but 200: restart it."""
        return _health(engine.failure is None, "the engine's thread died; its log says why; restart the worker")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["health"], response_class=Response, responses={503: {"description": "Not now."}})
    async def readyz() -> Response:
        """Whether requests should be sent here now."""
        if serving.leaving and engine.state is EngineState.READY:
            return _health(False, "the worker is about to drain")
        why = f": {engine.problem}" if engine.state is EngineState.LOADING and engine.problem else ""
        return _health(engine.state is EngineState.READY, f"the worker is {engine.state.lower()}{why}")

    @app.get("/metrics", tags=["health"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def get_metrics() -> Response:
        """For Prometheus."""
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url="docs-assets/swagger-ui-bundle.js",
            swagger_css_url="docs-assets/swagger-ui.css",
            swagger_favicon_url="docs-assets/favicon-32x32.png",
        )

    app.mount("/docs-assets", StaticFiles(directory=swagger_ui_path))
    document = _json(_describe(app))

    @app.get("/openapi.json", include_in_schema=False)
    async def get_description() -> Response:
        return Response(document, media_type="application/json")

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        asked = f"{request.method} {request.url.path}"
        match error.status_code:
            case 404:
                detail = ErrorDetail(ErrorCode.NOT_FOUND, f"{asked}: no such path; /docs lists what there is")
            case 405:
                detail = ErrorDetail(ErrorCode.METHOD_NOT_ALLOWED, f"{asked} is not possible; use GET")
            case _:
                detail = ErrorDetail(ErrorCode.INTERNAL_ERROR, f"{asked}: {error.detail}")
        body = encode_error(detail)
        return Response(body, error.status_code, error.headers, media_type="application/json")

    return app


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _health(healthy: bool, reason: str) -> Response:
    return Response("ok\n" if healthy else reason + "\n", 200 if healthy else 503, media_type="text/plain")


def _variants(service: str, lane: Lane) -> VariantsAnswer:
    revision = lane.revision
    manifest = revision.manifest
    return VariantsAnswer(
        service=service,
        revision=manifest.revision,
        recipe=manifest.recipe,
        nodes=revision.nodes,
        features=len(manifest.ranking.columns),
        classes=revision.classes,
        multi_label=revision.multi_label,
        profile=manifest.profile,
    )


def _described(type_: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"content": openapi.json_content(type_)},
        503: openapi.error_response("There is no revision to answer from yet.", openapi.RETRY_AFTER),
    }


def _describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, openapi_version=openapi.OPENAPI_VERSION, routes=app.routes
    )
    document["paths"] = {PREDICT_PATH: openapi.predict_path(), **document["paths"]}
    document.setdefault("components", {}).setdefault("schemas", {}).update(openapi.component_schemas())
    return document
