"""Observing one GNNService or GNNWorkerPool: what the watches know, what workers answer, what the API server offers.

It is the only I/O before the plan. `observed.py` turns live objects into observations; the plan judges them.

Two kinds of objects are not covered by a watch. PodMonitors are listed from time to time: not every cluster has their
API, a watch on a missing kind does not start when it is installed later, and one list serves all GNNServices. A
PodMonitor that is not in the list may have been created since: before one is created the API server is asked
(`apply.py`). A claim that the user names has none of the operator's labels: `users_claims.py` asks for it. Before the
operator creates a claim, it lists the existing ones at the API server: a watch that lags behind must not lead to two
claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gnnserve_operator import kinds
from gnnserve_operator.belonging import belongs_to, owner_of
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR, SERVICE
from gnnserve_operator.desired.names import pool_name, routing_name, service_name, worker_name
from gnnserve_operator.handlers.index import Index, Kept, service_of
from gnnserve_operator.job_refusals import JobRefusals
from gnnserve_operator.jobs_by_kind import observed_jobs
from gnnserve_operator.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    POD,
    POD_MONITOR,
    Manifest,
    ObjectRef,
    ServiceKey,
    observed_ref,
)
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.observe_pool import observe_member, observe_pool, observe_services
from gnnserve_operator.observed import (
    Observed,
    ObservedDeployment,
    ObservedPlace,
    ObservedPod,
    observed_claim,
    observed_deployment,
    observed_place,
    observed_pod,
    observed_routing,
)
from gnnserve_operator.probe import Answers, Prober
from gnnserve_operator.users_claims import UsersClaims

_ABSENCE_S = 60.0
"""Seconds for which the absence of the API is remembered."""


@dataclass(frozen=True, slots=True)
class Listed:
    kept: Mapping[ServiceKey, Mapping[ObjectRef, Kept]]

    def of(self, key: ServiceKey) -> dict[ObjectRef, Manifest]:
        return {ref: kept.body() for ref, kept in self.kept.get(key, {}).items()}


class PodMonitors:
    """Lists PodMonitors in the watched namespaces."""

    def __init__(self, cluster: Cluster, namespaces: Namespaces, relist_s: float, clock: Clock) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._relist_s = relist_s
        self._clock = clock
        self._listed: Listed | None = None
        self._good_until: float | None = None
        """Time until which the list is valid; None: there is no list."""
        self._looking: asyncio.Task[Listed | None] | None = None

    def forget(self) -> None:
        self._good_until = self._looking = None

    async def listed(self) -> Listed | None:
        """The list; None: the API server has no such kind. Raises OperatorError."""
        if self._looking is None or self._looking.done():
            if self._good_until is not None and self._clock.now() < self._good_until:
                return self._listed
            self._looking = asyncio.create_task(self._look(), name="list PodMonitors")
        # Shared: cancelling one waiter must not cancel the list of the others.
        return await asyncio.shield(self._looking)

    async def _look(self) -> Listed | None:
        asked_at = self._clock.now()
        if not await self._cluster.has_pod_monitors():
            return self._keep(None, asked_at + _ABSENCE_S)
        found: dict[ServiceKey, dict[ObjectRef, Kept]] = {}
        for namespace in self._namespaces.watched:
            for body in await self._cluster.list_objects(POD_MONITOR, namespace, CHILDREN_SELECTOR):
                found.setdefault(service_of(body), {})[observed_ref(body)] = Kept.of(body)
        return self._keep(Listed(found), asked_at + self._relist_s)

    def _keep(self, listed: Listed | None, good_until: float) -> Listed | None:
        if self._looking is asyncio.current_task():  # otherwise `forget` was called meanwhile
            self._listed, self._good_until = listed, good_until
        return listed


class RepositoryClaims:
    def __init__(self, cluster: Cluster, users: UsersClaims) -> None:
        self._cluster = cluster
        self._users = users

    async def of(self, key: ServiceKey, service: Manifest, told: Sequence[Manifest]) -> list[Manifest]:
        """The claims of a service with pods of its own. `service` is the live GNNService, `told` its own claims as the
        watch knows them. Raises OperatorError."""
        named = (service["spec"].get("repository") or {}).get("claimName")
        if named:
            return await self._named(key.namespace, named)
        if any(not claim["metadata"].get("deletionTimestamp") for claim in told):
            return list(told)
        selector = f"{CHILDREN_SELECTOR},{SERVICE}={key.name}"
        listed = await self._cluster.list_objects(CLAIM, key.namespace, selector)
        uid = service["metadata"]["uid"]
        return [claim for claim in listed if _counts(claim, uid)]

    async def of_pool(self, namespace: str, named: str | None, told: Sequence[Manifest]) -> list[Manifest]:
        """The claims of a pool, `told` being its own as the watch knows them. `named`: the claim that its spec names.
        Raises OperatorError."""
        return list(told) if named is None else await self._named(namespace, named)

    async def _named(self, namespace: str, name: str) -> list[Manifest]:
        found = await self._users.get(namespace, name)
        return [] if found is None else [found]


def _counts(claim: Manifest, service_uid: str) -> bool:
    """Whether a claim belongs to the service. One that an earlier service left, orphaned or retained, under any of its
    names, counts: it is reported and may be taken over, since another one in its place would hide it and its revisions.
    """
    if belongs_to(claim, service_uid):
        return True
    owner = owner_of(claim)
    return (owner is None or not owner.is_bound) and not claim["metadata"].get("deletionTimestamp")


_WORKLOAD = frozenset({POD, DEPLOYMENT})
"""Kinds together with which workers' answers are judged."""
_ABOUT_PODS = (POD, DEPLOYMENT, JOB)
"""Kinds that tell which pods are the service's."""
_LOOKS = 2
"""Rounds of asking when pods or Deployments change meanwhile; after the last one answers are judged as they are."""


@dataclass(frozen=True, slots=True)
class Seen:
    observed: Observed
    known: Mapping[ObjectRef, Manifest | None]
    """The live objects, to find what differs; None: searched, and missing."""


class Observer:
    """Observes GNNServices."""

    def __init__(
        self, index: Index, prober: Prober, pod_monitors: PodMonitors, claims: RepositoryClaims, refusals: JobRefusals
    ) -> None:  # fmt: skip
        self._index = index
        self._prober = prober
        self._pod_monitors = pod_monitors
        self._claims = claims
        self._refusals = refusals

    async def observe(self, key: ServiceKey, service: Manifest) -> Seen:
        """Observe a service. `service` is the live GNNService."""
        answers, listed = await asyncio.gather(self._ask(key, service), self._pod_monitors.listed())
        # Read after asking the workers, which may take seconds: a write is valid only for the version that it was
        # decided on, and pods are judged together with their Deployment.
        pool_key = self._index.pool_of(key)
        known = _known(self._index, key) | ({} if listed is None else listed.of(key))
        uid = service["metadata"]["uid"]
        owned = {ref: raw for ref, raw in known.items() if raw is not None and belongs_to(raw, uid)}
        told = [raw for ref, raw in owned.items() if ref.kind == CLAIM.name]
        pool = observe_pool(self._index, key)
        if pool is None:
            claims = await self._claims.of(key, service, told)
        elif pool.spec is None or pool_key is None:
            claims = []
        else:
            lent = self._index.child(pool_key, CLAIM, pool.claim)
            named = pool.spec.repository.claim_name
            claims = await self._claims.of_pool(key.namespace, named, [] if lent is None else [lent])
        observed = self._observed(key, owned, claims, self._pods(key, service), answers)
        observed = await self._refusals.add(key.namespace, observed)
        if pool_key is not None:
            observed = replace(observed, pool=pool, deployment=self._deployment_of_pool(pool_key))
        return Seen(replace(observed, pod_monitor_available=listed is not None), known)

    async def observe_invalid(self, key: ServiceKey, service: Manifest) -> Observed:
        """Observe what answers for a service whose spec cannot be read: its routing table, its Deployment, its pods and
        their answers. `service` is the live GNNService."""
        answers = await self._ask(key, service, as_it_is=True)
        uid, pool_key = service["metadata"]["uid"], self._index.pool_of(key)
        children = self._index.children(key, CONFIG_MAP, DEPLOYMENT)
        owned = {observed_ref(raw): raw for raw in children if belongs_to(raw, uid)}
        observed = self._observed(key, owned, (), self._pods(key, service), answers)
        if pool_key is None:
            return observed
        return replace(observed, pool=observe_pool(self._index, key), deployment=self._deployment_of_pool(pool_key))

    async def _ask(self, key: ServiceKey, service: Manifest, *, as_it_is: bool = False) -> Answers:
        """Ask the pods and the Service. `as_it_is`: by the scheme that the live Service has, whatever the spec says."""
        pool_key = self._index.pool_of(key)
        place = self._place(key) if as_it_is else None
        tls = _wants_tls(service) if place is None else place.speaks_tls
        answers = Answers()
        for _ in range(_LOOKS):
            asked, pods = self._versions(key, pool_key), self._pods(key, service)
            answers = await self._prober.ask(key, pods, tls=tls)
            if self._versions(key, pool_key) == asked:
                break
        return answers

    def _place(self, key: ServiceKey) -> ObservedPlace | None:
        """The place to which the live Service leads."""
        raw = self._index.child(key, kinds.SERVICE, service_name(key.name))
        return None if raw is None else observed_place(raw)

    def _deployment_of_pool(self, pool_key: ServiceKey) -> ObservedDeployment | None:
        raw = self._index.child(pool_key, DEPLOYMENT, pool_name(pool_key.name))
        return None if raw is None else observed_deployment(raw)

    def _versions(self, key: ServiceKey, pool_key: ServiceKey | None) -> frozenset[tuple[str, str]]:
        found = self._index.versions(key, _WORKLOAD)
        return found if pool_key is None else found | self._index.versions(pool_key, _WORKLOAD)

    def _pods(self, key: ServiceKey, service: Manifest) -> tuple[ObservedPod, ...]:
        """The service's pods, and those of its pool with the port at which they answer for it."""
        own, pool = _pods(self._index.children(key, *_ABOUT_PODS), service), observe_pool(self._index, key)
        pool_key = self._index.pool_of(key)
        if pool is None or pool_key is None or service["spec"].get("suspend"):
            return own
        place = ObservedPlace(pool.port or 0, _wants_tls(service))
        if pool.spec is None:
            # Without its list, the Service tells where the pods that are left answer.
            place = self._place(key) or place
        theirs = (observed_pod(raw) for raw in self._index.children(pool_key, POD))
        return (*own, *(replace(pod, port=place.port, speaks_tls=place.speaks_tls) for pod in theirs))

    def _observed(
        self, key: ServiceKey, owned: Mapping[ObjectRef, Manifest], claims: Iterable[Manifest],
        pods: tuple[ObservedPod, ...], answers: Answers,
    ) -> Observed:  # fmt: skip
        routing = _named(owned, CONFIG_MAP.name, routing_name(key.name))
        deployment = _named(owned, DEPLOYMENT.name, worker_name(key.name))
        jobs, embeddings_jobs = observed_jobs(raw for ref, raw in owned.items() if ref.kind == JOB.name)
        return Observed(
            routing=None if routing is None else observed_routing(routing),
            jobs=jobs,
            embeddings_jobs=embeddings_jobs,
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=pods,
            answers=answers.workers,
            owned=tuple(owned),
            claims=tuple(observed_claim(raw) for raw in claims),
            endpoint_answers=answers.endpoint,
        )


class PoolObserver:
    """Observes GNNWorkerPools: their services, too, by what the watches know of them."""

    def __init__(self, index: Index, pod_monitors: PodMonitors, claims: RepositoryClaims) -> None:
        self._index = index
        self._pod_monitors = pod_monitors
        self._claims = claims

    async def observe(self, key: ServiceKey, pool: Manifest) -> Seen:
        """Observe a pool. `pool` is the live GNNWorkerPool."""
        listed = await self._pod_monitors.listed()
        known = _known(self._index, key) | ({} if listed is None else listed.of(key))
        told = [raw for ref, raw in known.items() if ref.kind == CLAIM.name and raw is not None]
        named = ((pool.get("spec") or {}).get("repository") or {}).get("claimName")
        claims = await self._claims.of_pool(key.namespace, named, told)
        return Seen(self._observed(key, pool, known, claims, has_monitors=listed is not None), known)

    async def observe_invalid(self, key: ServiceKey, pool: Manifest) -> Observed:
        """Observe what answers for a pool whose spec cannot be read."""
        return self._observed(key, pool, _known(self._index, key), (), has_monitors=False)

    def _observed(
        self, key: ServiceKey, pool: Manifest, known: Mapping[ObjectRef, Manifest | None], claims: Iterable[Manifest],
        *, has_monitors: bool,
    ) -> Observed:  # fmt: skip
        uid = pool["metadata"]["uid"]
        owned = {ref: found for ref, found in known.items() if found is not None and belongs_to(found, uid)}
        deployment = _named(owned, DEPLOYMENT.name, pool_name(key.name))
        return Observed(
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=tuple(observed_pod(raw) for raw in self._index.children(key, POD)),
            claims=tuple(observed_claim(raw) for raw in claims),
            owned=tuple(owned),
            pod_monitor_available=has_monitors,
            members=tuple(observe_member(self._index, member) for member in self._index.members(key)),
            services=observe_services(self._index, key),
        )


def _known(index: Index, key: ServiceKey) -> dict[ObjectRef, Manifest | None]:
    """The children that the watches know, without pods."""
    return {observed_ref(raw): raw for raw in index.children(key) if raw["kind"] != POD.name}


def _pods(children: Iterable[Manifest], service: Manifest) -> tuple[ObservedPod, ...]:
    found = list(children)
    since = _begun_at(found, service)
    return tuple(observed_pod(raw) for raw in found if raw["kind"] == POD.name and not _is_older(raw, since))


def _named(owned: Mapping[ObjectRef, Manifest], kind: str, name: str) -> Manifest | None:
    return next((raw for ref, raw in owned.items() if (ref.kind, ref.name) == (kind, name)), None)


def _wants_tls(service: Manifest) -> bool:
    return bool((service["spec"].get("endpoint") or {}).get("tls"))


def _begun_at(children: Iterable[Manifest], service: Manifest) -> str:
    """Earliest creation of a pod of the service: before the service itself where it took over a Deployment or a Job."""
    uid = service["metadata"]["uid"]
    makers = (raw for raw in children if raw["kind"] in {DEPLOYMENT.name, JOB.name} and belongs_to(raw, uid))
    return min(str(found["metadata"]["creationTimestamp"]) for found in (service, *makers))


def _is_older(pod: Manifest, begun_at: str) -> bool:
    """Whether the pod belongs to a deleted service of the same name. Its owner, a ReplicaSet, is not watched."""
    return bool(pod["metadata"]["creationTimestamp"] < begun_at)
