"""The engine: one thread that turns waiting requests into answers.

Everything that computes runs here, one batch at a time; `_answer` is the data path and reads as it runs. HTTP
lives on the event loop: it hands seeds over under one lock and gets a batch of results back by one
`call_soon_threadsafe`, so that a request costs two thread hops. Which request is next and by which variant is the
batcher's decision, bytes and status codes are the protocol's.

What is served can change at any time: a `Lane` is one revision with its routing and its own queue, a request belongs
to the lane that admitted it, and lanes are answered in the order in which they came. Loading and warming up a
revision before it gets a lane is its owner's business.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gnnserve_api.batching import Batching
from gnnserve_api.objective import Objective
from gnnserve_worker.serving.batcher import Batch, Batcher, Piece, Refusal, RefusalReason, Request
from gnnserve_worker.serving.choice import VariantChooser
from gnnserve_worker.serving.inference import Inference, StageTimes
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.served import ServedRevision

_log = logging.getLogger(__name__)
_RETRY_WHEN_UNAVAILABLE_S = 1
_MAX_BATCH_SEEDS = 65_536


def monotonic_ms() -> float:
    return time.perf_counter() * 1000


class EngineState(StrEnum):
    LOADING = "Loading"
    """There is no revision to answer from yet; wait."""
    READY = "Ready"
    """Requests are answered."""
    DRAINING = "Draining"
    """What was accepted is finished, nothing new is; ask another worker."""
    STOPPED = "Stopped"
    """The thread is gone; restart the process unless it is about to exit."""


@dataclass(frozen=True, slots=True)
class Answer:
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
        """By the clock alone: a tolerance is never broken, and a prediction is no excuse."""
        limit = self.objective.latency_ms
        return limit is None or now_ms - self.arrived_ms <= limit


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of ours; what it was is in the log, under the same id."""

    error_id: str


Outcome = Answer | Refusal | Failure


@dataclass(frozen=True, slots=True)
class _Part:
    """What one batch gave to one request."""

    variant: str
    scores: np.ndarray
    embeddings: np.ndarray | None
    times: StageTimes


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A revision, how it is served, and who waits for it."""

    revision: ServedRevision
    objective: Objective
    """The service's own, for requests that state none."""
    batching: Batching
    chooser: VariantChooser
    batcher: Batcher
    """Only under the engine's lock."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted request, from the event loop's side."""

    lane: Lane
    request: Request
    nodes: np.ndarray
    wants_embeddings: bool
    outcome: asyncio.Future[Outcome]
    parts: list[_Part] = field(default_factory=list)


class Engine:
    """`submit`, `cancel` and `switch` belong to the event loop's thread, the underscored data path to the engine's."""

    def __init__(self, metrics: ServingMetrics, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self.lane: Lane | None = None
        """Which admits requests now. Changes on the event loop only: what it does without awaiting sees one lane."""
        self.problem: str | None = None
        """Why what is declared is not what answers, for people."""
        self.failure: BaseException | None = None
        """Why the thread stopped, if not because it was asked to."""
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._lanes: deque[Lane] = deque()
        """The last one admits; those before it are answered first, and let go when nobody waits there."""
        self._pending: dict[int, Pending] = {}
        self._request_keys = itertools.count()
        self._draw_keys = itertools.count(step=_MAX_BATCH_SEEDS)
        """Apart by more than a batch, whose seeds may count on from its key."""
        self._lock = threading.Condition()
        """Guards the lanes, their batchers, `_pending` and `_state`."""
        self._state = EngineState.LOADING
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._on_stopped: Callable[[], None] | None = None

    # From any thread

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def queued_seeds(self) -> int:
        with self._lock:
            return sum(lane.batcher.queued_seeds for lane in self._lanes)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, on_stopped: Callable[[], None] | None = None) -> None:
        """`on_stopped` runs in the engine's thread."""
        self._on_stopped = on_stopped
        self._thread.start()

    def drain(self) -> None:
        """Accept nothing more, finish what is queued, then stop."""
        with self._lock:
            if self._state is not EngineState.STOPPED:
                self._state = EngineState.DRAINING
            self._lock.notify()

    def abandon(self) -> None:
        """Stop after the running batch; whoever still waits is refused now."""
        self.drain()
        with self._lock:
            left = self._clear()
            self._lock.notify()
        self._deliver([(key, _unavailable(EngineState.DRAINING)) for key in left])

    def join(self) -> None:
        self._thread.join()

    # From the event loop

    def switch(self, revision: ServedRevision, objective: Objective, batching: Batching) -> None:
        """From now on requests are admitted to, and answered by, this revision, which has been warmed up.

        Those that wait are still answered by the one that admitted them, first; then nothing refers to it any more.
        """
        chooser = VariantChooser(revision.manifest.profile, batching.max_seeds)
        with self._lock:
            busy_until_ms = -math.inf
            if self.lane is not None:
                busy_until_ms = self.lane.batcher.busy_until_ms(self._clock_ms())
            batcher = Batcher(chooser, batching.max_seeds, batching.max_queued_seeds, busy_until_ms)
            self.lane = Lane(revision, objective, batching, chooser, batcher)
            self._lanes.append(self.lane)
            if self._state is EngineState.LOADING:
                self._state = EngineState.READY
            self._lock.notify()

    def submit(
        self,
        lane: Lane,
        nodes: np.ndarray,
        objective: Objective,
        strict: bool,
        wants_embeddings: bool,
        arrived_ms: float,
    ) -> Pending | Refusal:
        """To the present lane, which the nodes were checked against. An empty objective states nothing: the
        service's own holds."""
        self._metrics.count_offered(len(nodes))
        holding = lane.objective if objective.is_empty() else objective
        request = Request(next(self._request_keys), len(nodes), holding, arrived_ms)
        with self._lock:
            if self._state is not EngineState.READY:
                return _unavailable(self._state)
            admission = lane.batcher.admit(request, strict, self._clock_ms())
            if isinstance(admission, Refusal):
                return admission
            pending = self._accept(lane, request, nodes, wants_embeddings)
            self._lock.notify()
            return pending

    def refuse(self) -> Refusal:
        """What a request gets while there is no lane."""
        return _unavailable(self._state, self.problem)

    def cancel(self, pending: Pending) -> None:
        """The client is gone: compute nothing more for it."""
        with self._lock:
            self._forget(pending.request.key)

    def _accept(self, lane: Lane, request: Request, nodes: np.ndarray, wants_embeddings: bool) -> Pending:
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        pending = Pending(lane, request, nodes, wants_embeddings, outcome)
        self._pending[request.key] = pending
        return pending

    def _forget(self, key: int) -> Pending | None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.lane.batcher.cancel(key)
        return pending

    def _clear(self) -> list[int]:
        return [key for lane in self._lanes for key in lane.batcher.clear()]

    # The engine's thread

    def _run(self) -> None:
        try:
            while self._serve_next():
                pass
        except BaseException as error:  # noqa: BLE001  (a dead thread must be noticed, whatever killed it)
            _log.critical("the engine stopped", exc_info=error)
            self.failure = error
        finally:
            self._stop()

    def _serve_next(self) -> bool:
        """Waits for work; False once a draining engine has none left.

        A function of its own, so that no variable of a waiting engine keeps a revision that was replaced.
        """
        with self._lock:
            while (lane := self._first_waiting_lane()) is None:
                if self._state is EngineState.DRAINING:
                    return False
                self._lock.wait()
            taken = lane.batcher.take(self._clock_ms())
        self._deliver([(request.key, refusal) for request, refusal in taken.refused])
        if taken.batch is not None:
            self._answer(lane, taken.batch)
        return True

    def _first_waiting_lane(self) -> Lane | None:
        while len(self._lanes) > 1 and not self._lanes[0].batcher.waiting:
            self._lanes.popleft()
            # The next one need not wait for what was accepted before it, however long that was thought to take.
            self._lanes[0].batcher.finish()
        return self._lanes[0] if self._lanes and self._lanes[0].batcher.waiting else None

    def _answer(self, lane: Lane, batch: Batch) -> None:
        """Take a batch → sample, gather, infer → split → answer."""
        try:
            seeds = self._seeds(batch)
            started_ms = self._clock_ms()
            inference = lane.revision.infer(batch.variant, seeds, next(self._draw_keys))
            finished_ms = self._clock_ms()
            self._metrics.observe_batch(batch.variant, batch.seeds, finished_ms - started_ms, inference.times)
            outcomes = self._split(batch, inference, finished_ms)
        except Exception as error:  # noqa: BLE001  (one bad batch must not take the others with it)
            outcomes = [(piece.request.key, self._fail(batch, piece, error)) for piece in batch.pieces]
        with self._lock:
            lane.batcher.finish()
        self._deliver(outcomes)

    def _seeds(self, batch: Batch) -> np.ndarray:
        parts = []
        for piece in batch.pieces:
            pending = self._pending.get(piece.request.key)
            # A client that left a moment ago: any node keeps the pieces aligned.
            nodes = np.zeros(piece.request.seeds, np.int64) if pending is None else pending.nodes
            parts.append(nodes[piece.start : piece.stop])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _split(self, batch: Batch, inference: Inference, finished_ms: float) -> list[tuple[int, Outcome]]:
        outcomes: list[tuple[int, Outcome]] = []
        start = 0
        for piece in batch.pieces:
            rows = slice(start, start + piece.stop - piece.start)
            start = rows.stop
            pending = self._pending.get(piece.request.key)
            if pending is None:
                continue
            scores = inference.scores[rows]
            embeddings = None
            if pending.wants_embeddings and inference.embeddings is not None:
                embeddings = inference.embeddings[rows]
            if not np.isfinite(scores).all() or (embeddings is not None and not np.isfinite(embeddings).all()):
                error = ArithmeticError(f"variant {batch.variant} gave scores or embeddings that are not finite")
                outcomes.append((piece.request.key, self._fail(batch, piece, error)))
                continue
            pending.parts.append(_Part(batch.variant, scores, embeddings, inference.times))
            if piece.last:
                outcomes.append((piece.request.key, _join(pending, finished_ms)))
        return outcomes

    def _fail(self, batch: Batch, piece: Piece, error: Exception) -> Failure:
        failure = Failure(secrets.token_hex(8))
        _log.error(
            "error %s: variant %s, batch of %d seeds, request of %d",
            failure.error_id, batch.variant, batch.seeds, piece.request.seeds, exc_info=error,
        )  # fmt: skip
        return failure

    def _deliver(self, outcomes: list[tuple[int, Outcome]]) -> None:
        if not outcomes:
            return
        with self._lock:
            settled = [
                (pending.outcome, outcome) for key, outcome in outcomes if (pending := self._forget(key)) is not None
            ]
        if settled:
            loop = settled[0][0].get_loop()
            try:
                loop.call_soon_threadsafe(_settle, settled)
            except RuntimeError:
                # A forced exit closes the loop under requests that nobody waits for any more.
                if not loop.is_closed():
                    raise

    def _stop(self) -> None:
        with self._lock:
            self._state = EngineState.STOPPED
            self._clear()
            left = list(self._pending)
        self._deliver([(key, _unavailable(EngineState.STOPPED)) for key in left])
        if self._on_stopped is not None:
            self._on_stopped()


def _join(pending: Pending, finished_ms: float) -> Answer:
    parts = pending.parts
    first = parts[0]
    scores, embeddings, times = first.scores, first.embeddings, first.times
    if len(parts) > 1:
        scores = np.concatenate([part.scores for part in parts])
        if embeddings is not None:
            embeddings = np.concatenate([part.embeddings for part in parts if part.embeddings is not None])
        for part in parts[1:]:
            times = times + part.times
    return Answer(
        variant=first.variant,
        scores=scores,
        embeddings=embeddings,
        objective=pending.request.objective,
        arrived_ms=pending.request.arrived_ms,
        finished_ms=finished_ms,
        times=times,
    )


def _settle(outcomes: list[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for future, outcome in outcomes:
        if not future.done():
            future.set_result(outcome)


def _unavailable(state: EngineState, problem: str | None = None) -> Refusal:
    if state is EngineState.LOADING:
        why = "" if problem is None else f": {problem}"
        message = f"the worker has no revision to answer from yet{why}; send again in a moment"
        return Refusal(RefusalReason.LOADING, message, _RETRY_WHEN_UNAVAILABLE_S)
    message = "the worker is stopping; send again, to another worker if there is one"
    return Refusal(RefusalReason.DRAINING, message, _RETRY_WHEN_UNAVAILABLE_S)
