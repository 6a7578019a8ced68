"""Finds the published revision from the children, which are the operator's only memory, and decides whether it is
damaged and may be generated again.

A Job's pod leaves the result in its termination message; the routing ConfigMap keeps it when Job and pod are gone.

A worker reports that the files are not what was published (`Damage`). The generation Job then sets the revision aside
and makes it again, at most twice a day, because a volume that keeps damaging files needs a person. The record is kept
on the routing ConfigMap, and written there before a Job begins: a ConfigMap that cannot be written must not lead to one
repair after another. Repairs are numbered. A Job has the number of its repair, and the routing table that of the last
completed one: so neither an earlier Job nor an earlier finding of a worker is mistaken for a present one, whatever the
clocks say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from gnnserve_api.pods.generation import GenerationResult, decode_result
from gnnserve_api.status.reasons import Reason
from gnnserve_operator.decide.repository import RepositoryDecision, is_of_lost_claim
from gnnserve_operator.desired.metadata import SERVICE
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord
from gnnserve_operator.observed import ObservedJob, ObservedPod, ObservedRouting, ObservedState
from gnnserve_routing.verdict import Problem, sentence

_LONGEST_LAG = timedelta(minutes=2)
"""Longest lag of a watch: one that lags for a minute makes the operator unhealthy, and it is restarted (`health.py`).
With many namespaces that is noticed later: then the Job is made again without need, and trains nothing."""


_NOT_OVER = frozenset({"Pending", "Running", "Unknown"})
"""Phases of a pod that may still end."""


@dataclass(frozen=True, slots=True)
class PublishedRevision:
    result: GenerationResult
    job: str | None = None
    """The Job whose result it is; None: it is known from the ConfigMap."""
    claim_uid: str = ""
    """uid of the claim that holds the revision; empty while unknown."""
    compacts: str = ""
    """The revision of the same recipe that the Job made this one of; empty: of none, or not known."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a succeeded Job, or why it has none. Neither: its pod has not been seen to end."""

    result: GenerationResult | None = None
    unreadable: str | None = None
    """Why its message is not a result."""
    is_of_another_recipe: bool = False
    """Whether it is unreadable because it is the result of another recipe than the Job's."""


def decide_published(recipe: str, repository: RepositoryDecision, observed: ObservedState) -> PublishedRevision | None:
    """The revision of the wanted recipe if there is one; else the one that workers answer from now.

    Of several of the wanted recipe it is the one whose graph is the newest, so that no earlier Job's result comes back
    when the last Job, or its pod, is gone. But a repair counts before what it has repaired, and a revision in a claim
    that stays before one in a claim that goes."""
    from_jobs = [
        PublishedRevision(result, job.name, repository.uid, job.compacts)
        for job in sorted(observed.jobs, key=lambda job: (job.created_at, job.name), reverse=True)
        if job.succeeded
        and not is_of_lost_claim(job, repository)
        and (result := read_result(job, observed.pods).result) is not None
    ]
    recorded = _find_recorded(from_jobs, repository, observed)
    repairs = {job.name for job in observed.jobs if _is_awaited_repair(job, observed)}
    wanted = [published for published in from_jobs if published.result.recipe == recipe]
    if repaired := [published for published in wanted if published.job in repairs]:
        return repaired[0]
    plain = [published for published in wanted if not published.compacts]
    is_counted = recorded is not None and recorded.result.recipe == recipe and repository.keeps(recorded.claim_uid)
    # Of equal ones the first counts: a Job that compacted nothing is not followed by another.
    ranked = [*plain, *([recorded] if recorded is not None and is_counted else []), *wanted]
    if ranked:
        return max(ranked, key=lambda published: published.result.offset)
    return recorded or next(iter(from_jobs), None)


def _find_recorded(
    from_jobs: list[PublishedRevision], repository: RepositoryDecision, observed: ObservedState
) -> PublishedRevision | None:  # fmt: skip
    """The revision that the ConfigMap tells of."""
    routing, claims = observed.routing, observed.claims
    if routing is not None and claims and routing.claim_uid not in {"", *(claim.uid for claim in claims)}:
        routing = None
    # An edited table is None: a table that was changed by hand was never published.
    if routing is None or routing.table is None or routing.result is None:
        return None
    table, result = routing.table, routing.result
    if (table.revision, table.recipe) != (result.revision, result.recipe):
        return None
    witness = next((published for published in from_jobs if published.result == result), None)
    claim_uid = routing.claim_uid or repository.oldest_uid
    return PublishedRevision(result, None, claim_uid) if witness is None else replace(witness, claim_uid=claim_uid)


def _is_awaited_repair(job: ObservedJob, observed: ObservedState) -> bool:
    record = None if observed.routing is None else observed.routing.repairs
    return record is not None and record.pending and job.repair == record.count


def is_result_awaited(job: ObservedJob, pods: Iterable[ObservedPod], now: datetime) -> bool:
    """Whether the pod of a succeeded Job may yet be seen to end: Jobs and pods are told of by two watches, and that of
    the pods may be behind by any state of theirs, also before there was one."""
    own = [pod for pod in pods if pod.job == job.name]
    if any(ended_well(pod) for pod in own):
        return False
    # One that the kubelet rejected is Failed, and never had a container that could end.
    if any(pod.terminated is None and pod.phase in _NOT_OVER and not pod.deleting for pod in own):
        return True
    # Also where the API server's clock is ahead of ours: not for hours.
    return bool(job.succeeded_at) and abs(now - datetime.fromisoformat(job.succeeded_at)) < _LONGEST_LAG


def ended_well(pod: ObservedPod) -> bool:
    return pod.terminated is not None and pod.terminated.exit_code == 0


def read_result(job: ObservedJob, pods: Iterable[ObservedPod]) -> JobResult:
    ended = [pod for pod in pods if pod.job == job.name and ended_well(pod)]
    if not ended:
        return JobResult()
    pod = max(ended, key=lambda pod: (pod.created_at, pod.name))
    message = pod.terminated.message if pod.terminated is not None else ""
    try:
        result = decode_result(message)
    except msgspec.DecodeError as error:
        return JobResult(unreadable=f"pod {pod.name} left no result that this operator understands ({error})")
    # A Job without its label was edited by hand; what it published is published all the same.
    if job.recipe and result.recipe != job.recipe:
        return JobResult(
            unreadable=f"pod {pod.name} generated recipe {sentence(result.recipe)!r}, not {job.recipe!r} as asked",
            is_of_another_recipe=True,
        )
    return JobResult(result=result)


MOST_REPAIRS = 2
_WITHIN = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Repair:
    record: RepairRecord = NO_REPAIRS
    """The record to store on the routing ConfigMap."""
    words: str = ""
    """Message about the finding and the repair, while a Job is to generate the revision again."""
    problem: Problem | None = None
    """The problem of a damaged revision that was generated again too often."""
    under_way: int | None = None
    """The number of the repair whose Job is wanted; None also while the record of it has yet to be written."""


def decide_repair(
    service: str,
    recipe: str,
    published: PublishedRevision | None,
    repository: RepositoryDecision,
    observed: ObservedState,
    now: datetime,
) -> Repair:
    """`recipe`: of the present spec. Another one is generated anyway, and so is a revision in a claim that goes."""
    routing = observed.routing
    if published is None or routing is None:
        return _going_on(NO_REPAIRS if routing is None else routing.repairs, "its revision")
    record, revision = routing.repairs, published.result.revision
    if _is_done(record, published, observed):
        return Repair(record.ended())
    is_elsewhere = _is_of_other_claim(routing, published, repository)
    if is_elsewhere or published.result.recipe != recipe or not repository.keeps(published.claim_uid):
        return Repair(record.without_pending())
    if record.pending or not _is_said_damaged(published, repository, observed):
        return _going_on(record, f"revision {revision}")
    recent = tuple(at for at in record.times if now - datetime.fromisoformat(at) < _WITHIN)
    if len(recent) >= MOST_REPAIRS:
        return Repair(record, problem=_too_often(service, revision, recent))
    begun = RepairRecord(record.count + 1, True, (*recent, _stamp(now)))
    return Repair(begun, _words(f"revision {revision}", begun))


def _going_on(record: RepairRecord, revision: str) -> Repair:
    """`revision`: in words."""
    if not record.pending:
        return Repair(record)
    return Repair(record, _words(revision, record), under_way=record.count)


def _is_of_other_claim(routing: ObservedRouting, published: PublishedRevision, repository: RepositoryDecision) -> bool:
    """Whether the record is about a revision in another claim. The watch of the ConfigMap may lag behind, and still
    tell of a pending repair when the revision lies in the next claim, undamaged."""
    recorded = routing.claim_uid or repository.oldest_uid
    return "" not in {recorded, published.claim_uid} and recorded != published.claim_uid


def _is_done(record: RepairRecord, published: PublishedRevision, observed: ObservedState) -> bool:
    return record.pending and any(
        job.name == published.job and job.repair == record.count for job in observed.jobs
    )  # fmt: skip


def _is_said_damaged(published: PublishedRevision, repository: RepositoryDecision, observed: ObservedState) -> bool:
    """Whether workers report damage that mount the revision's claim: workers that still mount another claim look at a
    revision of the same name there."""
    table = observed.routing.table if observed.routing is not None else None
    if table is None:
        return False
    claim = next((claim.name for claim in observed.claims if claim.uid == published.claim_uid), repository.name)
    there = {pod.name for pod in observed.pods if pod.claim == claim}
    return any(
        (answer.damaged.revision, answer.damaged.repair) == (published.result.revision, table.repair)
        for answer in observed.answers
        if answer.damaged is not None and answer.pod in there
    )


def _words(revision: str, record: RepairRecord) -> str:
    return (
        f"Files of {revision} were found damaged at {record.times[-1]}, so it is generated again (repair "
        f"{len(record.times)} of at most {MOST_REPAIRS} within a day)."
    )


def _too_often(service: str, revision: str, times: tuple[str, ...]) -> Problem:
    return Problem(
        Reason.REVISION_DAMAGED,
        f"Files of revision {revision} are damaged again, though it was generated again at {' and at '.join(times)}: "
        "its volume damages files, or something else writes to them. Look at the volume and at what else mounts it; "
        f"then `kubectl delete configmap,job --selector {SERVICE}={service}` has it generated once more.",
        needs_person=True,
    )


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
