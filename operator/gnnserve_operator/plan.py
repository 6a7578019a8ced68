"""The plan for one GNNService: the operator's whole decision, as one pure function.

`plan`'s body shows the order of decisions. `observe` gathers, `apply` writes; `decide/` has the questions, `desired/`
builds manifests. State is read from the children alone: status reports and never triggers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gnnserve_api.generation import GenerationResult
from gnnserve_api.pool import counted_bytes
from gnnserve_api.reasons import Reason
from gnnserve_api.routing import RoutingTable
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.status import ConditionType
from gnnserve_operator.decide.accuracy import accuracies_in_service
from gnnserve_operator.decide.answers import decide_base_variant
from gnnserve_operator.decide.compaction import decide_compaction
from gnnserve_operator.decide.contest import NO_WRITERS, ReplicasWriters, decide_replicas
from gnnserve_operator.decide.embeddings import EmbeddingsDecision, WantedEmbeddings, decide_embeddings
from gnnserve_operator.decide.events import EventNote, decide_events
from gnnserve_operator.decide.generation import GenerationDecision, GenerationStage, WantedJob, decide_generation
from gnnserve_operator.decide.next_look import next_look_at_answers_s, next_look_s
from gnnserve_operator.decide.obstacles import decide_appliable, decide_names_good_s, decide_obstacle, may_begin
from gnnserve_operator.decide.pool import decide_pool_missing, within_room
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.decide.published import Published, decide_published
from gnnserve_operator.decide.readiness import Conditions, Situation, decide_conditions, refuse, without_pool
from gnnserve_operator.decide.repair import decide_repair
from gnnserve_operator.decide.repository import (
    RepositoryDecision,
    decide_claim,
    decide_kept,
    decide_mounted,
    decide_repository,
    least_storage,
)
from gnnserve_operator.decide.rollout import Rollout, decide_rollout
from gnnserve_operator.decide.service_routing import (
    PrometheusQuestion,
    decide_declared_claim,
    decide_service_routing,
)
from gnnserve_operator.decide.status import (
    Status,
    build_status,
    decide_wait,
    end_wait,
    is_said_already,
    with_conditions,
    with_namespace,
)
from gnnserve_operator.decide.updates import describe_updates
from gnnserve_operator.decide.workers import decide_workers
from gnnserve_operator.desired.children import PRUNED_KINDS, ChildInputs, build_children
from gnnserve_operator.desired.deployment import build_worker_template
from gnnserve_operator.desired.embeddings import build_embeddings_job, embeddings_made_by
from gnnserve_operator.desired.job import build_job, for_repair, suspended, waiting_for
from gnnserve_operator.desired.labels import RECIPE, pool_selector, selector_text
from gnnserve_operator.desired.metadata import Manifest, Parent, digest_of
from gnnserve_operator.desired.pod import repository_claim_in
from gnnserve_operator.desired.pool import max_delta_of
from gnnserve_operator.desired.queue import QUEUE_NAME, with_queue_labels
from gnnserve_operator.desired.routing import declared_table
from gnnserve_operator.desired.service import PoolPlace, service_url
from gnnserve_operator.kinds import DEPLOYMENT, JOB, SERVICE, ObjectRef, ServiceKey, observed_ref
from gnnserve_operator.observed import Observed, ObservedJob, ServiceWait
from gnnserve_operator.observed_pool import ObservedPool
from gnnserve_operator.settings import Settings
from gnnserve_operator.turns import ALL_IDLE, IDLE, Standings
from gnnserve_routing.decision import RoutingDecision

__all__ = ["EventNote", "ObjectRef", "Plan", "ServiceIdentity", "plan", "plan_for_invalid"]

_BEFORE_THE_JOB = frozenset({GenerationStage.STARTING, GenerationStage.QUEUED})
"""Stages in which the Job may not exist yet, or never."""
_UNKNOWN = "unknown"
"""Placeholder for the name of a revision that is not generated yet."""


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """The part of a live GNNService that is not the user's text."""

    uid: str
    generation: int
    deleting: bool
    status: Mapping[str, Any]
    """The present status; {} when there is none yet."""
    queue_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the GNNService that put its Jobs into a queue of the cluster."""
    last_known: Mapping[str, str] = field(default_factory=dict)
    """Statuses that conditions had last when they were known; see `last_known_in`."""
    writers: ReplicasWriters = NO_WRITERS
    """The managers that set the number of workers."""


@dataclass(frozen=True, slots=True)
class Plan:
    apply: tuple[dict[str, Any], ...] = ()
    """Complete manifests, in order."""
    to_come: tuple[dict[str, Any], ...] = ()
    """Manifests that are applied once a first revision is published; conflicts with them are looked for now."""
    to_come_good_s: float = 0.0
    """Seconds for which a name of these that was found free counts as free."""
    tries_out: bool = False
    """Whether a Job is about to begin, so that the API server is asked by dry run whether it would accept `to_come`."""
    delete: tuple[ObjectRef, ...] = ()
    """Objects to delete, with background propagation; a missing one counts as success."""
    status: dict[str, Any] | None = None
    """The complete status; None: nothing in it would change."""
    events: tuple[EventNote, ...] = ()
    look_again_s: float | None = None
    """Seconds to the next look; None: the next resync is soon enough."""
    routed: RoutingDecision | None = None
    """The slow loop's decision, to be kept until the next plan."""
    question: PrometheusQuestion | None = None
    """What the slow loop should ask; None: nothing."""
    standings: Standings = ALL_IDLE
    """Standings among the other services; to be passed to the fleet before another service is planned."""
    followed: str | None = None
    """See `Turns.followed`; to be kept until the next plan."""
    wait: ServiceWait | None = None
    """The present wait, to be kept until the next plan."""
    granted_bytes: int = 0
    """Memory of its pool's workers that is counted for the service; 0 for one with pods of its own."""
    begins_job: str | None = None
    """Name of the Job that is created now; to be kept until an event has reported it."""


def plan(service: GNNService, identity: ServiceIdentity, observed: Observed, settings: Settings, now: datetime) -> Plan:
    if identity.deleting:
        # Garbage collection removes the children; one created now would outlive its owner.
        return Plan()
    parent, place = Parent(service.metadata.name, service.metadata.namespace, identity.uid), None
    if (pool := observed.pool) is not None:
        if pool.spec is None:
            return _plan_without_pool(pool, identity, observed, now)
        service = service.model_copy(update={"spec": pool.spec.lend(service.spec, pool.claim)})
        place = PoolPlace(pool.name, pool.port)
    spec = service.spec
    repository = decide_repository(parent.name, spec, observed)
    job = build_job(parent, spec, settings, repository.name)
    queue = identity.queue_labels.get(QUEUE_NAME, "")
    wanted_job = _wanted_job(job, queue)
    published = decide_published(wanted_job.recipe, repository, observed)
    repair = decide_repair(parent.name, wanted_job.recipe, published, repository, observed, now)
    generation = decide_generation(
        wanted_job, published, repository, parent.name, spec, observed, now, repair.under_way
    )  # fmt: skip
    if repair.under_way is not None:
        job = for_repair(job, repair.under_way)
    compaction = None
    if spec.updates is not None and published is not None and generation.stage == GenerationStage.PUBLISHED:
        revision = published.result.revision
        compacting = build_job(parent, spec, settings, repository.name, compacts=revision)
        compaction = decide_compaction(
            _wanted_job(compacting, queue, revision), published, repair, repository, parent.name, spec, observed, now
        )
        job = job if compaction is None else compacting
    work = compaction or generation
    embeddings_job, embeddings = _plan_embeddings(
        parent, spec, settings, repository, published, queue, observed, now
    )  # fmt: skip
    declared_uid = decide_declared_claim(spec, published, observed)
    mounted = decide_mounted(repository, declared_uid, observed)
    if pool is not None:
        rollout = Rollout("")  # the pool's
        template_digest = "" if observed.deployment is None else observed.deployment.template_digest
    else:
        template_digest = digest_of(build_worker_template(parent, spec, settings, mounted))
        rollout = decide_rollout(spec, template_digest, mounted, observed)
    if rollout.waits is not None and observed.deployment is not None:
        template_digest = observed.deployment.template_digest  # for now the present pods are what is wanted
    workers = decide_workers(parent.name, spec, template_digest, published is not None, observed)
    routing = decide_service_routing(service, published, workers, observed, identity.status, settings, now)
    if pool is not None:
        routing = within_room(routing, pool, spec, observed)
    declared, result = routing.table, routing.result
    given = ChildInputs(
        parent,
        spec,
        settings,
        routing=None if declared is None or result is None else (declared, result),
        claim=decide_claim(identity.uid, spec, repository.made, repository.name),
        routing_claim_uid=declared_uid,
        mounted=mounted,
        with_workers=declared is not None or observed.deployment is not None,
        job=_applied_job(job, work, identity, observed),
        embeddings_job=_applied_embeddings_job(embeddings_job, embeddings, identity, observed),
        pod_monitor_available=observed.pod_monitor_available,
        repairs=repair.record,
        place=place,
    )
    children = build_children(given)
    refs = [observed_ref(child) for child in children]
    to_come = _to_come(build_children(replace(given, routing=_first_routing(spec), with_workers=True)), refs)
    refs_to_come = [observed_ref(child) for child in to_come]
    # Requests are answered while nothing is compacted: a Job for that which cannot be made is no obstacle.
    beside = [ref for ref in refs if compaction is not None and ref.kind == JOB.name and ref.name == work.job]
    beside += [ref for ref in refs if ref.kind == JOB.name and _is_named(ref, embeddings_job)]
    needed = [ref for ref in (*refs, *refs_to_come) if ref not in beside]
    obstacle = decide_obstacle(needed, parent.name, observed) or repair.problem or routing.problem
    if compaction is not None and (refused := decide_obstacle(beside, parent.name, observed)) is not None:
        compaction = replace(compaction, problem=refused)
    appliable = decide_appliable(refs, observed.conflicts)
    is_job_new = work.stage in _BEFORE_THE_JOB and all(job.name != work.job for job in observed.jobs)
    is_hindered = routing.problem is not None or not may_begin([*refs, *refs_to_come], refs_to_come, observed)
    if is_job_new and is_hindered:
        appliable = frozenset(ref for ref in appliable if ref.kind != JOB.name)
    kept = decide_kept(
        identity.uid,
        repository,
        None if published is None else published.result,
        repository.uid if published is None else published.claim_uid,
        spec,
    )
    # No workers wanted: do not report the base variant of workers that are gone.
    base_before = identity.status.get("baseVariant") if workers.wanted else None
    base_variant = routing.base_variant or decide_base_variant(workers.ready, observed, base_before)
    situation = Situation(
        parent.name, spec, observed, published, declared, generation, workers, rollout, obstacle, kept, repair,
        compaction, embeddings.verdict, base_variant,
    )  # fmt: skip
    contest = decide_replicas(ServiceKey(parent.namespace, parent.name), identity.writers, now)
    conditions = with_namespace(
        decide_conditions(situation)
        | ({} if contest is None else {ConditionType.REPLICAS_UNCONTESTED: contest})
        | routing.conditions,
        parent.namespace,
    )
    wait = decide_wait(conditions, work, observed, is_in_turn=rollout.is_in_line, now=now)
    conditions = end_wait(conditions, wait, identity.status, now)
    service_ref = next((ref for ref in refs if ref.kind == SERVICE.name), None)
    is_job_made = any(ref.kind == JOB.name and _is_named(ref, job) for ref in appliable)
    standing = IDLE if work.stage in _BEFORE_THE_JOB and not is_job_made else work.standing
    status = build_status(
        conditions,
        result=result,
        base_variant=base_variant,
        repository_storage=least_storage(repository.made),
        workers=workers,
        selector=selector_text(parent.workers_selector if pool is None else pool_selector(pool.name)),
        endpoint=service_url(parent, spec, settings.cluster_domain) if service_ref in appliable else None,
        generation=identity.generation,
        before=identity.status,
        now=now,
        in_service={} if result is None else accuracies_in_service(observed, result.revision),
        updates=describe_updates(spec, 0 if result is None else result.offset, observed, identity.status, now),
    )
    return Plan(
        apply=tuple(
            child for child, ref in zip(children, refs, strict=True) if _is_applied(ref, appliable, rollout, observed)
        ),
        to_come=to_come,
        to_come_good_s=decide_names_good_s(standing, begins=is_job_new and not is_hindered),
        tries_out=is_job_new and bool(to_come) and not observed.conflicts,
        delete=_deletions(parent, (*work.delete, *embeddings.delete), refs, observed),
        status=None if is_said_already(status, identity.status) else status,
        events=decide_events(
            identity.status,
            status,
            work if is_job_made else None,
            routing.why_base,
            _begun_job(observed),
            spec.revision,
            identity.last_known,
        ),
        standings=Standings(
            standing,
            rollout.standing if any(ref.kind == DEPLOYMENT.name for ref in appliable) else IDLE,
        ),
        followed=rollout.followed,
        wait=wait,
        begins_job=job["metadata"]["name"] if is_job_made and work.stage == GenerationStage.STARTING else None,
        look_again_s=next_look_s(situation, conditions, wait, status, now),
        routed=routing.decision,
        question=routing.question,
        granted_bytes=0 if result is None or pool is None else counted_bytes(result.revision_bytes, max_delta_of(spec)),
    )


def _plan_without_pool(pool: ObservedPool, identity: ServiceIdentity, observed: Observed, now: datetime) -> Plan:
    """The plan for a service whose pool is not there: its children stay as they are, and so does what it published."""
    problem = decide_pool_missing(pool) or Problem(Reason.WORKER_POOL_MISSING, "", needs_person=True)
    conditions = without_pool(problem, observed, identity.status.get("baseVariant"))
    return _plan_conditions_alone(conditions, identity, observed, now)


def plan_for_invalid(identity: ServiceIdentity, problem: str, observed: Observed, now: datetime) -> Plan:
    """The plan for an object that the CRD accepted and that cannot be parsed: its children stay as they are.
    `observed`: at least what answers."""
    if identity.deleting:
        return Plan()
    conditions = refuse(problem, observed, identity.status.get("baseVariant"))
    return _plan_conditions_alone(conditions, identity, observed, now)


def _plan_conditions_alone(
    conditions: Conditions, identity: ServiceIdentity, observed: Observed, now: datetime
) -> Plan:  # fmt: skip
    """The plan that changes nothing but what is said."""
    status: Status = with_conditions(conditions, identity.generation, identity.status, now)
    return Plan(
        status=None if is_said_already(status, identity.status) else status,
        events=decide_events(identity.status, status, None, None, last_known=identity.last_known),
        look_again_s=next_look_at_answers_s(conditions, observed, status, now),
    )


def _wanted_job(job: Manifest, queue: str, compacts: str = "") -> WantedJob:
    metadata, spec = job["metadata"], job["spec"]
    recipe, retries, deadline_s = metadata["labels"][RECIPE], spec["backoffLimit"], spec["activeDeadlineSeconds"]
    return WantedJob(metadata["name"], recipe, retries, deadline_s, compacts, queue)


def _begun_job(observed: Observed) -> ObservedJob | None:
    """The Job that was created and is not known to the watch; None also where its creation failed."""
    return next((job for job in observed.jobs if job.name == observed.begun_job), None)


def _plan_embeddings(
    parent: Parent, spec: GNNServiceSpec, settings: Settings, repository: RepositoryDecision,
    published: Published | None, queue: str, observed: Observed, now: datetime,
) -> tuple[Manifest | None, EmbeddingsDecision]:  # fmt: skip
    """The Job that makes the embeddings of the published revision, and what becomes of it."""
    job = None
    if published is not None and repository.keeps(published.claim_uid):
        job = build_embeddings_job(parent, spec, settings, repository.name, published.result.revision)
    wanted = None if job is None else _wanted_embeddings(job, queue)
    return job, decide_embeddings(wanted, published, parent.name, spec, observed, now)


def _wanted_embeddings(job: Manifest, queue: str) -> WantedEmbeddings:
    template = job["spec"]["template"]
    return WantedEmbeddings(
        job["metadata"]["name"], embeddings_made_by(template), repository_claim_in(template), queue
    )  # fmt: skip


def _is_named(ref: ObjectRef, manifest: Manifest | None) -> bool:
    return manifest is not None and ref.name == manifest["metadata"]["name"]


def _applied_job(
    job: Manifest, work: GenerationDecision, identity: ServiceIdentity, observed: Observed
) -> Manifest | None:
    if not work.apply:
        return None
    return _in_queue(waiting_for(suspended(job) if work.holds else job, work.waits_for), identity, observed)


def _applied_embeddings_job(
    job: Manifest | None, embeddings: EmbeddingsDecision, identity: ServiceIdentity, observed: Observed
) -> Manifest | None:
    if job is None or not embeddings.apply:
        return None
    return _in_queue(waiting_for(job, embeddings.waits_for), identity, observed)


def _in_queue(job: Manifest, identity: ServiceIdentity, observed: Observed) -> Manifest:
    """The Job with the labels of the service that a queue reads; one that was let go keeps those that it has."""
    present = (*observed.jobs, *observed.embeddings_jobs)
    live = next((found for found in present if found.name == job["metadata"]["name"]), None)
    is_let_go = live is not None and not live.suspended
    return with_queue_labels(job, live.queue_labels if live is not None and is_let_go else identity.queue_labels)


def _is_applied(ref: ObjectRef, appliable: frozenset[ObjectRef], rollout: Rollout, observed: Observed) -> bool:
    if ref.kind == DEPLOYMENT.name:
        # An object that is being deleted is created again once it is gone; an apply now would be lost.
        is_going = observed.deployment is not None and observed.deployment.deleting
        if is_going or rollout.waits is not None:
            return False
    return ref in appliable


def _first_routing(spec: GNNServiceSpec) -> tuple[RoutingTable, GenerationResult]:
    """The routing table of the first revision, with placeholders for what only its Job knows."""
    result = GenerationResult(revision=_UNKNOWN, recipe=spec.recipe(), graph=_UNKNOWN, variants=())
    return declared_table(spec, result), result


def _to_come(children: tuple[Manifest, ...], refs: list[ObjectRef]) -> tuple[Manifest, ...]:
    return tuple(child for child in children if observed_ref(child) not in refs and child["kind"] != JOB.name)


def _deletions(
    parent: Parent, unneeded: tuple[str, ...], refs: list[ObjectRef], observed: Observed
) -> tuple[ObjectRef, ...]:
    """`unneeded`: names of Jobs."""
    jobs = [ObjectRef(JOB.api_version, JOB.name, parent.namespace, name) for name in unneeded]
    unwanted = [ref for ref in observed.owned if ref.kind in PRUNED_KINDS and ref not in refs]
    return (*jobs, *sorted(unwanted, key=lambda ref: (ref.kind, ref.name)))
