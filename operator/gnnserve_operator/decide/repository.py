"""Decides which claim is the repository, how much storage it asks for, what workers mount, and whether the revisions
stay; which revision is published in it, and whether that one is damaged and may be generated again.

Kubernetes keeps a deleted claim as long as a pod on a node uses it, and starts no further pod with it. The workers
would have to go for the claim to go, and the claim would have to go for a Job or another worker to start. So the
operator makes another claim under the next name, has the revision generated into it while the workers answer from the
first, and then has them replaced one by one. All of it follows from the claims that are there.

It asks for no less storage than it has: Kubernetes would refuse that. An autoscaler of volumes, or a person, may have
made the claim larger than the spec says.

The published revision is found from the children, which are the operator's only memory. A Job's pod leaves the result
in its termination message; the routing ConfigMap keeps it when Job and pod are gone.

A worker reports that the files are not what was published (`Damage`). The generation Job then sets the revision aside
and makes it again, at most twice a day, because a volume that keeps damaging files needs a person. The record is kept
on the routing ConfigMap, and written there before a Job begins: a ConfigMap that cannot be written must not lead to one
repair after another. Repairs are numbered. A Job has the number of its repair, and the routing table that of the last
completed one: so neither an earlier Job nor an earlier finding of a worker is mistaken for a present one, whatever the
clocks say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count

import msgspec

from gnnserve_api.pods.generation import GenerationResult, decode_result
from gnnserve_api.quantity import parse_quantity
from gnnserve_api.spec.pool import POOL_KIND
from gnnserve_api.spec.repository import DeletionPolicy, RepositoryClaim, RepositoryPlace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import in_words, sentence
from gnnserve_operator.desired.deployment import MountedClaim
from gnnserve_operator.desired.metadata import SERVICE, Owner, pool_claim_name, repository_claim_name
from gnnserve_operator.desired.routing import NO_REPAIRS, RepairRecord
from gnnserve_operator.desired.storage import WantedClaim, keeps_log_in_repository, log_uid_of
from gnnserve_operator.kinds import GNNSERVICE
from gnnserve_operator.observed import (
    ObservedClaim,
    ObservedDeployment,
    ObservedJob,
    ObservedPod,
    ObservedRouting,
    ObservedState,
)

_USERS_FIELD = " (spec.repository.claimName)"
_RETAIN = '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'


@dataclass(frozen=True, slots=True)
class RepositoryDecision:
    """The claim that Jobs generate into."""

    name: str
    claim: ObservedClaim | None = None
    """The claim; None: it is yet to be made, or not reported yet."""
    is_users: bool = False
    """Whether the user names it in spec.repository.claimName."""
    leaving: tuple[ObservedClaim, ...] = ()
    """Claims that are being deleted; of the user's, the claim itself."""

    @property
    def uid(self) -> str:
        """uid of the claim; empty while it is not known."""
        return "" if self.claim is None else self.claim.uid

    @property
    def made(self) -> ObservedClaim | None:
        """The claim, if the operator made it."""
        return None if self.is_users else self.claim

    @property
    def oldest_uid(self) -> str:
        """uid of the oldest present claim: objects that earlier operators wrote name none."""
        claims = (*self.leaving, *((self.claim,) if self.claim is not None else ()))
        return min(claims, key=_age).uid if claims else ""

    def keeps(self, claim_uid: str) -> bool:
        """Whether the repository keeps a revision in the claim with that uid, as far as the operator can ensure it. An
        empty uid means that the claim is not known."""
        if not claim_uid:
            return True
        if self.claim is not None:
            return claim_uid == self.claim.uid
        return all(claim_uid != claim.uid for claim in self.leaving)


def decide_repository(service: str, spec: GNNServiceSpec, observed: ObservedState) -> RepositoryDecision:
    users = spec.repository.claim_name
    leaving = tuple(sorted((claim for claim in observed.claims if claim.deleting), key=_age))
    if users is not None:
        claim = next((claim for claim in observed.claims if claim.name == users), None)
        return RepositoryDecision(users, claim, is_users=True, leaving=leaving)
    staying = sorted((claim for claim in observed.claims if not claim.deleting), key=_age)
    if staying:
        # There are two where an earlier leader's write arrived late: the one with the revision counts.
        named = "" if observed.routing is None else observed.routing.claim_uid
        claim = next((claim for claim in staying if claim.uid == named), staying[0])
        return RepositoryDecision(claim.name, claim, leaving=leaving)
    taken = {claim.name for claim in leaving}
    names = (repository_claim_name(service, number) for number in count(1))
    return RepositoryDecision(next(name for name in names if name not in taken), leaving=leaving)


def is_of_lost_claim(job: ObservedJob, repository: RepositoryDecision) -> bool:
    """Whether what it generates is lost with the claim that it lies in, or goes with it."""
    if repository.is_users:
        # Its pod may have waited for the claim; a result from before the claim's creation lies in another claim.
        made = None if repository.claim is None else repository.claim.created_at
        return made is not None and bool(job.succeeded_at) and job.succeeded_at < made
    if job.claim not in {"", repository.name}:
        return True
    # Where none is seen, none is there: the API server itself was asked (`RepositoryClaims` in `observe.py`).
    return repository.claim is None or job.created_at < repository.claim.created_at


def holds_leaving_claim(job: ObservedJob, repository: RepositoryDecision) -> bool:
    """Whether the pods of an ended Job keep a claim from going, or lie in one that is lost."""
    is_users_going = repository.is_users and bool(repository.leaving)
    return is_users_going or is_of_lost_claim(job, repository)


def decide_mounted(repository: RepositoryDecision, declared_uid: str, observed: ObservedState) -> MountedClaim:
    """The claim that the workers' pod template should mount. `declared_uid`: uid of the claim of the declared revision;
    empty: there is none."""
    deployment, claims = observed.deployment, {claim.uid: claim for claim in observed.claims}
    claim = claims.get(declared_uid)
    if claim is None and deployment is not None:
        # The next claim is worth mounting only once there is a revision in it.
        claim = claims.get(deployment.claim_uid)
    claim = claim or repository.claim
    if claim is not None:
        return MountedClaim(claim.name, claim.uid, _successor_uid(claim, deployment))
    if deployment is None:
        return MountedClaim(repository.name)
    # While there is none, or it is not known, the template stays as it is.
    return MountedClaim(deployment.claim or repository.name, deployment.claim_uid, deployment.successor_uid)


def _successor_uid(claim: ObservedClaim, deployment: ObservedDeployment | None) -> str:
    """The uid that the pod template must name. A pod mounts the claim that existed when it started. If a claim was
    removed under running pods (without its protection), they answer on from mapped files, and never find a revision of
    its successor. If the successor has the same name, the template names its uid, so that pods are replaced one by one,
    each when its own successor answers."""
    if deployment is None:
        return ""
    if claim.uid == deployment.successor_uid:
        return claim.uid
    if deployment.claim not in {"", claim.name}:
        return ""
    return "" if deployment.claim_uid in {"", claim.uid} else claim.uid


def decide_kept(
    uid: str, repository: RepositoryDecision, published: GenerationResult | None, claim_uid: str, spec: GNNServiceSpec
) -> Verdict:
    """Whether the claim with the revisions of the GNNService with `uid` stays. `published`: the published one, in the
    claim with `claim_uid`."""
    if repository.is_users:
        return _decide_users(uid, repository, published, spec)
    going = next((claim for claim in repository.leaving if claim.uid == claim_uid), None)
    if going is None:
        return _decide_staying(repository.name, "", repository.claim, (), published, is_made_by_us=True)
    again = (
        f"spec.suspend is true: the last pod is about to go. Once it is false, the revision is generated again, into "
        f"PersistentVolumeClaim {repository.name}."
        if spec.suspend
        else f"The revision is generated again, into PersistentVolumeClaim {repository.name}, and workers then move "
        "there one by one. Until then do not restart workers and do not set spec.suspend: no pod can start with a "
        "claim that is being deleted."
    )
    return Verdict(False, Reason.VOLUME_CLAIM_TERMINATING, f"{_words_of_going(going, published, spec)} {again}")


def _decide_users(
    uid: str, repository: RepositoryDecision, published: GenerationResult | None, spec: GNNServiceSpec
) -> Verdict:
    pool = spec.worker.pool_ref
    field = _USERS_FIELD if pool is None else f" (of {POOL_KIND} {pool.name})"
    name, claim = repository.name, repository.claim
    if claim is None or not claim.deleting:
        owners = () if claim is None else _other_owners(claim, uid, spec)
        is_pools = pool is not None and name == pool_claim_name(pool.name)
        return _decide_staying(name, field, claim, owners, published, is_made_by_us=is_pools)
    return Verdict(
        False,
        Reason.VOLUME_CLAIM_TERMINATING,
        f"{_words_of_going(claim, published, spec)} No worker or Job can start with it meanwhile. The operator cannot "
        f"make another in its place: once it is gone, create PersistentVolumeClaim {claim.name} again, over the kept "
        "volume or empty, and the revision is looked for or generated there; or create another GNNService that names "
        "another claim, and delete this one when that is ready.",
    )


def decide_pool_kept(uid: str, pool: str, place: RepositoryPlace, claim: ObservedClaim | None) -> Verdict:
    """Whether the claim with the models of the services of the GNNWorkerPool with `uid` stays. `claim`: as it is; None:
    it is not there."""
    if claim is not None and claim.deleting:
        words = f"{_words_of_claim_going(claim, 'the models of the services')} {_words_of_keeping(claim)}"
        return Verdict(False, Reason.VOLUME_CLAIM_TERMINATING, words)
    if place.claim_name is None:
        return _decide_staying(pool_claim_name(pool), "", claim, (), None, is_made_by_us=True)
    owners = () if claim is None or any(owner.uid == uid for owner in claim.bound_to) else claim.bound_to
    return _decide_staying(place.claim_name, _USERS_FIELD, claim, owners, None, is_made_by_us=False)


def _decide_staying(
    name: str, field: str, claim: ObservedClaim | None, owners: Sequence[Owner], published: GenerationResult | None, *,
    is_made_by_us: bool,
) -> Verdict:  # fmt: skip
    """Whether a claim stays that is not being deleted, or is not there. `field`: where it is named, in words; `owners`:
    objects of others with which it is deleted."""
    words = f"PersistentVolumeClaim {name}{field}"
    if claim is None and is_made_by_us:
        return Verdict(None, Reason.VOLUME_CLAIM_PENDING, f"{words} is about to be made.")
    if claim is None:
        return Verdict(False, Reason.VOLUME_CLAIM_MISSING, f"{words} does not exist. Create it in this namespace.")
    if owners:
        return Verdict(False, Reason.REPOSITORY_BOUND_ELSEWHERE, _words_of_owners(claim, field, owners, published))
    return Verdict(True, Reason.REPOSITORY_KEPT, f"{words} is there, and not being deleted.")


def _other_owners(claim: ObservedClaim, uid: str, spec: GNNServiceSpec) -> tuple[Owner, ...]:
    """Objects with which the claim is deleted, whether or not the GNNService with `uid`, or its pool, is there still.
    Kubernetes deletes it when the last one goes."""
    pool = spec.worker.pool_ref
    lender = ("", "") if pool is None else (POOL_KIND, pool.name)
    is_ours = any(owner.uid == uid or (owner.kind, owner.name) == lender for owner in claim.bound_to)
    return () if is_ours else claim.bound_to


def _words_of_owners(
    claim: ObservedClaim, field: str, owners: Sequence[Owner], published: GenerationResult | None
) -> str:
    what = "everything in it" if published is None else f"revision {published.revision}"
    named = in_words([str(owner) for owner in owners])
    ours = [owner for owner in owners if owner.kind in {GNNSERVICE.name, POOL_KIND}]
    remedies = [f"set spec.repository.deletionPolicy: Retain in {owner}" for owner in ours]
    if others := [owner for owner in owners if owner not in ours]:
        remedies.append(f"take {in_words([str(owner) for owner in others])} out of its metadata.ownerReferences")
    return (
        f"PersistentVolumeClaim {claim.name}{field} is deleted together with {named}, and {what} with it. To have it "
        f"stay, {in_words(remedies)}."
    )


def _words_of_going(claim: ObservedClaim, published: GenerationResult | None, spec: GNNServiceSpec) -> str:
    what = "everything in it" if published is None else f"revision {published.revision}"
    log = ""
    if keeps_log_in_repository(spec):
        log = (
            " So does the log of changes (spec.updates.log.sqlite); a revision that is generated again has none of "
            "them."
        )
    elif published is not None and published.offset:
        log = (
            f" So do the changes up to offset {published.offset}, which are compacted into it; the log may have only "
            "later ones."
        )
    return f"{_words_of_claim_going(claim, what)}{log} {_words_of_keeping(claim)}"


def _words_of_claim_going(claim: ObservedClaim, what: str) -> str:
    """`what`: what goes with it."""
    return (
        f"PersistentVolumeClaim {claim.name} is being deleted: when the last pod that uses it has gone, it goes, and "
        f"{what} with it."
    )


def _words_of_keeping(claim: ObservedClaim) -> str:
    retain = (
        f"run `kubectl patch pv {claim.volume} -p '{_RETAIN}'`"
        if claim.volume
        else "set persistentVolumeReclaimPolicy of its PersistentVolume to Retain"
    )
    return f"To keep the files, {retain} now, or copy them."


def _age(claim: ObservedClaim) -> tuple[str, str]:
    return claim.created_at, claim.name


def decide_claim(uid: str, spec: GNNServiceSpec, claim: ObservedClaim | None, name: str) -> WantedClaim:
    """The claim of the GNNService with `uid`. `claim`: as it is; None: it is yet to be made. The log that it names
    stays named when `spec.updates` is taken away: nothing else tells its uid once the service is gone."""
    place, has_log = spec.repository, spec.updates is not None
    log_uid = log_uid_of(uid, spec.updates) or ("" if claim is None else claim.log_uid)
    return WantedClaim(
        name,
        decide_claim_storage(place, claim),
        _is_retained(place, claim, is_usual=has_log),
        log_uid,
    )


def decide_pool_claim(pool: str, place: RepositoryPlace, claim: ObservedClaim | None) -> WantedClaim:
    """The claim of a GNNWorkerPool, in which the models of its services lie, and what is compacted of their logs."""
    is_retained = _is_retained(place, claim, is_usual=True)
    return WantedClaim(pool_claim_name(pool), decide_claim_storage(place, claim), is_retained)


def _is_retained(place: RepositoryPlace, claim: ObservedClaim | None, *, is_usual: bool) -> bool:
    """Whether the claim stays when its owner is deleted. `is_usual`: where the spec does not say. A claim that was
    retained once stays so until the spec says otherwise: it holds a log also after `spec.updates` was taken away."""
    if place.deletion_policy is not None:
        return place.deletion_policy is DeletionPolicy.RETAIN
    return is_usual or (claim is not None and claim.is_retained)


def decide_claim_storage(place: RepositoryPlace, claim: ObservedClaim | None) -> str:
    """The storage to request. It is less than before only while a larger volume was requested and is not there yet:
    Kubernetes then allows retrying an expansion that the storage could not make."""
    declared = (place.claim or RepositoryClaim()).storage
    if claim is None or not claim.requested:
        return declared
    wanted, requested = _bytes(declared), _bytes(claim.requested)
    is_retry = bool(claim.capacity) and _bytes(claim.capacity) < wanted < requested
    return declared if wanted >= requested or is_retry else claim.requested


def least_storage(claim: ObservedClaim | None) -> str | None:
    """The least storage that the spec may request: what the claim has, or requests if that is less."""
    if claim is None or not claim.requested:
        return None
    if not claim.capacity:
        return claim.requested
    return min(claim.requested, claim.capacity, key=_bytes)


def _bytes(quantity: str) -> Decimal:
    return parse_quantity(quantity) or Decimal(0)


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
