"""Admission control: which requests are queued, and which are refused on arrival.

A request that could not be in time even if the fastest variants computed all that is due before it is refused at once,
so that the queue never grows beyond what can be served. An idle worker refuses no feasible request.
"""

from __future__ import annotations

import math

from gnnserve_api.objective import Objective
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.scheduling.choice import Pins, VariantChooser
from gnnserve_worker.scheduling.groups import SOFT_DEADLINE_MS, Groups
from gnnserve_worker.scheduling.occupancy import Occupancy
from gnnserve_worker.scheduling.queue import Queue
from gnnserve_worker.scheduling.refusal import (
    Refusal,
    RefusalMemory,
    refuse_full,
    refuse_infeasible,
    refuse_unreachable,
)
from gnnserve_worker.scheduling.waiting import Group, QueuedRequest, Request


class AdmissionControl:
    def __init__(
        self,
        chooser: VariantChooser,
        pins: Pins,
        max_queued_seeds: int,
        groups: Groups,
        queue: Queue,
        occupancy: Occupancy,
    ) -> None:
        self.pins = pins
        self.memory = RefusalMemory()
        self._chooser = chooser
        self._costs = chooser.costs
        self._max_seeds = chooser.costs.max_seeds
        self._max_queued_seeds = max_queued_seeds
        self._groups = groups
        self._queue = queue
        self._occupancy = occupancy

    def admit(self, request: Request, strict: bool, now_ms: float) -> Refusal | None:
        """Queue the request, or refuse it. Unless it is `strict`, an objective that even an idle worker cannot meet is
        answered by the nearest variant, however late."""
        objective, seeds = request.objective, request.seeds
        pin = self.pins.draw()
        if self._queue.seeds + seeds > self._max_queued_seeds:
            wait_ms = self._occupancy.rest_ms(now_ms) + self._groups.drain_ms()
            refusal = refuse_full(seeds, self._queue.seeds, self._max_queued_seeds, wait_ms)
            self._remember(objective, pin, seeds, math.inf, now_ms, refusal)
            return refusal
        is_large = seeds >= self._max_seeds
        group = self._groups.of(objective, pin, is_large, seeds, now_ms)
        latency_ms = objective.latency_ms
        if latency_ms is None:
            deadline_ms, order_ms = math.inf, now_ms + SOFT_DEADLINE_MS
            is_firm = True
        elif group.is_hard and self._chooser.can_meet(group.candidates, seeds, latency_ms):
            order_ms = deadline_ms = request.arrived_ms + latency_ms
            group.count_arrival(seeds)
            # Determined before the request is queued: an idle worker never refuses one.
            is_firm = not self._queue and not self._occupancy.is_busy
            if not is_firm:
                end_ms = self._end_ms(group, seeds, deadline_ms, now_ms)
                if end_ms > deadline_ms:
                    refusal = refuse_unreachable(latency_ms, end_ms, deadline_ms)
                    self._remember(objective, pin, seeds, end_ms - latency_ms, now_ms, refusal)
                    return refusal
            if is_large:
                order_ms -= self._costs.compute_ms(group.fastest, seeds)
        else:
            if strict:
                return refuse_infeasible(self._chooser, group, objective, seeds)
            if group.is_hard:  # a smaller request may still be in time
                group = self._groups.find(objective, pin, is_large, seeds, now_ms)
                self._groups.derive(group)
            deadline_ms, order_ms = math.inf, now_ms + SOFT_DEADLINE_MS
            is_firm = True
        self._queue.add(group, QueuedRequest(request, deadline_ms, order_ms, seeds, is_firm))
        return None

    def route_by(self, table: RoutingTable) -> None:
        """Pin requests by this table from now on; queued requests keep their group."""
        self.pins = Pins(self._chooser, table, self.pins.drawn)
        self.memory.clear()

    def _remember(
        self, objective: Objective, pin: int | None, seeds: int, until_ms: float, now_ms: float, refusal: Refusal
    ) -> None:
        if pin == self.pins.fixed:  # with weights, the next request may go to another variant, and may fit
            self.memory.remember(objective, seeds, until_ms, now_ms, refusal)

    def _end_ms(self, own: Group, seeds: int, deadline_ms: float, now_ms: float) -> float:
        """Expected end of a request if everything due before it is drained by the fastest variants."""
        costs = self._costs
        end_ms = max(now_ms, self._occupancy.running_until_ms)
        requests = 1.0
        seeds_of: dict[int, float] = {own.fastest: seeds}
        for group in self._groups.all:
            if not group.seeds or not group.is_hard:
                continue
            share = 1.0
            if deadline_ms < group.last_due_ms:
                first = group.first()
                first_ms = first.deadline_ms if first is not None else math.inf
                if deadline_ms <= first_ms:
                    continue
                share = (deadline_ms - first_ms) / (group.last_due_ms - first_ms)
            requests += share * group.requests
            seeds_of[group.fastest] = seeds_of.get(group.fastest, 0.0) + share * group.seeds
        if len(seeds_of) == 1:
            (total,) = seeds_of.values()
            variant = own.fastest
            if total < self._max_seeds and own.fastest_small != variant:
                variant = self._chooser.fastest((variant, own.fastest_small), total)
            return end_ms + costs.batch_ms(variant, total, requests)
        for variant, total in seeds_of.items():
            end_ms += costs.compute_ms(variant, total)
        return end_ms + costs.overhead_ms(own.fastest, requests)
