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
from gnnserve_worker.scheduling.closing import BatchCloser
from gnnserve_worker.scheduling.decision import Decider
from gnnserve_worker.scheduling.queue import Queue


class Batcher:
    """The parts of a lane's scheduling, over one queue. What is called per request or batch is their own method."""

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
        self.finish = self.closer.finish
        self.count_load = self.closer.count_load
        self.observe = self.closer.observe
        self._chooser = chooser

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
