"""The calls of the Open Inference Protocol over gRPC besides predictions, and the health of gRPC itself.

What they tell is in `http/open_inference/served_models.py`; here it becomes messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict

from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.grpc.codec import encode_grpc_error, read_message
from gnnserve_worker.serving.grpc.messages import (
    HEALTH,
    INFERENCE,
    HealthCheckRequest,
    HealthCheckResponse,
    messages_of,
)
from gnnserve_worker.serving.grpc.status import end_with
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.codecs.open_inference_paths import OpenInferenceCall

_LOOK_EVERY_S = 0.5
"""Time between two looks at what a client watches."""

Told = dict[str, Any] | Refusal
Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Calls:
    def __init__(self, app: ServingApp) -> None:
        self._models = app.models
        self._predict = app.predict
        tells: Mapping[str, Callable[[Any], Told]] = {
            "ServerLive": lambda _asked: {"live": not self._models.why_dead()},
            "ServerReady": lambda _asked: {"ready": not self._models.why_unready()},
            "ModelReady": self._tell_readiness,
            "ServerMetadata": lambda _asked: self._models.describe_server(),
            "ModelMetadata": partial(self._tell_of_model, OpenInferenceCall.METADATA),
            "ModelConfig": self._tell_config,
            "ModelStatistics": partial(self._tell_of_model, OpenInferenceCall.STATISTICS),
            "RepositoryIndex": self._list_models,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        messages = messages_of(INFERENCE)
        self.handlers: Mapping[str, Handler] = {
            name: partial(self._answer, tell, *messages[name]) for name, tell in tells.items()
        }
        """What answers each call, by its name."""

    async def _answer(self, tell: Callable[[Any], Told], asked: Any, answered: Any, raw: bytes, context: Any) -> bytes:
        try:
            told = tell(read_message(asked, raw))
            if not isinstance(told, Refusal):
                message: bytes = ParseDict(told, answered()).SerializeToString()
                return message
            reply = self._predict.refuse(told, encode_grpc_error)
        except RequestError as error:
            reply = self._predict.refuse_request(error, encode_grpc_error)
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            reply = self._predict.fail(error, encode_grpc_error)
        await end_with(context, reply)
        raise AssertionError  # what ends a call raises

    def _tell_readiness(self, asked: Any) -> Told:
        """Clients ask this for a yes or a no: what there is not is not ready."""
        try:
            why = self._models.why_model_unready(asked.name, asked.version or None)
        except RequestError as error:
            self._predict.refuse_request(error)  # counts it
            return {"ready": False}
        return {"ready": not why}

    def _tell_of_model(self, call: OpenInferenceCall, asked: Any) -> Told:
        # Statistics without a name are those of all models; there is no model without a name.
        name = asked.name or None if call is OpenInferenceCall.STATISTICS else asked.name
        return self._models.describe(call, name, asked.version or None)

    def _tell_config(self, asked: Any) -> Told:
        told = self._tell_of_model(OpenInferenceCall.CONFIG, asked)
        return told if isinstance(told, Refusal) else {"config": told}

    def _load(self, asked: Any) -> Told:
        _check_repository(asked)
        return self._models.load(asked.model_name, asked.parameters) or {}

    def _unload(self, asked: Any) -> Told:
        _check_repository(asked)
        self._models.unload(asked.model_name)
        return {}

    def _list_models(self, asked: Any) -> Told:
        _check_repository(asked)
        return {"models": self._models.list_models(only_ready=asked.ready)}


def _check_repository(asked: Any) -> None:
    if asked.repository_name:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "repository_name",
            f"there is no repository {shown_value(asked.repository_name)}", "leave it out: there is one",
        )  # fmt: skip


class Health:
    """grpc.health.v1, of the server and of the protocol's service: whether requests should be sent here now."""

    def __init__(self, app: ServingApp) -> None:
        self._models = app.models
        self._predict = app.predict
        self._status = HealthCheckResponse.ServingStatus
        self._drained = asyncio.Event()

    async def check(self, raw: bytes, context: Any) -> bytes:
        try:
            status = self._look(read_message(HealthCheckRequest, raw).service)
        except RequestError as error:
            await end_with(context, self._predict.refuse_request(error, encode_grpc_error))
            raise
        return _health(status)

    async def watch(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Tells the status now and whenever it is another, until the worker ends."""
        raw = await anext(aiter(requests), b"")
        try:
            service = read_message(HealthCheckRequest, raw).service
        except RequestError as error:
            await end_with(context, self._predict.refuse_request(error, encode_grpc_error))
        told = None
        while not self._drained.is_set():
            try:
                status = self._look(service)
            except RequestError:
                status = self._status.Value("SERVICE_UNKNOWN")
            if status != told:
                await context.write(_health(status))
                told = status
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._drained.wait()
            except TimeoutError:
                continue

    def drain(self) -> None:
        self._drained.set()

    def _look(self, service: str) -> int:
        if service not in {"", INFERENCE, HEALTH}:
            raise RequestError(
                ErrorCode.NOT_FOUND, "service", f"there is no service {shown_value(service)}",
                f"leave it out, or give {INFERENCE}",
            )  # fmt: skip
        status: int = self._status.Value("NOT_SERVING" if self._models.why_unready() else "SERVING")
        return status


def _health(status: int) -> bytes:
    encoded: bytes = HealthCheckResponse(status=status).SerializeToString()
    return encoded
