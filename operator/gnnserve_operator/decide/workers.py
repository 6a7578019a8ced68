"""Are there as many ready workers as asked for, and if not, what keeps them?

Whether they answer with the declared revision is another question (`answers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnserve_api.errors import NO_GPU
from gnnserve_api.reasons import Reason
from gnnserve_api.spec.worker import field_of_pods
from gnnserve_operator.decide.answers import repair_words
from gnnserve_operator.decide.credentials import describe_waiting
from gnnserve_operator.decide.pod_problem import lacks_room, pod_problem, remedy_of_refusal
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.desired.deployment import WorkerPods
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_routing.verdict import Verdict, sentence

_TROUBLE = ("cannot be loaded", "is not answered from")
"""What a worker's message contains when a revision does not load, or was altered; while one loads, it says something
else."""


_GPU_ADVICE = (
    "If it lasts, look at the node's driver and device plugin and at spec.worker.runtimeClassName, or set "
    "spec.worker.device to Auto to compute on the CPU meanwhile."
)


@dataclass(frozen=True, slots=True)
class Workers:
    wanted: int
    existing: int
    ready: tuple[ObservedPod, ...]
    """Ready pods, sorted by name."""
    is_rolled_out: bool
    """Every pod is of the template that is wanted now."""
    verdict: Verdict
    problem: Problem | None = None
    """What keeps a pod from being ready."""


def decide_workers(given: WorkerPods, template_digest: str, has_revision: bool, observed: Observed) -> Workers:
    wanted = given.wanted
    # Pods that have ended on their own stay until they are collected.
    live = [p for p in observed.pods if p.is_worker and not p.deleting and p.phase not in {"Failed", "Succeeded"}]
    live.sort(key=lambda pod: pod.name)
    ready = tuple(pod for pod in live if pod.ready)
    deployment = observed.deployment
    is_rolled_out = (
        deployment is not None
        and not deployment.deleting
        and deployment.template_digest == template_digest
        and deployment.rolled_out
    )
    # Told of by two watches: what only one of them says is not so for sure.
    certain = len(ready) if deployment is None else min(len(ready), deployment.ready_replicas)
    problem = None
    if wanted > 0 and not (is_rolled_out and certain >= wanted):
        problem = _find_problem(given, live, observed)
    return Workers(
        wanted=wanted,
        existing=len(live),
        ready=ready,
        is_rolled_out=is_rolled_out,
        verdict=_verdict(given, certain, has_revision or deployment is not None, live, problem, observed),
        problem=problem,
    )


def _find_problem(given: WorkerPods, live: list[ObservedPod], observed: Observed) -> Problem | None:
    deployment = observed.deployment
    found = []
    for pod in live:
        # A running worker knows what is the matter now; how its last container ended may be long ago.
        said = _words_of(pod, observed)
        if said is not None and NO_GPU in said:
            # In mode GPU it waits for one: the scheduler's is there, and the worker cannot compute on it.
            words = f"Worker {pod.name}: {sentence(said)}. It tries again by itself. {_GPU_ADVICE}"
            found.append(Problem(Reason.GPU_UNAVAILABLE, words, needs_person=False))
        elif said is not None and (waiting := describe_waiting(given.secrets, pod.name, said)) is not None:
            found.append(waiting)
        elif said is not None and any(words in said for words in _TROUBLE):
            words = f"Worker {pod.name}: {sentence(said)}. {repair_words(given.template.owner)}"
            found.append(Problem(Reason.REVISION_NOT_LOADED, words, needs_person=False))
        elif (problem := pod_problem(pod, given.template)) is not None:
            advice = _words_without_room(given, live, observed) if lacks_room(pod) else ""
            found.append(replace(problem, message=f"{problem.message}{advice}"))
    if deployment is not None and deployment.replica_failure is not None:
        found.append(
            Problem(
                Reason.PODS_FORBIDDEN,
                f"Worker pods cannot be created: {sentence(deployment.replica_failure)}. "
                f"{remedy_of_refusal(deployment.replica_failure, 'spec.worker')}."
                f"{_words_without_room(given, live, observed)}",
                needs_person=True,
            )
        )
    # Problems that need a person come first; then by pod, so that the order is stable.
    problem = min(found, key=lambda problem: not problem.needs_person, default=None)
    if deployment is None or not deployment.progress_stopped:
        return problem
    if problem is not None:
        return replace(problem, needs_person=True)
    said = _words_of_starting(live, observed)
    words = f"They say: {said}." if said is not None else "Their events and logs say why."
    return Problem(
        Reason.WORKERS_NOT_STARTING,
        f"Worker pods have not become ready for a long time. {words}",
        needs_person=True,
    )


def _words_without_room(given: WorkerPods, live: list[ObservedPod], observed: Observed) -> str:
    """Message about the way out where pods are replaced, and there is no room for one more than are wanted; empty:
    nothing is replaced, or a pod stops first anyway."""
    deployment, wanted = observed.deployment, given.wanted
    answering = sum(pod.ready for pod in live)
    is_replacing = deployment is not None and not deployment.rolled_out and len(live) >= wanted and answering
    if not is_replacing or given.most_unavailable > 0 or given.stops_first:
        return ""
    field = field_of_pods(given.template.pool, "rollout.maxUnavailable")
    cost = "no request is answered until its successor is ready" if wanted == 1 else "the others answer meanwhile"
    stay = (
        "the present one answers, and keeps its room" if answering == 1 else "the present ones answer, and keep theirs"
    )
    return (
        f" It is to replace a worker pod, and until it is ready {stay}. Where there is no room for one pod more, set "
        f"{field} to 1: a pod then stops before its successor starts, and {cost}."
    )


def _verdict(
    given: WorkerPods,
    ready: int,
    has_deployment: bool,
    live: list[ObservedPod],
    problem: Problem | None,
    observed: Observed,
) -> Verdict:
    wanted = given.wanted
    if given.is_suspended:
        left = f"{len(live)} are still ending" if live else "none runs"
        return Verdict(False, Reason.SUSPENDED, f"spec.suspend is true: no worker is wanted, {left}.")
    if wanted == 0:
        left = f"{len(live)} are still ending" if live else "none runs"
        field = field_of_pods(given.template.pool, "replicas")
        return Verdict(False, Reason.SCALED_TO_ZERO, f"{field} is 0: no worker is wanted, {left}.")
    if ready >= wanted:
        return Verdict(True, Reason.WORKERS_READY, f"{ready} of {wanted} workers are ready.")
    if not has_deployment:
        return Verdict(False, Reason.WAITING_FOR_REVISION, "Workers start with the first published revision.")
    if problem is not None:
        return Verdict(False, problem.reason, f"{ready} of {wanted} workers are ready. {problem.message}")
    said = _words_of_starting(live, observed)
    waiting = next((pod.name for pod in live if not pod.ready), None)
    words = f" Worker {said}." if said else f" See `kubectl describe pod {waiting}`." if waiting else ""
    return Verdict(False, Reason.WORKERS_STARTING, f"{ready} of {wanted} workers are ready.{words}")


def _words_of_starting(live: list[ObservedPod], observed: Observed) -> str | None:
    """What the first worker that runs and is not ready says of itself."""
    for pod in live:
        if (said := _words_of(pod, observed)) is not None:
            return f"{pod.name}: {sentence(said)}"
    return None


def _words_of(pod: ObservedPod, observed: Observed) -> str | None:
    if not pod.running or pod.ready:
        return None
    answers = (answer for answer in observed.answers if answer.pod == pod.name and answer.route is None)
    return next((answer.problem for answer in answers if answer.problem), None)
