"""The engine: it turns queued requests into answers, one batch at a time.

`_answer` is the data path, in the order in which it runs. Everything but the computation belongs to the event loop, and
so needs no lock: a request is submitted with a callback, and once per round of the loop, when all that the sockets
delivered has been submitted, the next batch is closed. A short batch is computed on the loop: handing it to another
thread and back would cost more than the batch. A longer one goes to the engine's thread, so that the loop continues to
read and write; requests that arrive meanwhile are queued (`executor.py`). The batcher decides which requests are next
and by which variant; `requests.py` fetches their nodes and shares out the results; protocols handle bytes and status
codes.

The served revision can change at any time: a `Lane` is one revision with its routing and its own queue, a request
belongs to the lane that admitted it, and lanes are answered in the order in which they were opened. The caller loads
and warms up a revision before it gets a lane.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import numpy as np

from gnnserve_api.errors import DeviceLostError
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.routing import Damage, Route, RoutingTable
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.choice import decide_route
from gnnserve_worker.scheduling.closing import Batch
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.waiting import Request
from gnnserve_worker.serving.executor import BatchExecutor, Computed
from gnnserve_worker.serving.lane import Lane, open_lane
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.requests import (
    AcceptedRequests,
    Outcome,
    Pending,
    fail,
    fetch_seeds,
    forget,
    settle,
    share_out,
)

SHORT_BATCH_MS = 0.6
"""Expected time up to which a batch is computed on the event loop. Two thread hops cost 0.1 ms, and under load more,
since both threads then want the interpreter. It also bounds how long the loop does not listen."""
_log = logging.getLogger(__name__)
_RETRY_WHEN_UNAVAILABLE_S = 1


def monotonic_ms() -> float:
    return time.perf_counter() * 1000


class EngineState(StrEnum):
    LOADING = "Loading"
    """No revision is loaded yet; wait."""
    READY = "Ready"
    """Requests are answered."""
    DRAINING = "Draining"
    """Accepted requests are finished, new ones refused; ask another worker."""
    STOPPED = "Stopped"
    """The engine's thread has ended; restart the process unless it is about to exit."""


class Engine:
    """The engine. It belongs to the event loop's thread; only its executor computes in another one."""

    def __init__(self, metrics: ServingMetrics, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self.lane: Lane | None = None
        """The lane that admits requests now. It changes on the event loop only, so code that does not await sees one
        lane."""
        self.table: RoutingTable | None = None
        """The routing table in effect, which `lane` follows."""
        self.problem: str | None = None
        """Why the declared revision is not the one that answers, as a message."""
        self.damage: Damage | None = None
        """Proven damage of the declared revision's files, for the operator; None: there is none."""
        self.failure: BaseException | None = None
        """Why the engine stopped by itself, if it did."""
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._lanes: deque[Lane] = deque()
        """Open lanes. The last one admits; those before it are answered first, and closed when their queue is empty."""
        self._accepted: AcceptedRequests = {}
        self._request_keys = itertools.count()
        self._withdrawals = 0
        self._state = EngineState.LOADING
        self._turn_is_due = False
        """Whether `_serve_next` is scheduled for this round of the loop or the next."""
        self._computing = False
        """Whether the thread has a batch."""
        self._released_ms = -math.inf
        """When the last batch released the worker."""
        self._costs_end_ms = math.inf
        """When the table's costs expire."""
        self._executor = BatchExecutor(clock_ms, self._take_back)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def queued_seeds(self) -> int:
        return sum(lane.batcher.queued_seeds for lane in self._lanes)

    @property
    def alive(self) -> bool:
        return self._executor.alive

    def start(self, on_stopped: Callable[[], None] | None = None) -> None:
        """Start, on the event loop that the engine will belong to. `on_stopped` runs in the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._executor.start(on_stopped)

    def drain(self) -> None:
        """Accept nothing more, finish what is queued, then stop."""
        if self._state is not EngineState.STOPPED:
            self._state = EngineState.DRAINING
        self._go_on()

    def abandon(self) -> None:
        """Stop after the running batch; queued requests are refused now."""
        self.drain()
        left = [key for lane in self._lanes for key in lane.batcher.clear()]
        self._deliver(settle(self._accepted, [(key, _unavailable(EngineState.DRAINING)) for key in left]))

    def join(self) -> None:
        """Wait until the engine's thread has ended. Any thread but the event loop's may call it."""
        self._executor.join()

    def switch(self, revision: ServedRevision, table: RoutingTable) -> None:
        """Admit and answer requests from now on by this revision, which is warmed up, following the table.

        Queued requests are answered first, by the revision that admitted them; after that nothing refers to it any
        more. If only the routing is new, the lane stays. Raises TableError, and changes nothing, where the table names
        unknown variants.
        """
        revision.check(table)
        lane, now_ms = self.lane, self._clock_ms()
        same = lane is not None and lane.revision is revision and lane.batching == table.batching
        if lane is None or not same or lane.objective != table.objective:
            chooser = lane.chooser if lane is not None and same else None
            self.lane = lane = open_lane(revision, table, chooser, self.lane, now_ms)
            self._lanes.append(lane)
        else:
            lane.batcher.route_by(table)
        self.table = table
        self._costs_end_ms = math.inf if table.ttl_seconds is None else now_ms + 1000 * table.ttl_seconds
        lane.chooser.use(table.costs)
        if self._state is EngineState.LOADING:
            self._state = EngineState.READY
        self._go_on()

    def withdraw(self, problem: str) -> None:
        """Answer nothing until the next switch, since results may be wrong. Queued requests are refused, and so are
        those of the batch that the thread has."""
        self.problem = problem
        self._withdrawals += 1
        if self._state is EngineState.READY:
            self._state = EngineState.LOADING
        self.lane = self.table = None
        for lane in self._lanes:
            lane.batcher.clear()
        self._lanes.clear()
        self._deliver(settle(self._accepted, [(key, self.refuse()) for key in list(self._accepted)]))
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
        """Submit a request to the present lane, against which its nodes were checked. With an empty objective the
        service's own applies. `deliver` is called later, never during this call."""
        seeds = len(nodes)
        self._metrics.count_offered(seeds)
        if self._state is not EngineState.READY:
            return _unavailable(self._state)
        holding = lane.objective if objective == NO_OBJECTIVE else objective
        request = Request(next(self._request_keys), seeds, holding, arrived_ms)
        refusal = lane.batcher.admit(request, strict, self._clock_ms())
        if refusal is not None:
            return refusal
        pending = Pending(lane, request, nodes, wants_embeddings, deliver)
        self._accepted[request.key] = pending
        self._go_on()
        return pending

    def would_refuse(self, seeds: int, now_ms: float) -> Refusal | None:
        """The refusal that a request with the service's own objective would get now, if it is known from the last one:
        the request can then be refused before it is parsed. It is the same object as long as the refusal is the
        same."""
        lane = self.lane
        if lane is None or self._state is not EngineState.READY:
            return None
        return lane.batcher.would_refuse(lane.objective, seeds, now_ms)

    def route(self) -> Route:
        """The routing in effect. There must be a lane."""
        lane, table = self.lane, self.table
        assert lane is not None and table is not None  # noqa: S101
        self._drop_expired_costs(self._clock_ms())
        return decide_route(lane.chooser, lane.revision.manifest.revision, table, self.problem, self.is_expired)

    @property
    def is_expired(self) -> bool:
        """Whether the table's costs have expired."""
        return self.table is not None and bool(self.table.costs) and self._clock_ms() >= self._costs_end_ms

    def corrections(self) -> dict[str, float]:
        """Measured over expected time of batches, by variant; the expectation is the table's or the profile's."""
        if self.lane is None:
            return {}
        chooser = self.lane.chooser
        return dict(zip(chooser.names, chooser.costs.factors, strict=True))

    def _drop_expired_costs(self, now_ms: float) -> None:
        if now_ms >= self._costs_end_ms and self.lane is not None and self.table is not None:
            self._costs_end_ms = -math.inf
            self.lane.chooser.use({})
            self.lane.batcher.route_by(self.table)  # drops its known refusals

    def refuse(self) -> Refusal:
        """The refusal of requests while there is no lane."""
        return _unavailable(self._state, self.problem)

    def cancel(self, pending: Pending) -> None:
        """Cancel a request whose client is gone: nothing more is computed or delivered for it."""
        pending.cancelled = True
        forget(self._accepted, pending.request.key)

    def _go_on(self) -> None:
        """Schedule closing the next batch for when this round of the loop has read all sockets."""
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
        except Exception as error:  # noqa: BLE001 (a queue that is no longer served must not look alive)
            self._die(error)
            return
        if taken.refused:
            self._deliver(settle(self._accepted, [(request.key, refusal) for request, refusal in taken.refused]))
        if taken.batch is not None:
            self._answer(lane, taken.batch)
        if lane.batcher.waiting or len(self._lanes) > 1 or self._state is EngineState.DRAINING:
            # In another round, so that short batches do not starve the sockets.
            self._go_on()

    def _first_waiting_lane(self) -> Lane | None:
        while len(self._lanes) > 1 and not self._lanes[0].batcher.waiting:
            self._lanes.popleft()
            # The next lane is free now, however long the lanes before it were expected to take.
            self._lanes[0].batcher.finish()
        return self._lanes[0] if self._lanes and self._lanes[0].batcher.waiting else None

    def _answer(self, lane: Lane, batch: Batch) -> None:
        """Fetch the seeds → sample, gather, infer → split → deliver; long batches run in the engine's thread."""
        seeds, with_embeddings = fetch_seeds(self._accepted, lane, batch)
        if batch.predicted_ms > SHORT_BATCH_MS:
            self._computing = True
            self._executor.hand(lane, batch, seeds, with_embeddings)
        else:
            begun_ms = self._could_begin_ms(batch)
            computed = self._executor.infer(lane, batch, seeds, with_embeddings)
            self._deliver(self._split(lane, batch, computed))
            self._released_ms = released_ms = self._clock_ms()
            if isinstance(computed, Computed):
                self._account(lane, batch, computed, released_ms - begun_ms, released_ms - begun_ms, released_ms)

    def _take_back(self, lane: Lane, batch: Batch, computed: Computed | BaseException) -> None:
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
            if isinstance(computed, Computed):
                now_ms, occupied_ms = self._clock_ms(), released_ms - begun_ms
                self._account(lane, batch, computed, occupied_ms, occupied_ms + now_ms - started_ms, now_ms)

        asyncio.get_running_loop().call_soon(deliver)

    def _could_begin_ms(self, batch: Batch) -> float:
        """The first time at which a request of the batch was queued and the worker was free."""
        released_ms = self._released_ms
        if batch.pieces[0].request.arrived_ms <= released_ms:
            return released_ms
        return max(released_ms, min([piece.request.arrived_ms for piece in batch.pieces]))

    def _account(
        self, lane: Lane, batch: Batch, computed: Computed, occupied_ms: float, total_ms: float, now_ms: float
    ) -> None:
        """Record a batch. `occupied_ms`: time in which the worker could do nothing else; `total_ms`: until the last
        answer."""
        self._metrics.observe_batch(batch.variant, batch.seeds, occupied_ms, computed.inference.times)
        lane.batcher.observe(batch, computed.finished_ms - computed.started_ms, total_ms, now_ms)

    def _split(self, lane: Lane, batch: Batch, computed: Computed | BaseException) -> list[tuple[Pending, Outcome]]:
        lane.batcher.finish()
        if isinstance(computed, Computed):
            try:
                return share_out(self._accepted, batch, computed)
            except Exception as error:  # noqa: BLE001  (as in the executor)
                computed = error
        if isinstance(computed, Exception) and not isinstance(computed, DeviceLostError):
            return settle(self._accepted, [(piece.request.key, fail(batch, piece, computed)) for piece in batch.pieces])
        self._die(computed)
        return []

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
        self._deliver(
            settle(self._accepted, [(key, _unavailable(EngineState.STOPPED)) for key in list(self._accepted)])
        )
        self._executor.end()


def _unavailable(state: EngineState, problem: str | None = None) -> Refusal:
    if state is EngineState.LOADING:
        why = "" if problem is None else f": {problem}"
        message = f"the worker has no revision to answer from yet{why}; send again in a moment"
        return Refusal(RefusalReason.LOADING, message, _RETRY_WHEN_UNAVAILABLE_S)
    message = "the worker is stopping; send again, to another worker if there is one"
    return Refusal(RefusalReason.DRAINING, message, _RETRY_WHEN_UNAVAILABLE_S)
