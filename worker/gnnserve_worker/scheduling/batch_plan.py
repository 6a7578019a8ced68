"""A planned batch (`decision.py` makes it, `closing.py` takes its requests), and sums over groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gnnserve_worker.scheduling.waiting import Group


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


def due_ms(group: Group) -> float:
    """When the group's head is due."""
    return group.due_ms


def makes_late(anchor: Group, members: Sequence[Group], variant: int, batch_ms: float, now_ms: float) -> bool:
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
