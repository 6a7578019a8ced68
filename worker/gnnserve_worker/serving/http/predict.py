"""Predictions without I/O: from a head and a body to a reply, by callback.

Two ways lead here: `connection.py`, straight from the HTTP parser, and the ASGI application of `app.py` for what is
rare. The form of a request is its codec's (`codecs/`); what it is refused for is the same for both ways and all forms:
every protocol goes through `resolve`, which puts its wishes together, checks them against the revision and finds its
ids. What needs no revision to be refused is in `asking/`. What only some requests go through is a hook (`hooks.py`).
Status codes are given in `replies.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, assert_never

import msgspec
import numpy as np

from gnnserve_api.families import Capabilities
from gnnserve_worker.asking.question import (
    IN_HEAD,
    MIN_OFFSET,
    NO_WISHES,
    VARIANT,
    ErrorCode,
    RequestError,
    Wish,
    Wishes,
    shown_value,
    unknown_model,
)
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.engine.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.http.content_coding import compress
from gnnserve_worker.serving.http.hooks import Begin, Begun, Hook, Respond, Timeout, TracingHook
from gnnserve_worker.serving.http.replies import REFUSAL_STATUS, error_reply, internal_error_reply, refusal_reply
from gnnserve_worker.serving.http.waiting_request import WAIT_WITHOUT_LATENCY_MS, WaitingRequest, wait_for_offset
from gnnserve_worker.serving.metrics.counters import RequestCounters
from gnnserve_worker.serving.requests import (
    Answer,
    Arrival,
    Ask,
    Codec,
    ErrorForm,
    Failure,
    Lane,
    NodeLeft,
    NotFinite,
    Outcome,
    PendingRequest,
    Question,
    Reply,
)

MAX_BODY_BYTES = 16 * 1024 * 1024
_MOST_AT_ONCE = 65_536
"""Answers with more numbers are sent in pieces, with other clients in between."""
_LOOK_AGAIN_S = 0.01
_MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bodies of requests that wait for an offset, altogether."""
_HOW_TO_CHANGE = "turn changes on: `spec.updates: {log: {sqlite: {}}}` in the manifest keeps a log of them"
NoAnswer = Refusal | Failure | NotFinite | NodeLeft
_log = logging.getLogger(__name__)


class ServerTiming:
    """Writes `Server-Timing`: where the time of an answer went, in milliseconds, as a line of the reply's head.
    docs/http.md says what each entry means. The stages of a batch are written once for all of its requests."""

    def __init__(self) -> None:
        self._times: StageTimes | None = None
        self._stages = b""
        """`_times`, encoded."""

    def tell(
        self, times: StageTimes, queue_ms: float, overlay_ms: float, receive_ms: float | None, send_ms: float | None
    ) -> bytes:
        """`receive_ms`, `send_ms`: times of reading the request and of writing its answer; None: not told."""
        if times is not self._times:
            self._times = times
            self._stages = b", sample;dur=%.3f, gather;dur=%.3f, compute;dur=%.3f" % (
                times.sample_ms, times.gather_ms, times.compute_ms
            )  # fmt: skip
        if receive_ms is None and send_ms is None and not overlay_ms:
            return b"server-timing: queue;dur=%.3f%b\r\n" % (queue_ms, self._stages)
        receive = b"" if receive_ms is None else b"receive;dur=%.3f, " % receive_ms
        overlay = b", overlay;dur=%.3f" % overlay_ms if overlay_ms else b""
        send = b"" if send_ms is None else b", send;dur=%.3f" % send_ms
        return b"server-timing: %bqueue;dur=%.3f%b%b%b\r\n" % (receive, queue_ms, overlay, self._stages, send)


class Predict:
    def __init__(
        self, service: str, model: ServedModel, counters: RequestCounters, updates: Updates | None = None
    ) -> None:
        self.canary: Hook | None = None
        """Divides the requests between two revisions, while a second one answers a share of them."""
        self.in_flight = 0
        """Requests that wait for their answer; kept by those who send it."""
        self._service = service
        self._model = model
        self._counters = counters
        self._updates = updates
        self._held_bytes = 0
        """Bodies of the requests that wait for an offset."""
        self._timing = ServerTiming()
        self._refusal = Refusal(RefusalReason.QUEUE_FULL, "", None)
        self._refusal_replies: dict[type[Codec], Reply] = {}
        """The encoded replies of `_refusal`, by the form of the request."""

    def start(self, head: Arrival, body: bytes, respond: Respond, arrived_ms: float | None = None) -> Begun:
        """`head`: the request without its body. `respond` is called later, unless there is a reply at once or the
        request is cancelled. `arrived_ms`: None: now."""
        now_ms = monotonic_ms()
        arrival = Arrival(
            head.codec, head.query, head.wishes, head.coding, head.path, head.parent, body,
            now_ms if arrived_ms is None else arrived_ms,
        )  # fmt: skip
        if self._model.tracer is not None or self.canary is not None:
            return self._start_hooked(arrival, respond)
        asked = self.read(arrival, now_ms)
        if isinstance(asked, Question):
            return self.ask(arrival, asked, respond)
        return self.begin(arrival, asked, respond)

    def hooks(self) -> list[Hook]:
        """What every request goes through, in this order, the first around all others."""
        tracer = self._model.tracer
        hooks = (None if tracer is None else TracingHook(tracer), self.canary)
        return [hook for hook in hooks if hook is not None]

    def _start_hooked(self, arrival: Arrival, respond: Respond) -> Begun:
        def go_on(arrival: Arrival, respond: Respond) -> Begun:
            return self.begin(arrival, self.read(arrival, monotonic_ms()), respond)

        begin: Begin = go_on
        for hook in reversed(self.hooks()):
            begin = partial(hook.begin, go_on=begin)
        return begin(arrival, respond)

    def begin(
        self, arrival: Arrival, asked: Question | Ask | Reply, respond: Respond, share_of_wait: float = 1.0
    ) -> Begun:
        """`asked`: what the request was read as. `share_of_wait`: part of the time that it may wait for its offset in
        which it does."""
        if isinstance(asked, Question):
            return self.ask(arrival, asked, respond)
        return self._hold(arrival, asked.wishes, respond, share_of_wait) if isinstance(asked, Ask) else asked

    def read(self, arrival: Arrival, now_ms: float, *, must_parse: bool = False) -> Question | Ask | Reply:
        """Read a request, now. An `Ask` has to wait for its offset. `must_parse`: refuse it unread on no account,
        because what it says is to be known."""
        codec, lane = arrival.codec, self._model.lane
        if codec.model is not None and codec.model != self._service:
            return self.refuse_request(unknown_model(codec.model, self._service), codec.encode_error)
        if lane is None:
            return self.refuse(self._model.refuse(), codec.encode_error)
        if lane.batcher.memory.known is not None:
            refused = self._refuse_unread(arrival, lane, must_parse=must_parse)
            if refused is not None:
                return refused
        revision, limits = lane.revision, lane.overlay_limits
        try:
            ask = codec.decode(arrival.body, arrival.query, revision, lane.batching.max_queued_seeds, limits)
            asked = resolve(ask, arrival.wishes, lane)
        except RequestError as error:
            return self.refuse_request(error, codec.encode_error)
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            return self.fail(error, codec.encode_error)
        is_timed = ask.arrange is not None or arrival.wishes.all_times
        if is_timed and isinstance(asked, Question):
            asked = msgspec.structs.replace(asked, read_ms=monotonic_ms() - now_ms)
        return asked

    def ask(self, arrival: Arrival, question: Question, respond: Respond) -> PendingRequest | Reply:
        """`respond` is called later, unless there is a reply at once or the request is cancelled."""
        trace, timeout_ms, timeout = arrival.trace, question.wishes.timeout_ms, None
        if question.overlay is not None:
            self._note_overlay(question.overlay, question)
        if timeout_ms is not None:
            timeout = Timeout(respond, partial(self._give_up, arrival, question))
            respond = timeout.respond
        deliver = partial(self._deliver, arrival, question, respond)
        pending = self._model.submit(question, arrival.arrived_ms, deliver, trace)
        if trace is not None:
            trace.seeds, trace.revision = len(question.nodes), question.lane.revision.manifest.revision
        if isinstance(pending, Refusal):
            return self.refuse(pending, arrival.codec.encode_error)
        if timeout is not None and timeout_ms is not None:
            timeout.start(pending, arrival.arrived_ms + timeout_ms - monotonic_ms())
        return pending

    def _note_overlay(self, overlay: Overlay, question: Question) -> None:
        # Not in `read`: of two revisions that read a request, one is asked.
        if len(overlay.features):
            self._model.watch.note_inputs(question.lane.revision, overlay.features)
        self._counters.count_overlay(overlay.new_nodes, overlay.edges, question.read_ms)

    def _give_up(self, arrival: Arrival, question: Question, pending: PendingRequest) -> Reply | None:
        """The reply to a request whose time has passed, and which is dropped; None: it has its outcome."""
        if self._model.accepted.get(pending.key) is not pending:
            return None
        self._model.cancel(pending)
        problem = f"{question.wishes.timeout_ms:,.15g} ms have passed, and the answer is not there"
        remedy = "allow more time, or ask for a latency (latencyMs), which chooses a variant that keeps it"
        error = RequestError(ErrorCode.TIMED_OUT, "timeout", problem, remedy)
        return self.refuse_request(error, arrival.codec.encode_error)

    def _refuse_unread(self, arrival: Arrival, lane: Lane, *, must_parse: bool) -> Reply | None:
        """Under overload most requests end here, so that refusing takes little of what answering needs: the body is not
        parsed, and the reply is encoded once for as long as the reason is the same. None: it has to be read."""
        codec, body = arrival.codec, arrival.body
        seeds = codec.estimate_seeds(body, lane.revision)
        refusal = self._model.would_refuse(seeds, arrival.arrived_ms)
        if refusal is None or must_parse or arrival.wishes.may_choose() or codec.may_choose(body):
            return None
        self._counters.offered_seeds += seeds
        self._counters.count_refused(refusal.reason)
        if codec.may_have_overlay(body):
            self._counters.count_unread_overlay()
        if refusal is not self._refusal:
            self._refusal, self._refusal_replies = refusal, {}
        reply = self._refusal_replies.get(type(codec))
        if reply is None:
            reply = self._refusal_replies[type(codec)] = refusal_reply(refusal, codec.encode_error)
        return reply

    def _hold(self, arrival: Arrival, wishes: Wishes, respond: Respond, share: float) -> WaitingRequest | Reply:
        """Let a request wait until the worker has applied its offset; it is read and asked then. Nothing else that was
        read of it is kept."""
        updates, size, form = self._updates, len(arrival.body), arrival.codec.encode_error
        min_offset = wishes.min_offset
        assert updates is not None and min_offset is not None  # noqa: S101  (the graph of its revision changes)
        if self._held_bytes + size > _MOST_HELD_BYTES:
            message = f"requests that wait for their offset have more than {_MOST_HELD_BYTES:,} bytes; send it again"
            return self.refuse(Refusal(RefusalReason.QUEUE_FULL, message, 1), form)
        self._held_bytes += size
        now_ms = monotonic_ms()
        deadline_ms = now_ms + share * (arrival.arrived_ms + _patience_ms(wishes) - now_ms)

        async def run(held: WaitingRequest) -> None:
            try:
                asked = await self._read_when_applied(arrival, min_offset, deadline_ms, updates)
                reply = self.ask(arrival, asked, respond) if isinstance(asked, Question) else asked
                if isinstance(reply, PendingRequest):
                    held.successor = reply
                else:
                    respond(reply)
            except Exception as error:  # noqa: BLE001  (as in `read`)
                respond(self.fail(error, form))

        def let_go() -> None:
            self._held_bytes -= size

        return WaitingRequest(run, let_go)

    async def _read_when_applied(
        self, arrival: Arrival, min_offset: int, deadline_ms: float, updates: Updates
    ) -> Question | Reply:
        form = arrival.codec.encode_error

        async def is_reached() -> bool:
            return await wait_for_offset(
                updates, min_offset, deadline_ms, lambda: self._model.state is ModelState.READY
            )

        while await is_reached():
            asked = self.read(arrival, monotonic_ms())
            if not isinstance(asked, Ask):
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
                f"{min_offset:,} is wanted",
                "send it again, allow more time by objective.latencyMs, or ask for an earlier offset",
            ),
            form,
        )

    def cancel(self, pending: PendingRequest | WaitingRequest) -> None:
        if isinstance(pending, WaitingRequest):
            pending.cancel()
        else:
            self._cancel(pending)
        if pending.successor is not None:
            self.cancel(pending.successor)

    def _cancel(self, pending: PendingRequest) -> None:
        self._model.cancel(pending)
        if pending.trace is not None and self._model.tracer is not None:
            self._model.tracer.end(pending.trace, monotonic_ms(), None, ErrorCode.CLIENT_GONE)

    def count_gone(self) -> None:
        """A client left before its answer."""
        self._counters.count_error(ErrorCode.CLIENT_GONE)

    def refuse(self, refusal: Refusal, form: ErrorForm = encode_json_error) -> Reply:
        if REFUSAL_STATUS[refusal.reason] == 429:
            self._counters.count_refused(refusal.reason)
        else:
            self._counters.count_error(refusal.reason)
        return refusal_reply(refusal, form)

    def refuse_request(self, error: RequestError, form: ErrorForm = encode_json_error) -> Reply:
        self._counters.count_error(error.code)
        return error_reply(error, form)

    def _deliver(self, arrival: Arrival, question: Question, respond: Respond, outcome: Outcome) -> None:
        if not isinstance(outcome, Answer):
            respond(self._reply_without_answer(outcome, arrival.codec.encode_error))
            return
        try:
            reply = self._encode(arrival, question, outcome)
        except Exception as error:  # noqa: BLE001  (as in `read`)
            reply = self.fail(error, arrival.codec.encode_error)
        respond(reply)

    def _reply_without_answer(self, outcome: NoAnswer, form: ErrorForm) -> Reply:
        match outcome:
            case Refusal():
                return self.refuse(outcome, form)
            case NotFinite():
                problem = f"variant {outcome.variant} makes scores of its features that are not finite"
                remedy = "give features in the range of those of the graph's source"
                wrong = RequestError(ErrorCode.INVALID_VALUE, "overlay", problem, remedy)
                return self.refuse_request(wrong, form)
            case NodeLeft():
                problem = "a node that the request names left the graph while the request waited"
                remedy = "GET /v1/nodes lists its node ids"
                unknown = RequestError(ErrorCode.UNKNOWN_NODE, "nodes", problem, remedy)
                return self.refuse_request(unknown, form)
            case Failure():
                return self._internal_error(outcome.error_id, form)
            case _:
                assert_never(outcome)

    def fail(self, error: Exception, form: ErrorForm = encode_json_error) -> Reply:
        """The reply where an error of ours kept a request from being answered."""
        error_id = secrets.token_hex(8)
        _log.error("error %s: a request could not be read or its answer not be written", error_id, exc_info=error)
        return self._internal_error(error_id, form)

    def _internal_error(self, error_id: str, form: ErrorForm) -> Reply:
        message = f"an error of the worker; its log has the details under {error_id}"
        self._counters.count_error(ErrorCode.INTERNAL_ERROR)
        self._model.note_failure()
        return internal_error_reply(message, form)

    def _encode(self, arrival: Arrival, question: Question, answer: Answer) -> Reply:
        codec, trace, queue_ms = arrival.codec, arrival.trace, answer.queue_ms
        # Reading an overlay takes the longer, the more it brings: it counts as what it is, and not as waiting.
        read_ms, overlay_ms, receive_ms = question.read_ms, answer.times.overlay_ms, None
        if arrival.wishes.all_times:
            receive_ms = read_ms if question.overlay is None else 0.0
        if read_ms:
            queue_ms = max(0.0, queue_ms - read_ms)
            overlay_ms += 0.0 if question.overlay is None else read_ms
        revision = question.lane.revision
        in_pieces = len(question.nodes) * revision.task.numbers_per_node > _MOST_AT_ONCE
        in_pieces = in_pieces and revision.task.is_large(question, _MOST_AT_ONCE)
        is_in_time = None if answer.objective.latency_ms is None else partial(_is_in_time, answer)
        encoded = codec.encode_answer(answer, question, revision, is_in_time, in_pieces=in_pieces)
        if arrival.coding is not None:
            encoded = compress(encoded, arrival.coding)
        lines, pieces = encoded.head, encoded.pieces
        if trace is not None:
            trace.variant, trace.latency_ms = answer.variant, answer.objective.latency_ms
        if receive_ms is not None or codec.tells_times:
            send_ms = None if receive_ms is None or pieces is not None else monotonic_ms() - answer.finished_ms
            lines += self._timing.tell(answer.times, queue_ms, overlay_ms, receive_ms, send_ms)
        trace_id = None if trace is None else trace.ids.trace_id
        if pieces is not None:
            return Reply(200, lines, b"", self._observed(answer, queue_ms, pieces, trace_id))
        self._counters.observe_answer(
            answer.variant, queue_ms, monotonic_ms() - answer.arrived_ms, answer.objective.latency_ms, trace_id
        )
        return Reply(200, lines, encoded.body)

    def _observed(
        self, answer: Answer, queue_ms: float, pieces: Iterator[bytes], trace_id: int | None
    ) -> Iterator[bytes]:
        yield from pieces
        self._counters.observe_answer(
            answer.variant, queue_ms, monotonic_ms() - answer.arrived_ms, answer.objective.latency_ms, trace_id
        )


def _patience_ms(wishes: Wishes) -> float:
    """Time from its arrival for which a request may wait for its offset."""
    latency_ms = wishes.objective.latency_ms
    patience_ms = WAIT_WITHOUT_LATENCY_MS if latency_ms is None else latency_ms
    return patience_ms if wishes.timeout_ms is None else min(patience_ms, wishes.timeout_ms)


def _is_in_time(answer: Answer) -> bool:
    return answer.objective_met(monotonic_ms())


def resolve(ask: Ask, head: Wishes, lane: Lane) -> Question | Ask:
    """Find what a request asks about in the revision of the lane. `head`: wishes of the request's head. An `Ask`: the
    changes may yet bring that, since the offset which it asks for is not applied; nothing is looked up. Raises
    RequestError."""
    wishes, revision = head if ask.wishes is NO_WISHES else ask.wishes.or_else(head), lane.revision
    if wishes.min_offset is not None and _is_ahead(wishes.min_offset, revision, _place_of(MIN_OFFSET, ask)):
        return msgspec.structs.replace(ask, wishes=wishes.or_else(Wishes(lane.objective)))
    if wishes.variant is not None:
        check_variant(wishes.variant, ask.outputs, ask.arrange is not None, revision, _place_of(VARIANT, ask))
    overlay: Overlay | None = None
    try:
        if ask.arrange is not None:
            overlay, nodes = ask.arrange()
        else:
            otherwise = revision.compute.overlays.hint if ask.may_bring and lane.overlay_limits.max_nodes else ""
            ids, naming = ask.ids, revision.graph.naming
            nodes = naming.find_integers(ids, otherwise) if isinstance(ids, np.ndarray) else naming.find(ids, otherwise)
    except RequestError as error:
        raise ask.items.placed(error) from None
    form: Any = None
    joined = ask.items.joined
    if joined is not None:
        nodes, form = joined(nodes, overlay)
    return Question(lane, nodes, ask.outputs, wishes, overlay, form, ask.answer_form)


def _place_of(wish: Wish, ask: Ask) -> str:
    is_in_body = getattr(ask.wishes, wish.field) is not None
    return (ask.places if is_in_body else IN_HEAD)[wish.field]


def _is_ahead(min_offset: int, revision: ServedRevision, where: str) -> bool:
    """Whether the revision's graph does not have that offset yet."""
    applied = revision.changes.log.offset
    if applied is None:
        raise no_updates(where, "leave it out")
    return applied < min_offset


def no_updates(where: str, instead: str = "") -> RequestError:
    """Error for a request that needs a log of changes. `instead`: what the client may do; empty: nothing."""
    remedy = f"{instead}, or {_HOW_TO_CHANGE}" if instead else _HOW_TO_CHANGE
    return RequestError(ErrorCode.NO_UPDATES, where, "the graph of this service does not change", remedy)


def check_variant(name: str, outputs: Sequence[str], brings_overlay: bool, revision: ServedRevision, where: str) -> str:
    """The variant that a request names, which can answer it. `where`: the field that names it."""
    gives = revision.capabilities.get(name)
    if gives is None:
        raise RequestError(
            ErrorCode.UNKNOWN_VARIANT,
            where,
            f"revision {revision.manifest.revision} has no variant {shown_value(name)}",
            f"choose from {', '.join(variant.name for variant in revision.answering.variants)}, or leave it out",
        )
    needed = Capabilities(
        overlay=brings_overlay, embeddings="embeddings" in outputs, changes=revision.changes.needed.changes
    )
    if gives.cover(needed):
        return name
    lacking = f"cannot answer requests with {needed.in_words()}"
    if needed.changes and not gives.changes:
        lacking = "does not follow changes of the graph, and answers nothing"
    able = ", ".join(other for other, capable in revision.capabilities.items() if capable.cover(needed))
    raise RequestError(
        ErrorCode.VARIANT_UNABLE,
        where,
        f"variant {name} {lacking}",
        f"choose from {able}, or leave it out" if able else "leave it out",
    )
