"""Predictions over gRPC: one to a call (`ModelInfer`), or one after another in a stream (`ModelStreamInfer`).

Requests of a stream are read ahead, so that they can be computed together, and answered in their order. A wrong one is
answered by its error, and the stream goes on. A client that leaves, or whose deadline passes, takes its requests along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gnnserve_worker.asking.question import (
    NO_WISHES,
    WISH_HEADERS,
    RequestError,
    Wishes,
    check_stated_once,
    unauthorized,
    wishes_of_head,
)
from gnnserve_worker.serving.engine.model import STOPPING, monotonic_ms
from gnnserve_worker.serving.grpc.codec import InferCodec, RecommendInferCodec, encode_grpc_error
from gnnserve_worker.serving.grpc.gathering import Gathering
from gnnserve_worker.serving.grpc.known_messages import KnownMessages
from gnnserve_worker.serving.grpc.messages import (
    INFERENCE,
    ModelInferResponse,
    ModelStreamInferResponse,
    encode_length,
)
from gnnserve_worker.serving.grpc.status import OK, end_with, metadata_of, sentence_of
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.codecs.recommending.tensors import RECOMMENDS
from gnnserve_worker.serving.http.waiting_request import WaitingRequest
from gnnserve_worker.serving.http.wire.limits import MOST_PIPELINED
from gnnserve_worker.serving.requests import Arrival, PendingRequest, Reply
from gnnserve_worker.serving.tracing.traces import PARENT_HEADER

_PARENT = PARENT_HEADER.decode()
_PATH = f"/{INFERENCE}/ModelInfer"
"""Requests of a stream are traced as if each were a call."""
_WISHES = frozenset(name.decode() for name in WISH_HEADERS)

_ANSWER = b"\x12"
"""Tag of the answer in a message of a stream."""

Fields = tuple[tuple[str, str | bytes], ...]
"""Metadata of a call, names in lower case."""


def as_headers(metadata: Fields) -> list[tuple[bytes, bytes]]:
    """Metadata as HTTP has its headers."""
    return [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in metadata]


def wishes_of(metadata: Fields) -> Wishes:
    """What metadata asks for, by the names of HTTP's headers. Raises RequestError."""
    headers = as_headers(metadata)
    check_stated_once(headers)
    return wishes_of_head(dict(headers))


def head_of(codec: InferCodec, metadata: Fields) -> Arrival:
    """The head of a request, without a body, by the metadata of its call. Raises RequestError."""
    parent, has_wishes = None, False
    for name, value in metadata:
        if name in _WISHES:
            has_wishes = True
        elif name == _PARENT and parent is None:
            parent = value.encode() if isinstance(value, str) else value
    return Arrival(codec, b"", wishes_of(metadata) if has_wishes else NO_WISHES, path=_PATH, parent=parent)


class _ListenerState:
    """State that the requests of a listener share."""

    __slots__ = ("app", "asked", "gathering", "known", "predict")

    def __init__(self, app: ServingApp) -> None:
        self.app = app
        self.predict = app.predict
        self.known = KnownMessages()
        self.gathering = Gathering()
        self.asked: set[_GrpcRequest] = set()
        """Requests that wait for their answer."""


class _GrpcRequest:
    """A request of a client that waits for its answer."""

    __slots__ = ("_arrived_ms", "_metadata", "_pending", "_raw", "_shared", "answer", "id")

    def __init__(self, shared: _ListenerState, raw: bytes, metadata: Fields) -> None:
        self.id = ""
        self._shared = shared
        self._raw = raw
        self._metadata = metadata
        self._arrived_ms = monotonic_ms()
        self._pending: PendingRequest | WaitingRequest | None = None
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        shared.predict.in_flight += 1
        if shared.asked:
            shared.gathering.expect_others()
        shared.asked.add(self)
        inlet = shared.app.inlet
        if inlet is None:
            shared.gathering.begin(self.take_in)
        else:
            inlet.count(len(raw))
            shared.gathering.begin(partial(inlet.put, self))

    def take_in(self) -> None:
        if self.answer.done():
            return  # its client is gone
        predict, raw = self._shared.predict, self._raw
        try:
            codec = InferCodec(raw, self._shared.known)
            if codec.name.endswith(RECOMMENDS):
                codec = RecommendInferCodec(codec)
            self.id = codec.id
            begun = predict.start(head_of(codec, self._metadata), raw, self._take, self._arrived_ms)
        except RequestError as error:
            begun = predict.refuse_request(error, encode_grpc_error)
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            begun = predict.fail(error, encode_grpc_error)
        if isinstance(begun, Reply):
            self._take(begun)
        else:
            self._pending = begun

    def _take(self, reply: Reply) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def end(self) -> None:
        """Let go of the answer once nothing waits for it any more: it was taken, or the client is gone."""
        predict = self._shared.predict
        self._shared.asked.discard(self)
        predict.in_flight -= 1
        if not self.answer.done() or self.answer.cancelled():
            self.answer.cancel()
            if self._pending is not None:
                predict.cancel(self._pending)
            predict.count_gone()


class GrpcPredictions:
    def __init__(self, app: ServingApp) -> None:
        self._shared = _ListenerState(app)
        self._access = app.access
        self._streams: set[_Stream] = set()

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._shared.asked)

    async def infer(self, raw: bytes, context: Any) -> bytes:
        asked = _GrpcRequest(self._shared, raw, context.invocation_metadata())
        try:
            reply = await asked.answer
        finally:
            asked.end()
        if reply.status != OK:
            await end_with(context, reply)
        if reply.head:
            context.set_trailing_metadata(metadata_of(reply))
        return bytes(reply.body)

    async def infer_stream(self, _requests: Any, context: Any) -> None:
        stream = _Stream(self._shared, context, self._check_token)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    async def hold(self) -> None:
        """Take all requests that gRPC has, and begin none of them until `release`."""
        await self._shared.gathering.hold()

    def release(self) -> None:
        self._shared.gathering.release()

    def drain(self) -> None:
        """Answer what the streams have sent, and end them."""
        for stream in self._streams:
            stream.drain()

    def _check_token(self, metadata: Fields) -> None:
        # A token may be withdrawn while a stream is open.
        if self._access.needs_token and not self._access.accepts(as_headers(metadata)):
            raise unauthorized("that the service accepts")


class _Stream:
    """One call of `ModelStreamInfer`."""

    def __init__(self, shared: _ListenerState, context: Any, check_token: Callable[[Fields], None]) -> None:
        self._shared = shared
        self._predict = shared.predict
        self._context = context
        self._check_token = check_token
        self._metadata: Fields = context.invocation_metadata()
        self._waiting: deque[_GrpcRequest] = deque()
        """Requests without an answer, in their order."""
        self._changed = asyncio.Event()
        self._has_ended = False
        """Whether the client sends nothing more, or the worker reads nothing more."""
        self._end: Reply | None = None
        """The error that the call ends with; None: it ends well."""
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._reading = asyncio.create_task(self._read())
        try:
            while await self._has_more():
                await self._answer_first()
        finally:
            self._reading.cancel()
            while self._waiting:
                self._waiting.popleft().end()
        if self._end is not None:
            await end_with(self._context, self._end)

    def drain(self) -> None:
        if self._reading is not None and not self._has_ended:
            self._reading.cancel()
            self._end = self._predict.refuse(STOPPING, encode_grpc_error)
            self._finish()

    async def _has_more(self) -> bool:
        while not self._waiting and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._waiting)

    async def _answer_first(self) -> None:
        asked = self._waiting[0]
        reply = await asked.answer
        self._waiting.popleft().end()
        self._changed.set()
        await self._context.write(_in_stream(reply, asked.id))

    async def _read(self) -> None:
        while isinstance(raw := await self._context.read(), bytes):
            try:
                self._check_token(self._metadata)
            except RequestError as error:
                self._end = self._predict.refuse_request(error, encode_grpc_error)
                break
            self._waiting.append(_GrpcRequest(self._shared, raw, self._metadata))
            self._changed.set()
            while len(self._waiting) >= MOST_PIPELINED:
                self._changed.clear()
                await self._changed.wait()
        self._finish()

    def _finish(self) -> None:
        self._has_ended = True
        self._changed.set()


def _in_stream(reply: Reply, request_id: str) -> bytes:
    """The message of a stream that has the reply, and as parameters what its head says."""
    if reply.status == OK:
        parts = [reply.body]
        if reply.head:
            said = ModelInferResponse()
            for name, value in metadata_of(reply):
                said.parameters[name.replace("-", "_")].string_param = value
            parts.append(said.SerializeToString())  # one behind the other, two messages are one
        return b"".join((_ANSWER, encode_length(sum(map(len, parts))), *parts))
    told = ModelStreamInferResponse(error_message=sentence_of(reply), infer_response={"id": request_id})
    told.infer_response.parameters["error_code"].string_param = dict(metadata_of(reply))["gnnserve-error"]
    encoded: bytes = told.SerializeToString()
    return encoded
