"""Who waits: requests, in groups that are decided alike.

The same variants are allowed to a group's requests, they wish for the same, and in about the same time. A decision
looks at groups, so that its cost does not grow with the queue. Deadlines stay exact: in a group the earliest is first.

What is made per request is a msgspec struct: it costs a sixth of a frozen dataclass.
"""

from __future__ import annotations

import heapq
import math

import msgspec

from gnnserve_api.objective import Objective

RATE_MEMORY_MS = 400.0
"""Of arrivals: from 50 to 6000 makes no difference in the simulation."""
_RATE_STEP_MS = 1.0
"""Arrivals are counted for so long before they make a rate."""


class Request(msgspec.Struct, frozen=True):
    key: int
    """Identity, unique in the process."""
    seeds: int
    objective: Objective
    """The one that holds: the request's own, or the service's."""
    arrived_ms: float


class Waiting(msgspec.Struct, eq=False):
    """A request in the queue."""

    request: Request
    deadline_ms: float
    """Infinite where lateness is no ground for refusal."""
    order_ms: float
    """The earliest goes first."""
    remaining: int
    """Seeds that no batch has had yet."""
    is_firm: bool
    """It found an idle worker, and is not refused any more."""
    variant: int | None = None
    """Of the first piece, which the others follow."""


class Group:
    """Belongs to one queue. Counts are of those who wait."""

    __slots__ = (
        "_came", "_came_requests", "_counted_ms", "_heap", "_sequence", "allowed", "allowed_count", "candidates",
        "due_ms", "fastest", "fastest_small", "head", "is_hard", "is_hurried", "is_large", "last_due_ms", "latency_ms",
        "pin", "rate", "request_rate", "requests", "seeds", "take", "version", "waiting",
    )  # fmt: skip

    def __init__(
        self, allowed_count: int, pin: int | None, is_hard: bool, is_hurried: bool, is_large: bool, latency_ms: float
    ) -> None:
        self.allowed_count = allowed_count
        """So many variants, from the most accurate."""
        self.pin = pin
        """The only variant, where a mode says so."""
        self.is_hard = is_hard
        """Its requests have deadlines."""
        self.is_hurried = is_hurried
        """They want the fastest variant, not the most accurate one in time."""
        self.is_large = is_large
        """They take several batches, one piece in each."""
        self.latency_ms = latency_ms
        """The least that one of them allowed; without deadlines, how long they wait before others must yield."""
        self.version = -1
        """Of the chooser, when the next four were derived."""
        self.candidates: tuple[int, ...] = ()
        self.allowed: tuple[bool, ...] = ()
        """By variant."""
        self.fastest = 0
        """With full batches."""
        self.fastest_small = 0
        """With one seed."""
        self.seeds = 0
        self.requests = 0
        self.rate = 0.0
        """Seeds per ms that came of late."""
        self.request_rate = 0.0
        self.waiting: dict[int, Waiting] = {}
        self.last_due_ms = -math.inf
        """No deadline is later."""
        self._heap: list[tuple[float, int, int]] = []
        """(order, sequence, key); those no longer in `waiting` are skipped."""
        self._sequence = 0
        self._came = 0
        self._came_requests = 0
        self._counted_ms = -math.inf
        # Of the decision that is being made
        self.head: Waiting | None = None
        self.due_ms = math.inf
        """Of the head."""
        self.take = 0.0
        """Seeds that would be in the batch."""

    def count_arrival(self, seeds: int) -> None:
        self._came += seeds
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
        self._came = self._came_requests = 0

    def add(self, waiting: Waiting) -> None:
        key = waiting.request.key
        self.waiting[key] = waiting
        self.seeds += waiting.remaining
        self.requests += 1
        self._sequence += 1
        heapq.heappush(self._heap, (waiting.order_ms, self._sequence, key))
        self.last_due_ms = max(self.last_due_ms, waiting.deadline_ms)

    def remove(self, waiting: Waiting) -> None:
        del self.waiting[waiting.request.key]
        self.seeds -= waiting.remaining
        self.requests -= 1
        if not self.waiting:
            self._heap.clear()
            self.last_due_ms = -math.inf

    def first(self) -> Waiting | None:
        heap, waiting = self._heap, self.waiting
        while heap:
            found = waiting.get(heap[0][2])
            if found is not None and found.order_ms == heap[0][0]:
                return found
            heapq.heappop(heap)
        return None

    def take_all(self) -> list[Waiting]:
        """In the order of their arrival."""
        everybody = list(self.waiting.values())
        self.waiting.clear()
        self._heap.clear()
        self.seeds = self.requests = 0
        self.last_due_ms = -math.inf
        return everybody

    def pop(self) -> Waiting:
        """The first, which is known to be there."""
        found = self.first()
        assert found is not None  # noqa: S101
        heapq.heappop(self._heap)
        self.remove(found)
        return found
