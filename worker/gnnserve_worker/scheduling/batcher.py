"""The batcher of one lane: admission control, the queue, batch closing, and the feedback of measured costs.

It is pure: time is an argument, and it knows no torch, HTTP or threads. A request is queued without a variant, which is
chosen when its batch is closed (`decision.py`), by the time left until its deadline. A batch is closed the moment the
worker is free, so an idle worker adds no delay and a busy one collects larger batches. A request beyond `max_seeds`
runs as several batches by one variant, with others in between.
"""

from __future__ import annotations

import math

from gnnserve_api.objective import Objective
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.scheduling.admission import AdmissionControl
from gnnserve_worker.scheduling.choice import Pins, VariantChooser
from gnnserve_worker.scheduling.closing import Batch, BatchCloser, Taken
from gnnserve_worker.scheduling.decision import Decider
from gnnserve_worker.scheduling.groups import Groups
from gnnserve_worker.scheduling.occupancy import Occupancy
from gnnserve_worker.scheduling.overlay_costs import NO_OVERLAYS, OverlayWork
from gnnserve_worker.scheduling.queue import Queue
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.scheduling.waiting import Request

_OBSERVE_EVERY_MS = 1.0
"""Shortest interval between observed batches: of thousands of short batches in a second, a few suffice."""
_REFRESH_BATCHES = 256


class Batcher:
    def __init__(
        self, chooser: VariantChooser, table: RoutingTable, max_queued_seeds: int, busy_until_ms: float = -math.inf,
        drawn: float = 0.0,
    ) -> None:  # fmt: skip
        """`busy_until_ms`: when the worker will have finished what it accepted before this queue. `drawn`, below 1:
        where the split by weights continues."""
        self.decider = Decider(chooser)
        self.groups = Groups(chooser)
        self._chooser = chooser
        self._costs = chooser.costs
        self._queue = Queue(self.decider.small_seeds)
        self._occupancy = Occupancy(busy_until_ms)
        self._admission = AdmissionControl(
            chooser, self.decider, Pins(chooser, table, drawn), max_queued_seeds, self.groups, self._queue,
            self._occupancy,
        )  # fmt: skip
        self.closer = BatchCloser(chooser, self.decider, self.groups, self._queue, self._occupancy)
        self._batches = 0
        self._observed_ms = -math.inf

    @property
    def queued_seeds(self) -> int:
        return self._queue.seeds

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    @property
    def drawn(self) -> float:
        """Where the split by weights stands, in [0, 1)."""
        return self._admission.pins.drawn

    def route_by(self, table: RoutingTable) -> None:
        """Pin requests by this table from now on; queued requests keep their group."""
        self._admission.route_by(table)
        self._chooser.refresh()

    def busy_until_ms(self, now_ms: float) -> float:
        """When the worker would be idle if nothing else came."""
        return now_ms + self._occupancy.rest_ms(now_ms) + self.groups.drain_ms()

    def admit(self, request: Request, strict: bool, now_ms: float) -> Refusal | None:
        """None: the request is queued."""
        return self._admission.admit(request, strict, now_ms)

    def would_refuse(self, objective: Objective, seeds: int, now_ms: float) -> Refusal | None:
        """The refusal that such a request would get, known from one no larger that was just refused; None: it has to
        be decided."""
        return self._admission.memory.recall(objective, seeds, now_ms)

    @property
    def has_displaced(self) -> bool:
        return bool(self._admission.displaced)

    def take_displaced(self) -> list[tuple[Request, Refusal]]:
        """The requests that have lost their place in the queue to ones of a higher priority since the last call, and
        what to tell them."""
        displaced, self._admission.displaced = self._admission.displaced, []
        return displaced

    def cancel(self, key: int) -> None:
        """Drop a request whose client is gone. No effect if it is not queued."""
        if self._queue.cancel(key):
            self._admission.memory.expire()

    def clear(self) -> list[int]:
        """Drop all queued requests and return their keys."""
        keys = self._queue.keys
        for key in keys:
            self.cancel(key)
        return keys

    def take(self, now_ms: float, longest_ms: float = math.inf) -> Taken:
        """Close the next batch. The worker counts as busy with it until `finish`. `longest_ms`: what it may take to
        compute, where others wait for the worker too; one request, or a piece of it, is taken all the same."""
        self._admission.memory.expire()
        return self.closer.take(now_ms, longest_ms)

    def finish(self) -> None:
        """Note that the batch that `take` returned last is done and the worker is free."""
        self._admission.memory.expire()
        self._occupancy.finish()

    def count_load(self, batch: Batch, overlay_ms: float) -> int:
        """What the batch has counted as: as many stored seeds more as take as long as its overlays took."""
        if batch.load == batch.seeds:
            return batch.seeds
        return batch.seeds + round(overlay_ms / self._costs.seed_ms(self._chooser.indices[batch.variant]))

    def observe(
        self, batch: Batch, compute_ms: float, total_ms: float, now_ms: float, overlay_ms: float = 0.0,
        waited_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Record what a batch took: its computation, and in all, from when it could have begun, but for turns of other
        models, to its last answer. `overlay_ms`: the part of both that its overlays took, which tells nothing of what
        stored seeds take. `waited_ms`: how long it waited before for those turns."""
        if now_ms - self._observed_ms < _OBSERVE_EVERY_MS:
            return
        self._observed_ms = now_ms
        work = NO_OVERLAYS
        if batch.changed_seeds or batch.overlay_fixed or batch.overlay_rows:
            work = OverlayWork(batch.changed_seeds, batch.overlay_fixed, batch.overlay_rows, overlay_ms)
        variant = self._chooser.indices[batch.variant]
        self._costs.observe(variant, batch.seeds, len(batch.pieces), compute_ms, total_ms, now_ms, work, waited_ms)
        self._batches += 1
        if self._batches % _REFRESH_BATCHES == 0:
            self._admission.memory.clear()
            self._chooser.refresh()
