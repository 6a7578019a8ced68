"""The queued requests, and which of them go into a batch of limited size."""

from __future__ import annotations

from itertools import islice

from gnnserve_worker.scheduling.waiting import Group, QueuedRequest

_MOST_PASSED_OVER = 8
"""Most requests that are passed over as too large for the rest of a batch, in the search for smaller ones."""


class Queue:
    def __init__(self, small_seeds: int) -> None:
        """`small_seeds`: largest load of a request that counts as small."""
        self.seeds = 0
        """Load of all queued requests, in seeds."""
        self.small = 0
        """Number of small requests."""
        self.has_overlays = False
        """False: the load of each queued request is its seeds."""
        self._small_seeds = small_seeds
        self._group_of: dict[int, Group] = {}
        """Group of each queued request, by the request's key."""

    def __bool__(self) -> bool:
        return bool(self._group_of)

    @property
    def keys(self) -> list[int]:
        return list(self._group_of)

    def add(self, group: Group, waiting: QueuedRequest) -> None:
        group.add(waiting)
        self._group_of[waiting.request.key] = group
        self.seeds += waiting.load
        request = waiting.request
        if request.seeds + request.overlay_load <= self._small_seeds:
            self.small += 1

    def pop(self, group: Group) -> QueuedRequest:
        """Remove and return the group's first request, which must exist."""
        waiting = group.pop()
        self._forget(waiting)
        return waiting

    def remove(self, group: Group, waiting: QueuedRequest) -> None:
        group.remove(waiting)
        self._forget(waiting)

    def cancel(self, key: int) -> bool:
        """Remove the request of this key; False: it is not queued."""
        group = self._group_of.get(key)
        if group is None:
            return False
        self.remove(group, group.waiting[key])
        return True

    def take(self, members: list[Group], limit: int, *, needs_one: bool) -> list[QueuedRequest]:
        """Remove and return the requests that are due first, up to a load of `limit` seeds. `needs_one`: the first is
        taken whatever its load, since a batch without requests would be none."""
        chosen: list[QueuedRequest] = []
        if sum([group.seeds for group in members]) <= limit:
            for group in members:
                chosen += group.take_all()
            for waiting in chosen:
                self._forget(waiting)
            return chosen
        passed_over: list[tuple[Group, QueuedRequest]] = []
        left = limit
        while left and len(passed_over) < _MOST_PASSED_OVER:
            first = _first_due(members)
            if first is None:
                break
            group, waiting = first
            group.pop()
            if waiting.load > left and (chosen or not needs_one):
                passed_over.append((group, waiting))
                continue
            self._forget(waiting)
            chosen.append(waiting)
            left = max(0, left - waiting.load)
        for group, waiting in passed_over:
            group.add(waiting)
        return chosen

    def _forget(self, waiting: QueuedRequest) -> None:
        """Drop a request that its group no longer has."""
        request = waiting.request
        del self._group_of[request.key]
        self.seeds -= waiting.load
        if request.seeds + request.overlay_load <= self._small_seeds:
            self.small -= 1


def _first_due(members: list[Group]) -> tuple[Group, QueuedRequest] | None:
    best: tuple[Group, QueuedRequest] | None = None
    for group in members:
        first = group.first()
        if first is not None and (best is None or first.order_ms < best[1].order_ms):
            best = (group, first)
    return best


def last_of(group: Group) -> QueuedRequest:
    """The request of a group with requests that came last; one that is computed in part only where all are."""
    if group.is_large:  # a few, and each is queued again after a piece of it
        return max(group.waiting.values(), key=lambda waiting: (waiting.variant is None, waiting.request.key))
    # In the order in which they came, but for those that the last batch passed over.
    tail = islice(reversed(group.waiting.values()), _MOST_PASSED_OVER + 1)
    return max(tail, key=lambda waiting: waiting.request.key)
