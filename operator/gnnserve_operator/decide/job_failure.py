"""Why did a generation Job fail? Its pods' messages tell, or else the Job's."""

from __future__ import annotations

from collections.abc import Iterable

from gnnserve_api.pods import PodExit
from gnnserve_api.reasons import Reason
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.pod_problem import exit_words, is_out_of_memory, memory_words
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.observed import ObservedJob, ObservedPod
from gnnserve_routing.verdict import sentence

DEADLINE_EXCEEDED = "DeadlineExceeded"


def explain_failure(job: ObservedJob, pods: Iterable[ObservedPod], spec: GNNServiceSpec) -> Problem:
    last = last_failure(job, pods)
    attempts = [f"the last attempt (pod {last.name}) {_why(last)}"] if last is not None else []
    if job.failure_reason == DEADLINE_EXCEEDED:
        words = [words_of_deadline(job, spec), *attempts]
    elif last is not None:
        words = attempts
    else:
        words = [f"{job.failure_reason or 'no reason given'}: {sentence(job.failure_message) or 'its pods are gone'}"]
    bad_input = last is not None and last.terminated is not None and last.terminated.exit_code == PodExit.BAD_INPUT
    checkpoints = (spec.model.checkpoint, *(one.checkpoint for one in spec.variants.given))
    files = [
        *(["graph's"] if _is_of_files(spec.graph.source) else []),
        *(["checkpoint's"] if any(one is not None for one in checkpoints) else []),
        *(["program's"] if spec.model.program is not None else []),
    ]
    if bad_input and files and spec.graph.volume is None:
        words.append(
            f"no volume is mounted: name the claim with the {' and the '.join(files)} file in "
            "spec.graph.volume.claimName, and write the file's path below its mountPath"
        )
    again = (
        f"Correct the spec; or, if what it names was at fault and is mended, delete the Job (`kubectl delete job "
        f"{job.name}`) to try again."
        if bad_input
        else f"Change the spec, or delete the Job (`kubectl delete job {job.name}`) to try again."
    )
    return Problem(Reason.GENERATION_FAILED, f"Job {job.name} failed: {'; '.join(words)}. {again}", needs_person=True)


def words_of_deadline(job: ObservedJob, spec: GNNServiceSpec) -> str:
    """Words about a Job whose time is over: whether it computed until then, or what it waited for."""
    limit_s = job.deadline_seconds or spec.generation.deadline_seconds
    if job.waits_for:
        return (
            f"its {limit_s} s (spec.generation.deadlineSeconds) ended while it did not compute: "
            f"{sentence(job.waits_for)}"
        )
    return f"it was not done within {limit_s} s (spec.generation.deadlineSeconds)"


def waits_for(job: ObservedJob, problem: Problem | None, pods: Iterable[ObservedPod]) -> str:
    """Words for what a Job that is under way waits for, as `problem` says it. Until it computes, that is what was
    said last: a Job that reaches its deadline loses its pods before it is told to have failed."""
    if problem is not None:
        return problem.message
    computes = any(pod.job == job.name and pod.running and not pod.deleting for pod in pods)
    return "" if computes else job.waits_for


def _is_of_files(source: GraphSource) -> bool:
    """Whether the source consists of files, which are then read in the pod."""
    published = source.ogb or source.pyg
    return (
        source.npz is not None
        or source.parquet is not None
        or source.csv is not None
        or source.typed is not None
        or (published is not None and published.mirror is not None and not published.mirror.is_address)
    )


def last_failure(job: ObservedJob, pods: Iterable[ObservedPod]) -> ObservedPod | None:
    """The newest attempt that failed."""
    ended = [
        pod
        for pod in pods
        if pod.job == job.name and (pod.phase == "Failed" or (pod.terminated and pod.terminated.exit_code != 0))
    ]
    return max(ended, key=lambda pod: (pod.created_at, pod.name), default=None)


def describe_attempt(pod: ObservedPod) -> str:
    return f"pod {pod.name} {_why(pod)}"


def _why(pod: ObservedPod) -> str:
    end = pod.terminated
    if end is None:
        return f"was ended by its node ({pod.pod_reason or 'no reason given'}): {sentence(pod.pod_message)}"
    if is_out_of_memory(end):
        return memory_words(pod, "spec.generation")
    return f"ended {exit_words(end)}"
