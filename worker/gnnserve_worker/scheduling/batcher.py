"""The batcher of one lane: which requests its queue takes, which batch is next, and what batches took.

It is pure: time is an argument, and it knows no torch, HTTP or threads. A request is queued without a variant, which is
chosen when its batch is closed (`decision.py`), by the time left until its deadline.

Admission: a request that could not be in time even if the fastest variants computed all that is due before it is
refused at once, so that the queue never grows beyond what can be served. An idle worker refuses no feasible request,
unless it is heavy: such requests are limited to a share of the time (`decision.py`). What is due before a request is a
matter of priorities too; and where the queue is full, a request takes the place of those of a lower priority that came
last.

Closing: a batch is closed the moment the worker is free, so an idle worker adds no delay and a busy one collects larger
batches. Requests that the queue has made late are refused first, so that no work is spent on answers that come too
late. A request beyond `max_seeds` runs as several batches by one variant, with others in between. What a batch took
corrects what the next one is expected to take.
"""

from __future__ import annotations

import heapq
import math

import msgspec

from gnnserve_api.families import STORED_GRAPH
from gnnserve_api.objective import DEFAULT_PRIORITY, Objective
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.scheduling.choice import Pins
from gnnserve_worker.scheduling.cost_terms import NO_OVERLAYS, OverlayWork, load_of, overlay_part
from gnnserve_worker.scheduling.decision import BatchPlan, Decider, expects_late, sums_of
from gnnserve_worker.scheduling.queue import SOFT_DEADLINE_MS, Group, Queue, Request, Traits, last_of, order_of
from gnnserve_worker.scheduling.refusal import (
    Refusal,
    RefusalMemory,
    refuse_displaced,
    refuse_full,
    refuse_heavy,
    refuse_infeasible,
    refuse_late,
    refuse_named,
    refuse_unreachable,
    retry_after_s,
)
from gnnserve_worker.scheduling.variants import VariantChooser


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


LOOKED_AT_GROUPS = 12
"""Groups that a decision considers: those due first."""
_GONE_RATE = 1e-6
_OBSERVE_EVERY_MS = 1.0
"""Shortest interval between observed batches: of thousands of short batches in a second, a few suffice."""
_REFRESH_BATCHES = 256


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
    load: int
    """What costs are counted by: its seeds, and its overlays as seeds."""
    predicted_ms: float
    """Expected time to compute the batch."""
    expected_ms: float
    """Expected time from the begin of its turn to its last answer."""
    changed_seeds: int = 0
    """Seeds that are nodes of its overlays."""
    overlay_fixed: float = 0.0
    overlay_rows: float = 0.0
    """As those of its requests."""


class NextBatch(msgspec.Struct, frozen=True):
    batch: Batch | None
    """The next batch; None: nothing is left to compute."""
    refused: tuple[tuple[Request, Refusal], ...]
    """Requests that can no longer be in time."""


class BatchCloser:
    def __init__(self, chooser: VariantChooser, decider: Decider, queue: Queue, memory: RefusalMemory) -> None:
        self._chooser = chooser
        self._costs = chooser.costs
        self._decider = decider
        self._queue = queue
        self._memory = memory
        self._batches = 0
        """Batches that were observed."""
        self._observed_ms = -math.inf

    def take(self, now_ms: float, longest_ms: float = math.inf) -> NextBatch:
        """Close the next batch. The worker counts as busy with it until `finish`. `longest_ms`: what it may
        take to compute, where others wait for the worker too; one request, or a piece of it, is taken all the same."""
        if self._memory.known is not None:
            self._memory.expire()
        refused: list[tuple[Request, Refusal]] = []
        self._costs.longest_turn_ms = longest_ms
        queue = self._queue
        while queue.group_of:
            groups = self.look(now_ms, refused)
            if not queue.group_of:
                break
            plan = self._decider.decide(groups, now_ms, queue.small > 0)
            if longest_ms < math.inf:
                self._shorten(plan, now_ms)
            if plan.drains_until_ms > now_ms:
                self._give_up(plan, now_ms, refused)
            if plan.members or plan.large is not None:
                return NextBatch(self._close(plan, now_ms), tuple(refused))
        return NextBatch(None, tuple(refused))

    def look(self, now_ms: float, refused: list[tuple[Request, Refusal]]) -> list[Group]:
        """The groups that matter to a decision. Requests that can no longer be in time are refused."""
        looked_at: list[Group] = []
        version = self._chooser.version
        for group in self._queue.groups:
            if group.is_hard:
                group.update_rate(now_ms)
            group.head = None
            group.due_ms = math.inf
            if group.version != version:
                self._queue.derive(group)
            if group.seeds:
                head = group.first()
                if group.is_hard:
                    while head is not None and self._is_lost(group, head, now_ms):
                        self._refuse(group, head, now_ms, refused)
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
            if self._queue.group_of and all(group.head is None for group in looked_at):
                looked_at.append(min((g for g in self._queue.groups if g.head is not None), key=order_of))
        return looked_at

    def _is_lost(self, group: Group, head: Request, now_ms: float) -> bool:
        if head.is_firm:
            return False
        left_ms = head.deadline_ms - now_ms
        # Until it is computed, if that begins now: others have turns between the pieces of a large one.
        expected_ms = self._costs.pieces_ms if group.is_large else self._costs.compute_ms
        variant = group.fastest if head.variant is None else head.variant
        if expected_ms(variant, head.load, head.overlay) <= left_ms:
            return False
        if head.variant is not None or group.fastest_small == group.fastest:
            return True
        return expected_ms(group.fastest_small, head.load, head.overlay) > left_ms

    def _give_up(self, plan: BatchPlan, now_ms: float, refused: list[tuple[Request, Refusal]]) -> None:
        """Refuse requests whose deadline falls before the end of the batch."""
        for group in list(plan.members):
            while (head := group.first()) is not None and not head.is_firm and head.deadline_ms < plan.drains_until_ms:
                self._refuse(group, head, now_ms, refused)
            if head is None:
                plan.members.remove(group)

    def _refuse(
        self, group: Group, waiting: Request, now_ms: float, refused: list[tuple[Request, Refusal]]
    ) -> None:  # fmt: skip
        self._queue.remove(group, waiting)
        # The queue can be no longer than the first of them found it.
        wait_s = refused[0][1].retry_after_s if refused else retry_after_s(self._queue.idle_in_ms(now_ms))
        refused.append((waiting, refuse_late(waiting, now_ms, wait_s)))

    def _shorten(self, plan: BatchPlan, now_ms: float) -> None:
        """Limit the batch to what is computed in a turn. The piece of a large request is cut too, but not below
        what its overlay counts, which every piece pays for again."""
        costs = self._costs
        fitting = costs.seeds_of_turn(plan.variant)
        carried = 0
        if plan.large is not None and plan.large.head is not None:
            carried = plan.large.head.overlay_load
            plan.piece = min(plan.piece, max(fitting - carried, carried, 1))
        plan.limit = min(plan.limit, max(fitting, plan.piece + carried))
        if plan.drains_until_ms > now_ms and (head := plan.members[0].first()) is not None:
            # A turn ends before a full batch would: what is due by then can still be in it.
            total, requests, overlay = sums_of(plan.members)
            load = min(total, max(plan.limit, head.load))
            share = load / total
            batch_ms = costs.batch_ms(plan.variant, load, requests * share, overlay * share)
            plan.drains_until_ms = min(plan.drains_until_ms, now_ms + (1 + costs.margin) * batch_ms)

    def _close(self, plan: BatchPlan, now_ms: float) -> Batch:
        queue, costs, variant, large = self._queue, self._costs, plan.variant, plan.large
        pieces: list[Piece] = []
        seeds, load, overlay = 0, 0, 0
        fixed, rows = 0.0, 0.0
        if large is not None:
            piece = self._cut(plan, large, now_ms)
            pieces.append(piece)
            seeds, load = plan.piece, plan.piece + piece.request.overlay_load
            overlay = overlay_part(load, seeds, piece.request.changed_seeds)
            fixed, rows = piece.request.overlay_fixed, piece.request.overlay_rows
        limit = min(plan.limit, costs.max_seeds) - load
        members = queue.take(plan.members, limit, needs_one=large is None)
        for waiting in members:
            pieces.append(Piece(waiting, 0, waiting.remaining, True, True))
            seeds += waiting.remaining
            load += waiting.load
        if queue.has_overlays:
            overlay += sum([waiting.overlay for waiting in members])
            fixed += sum([waiting.overlay_fixed for waiting in members])
            rows += sum([waiting.overlay_rows for waiting in members])
            queue.has_overlays = bool(queue.group_of)
        predicted_ms, expected_ms = costs.expect(variant, load, len(pieces), overlay)
        queue.running_until_ms = until_ms = now_ms + expected_ms
        first = plan.members[0] if plan.members else None
        if (large is not None and large.chooses) or (first is not None and first.chooses):
            self._decider.note_usual(variant, until_ms)
        changed_seeds = overlay - (load - seeds)
        name = self._chooser.names[variant]
        return Batch(name, tuple(pieces), seeds, load, predicted_ms, expected_ms, changed_seeds, fixed, rows)

    def _cut(self, plan: BatchPlan, large: Group, now_ms: float) -> Piece:
        """Take the planned piece of the group's first request; the rest of the request is queued again."""
        waiting = self._queue.pop(large)
        start = waiting.seeds - waiting.remaining
        waiting.remaining -= plan.piece
        left, last = waiting.remaining, not waiting.remaining
        waiting.load = load_of(left, waiting.overlay_load, self._costs.max_seeds)
        waiting.overlay = overlay_part(waiting.load, left, waiting.changed_seeds)
        if not last:
            waiting.variant = plan.variant
            if large.is_hard:
                rest_ms = self._costs.compute_ms(plan.variant, waiting.load, waiting.overlay)
                waiting.order_ms = waiting.deadline_ms - rest_ms + large.shift_ms
            else:
                waiting.order_ms = now_ms + SOFT_DEADLINE_MS + large.shift_ms
            self._queue.add(large, waiting)
        return Piece(waiting, start, start + plan.piece, last, last and not start)

    # What follows a batch

    def finish(self) -> None:
        """Note that the batch that `take` returned last is done and the worker is free."""
        if self._memory.known is not None:
            self._memory.expire()
        self._queue.running_until_ms = -math.inf

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
            self._memory.clear()
            self._chooser.refresh()


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
