"""Batch closing and load shedding: the next batch, the requests that can no longer be in time, and what batches took.

A batch is closed the moment the worker is free. Requests that the queue has made late are refused first, so that no
work is spent on answers that come too late. What a batch took corrects what the next one is expected to take.
"""

from __future__ import annotations

import math

import msgspec

from gnnserve_worker.scheduling.choice import VariantChooser
from gnnserve_worker.scheduling.decision import BatchPlan, Decider, sums_of
from gnnserve_worker.scheduling.load import load_of, overlay_part
from gnnserve_worker.scheduling.overlay_costs import NO_OVERLAYS, OverlayWork
from gnnserve_worker.scheduling.queue import SOFT_DEADLINE_MS, Group, Queue, Request, order_of
from gnnserve_worker.scheduling.refusal import Refusal, RefusalMemory, refuse_late, retry_after_s

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


class Taken(msgspec.Struct, frozen=True):
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

    def take(self, now_ms: float, longest_ms: float = math.inf) -> Taken:
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
                return Taken(self._close(plan, now_ms), tuple(refused))
        return Taken(None, tuple(refused))

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
