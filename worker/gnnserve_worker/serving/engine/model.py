"""One served model: the lanes that its requests take, its accepted requests, and the routing table in effect.

The served revision can change at any time: a `Lane` is one revision with its routing and its own queue, a request
belongs to the lane that admitted it, and lanes are answered in the order in which they were opened. The caller loads
and rehearses a revision before it gets a lane. When a batch is computed is decided by the engine, whose turns all
models share. A model belongs to the event loop's thread.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from operator import attrgetter

import numpy as np

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import DEFAULT_PRIORITY, NO_OBJECTIVE
from gnnserve_api.pods.routing import Damage, Route, RoutingTable
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.batcher import Batch
from gnnserve_worker.scheduling.choice import decide_route
from gnnserve_worker.scheduling.cost_terms import load_of, overlay_parts, round_load
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import PROFILED, Losses, VariantChooser
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch
from gnnserve_worker.serving.engine.answer_health import AnswerHealth
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.idle.idle_jobs import AnyWork, IdleTask
from gnnserve_worker.serving.idle.index_renewal import IndexRenewal
from gnnserve_worker.serving.idle.row_refresh import RowRefresh
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.requests import (
    AcceptedRequests,
    Answer,
    Lane,
    Outcome,
    PendingRequest,
    Question,
    deliver_all,
    forget,
    open_lane,
    settle,
)
from gnnserve_worker.serving.tracing.tracer import Tracer
from gnnserve_worker.serving.tracing.traces import RequestTrace
from gnnserve_worker.staleness.refreshing import Refreshing

_REPLACED = "another revision or other settings took the place of those that the request was read by; send it again"
_RETRY_WHEN_UNAVAILABLE_S = 1
STOPPING = Refusal(
    RefusalReason.DRAINING,
    "the worker is stopping; send again, to another worker if there is one",
    _RETRY_WHEN_UNAVAILABLE_S,
)
_NEEDS = {
    (has_overlay, has_embeddings): Capabilities(overlay=has_overlay, embeddings=has_embeddings)
    for has_overlay in (False, True)
    for has_embeddings in (False, True)
} | {(False, False): STORED_GRAPH}


_arrived_ms = attrgetter("request.arrived_ms")


def monotonic_ms() -> float:
    return time.perf_counter() * 1000


class ModelState(StrEnum):
    LOADING = "Loading"
    """No revision is loaded yet; wait."""
    READY = "Ready"
    """Requests are answered."""
    DRAINING = "Draining"
    """Accepted requests are finished, new ones refused; ask another worker."""
    STOPPED = "Stopped"
    """The engine's thread has ended; restart the process unless it is about to exit."""


class ServedModel:
    def __init__(
        self,
        metrics: ServingMetrics,
        clock_ms: Callable[[], float],
        go_on: Callable[[], None],
        wake: Callable[[], None],
        wake_soon: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], None],
        service: str,
    ) -> None:
        """`go_on` tells the engine that something may be due, `wake` that there is something to compute when idle, as
        does `wake_soon`, from any thread. `call_soon` has the event loop call something, from any thread."""
        self.service = service
        """Name of the service that it answers for, which may have another model."""
        self.lane: Lane | None = None
        """The lane that admits requests now. It changes on the event loop only, so code that does not await sees one
        lane."""
        self.table: RoutingTable | None = None
        """The routing table in effect, which `lane` follows."""
        self._health = AnswerHealth()
        self.problem: str | None = None
        """Why the declared revision is not the one that answers, as a message."""
        self.damage: Damage | None = None
        """Proven damage of the declared revision's files, for the operator; None: there is none."""
        self.state = ModelState.LOADING
        self.accepted: AcceptedRequests = {}
        self.released_ms = -math.inf
        """When the worker was last free after a batch of this model, or after something computed when idle."""
        self.occupied_ms = -math.inf
        """When a turn of this model last had the worker, to read input or to compute."""
        self.is_away = False
        """Whether a batch is computed by another process, and a thread of this model's own waits for it: other models
        have their turns meanwhile."""
        self.inlet: Inlet | None = None
        """Where the service's input waits for its turns; None: it is read as it comes."""
        self.withdrawals = 0
        self.watch = AccuracyWatch(wake)
        """Accuracy in service; it computes only while no request waits."""
        self.renewal = IndexRenewal(wake_soon)
        """Keeps the index of recommendations up with changes, likewise."""
        self.refresh = RowRefresh(wake_soon, call_soon)
        """Refreshes stale rows of stored layers, likewise, and says what they add to losses."""
        self._idle_work: deque[AnyWork] = deque((self.watch, self.renewal))
        """In the order in which it is next."""
        self.metrics = metrics
        self.tracer: Tracer | None = None
        """None: nothing is traced."""
        self._clock_ms = clock_ms
        self._go_on = go_on
        self._lanes: deque[Lane] = deque()
        """Open lanes. The last one admits; those before it are answered first, and closed when their queue is empty."""
        self._known = PROFILED
        """What the present lane goes by."""
        self._request_keys = itertools.count()
        self.costs_end_ms = math.inf
        """When the table's costs expire."""

    # What it answers from

    def switch(self, revision: ServedRevision, table: RoutingTable) -> None:
        """Admit and answer requests from now on by this revision, which is warmed up, following the table.

        Queued requests are answered first, by the revision that admitted them; after that nothing refers to it any
        more. If only the routing is new, the lane stays. Raises TableError, and changes nothing, where the table names
        unknown variants.
        """
        revision.check(table)
        self.watch.follow(revision, table.shadow_permille)
        self.renewal.follow(revision)
        revision.follow(table)
        self.refresh.follow(revision, self.judge_anew)
        lane, now_ms = self.lane, self._clock_ms()
        same = lane is not None and lane.revision is revision and lane.batching == table.batching
        if lane is None or not same or lane.objective != table.objective or lane.overlay_limits != table.overlay:
            chooser = lane.chooser if lane is not None and same and self._losses() == self._known else None
            self._open(revision, table, chooser, now_ms)
        else:
            lane.batcher.route_by(table)
            self.table = table
            self.judge_anew()
        if lane is None or lane.revision is not revision:
            self._health.forget()
        lane = self.lane
        assert lane is not None  # noqa: S101
        self.table = table
        self.costs_end_ms = math.inf if table.ttl_seconds is None else now_ms + 1000 * table.ttl_seconds
        lane.chooser.use(table.costs)
        if self.state is ModelState.LOADING:
            self.state = ModelState.READY
        self._go_on()

    def refreshing(self) -> Refreshing | None:
        """State of the stored layers that may be stale; None: none may be, or nothing answers."""
        living = None if self.lane is None else self.lane.revision.changes.living
        return None if living is None else living.refreshing

    def judge_anew(self) -> None:
        """Choose variants by what labels say that they lose, and by what stale rows add to that, where it has changed:
        in another lane, since a queue groups its requests by the order of the variants."""
        lane, table = self.lane, self.table
        if lane is None or table is None or self._losses() == self._known:
            return
        self._open(lane.revision, table, None, self._clock_ms()).chooser.use({} if self.is_expired else table.costs)
        self._go_on()

    def _open(
        self, revision: ServedRevision, table: RoutingTable, chooser: VariantChooser | None, now_ms: float
    ) -> Lane:
        """Open the lane that admits from now on."""
        self._known = self._losses()
        self.lane = lane = open_lane(revision, table, chooser, self.lane, now_ms, self._known)
        self._lanes.append(lane)
        return lane

    def _losses(self) -> Losses:
        return Losses(self.watch.losses, self.refresh.losses)

    def withdraw(self, problem: str) -> None:
        """Answer nothing until the next switch, since results may be wrong. Queued requests are refused, and so are
        those of the batch that the thread has."""
        self.problem = problem
        self.withdrawals += 1
        if self.state is ModelState.READY:
            self.state = ModelState.LOADING
        self.let_go()

    def let_go(self) -> None:
        """Keep nothing of any revision, as at the end of its service: a model that is held holds no mapped files."""
        self.lane = self.table = None
        self.watch.forget_revision()
        self.renewal.forget_revision()
        self.refresh.forget_revision()
        self.drop_accepted()
        self._lanes.clear()
        self._go_on()

    def note_failure(self) -> None:
        """Note a request that failed by an error of the worker."""
        self._health.note_failure(self._clock_ms() / 1000, self.metrics.counters.answered)

    def why_failing(self) -> str:
        """Why no requests should be sent here though there is a revision to answer from; empty: they should."""
        if self.state is not ModelState.READY:
            return ""
        return self._health.why_failing(self._clock_ms() / 1000, self.metrics.counters.answered)

    def route(self) -> Route:
        """The routing in effect. There must be a lane."""
        lane, table = self.lane, self.table
        assert lane is not None and table is not None  # noqa: S101
        self.drop_expired_costs(self._clock_ms())
        revision = lane.revision
        return decide_route(lane.chooser, revision.manifest.revision, table, self.problem, self.is_expired)

    @property
    def is_expired(self) -> bool:
        """Whether the table's costs have expired."""
        return self.table is not None and bool(self.table.costs) and self._clock_ms() >= self.costs_end_ms

    def corrections(self) -> tuple[dict[str, float], dict[str, float]]:
        """Measured over expected time of batches, by variant; the expectation is the table's or the profile's. Then the
        same of what came with overlays, by variants that can answer it; the expectation is the profile's for new nodes,
        or where it has none, what stored nodes take."""
        if self.lane is None:
            return {}, {}
        chooser = self.lane.chooser
        names, overlays = chooser.names, chooser.costs.overlays
        able = [index for index, gives in enumerate(chooser.capabilities) if gives.overlay]
        stored = dict(zip(names, chooser.costs.factors, strict=True))
        return stored, {names[index]: overlays.factors[index] for index in able}

    def drop_expired_costs(self, now_ms: float) -> None:
        if now_ms >= self.costs_end_ms > -math.inf and self.lane is not None and self.table is not None:
            self.costs_end_ms = -math.inf
            self.lane.chooser.use({})
            self.lane.batcher.route_by(self.table)  # drops its known refusals

    # Its requests

    def submit(
        self,
        question: Question,
        arrived_ms: float,
        deliver: Callable[[Outcome], None],
        trace: RequestTrace | None = None,
    ) -> PendingRequest | Refusal:
        """Submit a question to its lane. With an empty objective the service's own applies. `deliver` is called later,
        never during this call. During it requests of a lower priority may be refused, whose place it takes. `trace`:
        None: it is not traced."""
        pending = self._pending_of(question, arrived_ms, deliver, trace)
        lane, seeds, extra = question.lane, pending.seeds, pending.overlay_load
        batcher = lane.batcher
        self.metrics.counters.offered_seeds += load_of(seeds, extra, lane.batching.max_seeds) if extra else seeds
        if self.state is not ModelState.READY:
            return self.refuse()
        if lane is not self.lane and all(lane is not one for one in self._lanes):
            # Its caller has awaited something since it read the request, and this lane is served no more.
            return Refusal(RefusalReason.LOADING, _REPLACED, _RETRY_WHEN_UNAVAILABLE_S)
        refusal = batcher.admit(pending, bool(question.wishes.strict), self._clock_ms())
        if refusal is not None:
            return refusal
        self.accepted[pending.key] = pending
        if batcher.admission.displaced:
            lost: list[tuple[int, Outcome]] = [(each.key, why) for each, why in batcher.take_displaced()]
            deliver_all(settle(self.accepted, lost))
        self._go_on()
        return pending

    def _pending_of(
        self, question: Question, arrived_ms: float, deliver: Callable[[Outcome], None], trace: RequestTrace | None
    ) -> PendingRequest:
        """The question as the queue of its lane has it, which is yet to accept it."""
        lane, nodes, overlay, wishes = question.lane, question.nodes, question.overlay, question.wishes
        wants_embeddings = "embeddings" in question.outputs
        seeds, extra, changed, fixed, of_rows = len(nodes), 0, 0, 0.0, 0.0
        if overlay is not None:
            most_drawn = seeds * lane.revision.most_drawn_per_seed
            features = overlay.features
            fixed, of_rows = overlay_parts(overlay.nodes, overlay.edges, len(features), features.nbytes, most_drawn)
            extra = round_load(fixed + lane.chooser.costs.overlays.share * of_rows)
            changed = int(np.count_nonzero(nodes >= lane.revision.graph.first_new))
        objective = lane.objective if wishes.objective == NO_OBJECTIVE else wishes.objective
        needs = _NEEDS[overlay is not None, wants_embeddings]
        named = None if wishes.variant is None else lane.chooser.indices[wishes.variant]
        return PendingRequest(
            next(self._request_keys), seeds, objective, arrived_ms, needs, extra, changed, fixed, of_rows, named,
            wishes.priority or DEFAULT_PRIORITY,
            accepted=self.accepted, question=question, deliver=deliver, trace=trace,
        )  # fmt: skip

    def would_refuse(self, seeds: int, now_ms: float) -> Refusal | None:
        """The refusal that a request with the service's own objective would get now, if it is known from the last one:
        the request can then be refused before it is parsed. It is the same object as long as the refusal is the
        same."""
        lane = self.lane
        if lane is None or self.state is not ModelState.READY:
            return None
        batcher = lane.batcher
        return None if batcher.memory.known is None else batcher.would_refuse(lane.objective, seeds, now_ms)

    def refuse(self) -> Refusal:
        """The refusal of requests while the model is not ready."""
        if self.state in {ModelState.DRAINING, ModelState.STOPPED}:
            return STOPPING
        why = "" if self.problem is None else f": {self.problem}"
        message = f"the worker has no revision to answer from yet{why}; send again in a moment"
        return Refusal(RefusalReason.LOADING, message, _RETRY_WHEN_UNAVAILABLE_S)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request whose client is gone, of this model or another: nothing more is computed or delivered for
        it."""
        pending.cancelled = True
        forget(pending.accepted, pending.key)

    @property
    def queued_seeds(self) -> int:
        return sum(lane.batcher.queue.seeds for lane in self._lanes)

    # The engine's

    def could_begin_ms(self, batch: Batch) -> float:
        """The first time at which a request of the batch was queued and the model's last batch was done."""
        first_ms: float = min(map(_arrived_ms, batch.pieces))
        return max(self.released_ms, first_ms)

    def first_waiting_lane(self) -> Lane | None:
        """The lane whose requests are next; lanes before it that are done are closed. None also while the model is
        away."""
        lanes = self._lanes
        if self.is_away or not lanes:
            return None
        while not lanes[0].batcher.queue.group_of:
            if len(lanes) == 1:
                return None
            lanes.popleft()
            # The next lane is free now, however long the lanes before it were expected to take.
            lanes[0].batcher.finish()
        return lanes[0]

    @property
    def has_input(self) -> bool:
        """Whether input waits to be read."""
        return self.inlet is not None and self.inlet.is_waiting

    @property
    def has_more(self) -> bool:
        """Whether requests wait for a turn, or a lane can be closed."""
        lanes = self._lanes
        if self.is_away or not lanes:
            return False
        return bool(lanes[0].batcher.queue.group_of) or len(lanes) > 1

    def show_answer(self, outcomes: Iterable[tuple[PendingRequest, Outcome]]) -> None:
        """Show the watch the first answer about stored nodes, if it wants one: what a request brought is not there any
        more."""
        if not self.watch.shadows.wants_answer:
            return
        for pending, outcome in outcomes:
            if isinstance(outcome, Answer) and pending.question.overlay is None:
                self.watch.note_answer(outcome.variant, pending.question, outcome.scores)
                return

    def next_task(self) -> IdleTask | None:
        """What is to be computed next when the engine is idle; kinds of work take turns. None: nothing."""
        if (lane := self.lane) is None:
            return None
        if self.refresh.take_turn(lane):
            self.judge_anew()
        for work in tuple(self._idle_work):
            job = work.next_job(lane)
            if job is not None:
                self._idle_work.remove(work)
                self._idle_work.append(work)
                return IdleTask(work, job)
        return None

    def drop_queued(self) -> None:
        """Refuse the requests that are queued."""
        self._refuse_accepted([key for lane in self._lanes for key in lane.batcher.clear()])

    def drop_accepted(self) -> None:
        """Refuse the requests that have no outcome yet, those of the running batch too."""
        for lane in self._lanes:
            lane.batcher.clear()
        self._refuse_accepted(list(self.accepted))

    def _refuse_accepted(self, keys: list[int]) -> None:
        refusal = self.refuse()
        deliver_all(settle(self.accepted, [(key, refusal) for key in keys]))
