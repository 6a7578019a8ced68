"""The batcher of one lane: admission control, the queue, batch closing, and the feedback of measured costs.

It is pure: time is an argument, and it knows no torch, HTTP or threads. A request is queued without a variant, which is
chosen when its batch is closed (`decision.py`), by the time left until its deadline. A batch is closed the moment the
worker is free, so an idle worker adds no delay and a busy one collects larger batches. A request beyond `max_seeds`
runs as several batches by one variant, with others in between.
"""

from __future__ import annotations

import math

from gnnserve_api.routing import RoutingTable
from gnnserve_worker.scheduling.admission import AdmissionControl
from gnnserve_worker.scheduling.choice import Pins, VariantChooser
from gnnserve_worker.scheduling.closing import Batch, BatchCloser
from gnnserve_worker.scheduling.decision import Decider
from gnnserve_worker.scheduling.overlay_costs import NO_OVERLAYS, OverlayWork
from gnnserve_worker.scheduling.queue import Queue

_OBSERVE_EVERY_MS = 1.0
"""Shortest interval between observed batches: of thousands of short batches in a second, a few suffice."""
_REFRESH_BATCHES = 256


class Batcher:
    """The parts of a lane's scheduling, over one queue. What is called per request or batch is a part's own method."""

    def __init__(
        self, chooser: VariantChooser, table: RoutingTable, max_queued_seeds: int, busy_until_ms: float = -math.inf,
        drawn: float = 0.0,
    ) -> None:  # fmt: skip
        """`busy_until_ms`: when the worker will have finished what it accepted before this queue. `drawn`, below 1:
        where the split by weights continues."""
        self.decider = Decider(chooser)
        self.queue = Queue(chooser, self.decider.small_seeds, busy_until_ms)
        self.admission = AdmissionControl(
            chooser, self.decider, Pins(chooser, table, drawn), max_queued_seeds, self.queue
        )
        self.memory = self.admission.memory
        """The last refusal. It holds until the queue has room again."""
        self.closer = BatchCloser(chooser, self.decider, self.queue, self.memory)
        self.admit = self.admission.admit
        self.take_displaced = self.admission.take_displaced
        self.would_refuse = self.memory.recall
        self.take = self.closer.take
        self._chooser = chooser
        self._costs = chooser.costs
        self._batches = 0
        self._observed_ms = -math.inf

    @property
    def drawn(self) -> float:
        """Where the split by weights stands, in [0, 1)."""
        return self.admission.pins.drawn

    def route_by(self, table: RoutingTable) -> None:
        """Pin requests by this table from now on; queued requests keep their group."""
        self.admission.route_by(table)
        self._chooser.refresh()

    def busy_until_ms(self, now_ms: float) -> float:
        """When the worker would be idle if nothing else came."""
        return now_ms + self.queue.idle_in_ms(now_ms)

    def cancel(self, key: int) -> None:
        """Drop a request whose client is gone. No effect if it is not queued."""
        if self.queue.cancel(key):
            self.memory.expire()

    def clear(self) -> list[int]:
        """Drop all queued requests and return their keys."""
        keys = list(self.queue.group_of)
        for key in keys:
            self.cancel(key)
        return keys

    def finish(self) -> None:
        """Note that the batch that `take` returned last is done and the worker is free."""
        if self.memory.known is not None:
            self.memory.expire()
        self.queue.running_until_ms = -math.inf

    def count_load(self, batch: Batch, overlay_ms: float) -> int:
        """What a batch with overlays has counted as: as many stored seeds more as take as long as those took."""
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
            self.memory.clear()
            self._chooser.refresh()
