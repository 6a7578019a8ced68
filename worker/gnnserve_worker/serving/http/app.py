"""The HTTP interface of a worker, as an ASGI application.

Predictions are a plain ASGI callable (`asgi_predict.py`), and most of them do not come here: `wire/connection.py`
answers them itself. Everything else is FastAPI.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from swagger_ui_bundle import swagger_ui_path

from gnnserve_api.http.live_accuracy import AccuracyAnswer, LabelsAnswer, LabelsRequest, PairLabelsRequest
from gnnserve_api.http.load_history import HistoryAnswer
from gnnserve_api.http.protocol import ErrorDetail, NodesAnswer, VariantsAnswer
from gnnserve_api.pods.routing import CredentialState, Damage, Route
from gnnserve_worker.asking.overlay import NoOverlays
from gnnserve_worker.asking.question import ErrorCode, RequestError, unauthorized
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.model import ServedModel
from gnnserve_worker.serving.http import openapi
from gnnserve_worker.serving.http.about import SecondRevision, describe_route, describe_variants
from gnnserve_worker.serving.http.asgi_predict import (
    AsgiApp,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    read_body,
    send_response,
    serve_prediction,
    split_header,
)
from gnnserve_worker.serving.http.changes import description
from gnnserve_worker.serving.http.changes.endpoint import CHANGES_PATH, ChangesEndpoint
from gnnserve_worker.serving.http.codecs.json import encode_error, encode_json_error
from gnnserve_worker.serving.http.codecs.open_inference_paths import is_open_inference
from gnnserve_worker.serving.http.codecs.registry import error_form_of, is_prediction
from gnnserve_worker.serving.http.content_coding import LEVEL, WORTH_BYTES
from gnnserve_worker.serving.http.explore.routes import EXPLAIN_PATH, add_explore
from gnnserve_worker.serving.http.labels import LABELS_PATH, describe_accuracy, take_labels
from gnnserve_worker.serving.http.nodes import list_nodes
from gnnserve_worker.serving.http.open_inference.endpoint import OpenInference
from gnnserve_worker.serving.http.open_inference.served_models import ServedModels
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, either_json, error_response, json_content
from gnnserve_worker.serving.http.page import build_page
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.http.replies import error_reply, refusal_reply
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.metrics.state_metrics import RoutingSample
from gnnserve_worker.serving.requests import ErrorForm, Lane, Reply
from gnnserve_worker.serving.security.access import RESERVED_PATHS, WRITES, Access, is_open

MOST_CONNECTIONS = 4096
RESERVED_CONNECTIONS = 64
"""Connections beyond the limit that are kept for the reserved paths."""


class ServingApp:
    """The application; what it answers from is the engine's lane of the moment."""

    def __init__(
        self,
        service: str,
        engine: Engine,
        metrics: ServingMetrics,
        access: Access | None = None,
        credentials: Callable[[], tuple[CredentialState, ...]] = tuple,
        write_access: Access | None = None,
        updates: Updates | None = None,
    ) -> None:
        """`access`: None means that no token is needed. `credentials`: their states, for `/v1/route`. `write_access`:
        None means that no request may write. `updates`: None means that the graph does not change."""
        self.leaving = False
        """Answer on, but ask clients to go elsewhere: `/readyz` says no, and no connection is kept."""
        self.most_connections = MOST_CONNECTIONS
        """The server's limit of ordinary connections."""
        self.inlet: Inlet | None = None
        """Where input waits for the service's turns; None: it is read as it comes."""
        self.access = access or Access()
        self._write_access = write_access
        self.credentials = credentials
        self.updates = updates
        self.canary: SecondRevision | None = None
        """None: one revision answers all requests."""
        model = engine.models[service]
        self.predict = Predict(service, model, metrics.counters, updates)
        self.models = ServedModels(service, engine, metrics, lambda: self.leaving)
        self._open_inference = OpenInference(self.models, self.predict)
        self.changes = ChangesEndpoint(model, self.predict, metrics.changes, updates)
        self._rest = GZipMiddleware(_build_rest(service, self, engine, model, metrics), WORTH_BYTES, LEVEL)
        metrics.watch(queue_seeds=lambda: model.queued_seeds, in_flight=lambda: self.predict.in_flight)
        metrics.watch_routing(
            lambda: None if model.lane is None else RoutingSample(model.route(), *model.corrections())
        )
        metrics.watch_accuracy(model.watch)
        if updates is not None:
            metrics.watch_updates(updates)
        metrics.watch_index(
            lambda: () if model.lane is None else model.lane.revision.compute.indexes, model.renewal.figures
        )
        metrics.watch_stale(model.refreshing)
        metrics.watch_device(lambda: None if model.lane is None else model.lane.revision.compute.device_stats())
        metrics.watch_programs(lambda: None if model.lane is None else model.lane.revision.compute.programs())

    async def close(self) -> None:
        """Close the log of changes, once what was sent is answered."""
        if self.canary is not None:
            await self.canary.stop_following()
        if self.updates is not None:
            await self.updates.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.leaving:
            send = _closing(send)
        wrong = self._wrong_access(scope)
        if wrong is not None:
            await send_response(send, self.predict.refuse_request(wrong, error_form_of(scope["path"])))
        elif is_prediction(scope["path"]):
            await serve_prediction(self.predict, scope, receive, send)
        elif is_open_inference(scope["path"]):
            await self._open_inference.serve(scope, receive, send)
        elif (scope["method"], scope["path"]) == ("POST", CHANGES_PATH):
            await self.changes.serve(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    def _wrong_access(self, scope: Scope) -> RequestError | None:
        """Why the request may not be answered, or not write; None: it may."""
        path = scope["path"]
        if (scope["method"], path) in WRITES:
            if self._write_access is None:
                # Where there is no log, tokens would change nothing: the endpoint says what would.
                return None if path == CHANGES_PATH and self.updates is None else _no_writing(path)
            return None if self._write_access.accepts(scope["headers"]) else unauthorized("that may write")
        if not self.access.needs_token or is_open(path) or self.access.accepts(scope["headers"]):
            return None
        return unauthorized("that the service accepts")

    async def answer_surplus(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on a connection beyond the limit: only reserved paths."""
        if scope["path"] in RESERVED_PATHS:
            await self(scope, receive, send if self.leaving else _closing(send))
        else:
            await send_response(_closing(send), self.refuse_connection(error_form_of(scope["path"])))

    def refusing(self, error: RequestError, form: ErrorForm) -> AsgiApp:
        """An application that refuses one request, after which the connection is closed."""

        async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send_response(_closing(send), self.predict.refuse_request(error, form))

        return refuse

    def refuse_connection(self, form: ErrorForm = encode_json_error) -> Reply:
        return self.predict.refuse_request(
            RequestError(
                ErrorCode.TOO_MANY_CONNECTIONS,
                "connection",
                f"there are {self.most_connections:,} already, as many as a worker keeps",
                "use fewer, or send again later",
            ),
            form,
        )


def _no_writing(path: str) -> RequestError:
    return RequestError(
        ErrorCode.NO_WRITING,
        path,
        "no request may write to this worker",
        "name a Secret of tokens in spec.endpoint.writeTokens, or a file with --write-token-file",
    )


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_and_close


def _build_rest(
    service: str, serving: ServingApp, engine: Engine, model: ServedModel, metrics: ServingMetrics
) -> FastAPI:
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

    _add_variants(app, service, model)
    _add_labels(app, serving, model, metrics)
    _add_changes(app, serving.changes)
    _add_route(app, serving, model)
    _add_health(app, serving.models, engine)
    _add_metrics(app, service, metrics)
    add_explore(app, service, model, serving.predict, _as_response)
    _add_pages(app, service)
    _add_description(app, service, serving, model)
    app.exception_handler(HTTPException)(_refuse)
    return app


def _about_lane(model: ServedModel, describe: Callable[[Lane], msgspec.Struct]) -> Response:
    if model.lane is None:
        return _as_response(refusal_reply(model.refuse()))
    try:
        return Response(_json(describe(model.lane)), media_type="application/json")
    except RequestError as error:
        return _as_response(error_reply(error))


def _add_variants(app: FastAPI, service: str, model: ServedModel) -> None:
    @app.get("/v1/variants", tags=["variants"], response_class=Response, responses=_described(VariantsAnswer))
    async def get_variants() -> Response:
        """The variants and their profile: accuracy, latency by number of nodes, size and memory."""
        return _about_lane(model, lambda lane: describe_variants(service, lane, model.watch))

    @app.get(
        "/v1/nodes",
        tags=["predict"],
        response_class=Response,
        responses=_described(NodesAnswer) | {400: error_response("The page is out of range.")},
        openapi_extra={"parameters": openapi.nodes_parameters()},
    )
    async def get_nodes(request: Request) -> Response:
        """Some of the ids that requests call nodes by, in the graph's order."""
        return _about_lane(model, lambda lane: list_nodes(request.scope["query_string"], lane.revision))

    @app.get("/v1/accuracy", tags=["variants"], response_class=Response, responses=_described(AccuracyAnswer))
    async def get_accuracy() -> Response:
        """Accuracy of the variants in service, by the labels that clients sent, beside what their profile promised."""
        return _about_lane(model, lambda lane: describe_accuracy(service, lane, model.watch))


def _add_labels(app: FastAPI, serving: ServingApp, model: ServedModel, metrics: ServingMetrics) -> None:
    @app.post(
        LABELS_PATH,
        tags=["variants"],
        response_class=Response,
        responses=_described(LabelsAnswer)
        | {
            400: error_response("The body is malformed as a whole; nothing of it was taken."),
            401: error_response("The token is missing, or is none that may write."),
            403: error_response("No request may write to this worker."),
            413: error_response("The body is too large: split the request."),
            429: error_response("Too many labels wait already.", RETRY_AFTER),
        },
        openapi_extra={"requestBody": {"required": True, "content": either_json(LabelsRequest, PairLabelsRequest)}},
    )
    async def post_labels(request: Request) -> Response:
        """What nodes turned out to be, or where links are scored, which pairs came to be links. Every variant is
        evaluated on them when the worker is idle. Labels that are wrong are named in the answer, and the others are
        kept."""
        try:
            body = await read_body(request.scope, request.receive)
            lane = model.lane  # of now: the body may have taken long
            second = None if serving.canary is None else serving.canary.watch
            answer = model.refuse() if lane is None else take_labels(body, lane.revision, model.watch, second)
        except RequestError as error:
            return _as_response(serving.predict.refuse_request(error))
        except ClientGoneError:
            serving.predict.count_gone()
            return Response()
        if isinstance(answer, Refusal):
            metrics.counters.count_error(answer.reason)
            return _as_response(refusal_reply(answer))
        return Response(_json(answer), media_type="application/json")


def _add_changes(app: FastAPI, changes: ChangesEndpoint) -> None:
    @app.get(
        CHANGES_PATH,
        tags=["changes"],
        response_class=Response,
        responses=description.list_responses(),
        openapi_extra={"parameters": description.list_parameters()},
    )
    async def get_changes(request: Request) -> Response:
        """Batches of the log, in order, as far as it still has them."""
        return _as_response(await changes.list_records(request.scope["query_string"]))


def _add_route(app: FastAPI, serving: ServingApp, model: ServedModel) -> None:
    @app.get("/v1/route", tags=["variants"], response_class=Response, responses=_described(Route))
    async def get_route() -> Response:
        """Tells which variant answers a one-node request that states no objective, why, and on which device."""
        if model.lane is None and model.damage is not None:
            return _damaged(refusal_reply(model.refuse()), model.damage)
        return _about_lane(
            model,
            lambda lane: describe_route(
                model,
                lane.revision,
                serving.updates,
                needs_token=serving.access.needs_token,
                credentials=serving.credentials(),
                canary=None if serving.canary is None else serving.canary.route(),
            ),
        )


def _add_health(app: FastAPI, models: ServedModels, engine: Engine) -> None:
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["health"], response_class=Response, responses={503: {"description": "Restart it."}})
    async def healthz() -> Response:
        """Whether the process can still answer. Anything but 200: restart it."""
        return _health(engine.failure is None, "the engine's thread died; its log says why; restart the worker")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", tags=["health"], response_class=Response, responses={503: {"description": "Not now."}})
    async def readyz() -> Response:
        """Whether requests should be sent here now."""
        why = models.why_unready()
        return _health(not why, why)


def _add_metrics(app: FastAPI, service: str, metrics: ServingMetrics) -> None:
    @app.get("/metrics", tags=["health"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def get_metrics(request: Request) -> Response:
        """Metrics for Prometheus, in its text format or in OpenMetrics."""
        body, content_type = metrics.expose(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @app.get(
        "/v1/history",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": json_content(HistoryAnswer)}},
    )
    async def get_history() -> Response:
        """Counters of requests over the last five minutes, a sample every four seconds."""
        return Response(_json(metrics.history.describe(service)), media_type="application/json")


def _add_pages(app: FastAPI, service: str) -> None:
    page = build_page(service)

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root() -> HTMLResponse:
        return HTMLResponse(page.body, headers=page.headers)

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


def _add_description(app: FastAPI, service: str, serving: ServingApp, model: ServedModel) -> None:
    """Describe the routes that there are by now."""
    described = get_openapi(
        title=app.title, version=app.version, openapi_version=openapi.OPENAPI_VERSION, routes=app.routes
    )

    @app.get("/openapi.json", include_in_schema=False)
    async def get_description(request: Request) -> Response:
        # Open without a token, so that /docs can be read; ids of the graph only with one.
        may_see = serving.access.accepts(request.scope["headers"])
        revision = _as_offered(model.lane) if model.lane is not None and may_see else None
        description = openapi.complete(service, described, revision, needs_token=serving.access.needs_token)
        return Response(_json(description), media_type="application/json")


async def _refuse(request: Request, error: HTTPException) -> Response:
    asked = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            detail = ErrorDetail(ErrorCode.NOT_FOUND, f"{asked}: no such path; /docs lists what there is")
        case 405:
            detail = ErrorDetail(ErrorCode.METHOD_NOT_ALLOWED, f"{asked} is not possible; use {_method(request)}")
        case _:
            detail = ErrorDetail(ErrorCode.INTERNAL_ERROR, f"{asked}: {error.detail}")
    return Response(encode_error(detail), error.status_code, error.headers, media_type="application/json")


def _method(request: Request) -> str:
    return {LABELS_PATH: "POST", EXPLAIN_PATH: "POST", CHANGES_PATH: "GET or POST"}.get(request.url.path, "GET")


def _as_offered(lane: Lane) -> ServedRevision:
    """The revision, without overlays where the service takes none."""
    revision = lane.revision
    if lane.overlay_limits.max_nodes:
        return revision
    return replace(revision, compute=replace(revision.compute, overlays=NoOverlays("the service takes none")))


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _health(healthy: bool, reason: str) -> Response:
    return Response("ok\n" if healthy else reason + "\n", 200 if healthy else 503, media_type="text/plain")


def _as_response(reply: Reply) -> Response:
    headers = {name.decode(): value.decode() for name, value in map(split_header, reply.head.splitlines())}
    return Response(bytes(reply.body), reply.status, headers)


def _damaged(reply: Reply, damage: Damage) -> Response:
    """The refusal, and for the operator why."""
    response = _as_response(reply)
    body = {**msgspec.json.decode(reply.body), "damaged": damage}
    return Response(msgspec.json.encode(body), response.status_code, media_type="application/json")


def _described(type_: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"content": json_content(type_)},
        503: error_response("There is no revision to answer from yet.", RETRY_AFTER),
    }
