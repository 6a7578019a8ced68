"""The engine: what turns waiting requests into answers, one batch at a time.

`_answer` is the data path and reads as it runs. Everything but the computation belongs to the event loop, and so needs
no lock: a request is submitted with a callback, and once per round of the loop, when all that the sockets brought has
been submitted, the next batch is closed. A short one is computed there and then: handing it to another thread and
back would cost more than the batch. A longer one goes to the engine's thread, so that the loop goes on reading and
writing; what arrives meanwhile gathers. Which request is next and by which variant is the batcher's decision,
bytes and status codes are the protocol's.

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
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue

import msgspec
import numpy as np

from gnnserve_api.batching import Batching
from gnnserve_api.errors import DeviceLostError
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.routing import Damage, Route, RoutingTable
from gnnserve_worker.inference.batch import Inference, StageTimes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.batcher import Batch, Batcher, Piece, Refusal, RefusalReason
from gnnserve_worker.scheduling.choice import VariantChooser, decide_route
from gnnserve_worker.scheduling.waiting import Request
from gnnserve_worker.serving.metrics import ServingMetrics

SHORT_BATCH_MS = 0.6
"""Expected time up to which a batch is computed on the event loop. Two thread hops cost 0.1 ms, and under load more,
since both threads then want the interpreter. It also bounds how long the loop does not listen."""
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


# What is made per request is a msgspec struct: it costs a sixth of a frozen dataclass.


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
        """By the clock alone: a tolerance is never broken, and a prediction is no excuse."""
        limit = self.objective.latency_ms
        return limit is None or now_ms - self.arrived_ms <= limit


class Failure(msgspec.Struct, frozen=True):
    """An error of ours; what it was is in the log, under the same id."""

    error_id: str


Outcome = Answer | Refusal | Failure


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A revision, how it is served, and who waits for it."""

    revision: ServedRevision
    objective: Objective
    """The service's own, for requests that state none."""
    batching: Batching
    chooser: VariantChooser
    batcher: Batcher
    seeds: np.ndarray
    """int64 [max_seeds]: the running batch's, gathered from its requests."""


class Pending(msgspec.Struct):
    """An accepted request. Its outcome is delivered once, unless it is cancelled before."""

    lane: Lane
    request: Request
    nodes: np.ndarray
    wants_embeddings: bool
    deliver: Callable[[Outcome], None]
    parts: list[Answer] = []
    """Of a request that takes several batches, what each of them gave."""
    cancelled: bool = False


class _Computed(msgspec.Struct, frozen=True):
    inference: Inference
    started_ms: float
    finished_ms: float


class Engine:
    """Belongs to the event loop's thread; `_compute` alone may run in the engine's."""

    def __init__(self, metrics: ServingMetrics, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self.lane: Lane | None = None
        """Which admits requests now. Changes on the event loop only: what it does without awaiting sees one lane."""
        self.table: RoutingTable | None = None
        """In effect; `lane` answers by it."""
        self.problem: str | None = None
        """Why what is declared is not what answers, for people."""
        self.damage: Damage | None = None
        """Proven damage of the declared revision's files, for the operator; None: there is none."""
        self.failure: BaseException | None = None
        """Why the engine stopped, if not because it was asked to."""
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._lanes: deque[Lane] = deque()
        """The last one admits; those before it are answered first, and let go when nobody waits there."""
        self._pending: dict[int, Pending] = {}
        self._request_keys = itertools.count()
        self._withdrawals = 0
        self._draw_keys = itertools.count(step=_MAX_BATCH_SEEDS)
        """Apart by more than a batch, whose seeds may count on from its key."""
        self._state = EngineState.LOADING
        self._turn_is_due = False
        """`_serve_next` will run in this round of the loop or the next."""
        self._computing = False
        """The thread has a batch."""
        self._released_ms = -math.inf
        """When the last batch left the worker to the next."""
        self._costs_end_ms = math.inf
        """When the table's costs hold no longer."""
        self._handed: SimpleQueue[tuple[Lane, Batch, np.ndarray, bool] | None] = SimpleQueue()
        """To the thread: a batch, its seeds, whether embeddings are wanted; or None to end it."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_stopped: Callable[[], None] | None = None

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def queued_seeds(self) -> int:
        return sum(lane.batcher.queued_seeds for lane in self._lanes)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, on_stopped: Callable[[], None] | None = None) -> None:
        """On the event loop that it will belong to. `on_stopped` runs in the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._on_stopped = on_stopped
        self._thread.start()

    def drain(self) -> None:
        """Accept nothing more, finish what is queued, then stop."""
        if self._state is not EngineState.STOPPED:
            self._state = EngineState.DRAINING
        self._go_on()

    def abandon(self) -> None:
        """Stop after the running batch; whoever still waits is refused now."""
        self.drain()
        left = [key for lane in self._lanes for key in lane.batcher.clear()]
        self._deliver(self._settle([(key, _unavailable(EngineState.DRAINING)) for key in left]))

    def join(self) -> None:
        """From any thread but the event loop's."""
        self._thread.join()

    def switch(self, revision: ServedRevision, table: RoutingTable) -> None:
        """From now on requests are admitted to, and answered by, this revision, warmed up, as the table says.

        Those that wait are still answered by the one that admitted them, first; then nothing refers to it any more. If
        only the routing is new, everything stays where it is. Raises TableError, and changes nothing, where the table
        names variants that there are not.
        """
        revision.check(table)
        lane, now_ms = self.lane, self._clock_ms()
        same = lane is not None and lane.revision is revision and lane.batching == table.batching
        if lane is None or not same or lane.objective != table.objective:
            self.lane = lane = self._open_lane(revision, table, lane.chooser if lane is not None and same else None)
            self._lanes.append(lane)
        else:
            lane.batcher.route_by(table)
        self.table = table
        self._costs_end_ms = math.inf if table.ttl_seconds is None else now_ms + 1000 * table.ttl_seconds
        lane.chooser.use(table.costs)
        if self._state is EngineState.LOADING:
            self._state = EngineState.READY
        self._go_on()

    def _open_lane(self, revision: ServedRevision, table: RoutingTable, chooser: VariantChooser | None) -> Lane:
        """`chooser`: what was learnt of this very revision; of another one, what concerns the machine is kept."""
        batching, busy_until_ms = table.batching, -math.inf
        before = None
        if self.lane is not None:
            busy_until_ms = self.lane.batcher.busy_until_ms(self._clock_ms())
            before = self.lane.chooser.costs
        if chooser is None:
            chooser = VariantChooser(revision.manifest.profile, batching.max_seeds, before)
        # Replicas that began alike would go through their weights in step.
        drawn = secrets.randbelow(1 << 20) / (1 << 20)
        batcher = Batcher(chooser, table, batching.max_queued_seeds, busy_until_ms, drawn)
        return Lane(revision, table.objective, batching, chooser, batcher, np.empty(batching.max_seeds, np.int64))

    def withdraw(self, problem: str) -> None:
        """Answer nothing until the next switch: what is computed, or is being computed, may be wrong. Whoever waits is
        refused, and so are those of the batch that the thread has."""
        self.problem = problem
        self._withdrawals += 1
        if self._state is EngineState.READY:
            self._state = EngineState.LOADING
        self.lane = self.table = None
        for lane in self._lanes:
            lane.batcher.clear()
        self._lanes.clear()
        self._deliver(self._settle([(key, self.refuse()) for key in list(self._pending)]))
        self._go_on()

    def submit(
        self,
        lane: Lane,
        nodes: np.ndarray,
        objective: Objective,
        strict: bool,
        wants_embeddings: bool,
        arrived_ms: float,
        deliver: Callable[[Outcome], None],
    ) -> Pending | Refusal:
        """To the present lane, which the nodes were checked against. An empty objective states nothing: the
        service's own holds. `deliver` is called later, never from within."""
        seeds = len(nodes)
        self._metrics.count_offered(seeds)
        if self._state is not EngineState.READY:
            return _unavailable(self._state)
        holding = lane.objective if objective == NO_OBJECTIVE else objective
        request = Request(next(self._request_keys), seeds, holding, arrived_ms)
        admission = lane.batcher.admit(request, strict, self._clock_ms())
        if isinstance(admission, Refusal):
            return admission
        pending = Pending(lane, request, nodes, wants_embeddings, deliver)
        self._pending[request.key] = pending
        self._go_on()
        return pending

    def would_refuse(self, seeds: int, now_ms: float) -> Refusal | None:
        """What a request with the service's own objective would get now, if it were refused like the last one: so that
        it can be refused before it is read. The same object as long as the answer is the same."""
        lane = self.lane
        if lane is None or self._state is not EngineState.READY:
            return None
        return lane.batcher.would_refuse(lane.objective, seeds, now_ms)

    def route(self) -> Route:
        """The routing in effect; there has to be a lane."""
        lane, table = self.lane, self.table
        assert lane is not None and table is not None  # noqa: S101
        self._drop_expired_costs(self._clock_ms())
        return decide_route(lane.chooser, lane.revision.manifest.revision, table, self.problem, self.is_expired)

    @property
    def is_expired(self) -> bool:
        """The table's costs have outlived their time."""
        return self.table is not None and bool(self.table.costs) and self._clock_ms() >= self._costs_end_ms

    def corrections(self) -> dict[str, float]:
        """By variant: what batches take, over what table or profile say."""
        if self.lane is None:
            return {}
        chooser = self.lane.chooser
        return dict(zip(chooser.names, chooser.costs.factors, strict=True))

    def _drop_expired_costs(self, now_ms: float) -> None:
        if now_ms >= self._costs_end_ms and self.lane is not None and self.table is not None:
            self._costs_end_ms = -math.inf
            self.lane.chooser.use({})
            self.lane.batcher.route_by(self.table)  # which refusals hold, it has to find out again

    def refuse(self) -> Refusal:
        """What a request gets while there is no lane."""
        return _unavailable(self._state, self.problem)

    def cancel(self, pending: Pending) -> None:
        """The client is gone: compute nothing more for it, and tell it nothing."""
        pending.cancelled = True
        self._forget(pending.request.key)

    def _forget(self, key: int) -> Pending | None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.lane.batcher.cancel(key)
        return pending

    def _go_on(self) -> None:
        """Look for the next batch, once this round of the loop has read what the sockets brought."""
        if not self._turn_is_due and not self._computing and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_soon(self._serve_next)

    def _serve_next(self) -> None:
        self._turn_is_due = False
        if self._computing or self._state is EngineState.STOPPED:
            return
        lane = self._first_waiting_lane()
        if lane is None:
            if self._state is EngineState.DRAINING:
                self._stop()
            return
        now_ms = self._clock_ms()
        if now_ms >= self._costs_end_ms > -math.inf:
            self._drop_expired_costs(now_ms)
        try:
            taken = lane.batcher.take(now_ms)
        except Exception as error:  # noqa: BLE001  (a queue that nobody serves any more must not look alive)
            self._die(error)
            return
        if taken.refused:
            self._deliver(self._settle([(request.key, refusal) for request, refusal in taken.refused]))
        if taken.batch is not None:
            self._answer(lane, taken.batch)
        if lane.batcher.waiting or len(self._lanes) > 1 or self._state is EngineState.DRAINING:
            # In another round, so that short batches leave the sockets their turn.
            self._go_on()

    def _first_waiting_lane(self) -> Lane | None:
        while len(self._lanes) > 1 and not self._lanes[0].batcher.waiting:
            self._lanes.popleft()
            # The next one need not wait for what was accepted before it, however long that was thought to take.
            self._lanes[0].batcher.finish()
        return self._lanes[0] if self._lanes and self._lanes[0].batcher.waiting else None

    def _answer(self, lane: Lane, batch: Batch) -> None:
        """Fetch the seeds → sample, gather, infer → split → deliver; in the engine's thread where that takes long."""
        seeds, with_embeddings = self._fetch_seeds(lane, batch)
        if batch.predicted_ms > SHORT_BATCH_MS:
            self._computing = True
            self._handed.put((lane, batch, seeds, with_embeddings))
        else:
            begun_ms = self._could_begin_ms(batch)
            computed = self._infer(lane, batch, seeds, with_embeddings)
            self._deliver(self._split(lane, batch, computed))
            self._released_ms = released_ms = self._clock_ms()
            if isinstance(computed, _Computed):
                self._account(lane, batch, computed, released_ms - begun_ms, released_ms - begun_ms, released_ms)

    def _take_back(self, lane: Lane, batch: Batch, computed: _Computed | BaseException) -> None:
        self._computing = False
        begun_ms = self._could_begin_ms(batch)
        outcomes, withdrawals = self._split(lane, batch, computed), self._withdrawals
        # The thread gets its next batch before these are encoded.
        self._go_on()
        self._released_ms = released_ms = self._clock_ms()

        def deliver() -> None:
            started_ms = self._clock_ms()
            if self._withdrawals != withdrawals:  # since the last round of the loop
                state = EngineState.LOADING if self._state is EngineState.READY else self._state
                refusal = _unavailable(state, self.problem)
                self._deliver([(pending, refusal) for pending, _ in outcomes])
                return
            self._deliver(outcomes)
            if isinstance(computed, _Computed):
                now_ms, occupied_ms = self._clock_ms(), released_ms - begun_ms
                self._account(lane, batch, computed, occupied_ms, occupied_ms + now_ms - started_ms, now_ms)

        asyncio.get_running_loop().call_soon(deliver)

    def _could_begin_ms(self, batch: Batch) -> float:
        """When somebody in the batch waited and the worker had nothing else to do."""
        released_ms = self._released_ms
        if batch.pieces[0].request.arrived_ms <= released_ms:
            return released_ms
        return max(released_ms, min([piece.request.arrived_ms for piece in batch.pieces]))

    def _account(
        self, lane: Lane, batch: Batch, computed: _Computed, occupied_ms: float, total_ms: float, now_ms: float
    ) -> None:
        """`occupied_ms`: for how long nothing else could be done; `total_ms`: until all had their answers."""
        self._metrics.observe_batch(batch.variant, batch.seeds, occupied_ms, computed.inference.times)
        lane.batcher.observe(batch, computed.finished_ms - computed.started_ms, total_ms, now_ms)

    def _fetch_seeds(self, lane: Lane, batch: Batch) -> tuple[np.ndarray, bool]:
        """And whether anybody wants embeddings."""
        parts, with_embeddings = [], False
        for piece in batch.pieces:
            pending = self._pending[piece.request.key]
            parts.append(pending.nodes if piece.whole else pending.nodes[piece.start : piece.stop])
            with_embeddings |= pending.wants_embeddings
        seeds = parts[0] if len(parts) == 1 else np.concatenate(parts, out=lane.seeds[: batch.seeds])
        return seeds, with_embeddings

    def _infer(self, lane: Lane, batch: Batch, seeds: np.ndarray, with_embeddings: bool) -> _Computed | BaseException:
        """In either thread."""
        try:
            started_ms = self._clock_ms()
            key = next(self._draw_keys)
            inference = lane.revision.infer(batch.variant, seeds, key, with_embeddings=with_embeddings)
            return _Computed(inference, started_ms, self._clock_ms())
        except BaseException as error:  # noqa: BLE001  (one bad batch must not take the others with it)
            return error

    def _split(self, lane: Lane, batch: Batch, computed: _Computed | BaseException) -> list[tuple[Pending, Outcome]]:
        lane.batcher.finish()
        if isinstance(computed, _Computed):
            try:
                return self._share_out(batch, computed)
            except Exception as error:  # noqa: BLE001  (as in `_infer`)
                computed = error
        if isinstance(computed, Exception) and not isinstance(computed, DeviceLostError):
            return self._settle([(piece.request.key, _fail(batch, piece, computed)) for piece in batch.pieces])
        self._die(computed)
        return []

    def _share_out(self, batch: Batch, computed: _Computed) -> list[tuple[Pending, Outcome]]:
        """To each request its rows."""
        inference = computed.inference
        finite = _is_finite(inference.scores)
        settled: list[tuple[Pending, Outcome]] = []
        start = 0
        for piece in batch.pieces:
            first, start = start, start + piece.stop - piece.start
            pending = self._pending.get(piece.request.key)
            if pending is None:
                continue  # its client left while the thread computed
            scores = inference.scores[first:start]
            embeddings = None
            if pending.wants_embeddings and inference.embeddings is not None:
                embeddings = inference.embeddings[first:start]
            if not (finite or _is_finite(scores)) or not (embeddings is None or _is_finite(embeddings)):
                error = ArithmeticError(f"variant {batch.variant} gave scores or embeddings that are not finite")
                settled += self._settle([(piece.request.key, _fail(batch, piece, error))])
                continue
            part = Answer(
                batch.variant, scores, embeddings, piece.request.objective, piece.request.arrived_ms,
                computed.finished_ms, inference.times,
            )  # fmt: skip
            if not piece.whole:
                pending.parts.append(part)
            if piece.last:
                del self._pending[piece.request.key]
                settled.append((pending, part if piece.whole else _join(pending.parts)))
        return settled

    def _settle(self, outcomes: list[tuple[int, Outcome]]) -> list[tuple[Pending, Outcome]]:
        """What is left of these requests is not computed."""
        return [(pending, outcome) for key, outcome in outcomes if (pending := self._forget(key)) is not None]

    def _deliver(self, settled: list[tuple[Pending, Outcome]]) -> None:
        for pending, outcome in settled:
            if not pending.cancelled:
                try:
                    pending.deliver(outcome)
                except Exception:  # noqa: BLE001  (the others are to get theirs)
                    _log.exception("request %d: its outcome could not be delivered", pending.request.key)

    def _die(self, error: BaseException) -> None:
        _log.critical("the engine stopped", exc_info=error)
        self.failure = error
        self._stop()

    def _stop(self) -> None:
        self._state = EngineState.STOPPED
        for lane in self._lanes:
            lane.batcher.clear()
        self._deliver(self._settle([(key, _unavailable(EngineState.STOPPED)) for key in list(self._pending)]))
        self._handed.put(None)

    # The engine's thread

    def _run(self) -> None:
        try:
            while self._compute_next():
                pass
        finally:
            if self._on_stopped is not None:
                self._on_stopped()

    def _compute_next(self) -> bool:
        """Waits for a batch; False when there will be none.

        A function of its own, so that no variable of a waiting engine keeps a revision that was replaced.
        """
        handed = self._handed.get()
        if handed is None or self._loop is None:
            return False
        lane, batch, seeds, with_embeddings = handed
        computed = self._infer(lane, batch, seeds, with_embeddings)
        try:
            self._loop.call_soon_threadsafe(self._take_back, lane, batch, computed)
        except RuntimeError:
            # A forced exit closes the loop under requests that nobody waits for any more.
            if not self._loop.is_closed():
                raise
            return False
        return True


def _is_finite(values: np.ndarray) -> bool:
    """One pass without a temporary; only where the squares overflow, a second look."""
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def _fail(batch: Batch, piece: Piece, error: Exception) -> Failure:
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


def _unavailable(state: EngineState, problem: str | None = None) -> Refusal:
    if state is EngineState.LOADING:
        why = "" if problem is None else f": {problem}"
        message = f"the worker has no revision to answer from yet{why}; send again in a moment"
        return Refusal(RefusalReason.LOADING, message, _RETRY_WHEN_UNAVAILABLE_S)
    message = "the worker is stopping; send again, to another worker if there is one"
    return Refusal(RefusalReason.DRAINING, message, _RETRY_WHEN_UNAVAILABLE_S)
