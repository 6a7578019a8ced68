"""Is the published revision damaged, and may it be generated again?

A worker reports that the files are not what was published (`Damage`). The generation Job then sets the revision aside
and makes it again, at most twice a day, because a volume that keeps damaging files needs a person.

The record is kept on the routing ConfigMap, and written there before a Job begins: a ConfigMap that cannot be written
must not lead to one repair after another. Repairs are numbered. A Job has the number of its repair, and the routing
table that of the last completed one: so neither an earlier Job nor an earlier finding of a worker is mistaken for a
present one, whatever the clocks say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gnnserve_api.reasons import Reason
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.decide.published import Published
from gnnserve_operator.decide.repository import RepositoryDecision
from gnnserve_operator.desired.labels import SERVICE
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord
from gnnserve_operator.observed import Observed, ObservedRouting

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
    published: Published | None,
    repository: RepositoryDecision,
    observed: Observed,
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


def _is_of_other_claim(routing: ObservedRouting, published: Published, repository: RepositoryDecision) -> bool:
    """Whether the record is about a revision in another claim. The watch of the ConfigMap may lag behind, and still
    tell of a pending repair when the revision lies in the next claim, undamaged."""
    recorded = routing.claim_uid or repository.oldest_uid
    return "" not in {recorded, published.claim_uid} and recorded != published.claim_uid


def _is_done(record: RepairRecord, published: Published, observed: Observed) -> bool:
    return record.pending and any(
        job.name == published.job and job.repair == record.count for job in observed.jobs
    )  # fmt: skip


def _is_said_damaged(published: Published, repository: RepositoryDecision, observed: Observed) -> bool:
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
