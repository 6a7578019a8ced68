"""Finds the published revision from the children, which are the operator's only memory.

A Job's pod leaves the result in its termination message; the routing ConfigMap keeps it when Job and pod are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from gnnserve_api.generation import GenerationResult, decode_result
from gnnserve_operator.decide.repository import RepositoryDecision, is_of_lost_claim
from gnnserve_operator.observed import Observed, ObservedJob, ObservedPod
from gnnserve_routing.verdict import sentence

_LONGEST_LAG = timedelta(minutes=2)
"""Longest lag of a watch: one that lags for a minute makes the operator unhealthy, and it is restarted (`health.py`).
With many namespaces that is noticed later: then the Job is made again without need, and trains nothing."""


_NOT_OVER = frozenset({"Pending", "Running", "Unknown"})
"""Phases of a pod that may still end."""


@dataclass(frozen=True, slots=True)
class Published:
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


def decide_published(recipe: str, repository: RepositoryDecision, observed: Observed) -> Published | None:
    """The revision of the wanted recipe if there is one; else the one that workers answer from now.

    Of several of the wanted recipe it is the one whose graph is the newest, so that no earlier Job's result comes back
    when the last Job, or its pod, is gone. But a repair counts before what it has repaired, and a revision in a claim
    that stays before one in a claim that goes."""
    from_jobs = [
        Published(result, job.name, repository.uid, job.compacts)
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
    from_jobs: list[Published], repository: RepositoryDecision, observed: Observed
) -> Published | None:  # fmt: skip
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
    return Published(result, None, claim_uid) if witness is None else replace(witness, claim_uid=claim_uid)


def _is_awaited_repair(job: ObservedJob, observed: Observed) -> bool:
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
