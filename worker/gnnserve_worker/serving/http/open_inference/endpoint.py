"""The Open Inference Protocol over HTTP, but for its predictions (`codecs/open_inference.py`).

Paths under /v2 answer in the protocol's words, errors too. What they tell is in `served_models.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gnnserve_api import decoding
from gnnserve_worker.asking.body_form import UNREADABLE
from gnnserve_worker.asking.question import ErrorCode, RequestError, wrong_method
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.http.asgi_predict import ClientGoneError, Receive, Scope, Send, read_body, send_response
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD
from gnnserve_worker.serving.http.codecs.open_inference import encode_protocol_error
from gnnserve_worker.serving.http.codecs.open_inference_paths import (
    METHODS,
    OpenInferenceCall,
    OpenInferencePath,
    read_path,
)
from gnnserve_worker.serving.http.open_inference.served_models import ServedModels
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.requests import Reply


class _IndexRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for the index of models."""

    ready: bool = False
    """Only models that answer now."""


class _LoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parameters: dict[str, Any] | None = None


_index = decoding.decoder(_IndexRequest)
_load = decoding.decoder(_LoadRequest)


class OpenInference:
    def __init__(self, models: ServedModels, predict: Predict) -> None:
        self._models = models
        self._predict = predict

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
            case OpenInferenceCall.SERVER:
                return _json(self._models.describe_server())
            case OpenInferenceCall.LIVE:
                return _told({}, "live", self._models.why_dead())
            case OpenInferenceCall.SERVER_READY:
                return _told({}, "ready", self._models.why_unready())
            case OpenInferenceCall.INDEX:
                return await self._list_models(scope, receive)
            case OpenInferenceCall.LOAD | OpenInferenceCall.UNLOAD:
                return await self._change(place, scope, receive)
            case _:
                return self._describe(place)

    def _describe(self, place: OpenInferencePath) -> Reply:
        """What a path of a model tells, or one of all models."""
        if place.call is OpenInferenceCall.MODEL_READY:
            assert place.model is not None  # noqa: S101
            why = self._models.why_model_unready(place.model, place.version)
            return _told({"name": place.model}, "ready", why)
        told = self._models.describe(place.call, place.model, place.version)
        return self._predict.refuse(told, encode_protocol_error) if isinstance(told, Refusal) else _json(told)

    async def _change(self, place: OpenInferencePath, scope: Scope, receive: Receive) -> Reply:
        """Load a model, or unload it."""
        body = await read_body(scope, receive, "send an object such as {}")
        try:
            asked = _load.decode(body) if body.strip() else _LoadRequest()
        except UNREADABLE as error:
            raise RequestError(ErrorCode.INVALID_JSON, "body", f"it is no such request: {error}", "send {}") from None
        assert place.model is not None  # noqa: S101
        if place.call is OpenInferenceCall.UNLOAD:
            self._models.unload(place.model)
        refusal = self._models.load(place.model, asked.parameters or ())
        return _json({}) if refusal is None else self._predict.refuse(refusal, encode_protocol_error)

    async def _list_models(self, scope: Scope, receive: Receive) -> Reply:
        body = await read_body(scope, receive, "send an object such as {}")
        try:
            asked = _index.decode(body) if body.strip() else _IndexRequest()
        except UNREADABLE as error:
            remedy = 'send {} or {"ready": true}'
            raise RequestError(ErrorCode.INVALID_JSON, "body", f"it is no index request: {error}", remedy) from None
        return _json(self._models.list_models(only_ready=asked.ready))


def _told(of: Mapping[str, str], what: str, why: str) -> Reply:
    """`why`: why it is not so; empty: it is so."""
    told = {**of, what: not why}
    return _json(told) if not why else _json(told | {"error": why}, 503)


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status, JSON_HEAD, msgspec.json.encode(value) + b"\n")
