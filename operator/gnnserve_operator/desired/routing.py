"""The ConfigMap that tells workers what to answer from, and the operator's memory of what was published."""

from __future__ import annotations

import msgspec

from gnnserve_api.generation import GENERATION_KEY, GenerationResult, encode_result
from gnnserve_api.routing import ROUTING_KEY, RoutingTable, encode_routing
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.labels import CLAIM_ANNOTATION, DIGEST_ANNOTATION, REPAIR_ANNOTATION, Component
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import routing_name
from gnnserve_operator.desired.repair import NO_REPAIRS, RepairRecord, encode_repairs
from gnnserve_operator.desired.routing_digest import routing_digest


def declared_table(spec: GNNServiceSpec, result: GenerationResult) -> RoutingTable:
    """The spec's objective and batching over a published revision, which may be an older spec's."""
    return spec.routing_table(result.revision, result.recipe)


def build_routing(
    parent: Parent,
    table: RoutingTable,
    result: GenerationResult,
    claim_uid: str,
    repairs: RepairRecord = NO_REPAIRS,
) -> Manifest:
    """`claim_uid`: of the claim that the revision lies in; empty where none is known."""
    table = msgspec.structs.replace(table, repair=repairs.done)
    data = {GENERATION_KEY: encode_result(result), ROUTING_KEY: encode_routing(table)}
    annotations = {DIGEST_ANNOTATION: routing_digest(data)}
    if claim_uid:
        annotations[CLAIM_ANNOTATION] = claim_uid
    if repairs.count:
        annotations[REPAIR_ANNOTATION] = encode_repairs(repairs)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(
            parent,
            routing_name(parent.name),
            Component.WORKER,
            annotations=annotations,
        ),
        "data": data,
    }
