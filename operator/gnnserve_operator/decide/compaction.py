"""Is the log of changes to be compacted, and by which Job?

Changes since the stored graph was made are in every worker's memory, and a worker that starts applies them before it
answers. When they take too much, a Job makes the graph anew at the end of the log. Its revision is of the same recipe,
and is published as any other: workers switch to it while they answer.

Each revision is compacted by a Job of its own, whose template names it. So an operator that starts anew goes on with
the Job that is there, and one that has failed stays as the record of it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import UNSET

from gnnserve_api.device import size_bytes
from gnnserve_api.reasons import Reason
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.updates import UpdatesProblemKind, UpdatesState
from gnnserve_operator.decide.generation import (
    GenerationDecision,
    GenerationStage,
    Jobs,
    WantedJob,
    decide_job,
    records_of,
)
from gnnserve_operator.decide.job_failure import describe_attempt, last_failure
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.decide.published import Published, is_result_awaited, read_result
from gnnserve_operator.decide.repair import Repair
from gnnserve_operator.decide.repository import RepositoryDecision, is_of_lost_claim
from gnnserve_operator.observed import Observed, ObservedJob

_AGAIN = timedelta(hours=1)
"""Time after which a Job that failed is made again, while changes still take too much."""
_AGAIN_WORDS = "By itself it is tried again an hour after that."


def decide_compaction(
    wanted: WantedJob,
    published: Published,
    repair: Repair,
    repository: RepositoryDecision,
    service: str,
    spec: GNNServiceSpec,
    observed: Observed,
    now: datetime,
) -> GenerationDecision | None:
    """Decide about the Job that compacts the published revision, which is of the wanted recipe. None: there is none,
    and none is due."""
    if spec.updates is None or repair.record.pending:
        return None
    jobs = _find_jobs(wanted, published, repository, observed)
    is_due = not spec.suspend and repair.problem is None and _is_due(spec.updates, published, observed)
    exact = jobs.named(wanted.name)
    if exact is None and not is_due and not any(_goes_on(job, observed, now) for job in jobs.candidates):
        return None
    decision = decide_job(wanted, jobs, service, spec, observed, now)
    if exact is not None and decision.stage is not GenerationStage.SUSPENDED and exact.is_over:
        decision = _after_the_end(exact, decision, jobs, observed, is_due=is_due, now=now)
    failed = (
        None if exact is None or decision.stage is not GenerationStage.RUNNING else last_failure(exact, observed.pods)
    )
    return replace(decision, compacts=True, failed_attempt="" if failed is None else describe_attempt(failed))


def is_under_way(decision: GenerationDecision) -> bool:
    """Whether compaction goes on without a person."""
    needs_person = decision.problem is not None and decision.problem.needs_person
    return not needs_person and decision.stage not in {GenerationStage.SUSPENDED, GenerationStage.FAILED}


def _find_jobs(
    wanted: WantedJob, published: Published, repository: RepositoryDecision, observed: Observed
) -> Jobs:  # fmt: skip
    present = sorted((job for job in observed.jobs if not job.deleting), key=lambda job: (job.created_at, job.name))
    candidates = [
        job
        for job in present
        if job.compacts == wanted.compacts
        and (job.recipe == wanted.recipe or job.name == wanted.name)
        and not is_of_lost_claim(job, repository)
    ]
    kept = [job for job in records_of(published, present, repository) if job not in candidates]
    return Jobs(present, kept, candidates)


def _is_due(updates: UpdatesSpec, published: Published, observed: Observed) -> bool:
    """Whether some worker has taken too much since the graph of the published revision. One that has yet to switch to
    it tells of the changes since an earlier graph, which do not count."""
    routes = (answer.route for answer in observed.answers if answer.route is not None)
    return any(
        _is_much(route.updates, updates)
        for route in routes
        if route.updates is not UNSET
        and (route.revision, route.updates.base) == (published.result.revision, published.result.offset)
    )


def _is_much(state: UpdatesState, updates: UpdatesSpec) -> bool:
    kind = None if state.problem is UNSET else state.problem.kind
    if kind == UpdatesProblemKind.LOG_CONFLICT:
        return False  # the log is not this service's, or not as it was
    if kind == UpdatesProblemKind.DELTA_FULL:
        return True
    taken = 0 if state.delta_bytes is UNSET else state.delta_bytes
    changes = 0 if state.changes_since_base is UNSET else state.changes_since_base
    compaction = updates.compaction
    return taken * 100 >= compaction.delta_percent * size_bytes(updates.max_delta) or changes >= compaction.changes


def _goes_on(job: ObservedJob, observed: Observed, now: datetime) -> bool:
    return not job.is_over or (job.succeeded and is_result_awaited(job, observed.pods, now))


def _after_the_end(
    exact: ObservedJob, decision: GenerationDecision, jobs: Jobs, observed: Observed, *, is_due: bool, now: datetime
) -> GenerationDecision:
    """The Job is over, and its revision is not the published one. `decision`: of a Job that generates."""
    if (result := read_result(exact, observed.pods).result) is not None:
        problem = Problem(
            Reason.COMPACTION_FAILED,
            f"Job {exact.name} is done, and revision {result.revision} that it made has no more changes than the "
            f"published one. See its log; to try again, delete it (`kubectl delete job {exact.name}`).",
            needs_person=True,
        )
        decision = GenerationDecision(
            GenerationStage.FAILED, problem.message, delete=jobs.all_but(exact), problem=problem
        )
    if decision.stage is not GenerationStage.FAILED or decision.problem is None:
        return decision
    ended_at = datetime.fromisoformat(exact.failed_at or exact.succeeded_at or exact.created_at)
    if is_due and now - ended_at >= _AGAIN:
        message = f"Job {exact.name} failed an hour ago, and is made again."
        return GenerationDecision(GenerationStage.WAITING, message, delete=jobs.all_but())
    message = f"{decision.problem.message} {_AGAIN_WORDS}"
    problem = Problem(Reason.COMPACTION_FAILED, message, needs_person=True)
    return replace(decision, message=message, problem=problem)
