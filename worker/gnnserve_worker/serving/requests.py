"""Lanes and their requests, from acceptance to outcome: nodes for a batch, its computation, and rows of its result.

A lane is one revision with its routing and its queue, from a switch to it until its last request is answered.
Everything here but `infer` belongs to the event loop. Functions take a model's accepted requests, by key, as their
first argument.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.batching import Batching
from gnnserve_api.objective import Objective
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.asking.question import Question
from gnnserve_worker.inference.batch import Inference, StageTimes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import STILL, ServedChanges
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.scheduling.batcher import Batch, Batcher, Piece
from gnnserve_worker.scheduling.choice import NO_LOSSES, VariantChooser
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import RequestTrace


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A revision with its routing and its queue."""

    revision: ServedRevision
    objective: Objective
    """The service's own objective, for requests that state none."""
    batching: Batching
    overlay_limits: OverlayLimits
    changes: ServedChanges | None
    """Those of the revision's graph; None: it stays as it is."""
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
    losses_in_service: Mapping[str, float] = NO_LOSSES,
) -> Lane:
    """Open the lane that follows `before`. `chooser` keeps what was learnt about this same revision; for another one,
    or with other losses, only the machine's part is kept. `losses_in_service`: as `VariantChooser` takes them."""
    batching, busy_until_ms, costs_before = table.batching, -math.inf, None
    if before is not None:
        busy_until_ms = before.batcher.busy_until_ms(now_ms)
        costs_before = before.chooser.costs
    if chooser is None:
        chooser = VariantChooser(revision.manifest.profile, batching.max_seeds, costs_before, losses_in_service)
    # A random start: replicas with equal starts would go through their weights in step.
    drawn = secrets.randbelow(1 << 20) / (1 << 20)
    batcher = Batcher(chooser, table, batching.max_queued_seeds, busy_until_ms, drawn)
    changes = None if revision.changes is STILL else revision.changes
    seeds = np.empty(batching.max_seeds, np.int64)
    return Lane(revision, table.objective, batching, table.overlay, changes, chooser, batcher, seeds)


DRAW_KEY_STEP = 65_536
"""Distance of the keys of two batches: no batch has more seeds."""
_log = logging.getLogger(__name__)

# Objects made per request are msgspec structs, which cost a sixth of a frozen dataclass.


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


class Pending(msgspec.Struct):
    """An accepted request. Its outcome is delivered once, unless it is cancelled before."""

    accepted: AcceptedRequests
    """Those of its model, of which it is one until it has an outcome."""
    lane: Lane
    request: Request
    """As the lane's queue has it."""
    question: Question
    """Its nodes were found in the revision of `lane`, and its overlay is arranged against that."""
    wants_embeddings: bool
    deliver: Callable[[Outcome], None]
    parts: list[Answer] = []
    """Partial answers of a request that takes several batches."""
    cancelled: bool = False
    successor: Any = None
    """The same request of another revision, in place of this one, which was refused: a `Pending`, or one that waits for
    an offset. None: there is none."""
    trace: RequestTrace | None = None
    """None: it is not traced."""


AcceptedRequests = dict[int, Pending]
"""Requests that have no final outcome yet, by the key of their request."""


class BatchInputs(msgspec.Struct, frozen=True):
    """What a batch is computed from, beside its lane and variant."""

    seeds: np.ndarray
    """int64. With `parts`, a copy that the batch may change."""
    key: int
    """What its draws depend on, but for seeds that requests name. Keys are further apart than the seeds of a batch,
    which may add to them (`DRAW_KEY_STEP`)."""
    with_embeddings: bool
    parts: Sequence[Part] | None = None
    """The requests, or pieces of them, whose seeds these are, in order; None: none of them has an overlay or a seed."""


class Computed(msgspec.Struct, frozen=True):
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
        with_embeddings |= pending.wants_embeddings
        has_parts |= question.overlay is not None or question.seed is not None
    if has_parts:
        seeds = np.concatenate(nodes, out=lane.seeds[: batch.seeds])  # a copy: the view changes it
        return BatchInputs(seeds, key, with_embeddings, [_part_of(accepted[p.request.key], p) for p in batch.pieces])
    seeds = nodes[0] if len(nodes) == 1 else np.concatenate(nodes, out=lane.seeds[: batch.seeds])
    return BatchInputs(seeds, key, with_embeddings)


def _part_of(pending: Pending, piece: Piece) -> Part:
    return Part(piece.stop - piece.start, pending.question.overlay, pending.question.seed)


def infer(
    lane: Lane, variant: str, inputs: BatchInputs, clock_ms: Callable[[], float]
) -> Computed | BaseException:  # fmt: skip
    """Run one batch, in the calling thread. Errors are returned."""
    try:
        started_ms = clock_ms()
        # Before the batch begins, so that no offset is told that it did not see.
        offset = lane.revision.changes.log.offset
        if inputs.parts is None:
            inference = lane.revision.compute.infer(
                variant, inputs.seeds, inputs.key, with_embeddings=inputs.with_embeddings
            )
        else:
            inference = _infer_parts(lane, variant, inputs, inputs.parts)
        return Computed(inference, started_ms, clock_ms(), offset)
    except BaseException as error:  # noqa: BLE001  (one bad batch must not take the others with it)
        return error


def _infer_parts(lane: Lane, variant: str, inputs: BatchInputs, parts: Sequence[Part]) -> Inference:
    """As `infer`, by a view of the graph with the overlays and seeds of the parts."""
    started = time.perf_counter()
    view = view_of(lane.revision.graph.first_new, parts, inputs.seeds)
    overlay_ms = (time.perf_counter() - started) * 1e3
    inference = lane.revision.compute.infer(
        variant, inputs.seeds, inputs.key, with_embeddings=inputs.with_embeddings, view=view
    )
    return msgspec.structs.replace(inference, times=inference.times.after_overlay(overlay_ms))


def share_out(accepted: AcceptedRequests, batch: Batch, computed: Computed) -> list[tuple[Pending, Outcome]]:
    """Split the results into each request's rows."""
    inference, finished_ms = computed.inference, computed.finished_ms
    times, finite = inference.times, _is_finite(inference.scores)
    spent_ms = times.total_ms
    settled: list[tuple[Pending, Outcome]] = []
    start = 0
    for piece in batch.pieces:
        first, start = start, start + piece.stop - piece.start
        pending = accepted.get(piece.request.key)
        if pending is None:
            continue  # its client left while the thread computed
        question, changes = pending.question, pending.lane.changes
        if changes is not None and changes.gone.are_named(question.nodes, piece.start, piece.stop, question.overlay):
            settled += settle(accepted, [(piece.request.key, NodeLeft())])
            continue
        scores = inference.scores[first:start]
        embeddings = None
        if pending.wants_embeddings and inference.embeddings is not None:
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


def note_traced(tracer: Tracer, accepted: AcceptedRequests, batch: Batch, computed: Computed) -> None:
    """Note the batch where traced requests take part in it."""
    keys = {piece.request.key for piece in batch.pieces}
    found = [pending.trace for key in keys if (pending := accepted.get(key)) is not None]
    traces = [trace for trace in found if trace is not None]
    if traces:
        tracer.note_batch(
            traces, batch.variant, batch.seeds, len(keys), computed.started_ms, computed.finished_ms,
            computed.inference.times,
        )  # fmt: skip


def settle(accepted: AcceptedRequests, outcomes: list[tuple[int, Outcome]]) -> list[tuple[Pending, Outcome]]:
    """Take requests with a final outcome out of the queue, so that nothing more is computed for them."""
    return [(pending, outcome) for key, outcome in outcomes if (pending := forget(accepted, key)) is not None]


def deliver_all(settled: list[tuple[Pending, Outcome]]) -> None:
    for pending, outcome in settled:
        if not pending.cancelled:
            try:
                pending.deliver(outcome)
            except Exception:  # noqa: BLE001  (the others are to get theirs)
                _log.exception("request %d: its outcome could not be delivered", pending.request.key)


def forget(accepted: AcceptedRequests, key: int) -> Pending | None:
    pending = accepted.pop(key, None)
    if pending is not None:
        pending.lane.batcher.cancel(key)
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
