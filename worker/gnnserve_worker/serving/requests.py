"""Accepted requests, from acceptance to outcome: their nodes for a batch, and their rows of its result.

Everything here belongs to the event loop. Functions take a model's accepted requests, by key, as their first
argument.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable

import msgspec
import numpy as np

from gnnserve_api.objective import Objective
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.scheduling.closing import Batch, Piece
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.scheduling.waiting import Request
from gnnserve_worker.serving.executor import Computed
from gnnserve_worker.serving.lane import Lane

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

    @property
    def queue_ms(self) -> float:
        return max(0.0, self.finished_ms - self.arrived_ms - self.times.total_ms)

    def objective_met(self, now_ms: float) -> bool:
        """Whether the answer is in time, by the clock alone: tolerances are always kept, and predictions do not
        count."""
        limit = self.objective.latency_ms
        return limit is None or now_ms - self.arrived_ms <= limit


class Failure(msgspec.Struct, frozen=True):
    """An internal error; the log has its details under the same id."""

    error_id: str


Outcome = Answer | Refusal | Failure


class Pending(msgspec.Struct):
    """An accepted request. Its outcome is delivered once, unless it is cancelled before."""

    lane: Lane
    request: Request
    nodes: np.ndarray
    wants_embeddings: bool
    deliver: Callable[[Outcome], None]
    parts: list[Answer] = []
    """Partial answers of a request that takes several batches."""
    cancelled: bool = False


AcceptedRequests = dict[int, Pending]
"""Requests that have no final outcome yet, by the key of their request."""


def fetch_seeds(accepted: AcceptedRequests, lane: Lane, batch: Batch) -> tuple[np.ndarray, bool]:
    """Copy the batch's seeds; returns them and whether any request wants embeddings."""
    parts, with_embeddings = [], False
    for piece in batch.pieces:
        pending = accepted[piece.request.key]
        parts.append(pending.nodes if piece.whole else pending.nodes[piece.start : piece.stop])
        with_embeddings |= pending.wants_embeddings
    seeds = parts[0] if len(parts) == 1 else np.concatenate(parts, out=lane.seeds[: batch.seeds])
    return seeds, with_embeddings


def share_out(accepted: AcceptedRequests, batch: Batch, computed: Computed) -> list[tuple[Pending, Outcome]]:
    """Split the results into each request's rows."""
    inference = computed.inference
    finite = _is_finite(inference.scores)
    settled: list[tuple[Pending, Outcome]] = []
    start = 0
    for piece in batch.pieces:
        first, start = start, start + piece.stop - piece.start
        pending = accepted.get(piece.request.key)
        if pending is None:
            continue  # its client left while the thread computed
        scores = inference.scores[first:start]
        embeddings = None
        if pending.wants_embeddings and inference.embeddings is not None:
            embeddings = inference.embeddings[first:start]
        if not (finite or _is_finite(scores)) or not (embeddings is None or _is_finite(embeddings)):
            error = ArithmeticError(f"variant {batch.variant} gave scores or embeddings that are not finite")
            settled += settle(accepted, [(piece.request.key, fail(batch, piece, error))])
            continue
        part = Answer(
            batch.variant, scores, embeddings, piece.request.objective, piece.request.arrived_ms,
            computed.finished_ms, inference.times,
        )  # fmt: skip
        if not piece.whole:
            pending.parts.append(part)
        if piece.last:
            del accepted[piece.request.key]
            settled.append((pending, part if piece.whole else _join(pending.parts)))
    return settled


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


def fail(batch: Batch, piece: Piece, error: Exception) -> Failure:
    failure = Failure(secrets.token_hex(8))
    _log.error(
        "error %s: variant %s, batch of %d seeds, request of %d",
        failure.error_id, batch.variant, batch.seeds, piece.request.seeds, exc_info=error,
    )  # fmt: skip
    return failure


def _join(parts: list[Answer]) -> Answer:
    embeddings = [part.embeddings for part in parts if part.embeddings is not None]
    times = parts[0].times
    for part in parts[1:]:
        times = times + part.times
    return msgspec.structs.replace(
        parts[-1],
        scores=np.concatenate([part.scores for part in parts]),
        embeddings=np.concatenate(embeddings) if embeddings else None,
        times=times,
    )
