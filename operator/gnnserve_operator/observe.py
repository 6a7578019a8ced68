"""What is there for one GNNService: what the watches told, what the workers say, and what the API server offers.

The only I/O before the plan. Turning live objects into observations is `observed.py`, judging them is the plan's.

Two kinds of objects no watch tells of. PodMonitors are listed from time to time: their API is not everywhere, a watch
on a missing kind is none when it comes later, and one list serves all GNNServices. A PodMonitor that is not in it may
have been made since: before one is created the API server is asked (`apply.py`). A claim that the user names has none
of the operator's labels, so it is asked for at each look. And before the operator makes a claim, the API server is
asked for those that are there: a watch that is behind must not lead to two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR, SERVICE
from gnnserve_operator.desired.names import routing_name, worker_name
from gnnserve_operator.handlers.index import Index, Kept
from gnnserve_operator.handlers.watches import service_of
from gnnserve_operator.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, JOB, POD, POD_MONITOR, Manifest, ServiceKey
from gnnserve_operator.observed import (
    ObjectRef,
    Observed,
    ObservedPod,
    Rejection,
    Wait,
    controller_of,
    observed_claim,
    observed_deployment,
    observed_job,
    observed_pod,
    observed_ref,
    observed_routing,
)
from gnnserve_operator.probe import Answers, Prober
from gnnserve_routing.decision import RoutingDecision
from gnnserve_routing.signals import Answer, Silence

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


class RepositoryClaims:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of(self, key: ServiceKey, service: Manifest, told: Sequence[Manifest]) -> list[Manifest]:
        """`service` is the live GNNService, `told` its own claims by the watch. Raises OperatorError."""
        named = (service["spec"].get("repository") or {}).get("claimName")
        if named:
            found = await self._cluster.get(ObjectRef(CLAIM.api_version, CLAIM.name, key.namespace, named))
            return [] if found is None else [found]
        if any(not claim["metadata"].get("deletionTimestamp") for claim in told):
            return list(told)
        selector = f"{CHILDREN_SELECTOR},{SERVICE}={key.name}"
        listed = await self._cluster.list_objects(CLAIM, key.namespace, selector)
        uid = service["metadata"]["uid"]
        return [claim for claim in listed if _counts(claim, uid)]


def _counts(claim: Manifest, service_uid: str) -> bool:
    """One that an orphaned service left, under whichever of its names, is to be said to be there and may be taken
    over: another in its place would hide it, and the revisions in it."""
    owner = controller_of(claim)
    if owner is None:
        return not claim["metadata"].get("deletionTimestamp")
    return bool(owner["uid"] == service_uid)


_WORKLOAD = frozenset({POD, DEPLOYMENT})
"""What answers are judged with."""
_LOOKS = 2
"""At what changes while workers are asked; then they are judged by what they answered before it did."""


@dataclass(frozen=True, slots=True)
class Seen:
    observed: Observed
    known: Mapping[ObjectRef, Manifest | None]
    """The objects themselves, for telling what differs from them; None: looked for, and not there."""


class Observer:
    def __init__(
        self, index: Index, prober: Prober, pod_monitors: PodMonitors, claims: RepositoryClaims
    ) -> None:  # fmt: skip
        self._index = index
        self._prober = prober
        self._pod_monitors = pod_monitors
        self._claims = claims

    def forget_pod_monitors(self) -> None:
        """They are not as they were listed any more."""
        self._pod_monitors.forget()

    async def observe(
        self,
        key: ServiceKey,
        service: Manifest,
        *,
        rejections: tuple[Rejection, ...] = (),
        routed: RoutingDecision | None = None,
        measured: Answer | Silence | None = None,
        begun_job: str | None = None,
        wait: Wait | None = None,
    ) -> Seen:
        """`service` is the live GNNService; what follows is remembered."""
        for _ in range(_LOOKS):
            asked, before = self._index.versions(key, _WORKLOAD), self._index.children(key)
            answers, listed = await asyncio.gather(
                self._prober.ask(key, _pods(before, service), tls=_wants_tls(service)), self._pod_monitors.listed()
            )
            if self._index.versions(key, _WORKLOAD) == asked:
                break
        # After the asking, which may take seconds: a write holds only for the version that it was decided on, and
        # pods are judged together with the Deployment that they are of.
        children = self._index.children(key)
        known: dict[ObjectRef, Manifest | None] = {
            observed_ref(raw): raw for raw in children if raw["kind"] != POD.name
        }  # fmt: skip
        known |= {} if listed is None else listed.of(key)
        uid = service["metadata"]["uid"]
        owned = {ref: raw for ref, raw in known.items() if raw is not None and _is_controlled(raw, uid)}
        claims = await self._claims.of(key, service, [raw for ref, raw in owned.items() if ref.kind == CLAIM.name])
        observed = self._observed(key, owned, claims, _pods(children, service), answers)
        observed = replace(
            observed, rejections=rejections, routed=routed, measured=measured, begun_job=begun_job, wait=wait,
            pod_monitor_available=listed is not None,
        )  # fmt: skip
        return Seen(observed, known)

    def _observed(
        self, key: ServiceKey, owned: Mapping[ObjectRef, Manifest], claims: Iterable[Manifest],
        pods: tuple[ObservedPod, ...], answers: Answers,
    ) -> Observed:  # fmt: skip
        routing = _named(owned, CONFIG_MAP.name, routing_name(key.name))
        deployment = _named(owned, DEPLOYMENT.name, worker_name(key.name))
        return Observed(
            routing=None if routing is None else observed_routing(routing),
            jobs=tuple(observed_job(raw) for ref, raw in owned.items() if ref.kind == JOB.name),
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=pods,
            answers=answers.workers,
            owned=tuple(owned),
            claims=tuple(observed_claim(raw) for raw in claims),
            endpoint_answers=answers.endpoint,
        )


def _pods(children: Iterable[Manifest], service: Manifest) -> tuple[ObservedPod, ...]:
    found = list(children)
    since = _begun_at(found, service)
    return tuple(observed_pod(raw) for raw in found if raw["kind"] == POD.name and not _is_older(raw, since))


def _named(owned: Mapping[ObjectRef, Manifest], kind: str, name: str) -> Manifest | None:
    return next((raw for ref, raw in owned.items() if (ref.kind, ref.name) == (kind, name)), None)


def _wants_tls(service: Manifest) -> bool:
    return bool((service["spec"].get("endpoint") or {}).get("tls"))


def _is_controlled(raw: Manifest, uid: str) -> bool:
    owner = controller_of(raw)
    return owner is not None and owner["uid"] == uid


def _begun_at(children: Iterable[Manifest], service: Manifest) -> str:
    """When its first pod may have been made: before the service itself where it took over a Deployment or a Job."""
    uid = service["metadata"]["uid"]
    makers = (raw for raw in children if raw["kind"] in {DEPLOYMENT.name, JOB.name} and _is_controlled(raw, uid))
    return min(str(found["metadata"]["creationTimestamp"]) for found in (service, *makers))


def _is_older(pod: Manifest, begun_at: str) -> bool:
    """A pod of a deleted service of the same name. Pods are owned by ReplicaSets, which are not watched."""
    return bool(pod["metadata"]["creationTimestamp"] < begun_at)
