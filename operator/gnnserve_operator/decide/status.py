"""Turns conditions into the status: waits that last too long, namespaces in commands, times, and what `kubectl get`
shows.

Most waits have an end of their own: a Job has a deadline, a rollout a progress deadline, a queue moves on. Others have
none: a finalizer that is never removed, an endpoint that a network policy closes, a pod that crashes for ever, a worker
that never takes on a table. Where the same words were said for so long, the service is Stalled, with these words. As
soon as they change, it goes on.

Messages are written where something is decided, without the namespace. Those who read a command in an alert, an event
or a list of all services are in another namespace, so it is filled in here, for all messages at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from gnnserve_api.generation import GenerationResult, VariantSummary
from gnnserve_api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    GNNServiceStatus,
    UpdatesStatus,
    VariantStatus,
    WorkersStatus,
)
from gnnserve_operator.decide.generation import GenerationDecision, GenerationStage
from gnnserve_operator.decide.readiness import Conditions
from gnnserve_operator.decide.workers import Workers
from gnnserve_operator.observed import Observed, ServiceWait
from gnnserve_routing.verdict import Verdict

Status = dict[str, Any]

PATIENCE = timedelta(minutes=15)
"""Longest wait in unchanged words before the service is stalled; the progress deadline of a Deployment is as long."""
_UNCHANGED = "Nothing of this has changed for 15 minutes."
_COMMAND = re.compile(r"`kubectl (?![^`]*(?<!\S)(?:-n|-A|--namespace|--all-namespaces)\b)")
"""The beginning of a `kubectl` command that names no namespace."""


def decide_wait(
    conditions: Conditions, generation: GenerationDecision, observed: Observed, *, is_in_turn: bool, now: datetime
) -> ServiceWait | None:
    """What is waited for, and since when; None: nothing, or something with an end of its own. `is_in_turn`: the workers
    wait for those of other services."""
    going_on = conditions[ConditionType.RECONCILING]
    computes = generation.stage is GenerationStage.RUNNING and any(
        pod.running and pod.job == generation.job for pod in observed.pods
    )
    if not going_on.holds or is_in_turn or computes or generation.stage is GenerationStage.QUEUED:
        return None
    words = f"{going_on.reason}: {going_on.message}"
    return observed.wait if observed.wait is not None and observed.wait.words == words else ServiceWait(words, now)


def end_wait(conditions: Conditions, wait: ServiceWait | None, status: Mapping[str, Any], now: datetime) -> Conditions:
    """The conditions, Stalled where the wait has lasted too long. `status`: as it is now; what it calls stalled is so
    until something changes, also for an operator that has just started."""
    if wait is None:
        return conditions
    going_on = conditions[ConditionType.RECONCILING]
    message = f"{going_on.message} {_UNCHANGED}"
    stalled = condition_in(status, ConditionType.STALLED)
    is_said = (stalled.get("status"), stalled.get("message")) == ("True", message)
    if now - wait.since < PATIENCE and not is_said:
        return conditions
    still = "Nothing goes on until a person acts, or what is waited for comes; see Stalled."
    return conditions | {
        ConditionType.RECONCILING: Verdict(False, going_on.reason, still),
        ConditionType.STALLED: Verdict(True, going_on.reason, message),
    }


def with_namespace(conditions: Conditions, namespace: str) -> Conditions:
    """`kubectl logs x` becomes `kubectl --namespace shop logs x`."""
    return {
        kind: replace(verdict, message=_COMMAND.sub(f"`kubectl --namespace {namespace} ", verdict.message))
        for kind, verdict in conditions.items()
    }


def build_status(
    conditions: Conditions,
    *,
    result: GenerationResult | None,
    base_variant: str | None,
    repository_storage: str | None,
    workers: Workers,
    selector: str,
    endpoint: str | None,
    generation: int,
    before: Mapping[str, Any],
    now: datetime,
    in_service: Mapping[str, str],
    updates: UpdatesStatus | None,
) -> Status:
    """`in_service`: by variant, what `VariantStatus.accuracy_in_service` says."""
    variants = () if result is None else result.variants
    status = GNNServiceStatus(
        observed_generation=generation,
        conditions=build_conditions(conditions, generation, before, now),
        endpoint=endpoint,
        revision=None if result is None else result.revision,
        base_variant=base_variant if any(variant.name == base_variant for variant in variants) else None,
        variant_names=" ".join(variant.name for variant in variants) or None,
        variants=tuple(_variant(variant, in_service.get(variant.name)) for variant in variants),
        workers=WorkersStatus(
            replicas=workers.existing,
            ready_replicas=len(workers.ready),
            ready=f"{len(workers.ready)}/{workers.wanted}",
            selector=selector,
        ),
        updates=updates,
        repository_storage=repository_storage,
    )
    said = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    # As the API server would tell it: without what is empty.
    return {key: value for key, value in said.items() if value not in ([], "")}


def with_conditions(conditions: Conditions, generation: int, before: Mapping[str, Any], now: datetime) -> Status:
    """The status as it was, but for its conditions: everything else is not known anew."""
    said = {key: value for key, value in before.items() if key in _fields()}
    built = [
        condition.model_dump(mode="json", by_alias=True)
        for condition in build_conditions(conditions, generation, before, now)
    ]
    return said | {"observedGeneration": generation, "conditions": built}


def is_said_already(status: Status, before: Mapping[str, Any]) -> bool:
    """Other managers' conditions are theirs; one of ours that is not said any more has to go."""
    ours = {kind.value for kind in ConditionType}
    live = {key: before[key] for key in _fields() if key in before}
    live["conditions"] = _by_type([c for c in before.get("conditions") or () if c.get("type") in ours])
    return live == status | {"conditions": _by_type(status["conditions"])}


def is_same_status(status: Status, before: Mapping[str, Any]) -> bool:
    """As `is_said_already`, of an object whose status has no other writer."""
    return before == status


def condition_in(status: Mapping[str, Any], kind: StrEnum) -> Mapping[str, Any]:
    """{} where it is not there."""
    return next((dict(c) for c in status.get("conditions") or () if c.get("type") == kind.value), {})


def build_conditions(
    conditions: Mapping[Any, Verdict], generation: int, before: Mapping[str, Any], now: datetime
) -> tuple[Condition, ...]:
    """The conditions of a GNNService, or of a GNNWorkerPool. `before`: the status as it was."""
    built = []
    for kind, verdict in conditions.items():
        status = _STATUS_OF[verdict.holds]
        last = condition_in(before, kind)
        since = last.get("lastTransitionTime") if last.get("status") == status.value else None
        built.append(
            Condition(
                type=kind.value,
                status=status,
                reason=verdict.reason.value,
                message=verdict.message[:_LONGEST_MESSAGE],
                last_transition_time=since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                observed_generation=generation,
            )
        )
    return tuple(built)


_STATUS_OF = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}
_LONGEST_MESSAGE = 4096
"""Longest message of a condition, enough for every termination message; the schema would refuse what is over 32,768."""


def _variant(variant: VariantSummary, in_service: str | None) -> VariantStatus:
    return VariantStatus(
        name=variant.name,
        columns=variant.columns,
        accuracy=f"{variant.accuracy_permille / 1000:.4f}",
        latency_ms=f"{variant.latency_ms:.3g}",
        factor=variant.factor,
        size_bytes=variant.size_bytes,
        memory_bytes=variant.memory_bytes,
        tier_permille=variant.tier_permille,
        accuracy_in_service=in_service,
    )


def _by_type(conditions: list[Any]) -> list[Any]:
    return sorted(conditions, key=lambda condition: str(condition["type"]))


def _fields() -> set[str]:
    return {field.alias or name for name, field in GNNServiceStatus.model_fields.items()}
