"""Turns conditions into the status: waits that last too long, namespaces in commands, times, and what `kubectl get`
shows; and decides when to look again.

Most waits have an end of their own: a Job has a deadline, a rollout a progress deadline, a queue moves on. Others have
none: a finalizer that is never removed, an endpoint that a network policy closes, a pod that crashes for ever, a worker
that never takes on a table. Where the same words were said for so long, the service is Stalled, with these words. As
soon as they change, it goes on.

Messages are written where something is decided, without the namespace. Those who read a command in an alert, an event
or a list of all services are in another namespace, so it is filled in here, for all messages at once.

Most of what a service waits for sends an event, or the fleet wakes it. The rest has to be looked for: workers that
switch, objects that go, and what no watch covers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from gnnserve_api.pods.generation import GenerationResult, VariantSummary
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import (
    Condition,
    ConditionStatus,
    ConditionType,
    GNNServiceStatus,
    UpdatesStatus,
    VariantStatus,
    WorkersStatus,
)
from gnnserve_operator.decide.generation import GenerationDecision, GenerationStage
from gnnserve_operator.decide.readiness import Conditions, Situation
from gnnserve_operator.decide.workers import AWAITED, Workers, ready_workers
from gnnserve_operator.observed import ObservedState, ServiceWait
from gnnserve_routing.verdict import Verdict

Status = dict[str, Any]

PATIENCE = timedelta(minutes=15)
"""Longest wait in unchanged words before the service is stalled; the progress deadline of a Deployment is as long."""
_UNCHANGED = "Nothing of this has changed for 15 minutes."
_COMMAND = re.compile(r"`kubectl (?![^`]*(?<!\S)(?:-n|-A|--namespace|--all-namespaces)\b)")
"""The beginning of a `kubectl` command that names no namespace."""


def decide_wait(
    conditions: Conditions, generation: GenerationDecision, observed: ObservedState, *, is_in_turn: bool, now: datetime
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


_SOON_S = 1.0
"""Seconds to the next look while workers switch, or something is about to appear that sends no event."""
_LATER_S = 10.0
"""Seconds to the next look while something is under way that mostly sends events."""
_TAKEN_S = 2.0
"""Seconds to the next look while a name is taken by an object that no watch covers."""
_WORKERS_WORD_S = 15.0
"""Seconds to the next look at what workers alone know, and tell only when they are asked: the state of a Secret, and
how far they have followed the log of changes."""
_FAILED_S = 60.0
"""Seconds to the next look at a Job of embeddings that failed and is made again after some minutes."""
_WORKERS_WORD = frozenset({ConditionType.CREDENTIALS_VALID, ConditionType.UPDATES_FOLLOWED})
"""Conditions about it."""
_LINGERING = timedelta(minutes=1)
"""An object that is not deleted by then is held by something, and is looked at less often."""
_PATIENCE = timedelta(minutes=5)
"""Time for which something is looked for every second; after that, less often."""
_GENERATES = frozenset({Reason.GENERATING, Reason.REVISION_DAMAGED})


def next_look_s(
    situation: Situation, conditions: Conditions, wait: ServiceWait | None, status: Status, now: datetime
) -> float | None:
    """Seconds to the next look; None: what is waited for sends an event, or the next resync is soon enough."""
    delays_s = (
        _next_look_at_work_s(situation, conditions, wait, status, now),
        next_look_at_answers_s(conditions, situation.observed, status, now),
    )
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)


def next_look_at_answers_s(
    conditions: Conditions, observed: ObservedState, status: Status, now: datetime
) -> float | None:  # fmt: skip
    """Seconds to the next look at whether the endpoint answers; None: it does, or an event tells when it may."""
    available = conditions[ConditionType.AVAILABLE]
    if available.holds or available.reason not in AWAITED or not ready_workers(observed):
        return None
    return _SOON_S if _is_recent(condition_in(status, ConditionType.AVAILABLE), now) else _LATER_S


def _next_look_at_work_s(  # noqa: PLR0911 - a ladder, one rung a reason
    situation: Situation, conditions: Conditions, wait: ServiceWait | None, status: Status, now: datetime
) -> float | None:
    if situation.obstacle is not None and situation.obstacle.reason == Reason.NAME_TAKEN:
        return _TAKEN_S if _is_recent(condition_in(status, ConditionType.STALLED), now) else _LATER_S
    deployment = situation.observed.deployment
    is_gone_awaited = bool(situation.observed.leaving) or (deployment is not None and deployment.deleting)
    if is_gone_awaited or situation.work.stage == GenerationStage.WAITING:
        return _SOON_S if wait is None or now - wait.since < _LINGERING else _LATER_S
    if wait is not None and not conditions[ConditionType.RECONCILING].holds:
        return _LATER_S  # stalled, but the awaited change may still happen
    if (awaits_pod_s := _awaits_pod_s(situation.observed, now)) is not None:
        return awaits_pod_s
    is_followed = bool(_WORKERS_WORD & conditions.keys()) and situation.workers.wanted > 0
    at_rest_s = _WORKERS_WORD_S if is_followed else None
    embeddings = situation.embeddings
    if at_rest_s is None and embeddings is not None and embeddings.holds is False:
        at_rest_s = _FAILED_S
    if not conditions[ConditionType.RECONCILING].holds:
        return at_rest_s
    if conditions[ConditionType.READY].holds or situation.work.stage == GenerationStage.QUEUED:
        return at_rest_s  # the fleet wakes those whose turn has come
    is_answer_awaited = situation.workers.ready or any(pod.can_be_asked for pod in situation.observed.pods)
    ready = condition_in(status, ConditionType.READY)
    is_soon = is_answer_awaited and _is_recent(ready, now) and ready["reason"] not in _GENERATES
    return _SOON_S if is_soon else _LATER_S


def _awaits_pod_s(observed: ObservedState, now: datetime) -> float | None:
    """Seconds to the next look at the events of a Job that has no pod; None: each has one, or is suspended."""
    awaiting = [
        job.pod_due_since
        for job in (*observed.jobs, *observed.embeddings_jobs)
        if job.awaits_pod(observed.pods, now + timedelta(seconds=_SOON_S))
    ]
    if not awaiting:
        return None
    return _SOON_S if now - datetime.fromisoformat(max(awaiting)) < _LINGERING else _LATER_S


def _is_recent(condition: Mapping[str, Any], now: datetime) -> bool:
    return now - datetime.fromisoformat(condition["lastTransitionTime"]) < _PATIENCE
