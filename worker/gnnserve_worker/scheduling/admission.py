"""Admission control: which requests are queued, and which are refused on arrival.

A request that could not be in time even if the fastest variants computed all that is due before it is refused at once,
so that the queue never grows beyond what can be served. An idle worker refuses no feasible request, unless it is heavy:
such requests are limited to a share of the time (`decision.py`). What is due before a request is a matter of priorities
too; and where the queue is full, a request takes the place of those of a lower priority that came last.
"""

from __future__ import annotations

import heapq
import math

from gnnserve_api.families import STORED_GRAPH
from gnnserve_api.objective import Objective
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.scheduling.choice import Pins, VariantChooser
from gnnserve_worker.scheduling.decision import Decider
from gnnserve_worker.scheduling.load import load_of, overlay_part
from gnnserve_worker.scheduling.queue import SOFT_DEADLINE_MS, Group, Queue, Request, Traits, last_of
from gnnserve_worker.scheduling.refusal import (
    Refusal,
    RefusalMemory,
    refuse_displaced,
    refuse_full,
    refuse_heavy,
    refuse_infeasible,
    refuse_named,
    refuse_unreachable,
)
from gnnserve_worker.scheduling.room import expects_late


class AdmissionControl:
    def __init__(
        self, chooser: VariantChooser, decider: Decider, pins: Pins, max_queued_seeds: int, queue: Queue
    ) -> None:
        self.pins = pins
        self.memory = RefusalMemory()
        self.displaced: list[tuple[Request, Refusal]] = []
        """Requests that were queued and have lost their place since this was emptied, with what to tell them."""
        self._chooser = chooser
        self._decider = decider
        self._costs = chooser.costs
        self._max_seeds = chooser.costs.max_seeds
        self._max_queued_seeds = max_queued_seeds
        self._queue = queue

    def admit(  # noqa: PLR0911 - a ladder, one rung a refusal
        self, request: Request, strict: bool, now_ms: float
    ) -> Refusal | None:
        """Queue the request, or refuse it; None: it is queued. Unless it is `strict`, an objective that even an idle
        worker cannot meet is answered by the nearest variant, however late."""
        queue, objective, needs = self._queue, request.objective, request.needs
        load, overlay, is_heavy = request.seeds, 0, False
        if needs is not STORED_GRAPH:
            load = load_of(request.seeds, request.overlay_load, self._max_seeds)
            overlay = overlay_part(load, request.seeds, request.changed_seeds)
            is_heavy = request.overlay_load >= self._max_seeds
            needs = self._chooser.restricting(needs)
        pin = request.named
        if pin is not None:  # there is nothing left for a tolerance to choose
            objective = Objective(objective.latency_ms, None)
        elif self.pins.binds:
            pin = self.pins.draw(needs)
        excess = 0
        if queue.seeds + load > self._max_queued_seeds:
            excess = self._excess(load, is_heavy)
            if excess > 0 and (is_heavy or not self._could_displace(request.priority, excess)):
                return self._refuse_full(request, load, pin, now_ms)
        if strict and request.named is not None and not self._keeps_tolerance(request):
            return refuse_named(self._chooser, request, load)
        is_large = load >= self._max_seeds
        traits = Traits(objective, request.needs.overlay, pin, is_large, is_heavy, request.priority)
        group, latency_ms = queue.group_for(traits, needs, load, overlay, now_ms), objective.latency_ms
        order_ms, is_firm = now_ms + SOFT_DEADLINE_MS + group.shift_ms, True
        if latency_ms is None:
            if strict and not self._chooser.can_keep(objective.accuracy_tolerance_permille, needs):
                return refuse_infeasible(self._chooser, group, request, load)
        elif group.is_hard and self._chooser.can_meet(group.candidates, load, overlay, latency_ms):
            request.deadline_ms = deadline_ms = request.arrived_ms + latency_ms
            order_ms = deadline_ms + group.shift_ms
            group.count_arrival(load, overlay)
            # Determined before the request is queued: an idle worker never refuses one.
            is_firm = not queue.group_of and queue.running_until_ms == -math.inf
            if not is_firm and (end_ms := self._end_ms(group, load, overlay, deadline_ms, now_ms)) > deadline_ms:
                refusal = refuse_unreachable(latency_ms, end_ms, deadline_ms)
                self._remember(request, pin, end_ms - latency_ms, now_ms, refusal)
                return refusal
            if group.is_large:
                order_ms -= self._costs.compute_ms(group.fastest, load, overlay)
        elif strict:
            return refuse_infeasible(self._chooser, group, request, load)
        elif group.is_hard:  # a smaller request may still be in time
            group = queue.find_group(traits, needs, load, overlay, now_ms)
            queue.derive(group)
        if overlay:
            if is_heavy and (wait_ms := self._turn_in_ms(group, load, overlay, now_ms)) > 0:
                return refuse_heavy(request, self._max_seeds, wait_ms)
            queue.has_overlays, request.overlay = True, overlay
        if excess > 0:
            self._displace(request.priority, excess, now_ms)
        request.remaining, request.load, request.order_ms, request.is_firm = request.seeds, load, order_ms, is_firm
        queue.add(group, request)
        return None

    def _keeps_tolerance(self, request: Request) -> bool:
        """Whether the variant that the request names is within its tolerance."""
        assert request.named is not None  # noqa: S101
        return request.named < self._chooser.count_within(request.objective.accuracy_tolerance_permille)

    def route_by(self, table: RoutingTable) -> None:
        """Pin requests by this table from now on; queued requests keep their group."""
        self.pins = Pins(self._chooser, table, self.pins.drawn)
        self.memory.clear()

    def take_displaced(self) -> list[tuple[Request, Refusal]]:
        """The requests that have lost their place in the queue to ones of a higher priority since the last call, and
        what to tell them."""
        displaced, self.displaced = self.displaced, []
        return displaced

    def _refuse_full(self, request: Request, load: int, pin: int | None, now_ms: float) -> Refusal:
        queue = self._queue
        refusal = refuse_full(request, load, queue.seeds, self._max_queued_seeds, queue.idle_in_ms(now_ms))
        self._remember(request, pin, math.inf, now_ms, refusal)
        return refusal

    def _remember(self, request: Request, pin: int | None, until_ms: float, now_ms: float, refusal: Refusal) -> None:
        # With weights, the next request may go to another variant, and may fit; without an overlay it may fit too, and
        # so may one that names no variant, or has another priority.
        if (
            pin == self.pins.fixed
            and request.needs is STORED_GRAPH
            and request.named is None
            and request.priority == DEFAULT_PRIORITY
        ):
            self.memory.remember(request.objective, request.seeds, until_ms, now_ms, refusal)

    def _excess(self, load: int, is_heavy: bool) -> int:
        """By how much this load is more than the queue has room for; 0 or less: it fits. Only an empty queue takes a
        heavy request, whose overlay alone may count as more than a queue may hold; while it waits it takes no room
        from the others."""
        if is_heavy:
            return load if self._queue.group_of else 0
        queued = self._queue.seeds - sum([group.seeds for group in self._queue.groups if group.is_heavy])
        return queued + load - self._max_queued_seeds

    def _could_displace(self, priority: int, load: int) -> bool:
        """Whether queued requests of a lower priority have at least this load. Heavy ones take no room from others."""
        return load <= sum([g.seeds for g in self._queue.groups if g.priority > priority and not g.is_heavy])

    def _displace(self, priority: int, load: int, now_ms: float) -> None:
        """Take out queued requests of a lower priority that have at least this load altogether: the lowest first, and
        of these the last that came; those that are computed in part only when no others of their priority are left."""
        refusal = refuse_displaced(self._queue.idle_in_ms(now_ms))
        lower = [g for g in self._queue.groups if g.priority > priority and g.waiting and not g.is_heavy]
        next_of_groups = [_displaceable(group) for group in lower]
        heapq.heapify(next_of_groups)
        while load > 0 and next_of_groups:
            *_, waiting, group = next_of_groups[0]
            self._queue.remove(group, waiting)
            self.displaced.append((waiting, refusal))
            load -= waiting.load
            if group.waiting:
                heapq.heapreplace(next_of_groups, _displaceable(group))
            else:
                heapq.heappop(next_of_groups)
        self.memory.expire()

    def _turn_in_ms(self, group: Group, load: int, overlay: int, now_ms: float) -> float:
        """When a heavy request may be sent again; 0: it may be queued.

        It is queued if it makes no expected request with a deadline late, or if there is no other of its kind and the
        last one was long enough ago. It could not wait in the queue instead: a worker that has nothing else to do
        computes what is queued.
        """
        batch_ms = self._costs.batch_ms(group.fastest, load, 1, overlay)
        if not expects_late(self._costs, self._queue.groups, batch_ms):
            return 0.0
        has_other = any(group.is_heavy and group.seeds for group in self._queue.groups)
        return max(self._decider.yields_until_ms - now_ms, batch_ms if has_other else 0.0)

    def _end_ms(self, own: Group, load: int, overlay: int, deadline_ms: float, now_ms: float) -> float:
        """Expected end of a request if everything that goes before it is drained by the fastest variants, those without
        a latency by the one that they want. Heavy requests and those without a latency yield to others than their own
        kind, unless these have a lower priority."""
        costs = self._costs
        end_ms = max(now_ms, self._queue.running_until_ms)
        requests = 1.0
        seeds_of: dict[int, float] = {own.fastest: load}
        overlay_of: dict[int, float] = {own.fastest: overlay} if overlay else {}
        for group in self._queue.groups:
            if not group.seeds or not (
                group.is_urgent or (group.is_hard and own.is_heavy) or group.priority < own.priority
            ):
                continue
            share, variant = 1.0, group.fastest
            before_ms = deadline_ms + own.shift_ms - group.shift_ms  # requests of the group due by then go first
            if not group.is_hard:  # a level makes up for the second that they are given: they all go first
                if not group.is_hurried:
                    variant = group.candidates[0]
            elif before_ms < group.last_due_ms:
                first = group.first()
                first_ms = first.deadline_ms if first is not None else math.inf
                if before_ms <= first_ms:
                    continue
                share = (before_ms - first_ms) / (group.last_due_ms - first_ms)
            requests += share * group.requests
            seeds_of[variant] = seeds_of.get(variant, 0.0) + share * group.seeds
            if group.overlay:
                overlay_of[variant] = overlay_of.get(variant, 0.0) + share * group.overlay
        if len(seeds_of) == 1:
            (total,) = seeds_of.values()
            variant = own.fastest
            if total < self._max_seeds and own.fastest_small != variant:
                variant = self._chooser.fastest((variant, own.fastest_small), total, own.kind)
            changed = overlay_of.get(own.fastest, 0.0)
            if costs.wait_ms:
                end_ms += costs.waits_ms(costs.turns(variant, total, costs.compute_ms(variant, total, changed)))
            return end_ms + costs.batch_ms(variant, total, requests, changed)
        turns = 0.0
        for variant, total in seeds_of.items():
            compute_ms = costs.compute_ms(variant, total, overlay_of.get(variant, 0.0))
            end_ms += compute_ms
            turns += costs.turns(variant, total, compute_ms)
        return end_ms + costs.overhead_ms(own.fastest, requests) + costs.waits_ms(turns)


def _displaceable(group: Group) -> tuple[int, bool, int, Request, Group]:
    """The request of the group that loses its place first, and the group; before them its sort key, unique by the
    request's: the smallest loses its place first."""
    waiting = last_of(group)
    return -group.priority, waiting.variant is not None, -waiting.key, waiting, group
