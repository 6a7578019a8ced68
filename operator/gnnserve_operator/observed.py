"""Observations of a GNNService or GNNWorkerPool, of its children and of its pool or services: the part of live objects
that decisions need.

It is pure: `observe` lists and asks, and converts the results into these types by the functions below. They accept
whatever the API server may answer; a missing field belongs to an object that is not complete yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from gnnserve_api.pods.generation import GENERATION_KEY, GenerationResult, decode_result
from gnnserve_api.pods.interface import COMPACT_VARIABLE, HTTP_PORT, HTTP_PORT_NAME, HTTPS_PORT_NAME
from gnnserve_api.pods.pool import PoolServices
from gnnserve_api.pods.routing import ROUTING_KEY, Damage, Route, RoutingTable, decode_routing
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.job import embeddings_made_by
from gnnserve_operator.desired.metadata import (
    BRING_BACK_ANNOTATION,
    CLAIM_ANNOTATION,
    COMPONENT,
    DIGEST_ANNOTATION,
    JOB_NAME,
    QUEUE_NAME,
    RECIPE,
    REPAIR_ANNOTATION,
    TEMPLATE_ANNOTATION,
    WAITS_ANNOTATION,
    Component,
    Conflict,
    Owner,
    bound_to,
    declared_queue_labels,
    declares_suspend,
    log_uid_in,
    owner_of,
)
from gnnserve_operator.desired.pod import own_container, repository_claim_in, variable_in
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord, decode_repairs, routing_digest
from gnnserve_operator.fleet import IDLE, NO_LIMIT, UNDER_WAY, ServiceTurns, Stance, Standing, Standings
from gnnserve_operator.kinds import ObjectRef, Raw
from gnnserve_routing.decision import RoutingDecision
from gnnserve_routing.signals import QueryAnswer, Silence


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The GNNWorkerPool that a service names, as far as the service depends on it."""

    name: str
    spec: GNNWorkerPoolSpec | None = None
    """None: there is no pool of that name, or it cannot be used."""
    problem: str = ""
    """Why it cannot be used, and what to do; empty: it can."""
    claim: str = ""
    """Name of the claim with the repository of all its services."""
    port: int | None = None
    """The port at which the pool's workers answer for the service; None: it is not in their list."""
    taken_bytes: int = 0
    """Memory that is counted for its other services."""


@dataclass(frozen=True, slots=True)
class ObservedMember:
    """A GNNService that names a pool, as the pool sees it."""

    name: str
    uid: str
    created_at: str = ""
    """RFC 3339 in UTC, which sorts as text."""
    deleting: bool = False
    spec: GNNServiceSpec | None = None
    """None: it cannot be read."""
    ready: bool = False
    """Whether its condition Ready is true."""
    available: bool = False
    """Whether its condition Available is true."""
    message: str = ""
    """That of its condition Ready, where it is not true."""
    is_refused: bool = False
    """Whether its revision does not fit."""
    revision: str | None = None
    """The revision that workers are told to answer from."""
    counted_bytes: int = 0
    """Memory that is counted for it; 0: nothing is answered from."""

    @property
    def is_served(self) -> bool:
        """Whether workers are to answer for it."""
        return self.spec is not None and not self.deleting and not self.spec.suspend


POD_CREATION = timedelta(seconds=1)
"""Time that a Job's controller has to create the pod before its events are read for a refusal."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A child that the API server refused when it was last applied (400, 403, 422)."""

    ref: ObjectRef
    message: str
    """What the API server said."""


@dataclass(frozen=True, slots=True)
class ObservedRouting:
    """The routing ConfigMap. `table` and `result` are None unless it is word for word what the operator wrote."""

    table: RoutingTable | None = None
    result: GenerationResult | None = None
    claim_uid: str = ""
    """uid of the claim that holds the revision; empty where none is named."""
    repairs: RepairRecord = NO_REPAIRS
    """How often a damaged revision was generated again."""


@dataclass(frozen=True, slots=True)
class ObservedClaim:
    """A PersistentVolumeClaim of the repository: one that the operator made, or the one that the user names."""

    uid: str
    created_at: str
    """RFC 3339 in UTC, which sorts as text."""
    deleting: bool = False
    """It is being deleted: it exists as long as a pod on a node uses it, and no further pod can start with it."""
    requested: str = ""
    """The storage that its spec asks for, a quantity."""
    capacity: str = ""
    """The storage that it has, a quantity; empty until a volume is bound to it."""
    name: str = ""
    volume: str = ""
    """Name of its PersistentVolume; empty until it is bound."""
    is_retained: bool = False
    """Whether it stays when its owner is deleted."""
    bound_to: tuple[Owner, ...] = ()
    """Objects with which it is deleted."""
    log_uid: str = ""
    """The uid of the log of changes with which it is to be brought back; empty: it says none."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    name: str
    recipe: str
    """Recipe of its label; empty where the label was removed."""
    claim: str = ""
    """Name of the claim that it generates into."""
    created_at: str = ""
    """RFC 3339 in UTC, which sorts as text."""
    deleting: bool = False
    suspended: bool = False
    """Whether its spec suspends it."""
    is_resuming: bool = False
    """Whether it was let go, and its controller has yet to see that."""
    held: bool = False
    """Whether it is the operator that suspends it."""
    queue: str = ""
    """Queue of the cluster that its labels name; empty: none."""
    queue_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of a queue that the operator gave it, as they are now."""
    succeeded: bool = False
    failed: bool = False
    is_given_up: bool = False
    """Whether its controller ends its pods, to have it fail once they have gone."""
    failure_reason: str = ""
    """Reason of its condition Failed: BackoffLimitExceeded, DeadlineExceeded, PodFailurePolicy."""
    failure_message: str = ""
    retries: int | None = None
    deadline_seconds: int | None = None
    started_at: str = ""
    """RFC 3339; when it was started, or resumed. Empty before."""
    succeeded_at: str = ""
    """RFC 3339; empty: it did not succeed, or the time is not known."""
    failed_at: str = ""
    """RFC 3339; empty: it did not fail, or the time is not known."""
    repair: int | None = None
    """Number of the repair that it was made for; None: for none."""
    compacts: str = ""
    """The revision that it makes anew at the end of the log of changes; empty: it makes what the spec says."""
    makes_embeddings: bool = False
    """Whether it makes embeddings of a revision, and no revision."""
    makes: tuple[str, str] = ("", "")
    """The revision and the part of the spec that it makes embeddings of; empty for a Job that generates."""
    waits_for: str = ""
    """What it waited for when the operator looked at it last, in words; empty: it computed."""
    refusal: str = ""
    """Why the API server refuses its pod, in its own words; empty: it does not, or has not been asked about."""

    @property
    def is_over(self) -> bool:
        return self.succeeded or self.failed

    @property
    def is_suspended_elsewhere(self) -> bool:
        """Whether another than the operator suspends it: a queue of the cluster, or a person."""
        return self.suspended and not self.held and not self.is_over

    @property
    def pod_due_since(self) -> str:
        """When its controller could create its pod (RFC 3339); empty: it creates none, or was let go just now."""
        if self.suspended or self.is_resuming or self.deleting or self.is_over or self.is_given_up:
            return ""
        return self.started_at or self.created_at

    def awaits_pod(self, pods: Iterable[ObservedPod], now: datetime, patience: timedelta = POD_CREATION) -> bool:
        """Whether it has had none but failed pods for longer than `patience` after its start. At its deadline it loses
        its pods, gets no others, and is said to have failed a moment later."""
        since = self.pod_due_since
        if not since or any(pod.job == self.name and pod.phase != "Failed" for pod in pods):
            return False
        waited = now - datetime.fromisoformat(since)
        is_late = self.deadline_seconds is not None and waited >= timedelta(seconds=self.deadline_seconds)
        return waited > patience and not is_late


@dataclass(frozen=True, slots=True)
class ObservedDeployment:
    replicas: int = 0
    """Replicas that its spec asks for."""
    template_digest: str = ""
    """Digest of the pod template that was applied last."""
    rolled_out: bool = False
    """Its controller has seen the spec, and every pod is of the newest template."""
    ready_replicas: int = 0
    """Ready pods as its controller counts them, which may be earlier or later than the watch on pods."""
    progress_stopped: bool = False
    """No progress within progressDeadlineSeconds."""
    replica_failure: str | None = None
    """Why pods cannot be created: a quota, an admission policy."""
    deleting: bool = False
    claim: str = ""
    """Name of the claim that pods mount which start now."""
    claim_uid: str = ""
    """uid of that claim; empty where none is named."""
    successor_uid: str = ""
    """uid of the claim that took the place of a lost one, where the pod template names it; else empty."""


@dataclass(frozen=True, slots=True)
class ContainerWaiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Termination:
    exit_code: int
    reason: str = ""
    message: str = ""
    """What the program left at /dev/termination-log, or the tail of its log."""
    finished_at: str = ""
    """RFC 3339; empty: not known."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod. Its states are those of its one container of ours."""

    name: str
    component: str
    """A value of `Component`."""
    job: str = ""
    """Name of its Job; empty for workers."""
    created_at: str = ""
    phase: str = "Pending"
    ip: str = ""
    image: str = ""
    ready: bool = False
    """Whether its condition Ready is true and it is not being deleted."""
    ready_since: str = ""
    """RFC 3339; when that condition changed last. Empty: not known."""
    deleting: bool = False
    unschedulable: str | None = None
    """The scheduler's message while it finds no node."""
    pod_reason: str = ""
    """Reason of the pod as a whole, such as Evicted."""
    pod_message: str = ""
    running: bool = False
    waiting: ContainerWaiting | None = None
    terminated: Termination | None = None
    last_terminated: Termination | None = None
    beside: tuple[str, ...] = ()
    """Names of other containers that have not ended. Sidecars that are init containers are none of them: they end with
    ours."""
    memory_limit: str | None = None
    claim: str = ""
    """Name of the claim that it mounts as the repository."""
    port: int = HTTP_PORT
    """Port at which it answers for the service that it is observed for; 0: none yet, in a pool."""
    speaks_tls: bool = False
    """Whether its port's name says TLS: while pods are replaced, some may speak it and others not."""

    @property
    def is_worker(self) -> bool:
        return self.component == Component.WORKER

    @property
    def can_be_asked(self) -> bool:
        """Whether its HTTP server may answer `GET /v1/route`."""
        return self.is_worker and self.running and bool(self.ip and self.port) and not self.deleting


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's answer to `GET /v1/route`."""

    pod: str
    route: Route | None = None
    problem: str | None = None
    """Why there is no route: the text of a 503, or why nothing came back."""
    damaged: Damage | None = None
    """Damage that it found in the revision that it should answer from."""
    is_silent: bool = False
    """Whether nothing came back at all, not even a refusal."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of a service's workers, and of its endpoint."""

    workers: tuple[WorkerAnswer, ...] = ()
    endpoint: Route | None = None
    """The route that a client gets through the Service; None: it does not answer, or was not asked."""


@dataclass(frozen=True, slots=True)
class ServiceWait:
    """Event that a service waits for, as its status says."""

    words: str
    since: datetime
    """When the status said so first, without a change since."""


@dataclass(frozen=True, slots=True)
class ObservedState:
    routing: ObservedRouting | None = None
    """The routing ConfigMap; None: there is none."""
    claims: tuple[ObservedClaim, ...] = ()
    """Claims of the repository: the operator's, also while they are being deleted; or the one that the user names."""
    jobs: tuple[ObservedJob, ...] = ()
    """Jobs of generation that this GNNService controls."""
    embeddings_jobs: tuple[ObservedJob, ...] = ()
    """Its Jobs that make embeddings."""
    deployment: ObservedDeployment | None = None
    pods: tuple[ObservedPod, ...] = ()
    """Pods of workers and of generation."""
    answers: tuple[WorkerAnswer, ...] = ()
    """Answers of the worker pods that can be asked."""
    conflicts: tuple[Conflict, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Refusals of the last attempt to apply; kept until the next attempt."""
    owned: tuple[ObjectRef, ...] = ()
    """All children that exist, for finding those that no longer should."""
    pod_monitor_available: bool = False
    """Whether the API server knows PodMonitor."""
    routed: RoutingDecision | None = None
    """The slow loop's last decision; None: none since the operator started."""
    measured: QueryAnswer | Silence | None = None
    """Prometheus' answer since then; None: nothing new."""
    leaving: tuple[ObjectRef, ...] = ()
    """Objects under a child's name that are about to go: being deleted, or of a deleted service of that name."""
    wait: ServiceWait | None = None
    """The wait that the last plan found; None: there was none, or the operator has just started."""
    begun_job: str | None = None
    """A Job that was created and that no event has reported yet; None: there is none."""
    turns: ServiceTurns = NO_LIMIT
    """The turns that the other services leave."""
    pool: ObservedPool | None = None
    """The pool that the service names, to which Deployment and workers belong then; None: it has pods of its own."""
    endpoint_answers: Route | None = None
    """The answer of the Service's address to `GET /v1/route`."""
    members: tuple[ObservedMember, ...] = ()
    """Services that name the GNNWorkerPool, to which Deployment, pods and claims belong then; of a GNNService none."""
    services: PoolServices = field(default_factory=PoolServices)
    """List that the workers of the GNNWorkerPool follow; of a GNNService empty."""


@dataclass(frozen=True, slots=True)
class ObservedPlace:
    """The place to which the live Service leads."""

    port: int
    """Port of the workers; 0: the one that pods have a name for."""
    speaks_tls: bool


def observed_place(raw: Raw) -> ObservedPlace | None:
    """The place of requests over HTTP; None: the Service leads nowhere that the operator knows."""
    for port in (raw.get("spec") or {}).get("ports") or ():
        if port.get("name") in {HTTP_PORT_NAME, HTTPS_PORT_NAME}:
            target = port.get("targetPort")
            return ObservedPlace(target if isinstance(target, int) else 0, port["name"] == HTTPS_PORT_NAME)
    return None


def observed_routing(raw: Raw) -> ObservedRouting:
    data = raw.get("data") or {}
    annotations = raw.get("metadata", {}).get("annotations") or {}
    if annotations.get(DIGEST_ANNOTATION) != routing_digest(data):
        return ObservedRouting()
    try:
        return ObservedRouting(
            decode_routing(data[ROUTING_KEY]),
            decode_result(data[GENERATION_KEY]),
            str(annotations.get(CLAIM_ANNOTATION, "")),
            decode_repairs(annotations.get(REPAIR_ANNOTATION)),
        )
    except (KeyError, msgspec.DecodeError):
        # Written by another version of the operator: the Job's result is used instead.
        return ObservedRouting()


def observed_claim(raw: Raw) -> ObservedClaim:
    metadata, spec, status = raw.get("metadata", {}), raw.get("spec") or {}, raw.get("status") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    return ObservedClaim(
        str(metadata.get("uid", "")),
        str(metadata.get("creationTimestamp", "")),
        bool(metadata.get("deletionTimestamp")),
        requested=str(requests.get("storage") or ""),
        capacity=str((status.get("capacity") or {}).get("storage") or ""),
        name=str(metadata.get("name", "")),
        volume=str((raw.get("spec") or {}).get("volumeName") or ""),
        is_retained=(owner := owner_of(raw)) is not None and not owner.is_bound,
        bound_to=bound_to(raw),
        log_uid=log_uid_in(str((metadata.get("annotations") or {}).get(BRING_BACK_ANNOTATION, ""))),
    )


def observed_job(raw: Raw) -> ObservedJob:
    metadata, spec = raw.get("metadata", {}), raw.get("spec", {})
    labels, template = metadata.get("labels") or {}, spec.get("template") or {}
    makes_embeddings = labels.get(COMPONENT) == Component.EMBEDDINGS
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    failed, complete = _condition(raw, "Failed"), _condition(raw, "Complete")
    return ObservedJob(
        name=str(metadata.get("name", "")),
        recipe=str(labels.get(RECIPE, "")),
        claim=repository_claim_in(template),
        created_at=str(metadata.get("creationTimestamp", "")),
        deleting=bool(metadata.get("deletionTimestamp")),
        suspended=bool(spec.get("suspend")),
        is_resuming=not spec.get("suspend") and _is_true(_condition(raw, "Suspended")),
        held=declares_suspend(raw),
        queue=str(labels.get(QUEUE_NAME, "")),
        queue_labels=declared_queue_labels(raw),
        succeeded=_is_true(complete),
        failed=_is_true(failed),
        is_given_up=_is_true(_condition(raw, "FailureTarget")),
        failure_reason=str(failed.get("reason", "")),
        failure_message=str(failed.get("message", "")),
        retries=spec.get("backoffLimit"),
        deadline_seconds=spec.get("activeDeadlineSeconds"),
        started_at=str((raw.get("status") or {}).get("startTime") or ""),
        succeeded_at=str(complete.get("lastTransitionTime") or "") if _is_true(complete) else "",
        failed_at=str(failed.get("lastTransitionTime") or "") if _is_true(failed) else "",
        repair=int(repair) if (repair := annotations.get(REPAIR_ANNOTATION, "")).isdecimal() else None,
        compacts=variable_in(template, COMPACT_VARIABLE),
        waits_for=str(annotations.get(WAITS_ANNOTATION, "")),
        makes_embeddings=makes_embeddings,
        makes=embeddings_made_by(template) if makes_embeddings else ("", ""),
    )


def observed_deployment(raw: Raw) -> ObservedDeployment:
    metadata, spec, status = raw.get("metadata", {}), raw.get("spec", {}), raw.get("status") or {}
    total, updated = int(status.get("replicas") or 0), int(status.get("updatedReplicas") or 0)
    failure, progressing = _condition(raw, "ReplicaFailure"), _condition(raw, "Progressing")
    template: Raw = spec.get("template") or {}
    # Until then the status is that of an earlier spec, which the edit may have mended.
    is_of_this_spec = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    return ObservedDeployment(
        replicas=int(spec.get("replicas", 1)),
        template_digest=str((metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION, "")),
        rolled_out=is_of_this_spec and total == updated,
        ready_replicas=int(status.get("readyReplicas") or 0),
        progress_stopped=is_of_this_spec and progressing.get("reason") == "ProgressDeadlineExceeded",
        replica_failure=str(failure.get("message", "")) if is_of_this_spec and _is_true(failure) else None,
        deleting=bool(metadata.get("deletionTimestamp")),
        claim=repository_claim_in(template),
        claim_uid=str((metadata.get("annotations") or {}).get(CLAIM_ANNOTATION, "")),
        successor_uid=str(((template.get("metadata") or {}).get("annotations") or {}).get(CLAIM_ANNOTATION, "")),
    )


def observed_pod(raw: Raw) -> ObservedPod:
    metadata, spec, status = raw.get("metadata", {}), raw.get("spec", {}), raw.get("status") or {}
    labels = metadata.get("labels") or {}
    container: Raw = own_container(raw)
    states = status.get("containerStatuses") or ()
    state: Raw = next((s for s in states if s.get("name") == container.get("name")), {})
    now, last = state.get("state") or {}, state.get("lastState") or {}
    scheduled, ready = _condition(raw, "PodScheduled"), _condition(raw, "Ready")
    deleting = bool(metadata.get("deletionTimestamp"))
    waiting = now.get("waiting")
    return ObservedPod(
        name=str(metadata.get("name", "")),
        component=str(labels.get(COMPONENT, "")),
        job=str(labels.get(JOB_NAME, "")),
        created_at=str(metadata.get("creationTimestamp", "")),
        phase=str(status.get("phase", "Pending")),
        ip=str(status.get("podIP", "")),
        image=str(container.get("image", "")),
        ready=_is_true(ready) and not deleting,
        ready_since=str(ready.get("lastTransitionTime") or ""),
        deleting=deleting,
        unschedulable=str(scheduled.get("message", ""))
        if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
        else None,
        pod_reason=str(status.get("reason", "")),
        pod_message=str(status.get("message", "")),
        running="running" in now,
        waiting=None
        if waiting is None
        else ContainerWaiting(str(waiting.get("reason", "")), str(waiting.get("message", ""))),
        terminated=_termination(now),
        last_terminated=_termination(last),
        beside=_names_beside(spec, states, str(container.get("name", ""))),
        memory_limit=((container.get("resources") or {}).get("limits") or {}).get("memory"),
        claim=repository_claim_in(raw),
        speaks_tls=any(port.get("name") == HTTPS_PORT_NAME for port in container.get("ports") or ()),
    )


def _names_beside(spec: Raw, states: Iterable[Raw], ours: str) -> tuple[str, ...]:
    names = (str(container.get("name", "")) for container in spec.get("containers") or ())
    ended = {state.get("name") for state in states if "terminated" in (state.get("state") or {})}
    return tuple(name for name in names if name != ours and name not in ended)


def _condition(raw: Raw, kind: str) -> Raw:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((dict(c) for c in conditions if c.get("type") == kind), {})


def _is_true(condition: Raw) -> bool:
    return condition.get("status") == "True"


def _termination(state: Raw) -> Termination | None:
    terminated = state.get("terminated")
    if terminated is None:
        return None
    return Termination(
        int(terminated.get("exitCode", 0)),
        str(terminated.get("reason", "")),
        str(terminated.get("message", "")).strip(),
        str(terminated.get("finishedAt") or ""),
    )


def observed_jobs(raws: Iterable[Raw]) -> tuple[tuple[ObservedJob, ...], tuple[ObservedJob, ...]]:
    """Jobs of generation, and Jobs that make embeddings."""
    found = [observed_job(raw) for raw in raws]
    embedding = tuple(job for job in found if job.makes_embeddings)
    return tuple(job for job in found if not job.makes_embeddings), embedding


def observed_standings(service: Raw, jobs: Iterable[Raw], deployments: Iterable[Raw]) -> Standings:
    """Standings of a GNNService among the others by its Jobs and Deployments, where no plan has returned any yet."""
    generating, _ = observed_jobs(jobs)
    left = [job for job in generating if not (job.is_over or job.deleting or job.is_suspended_elsewhere)]
    generation = IDLE
    if any(not job.suspended for job in left):
        generation = UNDER_WAY
    elif left and not (service.get("spec") or {}).get("suspend"):
        generation = Standing(Stance.WAITING, min(job.created_at for job in left))
    is_rolling = any(
        found.replicas > 0 and not (found.rolled_out or found.progress_stopped or found.deleting)
        for found in map(observed_deployment, deployments)
    )
    return Standings(generation, UNDER_WAY if is_rolling else IDLE)
