"""Finds the published revision from the children, which are the operator's only memory.

A Job's pod leaves the result in its termination message; the routing ConfigMap keeps it when Job and pod are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a succeeded Job, or why it has none. Neither: its pod has not been seen to end."""

    result: GenerationResult | None = None
    unreadable: str | None = None
    """Why its message is not a result."""


def decide_published(recipe: str, repository: RepositoryDecision, observed: Observed) -> Published | None:
    """The revision of the wanted recipe if there is one; else the one that workers answer from now."""
    from_jobs = [
        Published(result, job.name, repository.uid)
        for job in sorted(observed.jobs, key=lambda job: (job.created_at, job.name), reverse=True)
        if job.succeeded
        and not is_of_lost_claim(job, repository)
        and (result := read_result(job, observed.pods).result) is not None
    ]
    wanted = next((published for published in from_jobs if published.result.recipe == recipe), None)
    if wanted is not None:
        return wanted
    routing, claims = observed.routing, observed.claims
    if routing is not None and claims and routing.claim_uid not in {"", *(claim.uid for claim in claims)}:
        routing = None
    # An edited table is None: a table that was changed by hand was never published.
    if routing is not None and routing.table is not None and routing.result is not None:
        table, result = routing.table, routing.result
        if (table.revision, table.recipe) == (result.revision, result.recipe):
            job = next((published.job for published in from_jobs if published.result == result), None)
            return Published(result, job, routing.claim_uid or repository.oldest_uid)
    return from_jobs[0] if from_jobs else None


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
            unreadable=f"pod {pod.name} generated recipe {sentence(result.recipe)!r}, not {job.recipe!r} as asked"
        )
    return JobResult(result=result)
