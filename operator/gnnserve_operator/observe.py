"""Observing one GNNService or GNNWorkerPool: what the watches know, what workers answer, what the API server offers.

It is the only I/O before the plan. `observed.py` turns live objects into observations; the plan judges them.

Some objects are not covered by a watch. PodMonitors are listed from time to time: not every cluster has their API, a
watch on a missing kind does not start when it is installed later, and one list serves all GNNServices. A PodMonitor
that is not in the list may have been created since: before one is created the API server is asked (`apply.py`). A claim
that the user names has none of the operator's labels: `UsersClaims` asks for it. Events of Jobs without a pod are
listed by `JobRefusals`. Before the operator creates a claim, it lists the existing ones at the API server: a watch that
lags behind must not lead to two claims.

The pool of a service, and the services of a pool, are known from the index of the watches alone: nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gnnserve_api.pods.pool import SERVICES_KEY, PoolServices, counted_bytes, decode_services
from gnnserve_api.spec.service import GNNService
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator import kinds
from gnnserve_operator.apply import NameOccupancy, classify_place
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.metadata import (
    CHILDREN_SELECTOR,
    DIGEST_ANNOTATION,
    SERVICE,
    belongs_to,
    digest_of,
    owner_of,
    pool_name,
    pool_services_name,
    routing_name,
    service_name,
    worker_name,
)
from gnnserve_operator.desired.pool import claim_of, max_delta_of
from gnnserve_operator.errors import RefusedError
from gnnserve_operator.handlers.index import Index, IndexedObject, service_of
from gnnserve_operator.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    POD_MONITOR,
    Manifest,
    ObjectRef,
    Raw,
    ServiceKey,
    observed_ref,
    parse_pool,
    parse_service,
)
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.observed import (
    Answers,
    ObservedDeployment,
    ObservedJob,
    ObservedMember,
    ObservedPlace,
    ObservedPod,
    ObservedPool,
    ObservedState,
    observed_claim,
    observed_deployment,
    observed_jobs,
    observed_place,
    observed_pod,
    observed_routing,
)
from gnnserve_operator.probe import Prober

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

    claim: IndexedObject | None
    good_until: float


class UsersClaims:
    """Claims that users name in spec.repository.claimName: asked for together, and remembered for half a resync.

    They have none of the operator's labels, so no watch reports them, and a watch on every claim of a cluster would
    cost more than it tells. What is remembered is shared by all services and pools: a claim that many of them name is
    asked for once, and where several are named in one namespace, one list tells of all. Each resync finds the memory
    expired, so that a claim which is deleted or replaced is reported as soon as if every service asked by itself."""

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
        self._sightings[wanted] = _Sighting(None if claim is None else IndexedObject.of(claim), asked_at + good_s)

    def _forget_unwanted(self) -> None:
        oldest = self._clock.now() - _FORGOTTEN_AFTER * self._good_s
        for name in [name for name, wanted_at in self._wanted_at.items() if wanted_at < oldest]:
            del self._wanted_at[name]
            self._sightings.pop(name, None)


_REFUSED, _CREATED = "FailedCreate", "SuccessfulCreate"
"""Reasons of the Job controller's events about pods."""
_SECONDS = len("2026-01-01T00:00:00")
"""Length of a time in RFC 3339 without fractions, which only some kinds of times have."""


class JobRefusals:
    """Events of Jobs that have no pod: the only place where Kubernetes tells that the API server refuses it.

    They are listed for one Job at a time, and only while it has been without a pod, or with failed ones alone, for
    longer than its controller takes. An operator without the right to list events says less, and works as well."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def add(self, namespace: str, observed: ObservedState) -> ObservedState:
        """The observation, with what the API server says of pods that it refuses. Raises RetryLaterError."""
        now = self._clock.utc()
        awaiting = [
            job for job in (*observed.jobs, *observed.embeddings_jobs) if job.awaits_pod(observed.pods, now)
        ]  # fmt: skip
        told = await asyncio.gather(*(self._refusal_of(namespace, job) for job in awaiting))
        refusals = {job.name: refusal for job, refusal in zip(awaiting, told, strict=True) if refusal}
        if not refusals:
            return observed
        jobs, embeddings_jobs = (
            tuple(replace(job, refusal=refusals.get(job.name, "")) for job in found)
            for found in (observed.jobs, observed.embeddings_jobs)
        )
        return replace(observed, jobs=jobs, embeddings_jobs=embeddings_jobs)

    async def _refusal_of(self, namespace: str, job: ObservedJob) -> str:
        selector = f"involvedObject.kind={JOB.name},involvedObject.name={job.name}"
        try:
            events = await self._cluster.list_objects(EVENT, namespace, field_selector=selector)
        except RefusedError:
            return ""
        return find_refusal(events, job.pod_due_since)


def find_refusal(events: Iterable[Raw], since: str) -> str:
    """Message of the last refusal, if no pod was created after it; else empty. `since`: when the Job was started
    (RFC 3339): earlier events are of another Job of its name, or of before it was suspended."""
    told = [(_time_of(event), event.get("reason") == _CREATED, str(event.get("message", ""))) for event in events
            if event.get("reason") in {_REFUSED, _CREATED} and _time_of(event) >= since[:_SECONDS]]  # fmt: skip
    _, is_created, message = max(told, default=("", True, ""))
    return "" if is_created else message


def _time_of(event: Raw) -> str:
    """When it happened last, to the second: UTC as text, which sorts."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time)[:_SECONDS] for time in times if time), "")


_ABSENCE_S = 60.0
"""Seconds for which the absence of the API is remembered."""


@dataclass(frozen=True, slots=True)
class ListedObjects:
    kept: Mapping[ServiceKey, Mapping[ObjectRef, IndexedObject]]

    def of(self, key: ServiceKey) -> dict[ObjectRef, Manifest]:
        return {ref: kept.body() for ref, kept in self.kept.get(key, {}).items()}


class PodMonitors:
    """Lists PodMonitors in the watched namespaces."""

    def __init__(self, cluster: Cluster, namespaces: Namespaces, relist_s: float, clock: Clock) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._relist_s = relist_s
        self._clock = clock
        self._listed: ListedObjects | None = None
        self._good_until: float | None = None
        """Time until which the list is valid; None: there is no list."""
        self._looking: asyncio.Task[ListedObjects | None] | None = None

    def forget(self) -> None:
        self._good_until = self._looking = None

    async def listed(self) -> ListedObjects | None:
        """The list; None: the API server has no such kind. Raises OperatorError."""
        if self._looking is None or self._looking.done():
            if self._good_until is not None and self._clock.now() < self._good_until:
                return self._listed
            self._looking = asyncio.create_task(self._look(), name="list PodMonitors")
        # Shared: cancelling one waiter must not cancel the list of the others.
        return await asyncio.shield(self._looking)

    async def _look(self) -> ListedObjects | None:
        asked_at = self._clock.now()
        if not await self._cluster.has_pod_monitors():
            return self._keep(None, asked_at + _ABSENCE_S)
        found: dict[ServiceKey, dict[ObjectRef, IndexedObject]] = {}
        for namespace in self._namespaces.watched:
            for body in await self._cluster.list_objects(POD_MONITOR, namespace, CHILDREN_SELECTOR):
                found.setdefault(service_of(body), {})[observed_ref(body)] = IndexedObject.of(body)
        return self._keep(ListedObjects(found), asked_at + self._relist_s)

    def _keep(self, listed: ListedObjects | None, good_until: float) -> ListedObjects | None:
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
class Observation:
    observed: ObservedState
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

    async def observe(self, key: ServiceKey, service: Manifest) -> Observation:
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
        return Observation(replace(observed, pod_monitor_available=listed is not None), known)

    async def observe_invalid(self, key: ServiceKey, service: Manifest) -> ObservedState:
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
        own, pool = observed_pods(self._index.children(key, *_ABOUT_PODS), service), observe_pool(self._index, key)
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
    ) -> ObservedState:  # fmt: skip
        routing = _named(owned, CONFIG_MAP.name, routing_name(key.name))
        deployment = _named(owned, DEPLOYMENT.name, worker_name(key.name))
        jobs, embeddings_jobs = observed_jobs(raw for ref, raw in owned.items() if ref.kind == JOB.name)
        return ObservedState(
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

    async def observe(self, key: ServiceKey, pool: Manifest) -> Observation:
        """Observe a pool. `pool` is the live GNNWorkerPool."""
        listed = await self._pod_monitors.listed()
        known = _known(self._index, key) | ({} if listed is None else listed.of(key))
        told = [raw for ref, raw in known.items() if ref.kind == CLAIM.name and raw is not None]
        named = ((pool.get("spec") or {}).get("repository") or {}).get("claimName")
        claims = await self._claims.of_pool(key.namespace, named, told)
        return Observation(self._observed(key, pool, known, claims, has_monitors=listed is not None), known)

    async def observe_invalid(self, key: ServiceKey, pool: Manifest) -> ObservedState:
        """Observe what answers for a pool whose spec cannot be read."""
        return self._observed(key, pool, _known(self._index, key), (), has_monitors=False)

    def _observed(
        self, key: ServiceKey, pool: Manifest, known: Mapping[ObjectRef, Manifest | None], claims: Iterable[Manifest],
        *, has_monitors: bool,
    ) -> ObservedState:  # fmt: skip
        uid = pool["metadata"]["uid"]
        owned = {ref: found for ref, found in known.items() if found is not None and belongs_to(found, uid)}
        deployment = _named(owned, DEPLOYMENT.name, pool_name(key.name))
        return ObservedState(
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


def observed_pods(children: Iterable[Manifest], service: Manifest) -> tuple[ObservedPod, ...]:
    """Pods among the children of a service, without those of an earlier one of its name."""
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


def observe_pool(
    index: Index, key: ServiceKey, granted: Mapping[ServiceKey, int] | None = None
) -> ObservedPool | None:  # fmt: skip
    """The pool that a service names; None: it has pods of its own. `granted`: memory that was counted for services, of
    which the watch may not have told yet."""
    pool_key = index.pool_of(key)
    if pool_key is None:
        return None
    raw = index.service(pool_key)
    if raw is None or raw["metadata"].get("deletionTimestamp"):
        return ObservedPool(pool_key.name)
    pool = parse_pool(raw)
    if isinstance(pool, str):
        return ObservedPool(pool_key.name, problem=f"Its spec cannot be read: {pool}. Correct it.")
    claim = claim_of(pool_key.name, pool.spec)
    if pool.spec.repository.claim_name is None and _is_left_by_earlier(index, pool_key, raw["metadata"]["uid"], claim):
        words = f"{CLAIM.name} {claim} is that of an earlier pool of this name: do what its condition Stalled says."
        return ObservedPool(pool_key.name, problem=words)
    entry = observe_services(index, pool_key).of(key.name)
    others, counted = [other for other in index.members(pool_key) if other != key], granted or {}
    return ObservedPool(
        pool_key.name,
        pool.spec,
        claim=claim,
        port=None if entry is None else entry.port,
        taken_bytes=sum(max(counted.get(other, 0), observe_member(index, other).counted_bytes) for other in others),
    )


def _is_left_by_earlier(index: Index, pool_key: ServiceKey, uid: str, claim: str) -> bool:
    """Whether a claim is one that a deleted pool of that name left, in which nothing may be generated for this one."""
    found = index.child(pool_key, CLAIM, claim)
    return classify_place(found, pool_key.name, uid, pool_key.kind) is NameOccupancy.RETAINED


def observe_services(index: Index, pool_key: ServiceKey) -> PoolServices:
    """The list that the pool's workers follow; empty where it is not what the operator wrote."""
    raw = _config_map(index, pool_key, pool_services_name(pool_key.name))
    if raw is None:
        return PoolServices()
    data = raw.get("data") or {}
    annotations = raw["metadata"].get("annotations") or {}
    if annotations.get(DIGEST_ANNOTATION) != digest_of({SERVICES_KEY: data.get(SERVICES_KEY, "")}):
        return PoolServices()
    try:
        return decode_services(data.get(SERVICES_KEY, ""))
    except (msgspec.DecodeError, ValueError):  # another version of the operator wrote it
        return PoolServices()


def observe_member(index: Index, key: ServiceKey) -> ObservedMember:
    raw = index.service(key) or {"metadata": {"uid": ""}, "spec": {}}
    metadata = raw["metadata"]
    service = parse_service(raw) if raw.get("spec") else "it is gone"
    spec = service.spec if isinstance(service, GNNService) else None
    conditions = (raw.get("status") or {}).get("conditions") or ()
    told_of: dict[str, Raw] = {found["type"]: found for found in conditions}
    ready, available = (told_of.get(kind, {}) for kind in (ConditionType.READY, ConditionType.AVAILABLE))
    told = _config_map(index, key, routing_name(key.name))
    routing = None if told is None else observed_routing(told)
    table, result = (None, None) if routing is None else (routing.table, routing.result)
    counted = 0
    if table is not None and result is not None:
        counted = counted_bytes(result.revision_bytes, 0 if spec is None else max_delta_of(spec))
    is_ready = ready.get("status") == "True"
    return ObservedMember(
        name=key.name,
        uid=metadata["uid"],
        created_at=str(metadata.get("creationTimestamp", "")),
        deleting=bool(metadata.get("deletionTimestamp")),
        spec=spec,
        ready=is_ready,
        available=available.get("status") == "True",
        message="" if is_ready else str(ready.get("message", "")),
        is_refused=not is_ready and ready.get("reason") == Reason.POOL_FULL,
        revision=None if table is None else table.revision,
        counted_bytes=counted,
    )


def _config_map(index: Index, key: ServiceKey, name: str) -> Manifest | None:
    """The ConfigMap of that name that belongs to the present owner."""
    owner = index.service(key)
    if owner is None:
        return None
    found = (raw for raw in index.children(key, CONFIG_MAP) if raw["metadata"]["name"] == name)
    return next((raw for raw in found if belongs_to(raw, owner["metadata"]["uid"])), None)
