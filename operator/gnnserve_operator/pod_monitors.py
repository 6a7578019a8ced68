"""The PodMonitors that are there: listed from time to time, and not watched.

Their API is not everywhere, and a watch on a missing kind is none when it comes later. One list serves all GNNServices.
A PodMonitor that is not in it may have been made since: before one is created the API server is asked (`apply.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR
from gnnserve_operator.handlers.index import Kept
from gnnserve_operator.handlers.watches import service_of
from gnnserve_operator.kinds import POD_MONITOR, Manifest, ServiceKey
from gnnserve_operator.observed import ObjectRef, observed_ref

_ABSENCE_S = 60.0
"""How long it holds that there is no such API."""


@dataclass(frozen=True, slots=True)
class Listed:
    kept: Mapping[ServiceKey, Mapping[ObjectRef, Kept]]

    def of(self, key: ServiceKey) -> dict[ObjectRef, Manifest]:
        return {ref: kept.body() for ref, kept in self.kept.get(key, {}).items()}


class PodMonitors:
    """`namespaces`: those that are watched; all where none is named."""

    def __init__(self, cluster: Cluster, namespaces: Iterable[str], relist_s: float, clock: Clock) -> None:
        self._cluster = cluster
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._relist_s = relist_s
        self._clock = clock
        self._listed: Listed | None = None
        self._good_until: float | None = None
        """None: nothing is known."""
        self._looking: asyncio.Task[Listed | None] | None = None

    def forget(self) -> None:
        self._good_until = self._looking = None

    async def listed(self) -> Listed | None:
        """None: the API server has no such kind. Raises OperatorError."""
        if self._looking is None or self._looking.done():
            if self._good_until is not None and self._clock.now() < self._good_until:
                return self._listed
            self._looking = asyncio.create_task(self._look(), name="list PodMonitors")
        return await asyncio.shield(self._looking)  # for all who wait: one that is cancelled leaves it to the others

    async def _look(self) -> Listed | None:
        asked_at = self._clock.now()
        if not await self._cluster.has_pod_monitors():
            return self._keep(None, asked_at + _ABSENCE_S)
        found: dict[ServiceKey, dict[ObjectRef, Kept]] = {}
        for namespace in self._namespaces:
            for body in await self._cluster.list_objects(POD_MONITOR, namespace, CHILDREN_SELECTOR):
                found.setdefault(service_of(body), {})[observed_ref(body)] = Kept.of(body)
        return self._keep(Listed(found), asked_at + self._relist_s)

    def _keep(self, listed: Listed | None, good_until: float) -> Listed | None:
        if self._looking is asyncio.current_task():  # else it was told to forget what it saw
            self._listed, self._good_until = listed, good_until
        return listed
