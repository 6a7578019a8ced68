"""Claims that users name in spec.repository.claimName: asked for together, and remembered for half a resync.

They have none of the operator's labels, so no watch reports them, and a watch on every claim of a cluster would cost
more than it tells. What is remembered is shared by all services and pools: a claim that many of them name is asked for
once, and where several are named in one namespace, one list tells of all. Each resync finds the memory expired, so that
a claim which is deleted or replaced is reported as soon as if every service asked by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.handlers.index import Kept
from gnnserve_operator.kinds import CLAIM, Manifest, ObjectRef

_FEW = 2
"""Most claims of one namespace that are asked for one by one; of more, all of the namespace are listed."""
_UNSETTLED_S = 5.0
"""Seconds for which a claim counts as missing, or as being deleted: a person is about to change that."""
_FORGOTTEN_AFTER = 8
"""Times that a memory is valid, after which a claim that no service asks for is dropped."""

_Name = tuple[str, str]
"""Namespace and name of a claim."""


@dataclass(frozen=True, slots=True)
class _Sighting:
    """Answer of the API server about a claim."""

    claim: Kept | None
    good_until: float


class UsersClaims:
    def __init__(self, cluster: Cluster, resync_s: float, clock: Clock) -> None:
        self._cluster = cluster
        self._good_s = resync_s / 2
        self._clock = clock
        self._sightings: dict[_Name, _Sighting] = {}
        self._wanted_at: dict[_Name, float] = {}
        """When each claim was asked for last."""
        self._looking: dict[_Name, asyncio.Task[None]] = {}
        """Requests under way, by the namespace (with an empty name: its list), or by the claim."""

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """The claim; None: there is none of that name. Raises OperatorError."""
        wanted = (namespace, name)
        self._wanted_at[wanted] = self._clock.now()
        sighting = self._sightings.get(wanted)
        if sighting is None or sighting.good_until <= self._clock.now():
            await self._look(wanted)
            sighting = self._sightings[wanted]
        return None if sighting.claim is None else sighting.claim.body()

    async def _look(self, wanted: _Name) -> None:
        """Ask the API server, by the request that is under way already where there is one."""
        self._forget_unwanted()
        namespace = wanted[0]
        is_listed = sum(found == namespace for found, _ in self._wanted_at) > _FEW
        key = (namespace, "") if is_listed else wanted
        looking = self._looking.get(key)
        if looking is None:
            asking = self._list(namespace) if is_listed else self._ask(wanted)
            looking = self._looking[key] = asyncio.create_task(asking, name=f"look for claims of {namespace}")
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
        # Shared: cancelling one waiter must not cancel the request of the others.
        await asyncio.shield(looking)
        if wanted not in self._sightings:  # the list began before this one was wanted
            await self._ask(wanted)

    async def _ask(self, wanted: _Name) -> None:
        asked_at = self._clock.now()
        namespace, name = wanted
        self._note(wanted, await self._cluster.get(ObjectRef(CLAIM.api_version, CLAIM.name, namespace, name)), asked_at)

    async def _list(self, namespace: str) -> None:
        asked_at = self._clock.now()
        wanted = [found for found in self._wanted_at if found[0] == namespace]
        listed = await self._cluster.list_objects(CLAIM, namespace)
        by_name = {claim["metadata"]["name"]: claim for claim in listed}
        for found in wanted:
            self._note(found, by_name.get(found[1]), asked_at)

    def _note(self, wanted: _Name, claim: Manifest | None, asked_at: float) -> None:
        is_settled = claim is not None and not claim["metadata"].get("deletionTimestamp")
        good_s = self._good_s if is_settled else min(_UNSETTLED_S, self._good_s)
        self._sightings[wanted] = _Sighting(None if claim is None else Kept.of(claim), asked_at + good_s)

    def _forget_unwanted(self) -> None:
        oldest = self._clock.now() - _FORGOTTEN_AFTER * self._good_s
        for name in [name for name, wanted_at in self._wanted_at.items() if wanted_at < oldest]:
            del self._wanted_at[name]
            self._sightings.pop(name, None)
