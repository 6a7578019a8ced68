"""The queue of one lane: its requests, in groups that a decision treats alike, and which of them go into a batch.

A group's requests allow the same variants, want the same kind of answer, and have the same priority and about the same
latency. A decision looks at groups, so that its cost does not grow with the queue. Deadlines stay exact: the earliest
of a group is first. What a group counts in seeds are loads (`cost_terms.py`).

Objects that are made per request are msgspec structs, which cost a sixth of a frozen dataclass.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.objective import DEFAULT_PRIORITY, Objective
from gnnserve_worker.scheduling.cost_terms import BatchKind
from gnnserve_worker.scheduling.variants import VariantChooser

RATE_MEMORY_MS = 400.0
"""Memory of the arrival rate; values from 50 to 6000 make no difference in simulation."""
_RATE_STEP_MS = 1.0
"""Interval over which arrivals are counted before they update the rate."""
PRIORITY_STEP_MS = 1000.0
"""What a level of priority is worth: a request goes before one of a higher level that is due so much later, so that it
does not wait without end."""
SOFT_DEADLINE_MS = 1000.0
"""Requests without a latency objective are ordered as if they had this one, but never refused for it."""
_MOST_GROUPS = 16
"""Most groups; beyond it, requests whose latency has no group of its own share one."""
_LATENCY_STEP = 1.25
"""Largest ratio of two latencies in one group."""
_KNOWN_OBJECTIVES = 1024
_MOST_PASSED_OVER = 8
"""Most requests that are passed over as too large for the rest of a batch, in the search for smaller ones."""
_GroupKey = tuple[int, Capabilities, BatchKind, int | None, bool, bool, bool, bool, int]
_ODD = None
"""Stands for the step of latencies that share the overflow group, however far apart they are."""


class Request(msgspec.Struct, eq=False):
    """A request, as it is scheduled: the part of a pending one that decisions read. It is admitted once."""

    key: int
    """Identity of the request, unique in the process."""
    seeds: int
    objective: Objective
    """The objective in effect: the request's own, or the service's."""
    arrived_ms: float
    needs: Capabilities = STORED_GRAPH
    """What a variant must be capable of to answer it."""
    overlay_load: int = 0
    """What its overlay adds to the load of each batch that it takes part in, in seeds (`cost_terms.py`). 0 unless
    `needs` says that there is one."""
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
    """1 is the highest (`gnnserve_api/objective.py`)."""
    # While it is queued, what admission and the batches with its pieces make of it
    remaining: int = 0
    """Seeds that were not in a batch yet."""
    load: int = 0
    """Load of the remaining seeds; equal to them where there is no overlay."""
    overlay: int = 0
    """The part of its load that is of kind OVERLAY."""
    deadline_ms: float = math.inf
    """Deadline; infinite where lateness is no reason for refusal."""
    order_ms: float = math.inf
    """Sort key, which its priority has a part in: the smallest goes first."""
    is_firm: bool = False
    """Whether it arrived at an idle worker, and so is not refused any more."""
    variant: int | None = None
    """Variant of the first piece, which the other pieces use too."""


class Traits(msgspec.Struct, frozen=True):
    """By what requests are grouped, beside what they need."""

    objective: Objective
    is_overlay: bool
    """Whether they are of kind OVERLAY."""
    pin: int | None
    """The only variant that routing leaves them, or that they name."""
    is_large: bool
    is_heavy: bool
    priority: int


class Group:
    """A group of one queue. Counts are those of its queued requests."""

    __slots__ = (
        "_came", "_came_overlay", "_came_requests", "_counted_ms", "_heap", "_sequence", "allowed", "allowed_count",
        "candidates", "chooses", "due_ms", "fastest", "fastest_small", "head", "is_hard", "is_heavy", "is_hurried",
        "is_large", "is_urgent", "kind", "last_due_ms", "latency_ms", "needs", "overlay", "overlay_rate", "pin",
        "priority", "rate", "request_rate", "requests", "seeds", "shift_ms", "take", "version", "waiting", "wanted",
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
        self.chooses = is_hard and pin is None
        """Whether the deadlines of its requests choose the variant of a batch."""
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
        """Version of the chooser's frontier from which the following attributes were derived (`Queue.derive`)."""
        self.candidates: tuple[int, ...] = ()
        self.allowed: tuple[bool, ...] = ()
        """Whether each variant is allowed."""
        self.fastest = 0
        """The fastest allowed variant with full batches."""
        self.fastest_small = 0
        """The fastest allowed variant with one seed."""
        self.wanted: int | None = None
        """The variant that its requests want where they have no deadline; None: it depends on how many seeds they
        have."""
        self.seeds = 0
        self.overlay = 0
        """The part of `seeds` that is of kind OVERLAY."""
        self.requests = 0
        self.rate = 0.0
        """Recent arrival rate, in seeds per ms."""
        self.overlay_rate = 0.0
        """The part of `rate` that is of kind OVERLAY."""
        self.request_rate = 0.0
        self.waiting: dict[int, Request] = {}
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
        self.head: Request | None = None
        """The first of its queued requests. None, too, once that is queued no more: nothing here keeps a request, and
        with it all that it refers to."""
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

    def add(self, waiting: Request) -> None:
        key = waiting.key
        self.waiting[key] = waiting
        self.seeds += waiting.load
        self.overlay += waiting.overlay
        self.requests += 1
        self._sequence += 1
        heapq.heappush(self._heap, (waiting.order_ms, self._sequence, key))
        if waiting.deadline_ms > self.last_due_ms:  # noqa: PLR1730 - a call costs each request 0.1 µs
            self.last_due_ms = waiting.deadline_ms

    def remove(self, waiting: Request) -> None:
        if waiting is self.head:
            self.head = None
        del self.waiting[waiting.key]
        self.seeds -= waiting.load
        self.overlay -= waiting.overlay
        self.requests -= 1
        if not self.waiting:
            self._heap.clear()
            self.last_due_ms = -math.inf

    def first(self) -> Request | None:
        heap, waiting = self._heap, self.waiting
        while heap:
            found = waiting.get(heap[0][2])
            if found is not None and found.order_ms == heap[0][0]:
                return found
            heapq.heappop(heap)
        return None

    def take_all(self) -> list[Request]:
        """Remove and return all requests, in the order of arrival."""
        requests = list(self.waiting.values())
        self.head = None
        self.waiting.clear()
        self._heap.clear()
        self.seeds = self.overlay = self.requests = 0
        self.last_due_ms = -math.inf
        return requests

    def pop(self) -> Request:
        """Remove and return the first request, which must exist."""
        found = self.first()
        assert found is not None  # noqa: S101
        heapq.heappop(self._heap)
        self.remove(found)
        return found


class Queue:
    """The queued requests and their groups, and until when the worker is occupied by batches that were taken before."""

    def __init__(self, chooser: VariantChooser, small_seeds: int, running_until_ms: float = -math.inf) -> None:
        """`small_seeds`: largest load of a request that counts as small."""
        self.groups: list[Group] = []
        self.group_of: dict[int, Group] = {}
        """Group of each queued request, by the request's key; empty: none is queued."""
        self.seeds = 0
        """Load of all queued requests, in seeds."""
        self.small = 0
        """Number of small requests."""
        self.has_overlays = False
        """False: the load of each queued request is its seeds."""
        self.running_until_ms = running_until_ms
        """When the running batch is expected to end; -inf for an idle worker."""
        self._chooser = chooser
        self._max_seeds = chooser.costs.max_seeds
        self._small_seeds = small_seeds
        self._alike: dict[_GroupKey, dict[int | None, Group]] = {}
        """Groups that differ in their latency alone, by its step."""
        self._known: dict[Traits, Group] = {}
        """Cache of the group of each objective, for requests that every variant can answer."""

    # Which group a request belongs to, and what of a group follows from the costs of variants

    def group_for(self, traits: Traits, needs: Capabilities, load: int, overlay: int, now_ms: float) -> Group:
        """The group of a request. `needs`: what it needs that not every variant can give; `overlay`: the part of its
        load that is of kind OVERLAY."""
        group = self._known.get(traits) if needs is STORED_GRAPH else None
        if group is None:
            group = self.find_group(traits, needs, load, overlay, now_ms)
        if group.version != self._chooser.version:
            self.derive(group)
        return group

    def find_group(self, traits: Traits, needs: Capabilities, load: int, overlay: int, now_ms: float) -> Group:
        """As `group_for`, without the cache. An objective that cannot be met belongs to the group of requests without a
        deadline that want the nearest variant."""
        chooser, objective, pin = self._chooser, traits.objective, traits.pin
        tolerance = objective.accuracy_tolerance_permille
        kind = BatchKind.OVERLAY if traits.is_overlay else BatchKind.STORED
        is_large, is_heavy, priority = traits.is_large, traits.is_heavy, traits.priority
        allowed = chooser.count_allowed(tolerance, needs)
        candidates = chooser.candidates(allowed, needs, kind)
        is_tolerated = chooser.can_keep(tolerance, needs)
        if pin is not None:
            if pin >= allowed:
                pin = chooser.fastest(candidates, 1, kind)
            candidates = (pin,)
        latency_ms, is_hard = SOFT_DEADLINE_MS, False
        if (
            objective.latency_ms is not None
            and is_tolerated
            and chooser.can_meet(candidates, load, overlay, objective.latency_ms)
        ):
            latency_ms, is_hard = objective.latency_ms, True
        out_of_reach = not is_tolerated or (objective.latency_ms is not None and not is_hard)
        is_hurried = pin is None and not is_hard and (out_of_reach or tolerance is not None)
        alike = (allowed, needs, kind, pin, is_hard, is_hurried, is_large, is_heavy, priority)
        steps = self._alike.setdefault(alike, {})
        step: int | None = math.floor(math.log(latency_ms) / math.log(_LATENCY_STEP))
        group = steps.get(step)
        if group is None:
            if len(self.groups) >= _MOST_GROUPS:
                self._drop_empty(now_ms)
                steps = self._alike.setdefault(alike, {})
            if len(self.groups) >= _MOST_GROUPS:
                step = _ODD
                group = steps.get(step)
        if group is None:
            group = Group(allowed, needs, kind, pin, is_hard, is_hurried, is_large, is_heavy, priority, latency_ms)
            steps[step] = group
            self.groups.append(group)
        group.latency_ms = min(group.latency_ms, latency_ms) if group.waiting else latency_ms
        if not out_of_reach and needs is STORED_GRAPH:
            if len(self._known) >= _KNOWN_OBJECTIVES:
                self._known.clear()
            self._known[traits] = group
        return group

    def derive(self, group: Group) -> None:
        """Update what depends on the costs of variants, if they have changed."""
        chooser = self._chooser
        if group.version == chooser.version:
            return
        group.version = chooser.version
        if group.pin is not None:
            group.candidates = (group.pin,)
            group.allowed = tuple(variant == group.pin for variant in range(len(chooser.names)))
        else:
            group.candidates = chooser.candidates(group.allowed_count, group.needs, group.kind)
            group.allowed = tuple(
                variant < group.allowed_count and (group.needs is STORED_GRAPH or capabilities.cover(group.needs))
                for variant, capabilities in enumerate(chooser.capabilities)
            )
        group.fastest = chooser.fastest(group.candidates, self._max_seeds, group.kind)
        group.fastest_small = chooser.fastest(group.candidates, 1, group.kind)
        if group.is_hurried:
            group.wanted = group.fastest if group.fastest == group.fastest_small else None
        else:
            group.wanted = chooser.sole_most_accurate(group.candidates)

    def idle_in_ms(self, now_ms: float) -> float:
        """Expected time until the running batch has ended and all queued requests are computed, each by the variant
        that it would get now, with the turns of other models that they have to wait for."""
        costs = self._chooser.costs
        total_ms = turns = 0.0
        for group in self.groups:
            if group.seeds:
                self.derive(group)
                variant = group.fastest if group.is_hard or group.is_hurried else group.candidates[0]
                batch_ms = costs.batch_ms(variant, group.seeds, group.requests, group.overlay)
                total_ms += batch_ms
                turns += costs.turns(variant, group.seeds, batch_ms)
        return max(0.0, self.running_until_ms - now_ms) + (total_ms + costs.waits_ms(turns))

    def _drop_empty(self, now_ms: float) -> None:
        """Drop groups that have no requests and expect none."""
        kept = []
        for group in self.groups:
            group.update_rate(now_ms)
            if group.requests or group.request_rate * SOFT_DEADLINE_MS > 1:
                kept.append(group)
        self.groups[:] = kept
        alive = set(map(id, kept))
        for alike, steps in list(self._alike.items()):
            self._alike[alike] = {step: group for step, group in steps.items() if id(group) in alive}
            if not self._alike[alike]:
                del self._alike[alike]
        self._known.clear()

    # Requests

    def add(self, group: Group, waiting: Request) -> None:
        group.add(waiting)
        self.group_of[waiting.key] = group
        self.seeds += waiting.load
        if waiting.seeds + waiting.overlay_load <= self._small_seeds:
            self.small += 1

    def pop(self, group: Group) -> Request:
        """Remove and return the group's first request, which must exist."""
        waiting = group.pop()
        self._forget((waiting,))
        return waiting

    def remove(self, group: Group, waiting: Request) -> None:
        group.remove(waiting)
        self._forget((waiting,))

    def cancel(self, key: int) -> bool:
        """Remove the request of this key; False: it is not queued."""
        group = self.group_of.get(key)
        if group is None:
            return False
        self.remove(group, group.waiting[key])
        return True

    def take(self, members: list[Group], limit: int, *, needs_one: bool) -> list[Request]:
        """Remove and return the requests that are due first, up to a load of `limit` seeds; below 1 there is no room.
        `needs_one`: the first is taken whatever its load, since a batch without requests would be none."""
        left = limit
        for group in members:
            left -= group.seeds
        chosen: list[Request] = []
        if left >= 0:
            for group in members:
                chosen += group.take_all()
        else:
            self._choose(chosen, members, limit, needs_one)
        self._forget(chosen)
        return chosen

    def _choose(self, chosen: list[Request], members: list[Group], limit: int, needs_one: bool) -> None:
        """Move requests from the groups, which have more than the limit, to those that are chosen."""
        passed_over: list[tuple[Group, Request]] = []
        left = limit
        while left > 0 and len(passed_over) < _MOST_PASSED_OVER:
            first = _first_due(members)
            if first is None:
                break
            group, waiting = first
            group.pop()
            if waiting.load > left and (chosen or not needs_one):
                passed_over.append((group, waiting))
                continue
            chosen.append(waiting)
            left -= waiting.load
        for group, waiting in passed_over:
            group.add(waiting)

    def _forget(self, taken: Sequence[Request]) -> None:
        """Drop requests that their groups no longer have."""
        for waiting in taken:
            del self.group_of[waiting.key]
            self.seeds -= waiting.load
            if waiting.seeds + waiting.overlay_load <= self._small_seeds:
                self.small -= 1


def _first_due(members: list[Group]) -> tuple[Group, Request] | None:
    best: tuple[Group, Request] | None = None
    for group in members:
        first = group.first()
        if first is not None and (best is None or first.order_ms < best[1].order_ms):
            best = (group, first)
    return best


def order_of(group: Group) -> float:
    """When the group's head has its turn: the smallest goes first."""
    return group.head.order_ms if group.head is not None else math.inf


def last_of(group: Group) -> Request:
    """The request of a group with requests that came last; one that is computed in part only where all are."""
    if group.is_large:  # a few, and each is queued again after a piece of it
        return max(group.waiting.values(), key=lambda waiting: (waiting.variant is None, waiting.key))
    # In the order in which they came, but for those that the last batch passed over.
    tail = islice(reversed(group.waiting.values()), _MOST_PASSED_OVER + 1)
    return max(tail, key=lambda waiting: waiting.key)
