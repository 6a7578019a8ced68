"""One look at one GNNService or GNNWorkerPool: validate, observe, plan, apply, report.

The module holds this order, what each step passes to the next, and the table of the kinds that are reconciled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from gnnserve_api.spec.pool import GNNWorkerPool
from gnnserve_api.spec.service import GNNService
from gnnserve_operator.apply import Ahead, Applier, NameOccupancy, ObjectChange, Survey, deletable
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.repository import decide_claim, decide_pool_claim
from gnnserve_operator.desired.metadata import Parent, queue_labels
from gnnserve_operator.desired.storage import WantedClaim
from gnnserve_operator.errors import ConflictError, GoneError, RefusedError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    GNNSERVICE,
    GNNWORKERPOOL,
    JOB,
    POD_MONITOR,
    Manifest,
    ObjectRef,
    ServiceKey,
    content_of,
    has_moved_on,
    observed_ref,
    parse_pool,
    parse_service,
)
from gnnserve_operator.observe import Observation, PodMonitors, observe_pool
from gnnserve_operator.observed import ObservedClaim, ObservedState, Rejection, ServiceWait
from gnnserve_operator.plan import Plan, ServiceIdentity, plan, plan_for_invalid
from gnnserve_operator.plan_pool import plan_for_invalid_pool, plan_pool
from gnnserve_operator.report import Reporter
from gnnserve_operator.retention import Retention
from gnnserve_operator.settings import Settings
from gnnserve_operator.slow_loop import RoutingMemory, SlowLoop
from gnnserve_routing.signals import QueryAnswer, Silence

_TAKE_TURNS = {JOB.name, DEPLOYMENT.name}
_GROUNDS = {CLAIM.name, CONFIG_MAP.name}
ServiceVersion = tuple[str, int]
"""uid and generation of a GNNService or GNNWorkerPool."""
Parsed = TypeVar("Parsed", GNNService, GNNWorkerPool)

logger = logging.getLogger(__name__)


class OwnerObserver(Protocol):
    """Observes the objects of one kind."""

    async def observe(self, key: ServiceKey, raw: Manifest) -> Observation: ...

    async def observe_invalid(self, key: ServiceKey, raw: Manifest) -> ObservedState:
        """Observe what answers for an object whose spec cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class ReconciledKind(Generic[Parsed]):
    """Differences between the kinds that are reconciled, as functions of the modules that know them."""

    parse: Callable[[Manifest], Parsed | str]
    """Reads a live object, or tells why it cannot be read."""
    observer: OwnerObserver
    plan: Callable[[Parsed, ServiceIdentity, ObservedState, Settings, datetime], Plan]
    plan_for_invalid: Callable[[ServiceIdentity, str, ObservedState, datetime], Plan]
    decide_claim: Callable[[Parsed, str, ObservedClaim], WantedClaim]
    """Decides what is wanted of a claim of the object with that uid."""


def reconciled_kinds(services: OwnerObserver, pools: OwnerObserver) -> Mapping[str, ReconciledKind[Any]]:
    """The kinds that are reconciled, by name. `services`, `pools`: what observes them."""
    return {
        GNNSERVICE.name: ReconciledKind(
            parse_service,
            services,
            plan,
            plan_for_invalid,
            lambda service, uid, claim: decide_claim(uid, service.spec, claim, claim.name),
        ),
        GNNWORKERPOOL.name: ReconciledKind(
            parse_pool,
            pools,
            plan_pool,
            plan_for_invalid_pool,
            lambda pool, _, claim: decide_pool_claim(pool.metadata.name, pool.spec.repository, claim),
        ),
    }


@dataclass(frozen=True, slots=True)
class _BegunJob:
    uid: str
    """uid of the GNNService."""
    job: str


@dataclass(frozen=True, slots=True)
class _Decision:
    """A plan, and what it was made from."""

    planned: Plan
    seen: Observation
    survey: Survey
    refused_trials: tuple[Rejection, ...]


@dataclass(slots=True)
class Reconciler:
    settings: Settings
    index: Index
    cluster: Cluster
    kinds: Mapping[str, ReconciledKind[Any]]
    pod_monitors: PodMonitors
    applier: Applier
    reporter: Reporter
    clock: Clock
    slow_loop: SlowLoop
    memory: RoutingMemory
    fleet: Fleet
    _rejections: dict[ServiceKey, tuple[Rejection, ...]] = field(default_factory=dict)
    _begun_jobs: dict[ServiceKey, _BegunJob] = field(default_factory=dict)
    """Created Jobs that no event has reported yet."""
    _granted: dict[ServiceKey, int] = field(default_factory=dict)
    """Memory of pools that is counted for services since their last plan, which the watch may not tell of yet."""
    _waits: dict[ServiceKey, tuple[str, ServiceWait]] = field(default_factory=dict)
    """Waits of the services, with the uid of the GNNService."""
    _taken: dict[ServiceKey, tuple[ServiceVersion, tuple[ObjectRef, ...]]] = field(default_factory=dict)
    """Names that had another owner at the last look, for the spec that wants them."""
    retention: Retention = field(init=False)

    def __post_init__(self) -> None:
        self.retention = Retention(self.index, self.cluster, self.applier, self.clock)

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Reconcile one object. Returns the seconds until the next look. Raises OperatorError."""
        with self.fleet.attempt(key):
            return await self._reconcile(key)

    async def _reconcile(self, key: ServiceKey) -> float | None:
        raw = self.index.service(key)
        await self.retention.tell(key, raw)
        if raw is None:
            self._forget(key)
            return None
        identity, parsed = self._identity(key, raw), self.kinds[key.kind].parse(raw)
        if isinstance(parsed, str):
            return await self._reconcile_invalid(key, raw, parsed)
        await self._release(key, parsed, identity.uid)
        measured = self.slow_loop.unread(key)
        seen = await self._observe(key, raw, measured)
        # Asking takes seconds: a client that keeps writing annotations must not prevent the status from being written.
        raw = self._newest(key, raw)
        identity = self._identity(key, raw)
        decision = await self._plan(key, parsed, identity, seen)
        planned = decision.planned
        if planned.routed is not None:
            # Remembered before anything is written: if writing fails, the next attempt uses the same decision.
            self.memory.remember(key, identity.uid, planned.routed, planned.objective)
            self.slow_loop.read(key, measured)
        self.slow_loop.follow(key, planned.question)
        if planned.begins_job is not None:
            # Noted before it is created: if the status cannot be written afterwards, the Job is still reported.
            self._begun_jobs[key] = _BegunJob(identity.uid, planned.begins_job)
        rejections = await self._carry_out(key, raw, decision)
        observed = decision.seen.observed
        if rejections != observed.rejections:
            self._rejections[key] = rejections
            planned = self._plan_once(key, parsed, identity, replace(observed, rejections=rejections))
        self._waits.pop(key, None)
        if planned.wait is not None:
            self._waits[key] = (identity.uid, planned.wait)
        told = self._newest(key, raw)
        if self.reporter.status_of(key, told) == identity.status:  # as the events suppose
            raw = told
        now = self.clock.utc()
        self.reporter.queue(key, raw, self.applier.reverts.take_events(key, now), now)
        untold_s = await self.reporter.report(key, raw, planned.status, planned.events, self.clock.utc())
        self._begun_jobs.pop(key, None)
        if rejections:
            raise RefusedError(f"apply {', '.join(str(r.ref) for r in rejections)}", rejections[0].message, 422)
        return _soonest(planned.look_again_s, untold_s)

    async def _reconcile_invalid(self, key: ServiceKey, raw: Manifest, problem: str) -> float | None:
        """Report that the spec cannot be read: nothing else is done."""
        kind = self.kinds[key.kind]
        self.fleet.recount(key)
        self.slow_loop.follow(key, None)
        observed = await kind.observer.observe_invalid(key, raw)
        raw = self._newest(key, raw)
        planned = kind.plan_for_invalid(self._identity(key, raw), problem, observed, self.clock.utc())
        untold_s = await self.reporter.report(key, raw, planned.status, planned.events, self.clock.utc())
        return _soonest(planned.look_again_s, untold_s)

    async def release(self, key: ServiceKey) -> None:
        """Take the owner from claims of the object that are to stay. Raises OperatorError."""
        raw = self.index.service(key)
        parsed = "it is gone" if raw is None else self.kinds[key.kind].parse(raw)
        if raw is not None and not isinstance(parsed, str):
            await self._release(key, parsed, raw["metadata"]["uid"])

    async def _release(self, key: ServiceKey, parsed: GNNService | GNNWorkerPool, uid: str) -> None:
        kind, parent = self.kinds[key.kind], Parent(key.name, key.namespace, uid, key.kind)
        await self.retention.release(
            key, parent, parsed.spec.repository, lambda claim: kind.decide_claim(parsed, uid, claim)
        )  # fmt: skip

    async def _observe(self, key: ServiceKey, raw: Manifest, measured: QueryAnswer | Silence | None) -> Observation:
        """Observe the object, beside what earlier reconciles have to remember of it."""
        uid = raw["metadata"]["uid"]
        routed, begun = self.memory.recall(key, uid), self._begun_jobs.get(key)
        waiting_uid, wait = self._waits.get(key, ("", None))
        rejections = self._rejections.get(key, ())
        seen = await self.kinds[key.kind].observer.observe(key, raw)
        observed = replace(
            seen.observed, rejections=rejections, routed=routed, measured=measured,
            begun_job=begun.job if begun is not None and begun.uid == uid else None,
            wait=wait if waiting_uid == uid else None,
        )  # fmt: skip
        return replace(seen, observed=observed)

    async def _plan(
        self, key: ServiceKey, parsed: GNNService | GNNWorkerPool, identity: ServiceIdentity, seen: Observation
    ) -> _Decision:
        """Plan, and plan again for each place that has another owner or an object about to go, and for children to come
        that the API server would refuse: these refusals are returned too."""
        refused: tuple[Rejection, ...] | None = None
        began, version = self.clock.now(), (identity.uid, identity.generation)
        wanted_by, taken = self._taken.pop(key, (version, ()))
        if taken and wanted_by == version:
            # First, so that nothing else is looked up that is not applied as long as they are.
            again = await self.applier.look_again(key, identity.uid, taken, seen.known)
            self._taken[key] = (version, tuple(conflict.ref for conflict in again.conflicts))
            observed = replace(seen.observed, conflicts=again.conflicts, leaving=again.leaving)
            seen = Observation(observed, {**seen.known, **again.live})
        while True:
            # Turns are read and standings noted in one step: no other service is planned in between.
            pool = observe_pool(self.index, key, self._granted)
            seen = replace(seen, observed=replace(seen.observed, turns=self.fleet.turns(key), pool=pool))
            planned = self._plan_once(key, parsed, identity, seen.observed)
            self._granted[key] = planned.granted_bytes
            self.fleet.note(key, planned.standings, planned.followed)
            ahead = Ahead(planned.to_come, self.clock.now(), began - planned.to_come_good_s)
            survey = await self.applier.survey(key, identity.uid, planned.apply, seen.known, ahead)
            found = [conflict for conflict in survey.conflicts if conflict not in seen.observed.conflicts]
            going = [ref for ref in survey.leaving if ref not in seen.observed.leaving]
            if found or going:
                conflicts, leaving = (*seen.observed.conflicts, *found), (*seen.observed.leaving, *going)
                self._taken[key] = (version, tuple(conflict.ref for conflict in conflicts))
                seen = replace(seen, observed=replace(seen.observed, conflicts=conflicts, leaving=leaving))
                continue
            if refused is not None or not planned.tries_out:
                return _Decision(planned, seen, survey, refused or ())
            refused = await self.applier.try_out(planned.to_come, survey)
            tried = {observed_ref(manifest) for manifest in planned.to_come}
            rejections = (*(r for r in seen.observed.rejections if r.ref not in tried), *refused)
            if rejections == seen.observed.rejections:
                return _Decision(planned, seen, survey, refused)
            seen = replace(seen, observed=replace(seen.observed, rejections=rejections))

    def _plan_once(
        self, key: ServiceKey, parsed: GNNService | GNNWorkerPool, identity: ServiceIdentity, observed: ObservedState
    ) -> Plan:
        return self.kinds[key.kind].plan(parsed, identity, observed, self.settings, self.clock.utc())

    async def _carry_out(self, key: ServiceKey, raw: Manifest, decision: _Decision) -> tuple[Rejection, ...]:
        """Write what the plan says. Returns what the API server refuses, or would refuse."""
        planned, seen, survey = decision.planned, decision.seen, decision.survey
        changes, deletions = self.applier.changes(key, planned.apply, survey), deletable(planned.delete, seen.known)
        if planned.begins_job is not None and not _is_job_made(changes, survey):
            self.fleet.recount(key)  # something else has to be gone before
        if changes or deletions:
            for decided_on in (raw, *_grounds_of_unfinished(deletions, seen)):
                await self._check_still_so(decided_on)
        try:
            rejections = (*await self.applier.apply(key, changes), *decision.refused_trials)
            for live in deletions:
                await self.cluster.delete(live)
                logger.info("deleted %s", observed_ref(live), extra=key.about(reason="Deleted"))
        except (ConflictError, GoneError):
            self.pod_monitors.forget()  # which are not watched, and may be why
            raise
        if any(live["kind"] == POD_MONITOR.name for live in deletions):
            self.pod_monitors.forget()
        if any(rejection.ref.kind in _TAKE_TURNS for rejection in rejections):
            self.fleet.recount(key)
        return rejections

    async def _check_still_so(self, raw: Manifest) -> None:
        """Check an object at the API server, since a watch may lag behind: otherwise children of a deleted owner would
        come back, and those of an earlier spec would replace the present ones. Raises ConflictError."""
        ref = observed_ref(raw)
        live = await self.cluster.get(ref)
        is_edited = raw["kind"] == CONFIG_MAP.name and live is not None and content_of(live) != content_of(raw)
        if live is None or has_moved_on(live, raw) or is_edited:  # a ConfigMap has no generation
            raise ConflictError(f"{ref} has changed, and its watch has not told of it yet")

    def _newest(self, key: ServiceKey, raw: Manifest) -> Manifest:
        """The watch's newest version of the object, unless something changed that a decision depends on."""
        if self.index.has_version(key, raw):
            return raw
        told = self.index.service(key)
        if told is None or has_moved_on(told, raw):
            return raw
        return told

    def _identity(self, key: ServiceKey, raw: Manifest) -> ServiceIdentity:
        metadata = raw["metadata"]
        return ServiceIdentity(
            uid=metadata["uid"],
            generation=metadata["generation"],
            deleting=bool(metadata.get("deletionTimestamp")),
            status=self.reporter.status_of(key, raw),
            queue_labels=queue_labels(raw),
            last_known=self.reporter.note_known(key, raw),
            writers=self.index.replicas_writers(key),
        )

    def _forget(self, key: ServiceKey) -> None:
        self._rejections.pop(key, None)
        self._begun_jobs.pop(key, None)
        self._waits.pop(key, None)
        self._taken.pop(key, None)
        self._granted.pop(key, None)
        self.fleet.forget(key)
        self.slow_loop.follow(key, None)
        self.memory.forget(key)
        self.applier.forget(key)
        self.reporter.forget(key)


def _is_job_made(changes: Iterable[ObjectChange], survey: Survey) -> bool:
    """Whether the Job is about to be created, or exists and no watch has reported it yet."""
    is_there = any(survey.live[ref] is not None for ref, place in survey.places.items() if _is_job_of_ours(ref, place))
    return is_there or any(change.ref.kind == JOB.name for change in changes)


def _is_job_of_ours(ref: ObjectRef, place: NameOccupancy) -> bool:
    return ref.kind == JOB.name and place is NameOccupancy.OURS


def _grounds_of_unfinished(deletions: Iterable[Manifest], seen: Observation) -> list[Manifest]:
    """The service's claims and its table where a Job that is not over is to be deleted: on them depends whether it is
    needed, and what it has computed is lost with it."""
    unfinished = {job.name for job in seen.observed.jobs if not (job.succeeded or job.failed)}
    if not any(live["kind"] == JOB.name and live["metadata"]["name"] in unfinished for live in deletions):
        return []
    return [raw for ref, raw in seen.known.items() if ref.kind in _GROUNDS and raw is not None]


def _soonest(*delays_s: float | None) -> float | None:
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)
