"""The queue: admission control, batch closing and load shedding.

It is pure: time is an argument, and it knows no torch, HTTP or threads. A request is queued without a variant, which is
chosen when its batch is closed (`decision.py`), by the time left until its deadline.

A batch is closed the moment the worker is free, so an idle worker adds no delay and a busy one collects larger batches.
A request that can no longer be in time is refused at once: on arrival, if even the fastest variants would take too long
for all that is due before it, or when a batch is closed, if the queue was slower than expected. So the queue never
grows beyond what can be served, and no work is spent on answers that come too late. A request beyond `max_seeds` runs
as several batches by one variant, with others in between.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.scheduling.choice import Pins, VariantChooser
from gnnserve_worker.scheduling.decision import Decider, Plan
from gnnserve_worker.scheduling.waiting import Group, Request, Waiting

SOFT_DEADLINE_MS = 1000.0
"""Requests without a latency objective are ordered as if they had this one, but never refused for it."""
LOOKED_AT_GROUPS = 12
"""Groups that a decision considers: those due first."""
_MOST_GROUPS = 16
"""Most groups; beyond it, requests whose latency has no group of its own share one."""
_LATENCY_STEP = 1.25
"""Largest ratio of two latencies in one group."""
_KNOWN_OBJECTIVES = 1024
_MOST_PASSED_OVER = 8
"""Most requests that are passed over as too large for the rest of a batch, in the search for smaller ones."""
_OBSERVE_EVERY_MS = 1.0
"""Shortest interval between observed batches: of thousands of short batches in a second, a few suffice."""
_REFRESH_BATCHES = 256
_GONE_RATE = 1e-6


class RefusalReason(StrEnum):
    OBJECTIVE_INFEASIBLE = "ObjectiveInfeasible"
    """No variant can ever meet it: allow more time or loss, send fewer nodes, or leave out strict."""
    QUEUE_FULL = "QueueFull"
    """Send again after the stated time, or slower."""
    DEADLINE_OUT_OF_REACH = "DeadlineOutOfReach"
    """Send again after the stated time, or allow more."""
    DEADLINE_PASSED = "DeadlinePassed"
    """The worker was slower than expected: send again after the stated time, or allow more."""
    LOADING = "Loading"
    """The worker is loading: send again after the stated time."""
    DRAINING = "Draining"
    """The worker is about to stop: send to another one."""


class Refusal(msgspec.Struct, frozen=True):
    reason: RefusalReason
    message: str
    retry_after_s: int | None
    """Seconds to wait before another attempt; None: another attempt would be refused too."""


class Admission(msgspec.Struct, frozen=True):
    feasible: bool
    """Whether an idle worker can meet the objective; if not, the nearest variant answers, however late."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a request: its seeds `start` to `stop`."""

    request: Request
    start: int
    stop: int

    last: bool
    whole: bool
    """Whether the piece is the whole request."""


class Batch(msgspec.Struct, frozen=True):
    variant: str
    pieces: tuple[Piece, ...]
    seeds: int
    predicted_ms: float
    """Expected time to compute the batch."""


class Taken(msgspec.Struct, frozen=True):
    batch: Batch | None
    """The next batch; None: nothing is left to compute."""
    refused: tuple[tuple[Request, Refusal], ...]
    """Requests that can no longer be in time."""


_FEASIBLE, _INFEASIBLE = Admission(True), Admission(False)
_GroupKey = tuple[int, int | None, bool, bool, bool]
_ODD = None
"""Stands for the step of latencies that share the overflow group, however far apart they are."""


class _KnownRefusal(msgspec.Struct):
    """A refusal that holds for requests with this objective that have `seeds` to `most_seeds` seeds and arrive before
    `until_ms`.

    For more than `most_seeds` even an idle worker may be too slow; such a request is not refused.
    """

    objective: Objective
    seeds: int
    most_seeds: int
    until_ms: float
    refusal: Refusal

    def holds(self, objective: Objective, now_ms: float) -> bool:
        return now_ms < self.until_ms and self.objective == objective


class Batcher:
    def __init__(
        self, chooser: VariantChooser, table: RoutingTable, max_queued_seeds: int, busy_until_ms: float = -math.inf,
        drawn: float = 0.0,
    ) -> None:  # fmt: skip
        """`busy_until_ms`: when the worker will have finished what it accepted before this queue. `drawn`, below 1:
        where the split by weights continues."""
        self._chooser = chooser
        self._costs = chooser.costs
        self._decider = Decider(chooser)
        self._pins = Pins(chooser, table, drawn)
        self._max_seeds = chooser.costs.max_seeds
        self._small_seeds = self._decider.small_seeds
        self._max_queued_seeds = max_queued_seeds
        self._groups: dict[_GroupKey, dict[int | None, Group]] = {}
        """Groups by kind, then by step of the latency."""
        self._all_groups: list[Group] = []
        self._group_of: dict[tuple[Objective, int | None, bool], Group] = {}
        """Cache of the group of each objective."""
        self._queued: dict[int, Group] = {}
        """Group of each queued request, by the request's key."""
        self._queued_seeds = 0
        self._small_waiting = 0
        self._running_until_ms = busy_until_ms
        self._is_busy = busy_until_ms > -math.inf
        self._batches = 0
        self._observed_ms = -math.inf
        self._known_refusal: _KnownRefusal | None = None

    @property
    def queued_seeds(self) -> int:
        return self._queued_seeds

    @property
    def waiting(self) -> bool:
        return bool(self._queued)

    def route_by(self, table: RoutingTable) -> None:
        """Pin requests by this table from now on; queued requests keep their group."""
        self._pins = Pins(self._chooser, table, self._pins.drawn)
        self._known_refusal = None
        self._chooser.refresh()

    def busy_until_ms(self, now_ms: float) -> float:
        """When the worker would be idle if nothing else came."""
        rest_ms = max(0.0, self._running_until_ms - now_ms)
        for group in self._all_groups:
            if group.seeds:
                self._derive(group)
                variant = group.fastest if group.is_hard or group.is_hurried else group.candidates[0]
                rest_ms += self._costs.batch_ms(variant, group.seeds, group.requests)
        return now_ms + rest_ms

    # Arrivals

    def admit(self, request: Request, strict: bool, now_ms: float) -> Admission | Refusal:
        objective, seeds = request.objective, request.seeds
        pin = self._pins.draw()
        if self._queued_seeds + seeds > self._max_queued_seeds:
            refusal = self._refuse_full(seeds, now_ms)
            self._remember_refusal(objective, pin, seeds, math.inf, now_ms, refusal)
            return refusal
        is_large = seeds >= self._max_seeds
        group = self._group_of.get((objective, pin, is_large))
        if group is None:
            group = self._find_group(objective, pin, is_large, seeds, now_ms)
        if group.version != self._chooser.version:
            self._derive(group)
        latency_ms = objective.latency_ms
        if latency_ms is None:
            deadline_ms, order_ms = math.inf, now_ms + SOFT_DEADLINE_MS
            admission, is_firm = _FEASIBLE, True
        elif group.is_hard and self._chooser.can_meet(group.candidates, seeds, latency_ms):
            order_ms = deadline_ms = request.arrived_ms + latency_ms
            group.count_arrival(seeds)
            # Determined before the request is queued: an idle worker never refuses one.
            is_firm = not self._queued and not self._is_busy
            if not is_firm:
                end_ms = self._end_ms(group, seeds, deadline_ms, now_ms)
                if end_ms > deadline_ms:
                    refusal = self._refuse_unreachable(latency_ms, end_ms, deadline_ms, now_ms)
                    self._remember_refusal(objective, pin, seeds, end_ms - latency_ms, now_ms, refusal)
                    return refusal
            if is_large:
                order_ms -= self._costs.compute_ms(group.fastest, seeds)
            admission = _FEASIBLE
        else:
            if strict:
                return self._refuse_infeasible(group, objective, seeds)
            if group.is_hard:  # a smaller request may still be in time
                group = self._find_group(objective, pin, is_large, seeds, now_ms)
                self._derive(group)
            deadline_ms, order_ms = math.inf, now_ms + SOFT_DEADLINE_MS
            admission, is_firm = _INFEASIBLE, True
        self._enqueue(group, Waiting(request, deadline_ms, order_ms, seeds, is_firm))
        return admission

    def would_refuse(self, objective: Objective, seeds: int, now_ms: float) -> Refusal | None:
        """The refusal that such a request would get, known from one no larger that was just refused; asked for every
        request. Until a batch is closed the queue only grows, so an unreachable deadline stays unreachable until it has
        passed."""
        known = self._known_refusal
        if known is None or not known.seeds <= seeds <= known.most_seeds or not known.holds(objective, now_ms):
            return None
        return known.refusal

    def _remember_refusal(
        self, objective: Objective, pin: int | None, seeds: int, until_ms: float, now_ms: float, refusal: Refusal
    ) -> None:
        if pin != self._pins.fixed:
            return  # with weights, the next request may go to another variant, and may fit
        known, most_seeds = self._known_refusal, seeds
        if known is not None and known.objective == objective and known.refusal.reason is refusal.reason:
            most_seeds = max(seeds, known.most_seeds)
            if seeds > known.seeds and known.holds(objective, now_ms):
                known.most_seeds = most_seeds
                return
        self._known_refusal = _KnownRefusal(objective, seeds, most_seeds, until_ms, refusal)

    def _forget_refusal(self) -> None:
        """Drop the known refusal, since there is room again. Which objectives can be met at all stays known."""
        if self._known_refusal is not None:
            self._known_refusal.until_ms = -math.inf

    def cancel(self, key: int) -> None:
        """Drop a request whose client is gone. No effect if it is not queued."""
        group = self._queued.get(key)
        if group is not None:
            self._forget_refusal()
            waiting = group.waiting[key]
            group.remove(waiting)
            self._forget(waiting)

    def clear(self) -> list[int]:
        """Drop all queued requests and return their keys."""
        keys = list(self._queued)
        for key in keys:
            self.cancel(key)
        return keys

    def _end_ms(self, own: Group, seeds: int, deadline_ms: float, now_ms: float) -> float:
        """Expected end of a request if everything due before it is drained by the fastest variants."""
        costs = self._costs
        end_ms = max(now_ms, self._running_until_ms)
        requests = 1.0
        seeds_of: dict[int, float] = {own.fastest: seeds}
        for group in self._all_groups:
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

    # Batches

    def take(self, now_ms: float) -> Taken:
        """Close the next batch. The worker counts as busy with it until `finish`."""
        refused: list[tuple[Request, Refusal]] = []
        self._forget_refusal()
        while self._queued:
            groups = self._look(now_ms, refused)
            if not self._queued:
                break
            plan = self._decider.decide(groups, now_ms, self._small_waiting > 0)
            if plan.drains_until_ms > now_ms:
                self._give_up(plan, now_ms, refused)
            if plan.members or plan.large is not None:
                return Taken(self._close(plan, now_ms), tuple(refused))
        return Taken(None, tuple(refused))

    def finish(self) -> None:
        """Note that the batch that `take` returned last is done and the worker is free."""
        self._forget_refusal()
        self._running_until_ms = -math.inf
        self._is_busy = False

    def observe(self, batch: Batch, compute_ms: float, total_ms: float, now_ms: float) -> None:
        """Record what a batch took: its computation, and in all, from when it could have begun to its last answer."""
        if now_ms - self._observed_ms < _OBSERVE_EVERY_MS:
            return
        self._observed_ms = now_ms
        variant = self._chooser.indices[batch.variant]
        self._costs.observe(variant, batch.seeds, len(batch.pieces), compute_ms, total_ms, now_ms)
        self._batches += 1
        if self._batches % _REFRESH_BATCHES == 0:
            self._known_refusal = None
            self._chooser.refresh()

    def _look(self, now_ms: float, refused: list[tuple[Request, Refusal]]) -> list[Group]:
        """The groups that matter to a decision. Requests that can no longer be in time are refused."""
        looked_at: list[Group] = []
        version = self._chooser.version
        for group in self._all_groups:
            if group.is_hard:
                group.update_rate(now_ms)
            group.head = None
            group.due_ms = math.inf
            if group.version != version:
                self._derive(group)
            if group.seeds:
                head = group.first()
                if group.is_hard:
                    while head is not None and self._is_lost(group, head, now_ms):
                        self._refuse_late(group, head, now_ms, refused)
                        head = group.first()
                if head is not None:
                    group.head = head
                    group.due_ms = head.deadline_ms
                    looked_at.append(group)
                    continue
            if group.rate > _GONE_RATE:
                looked_at.append(group)
        if len(looked_at) > LOOKED_AT_GROUPS:
            looked_at.sort(key=lambda group: now_ms + group.latency_ms if group.head is None else group.head.order_ms)
            del looked_at[LOOKED_AT_GROUPS:]
            if all(group.head is None for group in looked_at):
                looked_at.append(min((g for g in self._all_groups if g.head is not None), key=_order))
        return looked_at

    def _is_lost(self, group: Group, head: Waiting, now_ms: float) -> bool:
        if head.is_firm:
            return False
        costs, left_ms = self._costs, head.deadline_ms - now_ms
        variant = group.fastest if head.variant is None else head.variant
        if costs.compute_ms(variant, head.remaining) <= left_ms:
            return False
        return head.variant is not None or costs.compute_ms(group.fastest_small, head.remaining) > left_ms

    def _give_up(self, plan: Plan, now_ms: float, refused: list[tuple[Request, Refusal]]) -> None:
        """Refuse requests whose deadline falls before the end of a full batch."""
        for group in list(plan.members):
            while (head := group.first()) is not None and not head.is_firm and head.deadline_ms < plan.drains_until_ms:
                self._refuse_late(group, head, now_ms, refused)
            if head is None:
                plan.members.remove(group)

    def _close(self, plan: Plan, now_ms: float) -> Batch:
        pieces: list[Piece] = []
        total, has_deadline = 0, False
        if plan.large is not None:
            waiting = plan.large.pop()
            self._forget(waiting)
            start = waiting.request.seeds - waiting.remaining
            waiting.remaining -= plan.piece
            last = not waiting.remaining
            pieces.append(Piece(waiting.request, start, start + plan.piece, last, last and not start))
            if not last:
                waiting.variant = plan.variant
                if plan.large.is_hard:
                    waiting.order_ms = waiting.deadline_ms - self._costs.compute_ms(plan.variant, waiting.remaining)
                else:
                    waiting.order_ms = now_ms + SOFT_DEADLINE_MS
                self._enqueue(plan.large, waiting)
            total, has_deadline = plan.piece, plan.large.is_hard
        members = self._fill(plan.members, plan.limit - total, needs_one=plan.large is None)
        pieces += [Piece(waiting.request, 0, waiting.remaining, True, True) for waiting in members]
        total += sum([waiting.remaining for waiting in members])
        costs = self._costs
        batch_ms = costs.batch_ms(plan.variant, total, len(pieces))
        self._running_until_ms = now_ms + batch_ms
        self._is_busy = True
        if has_deadline or (plan.members and plan.members[0].is_hard):
            self._decider.note_usual(plan.variant, self._running_until_ms)
        return Batch(self._chooser.names[plan.variant], tuple(pieces), total, costs.computing_ms(plan.variant, total))

    def _fill(self, members: list[Group], limit: int, needs_one: bool) -> list[Waiting]:
        """Fill a batch. `needs_one`: the first request goes in any case, so that the batch is not empty."""
        chosen: list[Waiting] = []
        if sum([group.seeds for group in members]) <= limit:
            for group in members:
                chosen += group.take_all()
            for waiting in chosen:
                self._forget(waiting)
            return chosen
        passed_over: list[tuple[Group, Waiting]] = []
        left = limit
        while left and len(passed_over) < _MOST_PASSED_OVER:
            first = _first_due(members)
            if first is None:
                break
            group, waiting = first
            group.pop()
            if waiting.remaining > left and (chosen or not needs_one):
                passed_over.append((group, waiting))
                continue
            self._forget(waiting)
            chosen.append(waiting)
            left = max(0, left - waiting.remaining)
        for group, waiting in passed_over:
            group.add(waiting)
        return chosen

    # Groups

    def _enqueue(self, group: Group, waiting: Waiting) -> None:
        group.add(waiting)
        self._queued[waiting.request.key] = group
        self._queued_seeds += waiting.remaining
        if waiting.request.seeds <= self._small_seeds:
            self._small_waiting += 1

    def _forget(self, waiting: Waiting) -> None:
        """Remove a request from its group."""
        del self._queued[waiting.request.key]
        self._queued_seeds -= waiting.remaining
        if waiting.request.seeds <= self._small_seeds:
            self._small_waiting -= 1

    def _find_group(
        self, objective: Objective, drawn_pin: int | None, is_large: bool, seeds: int, now_ms: float
    ) -> Group:
        """The group of an objective; if it cannot be met, the group without a deadline whose requests want the nearest
        variant."""
        chooser, tolerance = self._chooser, objective.accuracy_tolerance_permille
        allowed, pin = chooser.count_within(tolerance), drawn_pin
        candidates = chooser.candidates(allowed)
        if pin is not None:
            if pin >= allowed:
                pin = chooser.fastest(candidates, 1)
            candidates = (pin,)
        latency_ms, is_hard = SOFT_DEADLINE_MS, False
        if objective.latency_ms is not None and chooser.can_meet(candidates, seeds, objective.latency_ms):
            latency_ms, is_hard = objective.latency_ms, True
        out_of_reach = objective.latency_ms is not None and not is_hard
        is_hurried = pin is None and not is_hard and (out_of_reach or tolerance is not None)
        kind = (allowed, pin, is_hard, is_hurried, is_large)
        steps = self._groups.setdefault(kind, {})
        step: int | None = math.floor(math.log(latency_ms) / math.log(_LATENCY_STEP))
        group = steps.get(step)
        if group is None:
            if len(self._all_groups) >= _MOST_GROUPS:
                self._drop_empty(now_ms)
                steps = self._groups.setdefault(kind, {})
            if len(self._all_groups) >= _MOST_GROUPS:
                step = _ODD
                group = steps.get(step)
        if group is None:
            group = Group(allowed, pin, is_hard, is_hurried, is_large, latency_ms)
            steps[step] = group
            self._all_groups.append(group)
        group.latency_ms = min(group.latency_ms, latency_ms) if group.waiting else latency_ms
        if not out_of_reach:
            if len(self._group_of) >= _KNOWN_OBJECTIVES:
                self._group_of.clear()
            self._group_of[objective, drawn_pin, is_large] = group
        return group

    def _drop_empty(self, now_ms: float) -> None:
        """Drop groups without queued or expected requests."""
        kept = []
        for group in self._all_groups:
            group.update_rate(now_ms)
            if group.requests or group.request_rate * SOFT_DEADLINE_MS > 1:
                kept.append(group)
        self._all_groups = kept
        alive = set(map(id, kept))
        for kind, steps in list(self._groups.items()):
            self._groups[kind] = {step: group for step, group in steps.items() if id(group) in alive}
            if not self._groups[kind]:
                del self._groups[kind]
        self._group_of.clear()

    def _derive(self, group: Group) -> None:
        """Derive the group's attributes that depend on the costs of variants."""
        chooser = self._chooser
        if group.version == chooser.version:
            return
        group.version = chooser.version
        if group.pin is not None:
            group.candidates = (group.pin,)
            group.allowed = tuple(variant == group.pin for variant in range(len(chooser.names)))
        else:
            group.candidates = chooser.candidates(group.allowed_count)
            group.allowed = tuple(variant < group.allowed_count for variant in range(len(chooser.names)))
        group.fastest = chooser.fastest(group.candidates, self._max_seeds)
        group.fastest_small = chooser.fastest(group.candidates, 1)

    # Refusals

    def _refuse_late(
        self, group: Group, waiting: Waiting, now_ms: float, refused: list[tuple[Request, Refusal]]
    ) -> None:
        group.remove(waiting)
        self._forget(waiting)
        request = waiting.request
        message = (
            f"{request.objective.latency_ms:g} ms can no longer be met after {now_ms - request.arrived_ms:.3g} ms in "
            "the queue; send again later or allow more time"
        )
        # The wait of the first of them is the longest: the queue has only become shorter since.
        wait_s = refused[0][1].retry_after_s if refused else _retry_after_s(self.busy_until_ms(now_ms) - now_ms)
        refused.append((request, Refusal(RefusalReason.DEADLINE_PASSED, message, wait_s)))

    def _refuse_infeasible(self, group: Group, objective: Objective, seeds: int) -> Refusal:
        remedy = "allow more time or a larger tolerance, send fewer nodes, or leave out strict"
        message = self._chooser.choose(objective, seeds).message
        if group.pin is not None:
            remedy = "allow more time, send fewer nodes, or leave out strict"
            nodes = "1 node" if seeds == 1 else f"{seeds:,} nodes"
            needed_ms = self._costs.batch_ms(group.pin, seeds, 1)
            message = (
                f"the service's routing binds the request to {self._chooser.names[group.pin]}, which needs "
                f"{needed_ms:.3g} ms for {nodes}, more than {objective.latency_ms:g} ms"
            )
        return Refusal(RefusalReason.OBJECTIVE_INFEASIBLE, f"{message}; {remedy}", None)

    def _refuse_full(self, seeds: int, now_ms: float) -> Refusal:
        return Refusal(
            RefusalReason.QUEUE_FULL,
            f"the queue holds {self._queued_seeds:,} nodes of at most {self._max_queued_seeds:,}, so {seeds:,} more "
            "do not fit; send again later, or raise spec.worker.batching.maxQueuedSeeds",
            _retry_after_s(self.busy_until_ms(now_ms) - now_ms),
        )

    def _refuse_unreachable(self, latency_ms: float, end_ms: float, deadline_ms: float, now_ms: float) -> Refusal:
        excess_ms = max(end_ms - deadline_ms, 0.001)
        return Refusal(
            RefusalReason.DEADLINE_OUT_OF_REACH,
            f"{latency_ms:g} ms cannot be met now: even the fastest variants would answer {excess_ms:.3g} ms late, "
            "after what is due before; send again later or allow more time",
            _retry_after_s(excess_ms),
        )


def _first_due(members: list[Group]) -> tuple[Group, Waiting] | None:
    best: tuple[Group, Waiting] | None = None
    for group in members:
        first = group.first()
        if first is not None and (best is None or first.order_ms < best[1].order_ms):
            best = (group, first)
    return best


def _order(group: Group) -> float:
    return group.head.order_ms if group.head is not None else math.inf


def _retry_after_s(wait_ms: float) -> int:
    return max(1, math.ceil(wait_ms / 1000))
