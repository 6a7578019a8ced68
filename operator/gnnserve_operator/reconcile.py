"""One look at one GNNService: validate, observe, plan, apply, report.

The module holds only this order, and what each step passes to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gnnserve_api.spec.service import GNNService
from gnnserve_operator.apply import Ahead, Applier, Change, Place, Survey, deletable
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.repository import decide_claim
from gnnserve_operator.desired.metadata import Parent
from gnnserve_operator.desired.queue import queue_labels
from gnnserve_operator.errors import ConflictError, GoneError, RefusedError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import (
    CLAIM,
    DEPLOYMENT,
    JOB,
    POD_MONITOR,
    Manifest,
    ObjectRef,
    ServiceKey,
    has_moved_on,
    observed_ref,
)
from gnnserve_operator.logs import about
from gnnserve_operator.observe import Observer, Seen
from gnnserve_operator.observed import Rejection, ServiceWait
from gnnserve_operator.parsing import parse_service
from gnnserve_operator.plan import Plan, ServiceIdentity, plan, plan_for_invalid
from gnnserve_operator.report import Reporter
from gnnserve_operator.retention import Retention
from gnnserve_operator.settings import Settings
from gnnserve_operator.slow_loop import RoutingMemory, SlowLoop

_TAKE_TURNS = {JOB.name, DEPLOYMENT.name}
ServiceVersion = tuple[str, int]
"""uid and generation of a GNNService."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _BegunJob:
    uid: str
    """uid of the GNNService."""
    job: str


@dataclass(slots=True)
class Reconciler:
    settings: Settings
    index: Index
    cluster: Cluster
    observer: Observer
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
        """Reconcile one service. Returns the seconds until the next look. Raises OperatorError."""
        with self.fleet.attempt(key):
            return await self._reconcile(key)

    async def _reconcile(self, key: ServiceKey) -> float | None:
        raw = self.index.service(key)
        await self.retention.tell(key, raw)
        if raw is None:
            self._forget(key)
            return None
        identity = self._identity(key, raw)
        service = parse_service(raw)
        if isinstance(service, str):
            self.fleet.recount(key)
            self.slow_loop.follow(key, None)
            observed = await self.observer.observe_answers(key, raw)
            raw = self._newest(key, raw)
            planned = plan_for_invalid(self._identity(key, raw), service, observed, self.clock.utc())
            untold_s = await self.reporter.report(key, raw, planned.status, planned.events, self.clock.utc())
            return _soonest(planned.look_again_s, untold_s)
        await self._release(key, service, identity.uid)

        routed, measured = self.memory.recall(key, identity.uid), self.slow_loop.unread(key)
        begun = self._begun_jobs.get(key)
        waiting_uid, wait = self._waits.get(key, ("", None))
        seen = await self.observer.observe(
            key, raw,
            rejections=self._rejections.get(key, ()), routed=routed, measured=measured,
            begun_job=begun.job if begun is not None and begun.uid == identity.uid else None,
            wait=wait if waiting_uid == identity.uid else None,
        )  # fmt: skip
        # Asking takes seconds: a client that keeps writing annotations must not prevent the status from being written.
        raw = self._newest(key, raw)
        identity = self._identity(key, raw)
        seen, planned, survey, refused_trials = await self._plan(key, service, identity, seen)
        if planned.routed is not None:
            # Remembered before anything is written: if writing fails, the next attempt uses the same decision.
            self.memory.remember(key, identity.uid, planned.routed, service.spec.objective)
            self.slow_loop.read(key, measured)
        self.slow_loop.follow(key, planned.question)
        if planned.begins_job is not None:
            # Noted before it is created: if the status cannot be written afterwards, the Job is still reported.
            self._begun_jobs[key] = _BegunJob(identity.uid, planned.begins_job)
        changes, deletions = self.applier.changes(key, planned.apply, survey), deletable(planned.delete, seen.known)
        if planned.begins_job is not None and not _is_job_made(changes, survey):
            self.fleet.recount(key)  # something else has to be gone before
        if changes or deletions:
            for decided_on in (raw, *_claims_of_unfinished(deletions, seen)):
                await self._check_still_so(decided_on)
        try:
            rejections = (*await self.applier.apply(key, changes), *refused_trials)
            for live in deletions:
                await self.cluster.delete(live)
                logger.info("deleted %s", observed_ref(live), extra=about(key, reason="Deleted"))
        except (ConflictError, GoneError):
            self.observer.forget_pod_monitors()  # which are not watched, and may be why
            raise
        if any(live["kind"] == POD_MONITOR.name for live in deletions):
            self.observer.forget_pod_monitors()
        if any(rejection.ref.kind in _TAKE_TURNS for rejection in rejections):
            self.fleet.recount(key)
        if rejections != seen.observed.rejections:
            self._rejections[key] = rejections
            observed = replace(seen.observed, rejections=rejections)
            planned = plan(service, identity, observed, self.settings, self.clock.utc())
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

    async def release(self, key: ServiceKey) -> None:
        """Take the owner from claims of the service that are to stay. Raises OperatorError."""
        raw = self.index.service(key)
        service = None if raw is None else parse_service(raw)
        if raw is not None and isinstance(service, GNNService):
            await self._release(key, service, raw["metadata"]["uid"])

    async def _release(self, key: ServiceKey, service: GNNService, uid: str) -> None:
        parent, spec = Parent(key.name, key.namespace, uid), service.spec
        await self.retention.release(
            key, parent, spec.repository, lambda claim: decide_claim(uid, spec, claim, claim.name)
        )  # fmt: skip

    async def _plan(
        self, key: ServiceKey, service: GNNService, identity: ServiceIdentity, seen: Seen
    ) -> tuple[Seen, Plan, Survey, tuple[Rejection, ...]]:
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
            seen = Seen(observed, {**seen.known, **again.live})
        while True:
            # Turns are read and standings noted in one step: no other service is planned in between.
            observed = replace(
                seen.observed, turns=self.fleet.turns(key), pool=self.observer.pool_of(key, self._granted)
            )  # fmt: skip
            seen = replace(seen, observed=observed)
            planned = plan(service, identity, observed, self.settings, self.clock.utc())
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
                return seen, planned, survey, refused or ()
            refused = await self.applier.try_out(planned.to_come, survey)
            tried = {observed_ref(manifest) for manifest in planned.to_come}
            rejections = (*(r for r in seen.observed.rejections if r.ref not in tried), *refused)
            if rejections == seen.observed.rejections:
                return seen, planned, survey, refused
            seen = replace(seen, observed=replace(seen.observed, rejections=rejections))

    async def _check_still_so(self, raw: Manifest) -> None:
        """Check an object at the API server, since a watch may lag behind: otherwise children of a deleted service
        would come back, and those of an earlier spec would replace the present ones. Raises ConflictError."""
        ref = observed_ref(raw)
        live = await self.cluster.get(ref)
        if live is None or has_moved_on(live, raw):
            raise ConflictError(f"{ref} has changed, and its watch has not told of it yet")

    def _newest(self, key: ServiceKey, raw: Manifest) -> Manifest:
        """The watch's newest version of the service, unless something changed that a decision depends on."""
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


def _is_job_made(changes: Iterable[Change], survey: Survey) -> bool:
    """Whether the Job is about to be created, or exists and no watch has reported it yet."""
    is_there = any(survey.live[ref] is not None for ref, place in survey.places.items() if _is_job_of_ours(ref, place))
    return is_there or any(change.ref.kind == JOB.name for change in changes)


def _is_job_of_ours(ref: ObjectRef, place: Place) -> bool:
    return ref.kind == JOB.name and place is Place.OURS


def _claims_of_unfinished(deletions: Iterable[Manifest], seen: Seen) -> list[Manifest]:
    """The service's claims where a Job that is not over is to be deleted: on them depends whether it is needed, and
    what it has computed is lost with it."""
    unfinished = {job.name for job in seen.observed.jobs if not (job.succeeded or job.failed)}
    if not any(live["kind"] == JOB.name and live["metadata"]["name"] in unfinished for live in deletions):
        return []
    return [raw for ref, raw in seen.known.items() if ref.kind == CLAIM.name and raw is not None]


def _soonest(*delays_s: float | None) -> float | None:
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)
