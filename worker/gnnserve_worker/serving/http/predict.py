"""Predictions without I/O: from a head and a body to a reply, by callback.

Two ways lead here: `connection.py`, straight from the HTTP parser, and the ASGI application of `app.py` for what is
rare. The form of a request is its codec's (`codecs/`); what it is refused for is the same for both ways and all forms.
Status codes are given in `replies.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, assert_never

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_worker.asking.question import BehindError, ErrorCode, RequestError, unknown_model
from gnnserve_worker.changes.updates import Updates
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.http.asked import Asked, Behind
from gnnserve_worker.serving.http.codecs.codec import Codec, ErrorForm
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.http.content_coding import compress
from gnnserve_worker.serving.http.head import Head
from gnnserve_worker.serving.http.held import WAIT_WITHOUT_LATENCY_MS, Held, wait_for_offset
from gnnserve_worker.serving.http.replies import (
    REFUSAL_STATUS,
    Reply,
    error_reply,
    internal_error_reply,
    refusal_reply,
)
from gnnserve_worker.serving.http.server_timing import ServerTiming
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.requests import Answer, Failure, NodeLeft, NotFinite, Outcome, Pending
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import RequestTrace

MAX_BODY_BYTES = 16 * 1024 * 1024
_MOST_AT_ONCE = 65_536
"""Answers with more numbers are sent in pieces, with other clients in between."""
_LOOK_AGAIN_S = 0.01
_MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bodies of requests that wait for an offset, altogether."""
_log = logging.getLogger(__name__)


class Sharing(Protocol):
    """What divides requests between two revisions (`canary.py`)."""

    def start(
        self, head: Head, body: bytes, respond: Callable[[Reply], None], arrived_ms: float | None = None,
        trace: RequestTrace | None = None,
    ) -> Pending | Held | Reply: ...  # fmt: skip


class Predict:
    def __init__(
        self, service: str, model: ServedModel, metrics: ServingMetrics, updates: Updates | None = None
    ) -> None:
        self.canary: Sharing | None = None
        """Takes the place of `start` while a second revision answers a share of the requests."""
        self.in_flight = 0
        """Requests that wait for their answer; kept by those who send it."""
        self._service = service
        self._model = model
        self._metrics = metrics
        self._updates = updates
        self._held_bytes = 0
        """Bodies of the requests that wait for an offset."""
        self._timing = ServerTiming()
        self._refusal = Refusal(RefusalReason.QUEUE_FULL, "", None)
        self._refusal_replies: dict[type[Codec], Reply] = {}
        """The encoded replies of `_refusal`, by the form of the request."""

    def start(
        self, head: Head, body: bytes, respond: Callable[[Reply], None], arrived_ms: float | None = None
    ) -> Pending | Held | Reply:
        """`respond` is called later, unless there is a reply at once or the request is cancelled. `arrived_ms`: None:
        now."""
        if self._model.tracer is not None:
            return self._start_traced(self._model.tracer, head, body, respond, arrived_ms)
        if self.canary is not None:
            return self.canary.start(head, body, respond, arrived_ms)
        return self.begin(self.read(head, body, arrived_ms), respond)

    def _start_traced(
        self, tracer: Tracer, head: Head, body: bytes, respond: Callable[[Reply], None], arrived_ms: float | None
    ) -> Pending | Held | Reply:
        if arrived_ms is None:
            arrived_ms = monotonic_ms()
        trace = tracer.begin(head.parent, head.path, arrived_ms)
        if trace is None:
            return self._start_as_shared(head, body, respond, arrived_ms, None)

        def respond_and_end(reply: Reply) -> None:
            respond(reply)
            tracer.end(trace, monotonic_ms(), reply.status, reply.code)

        begun = self._start_as_shared(head, body, respond_and_end, arrived_ms, trace)
        if isinstance(begun, Reply):
            tracer.end(trace, monotonic_ms(), begun.status, begun.code)
        return begun

    def _start_as_shared(
        self, head: Head, body: bytes, respond: Callable[[Reply], None], arrived_ms: float, trace: RequestTrace | None
    ) -> Pending | Held | Reply:
        if self.canary is not None:
            return self.canary.start(head, body, respond, arrived_ms, trace)
        return self.begin(self.read(head, body, arrived_ms, trace), respond)

    def begin(self, asked: Asked | Behind | Reply, respond: Callable[[Reply], None]) -> Pending | Held | Reply:
        if isinstance(asked, Asked):
            return self.ask(asked, respond)
        return self._hold(asked, respond) if isinstance(asked, Behind) else asked

    def read(  # noqa: PLR0911 - a ladder, one rung a refusal
        self, head: Head, body: bytes, arrived_ms: float | None = None, trace: RequestTrace | None = None,
        *, must_parse: bool = False,
    ) -> Asked | Behind | Reply:  # fmt: skip
        """`arrived_ms`: when a request arrived that was read before; None: now. `must_parse`: refuse it unread on no
        account, because what it says is to be known."""
        begun_ms = monotonic_ms()
        if arrived_ms is None:
            arrived_ms = begun_ms
        codec = head.codec
        if codec.model is not None and codec.model != self._service:
            return self.refuse_request(unknown_model(codec.model, self._service), codec.encode_error)
        lane = self._model.lane
        if lane is None:
            return self.refuse(self._model.refuse(), codec.encode_error)
        seeds = codec.estimate_seeds(body, lane.revision)
        refused = self._model.would_refuse(seeds, arrived_ms)
        if refused is not None and not (must_parse or _may_choose(head, body)):
            return self._refuse_unread(refused, seeds, codec, brings_overlay=codec.may_have_overlay(body))
        revision, max_nodes = lane.revision, lane.batching.max_queued_seeds
        try:
            question = codec.parse_question(body, head.query, head.wishes, revision, max_nodes, lane.overlay_limits)
        except RequestError as error:
            return self.refuse_request(error, codec.encode_error)
        except BehindError as behind:
            wanted: Objective = lane.objective if behind.objective == NO_OBJECTIVE else behind.objective
            patience_ms = WAIT_WITHOUT_LATENCY_MS if wanted.latency_ms is None else wanted.latency_ms
            if behind.timeout_ms is not None:
                patience_ms = min(patience_ms, behind.timeout_ms)
            return Behind(head, body, behind.min_offset, arrived_ms, arrived_ms + patience_ms, trace)
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            return self.fail(error, codec.encode_error)
        overlay, read_ms = question.overlay, 0.0
        if overlay is not None:
            read_ms = monotonic_ms() - begun_ms
        receive_ms = None
        if head.wishes.all_times:
            receive_ms = monotonic_ms() - begun_ms - read_ms
        large = revision.task.is_large(question, _MOST_AT_ONCE)
        return Asked(lane, question, codec, arrived_ms, large, read_ms, head.coding, receive_ms, trace)

    def ask(self, asked: Asked, respond: Callable[[Reply], None]) -> Pending | Reply:
        """`respond` is called later, unless there is a reply at once or the request is cancelled."""
        question = asked.question
        if question.overlay is not None:
            self._note_overlay(question.overlay, asked)
        pending = self._model.submit(
            asked.lane, question, asked.arrived_ms, lambda outcome: respond(self._respond(asked, outcome))
        )
        if asked.trace is not None:
            _describe(asked.trace, asked)
            if isinstance(pending, Pending):
                pending.trace = asked.trace
        if question.timeout_ms is not None and isinstance(pending, Pending):
            self._give_up_later(asked, question.timeout_ms, pending, respond)
        return self.refuse(pending, asked.codec.encode_error) if isinstance(pending, Refusal) else pending

    def _note_overlay(self, overlay: Overlay, asked: Asked) -> None:
        # Not in `read`: of two revisions that read a request, one is asked.
        revision = asked.lane.revision
        if len(overlay.features):
            self._model.watch.note_inputs(revision, overlay.features)
        self._metrics.count_overlay(overlay.new_nodes, overlay.edges, asked.read_ms)

    def _give_up_later(
        self, asked: Asked, timeout_ms: float, pending: Pending, respond: Callable[[Reply], None]
    ) -> None:
        """Drop the request, wherever it is, once its time has passed."""

        def give_up() -> None:
            if self._model.accepted.get(pending.request.key) is pending:
                self._model.cancel(pending)
                problem = f"{timeout_ms:,.15g} ms have passed, and the answer is not there"
                remedy = "allow more time, or ask for a latency (latencyMs), which chooses a variant that keeps it"
                error = RequestError(ErrorCode.TIMED_OUT, "timeout", problem, remedy)
                respond(self.refuse_request(error, asked.codec.encode_error))

        left_ms = max(0.0, asked.arrived_ms + timeout_ms - monotonic_ms())
        timer, deliver = asyncio.get_running_loop().call_later(left_ms / 1000, give_up), pending.deliver

        def deliver_in_time(outcome: Outcome) -> None:
            timer.cancel()
            deliver(outcome)

        pending.deliver = deliver_in_time

    def _refuse_unread(self, refusal: Refusal, seeds: int, codec: Codec, *, brings_overlay: bool) -> Reply:
        """Under overload most requests end here, so that refusing takes little of what answering needs: the body is not
        parsed, and the reply is encoded once for as long as the reason is the same."""
        self._metrics.offered_seeds += seeds
        self._metrics.count_refused(refusal.reason)
        if brings_overlay:
            self._metrics.count_unread_overlay()
        if refusal is not self._refusal:
            self._refusal, self._refusal_replies = refusal, {}
        reply = self._refusal_replies.get(type(codec))
        if reply is None:
            reply = self._refusal_replies[type(codec)] = refusal_reply(refusal, codec.encode_error)
        return reply

    def _hold(self, behind: Behind, respond: Callable[[Reply], None]) -> Held | Reply:
        """Let a request wait until the worker has applied its offset; it is read and asked then."""
        updates, size = self._updates, len(behind.body)
        assert updates is not None  # noqa: S101  (the graph of its revision changes)
        if self._held_bytes + size > _MOST_HELD_BYTES:
            message = f"requests that wait for their offset have more than {_MOST_HELD_BYTES:,} bytes; send it again"
            return self.refuse(Refusal(RefusalReason.QUEUE_FULL, message, 1), behind.head.codec.encode_error)
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
                respond(self.fail(error, behind.head.codec.encode_error))

        def let_go() -> None:
            self._held_bytes -= size

        return Held(run, let_go)

    async def _read_when_applied(self, behind: Behind, updates: Updates) -> Asked | Reply:
        form = behind.head.codec.encode_error

        async def is_reached() -> bool:
            return await wait_for_offset(
                updates, behind.min_offset, behind.deadline_ms, lambda: self._model.state is ModelState.READY
            )

        while await is_reached():
            asked = self.read(behind.head, behind.body, behind.arrived_ms, behind.trace)
            if not isinstance(asked, Behind):
                return asked
            # Another revision took over, whose graph does not have the offset yet.
            await asyncio.sleep(_LOOK_AGAIN_S)
        if self._model.state is not ModelState.READY:
            return self.refuse(self._model.refuse(), form)
        return self.refuse_request(
            RequestError(
                ErrorCode.OFFSET_NOT_REACHED,
                "minOffset",
                f"this worker has applied offset {updates.applied:,} of {updates.last:,} that it knows of, and "
                f"{behind.min_offset:,} is wanted",
                "send it again, allow more time by objective.latencyMs, or ask for an earlier offset",
            ),
            form,
        )

    def cancel(self, pending: Pending | Held) -> None:
        if isinstance(pending, Held):
            pending.cancel(self._cancel)
        else:
            self._cancel(pending)

    def _cancel(self, pending: Pending) -> None:
        self._model.cancel(pending)
        if pending.trace is not None and self._model.tracer is not None:
            self._model.tracer.end(pending.trace, monotonic_ms(), None, ErrorCode.CLIENT_GONE)

    def count_gone(self) -> None:
        """A client left before its answer."""
        self._metrics.count_error(ErrorCode.CLIENT_GONE)

    def refuse(self, refusal: Refusal, form: ErrorForm = encode_json_error) -> Reply:
        if REFUSAL_STATUS[refusal.reason] == 429:
            self._metrics.count_refused(refusal.reason)
        else:
            self._metrics.count_error(refusal.reason)
        return refusal_reply(refusal, form)

    def refuse_request(self, error: RequestError, form: ErrorForm = encode_json_error) -> Reply:
        self._metrics.count_error(error.code)
        return error_reply(error, form)

    def _respond(self, asked: Asked, outcome: Outcome) -> Reply:
        codec = asked.codec
        match outcome:
            case Answer():
                try:
                    return self._encode(asked, outcome)
                except Exception as error:  # noqa: BLE001  (as in `read`)
                    return self.fail(error, codec.encode_error)
            case Refusal():
                return self.refuse(outcome, codec.encode_error)
            case NotFinite():
                problem = f"variant {outcome.variant} makes scores of its features that are not finite"
                remedy = "give features in the range of those of the graph's source"
                wrong = RequestError(ErrorCode.INVALID_VALUE, "overlay", problem, remedy)
                return self.refuse_request(wrong, codec.encode_error)
            case NodeLeft():
                problem = "a node that the request names left the graph while the request waited"
                remedy = "GET /v1/nodes lists its node ids"
                unknown = RequestError(ErrorCode.UNKNOWN_NODE, "nodes", problem, remedy)
                return self.refuse_request(unknown, codec.encode_error)
            case Failure():
                return self._internal_error(outcome.error_id, codec.encode_error)
            case _:
                assert_never(outcome)

    def fail(self, error: Exception, form: ErrorForm = encode_json_error) -> Reply:
        """The reply where an error of ours kept a request from being answered."""
        error_id = secrets.token_hex(8)
        _log.error("error %s: a request could not be read or its answer not be written", error_id, exc_info=error)
        return self._internal_error(error_id, form)

    def _internal_error(self, error_id: str, form: ErrorForm) -> Reply:
        message = f"an error of the worker; its log has the details under {error_id}"
        self._metrics.count_error(ErrorCode.INTERNAL_ERROR)
        self._model.note_failure()
        return internal_error_reply(message, form)

    def _encode(self, asked: Asked, answer: Answer) -> Reply:
        # Reading an overlay takes the longer, the more it brings: it counts as what it is, and not as waiting.
        receive_ms, overlay_ms = asked.receive_ms, answer.times.overlay_ms + asked.read_ms
        queue_ms = max(0.0, answer.queue_ms - asked.read_ms - (receive_ms or 0.0))
        encoded = asked.codec.encode_answer(
            answer, asked.question, asked.lane.revision, partial(_objective_met, answer), in_pieces=asked.large
        )
        if asked.coding is not None:
            encoded = compress(encoded, asked.coding)
        head = encoded.head
        if receive_ms is not None:
            send_ms = None if encoded.pieces is not None else monotonic_ms() - answer.finished_ms
            head += self._timing.tell_all(answer.times, receive_ms, queue_ms, overlay_ms, send_ms)
        elif asked.codec.tells_times:
            head += self._timing.tell(answer.times, queue_ms, overlay_ms)
        if encoded.pieces is not None:
            return Reply(200, head, b"", self._observed(answer, queue_ms, encoded.pieces, asked.trace))
        self._observe(answer, queue_ms, asked.trace)
        return Reply(200, head, encoded.body)

    def _observed(
        self, answer: Answer, queue_ms: float, pieces: Iterator[bytes], trace: RequestTrace | None
    ) -> Iterator[bytes]:
        yield from pieces
        self._observe(answer, queue_ms, trace)

    def _observe(self, answer: Answer, queue_ms: float, trace: RequestTrace | None) -> None:
        total_ms = monotonic_ms() - answer.arrived_ms
        self._metrics.observe_answer(answer.variant, queue_ms, total_ms, answer.objective.latency_ms)
        if trace is not None:
            trace.variant, trace.latency_ms = answer.variant, answer.objective.latency_ms
            self._metrics.show_example(answer.variant, total_ms, trace.ids.trace_id)


def _describe(trace: RequestTrace, asked: Asked) -> None:
    trace.seeds, trace.revision = len(asked.question.nodes), asked.lane.revision.manifest.revision


def _may_choose(head: Head, body: bytes) -> bool:
    """Whether the request may have an objective or a priority of its own or name a variant, so that it has to be
    parsed."""
    wishes = head.wishes
    if wishes.objective != NO_OBJECTIVE or wishes.variant is not None or wishes.priority != DEFAULT_PRIORITY:
        return True
    return head.codec.may_choose(body)


def _objective_met(answer: Answer) -> bool:
    return answer.objective.latency_ms is None or answer.objective_met(monotonic_ms())
