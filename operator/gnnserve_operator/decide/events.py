"""Decides which events are posted: one for each transition, found by comparing the previous status with the present
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator.decide.generation import GenerationDecision, GenerationStage, words_of_start
from gnnserve_operator.decide.status import condition_in
from gnnserve_operator.decide.workers import NOT_YET_OR_NOT_WANTED
from gnnserve_operator.desired.metadata import fields_to_bring_back
from gnnserve_operator.kinds import ObjectRef
from gnnserve_operator.observed import ObservedJob

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
