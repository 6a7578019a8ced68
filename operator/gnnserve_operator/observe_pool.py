"""Observations of a pool and its services, from the index of the watches alone: nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gnnserve_api.pods.pool import SERVICES_KEY, PoolServices, counted_bytes, decode_services
from gnnserve_api.spec.service import GNNService
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator.apply import NameOccupancy, classify_place
from gnnserve_operator.desired.metadata import (
    DIGEST_ANNOTATION,
    belongs_to,
    digest_of,
    pool_services_name,
    routing_name,
)
from gnnserve_operator.desired.pool import claim_of, max_delta_of
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import CLAIM, CONFIG_MAP, Manifest, Raw, ServiceKey
from gnnserve_operator.observed import ObservedMember, ObservedPool, observed_routing
from gnnserve_operator.parsing import parse_pool, parse_service


def observe_pool(
    index: Index, key: ServiceKey, granted: Mapping[ServiceKey, int] | None = None
) -> ObservedPool | None:  # fmt: skip
    """The pool that a service names; None: it has pods of its own. `granted`: memory that was counted for services, of
    which the watch may not have told yet."""
    pool_key = index.pool_of(key)
    if pool_key is None:
        return None
    raw = index.service(pool_key)
    if raw is None or raw["metadata"].get("deletionTimestamp"):
        return ObservedPool(pool_key.name)
    pool = parse_pool(raw)
    if isinstance(pool, str):
        return ObservedPool(pool_key.name, problem=f"Its spec cannot be read: {pool}. Correct it.")
    claim = claim_of(pool_key.name, pool.spec)
    if pool.spec.repository.claim_name is None and _is_left_by_earlier(index, pool_key, raw["metadata"]["uid"], claim):
        words = f"{CLAIM.name} {claim} is that of an earlier pool of this name: do what its condition Stalled says."
        return ObservedPool(pool_key.name, problem=words)
    entry = observe_services(index, pool_key).of(key.name)
    others, counted = [other for other in index.members(pool_key) if other != key], granted or {}
    return ObservedPool(
        pool_key.name,
        pool.spec,
        claim=claim,
        port=None if entry is None else entry.port,
        taken_bytes=sum(max(counted.get(other, 0), observe_member(index, other).counted_bytes) for other in others),
    )


def _is_left_by_earlier(index: Index, pool_key: ServiceKey, uid: str, claim: str) -> bool:
    """Whether a claim is one that a deleted pool of that name left, in which nothing may be generated for this one."""
    found = index.child(pool_key, CLAIM, claim)
    return classify_place(found, pool_key.name, uid, pool_key.kind) is NameOccupancy.RETAINED


def observe_services(index: Index, pool_key: ServiceKey) -> PoolServices:
    """The list that the pool's workers follow; empty where it is not what the operator wrote."""
    raw = _config_map(index, pool_key, pool_services_name(pool_key.name))
    if raw is None:
        return PoolServices()
    data = raw.get("data") or {}
    annotations = raw["metadata"].get("annotations") or {}
    if annotations.get(DIGEST_ANNOTATION) != digest_of({SERVICES_KEY: data.get(SERVICES_KEY, "")}):
        return PoolServices()
    try:
        return decode_services(data.get(SERVICES_KEY, ""))
    except (msgspec.DecodeError, ValueError):  # another version of the operator wrote it
        return PoolServices()


def observe_member(index: Index, key: ServiceKey) -> ObservedMember:
    raw = index.service(key) or {"metadata": {"uid": ""}, "spec": {}}
    metadata = raw["metadata"]
    service = parse_service(raw) if raw.get("spec") else "it is gone"
    spec = service.spec if isinstance(service, GNNService) else None
    conditions = (raw.get("status") or {}).get("conditions") or ()
    told_of: dict[str, Raw] = {found["type"]: found for found in conditions}
    ready, available = (told_of.get(kind, {}) for kind in (ConditionType.READY, ConditionType.AVAILABLE))
    told = _config_map(index, key, routing_name(key.name))
    routing = None if told is None else observed_routing(told)
    table, result = (None, None) if routing is None else (routing.table, routing.result)
    counted = 0
    if table is not None and result is not None:
        counted = counted_bytes(result.revision_bytes, 0 if spec is None else max_delta_of(spec))
    is_ready = ready.get("status") == "True"
    return ObservedMember(
        name=key.name,
        uid=metadata["uid"],
        created_at=str(metadata.get("creationTimestamp", "")),
        deleting=bool(metadata.get("deletionTimestamp")),
        spec=spec,
        ready=is_ready,
        available=available.get("status") == "True",
        message="" if is_ready else str(ready.get("message", "")),
        is_refused=not is_ready and ready.get("reason") == Reason.POOL_FULL,
        revision=None if table is None else table.revision,
        counted_bytes=counted,
    )


def _config_map(index: Index, key: ServiceKey, name: str) -> Manifest | None:
    """The ConfigMap of that name that belongs to the present owner."""
    owner = index.service(key)
    if owner is None:
        return None
    found = (raw for raw in index.children(key, CONFIG_MAP) if raw["metadata"]["name"] == name)
    return next((raw for raw in found if belongs_to(raw, owner["metadata"]["uid"])), None)
