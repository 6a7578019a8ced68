"""The table of children: a row for each kind, in the order in which children are applied.

Everything that depends on the kind of a child follows from its row: how it is built for each kind of owner, whether it
is watched, on which others it builds, whether the operator ever deletes it, and so which rights the operator needs. The
chart's roles grant exactly these (tests/control/test_rights.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from gnnserve_api.pods.generation import GenerationResult
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator import kinds
from gnnserve_operator.desired.access import (
    PoolPlace,
    build_embeddings_network_policy,
    build_generation_network_policy,
    build_pod_monitor,
    build_pool_network_policy,
    build_role,
    build_role_binding,
    build_service,
    build_service_account,
    build_worker_network_policy,
)
from gnnserve_operator.desired.deployment import (
    MountedClaim,
    build_deployment,
    build_disruption_budget,
    deployment_of,
    pool_pods,
)
from gnnserve_operator.desired.metadata import Parent, routing_name
from gnnserve_operator.desired.pool import PoolInputs, build_pool_template, build_services
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord, build_routing
from gnnserve_operator.desired.storage import WantedClaim, build_volume_claim
from gnnserve_operator.kinds import Manifest, ResourceKind
from gnnserve_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class ChildInputs:
    """The inputs from which the children of a GNNService are built."""

    parent: Parent
    spec: GNNServiceSpec
    settings: Settings
    routing: tuple[RoutingTable, GenerationResult] | None
    """The routing table for the workers; None: there is none yet."""
    claim: WantedClaim
    """The claim that the operator makes."""
    routing_claim_uid: str
    """uid of the claim that the declared revision lies in."""
    mounted: MountedClaim
    with_workers: bool
    job: Manifest | None
    """The generation Job, built by the plan, which needs its name before; None: none is to be applied."""
    pod_monitor_available: bool
    """Whether the API server knows PodMonitor."""
    repairs: RepairRecord = NO_REPAIRS
    embeddings_job: Manifest | None = None
    """The Job that makes embeddings; None: none is to be applied."""
    place: PoolPlace | None = None
    """Where the workers are, if they are those of a pool, which then owns all that belongs to them."""

    @property
    def has_pods(self) -> bool:
        """Whether worker pods are the service's own."""
        return self.place is None


class Removal(Enum):
    """When a child is deleted."""

    WITH_OWNER = auto()
    """Deleted with its owner, by Kubernetes' garbage collector, or retained (a claim); never by the operator."""
    WHEN_UNWANTED = auto()
    """Deleted as soon as it is no longer desired: a setting may remove it."""
    BY_DECISION = auto()
    """When a decision names it."""


@dataclass(frozen=True, slots=True)
class Child:
    kind: ResourceKind
    of_service: Callable[[ChildInputs], Iterable[Manifest | None]] | None = None
    """Children of this kind of a GNNService; None stands for one that should not exist now."""
    of_pool: Callable[[PoolInputs], Iterable[Manifest | None]] | None = None
    """Children of this kind of a GNNWorkerPool."""
    builds_on: tuple[ResourceKind, ...] = ()
    """Kinds that it depends on: it is not applied while one of these has another owner, or is leaving."""
    removal: Removal = Removal.WITH_OWNER
    is_watched: bool = True

    def build(self, given: ChildInputs | PoolInputs) -> Iterable[Manifest | None]:
        match given:
            case ChildInputs():
                return () if self.of_service is None else self.of_service(given)
            case PoolInputs():
                return () if self.of_pool is None else self.of_pool(given)

    @property
    def is_applied(self) -> bool:
        """Whether the operator applies it; otherwise a controller of Kubernetes makes it from another child."""
        return self.of_service is not None or self.of_pool is not None

    @property
    def verbs(self) -> frozenset[str]:
        """The rights that the operator needs for it. Server-side apply takes `patch`, and `create` for a new object."""
        found = {"get", "list"}
        if self.is_watched:
            found.add("watch")
        if self.is_applied:
            found |= {"create", "patch"}
        if self.removal is not Removal.WITH_OWNER:
            found.add("delete")
        return frozenset(found)


CHILDREN = (
    Child(
        kinds.SERVICE_ACCOUNT,
        lambda given: [build_service_account(given.parent) if given.has_pods else None],
        lambda given: [build_service_account(given.parent)],
    ),
    Child(
        kinds.ROLE,
        lambda given: [build_role(given.parent, [routing_name(given.parent.name)]) if given.has_pods else None],
        lambda given: [build_role(given.parent, given.followed)],
    ),
    Child(
        kinds.ROLE_BINDING,
        lambda given: [build_role_binding(given.parent) if given.has_pods else None],
        lambda given: [build_role_binding(given.parent)],
        builds_on=(kinds.ROLE, kinds.SERVICE_ACCOUNT),
    ),
    # Applied before the pods that they restrict.
    Child(
        kinds.NETWORK_POLICY,
        lambda given: [
            build_worker_network_policy(given.parent, given.spec, given.settings) if given.has_pods else None,
            build_generation_network_policy(given.parent, given.spec, given.settings),
            build_embeddings_network_policy(given.parent, given.spec, given.settings),
        ],
        lambda given: [
            build_pool_network_policy(
                given.parent, given.settings, with_database=given.with_database, receivers=given.receivers
            )
        ],
        removal=Removal.WHEN_UNWANTED,
    ),
    Child(
        kinds.CLAIM,
        lambda given: [build_volume_claim(given.parent, given.spec.repository, given.claim)],
        lambda given: [build_volume_claim(given.parent, given.spec.repository, given.claim)],
    ),
    # What workers follow.
    Child(
        kinds.CONFIG_MAP,
        lambda given: [
            build_routing(given.parent, *given.routing, given.routing_claim_uid, given.repairs)
            if given.routing is not None
            else None
        ],
        lambda given: [build_services(given.parent, given.services)],
    ),
    Child(kinds.SERVICE, lambda given: [build_service(given.parent, given.spec, given.place)]),
    # Which Jobs are of no use any more: `decide/jobs.py`, `decide/log_following.py`.
    Child(
        kinds.JOB,
        lambda given: [given.job, given.embeddings_job],
        builds_on=(kinds.CLAIM,),
        removal=Removal.BY_DECISION,
    ),
    Child(
        kinds.DEPLOYMENT,
        lambda given: [
            build_deployment(given.parent, given.spec, given.settings, given.mounted)
            if given.with_workers and given.has_pods
            else None
        ],
        lambda given: [
            deployment_of(
                given.parent, pool_pods(given.parent.name, given.spec), given.mounted, build_pool_template(given)
            )
        ],
        builds_on=(kinds.SERVICE_ACCOUNT, kinds.CONFIG_MAP, kinds.CLAIM),
    ),
    Child(
        kinds.DISRUPTION_BUDGET,
        lambda given: [build_disruption_budget(given.parent) if given.with_workers and given.has_pods else None],
        lambda given: [build_disruption_budget(given.parent)],
    ),
    # Listed from time to time and not watched (`PodMonitors` in `observe.py`): its API is not everywhere.
    Child(
        kinds.POD_MONITOR,
        lambda given: [
            build_pod_monitor(
                given.parent,
                given.spec.endpoint,
                [given.spec.routing.interval_seconds],
                given.pod_monitor_available and given.has_pods,
            )
        ],
        lambda given: [build_pod_monitor(given.parent, EndpointSpec(), given.intervals_s, given.pod_monitor_available)],
        removal=Removal.WHEN_UNWANTED,
        is_watched=False,
    ),
    Child(kinds.POD),
)

WATCHED_CHILDREN = tuple(child.kind for child in CHILDREN if child.is_watched)
PRUNED_KINDS = frozenset(child.kind.name for child in CHILDREN if child.removal is Removal.WHEN_UNWANTED)
_BUILT_ON = {child.kind.name: frozenset(kind.name for kind in child.builds_on) for child in CHILDREN}


def build_children(given: ChildInputs | PoolInputs) -> tuple[Manifest, ...]:
    """All children of an owner that should exist, in the order in which they are applied: what others build on comes
    first."""
    found = (manifest for child in CHILDREN for manifest in child.build(given))
    return tuple(manifest for manifest in found if manifest is not None)


def kinds_under(kind: str) -> frozenset[str]:
    """Names of the kinds that a child of this kind builds on; each owner has at most one child of each of them."""
    return _BUILT_ON.get(kind, frozenset())
