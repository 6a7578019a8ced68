"""The plan for one GNNService: the operator's whole decision, as one pure function.

`plan`'s body shows the order of decisions. `observe` gathers, `apply` writes; `decide/` has the questions, `desired/`
builds manifests. State is read from the children alone: status reports and never triggers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gnnserve_api.pods.generation import GenerationResult
from gnnserve_api.pods.pool import counted_bytes
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_operator.decide.answers import accuracies_in_service, decide_base_variant
from gnnserve_operator.decide.contests import (
    NO_WRITERS,
    ReplicasWriters,
    decide_appliable,
    decide_names_good_s,
    decide_obstacle,
    decide_replicas,
    may_begin,
)
from gnnserve_operator.decide.jobs import (
    EmbeddingsDecision,
    GenerationDecision,
    GenerationStage,
    WantedEmbeddings,
    WantedJob,
    decide_embeddings,
    decide_generation,
)
from gnnserve_operator.decide.log_following import decide_compaction, describe_updates
from gnnserve_operator.decide.pool import decide_pool_missing, within_room
from gnnserve_operator.decide.readiness import Conditions, Situation, decide_conditions, refuse, without_pool
from gnnserve_operator.decide.repository import (
    PublishedRevision,
    Repair,
    RepositoryDecision,
    decide_claim,
    decide_kept,
    decide_mounted,
    decide_published,
    decide_repair,
    decide_repository,
    least_storage,
)
from gnnserve_operator.decide.service_routing import (
    PrometheusQuestion,
    ServiceRouting,
    decide_declared_claim,
    decide_service_routing,
)
from gnnserve_operator.decide.status import (
    EventNote,
    Status,
    build_status,
    decide_events,
    decide_wait,
    end_wait,
    is_said_already,
    next_look_at_answers_s,
    next_look_s,
    with_conditions,
    with_namespace,
)
from gnnserve_operator.decide.workers import Rollout, decide_rollout, decide_workers
from gnnserve_operator.desired.access import PoolPlace, service_url
from gnnserve_operator.desired.children import PRUNED_KINDS, ChildInputs, build_children
from gnnserve_operator.desired.deployment import (
    MountedClaim,
    WorkerPods,
    build_worker_template,
    digest_of_pods,
    worker_pods,
)
from gnnserve_operator.desired.job import (
    build_embeddings_job,
    build_job,
    embeddings_made_by,
    for_repair,
    suspended,
    waiting_for,
)
from gnnserve_operator.desired.metadata import (
    QUEUE_NAME,
    RECIPE,
    Parent,
    digest_of,
    pool_selector,
    selector_text,
    with_queue_labels,
)
from gnnserve_operator.desired.pod import repository_claim_in
from gnnserve_operator.desired.pool import max_delta_of
from gnnserve_operator.desired.routing import declared_table
from gnnserve_operator.fleet import ALL_IDLE, IDLE, Standings
from gnnserve_operator.kinds import DEPLOYMENT, JOB, SERVICE, Manifest, ObjectRef, ServiceKey, observed_ref
from gnnserve_operator.observed import ObservedJob, ObservedPool, ObservedState, ServiceWait
from gnnserve_operator.settings import Settings
from gnnserve_routing.decision import RoutingDecision

__all__ = ["EventNote", "ObjectRef", "Plan", "ServiceIdentity", "plan", "plan_for_invalid"]

_BEFORE_THE_JOB = frozenset({GenerationStage.STARTING, GenerationStage.QUEUED})
"""Stages in which the Job may not exist yet, or never."""
_UNKNOWN = "unknown"
"""Placeholder for the name of a revision that is not generated yet."""


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """The part of a live GNNService, or GNNWorkerPool, that is not the user's text."""

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
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    """The objective that it is about."""
    question: PrometheusQuestion | None = None
    """What the slow loop should ask; None: nothing."""
    standings: Standings = ALL_IDLE
    """Standings among the other services; to be passed to the fleet before another service is planned."""
    followed: str | None = None
    """See `ServiceTurns.followed`; to be kept until the next plan."""
    wait: ServiceWait | None = None
    """The present wait, to be kept until the next plan."""
    granted_bytes: int = 0
    """Memory of its pool's workers that is counted for the service; 0 for one with pods of its own."""
    begins_job: str | None = None
    """Name of the Job that is created now; to be kept until an event has reported it."""


@dataclass(frozen=True, slots=True)
class _PlanInputs:
    """All that a plan follows from."""

    parent: Parent
    service: GNNService
    """With what its pool lends it."""
    identity: ServiceIdentity
    observed: ObservedState
    settings: Settings
    now: datetime

    @property
    def spec(self) -> GNNServiceSpec:
        return self.service.spec

    @property
    def place(self) -> PoolPlace | None:
        """Where workers are that are a pool's."""
        pool = self.observed.pool
        return None if pool is None else PoolPlace(pool.name, pool.port)


@dataclass(frozen=True, slots=True)
class _JobsPlan:
    """The Jobs of a service: those that are wanted, what they are about, and what becomes of each."""

    repository: RepositoryDecision
    published: PublishedRevision | None
    repair: Repair
    generation: GenerationDecision
    compaction: GenerationDecision | None
    job: Manifest
    """The Job that generates, or compacts."""
    embeddings: EmbeddingsDecision
    embeddings_job: Manifest | None
    """The Job that makes the embeddings of the published revision; None: none is wanted."""

    @property
    def work(self) -> GenerationDecision:
        """The decision about the Job that generates, or compacts."""
        return self.compaction or self.generation

    def is_new(self, observed: ObservedState) -> bool:
        """Whether the Job is about to begin."""
        return self.work.stage in _BEFORE_THE_JOB and all(job.name != self.work.job for job in observed.jobs)

    def is_beside(self, ref: ObjectRef) -> bool:
        """Whether an object is a Job beside which requests are answered: where it cannot be made, nothing else
        waits."""
        compacts = self.compaction is not None and ref.name == self.work.job
        return ref.kind == JOB.name and (compacts or _is_named(ref, self.embeddings_job))


@dataclass(frozen=True, slots=True)
class _ChildrenPlan:
    manifests: tuple[Manifest, ...]
    refs: tuple[ObjectRef, ...]
    """References to the manifests, in their order."""
    to_come: tuple[Manifest, ...]
    """Manifests that a first revision brings."""
    obstacle: Problem | None
    compaction: GenerationDecision | None
    """The decision about compaction, with what keeps its Job from being made."""
    appliable: frozenset[ObjectRef]
    begins: bool
    """Whether a Job is about to begin, and nothing hinders it."""

    def is_applied(self, kind: str) -> bool:
        return any(ref.kind == kind for ref in self.appliable)

    def is_made(self, job: Manifest) -> bool:
        """Whether that Job is applied."""
        return any(ref.kind == JOB.name and _is_named(ref, job) for ref in self.appliable)


def plan(
    service: GNNService, identity: ServiceIdentity, observed: ObservedState, settings: Settings, now: datetime
) -> Plan:
    if identity.deleting:
        # Garbage collection removes the children; one created now would outlive its owner.
        return Plan()
    pool = observed.pool
    if pool is not None and pool.spec is None:
        return _plan_without_pool(pool, identity, observed, now)
    given = _inputs_of(service, identity, observed, settings, now)
    spec, jobs = given.spec, _plan_jobs(given)
    published_claim = decide_declared_claim(spec, jobs.published, observed)
    mounted = decide_mounted(jobs.repository, published_claim, observed)
    pods = worker_pods(given.parent.name, spec)
    rollout, template_digest = _plan_rollout(given, pods, mounted)
    workers = decide_workers(pods, template_digest, jobs.published is not None, observed)
    routing = decide_service_routing(given.service, jobs.published, workers, observed, identity.status, settings, now)
    if pool is not None:
        routing = within_room(routing, pool, spec, observed)
    children = _plan_children(given, jobs, routing, published_claim, mounted)
    # No workers wanted: do not report the base variant of workers that are gone.
    base_before = identity.status.get("baseVariant") if workers.wanted else None
    base_variant = routing.base_variant or decide_base_variant(workers.ready, observed, base_before)
    situation = Situation(
        given.parent.name, spec, observed, jobs.published, routing.table, jobs.generation, workers, rollout,
        children.obstacle, _decide_kept(given, jobs), jobs.repair, children.compaction, jobs.embeddings.verdict,
        base_variant,
    )  # fmt: skip
    conditions = _decide_conditions(given, situation, routing)
    wait = decide_wait(conditions, jobs.work, observed, is_in_turn=rollout.is_in_line, now=now)
    conditions = end_wait(conditions, wait, identity.status, now)
    status = _build_status(given, jobs, children, situation, routing, conditions)
    is_made = children.is_made(jobs.job)
    standing = IDLE if jobs.work.stage in _BEFORE_THE_JOB and not is_made else jobs.work.standing
    return Plan(
        apply=tuple(_applied(children, rollout, observed)),
        to_come=children.to_come,
        to_come_good_s=decide_names_good_s(standing, begins=children.begins),
        tries_out=jobs.is_new(observed) and bool(children.to_come) and not observed.conflicts,
        delete=_deletions(given.parent, jobs, children.refs, observed),
        status=None if is_said_already(status, identity.status) else status,
        events=decide_events(
            identity.status, status, jobs.work if is_made else None, routing.why_base, _begun_job(observed),
            spec.revision, identity.last_known,
        ),
        standings=Standings(standing, rollout.standing if children.is_applied(DEPLOYMENT.name) else IDLE),
        followed=rollout.followed,
        wait=wait,
        begins_job=jobs.job["metadata"]["name"] if is_made and jobs.work.stage == GenerationStage.STARTING else None,
        look_again_s=next_look_s(situation, conditions, wait, status, now),
        routed=routing.decision,
        objective=spec.objective,
        question=routing.question,
        granted_bytes=0 if pool is None else _counted_bytes(routing, spec),
    )  # fmt: skip


def _inputs_of(
    service: GNNService, identity: ServiceIdentity, observed: ObservedState, settings: Settings, now: datetime
) -> _PlanInputs:
    pool = observed.pool
    if pool is not None and pool.spec is not None:
        service = service.model_copy(update={"spec": pool.spec.lend(service.spec, pool.claim)})
    parent = Parent(service.metadata.name, service.metadata.namespace, identity.uid)
    return _PlanInputs(parent, service, identity, observed, settings, now)


def _plan_jobs(given: _PlanInputs) -> _JobsPlan:
    parent, spec, observed, now = given.parent, given.spec, given.observed, given.now
    repository = decide_repository(parent.name, spec, observed)
    queue = given.identity.queue_labels.get(QUEUE_NAME, "")
    job = build_job(parent, spec, given.settings, repository.name)
    wanted = _wanted_job(job, queue)
    published = decide_published(wanted.recipe, repository, observed)
    repair = decide_repair(parent.name, wanted.recipe, published, repository, observed, now)
    generation = decide_generation(wanted, published, repository, parent.name, spec, observed, now, repair.under_way)
    if repair.under_way is not None:
        job = for_repair(job, repair.under_way)
    compaction = None
    if spec.updates is not None and published is not None and generation.stage == GenerationStage.PUBLISHED:
        revision = published.result.revision
        compacting = build_job(parent, spec, given.settings, repository.name, compacts=revision)
        compaction = decide_compaction(
            _wanted_job(compacting, queue, revision), published, repair, repository, parent.name, spec, observed, now
        )
        job = job if compaction is None else compacting
    embeddings_job = None
    if published is not None and repository.keeps(published.claim_uid):
        revision = published.result.revision
        embeddings_job = build_embeddings_job(parent, spec, given.settings, repository.name, revision)
    wanted_embeddings = None if embeddings_job is None else _wanted_embeddings(embeddings_job, queue)
    embeddings = decide_embeddings(wanted_embeddings, published, parent.name, spec, observed, now)
    return _JobsPlan(repository, published, repair, generation, compaction, job, embeddings, embeddings_job)


def _plan_rollout(given: _PlanInputs, pods: WorkerPods, mounted: MountedClaim) -> tuple[Rollout, str]:
    """The rollout of the service's own pods, and the digest of the pod template that is wanted for now."""
    deployment = given.observed.deployment
    present = "" if deployment is None else deployment.template_digest
    if given.place is not None:
        return Rollout(""), present  # the pool's
    wanted = digest_of(build_worker_template(given.parent, given.spec, given.settings, mounted))
    rollout = decide_rollout(pods, digest_of_pods(given.spec), wanted, mounted, given.observed)
    return rollout, wanted if rollout.waits is None or deployment is None else present


def _plan_children(
    given: _PlanInputs, jobs: _JobsPlan, routing: ServiceRouting, published_claim: str, mounted: MountedClaim
) -> _ChildrenPlan:
    """`published_claim`: uid of the claim that the declared revision lies in."""
    parent, spec, observed, table = given.parent, given.spec, given.observed, routing.table
    inputs = ChildInputs(
        parent,
        spec,
        given.settings,
        routing=None if table is None or routing.result is None else (table, routing.result),
        claim=decide_claim(given.identity.uid, spec, jobs.repository.made, jobs.repository.name),
        routing_claim_uid=published_claim,
        mounted=mounted,
        with_workers=table is not None or observed.deployment is not None,
        job=_applied_job(given, jobs),
        embeddings_job=_applied_embeddings_job(given, jobs),
        pod_monitor_available=observed.pod_monitor_available,
        repairs=jobs.repair.record,
        place=given.place,
    )
    manifests = build_children(inputs)
    refs = tuple(observed_ref(child) for child in manifests)
    later = build_children(replace(inputs, routing=_first_routing(spec), with_workers=True))
    to_come = tuple(child for child in later if observed_ref(child) not in refs and child["kind"] != JOB.name)
    refs_to_come = [observed_ref(child) for child in to_come]
    needed = [ref for ref in (*refs, *refs_to_come) if not jobs.is_beside(ref)]
    compaction = jobs.compaction
    refused = decide_obstacle(filter(jobs.is_beside, refs), parent.name, observed)
    if compaction is not None and refused is not None:
        compaction = replace(compaction, problem=refused)
    appliable = decide_appliable(refs, observed.conflicts)
    is_hindered = routing.problem is not None or not may_begin([*refs, *refs_to_come], refs_to_come, observed)
    if jobs.is_new(observed) and is_hindered:
        appliable = frozenset(ref for ref in appliable if ref.kind != JOB.name)
    return _ChildrenPlan(
        manifests,
        refs,
        to_come,
        decide_obstacle(needed, parent.name, observed) or jobs.repair.problem or routing.problem,
        compaction,
        appliable,
        begins=jobs.is_new(observed) and not is_hindered,
    )


def _decide_kept(given: _PlanInputs, jobs: _JobsPlan) -> Verdict:
    published, repository = jobs.published, jobs.repository
    return decide_kept(
        given.identity.uid,
        repository,
        None if published is None else published.result,
        repository.uid if published is None else published.claim_uid,
        given.spec,
    )


def _decide_conditions(given: _PlanInputs, situation: Situation, routing: ServiceRouting) -> Conditions:
    parent = given.parent
    contest = decide_replicas(ServiceKey(parent.namespace, parent.name), given.identity.writers, given.now)
    contested = {} if contest is None else {ConditionType.REPLICAS_UNCONTESTED: contest}
    return with_namespace(decide_conditions(situation) | contested | routing.conditions, parent.namespace)


def _build_status(
    given: _PlanInputs, jobs: _JobsPlan, children: _ChildrenPlan, situation: Situation, routing: ServiceRouting,
    conditions: Conditions,
) -> Status:  # fmt: skip
    parent, spec, identity, result = given.parent, given.spec, given.identity, routing.result
    selector = parent.workers_selector if given.place is None else pool_selector(given.place.pool)
    return build_status(
        conditions,
        result=result,
        base_variant=situation.base_variant,
        repository_storage=least_storage(jobs.repository.made),
        workers=situation.workers,
        selector=selector_text(selector),
        endpoint=service_url(parent, spec, given.settings.cluster_domain)
        if children.is_applied(SERVICE.name)
        else None,
        generation=identity.generation,
        before=identity.status,
        now=given.now,
        in_service={} if result is None else accuracies_in_service(given.observed, result.revision),
        updates=None
        if spec.updates is None
        else describe_updates(spec, 0 if result is None else result.offset, given.observed, identity.status, given.now),
        graph_changes=spec.updates is not None,
    )


def _counted_bytes(routing: ServiceRouting, spec: GNNServiceSpec) -> int:
    """Memory of the pool's workers that the declared revision takes."""
    return 0 if routing.result is None else counted_bytes(routing.result.revision_bytes, max_delta_of(spec))


def _plan_without_pool(pool: ObservedPool, identity: ServiceIdentity, observed: ObservedState, now: datetime) -> Plan:
    """The plan for a service whose pool is not there: its children stay as they are, and so does what it published."""
    problem = decide_pool_missing(pool) or Problem(Reason.WORKER_POOL_MISSING, "", needs_person=True)
    conditions = without_pool(problem, observed, identity.status.get("baseVariant"))
    return _plan_conditions_alone(conditions, identity, observed, now)


def plan_for_invalid(identity: ServiceIdentity, problem: str, observed: ObservedState, now: datetime) -> Plan:
    """The plan for an object that the CRD accepted and that cannot be parsed: its children stay as they are.
    `observed`: at least what answers."""
    if identity.deleting:
        return Plan()
    conditions = refuse(problem, observed, identity.status.get("baseVariant"))
    return _plan_conditions_alone(conditions, identity, observed, now)


def _plan_conditions_alone(
    conditions: Conditions, identity: ServiceIdentity, observed: ObservedState, now: datetime
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


def _begun_job(observed: ObservedState) -> ObservedJob | None:
    """The Job that was created and is not known to the watch; None also where its creation failed."""
    return next((job for job in observed.jobs if job.name == observed.begun_job), None)


def _wanted_embeddings(job: Manifest, queue: str) -> WantedEmbeddings:
    template = job["spec"]["template"]
    return WantedEmbeddings(
        job["metadata"]["name"], embeddings_made_by(template), repository_claim_in(template), queue
    )  # fmt: skip


def _is_named(ref: ObjectRef, manifest: Manifest | None) -> bool:
    return manifest is not None and ref.name == manifest["metadata"]["name"]


def _applied_job(given: _PlanInputs, jobs: _JobsPlan) -> Manifest | None:
    job, work = jobs.job, jobs.work
    return _in_queue(waiting_for(suspended(job) if work.holds else job, work.waits_for), given) if work.apply else None


def _applied_embeddings_job(given: _PlanInputs, jobs: _JobsPlan) -> Manifest | None:
    job, embeddings = jobs.embeddings_job, jobs.embeddings
    return _in_queue(waiting_for(job, embeddings.waits_for), given) if job is not None and embeddings.apply else None


def _in_queue(job: Manifest, given: _PlanInputs) -> Manifest:
    """The Job with the labels of the service that a queue reads; one that was let go keeps those that it has."""
    present = (*given.observed.jobs, *given.observed.embeddings_jobs)
    live = next((found for found in present if found.name == job["metadata"]["name"]), None)
    is_let_go = live is not None and not live.suspended
    return with_queue_labels(job, live.queue_labels if live is not None and is_let_go else given.identity.queue_labels)


def _applied(children: _ChildrenPlan, rollout: Rollout, observed: ObservedState) -> Iterator[Manifest]:
    # An object that is being deleted is created again once it is gone; an apply now would be lost.
    is_going = observed.deployment is not None and observed.deployment.deleting
    held = {DEPLOYMENT.name} if is_going or rollout.waits is not None else set()
    for child, ref in zip(children.manifests, children.refs, strict=True):
        if ref in children.appliable and ref.kind not in held:
            yield child


def _first_routing(spec: GNNServiceSpec) -> tuple[RoutingTable, GenerationResult]:
    """The routing table of the first revision, with placeholders for what only its Job knows."""
    result = GenerationResult(revision=_UNKNOWN, recipe=spec.recipe(), graph=_UNKNOWN, variants=())
    return declared_table(spec, result), result


def _deletions(
    parent: Parent, jobs: _JobsPlan, refs: Container[ObjectRef], observed: ObservedState
) -> tuple[ObjectRef, ...]:  # fmt: skip
    unneeded = (*jobs.work.delete, *jobs.embeddings.delete)
    named = [ObjectRef(JOB.api_version, JOB.name, parent.namespace, name) for name in unneeded]
    return (*named, *prunable(refs, observed))


def prunable(refs: Container[ObjectRef], observed: ObservedState) -> list[ObjectRef]:
    """Children of kinds that a setting may remove, and that are none of those that should exist."""
    unwanted = (ref for ref in observed.owned if ref.kind in PRUNED_KINDS and ref not in refs)
    return sorted(unwanted, key=lambda ref: (ref.kind, ref.name))
