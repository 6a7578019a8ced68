"""`POST /v1/predict` without I/O: from a head and a body to a reply, by callback.

Two ways lead here: `connection.py`, straight from the HTTP parser, and the ASGI application of `app.py` for what is
rare. The form of a request is its codec's (`codecs/`); what it is refused for is the same for both ways. Status codes
are given here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import assert_never

import msgspec

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.changes.updates import Updates
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.http.codecs.codec import Codec
from gnnserve_worker.serving.http.codecs.json import encode_error
from gnnserve_worker.serving.http.codecs.registry import find_codec
from gnnserve_worker.serving.http.held import WAIT_WITHOUT_LATENCY_MS, Held, wait_for_offset
from gnnserve_worker.serving.http.question import (
    NO_WISHES,
    WISH_HEADERS,
    BehindError,
    ErrorCode,
    Question,
    RequestError,
    Wishes,
    check_stated_once,
    is_large,
    read_wishes,
)
from gnnserve_worker.serving.lane import Lane
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.requests import Answer, Failure, NodeLeft, NotFinite, Outcome, Pending

MAX_BODY_BYTES = 16 * 1024 * 1024
READ_HEADERS = WISH_HEADERS | {b"content-type"}
"""The headers that `read_head` looks at."""
_MOST_AT_ONCE = 65_536
"""Answers with more numbers are sent in pieces, with other clients in between."""
_LOOK_AGAIN_S = 0.01
_MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bodies of requests that wait for an offset, altogether."""
_log = logging.getLogger(__name__)

REFUSAL_STATUS = {
    RefusalReason.OBJECTIVE_INFEASIBLE: 422,
    RefusalReason.QUEUE_FULL: 429,
    RefusalReason.DEADLINE_OUT_OF_REACH: 429,
    RefusalReason.DEADLINE_PASSED: 429,
    RefusalReason.LOADING: 503,
    RefusalReason.DRAINING: 503,
}
ERROR_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.NO_WRITING: 403,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.NO_UPDATES: 409,
    ErrorCode.LOG_CONFLICT: 409,
    ErrorCode.SEQUENCE_PASSED: 409,
    ErrorCode.BODY_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_OVERLAY_NODES: 413,
    ErrorCode.TOO_MANY_OVERLAY_EDGES: 413,
    ErrorCode.OVERLAY_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_CHANGES: 413,
    ErrorCode.HEAD_TOO_LARGE: 431,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.UNSUPPORTED_CODING: 501,
    ErrorCode.UNSUPPORTED_VERSION: 505,
    ErrorCode.TOO_MANY_CONNECTIONS: 503,
    ErrorCode.OFFSET_NOT_REACHED: 503,
    ErrorCode.NO_ROOM: 503,
    ErrorCode.NOT_APPLIED: 503,
    ErrorCode.LOG_UNAVAILABLE: 503,
    ErrorCode.LOG_FULL: 503,
}
_OF_FIELDS = frozenset(
    (ErrorCode.TOO_MANY_OVERLAY_NODES, ErrorCode.TOO_MANY_OVERLAY_EDGES, ErrorCode.OVERLAY_TOO_LARGE)
)
"""Errors with another status than 400 that name a field of the request."""
JSON_HEAD = b"content-type: application/json\r\n"
_HEAD_OF_ERROR = {
    ErrorCode.UNAUTHORIZED: JSON_HEAD + b'www-authenticate: Bearer realm="gnnserve"\r\n',
    ErrorCode.METHOD_NOT_ALLOWED: JSON_HEAD + b"allow: POST\r\n",
    ErrorCode.TOO_MANY_CONNECTIONS: JSON_HEAD + b"retry-after: 1\r\n",
    ErrorCode.OFFSET_NOT_REACHED: JSON_HEAD + b"retry-after: 1\r\n",
    ErrorCode.LOG_UNAVAILABLE: JSON_HEAD + b"retry-after: 1\r\n",
    # A person, or a compaction, has to make room.
    ErrorCode.NO_ROOM: JSON_HEAD + b"retry-after: 10\r\n",
    ErrorCode.LOG_FULL: JSON_HEAD + b"retry-after: 10\r\n",
}


class Head(msgspec.Struct, frozen=True):
    """The parsed head of a request."""

    codec: Codec
    query: bytes
    wishes: Wishes


def read_head(path: str, headers: Sequence[tuple[bytes, bytes]], query: bytes) -> Head | None:
    """`headers`: all of them, names in lower case. None: no predictions at this path."""
    read = {name: value for name, value in headers if name in READ_HEADERS}
    codec = find_codec(path, read.get(b"content-type", b""))
    if codec is None:
        return None
    if query:
        codec.check_query(query)
    if WISH_HEADERS.isdisjoint(read):
        return Head(codec, query, NO_WISHES)
    check_stated_once(headers)
    return Head(codec, query, read_wishes(read))


class Asked(msgspec.Struct, frozen=True):
    """A request that can be answered, and the lane that it belongs to, whatever is switched to meanwhile."""

    lane: Lane
    question: Question
    codec: Codec
    arrived_ms: float
    large: bool
    """Its answer is sent in pieces."""
    read_ms: float
    """Time of reading its overlay; 0 without one."""


class Behind(msgspec.Struct, frozen=True):
    """A request that asks for an offset which the worker has not applied yet. Nothing else of it is read."""

    head: Head
    body: bytes
    min_offset: int
    arrived_ms: float
    deadline_ms: float


class Reply(msgspec.Struct, frozen=True):
    status: int
    head: bytes
    """Header lines, each with its CRLF, without the body's length."""
    body: bytes | memoryview
    pieces: Iterator[bytes] | None = None
    """Parts of a large body, in place of `body`; each is quick to make."""


class Predict:
    def __init__(self, model: ServedModel, metrics: ServingMetrics, updates: Updates | None = None) -> None:
        self.in_flight = 0
        """Requests that wait for their answer; kept by those who send it."""
        self._model = model
        self._metrics = metrics
        self._updates = updates
        self._held_bytes = 0
        """Bodies of the requests that wait for an offset."""
        self._timed: StageTimes | None = None
        self._stages = b""
        """Encoded stages of `_timed`, which the requests of a batch share."""
        self._refusal = Refusal(RefusalReason.QUEUE_FULL, "", None)
        self._refusal_reply = refusal_reply(self._refusal)
        """The encoded reply of `_refusal`."""

    def start(self, head: Head, body: bytes, respond: Callable[[Reply], None]) -> Pending | Held | Reply:
        """`respond` is called later, unless there is a reply at once or the request is cancelled."""
        asked = self.read(head, body)
        if isinstance(asked, Asked):
            return self.ask(asked, respond)
        return self._hold(asked, respond) if isinstance(asked, Behind) else asked

    def read(self, head: Head, body: bytes, arrived_ms: float | None = None) -> Asked | Behind | Reply:
        """`arrived_ms`: when a request arrived that was read before; None: now."""
        if arrived_ms is None:
            arrived_ms = monotonic_ms()
        lane = self._model.lane
        if lane is None:
            return self.refuse(self._model.refuse())
        seeds = head.codec.estimate_seeds(body, are_texts=lane.revision.has_text_ids)
        refused = self._model.would_refuse(seeds, arrived_ms)
        if refused is not None and not _may_choose(head, body):
            return self._refuse_unread(refused, seeds, head.codec.may_have_overlay(body))
        revision, max_nodes = lane.revision, lane.batching.max_queued_seeds
        try:
            question = head.codec.parse_question(
                body, head.query, head.wishes, revision, max_nodes, lane.overlay_limits
            )
        except RequestError as error:
            return self.refuse_request(error)
        except BehindError as behind:
            wanted: Objective = lane.objective if behind.objective == NO_OBJECTIVE else behind.objective
            patience_ms = WAIT_WITHOUT_LATENCY_MS if wanted.latency_ms is None else wanted.latency_ms
            return Behind(head, body, behind.min_offset, arrived_ms, arrived_ms + patience_ms)
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            return self.fail(error)
        overlay, read_ms = question.overlay, 0.0
        if overlay is not None:
            read_ms = monotonic_ms() - arrived_ms
            if len(overlay.features):
                self._model.watch.note_inputs(revision, overlay.features)
            self._metrics.count_overlay(overlay.new_nodes, overlay.edges, read_ms)
        return Asked(lane, question, head.codec, arrived_ms, is_large(question, revision, _MOST_AT_ONCE), read_ms)

    def ask(self, asked: Asked, respond: Callable[[Reply], None]) -> Pending | Reply:
        """`respond` is called later, unless there is a reply at once or the request is cancelled."""
        question = asked.question
        pending = self._model.submit(
            asked.lane, question.nodes, question.objective, question.strict, "embeddings" in question.outputs,
            asked.arrived_ms, lambda outcome: respond(self._respond(asked, outcome)),
            question.overlay, question.seed, question.variant,
        )  # fmt: skip
        return self.refuse(pending) if isinstance(pending, Refusal) else pending

    def _refuse_unread(self, refusal: Refusal, seeds: int, brings_overlay: bool) -> Reply:
        """Under overload most requests end here, so that refusing takes little of what answering needs: the body is not
        parsed, and the reply is encoded once for as long as the reason is the same."""
        self._metrics.count_offered(seeds)
        self._metrics.count_refused(refusal.reason)
        if brings_overlay:
            self._metrics.count_unread_overlay()
        if refusal is not self._refusal:
            self._refusal, self._refusal_reply = refusal, refusal_reply(refusal)
        return self._refusal_reply

    def _hold(self, behind: Behind, respond: Callable[[Reply], None]) -> Held | Reply:
        """Let a request wait until the worker has applied its offset; it is read and asked then."""
        updates, size = self._updates, len(behind.body)
        assert updates is not None  # noqa: S101  (the graph of its revision changes)
        if self._held_bytes + size > _MOST_HELD_BYTES:
            message = f"requests that wait for their offset have more than {_MOST_HELD_BYTES:,} bytes; send it again"
            return self.refuse(Refusal(RefusalReason.QUEUE_FULL, message, 1))
        self._held_bytes += size

        async def run(held: Held) -> None:
            try:
                asked = await self._read_when_applied(behind, updates)
                reply = self.ask(asked, respond) if isinstance(asked, Asked) else asked
                if isinstance(reply, Pending):
                    held.pending = reply
                else:
                    respond(reply)
            except Exception as error:  # noqa: BLE001  (as in `read`)
                respond(self.fail(error))

        def let_go() -> None:
            self._held_bytes -= size

        return Held(run, let_go)

    async def _read_when_applied(self, behind: Behind, updates: Updates) -> Asked | Reply:
        async def is_reached() -> bool:
            return await wait_for_offset(
                updates, behind.min_offset, behind.deadline_ms, lambda: self._model.state is ModelState.READY
            )

        while await is_reached():
            asked = self.read(behind.head, behind.body, behind.arrived_ms)
            if not isinstance(asked, Behind):
                return asked
            # Another revision took over, whose graph does not have the offset yet.
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._model.state is not ModelState.READY:
            return self.refuse(self._model.refuse())
        return self.refuse_request(
            RequestError(
                ErrorCode.OFFSET_NOT_REACHED,
                "minOffset",
                f"this worker has applied offset {updates.applied:,} of {updates.last:,} that it knows of, and "
                f"{behind.min_offset:,} is wanted",
                "send it again, allow more time by objective.latencyMs, or ask for an earlier offset",
            )
        )

    def cancel(self, pending: Pending | Held) -> None:
        if isinstance(pending, Held):
            pending.cancel(self._model.cancel)
        else:
            self._model.cancel(pending)

    def count_gone(self) -> None:
        """A client left before its answer."""
        self._metrics.count_error(ErrorCode.CLIENT_GONE)

    def refuse(self, refusal: Refusal) -> Reply:
        if REFUSAL_STATUS[refusal.reason] == 429:
            self._metrics.count_refused(refusal.reason)
        else:
            self._metrics.count_error(refusal.reason)
        return refusal_reply(refusal)

    def refuse_request(self, error: RequestError) -> Reply:
        self._metrics.count_error(error.code)
        return error_reply(error)

    def _respond(self, asked: Asked, outcome: Outcome) -> Reply:
        match outcome:
            case Answer():
                try:
                    return self._encode(asked, outcome)
                except Exception as error:  # noqa: BLE001  (as in `read`)
                    return self.fail(error)
            case Refusal():
                return self.refuse(outcome)
            case NotFinite():
                problem = f"variant {outcome.variant} makes scores of its features that are not finite"
                remedy = "give features in the range of those of the graph's source"
                return self.refuse_request(RequestError(ErrorCode.INVALID_VALUE, "overlay", problem, remedy))
            case NodeLeft():
                problem = "a node that the request names left the graph while the request waited"
                remedy = "GET /v1/nodes lists its node ids"
                return self.refuse_request(RequestError(ErrorCode.UNKNOWN_NODE, "nodes", problem, remedy))
            case Failure():
                return self._internal_error(outcome.error_id)
            case _:
                assert_never(outcome)

    def fail(self, error: Exception) -> Reply:
        """The reply where an error of ours kept a request from being answered."""
        error_id = secrets.token_hex(8)
        _log.error("error %s: a request could not be read or its answer not be written", error_id, exc_info=error)
        return self._internal_error(error_id)

    def _internal_error(self, error_id: str) -> Reply:
        message = f"an error of the worker; its log has the details under {error_id}"
        self._metrics.count_error(ErrorCode.INTERNAL_ERROR)
        return Reply(500, JSON_HEAD, encode_error(ErrorDetail(ErrorCode.INTERNAL_ERROR, message)))

    def _encode(self, asked: Asked, answer: Answer) -> Reply:
        times = answer.times
        if times is not self._timed:
            self._timed = times
            self._stages = b", sample;dur=%.3f, gather;dur=%.3f, compute;dur=%.3f\r\n" % (
                times.sample_ms, times.gather_ms, times.compute_ms
            )  # fmt: skip
        # Reading an overlay takes the longer, the more it brings: it counts as what it is, and not as waiting.
        queue_ms, overlay_ms = max(0.0, answer.queue_ms - asked.read_ms), times.overlay_ms + asked.read_ms
        overlay = b", overlay;dur=%.3f" % overlay_ms if overlay_ms else b""
        timing = b"server-timing: queue;dur=%.3f%b%b" % (queue_ms, overlay, self._stages)
        encoded = asked.codec.encode_answer(
            answer, asked.question.outputs, asked.lane.revision, partial(_objective_met, answer), in_pieces=asked.large
        )
        head = encoded.head + timing
        if encoded.pieces is not None:
            return Reply(200, head, b"", self._observed(answer, queue_ms, encoded.pieces))
        self._observe(answer, queue_ms)
        return Reply(200, head, encoded.body)

    def _observed(self, answer: Answer, queue_ms: float, pieces: Iterator[bytes]) -> Iterator[bytes]:
        yield from pieces
        self._observe(answer, queue_ms)

    def _observe(self, answer: Answer, queue_ms: float) -> None:
        total_ms = monotonic_ms() - answer.arrived_ms
        self._metrics.observe_answer(answer.variant, queue_ms, total_ms, answer.objective.latency_ms)


def _may_choose(head: Head, body: bytes) -> bool:
    """Whether the request may have an objective of its own or name a variant, so that it has to be parsed."""
    wishes = head.wishes
    return wishes.objective != NO_OBJECTIVE or wishes.variant is not None or head.codec.may_choose(body)


def _objective_met(answer: Answer) -> bool:
    return answer.objective.latency_ms is None or answer.objective_met(monotonic_ms())


def error_reply(error: RequestError) -> Reply:
    status = ERROR_STATUS.get(error.code, 400)
    field = error.where if status == 400 or error.code in _OF_FIELDS else None
    return Reply(
        status, _HEAD_OF_ERROR.get(error.code, JSON_HEAD), encode_error(ErrorDetail(error.code, str(error), field))
    )


def refusal_reply(refusal: Refusal) -> Reply:
    seconds = refusal.retry_after_s
    head = JSON_HEAD if seconds is None else JSON_HEAD + b"retry-after: %d\r\n" % seconds
    return Reply(REFUSAL_STATUS[refusal.reason], head, encode_error(ErrorDetail(refusal.reason, refusal.message)))
