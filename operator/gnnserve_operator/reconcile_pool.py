"""One look at one GNNWorkerPool: parse, observe, plan, apply, report. The order is that of `reconcile.py`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from gnnserve_api.spec.pool import GNNWorkerPool
from gnnserve_operator.apply import Applier, Survey, deletable
from gnnserve_operator.belonging import belongs_to
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.repository import decide_pool_claim
from gnnserve_operator.desired.metadata import Parent
from gnnserve_operator.desired.names import pool_name
from gnnserve_operator.errors import ConflictError, GoneError, RefusedError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import (
    CLAIM,
    DEPLOYMENT,
    POD,
    Manifest,
    ObjectRef,
    ServiceKey,
    has_moved_on,
    observed_ref,
)
from gnnserve_operator.logs import about
from gnnserve_operator.observe import PodMonitors, RepositoryClaims
from gnnserve_operator.observe_pool import observe_member, observe_services, parse_pool
from gnnserve_operator.observed import (
    Observed,
    Rejection,
    observed_claim,
    observed_deployment,
    observed_pod,
)
from gnnserve_operator.plan import Plan, ServiceIdentity
from gnnserve_operator.plan_pool import PoolView, plan_for_unreadable_pool, plan_pool
from gnnserve_operator.report import Reporter
from gnnserve_operator.retention import Retention
from gnnserve_operator.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PoolReconciler:
    settings: Settings
    index: Index
    cluster: Cluster
    pod_monitors: PodMonitors
    claims: RepositoryClaims
    applier: Applier
    reporter: Reporter
    clock: Clock
    fleet: Fleet
    _rejections: dict[ServiceKey, tuple[Rejection, ...]] = field(default_factory=dict)
    retention: Retention = field(init=False)

    def __post_init__(self) -> None:
        self.retention = Retention(self.index, self.cluster, self.applier, self.clock)

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Reconcile one pool. Returns the seconds until the next look. Raises OperatorError."""
        with self.fleet.attempt(key):
            return await self._reconcile(key)

    async def _reconcile(self, key: ServiceKey) -> float | None:
        raw = self.index.service(key)
        await self.retention.tell(key, raw)
        if raw is None:
            self._rejections.pop(key, None)
            self.fleet.forget(key)
            self.applier.forget(key)
            self.reporter.forget(key)
            return None
        identity = ServiceIdentity(
            uid=raw["metadata"]["uid"],
            generation=raw["metadata"]["generation"],
            deleting=bool(raw["metadata"].get("deletionTimestamp")),
            status=self.reporter.status_of(key, raw),
            last_known=self.reporter.note_known(key, raw),
            writers=self.index.replicas_writers(key),
        )
        parsed = parse_pool(raw)
        if isinstance(parsed, str):
            self.fleet.recount(key)
            view = self._view(key, identity.uid, self._children(key), [], has_monitors=False)
            planned = plan_for_unreadable_pool(identity, parsed, view, self.clock.utc())
            return await self.reporter.report(key, raw, planned.status, planned.events, self.clock.utc())
        await self._release(key, parsed, identity.uid)
        listed = await self.pod_monitors.listed()
        known = self._children(key)
        known |= {} if listed is None else listed.of(key)
        told = [raw for ref, raw in known.items() if ref.kind == CLAIM.name and raw is not None]
        claims = await self.claims.of_pool(key.namespace, parsed.spec, told)
        view = self._view(key, identity.uid, known, claims, has_monitors=listed is not None)
        while True:
            # Turns are read and standings noted in one step: no other is planned in between.
            view = replace(view, observed=replace(view.observed, turns=self.fleet.turns(key)))
            planned = plan_pool(parsed, identity, view, self.settings, self.clock.utc())
            self.fleet.note(key, planned.standings, planned.followed)
            survey = await self.applier.survey(key, identity.uid, planned.apply, known)
            found = [conflict for conflict in survey.conflicts if conflict not in view.observed.conflicts]
            if not found:
                break
            view = replace(
                view, observed=replace(view.observed, conflicts=(*view.observed.conflicts, *found))
            )  # fmt: skip
        rejections = await self._write(key, raw, planned, survey, known)
        if rejections != view.observed.rejections:
            self._rejections[key] = rejections
            view = replace(view, observed=replace(view.observed, rejections=rejections))
            planned = plan_pool(parsed, identity, view, self.settings, self.clock.utc())
        now = self.clock.utc()
        self.reporter.queue(key, raw, self.applier.reverts.take_events(key, now), now)
        untold_s = await self.reporter.report(key, raw, planned.status, planned.events, self.clock.utc())
        if rejections:
            raise RefusedError(f"apply {', '.join(str(r.ref) for r in rejections)}", rejections[0].message, 422)
        delays_s = [delay_s for delay_s in (planned.look_again_s, untold_s) if delay_s is not None]
        return min(delays_s, default=None)

    async def release(self, key: ServiceKey) -> None:
        """Take the owner from the claim of the pool, if it is to stay. Raises OperatorError."""
        raw = self.index.service(key)
        pool = None if raw is None else parse_pool(raw)
        if raw is not None and isinstance(pool, GNNWorkerPool):
            await self._release(key, pool, raw["metadata"]["uid"])

    async def _release(self, key: ServiceKey, pool: GNNWorkerPool, uid: str) -> None:
        parent, place = Parent(key.name, key.namespace, uid, pool.kind), pool.spec.repository
        await self.retention.release(key, parent, place, lambda claim: decide_pool_claim(key.name, place, claim))

    def _children(self, key: ServiceKey) -> dict[ObjectRef, Manifest | None]:
        return {observed_ref(found): found for found in self.index.children(key) if found["kind"] != POD.name}

    async def _write(
        self,
        key: ServiceKey,
        raw: Manifest,
        planned: Plan,
        survey: Survey,
        known: dict[ObjectRef, Manifest | None],
    ) -> tuple[Rejection, ...]:
        changes = self.applier.changes(key, planned.apply, survey)
        deletions = deletable(planned.delete, known)
        if not changes and not deletions:
            return ()
        live = await self.cluster.get(observed_ref(raw))
        if live is None or has_moved_on(live, raw):
            raise ConflictError(f"{key} has changed, and its watch has not told of it yet")
        try:
            rejections = await self.applier.apply(key, changes)
            for unwanted in deletions:
                await self.cluster.delete(unwanted)
                logger.info("deleted %s", observed_ref(unwanted), extra=about(key, reason="Deleted"))
        except (ConflictError, GoneError):
            self.pod_monitors.forget()
            raise
        if deletions:
            self.pod_monitors.forget()
        if any(rejection.ref.kind == DEPLOYMENT.name for rejection in rejections):
            self.fleet.recount(key)
        return rejections

    def _view(
        self,
        key: ServiceKey,
        uid: str,
        known: dict[ObjectRef, Manifest | None],
        claims: list[Manifest],
        *,
        has_monitors: bool,
    ) -> PoolView:
        owned = {ref: found for ref, found in known.items() if found is not None and belongs_to(found, uid)}
        name = pool_name(key.name)
        deployment = next((raw for ref, raw in owned.items() if (ref.kind, ref.name) == (DEPLOYMENT.name, name)), None)
        observed = Observed(
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=tuple(observed_pod(raw) for raw in self.index.children(key, POD)),
            claims=tuple(observed_claim(raw) for raw in claims),
            owned=tuple(owned),
            rejections=self._rejections.get(key, ()),
            pod_monitor_available=has_monitors,
        )
        members = tuple(observe_member(self.index, member) for member in self.index.members(key))
        return PoolView(observed, members, observe_services(self.index, key))
