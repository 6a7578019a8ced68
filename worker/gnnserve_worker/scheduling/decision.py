"""The variant of the next batch and its requests: decided when the worker is free, from what is queued then.

It is arithmetic on groups, without I/O. In short: of the variants allowed to the request that is due first, it takes
the most accurate one whose batch ends in time for it and leaves enough time for the next batch (the requests left
behind and those expected to arrive meanwhile) at the same variant. If there is none, the fastest drains the queue.
Which request is first is a matter of priorities too; one of a higher priority is no more accurate, though, where that
would make others late.

Four kinds of requests have rules of their own. Requests without a latency have an order but no deadline: they get
their turn when it comes if that makes no other request late, and at most `SOFT_SHARE` of the time if it does. Heavy
requests, whose overlay alone is at least a full batch, yield in the same way, with a latency or without. Requests that
want the lowest latency join the next batch. Requests whose load is at least a full batch contribute one piece at a
time; each piece pays for the overlay again, so it is not cut smaller than what the overlay counts.

How long a batch may take before it makes the requests that follow it late is arithmetic on groups too (`room_ms`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gnnserve_worker.scheduling.cost_terms import overlay_part
from gnnserve_worker.scheduling.queue import Group, Request, order_of
from gnnserve_worker.scheduling.variants import CostModel, VariantChooser

SOFT_SHARE = 0.25
"""Largest share of the worker's time for requests that yield, and whose turn makes others late."""
SMALL_SHARE = 4
"""A request is small up to a fourth of a batch; a large one gets that much of a batch while small ones wait."""
_HASTE = 2
"""A large request whose deadline is nearer than twice its own time is not held up for small ones."""
_USUAL_MEMORY_MS = 2000.0


class BatchPlan(msgspec.Struct):
    variant: int
    members: list[Group]
    """Groups whose requests may be in the batch, the earliest first."""
    limit: int
    """Most load of the batch, in seeds."""
    large: Group | None = None
    """The group of large requests whose first one contributes a piece."""
    piece: int = 0
    """Seeds of that piece."""
    drains_until_ms: float = -math.inf
    """End of the batch, if it drains a backlog: requests due before it are refused."""


class Decider:
    def __init__(self, chooser: VariantChooser) -> None:
        self._chooser = chooser
        self._costs = chooser.costs
        self._max_seeds = chooser.costs.max_seeds
        self.small_seeds = max(1, self._max_seeds // SMALL_SHARE)
        self._usual = 0.0
        """Running mean of the variants used recently (an index): what waiting requests may expect."""
        self._usual_until_ms = -math.inf
        self.yields_until_ms = -math.inf
        """Time from which requests that yield may make others late again."""

    def decide(self, groups: Sequence[Group], now_ms: float, small_wait: bool) -> BatchPlan:
        """Decide. At least one group has queued requests, and such groups have `head` and `due_ms` set; the others are
        only expected to get some. `small_wait`: requests of at most `small_seeds` are queued."""
        hard: Group | None = None
        soft: Group | None = None
        if len(groups) == 1 and not (groups[0].is_hard or groups[0].is_large):
            wanted = groups[0].wanted
            return BatchPlan(self._wanted(groups[0]) if wanted is None else wanted, [*groups], self._max_seeds)
        for group in groups:
            if group.head is None:
                continue
            if group.is_urgent:
                if hard is None or group.head.order_ms < order_of(hard):
                    hard = group
            elif soft is None or group.head.order_ms < order_of(soft):
                soft = group
        if soft is not None and (hard is None or order_of(soft) < order_of(hard)):
            # To requests of a lower priority it does not yield.
            hard_wait = hard is not None and hard.priority <= soft.priority
            plan = self._decide_yielding(groups, soft, hard_wait, now_ms, small_wait)
            if plan is not None:
                return plan
        assert hard is not None  # noqa: S101
        return self._decide_hard(groups, hard, now_ms, small_wait)

    def note_usual(self, variant: int, until_ms: float) -> None:
        """Note the variant of a batch with a deadline and free choice. The mean is reset after a pause."""
        passed_ms = max(0.0, until_ms - self._usual_until_ms)
        self._usual += (1 - math.exp(-passed_ms / _USUAL_MEMORY_MS)) * (variant - self._usual)
        self._usual_until_ms = until_ms

    # With a deadline

    def _decide_hard(self, groups: Sequence[Group], anchor: Group, now_ms: float, small_wait: bool) -> BatchPlan:
        head = anchor.head
        assert head is not None  # noqa: S101
        candidates = anchor.candidates if head.variant is None else (head.variant,)
        slack_ms = anchor.due_ms - now_ms
        costs, piece = self._costs, 0
        growth, has_turns = 1 + costs.margin, costs.longest_turn_ms < math.inf  # more follows in another turn
        load, overlay, requests = anchor.seeds, anchor.overlay, anchor.requests
        for variant in candidates:
            limit = max(head.load, costs.seeds_of_turn(variant)) if has_turns else self._max_seeds
            if anchor.is_large:
                if growth * costs.pieces_ms(variant, head.load, head.overlay) > slack_ms:
                    continue
                piece = self._piece(head, variant, slack_ms, small_wait)
                load, requests = piece + head.overlay_load, 1
                overlay = overlay_part(load, piece, head.changed_seeds)
                limit = max(self._max_seeds, load)
            share = 1.0 if load <= limit else limit / load
            # The least wait of requests that do not join.
            wait_ms = growth * costs.batch_ms(variant, min(limit, load), requests * share, overlay * share)
            if wait_ms > slack_ms:
                continue
            anchor.take = load
            plan = self._try(groups, anchor, variant, piece, limit, overlay, wait_ms, slack_ms, now_ms)
            if plan is not None:
                return plan
        return self._drain(groups, anchor, head, slack_ms, now_ms, small_wait)

    def _try(
        self, groups: Sequence[Group], anchor: Group, variant: int, piece: int, limit: int, overlay: float,
        wait_ms: float, slack_ms: float, now_ms: float,
    ) -> BatchPlan | None:  # fmt: skip
        """Plan a batch by this variant; None if it would be late, or make the next one late. What the anchor gives to
        it (`take`; of large requests a `piece`), `overlay` of which is of that kind, takes `wait_ms` alone."""
        costs = self._costs
        growth = 1 + costs.margin
        total, requests, own_overlay = anchor.take, (1.0 if anchor.is_large else anchor.requests), overlay
        members = [] if anchor.is_large else [anchor]
        for group in groups:
            if group is anchor:
                continue
            group.take = 0
            if group.head is None or group.is_large or not self._may_join(group, variant, wait_ms, now_ms):
                continue
            group.take = group.seeds
            total += group.seeds
            overlay += group.overlay
            requests += group.requests
            members.append(group)
        share = 1.0
        if total > limit and anchor.is_large:
            # The piece is in the batch in any case; the others share the rest.
            left = (limit - anchor.take) / (total - anchor.take)
            requests, overlay = 1 + (requests - 1) * left, own_overlay + (overlay - own_overlay) * left
            for group in members:
                group.take *= left
        elif total > limit:
            share = limit / total
        batch_ms = wait_ms  # what the anchor takes alone
        if len(members) > 1 or anchor.is_large:
            batch_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
        if batch_ms > slack_ms:
            if anchor.is_large or (variant < int(self._usual + 0.5) and variant != anchor.candidates[-1]):
                return None
            # Joining groups must not cost the anchor its usual variant, nor make it late.
            joined = sorted(members[1:], key=_due_ms)
            while joined and batch_ms > slack_ms:
                last = joined.pop()
                last.take = 0
                total -= last.seeds
                overlay -= last.overlay
                requests -= last.requests
                share = min(1.0, limit / total)
                batch_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
            members = [anchor, *joined]
        if batch_ms > room_ms(costs, groups, variant, batch_ms, share, now_ms):
            return None
        if (len(members) > 1 or anchor.is_large) and _makes_late(anchor, members, variant, batch_ms, now_ms):
            return None
        plan = BatchPlan(variant, members, limit)
        if piece:
            plan.large, plan.piece = anchor, piece
        elif total < limit:
            self._add_piece(plan, groups, total, requests, overlay, slack_ms, now_ms)
        return plan

    def _may_join(self, group: Group, variant: int, wait_ms: float, now_ms: float) -> bool:
        """Whether a group may join the batch. `wait_ms`: how long it would wait otherwise, at least."""
        head = group.head
        assert head is not None  # noqa: S101
        if head.variant is not None:
            return head.variant == variant
        if not group.allowed[variant]:
            return False
        if group.is_hurried:
            # Joining answers it sooner, unless a batch of its own would take less of the worker's time.
            costs = self._costs
            seeds, overlay = min(self._max_seeds, group.seeds), min(self._max_seeds, group.overlay)
            own_ms = costs.compute_ms(group.fastest, seeds, overlay)
            return costs.compute_ms(variant, seeds, overlay) - costs.compute_ms(variant, 1) <= own_ms
        if not group.is_hard:
            return variant == group.candidates[0]
        return not self._gains_by_waiting(group, variant, wait_ms, now_ms)

    def _gains_by_waiting(self, group: Group, variant: int, wait_ms: float, now_ms: float) -> bool:
        """Whether waiting would give the group a more accurate variant that has been usual recently."""
        usual = int(self._usual + 0.5)
        if usual >= variant:
            return False
        costs, most = self._costs, self._max_seeds
        left_ms = (group.due_ms - now_ms - wait_ms) / (1 + costs.margin)
        for better in group.candidates:
            if better >= variant:
                return False
            if better < usual:
                continue
            if costs.batch_ms(better, min(most, group.seeds), group.requests, min(most, group.overlay)) <= left_ms:
                return True
        return False

    def _add_piece(
        self, plan: BatchPlan, groups: Sequence[Group], total: float, requests: float, overlay: float,
        slack_ms: float, now_ms: float,
    ) -> None:  # fmt: skip
        """Add a piece of one large request, if that makes no other request late. The piece is small, since others wait
        for it."""
        costs, variant = self._costs, plan.variant
        growth = 1 + costs.margin
        for group in groups:
            head = group.head
            if head is None or not group.is_large:
                continue
            own_slack_ms = group.due_ms - now_ms
            alone_ms = growth * costs.batch_ms(variant, total, requests, overlay)
            if not self._may_join(group, variant, alone_ms, now_ms):
                continue
            carried = head.overlay_load
            whole = self._piece(head, variant, own_slack_ms, True)
            piece = min(whole, int(plan.limit - total) - carried)
            part = overlay_part(piece + carried, piece, head.changed_seeds)
            batch_ms = growth * costs.batch_ms(variant, total + piece + carried, requests + 1, overlay + part)
            group.take = piece + carried
            if (
                piece >= min(whole, max(1, carried))
                and batch_ms <= slack_ms
                and batch_ms <= room_ms(costs, groups, variant, batch_ms, 1.0, now_ms)
            ):
                plan.large, plan.piece = group, piece
                return
            group.take = 0

    def _piece(self, head: Request, variant: int, slack_ms: float, small_wait: bool) -> int:
        """Number of seeds of a large request that the batch may take: no fewer than its overlay counts, so that small
        pieces at most double the work."""
        if small_wait and slack_ms >= _HASTE * self._costs.compute_ms(variant, head.load, head.overlay):
            return min(head.remaining, max(self.small_seeds, head.overlay_load), self._max_seeds)
        return min(head.remaining, self._max_seeds)

    def _drain(
        self, groups: Sequence[Group], anchor: Group, head: Request, slack_ms: float, now_ms: float,
        small_wait: bool,
    ) -> BatchPlan:  # fmt: skip
        """Plan for a queue in which nothing fits: drain it as fast as possible."""
        costs, limit = self._costs, self._max_seeds
        growth = 1 + costs.margin
        variant = self._fastest(anchor, head, anchor.seeds)
        if anchor.is_large:
            piece = self._piece(head, variant, slack_ms, small_wait)
            anchor.take = piece + head.overlay_load
            return BatchPlan(variant, [], limit, anchor, piece)
        members: list[Group] = []
        for group in groups:
            # A batch that is slow because of strict requests would delay the others, not help them.
            group.take = 0
            if group is anchor or (
                group.head is not None
                and group.is_hard
                and not group.is_large
                and self._fastest(group, group.head, group.seeds) == variant
            ):
                group.take = group.seeds
                members.append(group)
        total, requests, overlay = sums_of(members)
        share = min(1.0, limit / total)
        batch_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
        if batch_ms > slack_ms and any(group.priority > anchor.priority for group in members):
            # Requests of a lower priority must not make it so long that the first is late.
            for group in members:
                group.take = group.seeds if group.priority <= anchor.priority else 0
            members = [group for group in members if group.take]
            total, requests, overlay = sums_of(members)
            share = min(1.0, limit / total)
            batch_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
        if batch_ms <= slack_ms:
            # Only expected requests are urgent: they would wait behind a long batch of requests that have time.
            others = [group for group in groups if not group.take]
            longest_ms = room_ms(costs, others, None, batch_ms, 1.0, now_ms)
            if longest_ms < batch_ms:
                fitting = costs.seeds_within(variant, longest_ms / growth, requests / total, overlay / total)
                limit = max(self.small_seeds, fitting)
        alone_ms = costs.batch_ms(variant, min(limit, anchor.seeds), anchor.requests, min(limit, anchor.overlay))
        if alone_ms <= slack_ms < batch_ms and anchor.seeds < total:
            for group in members:
                group.take = anchor.seeds if group is anchor else 0
            if growth * alone_ms <= room_ms(costs, groups, None, growth * alone_ms, 1.0, now_ms):
                # Alone it is in time, and no other request is late.
                return BatchPlan(variant, [anchor], limit)
        if total > self._max_seeds / 2:
            # A backlog: keep batches full, and refuse requests for which that is too late.
            return BatchPlan(variant, members, limit, drains_until_ms=now_ms + batch_ms)
        if growth * costs.batch_ms(variant, head.load, 1, head.overlay) <= slack_ms:
            # Take only as many as leave the first in time, but never shrink a batch for one that is late anyway.
            fitting = costs.seeds_within(variant, slack_ms / growth, requests / total, overlay / total)
            limit = max(head.load, min(limit, fitting))
        return BatchPlan(variant, members, limit)

    def _fastest(self, group: Group, head: Request, seeds: int) -> int:
        if head.variant is not None:
            return head.variant
        if group.fastest == group.fastest_small:
            return group.fastest
        return self._chooser.fastest((group.fastest, group.fastest_small), min(seeds, self._max_seeds), group.kind)

    # Without one, or heavy

    def _wanted(self, group: Group) -> int:
        """The variant that requests without a deadline want, where it depends on how many seeds they have."""
        seeds = min(group.seeds, self._max_seeds)
        if group.is_hurried:
            return self._chooser.fastest((group.fastest, group.fastest_small), seeds, group.kind)
        return self._chooser.most_accurate(group.candidates, seeds, group.kind)

    def _wanted_by_yielding(self, groups: Sequence[Group], head: Request, anchor: Group, now_ms: float) -> int:
        """The variant of a request that yields. Of a heavy one with a deadline it is the most accurate one in time for
        it, for those of its group that are queued behind it, and for the requests that it yields to; or else the
        fastest."""
        if head.variant is not None:
            return head.variant
        if not anchor.is_hard:
            return self._wanted(anchor) if anchor.wanted is None else anchor.wanted
        costs = self._costs
        growth = 1 + costs.margin
        for variant in anchor.candidates:
            batch_ms = growth * costs.batch_ms(variant, head.load, 1, head.overlay)
            all_ms = growth * costs.batch_ms(variant, anchor.seeds, anchor.requests, anchor.overlay)
            all_ms += costs.waits_ms(costs.turns(variant, anchor.seeds, all_ms), has_turn=True)
            if (
                batch_ms <= min(anchor.due_ms - now_ms, room_ms(costs, groups, None, batch_ms, 0.0, now_ms))
                and all_ms <= anchor.last_due_ms - now_ms
            ):
                return variant
        return anchor.fastest

    def _decide_yielding(
        self, groups: Sequence[Group], anchor: Group, hard_wait: bool, now_ms: float, small_wait: bool
    ) -> BatchPlan | None:
        """Plan a batch for requests without a deadline, or for a heavy one; None: those with deadlines go first this
        time."""
        costs, limit = self._costs, self._max_seeds
        growth = 1 + costs.margin
        head = anchor.head
        assert head is not None  # noqa: S101
        variant, carried = self._wanted_by_yielding(groups, head, anchor, now_ms), head.overlay_load
        piece = self._piece(head, variant, math.inf, small_wait) if anchor.is_large else 0
        anchor.take = anchor.seeds
        overlay: float = anchor.overlay
        if piece:
            anchor.take = piece + carried
            overlay = overlay_part(anchor.take, piece, head.changed_seeds)
            limit = max(limit, anchor.take)
        total: float = anchor.take
        requests: float = 1.0 if anchor.is_large else anchor.requests
        members = [] if anchor.is_large else [anchor]
        alone_ms = growth * costs.batch_ms(variant, min(limit, total), requests, min(limit, overlay))
        tightest_ms = math.inf
        for group in groups:
            if group is anchor:
                continue
            group.take = 0
            if group.head is None or group.is_large or not self._may_join(group, variant, alone_ms, now_ms):
                continue
            slack_ms, part = group.due_ms - now_ms, 1.0
            if total + group.seeds > limit:
                if group.priority == anchor.priority or group.is_urgent:
                    continue
                # Some go before some of the anchor's, or fill the batch: small ones would keep all others waiting.
                part = max(0.0, limit - total) / group.seeds
            joined, joined_overlay = total + part * group.seeds, overlay + part * group.overlay
            joined_requests = requests + part * group.requests
            joint_ms = growth * costs.batch_ms(variant, min(limit, joined), joined_requests, min(limit, joined_overlay))
            if joint_ms <= min(slack_ms, tightest_ms):
                group.take = part * group.seeds
                total, overlay, requests = joined, joined_overlay, joined_requests
                members.append(group)
                tightest_ms = min(tightest_ms, slack_ms)
        share = min(1.0, limit / total)
        batch_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
        longest_ms = room_ms(costs, groups, None, batch_ms, share, now_ms)
        if batch_ms > longest_ms:
            fitting = costs.seeds_within(variant, longest_ms / growth, requests / total, overlay / total)
            least = min(piece, max(self.small_seeds, carried)) + carried if piece else head.load
            if fitting >= least and (hard_wait or fitting >= self.small_seeds):
                limit = fitting
            elif hard_wait and now_ms < self.yields_until_ms:
                return None
            else:
                limit = max(least, self.small_seeds)
                share = min(1.0, limit / total)
                turn_ms = growth * costs.batch_ms(variant, min(limit, total), requests * share, overlay * share)
                self.yields_until_ms = now_ms + turn_ms / SOFT_SHARE
        elif anchor.is_heavy:  # two of them in a row would make late what one of them does not
            self.yields_until_ms = max(self.yields_until_ms, now_ms + batch_ms / SOFT_SHARE)
        plan = BatchPlan(variant, members, limit)
        if piece:
            plan.large, plan.piece = anchor, min(piece, limit - carried)
        elif total < limit:
            self._add_piece(plan, groups, total, requests, overlay, min(tightest_ms, longest_ms), now_ms)
        return plan


def _due_ms(group: Group) -> float:
    """When the group's head is due."""
    return group.due_ms


def _makes_late(anchor: Group, members: Sequence[Group], variant: int, batch_ms: float, now_ms: float) -> bool:
    """Whether a batch of `batch_ms` by this variant makes members of a lower priority than the anchor's late, which may
    be due sooner than the anchor, while the anchor allows a faster variant."""
    head = anchor.head
    if variant == anchor.candidates[-1] or (head is not None and head.variant is not None):
        return False
    return any(group.priority > anchor.priority and 0 <= group.due_ms - now_ms < batch_ms for group in members)


def sums_of(groups: Sequence[Group]) -> tuple[int, int, int]:
    """Seeds, requests and seeds of kind OVERLAY of all these groups."""
    seeds, requests, overlay = 0, 0, 0
    for group in groups:
        seeds += group.seeds
        requests += group.requests
        overlay += group.overlay
    return seeds, requests, overlay


_FEW_REQUESTS = 0.5
"""Fewer expected requests count as none, so that a lone request gets the best that an idle worker can give."""


def expects_late(costs: CostModel, groups: Sequence[Group], batch_ms: float) -> bool:
    """Whether requests that are expected during a batch would be late because of it."""
    for group in groups:
        coming = group.request_rate * batch_ms
        if not group.is_urgent or coming < _FEW_REQUESTS:
            continue
        seeds = max(1.0, group.rate * batch_ms)
        need_ms = costs.stretched_ms(group.fastest, seeds, min(seeds, group.overlay_rate * batch_ms))
        waits_ms = costs.waits_ms(costs.turns(group.fastest, seeds, need_ms))
        need_ms = (1 + costs.margin) * (need_ms + costs.overhead_ms(group.fastest, coming))
        if batch_ms + waits_ms + need_ms > group.latency_ms:
            return True
    return False


def room_ms(
    costs: CostModel, groups: Sequence[Group], variant: int | None, batch_ms: float, share: float, now_ms: float
) -> float:
    """Longest time of the batch that leaves the following requests in time.

    The following requests are those left behind and those expected meanwhile, in order of their deadlines, by
    `variant`, or by their fastest variant where that is not allowed or None. Groups give `share` of their `take` to
    the batch. Groups that yield (`Group.is_urgent`) follow when there is time for them. Other models that share the
    worker have their turns before and between those of what follows.
    """
    following: list[tuple[float, int, float, float, float]] = []
    for group in groups:
        if not group.is_urgent:
            continue
        queued, take = group.seeds, group.take
        seeds = left = queued - take * share
        coming = group.request_rate * batch_ms
        if left >= 1:
            requests = group.requests * left / queued
            overlay = group.overlay * left / queued if group.overlay else 0.0
        elif coming >= _FEW_REQUESTS:
            requests = overlay = 0.0
        else:
            continue
        if coming >= _FEW_REQUESTS:
            requests += coming
            seeds += group.rate * batch_ms
            if group.overlay_rate:
                overlay += group.overlay_rate * batch_ms
        due_ms = group.latency_ms
        if queued:
            if not take:
                due_ms = group.due_ms - now_ms
            elif left >= 1:  # the first request that does not fit into the batch
                waited_ms = due_ms - (group.due_ms - now_ms)
                if waited_ms > 0:
                    due_ms -= waited_ms * left / queued
        if due_ms < 0:
            continue  # late already
        use = variant if variant is not None and group.allowed[variant] else group.fastest
        following.append((due_ms, use, seeds, requests, overlay))
    if not following:
        return math.inf
    growth = 1 + costs.margin
    if len(following) == 1:
        due_ms, use, seeds, requests, overlay = following[0]
        need_ms = costs.stretched_ms(use, seeds, overlay)
        if costs.wait_ms:
            due_ms -= costs.waits_ms(costs.turns(use, seeds, need_ms))
        return due_ms - growth * (need_ms + costs.overhead_ms(use, requests))
    following.sort()
    stretched_ms, overhead_ms = costs.stretched_ms, costs.overhead_ms
    longest_ms, need_ms, all_requests, turns = math.inf, 0.0, 0.0, 0.0
    of_variant: dict[int, tuple[float, float, float]] = {}
    for due_ms, use, seeds, requests, overlay in following:
        all_requests += requests
        before, overlay_before, before_ms = of_variant.get(use, (0.0, 0.0, 0.0))
        after_ms = stretched_ms(use, before + seeds, overlay_before + overlay)
        of_variant[use] = before + seeds, overlay_before + overlay, after_ms
        need_ms += after_ms - before_ms
        turns += costs.turns(use, seeds, after_ms - before_ms)
        left_ms = due_ms - costs.waits_ms(turns) - growth * (need_ms + overhead_ms(use, all_requests))
        if left_ms < longest_ms:
            longest_ms = left_ms
            if longest_ms < batch_ms and variant is not None:
                break  # too little already; by how much does not matter
    return longest_ms
