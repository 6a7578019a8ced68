"""Children that builders make of a service, found by kind."""

from __future__ import annotations

from typing import Any

from tests.support.operator.observed import UID, make_result, make_settings

from gnnserve_api.spec.service import GNNService
from gnnserve_operator.decide.repository import decide_claim, decide_repository
from gnnserve_operator.desired.children import ChildInputs, build_children
from gnnserve_operator.desired.deployment import MountedClaim
from gnnserve_operator.desired.job import build_job
from gnnserve_operator.desired.metadata import Parent
from gnnserve_operator.desired.routing import declared_table
from gnnserve_operator.observed import ObservedState


def build(service: GNNService, **settings: Any) -> dict[tuple[str, str], dict[str, Any]]:
    parent = Parent(service.metadata.name, service.metadata.namespace, UID)
    result = make_result(service.spec.recipe())
    made = make_settings(**settings)
    claim = decide_repository(parent.name, service.spec, ObservedState()).name
    given = ChildInputs(
        parent,
        service.spec,
        made,
        routing=(declared_table(service.spec, result), result),
        claim=decide_claim(UID, service.spec, None, claim),
        routing_claim_uid="uid-of-the-claim",
        mounted=MountedClaim(claim, "uid-of-the-claim"),
        with_workers=True,
        job=build_job(parent, service.spec, made, claim),
        pod_monitor_available=True,
    )
    return {(child["kind"], child["metadata"]["name"]): child for child in build_children(given)}


def of_kind(children: dict[tuple[str, str], dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [child for (k, _), child in children.items() if k == kind]
    return found


def pod_of(children: dict[tuple[str, str], dict[str, Any]], kind: str) -> dict[str, Any]:
    pod: dict[str, Any] = of_kind(children, kind)["spec"]["template"]["spec"]
    return pod


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}
