"""The plan for one GNNWorkerPool, as one pure function: its pods, the list of its services, and what is said of both.

The services are planned each by itself (`plan.py`), with the pool's pods for their own. The pool knows of each of them
what its GNNService and its routing table say, and decides ports and which Secrets pods mount.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gnnserve_api.pods.pool import MOST_SERVICES
from gnnserve_api.spec.pool import GNNWorkerPool, GNNWorkerPoolSpec
from gnnserve_api.status.pool_status import GNNWorkerPoolStatus, PoolConditionType, PoolServiceStatus
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import WorkersStatus
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_operator.decide.contests import decide_appliable, decide_obstacle, decide_replicas
from gnnserve_operator.decide.pool import (
    PoolMembership,
    decide_membership,
    limit_bytes,
    mebibytes,
    taken_bytes,
)
from gnnserve_operator.decide.repository import decide_pool_claim, decide_pool_kept
from gnnserve_operator.decide.status import (
    NORMAL,
    WARNING,
    EventNote,
    Status,
    build_conditions,
    condition_in,
    decide_available_event,
    is_same_status,
)
from gnnserve_operator.decide.workers import (
    Rollout,
    Workers,
    decide_pool_availability,
    decide_rollout,
    decide_workers,
    ready_workers,
)
from gnnserve_operator.desired.children import build_children
from gnnserve_operator.desired.deployment import MountedClaim, digest_of_pods, pool_pods
from gnnserve_operator.desired.metadata import Parent, digest_of, pool_selector, selector_text
from gnnserve_operator.desired.pool import PoolInputs, build_pool_template, claim_of, secrets_of
from gnnserve_operator.fleet import IDLE, Standings
from gnnserve_operator.kinds import DEPLOYMENT, ServiceKey, observed_ref
from gnnserve_operator.observed import ObservedClaim, ObservedMember, ObservedState
from gnnserve_operator.plan import Plan, ServiceIdentity, prunable
from gnnserve_operator.settings import Settings

_LOOK_AGAIN_S = 2.0
"""Seconds to the next look while something is under way."""
_LONGEST_MESSAGE = 1024
PoolConditions = dict[PoolConditionType, Verdict]
_WARNED_OF = (
    (PoolConditionType.STALLED, True, "reason"),
    (PoolConditionType.REPOSITORY_KEPT, False, "reason"),
    (PoolConditionType.REPLICAS_UNCONTESTED, False, "reason"),
    (PoolConditionType.SERVICES_FIT, False, "message"),
)
"""Conditions that warn when they become so, and when they are so for another reason; of services that do not fit, with
another message too, which names another service."""


def plan_pool(
    pool: GNNWorkerPool, identity: ServiceIdentity, observed: ObservedState, settings: Settings, now: datetime
) -> Plan:  # fmt: skip
    if identity.deleting:
        # Garbage collection removes the children.
        return Plan()
    spec, members = pool.spec, observed.members
    parent = Parent(pool.metadata.name, pool.metadata.namespace, identity.uid, pool.kind)
    claim = next((found for found in observed.claims if found.name == claim_of(parent.name, spec)), None)
    inputs = _inputs_of(parent, spec, claim, observed, settings)
    pods, digest = pool_pods(parent.name, spec), digest_of(build_pool_template(inputs))
    workers = decide_workers(pods, digest, True, observed)
    rollout = decide_rollout(pods, digest_of_pods(spec), digest, inputs.mounted, observed)
    membership = decide_membership(members, observed.services, is_rolled_out=workers.is_rolled_out)
    children = build_children(replace(inputs, services=membership.services))
    refs = [observed_ref(child) for child in children]
    obstacle = decide_obstacle(refs, parent.name, observed, parent.kind)
    appliable = decide_appliable(refs, observed.conflicts)
    waits = rollout.waits is not None or (observed.deployment is not None and observed.deployment.deleting)
    held = {DEPLOYMENT.name} if waits else set()
    contest = decide_replicas(ServiceKey(parent.namespace, parent.name, parent.kind), identity.writers, now)
    conditions = {
        **_decide_conditions(workers, rollout, membership, members, obstacle),
        PoolConditionType.REPOSITORY_KEPT: decide_pool_kept(identity.uid, parent.name, spec.repository, claim),
        **({} if contest is None else {PoolConditionType.REPLICAS_UNCONTESTED: contest}),
    }
    status = _build_status(parent, spec, members, membership, workers, conditions, identity, now)
    is_settled = conditions[PoolConditionType.RECONCILING].holds is False
    return Plan(
        apply=tuple(
            child for child, ref in zip(children, refs, strict=True) if ref in appliable and ref.kind not in held
        ),
        delete=tuple(prunable(refs, observed)),
        status=None if is_same_status(status, identity.status) else status,
        events=_decide_events(identity, status, conditions),
        look_again_s=None if is_settled else _LOOK_AGAIN_S,
        standings=Standings(IDLE, rollout.standing if DEPLOYMENT.name not in held or rollout.is_in_line else IDLE),
        followed=rollout.followed,
    )


def _inputs_of(
    parent: Parent, spec: GNNWorkerPoolSpec, claim: ObservedClaim | None, observed: ObservedState, settings: Settings
) -> PoolInputs:
    """The inputs of the children, with the present list of services. `claim`: the pool's; None: it is not there."""
    specs = {member.name: member.spec for member in observed.members if member.spec is not None}
    served = {member.name for member in observed.members if member.is_served}
    return PoolInputs(
        parent,
        spec,
        settings,
        observed.services,
        {name: secrets for name, found in specs.items() if name in served and (secrets := secrets_of(found))},
        MountedClaim(claim_of(parent.name, spec), "" if claim is None else claim.uid),
        decide_pool_claim(parent.name, spec.repository, claim if spec.repository.claim_name is None else None),
        observed.pod_monitor_available,
        tuple(found.routing.interval_seconds for found in specs.values()),
    )


def plan_for_invalid_pool(identity: ServiceIdentity, problem: str, observed: ObservedState, now: datetime) -> Plan:
    """The plan for a pool that the CRD accepted and that cannot be parsed: its children stay as they are. `observed`:
    at least its Deployment, its pods and its services."""
    if identity.deleting:
        return Plan()
    words = f"The spec cannot be read: {problem}. Correct it; until then everything stays as it is."
    no, still = Verdict(False, Reason.INVALID_SPEC, words), Verdict(False, Reason.INVALID_SPEC, "See Stalled.")
    wanted = 0 if observed.deployment is None else observed.deployment.replicas
    available = decide_pool_availability(len(ready_workers(observed)), wanted, no, observed.members)
    conditions = {
        PoolConditionType.READY: no,
        PoolConditionType.AVAILABLE: available,
        PoolConditionType.RECONCILING: still,
        PoolConditionType.STALLED: Verdict(True, Reason.INVALID_SPEC, words),
        PoolConditionType.REPOSITORY_KEPT: Verdict(None, Reason.INVALID_SPEC, "Nothing is looked at."),
        PoolConditionType.SERVICES_FIT: Verdict(None, Reason.INVALID_SPEC, "Nothing is looked at."),
    }
    built = [
        condition.model_dump(mode="json", by_alias=True)
        for condition in build_conditions(conditions, identity.generation, identity.status, now)
    ]
    status = {**identity.status, "observedGeneration": identity.generation, "conditions": built}
    return Plan(
        status=None if is_same_status(status, identity.status) else status,
        events=_decide_events(identity, status, conditions),
    )


def _decide_conditions(
    workers: Workers,
    rollout: Rollout,
    membership: PoolMembership,
    members: tuple[ObservedMember, ...],
    obstacle: Problem | None,
) -> PoolConditions:
    ready = _decide_ready(workers, obstacle)
    available = decide_pool_availability(len(workers.ready), workers.wanted, workers.verdict, members)
    problems = [problem for problem in (obstacle, workers.problem) if problem is not None and problem.needs_person]
    fits = _decide_fits(membership, members)
    under_way = not ready.holds or rollout.waits is not None or bool(membership.waiting)
    why = ready.message if not ready.holds else rollout.waits or _words_of_waiting(membership)
    stalled = problems[0] if problems else None
    if stalled is not None:
        going = Verdict(False, stalled.reason, "Nothing goes on until a person acts; see Stalled.")
    elif under_way:
        going = Verdict(True, ready.reason if not ready.holds else Reason.ROLLING_OUT, why)
    else:
        going = Verdict(False, Reason.SETTLED, "Nothing is under way.")
    return {
        PoolConditionType.READY: ready,
        PoolConditionType.AVAILABLE: available,
        PoolConditionType.RECONCILING: going,
        PoolConditionType.STALLED: Verdict(False, Reason.SETTLED, "No person has to act.")
        if stalled is None
        else Verdict(True, stalled.reason, stalled.message),
        PoolConditionType.SERVICES_FIT: fits,
    }


def _decide_ready(workers: Workers, obstacle: Problem | None) -> Verdict:
    if obstacle is not None:
        return obstacle.to_verdict()
    if workers.wanted == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0: no service of the pool is answered for.")
    if not workers.verdict.holds:
        return workers.verdict
    if (problem := workers.problem) is not None:
        old = f" Meanwhile {len(workers.ready)} of the present workers answer." if workers.ready else ""
        return Verdict(False, problem.reason, problem.message + old)
    if not workers.is_rolled_out:
        return Verdict(False, Reason.ROLLING_OUT, "Worker pods are being replaced one by one; the old ones answer.")
    return Verdict(True, Reason.WORKERS_READY, workers.verdict.message)


def _decide_fits(membership: PoolMembership, members: tuple[ObservedMember, ...]) -> Verdict:
    refused = [f"{member.name}: {member.message}" for member in members if member.is_refused]
    refused += [
        f"{name}: a pool has {MOST_SERVICES} services at most, and this one has as many already; name another pool."
        for name in membership.refused
    ]
    if refused:
        return Verdict(False, Reason.POOL_FULL, " ".join(refused))
    return Verdict(True, Reason.SERVICES_FIT, "The workers have room for every service.")


def _words_of_waiting(membership: PoolMembership) -> str:
    return (
        f"Pods are replaced one by one, so that they mount the Secrets of {', '.join(membership.waiting)}; the other "
        "services answer."
    )


def _build_status(
    parent: Parent,
    spec: GNNWorkerPoolSpec,
    members: tuple[ObservedMember, ...],
    membership: PoolMembership,
    workers: Workers,
    conditions: PoolConditions,
    identity: ServiceIdentity,
    now: datetime,
) -> Status:
    taken = taken_bytes(member.counted_bytes for member in members)
    limit = limit_bytes(spec)
    status = GNNWorkerPoolStatus(
        observed_generation=identity.generation,
        conditions=build_conditions(conditions, identity.generation, identity.status, now),
        service_names=" ".join(service.name for service in membership.services.services) or None,
        services=tuple(_service_status(member, membership) for member in sorted(members, key=lambda m: m.name)),
        memory=mebibytes(taken) if limit is None else f"{mebibytes(taken)} of {mebibytes(limit)}",
        workers=WorkersStatus(
            replicas=workers.existing,
            ready_replicas=len(workers.ready),
            ready=f"{len(workers.ready)}/{workers.wanted}",
            selector=selector_text(pool_selector(parent.name)),
        ),
    )
    said = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in said.items() if value not in ([], "")}


def _service_status(member: ObservedMember, membership: PoolMembership) -> PoolServiceStatus:
    entry = membership.services.of(member.name)
    message = member.message
    if member.spec is None:
        message = "Its spec cannot be read; see its conditions."
    elif member.spec.suspend:
        message = "spec.suspend is true."
    return PoolServiceStatus(
        name=member.name,
        port=None if entry is None else entry.port,
        share=1 if member.spec is None else member.spec.worker.share,
        ready=member.ready,
        available=member.available,
        revision=member.revision,
        memory_bytes=member.counted_bytes or None,
        message=message[:_LONGEST_MESSAGE] or None,
    )


def _decide_events(identity: ServiceIdentity, status: Status, conditions: PoolConditions) -> tuple[EventNote, ...]:
    before = identity.status
    note = decide_available_event(before, condition_in(status, PoolConditionType.AVAILABLE), identity.last_known)
    notes = [] if note is None else [note]
    ready, was_ready = conditions[PoolConditionType.READY], condition_in(before, PoolConditionType.READY)
    if ready.holds and was_ready.get("status") != "True":
        notes.append(EventNote(NORMAL, "Ready", ready.message))
    for kind, bad, is_about in _WARNED_OF:
        now, was = conditions.get(kind), condition_in(before, kind)
        if now is None or now.holds is not bad:
            continue
        said = now.reason if is_about == "reason" else now.message
        if (was.get("status"), was.get(is_about)) != (str(bad), said):
            notes.append(EventNote(WARNING, now.reason, now.message))
    return tuple(notes)
