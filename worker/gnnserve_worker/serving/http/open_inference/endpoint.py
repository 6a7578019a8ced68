"""The Open Inference Protocol over HTTP, but for its predictions (`codecs/open_inference.py`).

Paths under /v2 answer in the protocol's words, errors too. What is told is of the lane that answers now.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine import Engine
from gnnserve_worker.serving.http.asgi_predict import ClientGoneError, Receive, Scope, Send, read_body, send_response
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD
from gnnserve_worker.serving.http.codecs.open_inference import encode_protocol_error
from gnnserve_worker.serving.http.codecs.open_inference_paths import METHODS, Call, Place, read_path
from gnnserve_worker.serving.http.open_inference.about import (
    describe_config,
    describe_index,
    describe_model,
    describe_server,
    describe_usage,
)
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, check_variant, unknown_model, wrong_method
from gnnserve_worker.serving.http.replies import Reply
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.model import ModelState


class _IndexRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of the index is asked for."""

    ready: bool = False
    """Only models that answer now."""


_index = msgspec.json.Decoder(_IndexRequest)


class OpenInference:
    def __init__(
        self, service: str, predict: Predict, engine: Engine, metrics: ServingMetrics, is_leaving: Callable[[], bool]
    ) -> None:
        """`is_leaving`: whether clients are to go elsewhere, though they are answered."""
        self._service = service
        self._predict = predict
        self._engine = engine
        self._model = engine.models[service]
        self._metrics = metrics
        self._is_leaving = is_leaving
        self._version = importlib.metadata.version("gnnserve")
        self._of_model: dict[Call, Callable[[ServedRevision, str | None], Any]] = {
            Call.METADATA: partial(describe_model, service),
            Call.MODEL_READY: lambda revision, version: {"name": service, "ready": True},
            Call.CONFIG: partial(describe_config, service),
            Call.STATISTICS: self._list_usage,
        }
        """What the calls about a model answer, by its revision and the version that is named."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except RequestError as error:
            reply = self._predict.refuse_request(error, encode_protocol_error)
        except ClientGoneError:
            self._predict.count_gone()
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            reply = self._predict.fail(error, encode_protocol_error)
        await send_response(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        method, path = scope["method"], scope["path"]
        place = read_path(path)
        if place is None:
            problem = f"{method} {path}: no such path"
            raise RequestError(ErrorCode.NOT_FOUND, "path", problem, "docs/open-inference.md lists what there is")
        if method != METHODS[place.call]:
            raise wrong_method(method, path, METHODS[place.call])
        match place.call:
            case Call.SERVER:
                return _json(describe_server(self._version))
            case Call.LIVE:
                return _told({}, "live", "" if self._engine.failure is None else "the engine's thread died")
            case Call.SERVER_READY:
                return _told({}, "ready", self._why_unready())
            case Call.INDEX:
                return await self._list_models(scope, receive)
            case _:
                return self._describe(place)

    def _describe(self, place: Place) -> Reply:
        """What a path of a model tells, or one of all models."""
        if place.model is not None and place.model != self._service:
            raise unknown_model(place.model, self._service)
        lane = self._model.lane
        if place.call is Call.MODEL_READY and (why := self._why_unready()):
            return _told({"name": self._service}, "ready", why)
        if lane is None:
            return self._predict.refuse(self._model.refuse(), encode_protocol_error)
        revision, version = lane.revision, place.version
        if version is not None:
            check_variant(version, (), False, revision, "version")
        return _json(self._of_model[place.call](revision, version))

    def _list_usage(self, revision: ServedRevision, version: str | None) -> dict[str, Any]:
        names = revision.capabilities if version is None else (version,)
        return {"model_stats": [describe_usage(self._service, name, self._metrics.usage_of(name)) for name in names]}

    async def _list_models(self, scope: Scope, receive: Receive) -> Reply:
        body = await read_body(scope, receive, "send an object such as {}")
        try:
            asked = _index.decode(body) if body.strip() else _IndexRequest()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            remedy = 'send {} or {"ready": true}'
            raise RequestError(ErrorCode.INVALID_JSON, "body", f"it is no index request: {error}", remedy) from None
        lane, why = self._model.lane, self._why_unready()
        if lane is not None and not why:
            return _json(describe_index(self._service, lane.revision))
        waiting = [{"name": self._service, "state": "UNAVAILABLE", "reason": why}]
        return _json([] if asked.ready else waiting)

    def _why_unready(self) -> str:
        """Empty: requests should be sent here now."""
        state = self._engine.state
        if state is ModelState.READY:
            return "the worker is about to drain" if self._is_leaving() else ""
        problem = f": {self._model.problem}" if state is ModelState.LOADING and self._model.problem else ""
        return f"the worker is {state.lower()}{problem}"


def _told(of: Mapping[str, str], what: str, why: str) -> Reply:
    """`why`: why it is not so; empty: it is so."""
    told = {**of, what: not why}
    return _json(told) if not why else _json(told | {"error": why}, 503)


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, JSON_HEAD, msgspec.json.encode(value) + b"\n")
