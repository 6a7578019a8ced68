"""Decides which Job there should be: none while the wanted recipe is published and the log of changes is short
(`log_following.py`); else exactly one, running or suspended. And one that makes embeddings of the published revision.

A Job that computes is never thrown away for a recipe that it does generate, whatever else changed. A failed one stays
as the record of its failure, until its spec changes or it is deleted.

The Job of embeddings comes after the revision and beside the workers, which answer whatever becomes of it. It is made
again ten minutes after it failed: a database that was away, or full, may be well by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gnnserve_api.pods.interface import PodExit
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import sentence
from gnnserve_operator.decide.pod_problem import (
    DEADLINE_EXCEEDED,
    describe_attempt,
    explain_failure,
    explain_refusal,
    held_problem,
    is_held,
    is_in_wrong_queue,
    last_failure,
    pod_problem,
    waits_for,
    words_of_deadline,
    words_of_suspension,
)
from gnnserve_operator.decide.repository import (
    JobResult,
    PublishedRevision,
    RepositoryDecision,
    ended_well,
    holds_leaving_claim,
    is_of_lost_claim,
    is_result_awaited,
    read_result,
)
from gnnserve_operator.desired.children import kinds_under
from gnnserve_operator.desired.job import handed_recipe
from gnnserve_operator.desired.pod import job_pods
from gnnserve_operator.fleet import IDLE, UNDER_WAY, Stance, Standing, Turn, place_words
from gnnserve_operator.kinds import JOB
from gnnserve_operator.observed import ObservedJob, ObservedState

_POD_PATIENCE = timedelta(seconds=60)
"""Time after which a Job without a pod counts as not allowed to have one."""
_BEFORE_A_JOB = kinds_under(JOB.name) | {JOB.name}
"""Kinds whose objects must not be on their way out in the place of a child when a Job is created."""
_PLACE_PATIENCE = timedelta(minutes=10)
"""Time after which a Job whose pod cannot be scheduled gives its turn to the next; an autoscaled cluster has a node by
then."""


class GenerationStage(StrEnum):
    PUBLISHED = "Published"
    """Nothing to generate."""
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    """The Job is about to be created."""
    QUEUED = "Queued"
    """The Job is suspended: by the operator until fewer Jobs of other services run, or by another, as a queue of the
    cluster does."""
    RUNNING = "Running"
    WAITING = "Waiting"
    """Waiting for an object to go away, or for a result to be seen: look again soon."""
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class GenerationDecision:
    stage: GenerationStage
    message: str
    apply: bool = False
    """Whether the desired Job is to be applied."""
    holds: bool = False
    """Whether the operator suspends it. Otherwise its manifest says nothing of that, so that another may."""
    delete: tuple[str, ...] = ()
    """Names of the Jobs to delete."""
    problem: Problem | None = None
    """What is wrong with the Job or its pod."""
    job: str | None = None
    """The Job that generates, is about to, or is queued."""
    compacts: bool = False
    """Whether it is about a Job that compacts the log of changes."""
    waits_for: str = ""
    """Words for what a Job that is under way waits for, which are kept on it; empty: it computes, or is about to."""
    failed_attempt: str = ""
    """The last attempt of a running Job that failed; empty: none has."""
    standing: Standing = IDLE
    """Standing among the services whose Jobs may not all run at once."""


@dataclass(frozen=True, slots=True)
class WantedJob:
    """The part of the desired Job that the decision needs."""

    name: str
    recipe: str
    retries: int
    deadline_seconds: int
    compacts: str = ""
    """The revision that it makes anew at the end of the log of changes; empty: it makes what the spec says."""
    queue: str = ""
    """Queue of the cluster that the service names for its Jobs; empty: none."""


def decide_generation(
    wanted: WantedJob,
    published: PublishedRevision | None,
    repository: RepositoryDecision,
    service: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
    now: datetime,
    repair: int | None = None,
) -> GenerationDecision:
    """Decide about the Job. `repair`: number of the repair that is under way: the published revision is damaged, and
    its Job is to be made again."""
    present = sorted((job for job in observed.jobs if not job.deleting), key=lambda job: (job.created_at, job.name))
    is_wanted = published is not None and published.result.recipe == wanted.recipe
    if published is not None and is_wanted and repair is None and repository.keeps(published.claim_uid):
        kept = records_of(published, present, repository)
        message = f"{_words_of_revision(published.result.revision, spec)} is published."
        return GenerationDecision(GenerationStage.PUBLISHED, message, delete=_names(present, kept))
    # The published Job is kept as a second record beside the ConfigMap, as long as workers answer from its revision.
    witness = None if published is None or repair is not None else published.job
    kept = [job for job in present if job.name == witness and not holds_leaving_claim(job, repository)]
    jobs = Jobs(
        present=present,
        kept=kept,
        candidates=[
            job
            for job in present
            if (wanted.recipe == job.recipe or wanted.name == job.name)
            and not is_of_lost_claim(job, repository)
            and (repair is None or job.repair == repair)
        ],
    )
    return decide_job(wanted, jobs, service, spec, observed, now)


def records_of(
    published: PublishedRevision, present: list[ObservedJob], repository: RepositoryDecision
) -> list[ObservedJob]:  # fmt: skip
    """The Jobs that are kept as records of the published revision. The pods of other Jobs would hold a claim that is
    being deleted, ended ones too. Once changes were compacted, earlier Jobs tell of earlier revisions."""
    return [
        job
        for job in present
        if job.succeeded
        and job.recipe == published.result.recipe
        and not holds_leaving_claim(job, repository)
        and (published.result.offset == 0 or job.name == published.job)
    ]


def decide_job(
    wanted: WantedJob, jobs: Jobs, service: str, spec: GNNServiceSpec, observed: ObservedState, now: datetime
) -> GenerationDecision:
    """Decide about a Job that is to be there until it is done."""
    if spec.suspend:
        return _while_suspended(wanted, jobs)
    exact = jobs.named(wanted.name)
    if exact is not None and exact.is_over:
        return _after_the_end(wanted, exact, jobs, spec, observed, now)
    return _under_way(wanted, jobs, service, spec, observed, now)


@dataclass(frozen=True, slots=True)
class Jobs:
    """The service's Jobs, each list sorted by age."""

    present: list[ObservedJob]
    kept: list[ObservedJob]
    """Jobs that are kept whatever is decided."""
    candidates: list[ObservedJob]
    """Jobs that generate what is wanted, or did."""

    def named(self, name: str) -> ObservedJob | None:
        return next((job for job in self.candidates if job.name == name), None)

    def all_but(self, *kept: ObservedJob | None) -> tuple[str, ...]:
        """Names of all other Jobs, which are to be deleted."""
        return _names(self.present, [*self.kept, *(job for job in kept if job is not None)])


def _under_way(  # noqa: PLR0911 - a ladder, one rung a state
    wanted: WantedJob, jobs: Jobs, service: str, spec: GNNServiceSpec, observed: ObservedState, now: datetime
) -> GenerationDecision:
    exact = jobs.named(wanted.name)
    ended = [job for job in jobs.candidates if job.succeeded and is_result_awaited(job, observed.pods, now)]
    if ended:
        message = f"The result of Job {ended[-1].name} is being read."
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but(*ended))
    computing = (job for job in jobs.candidates if not job.is_over and _computes(job, observed, now))
    running = exact or next(computing, None)
    turn = observed.turns.generation
    # To go back to a revision trains nothing, and must not wait for hours of another service's training. What a queue
    # of the cluster starts, the operator must not hold.
    may_go = turn.may_go or _goes_back(wanted, spec) or bool(wanted.queue)
    if running is not None and is_in_wrong_queue(running, wanted.queue):
        place = f"in queue {wanted.queue}" if wanted.queue else "in no queue"
        message = f"Job {running.name} is made again {place}, as the labels of the GNNService say."
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())
    if running is not None and running.is_suspended_elsewhere:
        # It takes no place among the Jobs that the operator counts: another decides when it goes on.
        message = words_of_suspension(running, service)
        return GenerationDecision(
            GenerationStage.QUEUED, message, apply=True, delete=jobs.all_but(running), job=running.name
        )
    if running is not None and running.suspended and not may_go:
        return _queued(running.name, turn, running.created_at, jobs.all_but(running))
    if running is not None:
        problem = (
            explain_refusal(running)
            or _no_pod(running, observed, now)
            or held_problem(running.name, observed.pods, now)
            or _problem_of(running, service, spec, observed)
        )
        return GenerationDecision(
            GenerationStage.RUNNING,
            _running_words(running, spec, observed),
            # Another's template cannot be changed, and its fields are better left alone than half known.
            apply=running is exact,
            delete=jobs.all_but(running),
            problem=problem,
            waits_for=waits_for(running, problem, observed.pods),
            job=running.name,
            standing=IDLE if _goes_back(wanted, spec) or _gives_way(running, problem, now) else UNDER_WAY,
        )
    if any(job.name == wanted.name for job in observed.jobs):
        # On its way out, or of a claim that is lost.
        message = f"Job {wanted.name} is made again once the old one is gone."
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())
    if (blocker := next((ref for ref in observed.leaving if ref.kind in _BEFORE_A_JOB), None)) is not None:
        message = (
            f"Job {wanted.name} is made once {blocker} is gone, which is being deleted, or is of a deleted service of "
            f"this name. If it stays, see what holds it: a pod that uses it, or one of its finalizers."
        )
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())
    if not may_go:
        return _queued(wanted.name, turn, now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), jobs.all_but())
    return GenerationDecision(
        GenerationStage.STARTING,
        words_of_start(wanted.name, spec.revision, compacts=bool(wanted.compacts)),
        apply=True,
        delete=jobs.all_but(),
        job=wanted.name,
        standing=IDLE if _goes_back(wanted, spec) else UNDER_WAY,
    )


def _queued(job: str, turn: Turn, since: str, delete: tuple[str, ...]) -> GenerationDecision:
    """The oldest Job goes first. It is there, suspended, so that an operator which starts anew knows the order."""
    message = (
        f"Job {job} is queued: at most {turn.limit} generation Jobs run at a time (the chart's "
        f"generation.maxConcurrentJobs), and {place_words(turn)}."
    )
    standing = Standing(Stance.WAITING, since)
    return GenerationDecision(
        GenerationStage.QUEUED, message, apply=True, holds=True, delete=delete, job=job, standing=standing
    )


def _gives_way(job: ObservedJob, problem: Problem | None, now: datetime) -> bool:
    """Whether the Job computes nothing, and may not for long, so that other services' Jobs need not wait for it."""
    if problem is None:
        return False
    started_at = job.started_at or job.created_at
    is_old = bool(started_at) and now - datetime.fromisoformat(started_at) > _PLACE_PATIENCE
    return problem.needs_person or is_old


def words_of_start(job: str, named: str | None, *, compacts: bool) -> str:
    """`named`: spec.revision."""
    return f"Job {job} {_does(compacts, named)}."


def _does(compacts: bool, named: str | None) -> str:
    if compacts:
        return "compacts the log of changes"
    return "generates the revision" if named is None else f"looks up revision {named} (spec.revision)"


def _goes_back(wanted: WantedJob, spec: GNNServiceSpec) -> bool:
    return spec.revision is not None and not wanted.compacts


def _words_of_revision(revision: str, spec: GNNServiceSpec) -> str:
    if spec.revision is None:
        return f"Revision {revision}"
    if spec.revision == revision:
        return f"Revision {revision}, which spec.revision names,"
    return f"Revision {revision}, the model of {spec.revision} (spec.revision) over the graph as it was compacted,"


def _while_suspended(wanted: WantedJob, jobs: Jobs) -> GenerationDecision:
    exact = jobs.named(wanted.name)
    running = exact if exact is not None and not exact.is_over and not _is_in_queue(exact, wanted) else None
    ended = [job for job in jobs.candidates if job.succeeded or (job is exact and job.failed)]
    # Suspending ends a Job's pods. With another template it would begin anew as another Job in any case.
    return GenerationDecision(
        GenerationStage.SUSPENDED,
        f"Job {running.name} is suspended." if running is not None else "No Job is started.",
        apply=running is not None,
        holds=running is not None,
        delete=jobs.all_but(running, *ended),
    )


def _is_in_queue(job: ObservedJob, wanted: WantedJob) -> bool:
    """Whether a queue of the cluster decides when the Job runs. It would start one that the operator suspends, and keep
    quota for it: it is deleted instead, and made again later."""
    return bool(job.queue or wanted.queue)


def _after_the_end(
    wanted: WantedJob, exact: ObservedJob, jobs: Jobs, spec: GNNServiceSpec, observed: ObservedState, now: datetime
) -> GenerationDecision:
    """The Job with the very template that is wanted is over, and nothing is published."""
    if exact.failed:
        if (exact.retries, exact.deadline_seconds) == (wanted.retries, wanted.deadline_seconds):
            problem = explain_failure(exact, observed.pods, spec)
            return GenerationDecision(
                GenerationStage.FAILED, problem.message, delete=jobs.all_but(exact), problem=problem
            )
        message = f"Job {exact.name} failed and is made again, with the retries and deadline of the spec."
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())
    result = read_result(exact, observed.pods)
    if is_result_awaited(exact, observed.pods, now):
        return GenerationDecision(
            GenerationStage.WAITING, f"The result of Job {exact.name} is being read.", delete=jobs.all_but(exact)
        )
    if result.unreadable is not None:
        words = f"Job {exact.name} is done, but {result.unreadable}: {_cause_of_unreadable(result, exact.name, spec)}"
        problem = Problem(Reason.RESULT_UNREADABLE, words, needs_person=True)
        return GenerationDecision(GenerationStage.FAILED, problem.message, delete=jobs.all_but(exact), problem=problem)
    message = (
        f"Job {exact.name} is done and its pod gone; it is made again to tell the revision, without training anew."
    )
    return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())


def _cause_of_unreadable(result: JobResult, job: str, spec: GNNServiceSpec) -> str:
    """Why a result cannot be used, and what helps."""
    if result.is_of_another_recipe and (handed := handed_recipe(spec)) != spec.recipe():
        return (
            f"the operator handed the Job a part of the spec only, whose recipe is {handed!r}. That is a defect of the "
            "operator, which no other image cures: report it with the spec, and upgrade the operator once it is mended."
        )
    return (
        "its image and the operator are of different versions. Correct spec.image, or upgrade the operator; then "
        f"delete the Job (`kubectl delete job {job}`)."
    )


def _running_words(job: ObservedJob, spec: GNNServiceSpec, observed: ObservedState) -> str:
    failed = last_failure(job, observed.pods)
    if not any(pod.job == job.name for pod in observed.pods):
        return f"Job {job.name} starts its pod; if none comes, see `kubectl describe job {job.name}`."
    words = f"Job {job.name} {_does(bool(job.compacts), spec.revision)}; follow it by `kubectl logs -f job/{job.name}`."
    if failed is None:
        return words
    end = failed.terminated
    if end is not None and end.exit_code == PodExit.BAD_INPUT:
        # Never repeated: the Job is about to say that it failed.
        return f"Job {job.name} failed: {describe_attempt(failed)}."
    return f"{words} An attempt failed: {describe_attempt(failed)}."


def _no_pod(job: ObservedJob, observed: ObservedState, now: datetime) -> Problem | None:
    """The problem of a Job without a pod of which no event tells why."""
    has_tried = any(pod.job == job.name for pod in observed.pods)  # Kubernetes waits before each further attempt
    if has_tried or not job.awaits_pod(observed.pods, now, _POD_PATIENCE):
        return None
    return Problem(
        Reason.PODS_FORBIDDEN,
        f"Job {job.name} has had no pod for over a minute: a ResourceQuota, a LimitRange or an admission policy of the "
        f"namespace may forbid it. `kubectl describe job {job.name}` tells which; raise it, or ask for less in "
        "spec.generation.",
        needs_person=True,
    )


def _problem_of(job: ObservedJob, service: str, spec: GNNServiceSpec, observed: ObservedState) -> Problem | None:
    """The problem of the attempt that is under way."""
    own = [pod for pod in observed.pods if pod.job == job.name and pod.phase == "Pending" and not pod.deleting]
    newest = max(own, key=lambda pod: (pod.created_at, pod.name), default=None)
    problem = None if newest is None else pod_problem(newest, job_pods(service, spec))
    if problem is None:
        return None
    return Problem(problem.reason, f"Job {job.name} waits. {problem.message}", problem.needs_person)


def _computes(job: ObservedJob, observed: ObservedState, now: datetime) -> bool:
    """Whether there is training to lose: also when it is done and the Job does not say so yet, and when the Job was
    just started and its pod has not been told of. A pod that waits for its image or volume has none, nor one whose
    container has ended and which another one holds."""
    if job.suspended:
        return False
    own = [pod for pod in observed.pods if pod.job == job.name]
    if not own and job.started_at:
        return abs(now - datetime.fromisoformat(job.started_at)) < _POD_PATIENCE
    return any((pod.running or ended_well(pod)) and not pod.deleting and not is_held(pod) for pod in own)


def _names(present: list[ObservedJob], kept: list[ObservedJob]) -> tuple[str, ...]:
    """Names of the Jobs that are not kept."""
    keep = {job.name for job in kept}
    return tuple(job.name for job in present if job.name not in keep)


_EMBEDDINGS_AGAIN = timedelta(minutes=10)
"""Time after which a Job of embeddings that failed is made again."""


@dataclass(frozen=True, slots=True)
class WantedEmbeddings:
    """The part of the desired Job that the decision needs."""

    name: str
    makes: tuple[str, str]
    """Revision and part of the spec that embeddings are made of."""
    claim: str
    """Name of the claim that holds the revision, and gets the index."""
    queue: str = ""
    """Queue of the cluster that the service names for its Jobs; empty: none."""

    def is_made_by(self, job: ObservedJob) -> bool:
        """Whether a Job makes the same, as one with other resources or another image does."""
        return job.name == self.name or (job.makes, job.claim) == (self.makes, self.claim)


@dataclass(frozen=True, slots=True)
class EmbeddingsDecision:
    verdict: Verdict | None = None
    """The condition's; None: the spec asks for no embeddings."""
    apply: bool = False
    """Whether the wanted Job is to be there."""
    delete: tuple[str, ...] = ()
    """Names of the Jobs to delete."""
    waits_for: str = ""
    """Words for what the Job waits for, which are kept on it; empty: it computes, or is about to."""


def decide_embeddings(  # noqa: PLR0911 - a ladder, one rung a state
    wanted: WantedEmbeddings | None,
    published: PublishedRevision | None,
    service: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
    now: datetime,
) -> EmbeddingsDecision:
    """`wanted`: the Job for the published revision; None: there is no revision, or none is asked for. `service`: name
    of the GNNService."""
    present = [job for job in observed.embeddings_jobs if not job.deleting]
    if spec.embeddings is None:
        return EmbeddingsDecision(delete=tuple(job.name for job in present))
    if wanted is None or published is None:
        first = Verdict(None, Reason.WAITING_FOR_REVISION, "Embeddings are made of the first revision.")
        return EmbeddingsDecision(first)
    revision = published.result.revision
    done = next((job for job in present if job.succeeded and wanted.is_made_by(job)), None)
    exact = done or next((job for job in present if job.name == wanted.name), None)
    others = tuple(job.name for job in present if job is not exact)
    if done is not None:
        message = f"{_words_of_places(spec)} the embeddings of revision {revision}."
        return EmbeddingsDecision(Verdict(True, Reason.EMBEDDINGS_PUBLISHED, message), done.name == wanted.name, others)
    if spec.suspend:
        left = () if exact is None else (exact.name,)
        message = f"spec.suspend is true: the embeddings of revision {revision} are not made."
        return EmbeddingsDecision(Verdict(None, Reason.SUSPENDED, message), delete=(*others, *left))
    if exact is not None and exact.failed:
        return _after_embeddings_failed(exact, others, revision, spec, observed, now)
    if exact is not None and is_in_wrong_queue(exact, wanted.queue):
        message = f"Job {exact.name} is made again, as the labels of the GNNService for its queue say."
        return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), delete=(*others, exact.name))
    if exact is not None and exact.is_suspended_elsewhere:
        message = words_of_suspension(exact, service)
        return EmbeddingsDecision(Verdict(None, Reason.QUEUED, message), apply=True, delete=others)
    if exact is None and any(job.name == wanted.name for job in observed.embeddings_jobs):
        message = f"Job {wanted.name} is made again once the old one is gone."
        return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), delete=others)
    problem = None if exact is None else explain_refusal(exact) or held_problem(exact.name, observed.pods, now)
    waiting = "" if exact is None else waits_for(exact, problem, observed.pods)
    if problem is not None:
        return EmbeddingsDecision(problem.to_verdict(), apply=True, delete=others, waits_for=waiting)
    message = f"Job {wanted.name} makes the embeddings of revision {revision}."
    if exact is not None and (failed := last_failure(exact, observed.pods)) is not None:
        message += f" An attempt failed: {describe_attempt(failed)}."
    return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), apply=True, delete=others, waits_for=waiting)


def _after_embeddings_failed(
    exact: ObservedJob,
    others: tuple[str, ...],
    revision: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
    now: datetime,
) -> EmbeddingsDecision:
    last = last_failure(exact, observed.pods)
    if exact.failure_reason == DEADLINE_EXCEEDED:
        why = words_of_deadline(exact, spec)
    elif last is not None:
        why = describe_attempt(last)
    else:
        why = sentence(exact.failure_message) or exact.failure_reason
    message = (
        f"The embeddings of revision {revision} are not where they should be; what was there before still is. Job "
        f"{exact.name} failed: {why}. It is tried again ten minutes after that, or at once when you delete the Job "
        f"(`kubectl delete job {exact.name}`). Requests for predictions are answered meanwhile."
    )
    verdict = Verdict(False, Reason.EMBEDDINGS_FAILED, message)
    ended_at = datetime.fromisoformat(exact.failed_at or exact.created_at)
    if now - ended_at >= _EMBEDDINGS_AGAIN:
        return EmbeddingsDecision(verdict, delete=(*others, exact.name))
    return EmbeddingsDecision(verdict, apply=True, delete=others, waits_for=exact.waits_for)


def _words_of_places(spec: GNNServiceSpec) -> str:
    assert spec.embeddings is not None  # noqa: S101
    sinks = len(spec.embeddings.sinks)
    index = ["the index of recommendations"] if spec.embeddings.index else []
    databases = [f"{sinks} database{'s' if sinks > 1 else ''}"] if sinks else []
    places = " and ".join([*index, *databases])
    return f"{places[0].upper()}{places[1:]} {'have' if sinks > 1 or (index and databases) else 'has'}"
