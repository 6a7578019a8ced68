"""How long a batch may take before it makes the requests that follow it late.

It is arithmetic on groups, as in `decision.py`, which asks it before each batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnserve_worker.scheduling.costs import CostModel
from gnnserve_worker.scheduling.queue import Group

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
