"""Requests, from arrival to outcome: their stages, the codecs that read and write them, and the lanes that answer them.

A request is four structs, one a stage. It arrives as a head and a body (`Arrival`). Its codec decodes the body into an
`Ask`; while that asks for changes which are not applied yet, it goes no further. `resolve` in `http/predict.py` finds
its nodes in the revision of a lane, which makes a `Question` of it. Accepted by that lane it is a `PendingRequest`,
which is what the queue holds, until a batch has its `Answer` or another outcome; its codec encodes that, which becomes
a `Reply`.

A lane is one revision with its routing and its queue, from a switch to it until its last request is answered.
Everything here but `infer` belongs to the event loop. Functions take a model's accepted requests, by key, as their
first argument.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.limits import Batching, OverlayLimits
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.asking.question import IN_BODY, NO_WISHES, Wishes
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.batch import Infer, Inference, StageTimes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import STILL, ServedChanges
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.scheduling.batcher import Batch, Batcher, Piece
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import PROFILED, Losses, VariantChooser
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import RequestTrace
from gnnserve_worker.tasks.deciding import SeedPairs
from gnnserve_worker.tasks.served import Items

DRAW_KEY_STEP = 65_536
"""Distance of the keys of two batches: no batch has more seeds."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A revision with its routing and its queue."""

    revision: ServedRevision
    objective: Objective
    """The service's own objective, for requests that state none."""
    batching: Batching
    overlay_limits: OverlayLimits
    changes: ServedChanges | None
    """Changes of the revision's graph; None: it stays as it is."""
    chooser: VariantChooser
    batcher: Batcher
    seeds: np.ndarray
    """int64 [max_seeds]: seeds of the running batch, copied from its requests."""


def open_lane(
    revision: ServedRevision,
    table: RoutingTable,
    chooser: VariantChooser | None,
    before: Lane | None,
    now_ms: float,
    known: Losses = PROFILED,
) -> Lane:
    """Open the lane that follows `before`. `chooser` keeps what was learnt about this same revision; with other losses,
    another one keeps its costs, and of another revision only the machine's part is kept. `known`: as `VariantChooser`
    takes it."""
    batching, busy_until_ms, costs_before, same = table.batching, -math.inf, None, None
    if before is not None:
        busy_until_ms = before.batcher.busy_until_ms(now_ms)
        costs_before = before.chooser.costs
        if before.revision is revision and before.batching == batching:
            same = before.chooser
    if chooser is None:
        chooser = VariantChooser(revision.answering, batching.max_seeds, costs_before, known, same)
    # A random start: replicas with equal starts would go through their weights in step.
    drawn = secrets.randbelow(1 << 20) / (1 << 20)
    batcher = Batcher(chooser, table, batching.max_queued_seeds, busy_until_ms, drawn)
    changes = None if revision.changes is STILL else revision.changes
    seeds = np.empty(batching.max_seeds, np.int64)
    return Lane(revision, table.objective, batching, table.overlay, changes, chooser, batcher, seeds)


# Before a lane has accepted it. Objects made per request are msgspec structs, which cost a sixth of a frozen dataclass.


class EncodedAnswer(msgspec.Struct, frozen=True):
    """An answer as it is sent."""

    head: bytes
    """Header lines, each with its CRLF: the media type, and what this form says in headers."""
    body: bytes | memoryview
    pieces: Iterator[bytes] | None = None
    """The body in pieces, each short work to make; None: it is in `body`."""


ErrorForm = Callable[[ErrorDetail], EncodedAnswer]
"""Writes an error, or a refusal, as a protocol has it."""


class Codec(Protocol):
    """One form in which predictions are asked for and answered.

    One whose requests say more in their head is made for each head (`http/codecs/open_inference.py`). `http/predict.py`
    does what all forms share: admission, refusals, timing. A new form is a class with these methods and a line in
    `http/codecs/registry.py`; neither the connection nor the ASGI application knows of any codec.
    """

    @property
    def model(self) -> str | None:
        """The service that the head of the request names; None: this form names none."""

    @property
    def is_for_canary(self) -> bool:
        """Whether a second revision answers a share of such requests; otherwise all are the service's own."""

    @property
    def tells_times(self) -> bool:
        """Whether every answer of this form tells where its time went, in `Server-Timing`; otherwise those alone whose
        request asks for all times."""

    def check_query(self, query: bytes) -> None:
        """Raise RequestError for a query string that this form cannot have. `query` is not empty."""

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        """About how many nodes a body names, without parsing it."""

    def may_choose(self, body: bytes) -> bool:
        """Whether the body could carry an objective or a priority or name a variant, so that it has to be parsed before
        the request is refused."""

    def may_have_seed(self, body: bytes) -> bool:
        """Whether the body could carry a seed, without parsing it."""

    def may_have_overlay(self, body: bytes) -> bool:
        """Whether the body seems to bring an overlay, without parsing it; requests that are refused unread are counted
        by it."""

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        """What a body asks of a revision, whose ids and outputs it may have. Nothing is looked up. Raises RequestError,
        which names the field. `limits`: those of an overlay."""

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        """`is_in_time` tells whether the objective is met, and is called once, after the arrays are encoded; None: it
        is, whenever that is. `in_pieces`: the answer is large, so that a form whose encoding takes long should yield to
        other clients between its parts."""

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer: ...


class MediaCodec(Codec, Protocol):
    """A form that has a path and a media type of its own: it reads every request of that type."""

    @property
    def path(self) -> str:
        """Path of the URL, without a query."""

    @property
    def content_type(self) -> str:
        """Media type of requests and answers, without parameters."""

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        """OpenAPI's media type object; None: the served graph cannot be asked in this form."""

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        """Describes the answer for OpenAPI, as `describe_request` describes the request."""


class ContentCoding(msgspec.Struct, frozen=True):
    name: bytes
    wbits: int
    """The format, as zlib numbers it."""


class Arrival(msgspec.Struct, frozen=True):
    """A request as it came: its parsed head and, once that has come too, its body."""

    codec: Codec
    query: bytes = b""
    wishes: Wishes = NO_WISHES
    """Wishes of the head."""
    coding: ContentCoding | None = None
    """How the answer is to be compressed; None: not at all."""
    path: str = ""
    """Path of its URL, or method of gRPC."""
    parent: bytes | None = None
    """Its `traceparent`, unread; None: it has none."""
    body: bytes = b""
    """Empty, too, where only the head has come, which is kept for requests that have the same one."""
    arrived_ms: float = -math.inf
    """When all of it had come; -inf where only the head has."""
    trace: RequestTrace | None = None
    """None: it is not traced."""


Arrange = Callable[[], tuple[Overlay, np.ndarray]]
"""Arranges what a request brings over the stored graph, and finds its nodes (int64). Raises RequestError."""


class Ask(msgspec.Struct, frozen=True):
    """A request as its protocol has it. Nothing of it is looked up."""

    items: Items
    """Makes items of the nodes that are found: the revision's task, or another one."""
    ids: Sequence[Any] | np.ndarray
    """Ids of the nodes that it asks about, at least one: as JSON has them, or int64. Of no use where it brings
    something."""
    outputs: tuple[str, ...]
    wishes: Wishes = NO_WISHES
    """Wishes of the body. Of a request that waits for its offset: all of them, with the service's objective where it
    has none."""
    places: Mapping[str, str] = IN_BODY
    """Where the body has each wish, by its field."""
    arrange: Arrange | None = None
    """None: it brings nothing."""
    answer_form: Any = None
    """What its codec keeps of it for the answer."""
    may_bring: bool = True
    """Whether its form may bring nodes, which is advised where one is unknown."""


class Question(msgspec.Struct, frozen=True):
    """A request that can be answered by its lane, whatever is switched to meanwhile."""

    lane: Lane
    nodes: np.ndarray
    """int64, positions in the graph of the lane's revision, all in range; N + k for overlay node k."""
    outputs: tuple[str, ...]
    """Requested outputs, without repetition."""
    wishes: Wishes = NO_WISHES
    """All of the request's own. The variant that they name, if any, can answer it."""
    overlay: Overlay | None = None
    """What the request brings; arranged against the lane's revision."""
    form: Any = None
    """What its items keep so that they are made of the answer; None: they keep nothing."""
    answer_form: Any = None
    """What its codec keeps of the request for the answer."""
    read_ms: float = 0.0
    """Time of reading the request, where it brings something or its client asks for that time; 0 for others."""


class Reply(msgspec.Struct, frozen=True):
    status: int
    head: bytes
    """Header lines, each with its CRLF, without the body's length."""
    body: bytes | memoryview
    pieces: Iterator[bytes] | None = None
    """Parts of a large body, in place of `body`; each is quick to make."""
    code: str = ""
    """Code of the error or refusal; empty: it is none."""


# Accepted by a lane


class Answer(msgspec.Struct, frozen=True):
    variant: str
    scores: np.ndarray
    """float32 [seeds, classes], in the order of the request's nodes."""
    embeddings: np.ndarray | None
    objective: Objective
    arrived_ms: float
    finished_ms: float
    times: StageTimes
    """Sums over the batches that the request took part in."""
    queue_ms: float
    """Time that it waited: from its arrival to the end of its last batch, without these."""
    offset: int | None = None
    """The offset of the log of changes that all of it has seen; None: its graph does not change."""

    def objective_met(self, now_ms: float) -> bool:
        """Whether the answer is in time, by the clock alone: tolerances are always kept, and predictions do not
        count."""
        limit = self.objective.latency_ms
        return limit is None or now_ms - self.arrived_ms <= limit


class Failure(msgspec.Struct, frozen=True):
    """An internal error; the log has its details under the same id."""

    error_id: str


class NotFinite(msgspec.Struct, frozen=True):
    """The features that the request brings give scores, or embeddings, that are not finite."""

    variant: str


class NodeLeft(msgspec.Struct, frozen=True):
    """A node that the request names left the graph after the request was accepted."""


Outcome = Answer | Refusal | Failure | NotFinite | NodeLeft


class PendingRequest(Request, kw_only=True):
    """An accepted request. Its outcome is delivered once, unless it is cancelled before."""

    accepted: AcceptedRequests
    """Requests of its model, of which it is one until it has an outcome."""
    question: Question
    deliver: Callable[[Outcome], None]
    parts: list[Answer] = []  # noqa: RUF012  (a struct copies it)
    """Partial answers of a request that takes several batches."""
    cancelled: bool = False
    successor: Any = None
    """The same request of another revision, in place of this one, which was refused: a `PendingRequest`, or one that
    waits for an offset. None: there is none."""
    trace: RequestTrace | None = None
    """None: it is not traced."""


AcceptedRequests = dict[int, PendingRequest]
"""Requests that have no final outcome yet, by their key."""


class BatchInputs(msgspec.Struct, frozen=True):
    """Inputs that a batch is computed from, beside its lane and variant."""

    seeds: np.ndarray
    """int64. With `parts`, a copy that the batch may change."""
    key: int
    """What its draws depend on, but for seeds that requests name. Keys are further apart than the seeds of a batch,
    which may add to them (`DRAW_KEY_STEP`)."""
    with_embeddings: bool
    parts: Sequence[Part] | None = None
    """The requests, or pieces of them, whose seeds these are, in order; None: none of them has an overlay or a seed."""
    pairs: SeedPairs | None = None
    """Which seeds are asked about together; None: the variant need not know."""
    most_stale_permille: float = math.inf
    """Expected answers that stale rows may change, by the tolerances of the batch's requests."""
    refresh_ends_ms: float = math.inf
    """When making stale rows anew that no tolerance asks for has to end, so that the batch is expected to be in time
    for its first deadline."""


class ComputedBatch(msgspec.Struct, frozen=True):
    inference: Inference
    started_ms: float
    finished_ms: float
    offset: int | None = None
    """The offset of the log of changes that the batch has seen; it may have seen later ones too. None: its graph does
    not change."""


def fetch_inputs(accepted: AcceptedRequests, lane: Lane, batch: Batch, key: int) -> BatchInputs:
    """Copy the batch's seeds, and collect what its requests want and bring."""
    nodes, with_embeddings, has_parts = [], False, False
    for piece in batch.pieces:
        pending = accepted[piece.request.key]
        question = pending.question
        nodes.append(question.nodes if piece.whole else question.nodes[piece.start : piece.stop])
        with_embeddings |= pending.needs.embeddings
        has_parts |= question.overlay is not None or question.wishes.seed is not None
    pairs = _pairs_of(accepted, lane, batch) if lane.revision.paired else None
    most = ends_ms = math.inf
    if batch.variant in lane.chooser.stale_permille:
        most = _most_stale_permille(accepted, lane, batch)
        # What such batches take on average has rows in it that were made anew: this is rather too early.
        ends_ms = min(piece.request.deadline_ms for piece in batch.pieces) - batch.predicted_ms
    if has_parts:
        seeds = np.concatenate(nodes, out=lane.seeds[: batch.seeds])  # a copy: the view changes it
        parts = [_part_of(accepted[p.request.key], p) for p in batch.pieces]
        return BatchInputs(seeds, key, with_embeddings, parts, pairs, most, ends_ms)
    seeds = nodes[0] if len(nodes) == 1 else np.concatenate(nodes, out=lane.seeds[: batch.seeds])
    return BatchInputs(seeds, key, with_embeddings, None, pairs, most, ends_ms)


def _most_stale_permille(accepted: AcceptedRequests, lane: Lane, batch: Batch) -> float:
    """What is added to the loss of the batch's variant by stale rows has to be no more, or a request that tolerates
    less would not have it."""
    most = math.inf
    for piece in batch.pieces:
        pending = accepted[piece.request.key]
        tolerance = pending.objective.accuracy_tolerance_permille
        if pending.objective.is_empty() and pending.question.overlay is not None:
            tolerance = 0.0  # the most accurate answer: that what it brings changes rows is in no variant's loss
        # Where a client names the variant, there is nothing left for its tolerance to choose, but for refusals.
        if tolerance is not None and (pending.named is None or pending.question.wishes.strict):
            most = min(most, lane.chooser.bearable_permille(batch.variant, tolerance))
    return most


def _pairs_of(accepted: AcceptedRequests, lane: Lane, batch: Batch) -> SeedPairs | None:
    """Pairs of the batch's requests, by the places of its seeds."""
    if batch.variant not in lane.revision.paired:
        return None
    found, first = list[SeedPairs](), 0
    for piece in batch.pieces:
        own = accepted[piece.request.key].question.form.within(piece.start, piece.stop)
        found.append(SeedPairs(own.first + first, own.second + first, own.alone + first))
        first += piece.stop - piece.start
    return SeedPairs(*(np.concatenate(ends) for ends in zip(*map(msgspec.structs.astuple, found), strict=True)))


def _part_of(pending: PendingRequest, piece: Piece) -> Part:
    return Part(piece.stop - piece.start, pending.question.overlay, pending.question.wishes.seed)


def infer(
    lane: Lane, variant: str, inputs: BatchInputs, clock_ms: Callable[[], float]
) -> ComputedBatch | BaseException:  # fmt: skip
    """Run one batch, in the calling thread. Errors are returned."""
    try:
        started_ms = clock_ms()
        # Before the batch begins, so that no offset is told that it did not see.
        offset = lane.revision.changes.log.offset
        most_us = 1e3 * (inputs.refresh_ends_ms - started_ms)
        run = lane.revision.infer_by(variant, inputs.pairs, inputs.most_stale_permille, most_us)
        if inputs.parts is None:
            inference = run(variant, inputs.seeds, inputs.key, with_embeddings=inputs.with_embeddings)
        else:
            inference = _infer_parts(run, lane, variant, inputs, inputs.parts)
        return ComputedBatch(inference, started_ms, clock_ms(), offset)
    except BaseException as error:  # noqa: BLE001  (one bad batch must not take the others with it)
        return error


def _infer_parts(run: Infer, lane: Lane, variant: str, inputs: BatchInputs, parts: Sequence[Part]) -> Inference:
    """As `infer`, by a view of the graph with the overlays and seeds of the parts."""
    started = time.perf_counter()
    view = view_of(lane.revision.graph.first_new, parts, inputs.seeds)
    overlay_ms = (time.perf_counter() - started) * 1e3
    inference = run(variant, inputs.seeds, inputs.key, with_embeddings=inputs.with_embeddings, view=view)
    return msgspec.structs.replace(inference, times=inference.times.after_overlay(overlay_ms))


def share_out(
    accepted: AcceptedRequests, batch: Batch, computed: ComputedBatch
) -> list[tuple[PendingRequest, Outcome]]:
    """Split the results into each request's rows."""
    inference, finished_ms = computed.inference, computed.finished_ms
    times, finite = inference.times, _is_finite(inference.scores)
    spent_ms = times.total_ms
    settled: list[tuple[PendingRequest, Outcome]] = []
    start = 0
    for piece in batch.pieces:
        first, start = start, start + piece.stop - piece.start
        pending = accepted.get(piece.request.key)
        if pending is None:
            continue  # its client left while the thread computed
        question, changes = pending.question, pending.question.lane.changes
        if changes is not None and changes.gone.are_named(question.nodes, piece.start, piece.stop, question.overlay):
            settled += settle(accepted, [(piece.request.key, NodeLeft())])
            continue
        scores = inference.scores[first:start]
        embeddings = None
        if pending.needs.embeddings and inference.embeddings is not None:
            embeddings = inference.embeddings[first:start]
        if not (finite or _is_finite(scores)) or not (embeddings is None or _is_finite(embeddings)):
            outcome: Outcome = NotFinite(batch.variant)
            if question.overlay is None:
                error = ArithmeticError(f"variant {batch.variant} gave scores or embeddings that are not finite")
                outcome = fail(batch, piece, error)
            settled += settle(accepted, [(piece.request.key, outcome)])
            continue
        arrived_ms = piece.request.arrived_ms
        queue_ms = finished_ms - arrived_ms - spent_ms
        part = Answer(
            batch.variant, scores, embeddings, piece.request.objective, arrived_ms, finished_ms, times,
            queue_ms if queue_ms > 0.0 else 0.0, computed.offset,
        )  # fmt: skip
        if not piece.whole:
            pending.parts.append(part)
        if piece.last:
            del accepted[piece.request.key]
            settled.append((pending, part if piece.whole else _join(pending.parts)))
    return settled


def note_traced(
    tracer: Tracer, accepted: AcceptedRequests, lane: Lane, batch: Batch, computed: ComputedBatch
) -> None:  # fmt: skip
    """Note the batch where traced requests take part in it."""
    keys = {piece.request.key for piece in batch.pieces}
    found = [pending.trace for key in keys if (pending := accepted.get(key)) is not None]
    traces = [trace for trace in found if trace is not None]
    if traces:
        # All of them are the batch's: a revision computes one at a time.
        runs = lane.revision.compute.program_runs(computed.started_ms, computed.finished_ms)
        tracer.note_batch(
            traces, batch.variant, batch.seeds, len(keys), computed.started_ms, computed.finished_ms,
            computed.inference, runs,
        )  # fmt: skip


def settle(accepted: AcceptedRequests, outcomes: list[tuple[int, Outcome]]) -> list[tuple[PendingRequest, Outcome]]:
    """Take requests with a final outcome out of the queue, so that nothing more is computed for them."""
    return [(pending, outcome) for key, outcome in outcomes if (pending := forget(accepted, key)) is not None]


def deliver_all(settled: list[tuple[PendingRequest, Outcome]]) -> None:
    for pending, outcome in settled:
        if not pending.cancelled:
            try:
                pending.deliver(outcome)
            except Exception:  # noqa: BLE001  (the others are to get theirs)
                _log.exception("request %d: its outcome could not be delivered", pending.key)


def forget(accepted: AcceptedRequests, key: int) -> PendingRequest | None:
    pending = accepted.pop(key, None)
    if pending is not None:
        pending.question.lane.batcher.cancel(key)
    return pending


def _is_finite(values: np.ndarray) -> bool:
    """Whether all values are finite: one pass without a temporary, and a second one only if the squares overflow."""
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def fail(batch: Batch, piece: Piece, error: Exception) -> Failure | Refusal:
    """The outcome of a request whose batch could not be computed. A program that fails is its service's own matter, and
    no error of the worker."""
    if isinstance(error, ProgramFailedError):
        _log.warning("variant %s, batch of %d seeds: %s", batch.variant, batch.seeds, error)
        return Refusal(RefusalReason.PROGRAM_FAILED, str(error), max(1, math.ceil(error.retry_after_s)))
    failure = Failure(secrets.token_hex(8))
    _log.error(
        "error %s: variant %s, batch of %d seeds, request of %d",
        failure.error_id, batch.variant, batch.seeds, piece.request.seeds, exc_info=error,
    )  # fmt: skip
    return failure


def _join(parts: list[Answer]) -> Answer:
    embeddings = [part.embeddings for part in parts if part.embeddings is not None]
    offsets = [part.offset for part in parts if part.offset is not None]
    last, times = parts[-1], parts[0].times
    for part in parts[1:]:
        times = times + part.times
    return msgspec.structs.replace(
        last,
        scores=np.concatenate([part.scores for part in parts]),
        embeddings=np.concatenate(embeddings) if embeddings else None,
        times=times,
        queue_ms=max(0.0, last.finished_ms - last.arrived_ms - times.total_ms),
        offset=min(offsets) if offsets else None,
    )
