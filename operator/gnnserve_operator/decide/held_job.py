"""Is a Job held by a container beside ours, as by the sidecar of a mesh?

Kubernetes counts a Job by its pods, and a pod has ended when all of its containers have. A container that was added to
the pod and never ends keeps a Job that is done from completing, and one that failed from its next attempt. Sidecars
that are init containers, as Kubernetes knows them, end by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gnnserve_api.reasons import Reason
from gnnserve_operator.decide.job_failure import describe_attempt
from gnnserve_operator.decide.problem import Problem, join_words
from gnnserve_operator.decide.published import ended_well
from gnnserve_operator.observed import ObservedPod

_ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""
_PATIENCE = timedelta(seconds=10)
"""Time in which a container that watches ours may end too."""
_WAYS_OUT = (
    "Have it injected as a native sidecar, or not into this pod: in Istio by the label sidecar.istio.io/inject: "
    '"false" in spec.generation.podLabels, in Linkerd by the annotation linkerd.io/inject: disabled in '
    "spec.generation.podAnnotations (docs/mesh.md)."
)


def is_held(pod: ObservedPod) -> bool:
    """Whether our container has ended, and another one has not."""
    return pod.terminated is not None and bool(pod.beside) and not pod.deleting and pod.phase not in _ENDED


def held_problem(job: str, pods: Iterable[ObservedPod], now: datetime) -> Problem | None:
    """The problem of a Job that a container beside ours holds; None: there is none, or it may be about to end."""
    pod = next((pod for pod in pods if pod.job == job and is_held(pod) and not _may_be_about_to_end(pod, now)), None)
    if pod is None:
        return None
    containers, run = ("containers", "run") if pod.beside[1:] else ("container", "runs")
    state, then = (
        (f"Job {job} is done, but does not complete", "the next one finds what this one made")
        if ended_well(pod)
        else (f"Job {job} failed ({describe_attempt(pod)}), but does not end", "that tries again")
    )
    message = (
        f"{state}: {containers} {join_words(pod.beside)} of pod {pod.name} {run} on beside ours. {_WAYS_OUT} Then "
        f"delete the Job (`kubectl delete job {job}`): {then}."
    )
    return Problem(Reason.SIDECAR_HOLDS_JOB, message, needs_person=True)


def _may_be_about_to_end(pod: ObservedPod, now: datetime) -> bool:
    ended_at = pod.terminated.finished_at if pod.terminated is not None else ""
    return bool(ended_at) and now - datetime.fromisoformat(ended_at) < _PATIENCE
