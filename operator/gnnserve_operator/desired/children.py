"""All children that should exist, in the order in which they are applied: what others build on comes first."""

from __future__ import annotations

from gnnserve_api.generation import GenerationResult
from gnnserve_api.gnnservice import GNNServiceSpec
from gnnserve_api.routing import RoutingTable
from gnnserve_operator.desired.deployment import MountedClaim, build_deployment
from gnnserve_operator.desired.disruption_budget import build_disruption_budget
from gnnserve_operator.desired.metadata import Manifest, Parent
from gnnserve_operator.desired.network_policy import build_generation_network_policy, build_worker_network_policy
from gnnserve_operator.desired.pod_monitor import build_pod_monitor
from gnnserve_operator.desired.repair import NO_REPAIRS, RepairRecord
from gnnserve_operator.desired.role import build_role, build_role_binding
from gnnserve_operator.desired.routing import build_routing
from gnnserve_operator.desired.service import build_service
from gnnserve_operator.desired.service_account import build_service_account
from gnnserve_operator.desired.volume_claim import build_volume_claim
from gnnserve_operator.settings import Settings


def build_children(
    parent: Parent,
    spec: GNNServiceSpec,
    settings: Settings,
    *,
    routing: tuple[RoutingTable, GenerationResult] | None,
    claim: str,
    claim_storage: str,
    routing_claim_uid: str,
    mounted: MountedClaim,
    repairs: RepairRecord = NO_REPAIRS,
    with_workers: bool,
    job: Manifest | None,
    pod_monitor_available: bool,
) -> tuple[Manifest, ...]:
    """`claim`: name of the claim that the operator makes; `routing_claim_uid`: of the claim that the declared revision
    lies in."""
    children = (
        build_service_account(parent),
        build_role(parent),
        build_role_binding(parent),
        # Before the pods that they are about.
        build_worker_network_policy(parent, settings),
        build_generation_network_policy(parent, spec, settings),
        build_volume_claim(parent, spec, claim, claim_storage),
        None if routing is None else build_routing(parent, *routing, routing_claim_uid, repairs),
        build_service(parent, spec),
        job,
        build_deployment(parent, spec, settings, mounted) if with_workers else None,
        build_disruption_budget(parent) if with_workers else None,
        build_pod_monitor(parent, spec, pod_monitor_available),
    )
    return tuple(child for child in children if child is not None)
