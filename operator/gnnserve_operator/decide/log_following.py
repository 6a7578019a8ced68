"""Do workers follow the log of changes, and is it compacted?

Each tells in `GET /v1/route` how far it is and what is wrong (`gnnserve_api.pods.change_log`). The operator reads no
log and has no address of one. Requests are answered all the while, as of what a worker has applied, so Ready is not
touched.

Changes since the stored graph was made are in every worker's memory, and a worker that starts applies them before it
answers. When they take too much, a Job compacts the log: it makes the graph anew at the log's end. Its revision is of
the same recipe, and is published as any other: workers switch to it while they answer. Each revision is compacted by a
Job of its own, whose template names it. So an operator that starts anew goes on with the Job that is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET

from gnnserve_api.device import size_bytes
from gnnserve_api.pods.change_log import UpdatesProblemKind, UpdatesState
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import UpdatesStatus
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_api.wording import sentence
from gnnserve_operator.decide.jobs import (
    GenerationDecision,
    GenerationStage,
    Jobs,
    WantedJob,
    decide_job,
    records_of,
)
from gnnserve_operator.decide.pod_problem import describe_attempt, last_failure
from gnnserve_operator.decide.repository import (
    PublishedRevision,
    Repair,
    RepositoryDecision,
    is_of_lost_claim,
    is_result_awaited,
    read_result,
)
from gnnserve_operator.observed import ObservedJob, ObservedState

MOST_BEHIND_S = 30.0
"""Longest time for which a worker may lack a part of the log; a burst of changes is applied within seconds."""
_ANEW = timedelta(minutes=1)
"""Shortest time between two figures in the status: with each change of it, the API server tells all who watch."""

_REASONS: Mapping[str, Reason] = {
    UpdatesProblemKind.LOG_CONFLICT: Reason.LOG_CONFLICT,
    UpdatesProblemKind.LOG_UNAVAILABLE: Reason.LOG_UNAVAILABLE,
    UpdatesProblemKind.DELTA_FULL: Reason.DELTA_FULL,
}
"""In the order in which they are told: a log that never comes right by itself first."""
_CURES = {
    Reason.LOG_CONFLICT: "Give the service a log of its own, as it was; until then this worker applies no changes.",
    Reason.LOG_UNAVAILABLE: "It answers as of what it has applied, and tries again by itself.",
    Reason.DELTA_FULL: "Requests are answered, and no changes taken. Raise spec.updates.maxDelta, and with it "
    "spec.worker.resources.limits.memory.",
}
_EARLIER = " Or have compaction begin earlier (spec.updates.compaction.deltaPercent)."
"""A cure of `DeltaFull`."""


def decide_updates(
    spec: GNNServiceSpec, is_rolled_out: bool, compaction: GenerationDecision | None, observed: ObservedState
) -> Verdict:
    """Decide of a spec that asks for updates whether workers follow them. `compaction`: what is decided about its Job;
    None: there is none."""
    answers = sorted(observed.answers, key=lambda answer: answer.pod)
    routes = [(answer.pod, answer.route) for answer in answers if answer.route is not None]
    if not routes:
        return Verdict(None, Reason.NOT_SERVING, "No worker answers yet: whether changes are followed is not known.")
    states = {pod: route.updates for pod, route in routes if route.updates is not UNSET}
    failure = _find_failure(compaction)
    if (problem := _find_problem(states, compaction) or failure or _find_behind(states)) is not None:
        return problem
    silent = next((pod for pod, _ in routes if pod not in states), None)
    if silent is not None:
        why = (
            "its image is older than spec.updates. Set spec.image to one of the operator's version"
            if is_rolled_out
            else "it is being replaced"
        )
        return Verdict(None, Reason.UPDATES_UNKNOWN, f"Worker {silent} does not tell of changes: {why}.")
    return Verdict(True, Reason.FOLLOWING, f"Workers follow the log of changes.{_words_of_writing(spec)}")


def describe_updates(
    spec: GNNServiceSpec, base: int, observed: ObservedState, before: Mapping[str, Any], now: datetime
) -> UpdatesStatus | None:
    """For the status, of a spec that asks for updates: how far workers are, over all that tell. `base`: the offset of
    the published graph. `before`: the status as it is; what it says stays while no worker tells, and for a minute where
    figures change."""
    if spec.suspend or spec.worker.replicas == 0:
        return None
    routes = (answer.route for answer in observed.answers if answer.route is not None)
    states = [route.updates for route in routes if route.updates is not UNSET]
    said = _read(before)
    if not states:
        return said
    seen = UpdatesStatus(
        last=max(state.last for state in states),
        applied=min(state.applied for state in states),
        staleness_seconds=max(math.ceil(state.staleness_seconds) for state in states),
        base=base,
        as_of=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    if said is None:
        return seen
    is_same = seen.model_copy(update={"as_of": said.as_of}) == said
    is_recent = timedelta(0) <= now - datetime.fromisoformat(said.as_of) < _ANEW
    return said if is_same or is_recent else seen


def _read(status: Mapping[str, Any]) -> UpdatesStatus | None:
    try:
        said = UpdatesStatus.model_validate(status.get("updates"))
        is_time = datetime.fromisoformat(said.as_of).tzinfo is not None
    except ValueError:  # written by hand
        return None
    return said if is_time else None


def _find_failure(compaction: GenerationDecision | None) -> Verdict | None:
    """A Job that has failed, does not start before a person acts, or of which an attempt has failed."""
    if compaction is None:
        return None
    problem = compaction.problem
    if problem is None or not problem.needs_person:
        if not compaction.failed_attempt:
            return None
        # Not `compaction.message`, which is as long and says the same for people who follow the Job.
        words = (
            f"The log of changes is not compacted yet: an attempt of Job {compaction.job} failed, "
            f"{compaction.failed_attempt}. Another one is made, as often as spec.generation.retries says; changes go "
            "on taking memory until one is done."
        )
        return Verdict(False, Reason.COMPACTION_RETRYING, words)
    words = f"The log of changes is not compacted. {problem.message} Until then changes go on taking memory."
    return Verdict(False, Reason.COMPACTION_FAILED, words)


def _find_problem(states: Mapping[str, UpdatesState], compaction: GenerationDecision | None) -> Verdict | None:
    found = [
        # A newer worker may tell of another kind: then its words are what is known.
        (_REASONS.get(state.problem.kind, Reason.LOG_UNAVAILABLE), pod, state.problem.message)
        for pod, state in states.items()
        if state.problem is not UNSET
    ]
    for reason in _REASONS.values():
        for told, pod, message in found:
            if told is reason:
                words = f"Worker {pod} says: {sentence(message)}. {_CURES[reason]}"
                late = _words_of_compaction(compaction) if reason is Reason.DELTA_FULL else ""
                return Verdict(False, reason, words + late)
    return None


def _words_of_compaction(compaction: GenerationDecision | None) -> str:
    if compaction is None:
        return _EARLIER
    return f"{_EARLIER} Compaction does not keep up: {(compaction.problem or compaction).message}"


def is_behind(state: UpdatesState) -> bool:
    """Whether a worker, or one revision of it, has lacked a part of the log for too long."""
    return state.staleness_seconds > MOST_BEHIND_S


def _find_behind(states: Mapping[str, UpdatesState]) -> Verdict | None:
    for pod, state in states.items():
        if is_behind(state):
            # No figures: those that change with every look would write the status each time.
            return Verdict(
                False,
                Reason.WORKER_BEHIND,
                f"Worker {pod} has lacked a part of the log of changes for over {MOST_BEHIND_S:.0f} seconds; "
                "status.updates has the figures. If it lasts, send fewer changes at a time, or give workers more "
                "processors.",
            )
    return None


def _words_of_writing(spec: GNNServiceSpec) -> str:
    if spec.endpoint.write_tokens is not None:
        return ""
    return " No request may write to it: spec.endpoint names no writeTokens."


_AGAIN = timedelta(hours=1)
"""Time after which a Job that failed is made again, while changes still take too much."""
_AGAIN_WORDS = "By itself it is tried again an hour after that."


def decide_compaction(
    wanted: WantedJob,
    published: PublishedRevision,
    repair: Repair,
    repository: RepositoryDecision,
    service: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
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
        decision = _after_compaction(exact, decision, jobs, observed, is_due=is_due, now=now)
    failed = (
        None if exact is None or decision.stage is not GenerationStage.RUNNING else last_failure(exact, observed.pods)
    )
    return replace(decision, compacts=True, failed_attempt="" if failed is None else describe_attempt(failed))


def is_under_way(decision: GenerationDecision) -> bool:
    """Whether compaction goes on without a person."""
    needs_person = decision.problem is not None and decision.problem.needs_person
    return not needs_person and decision.stage not in {GenerationStage.SUSPENDED, GenerationStage.FAILED}


def _find_jobs(
    wanted: WantedJob, published: PublishedRevision, repository: RepositoryDecision, observed: ObservedState
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


def _is_due(updates: UpdatesSpec, published: PublishedRevision, observed: ObservedState) -> bool:
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


def _goes_on(job: ObservedJob, observed: ObservedState, now: datetime) -> bool:
    return not job.is_over or (job.succeeded and is_result_awaited(job, observed.pods, now))


def _after_compaction(
    exact: ObservedJob,
    decision: GenerationDecision,
    jobs: Jobs,
    observed: ObservedState,
    *,
    is_due: bool,
    now: datetime,
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
