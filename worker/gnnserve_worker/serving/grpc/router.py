"""Calls of the gRPC listener: what answers each, and what all of them have in common.

Tokens are asked for in one place, so that a new call is closed by default. A call of one message is read here: gRPC
itself waits for that message without end, and does not answer where there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from gnnserve_worker.asking.question import ErrorCode, RequestError, cut, unauthorized
from gnnserve_worker.serving.grpc.calls import Calls, Handler, Health
from gnnserve_worker.serving.grpc.codec import encode_grpc_error
from gnnserve_worker.serving.grpc.limits import GrpcLimits
from gnnserve_worker.serving.grpc.messages import HEALTH, INFERENCE
from gnnserve_worker.serving.grpc.predictions import GrpcPredictions, as_headers
from gnnserve_worker.serving.grpc.reflection import METHODS as REFLECTION_METHODS
from gnnserve_worker.serving.grpc.reflection import Reflection
from gnnserve_worker.serving.grpc.status import end_with
from gnnserve_worker.serving.grpc.unread import UnreadCalls
from gnnserve_worker.serving.http.app import ServingApp

_OPEN = frozenset(f"/{INFERENCE}/{name}" for name in ("ServerLive", "ServerReady")) | {f"/{HEALTH}/Check"}
"""Calls that need no token, and are answered however many there are: they tell health alone."""
_WATCH = f"/{HEALTH}/Watch"


StreamHandler = Callable[[Any, Any], Awaitable[None]]


class Router(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds what answers a call, or refuses it."""

    def __init__(self, app: ServingApp, predictions: GrpcPredictions, health: Health, limits: GrpcLimits) -> None:
        self._access = app.access
        self._predict = app.predict
        self._limits = limits
        self._calls = 0
        self._streams = 0
        self._unread = UnreadCalls(limits.message_s)
        self._handlers: dict[str, Any] = {
            **{f"/{INFERENCE}/{name}": self._single(answer) for name, answer in Calls(app).handlers.items()},
            f"/{INFERENCE}/ModelInfer": self._single(predictions.infer),
            f"/{INFERENCE}/ModelStreamInfer": self._stream(predictions.infer_stream),
            **dict.fromkeys(REFLECTION_METHODS, self._stream(Reflection(app.predict).reflect)),
            f"/{HEALTH}/Check": self._single(health.check),
            _WATCH: self._stream(health.watch),
        }

    def service(self, call: Any) -> Any:
        """Called by gRPC as each call begins; what is returned goes on with it."""
        method = call.method
        if method not in _OPEN:
            is_accepted = not self._access.needs_token or method == _WATCH
            if not is_accepted and not self._access.accepts(as_headers(call.invocation_metadata)):
                return self._refusing(unauthorized("that the service accepts"))
        handler = self._handlers.get(method)
        if handler is None:
            remedy = "docs/open-inference.md lists what there is"
            return self._refusing(
                RequestError(ErrorCode.METHOD_NOT_ALLOWED, cut(method), "there is no such call", remedy)
            )
        open_now, most = self._streams, self._limits.streams
        if not handler.response_streaming:
            open_now, most = self._calls, self._limits.calls
        if open_now >= most and method not in _OPEN:
            return self._refusing(_too_many("streams" if handler.response_streaming else "calls", most))
        return handler

    def _single(self, answer: Handler) -> Any:
        """The handler of a call that has one message and one answer."""

        async def handle(_requests: Any, context: Any) -> bytes:
            self._calls += 1
            try:
                raw = await self._unread.read(context)
                if raw is None:
                    await end_with(context, self._predict.refuse_request(_no_message(), encode_grpc_error))
                    raise AssertionError  # what ends a call raises
                return await answer(raw, context)
            finally:
                self._calls -= 1

        # To gRPC it is a stream that is answered once: so the message is ours to wait for.
        return grpc.stream_unary_rpc_method_handler(handle)

    def _stream(self, answer: StreamHandler) -> Any:
        async def handle(requests: Any, context: Any) -> None:
            self._streams += 1
            try:
                await answer(requests, context)
            finally:
                self._streams -= 1

        return grpc.stream_stream_rpc_method_handler(handle)

    def _refusing(self, error: RequestError) -> Any:
        """A handler that refuses a call of whatever kind, unread."""

        async def refuse(_requests: Any, context: Any) -> None:
            await end_with(context, self._predict.refuse_request(error, encode_grpc_error))

        return grpc.stream_stream_rpc_method_handler(refuse)


def _no_message() -> RequestError:
    return RequestError(ErrorCode.INVALID_BINARY, "message", "there is none", "send one with each call")


def _too_many(kind: str, most: int) -> RequestError:
    return RequestError(
        ErrorCode.TOO_MANY_CONNECTIONS, kind, f"there are {most:,} already, as many as a worker keeps",
        "use fewer, or send again later",
    )  # fmt: skip
