"""Queued requests, in groups that a decision treats alike.

A group's requests allow the same variants, want the same kind of answer, and have the same priority and about the same
latency. A decision looks at groups, so that its cost does not grow with the queue. Deadlines stay exact: the earliest
of a group is first. What a group counts in seeds are loads (`load.py`).

Objects that are made per request are msgspec structs, which cost a sixth of a frozen dataclass.
"""

from __future__ import annotations

import heapq
import math

import msgspec

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import Objective
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_worker.scheduling.load import BatchKind

RATE_MEMORY_MS = 400.0
"""Memory of the arrival rate; values from 50 to 6000 make no difference in simulation."""
_RATE_STEP_MS = 1.0
"""Interval over which arrivals are counted before they update the rate."""
PRIORITY_STEP_MS = 1000.0
"""What a level of priority is worth: a request goes before one of a higher level that is due so much later, so that it
does not wait without end."""


class Request(msgspec.Struct, frozen=True):
    key: int
    """Identity of the request, unique in the process."""
    seeds: int
    objective: Objective
    """The objective in effect: the request's own, or the service's."""
    arrived_ms: float
    needs: Capabilities = STORED_GRAPH
    """What a variant must be capable of to answer it."""
    overlay_load: int = 0
    """What its overlay adds to the load of each batch that it takes part in, in seeds (`load.py`). 0 unless `needs`
    says that there is one."""
    changed_seeds: int = 0
    """Seeds that are nodes of its overlay: new, or with other features or more neighbours."""
    overlay_fixed: float = 0.0
    """The part of `overlay_load` that does not depend on which rows are drawn, before rounding."""
    overlay_rows: float = 0.0
    """What the rows of its overlay add to that, if as many are drawn as may be."""
    named: int | None = None
    """The variant that the request names (an index), which must be able to answer it; None: the choice is the
    scheduler's."""
    priority: int = DEFAULT_PRIORITY
    """1 is the highest (`gnnserve_api/priority.py`)."""


class QueuedRequest(msgspec.Struct, eq=False):
    """A request in the queue."""

    request: Request
    deadline_ms: float
    """Deadline; infinite where lateness is no reason for refusal."""
    order_ms: float
    """Sort key, which its priority has a part in: the smallest goes first."""
    remaining: int
    """Seeds that were not in a batch yet."""
    load: int
    """Load of the remaining seeds; equal to them where there is no overlay."""
    is_firm: bool
    """Whether it arrived at an idle worker, and so is not refused any more."""
    overlay: int = 0
    """The part of its load that is of kind OVERLAY."""
    variant: int | None = None
    """Variant of the first piece, which the other pieces use too."""


class Group:
    """A group of one queue. Counts are those of its queued requests."""

    __slots__ = (
        "_came", "_came_overlay", "_came_requests", "_counted_ms", "_heap", "_sequence", "allowed", "allowed_count",
        "candidates", "due_ms", "fastest", "fastest_small", "head", "is_hard", "is_heavy", "is_hurried", "is_large",
        "is_urgent", "kind", "last_due_ms", "latency_ms", "needs", "overlay", "overlay_rate", "pin", "priority", "rate",
        "request_rate", "requests", "seeds", "shift_ms", "take", "version", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        allowed_count: int,
        needs: Capabilities,
        kind: BatchKind,
        pin: int | None,
        is_hard: bool,
        is_hurried: bool,
        is_large: bool,
        is_heavy: bool,
        priority: int,
        latency_ms: float,
    ) -> None:
        self.allowed_count = allowed_count
        """Number of variants allowed, from the most accurate on; of these, those that can give what it needs."""
        self.needs = needs
        """What its requests need that not every variant can give."""
        self.kind = kind
        """What its requests are about: another kind has other costs, so other variants are worth choosing."""
        self.pin = pin
        """The only variant allowed, where the routing mode or its requests pin one."""
        self.is_hard = is_hard
        """Whether its requests have deadlines."""
        self.is_hurried = is_hurried
        """Whether its requests want the fastest variant, not the most accurate one in time."""
        self.is_large = is_large
        """Whether its requests take several batches, with one piece in each: their load is at least a full batch."""
        self.is_heavy = is_heavy
        """Whether the overlay of each of its requests alone is at least a full batch. Such requests are large too, but
        no piece of them is small."""
        self.is_urgent = is_hard and not is_heavy
        """Whether the worker's time is planned by the deadlines of its requests; the others yield to such groups."""
        self.priority = priority
        self.shift_ms = (priority - DEFAULT_PRIORITY) * PRIORITY_STEP_MS
        """What its priority adds to the sort keys of its requests."""
        self.latency_ms = latency_ms
        """The smallest latency among its requests; without deadlines, how long they wait before others must yield."""
        self.version = -1
        """Version of the chooser's frontier from which the following attributes were derived."""
        self.candidates: tuple[int, ...] = ()
        self.allowed: tuple[bool, ...] = ()
        """Whether each variant is allowed."""
        self.fastest = 0
        """The fastest allowed variant with full batches."""
        self.fastest_small = 0
        """The fastest allowed variant with one seed."""
        self.seeds = 0
        self.overlay = 0
        """The part of `seeds` that is of kind OVERLAY."""
        self.requests = 0
        self.rate = 0.0
        """Recent arrival rate, in seeds per ms."""
        self.overlay_rate = 0.0
        """The part of `rate` that is of kind OVERLAY."""
        self.request_rate = 0.0
        self.waiting: dict[int, QueuedRequest] = {}
        self.last_due_ms = -math.inf
        """The latest deadline."""
        self._heap: list[tuple[float, int, int]] = []
        """Entries (order, sequence, key); those no longer in `waiting` are skipped."""
        self._sequence = 0
        self._came = 0
        self._came_overlay = 0
        self._came_requests = 0
        self._counted_ms = -math.inf
        # The current decision's values
        self.head: QueuedRequest | None = None
        self.due_ms = math.inf
        """When the head is due."""
        self.take = 0.0
        """Seeds of the group that would be in the batch."""

    def count_arrival(self, seeds: int, overlay: int) -> None:
        self._came += seeds
        self._came_overlay += overlay
        self._came_requests += 1

    def update_rate(self, now_ms: float) -> None:
        passed_ms = now_ms - self._counted_ms
        if passed_ms < _RATE_STEP_MS:
            return
        self._counted_ms = now_ms
        if passed_ms == math.inf:
            passed_ms = RATE_MEMORY_MS
        gain = 1 - math.exp(-passed_ms / RATE_MEMORY_MS)
        self.rate += gain * (self._came / passed_ms - self.rate)
        self.request_rate += gain * (self._came_requests / passed_ms - self.request_rate)
        if self._came_overlay or self.overlay_rate:
            self.overlay_rate += gain * (self._came_overlay / passed_ms - self.overlay_rate)
            self._came_overlay = 0
        self._came = self._came_requests = 0

    def add(self, waiting: QueuedRequest) -> None:
        key = waiting.request.key
        self.waiting[key] = waiting
        self.seeds += waiting.load
        self.overlay += waiting.overlay
        self.requests += 1
        self._sequence += 1
        heapq.heappush(self._heap, (waiting.order_ms, self._sequence, key))
        self.last_due_ms = max(self.last_due_ms, waiting.deadline_ms)

    def remove(self, waiting: QueuedRequest) -> None:
        del self.waiting[waiting.request.key]
        self.seeds -= waiting.load
        self.overlay -= waiting.overlay
        self.requests -= 1
        if not self.waiting:
            self._heap.clear()
            self.last_due_ms = -math.inf

    def first(self) -> QueuedRequest | None:
        heap, waiting = self._heap, self.waiting
        while heap:
            found = waiting.get(heap[0][2])
            if found is not None and found.order_ms == heap[0][0]:
                return found
            heapq.heappop(heap)
        return None

    def take_all(self) -> list[QueuedRequest]:
        """Remove and return all requests, in the order of arrival."""
        requests = list(self.waiting.values())
        self.waiting.clear()
        self._heap.clear()
        self.seeds = self.overlay = self.requests = 0
        self.last_due_ms = -math.inf
        return requests

    def pop(self) -> QueuedRequest:
        """Remove and return the first request, which must exist."""
        found = self.first()
        assert found is not None  # noqa: S101
        heapq.heappop(self._heap)
        self.remove(found)
        return found


def order_of(group: Group) -> float:
    """When the group's head has its turn: the smallest goes first."""
    return group.head.order_ms if group.head is not None else math.inf
