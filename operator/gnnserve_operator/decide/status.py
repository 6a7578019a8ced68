"""Turns conditions into the status: waits that last too long, namespaces in commands, times, and what `kubectl get`
shows; and decides which events are posted, and when to look again.

Most waits have an end of their own: a Job has a deadline, a rollout a progress deadline, a queue moves on. Others have
none: a finalizer that is never removed, an endpoint that a network policy closes, a pod that crashes for ever, a worker
that never takes on a table. Where the same words were said for so long, the service is Stalled, with these words. As
soon as they change, it goes on.

Messages are written where something is decided, without the namespace. Those who read a command in an alert, an event
or a list of all services are in another namespace, so it is filled in here, for all messages at once.

Most of what a service waits for sends an event, or the fleet wakes it. The rest has to be looked for: workers that
switch, objects that go, and what no watch covers.

An event is posted for each transition, found by comparing the previous status with the present one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from gnnserve_api.status.verdict import Verdict
from gnnserve_operator.decide.jobs import GenerationDecision, GenerationStage, words_of_start
from gnnserve_operator.decide.readiness import Conditions, Situation
from gnnserve_operator.decide.workers import AWAITED, NOT_YET_OR_NOT_WANTED, Workers, ready_workers
from gnnserve_operator.desired.metadata import fields_to_bring_back
from gnnserve_operator.kinds import ObjectRef
from gnnserve_operator.observed import ObservedJob, ObservedState, ServiceWait

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
    graph_changes: bool,
) -> Status:
    """`in_service`: by variant, what `VariantStatus.accuracy_in_service` says."""
    variants = () if result is None else result.variants
    tiers = {} if result is None else result.tiers_permille(graph_changes=graph_changes)
    status = GNNServiceStatus(
        observed_generation=generation,
        conditions=build_conditions(conditions, generation, before, now),
        endpoint=endpoint,
        revision=None if result is None else result.revision,
        base_variant=base_variant if any(variant.name == base_variant for variant in variants) else None,
        variant_names=" ".join(variant.name for variant in variants) or None,
        variants=tuple(_variant(one, tiers.get(one.name), in_service.get(one.name)) for one in variants),
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


def _variant(variant: VariantSummary, tier_permille: int | None, in_service: str | None) -> VariantStatus:
    return VariantStatus(
        name=variant.name,
        columns=variant.columns,
        accuracy=f"{variant.accuracy_permille / 1000:.4f}",
        latency_ms=f"{variant.latency_ms:.3g}",
        factor=variant.factor,
        size_bytes=variant.size_bytes,
        memory_bytes=variant.memory_bytes,
        tier_permille=tier_permille,
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


NORMAL, WARNING = "Normal", "Warning"
_UNKNOWN = "Unknown"
GENERATION_STARTED, GENERATION_QUEUED = "GenerationStarted", "GenerationQueued"
COMPACTION_STARTED = "CompactionStarted"
_EXPECTED = frozenset(
    {
        Reason.SUSPENDED,
        Reason.SCALED_TO_ZERO,
        Reason.QUEUED,
        Reason.GENERATING,
        Reason.ROLLING_OUT,
        Reason.REVISION_SWITCHING,
    }
)
"""Reasons for which a service is no longer ready although nothing is wrong."""
TURNING = (
    ConditionType.CREDENTIALS_VALID,
    ConditionType.REPOSITORY_KEPT,
    ConditionType.ACCURACY_HOLDS,
    ConditionType.UPDATES_FOLLOWED,
    ConditionType.EMBEDDINGS_PUBLISHED,
    ConditionType.CANARY_ANSWERS,
    ConditionType.PROGRAM_HEALTHY,
    ConditionType.REPLICAS_UNCONTESTED,
)
"""Conditions whose turns are events, called as the condition's reason is."""
LOSSES: Mapping[ConditionType, tuple[str, str]] = {
    ConditionType.METRICS_AVAILABLE: ("MetricsUnavailable", "MetricsAvailable"),
}
"""Conditions that may be false for as long as a service lives, so that only a loss, and its end, are events; each with
their names. Another reason is no event: the reasons of one trouble alternate."""
KNOWN = (ConditionType.AVAILABLE, *LOSSES)
"""Conditions whose turns are told by what was known last: that one is not known for a while is no event, and must not
hide a turn, nor repeat one."""
NOTHING_KNOWN: Mapping[str, str] = {}
"""Statuses known last by an operator that has just started."""


@dataclass(frozen=True, slots=True)
class EventNote:
    type: str
    """Normal or Warning."""
    reason: str
    message: str


def decide_events(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    generation: GenerationDecision | None,
    why_base: str | None,
    begun_job: ObservedJob | None = None,
    named: str | None = None,
    last_known: Mapping[str, str] = NOTHING_KNOWN,
) -> tuple[EventNote, ...]:
    """The events of a transition. `why_base`: why the slow loop chose the base variant; None: it did not. `begun_job`:
    an existing Job that may not have been announced. `named`: spec.revision. `last_known`: see `last_known_in`."""
    ready, was_ready = condition_in(now, ConditionType.READY), condition_in(before, ConditionType.READY)
    notes = [
        _suspended(ready, was_ready),
        _generation_queued(before, now),
        _generation_started(before, now, generation, begun_job, named),
        _generation_failed(before, now),
        _revision_damaged(before, now),
        _revision_published(before, now),
        *(_turned(before, now, kind) for kind in TURNING),
        *(_lost(before, now, kind, last_known) for kind in LOSSES),
        decide_available_event(before, condition_in(now, ConditionType.AVAILABLE), last_known),
        _ready(ready, was_ready),
        _stalled(before, now),
        _routing_changed(before, now, why_base),
    ]
    return tuple(note for note in notes if note is not None)


def _suspended(ready: Mapping[str, Any], was: Mapping[str, Any]) -> EventNote | None:
    is_suspended, was_suspended = (c.get("reason") == Reason.SUSPENDED for c in (ready, was))
    if is_suspended and not was_suspended:
        return EventNote(NORMAL, "Suspended", ready["message"])
    if was_suspended and not is_suspended:
        return EventNote(NORMAL, "Resumed", "spec.suspend is false again: generation and workers go on.")
    return None


def _generation_queued(before: Mapping[str, Any], now: Mapping[str, Any]) -> EventNote | None:
    queued, was = (condition_in(status, ConditionType.VARIANTS_GENERATED) for status in (now, before))
    if queued["reason"] != Reason.QUEUED or was.get("reason") == Reason.QUEUED:
        return None
    return EventNote(NORMAL, GENERATION_QUEUED, queued["message"])


def _generation_started(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    generation: GenerationDecision | None,
    begun_job: ObservedJob | None,
    named: str | None,
) -> EventNote | None:
    compacts = generation.compacts if generation is not None else begun_job is not None and bool(begun_job.compacts)
    told_in = ConditionType.RECONCILING if compacts else ConditionType.VARIANTS_GENERATED
    was_queued, is_queued = (condition_in(status, told_in).get("reason") == Reason.QUEUED for status in (before, now))
    if generation is not None and generation.stage == GenerationStage.STARTING:
        message = generation.message
    elif (
        generation is not None
        and generation.stage == GenerationStage.RUNNING
        and generation.job
        and was_queued > is_queued
    ):
        message = words_of_start(generation.job, named, compacts=compacts)
    elif begun_job is not None:
        message = words_of_start(begun_job.name, named, compacts=compacts)
    else:
        return None
    # The watch may be behind: a Job that was announced is not announced again.
    if condition_in(before, told_in).get("message", "").endswith(message):
        return None
    return EventNote(NORMAL, COMPACTION_STARTED if compacts else GENERATION_STARTED, message)


def _generation_failed(before: Mapping[str, Any], now: Mapping[str, Any]) -> EventNote | None:
    failed, was = (condition_in(status, ConditionType.VARIANTS_GENERATED) for status in (now, before))
    if failed["reason"] not in {Reason.GENERATION_FAILED, Reason.RESULT_UNREADABLE}:
        return None
    if (failed["reason"], failed["message"]) == (was.get("reason"), was.get("message")):
        return None
    return EventNote(WARNING, "GenerationFailed", failed["message"])


def _revision_damaged(before: Mapping[str, Any], now: Mapping[str, Any]) -> EventNote | None:
    generated, was = (condition_in(status, ConditionType.VARIANTS_GENERATED) for status in (now, before))
    if generated["reason"] != Reason.REVISION_DAMAGED or was.get("reason") in {Reason.REVISION_DAMAGED, Reason.QUEUED}:
        return None
    return EventNote(WARNING, Reason.REVISION_DAMAGED, generated["message"])


def _revision_published(before: Mapping[str, Any], now: Mapping[str, Any]) -> EventNote | None:
    revision = now.get("revision")
    if revision is None or revision == before.get("revision"):
        return None
    return EventNote(
        NORMAL, "RevisionPublished", f"Revision {revision} is published, with variants {now.get('variantNames', '')}."
    )


def last_known_in(status: Mapping[str, Any], last_known: Mapping[str, str]) -> Mapping[str, str]:
    """The status, True or False, of each condition of KNOWN: as `status` has it, or, where it is not known there, as it
    was known last. Absent: it never was, as far as the operator remembers, which a restart makes it forget."""
    told = {kind.value: condition_in(status, kind).get("status", _UNKNOWN) for kind in KNOWN}
    return {**last_known, **{kind: found for kind, found in told.items() if found != _UNKNOWN}}


def decide_available_event(
    before: Mapping[str, Any], available: Mapping[str, Any], last_known: Mapping[str, str] = NOTHING_KNOWN
) -> EventNote | None:
    """The event of a service, or a pool, whose Available turns between true and false. That it is not known is none:
    it is looked at again. `before`: the status as it was; `last_known`: see `last_known_in`."""
    # What an earlier release wrote does not tell of it.
    untold = _UNKNOWN if before.get("conditions") else "False"
    turn = (last_known_in(before, last_known).get(ConditionType.AVAILABLE, untold), available["status"])
    if turn == ("False", "True"):
        return EventNote(NORMAL, "Available", available["message"])
    is_lost = turn in {("True", "False"), (_UNKNOWN, "False")}
    if is_lost and available["reason"] not in NOT_YET_OR_NOT_WANTED:
        return EventNote(WARNING, "Unavailable", available["message"])
    return None


def _ready(ready: Mapping[str, Any], was: Mapping[str, Any]) -> EventNote | None:
    if ready["status"] == was.get("status", "False"):
        return None
    if ready["status"] == "True":
        return EventNote(NORMAL, "Ready", ready["message"])
    # Not ready because of an edit is what was asked for.
    is_edited = ready["observedGeneration"] != was.get("observedGeneration")
    if is_edited or ready["reason"] in _EXPECTED:
        return None
    return EventNote(WARNING, "NotReady", ready["message"])


def _turned(before: Mapping[str, Any], now: Mapping[str, Any], kind: ConditionType) -> EventNote | None:
    """An event when a condition becomes false, or false for another reason, and when it is true again."""
    told, was = (condition_in(status, kind) for status in (now, before))
    if told.get("status") == "False" and (was.get("status"), was.get("reason")) != ("False", told["reason"]):
        return EventNote(WARNING, told["reason"], told["message"])
    if told.get("status") == "True" and was.get("status") == "False":
        return EventNote(NORMAL, told["reason"], told["message"])
    return None


def _lost(
    before: Mapping[str, Any], now: Mapping[str, Any], kind: ConditionType, last_known: Mapping[str, str]
) -> EventNote | None:
    """An event when a condition that was true is false, and when it is true again, also where it was not known in
    between."""
    told = condition_in(now, kind)
    lost, back = LOSSES[kind]
    turn = (last_known_in(before, last_known).get(kind), told.get("status"))
    if turn == ("True", "False") and told["reason"] != Reason.NOT_CONFIGURED:
        return EventNote(WARNING, lost, told["message"])
    return EventNote(NORMAL, back, told["message"]) if turn == ("False", "True") else None


def _stalled(before: Mapping[str, Any], now: Mapping[str, Any]) -> EventNote | None:
    stalled, was = (condition_in(status, ConditionType.STALLED) for status in (now, before))
    if stalled["status"] != "True" or (was.get("status"), was.get("reason")) == ("True", stalled["reason"]):
        return None
    if stalled["reason"] in {Reason.GENERATION_FAILED, Reason.RESULT_UNREADABLE, Reason.CREDENTIALS_UNUSABLE}:
        # Announced by an event of that name already.
        return None
    return EventNote(WARNING, "Stalled", stalled["message"])


def _routing_changed(before: Mapping[str, Any], now: Mapping[str, Any], why_base: str | None) -> EventNote | None:
    old, new = before.get("baseVariant"), now.get("baseVariant")
    if why_base is None or None in {old, new} or old == new:
        return None
    return EventNote(NORMAL, "RoutingChanged", f"The base variant is {new} and no longer {old}: {why_base}.")


def retained_note(kind: str, name: str, claim: ObjectRef, fields: str | None) -> EventNote:
    """The event of a claim that stays after its owner, a GNNService or GNNWorkerPool, was deleted. `fields`: those that
    bring it back, as the claim itself says."""
    again = fields or fields_to_bring_back(claim.name, "")
    return EventNote(
        NORMAL,
        Reason.REPOSITORY_RETAINED,
        f"{kind} {name} is deleted, and {claim} stays, with all that is in it (spec.repository.deletionPolicy). To "
        f"bring it back, make {kind} {name} again with {again}. To be rid of it: "
        f"`kubectl delete -n {claim.namespace} {claim.kind.lower()}/{claim.name}`.",
    )


@dataclass(frozen=True, slots=True)
class LeftLog:
    """A log of changes that stays after its GNNService was deleted, and of which no claim that stays tells."""

    uid: str
    """The uid by which it is known."""
    users_claim: str = ""
    """Claim of the user's on which it lies, or what was compacted of it; empty: none."""
    in_database: bool = False
    lost: int = 0
    """Offset up to which its changes were compacted into a repository that is deleted; 0: none were."""


def log_note(name: str, log: LeftLog) -> EventNote:
    """The event of a log that stays after GNNService `name` was deleted."""
    told = [f"GNNService {name} is deleted, and its log of changes stays{' in the database' * log.in_database}."]
    if log.lost:
        told.append(
            f"Nothing can go on with it: its changes up to offset {log.lost} were compacted into the repository, which "
            "is deleted too (spec.repository.deletionPolicy)."
        )
    else:
        fields = fields_to_bring_back(log.users_claim, log.uid) if log.users_claim else f"spec.updates.adopt: {log.uid}"
        told.append(f"To go on with it, make GNNService {name} again with {fields}.")
    if log.in_database:
        told.append(f"To be rid of it: `gnnserve changes purge MANIFEST --uid {log.uid} --postgres-uri-file FILE`.")
    return EventNote(NORMAL, "ChangesRetained", " ".join(told))
