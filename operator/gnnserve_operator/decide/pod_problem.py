"""Why does a pod not run, why has a Job none, why did it fail, and what keeps it from ending?

A table from messages to what a person can do. The messages are those of the scheduler and the kubelet of Kubernetes
1.36. Parts that change with every attempt (counts, delays) are left out: the message becomes part of the status, which
must not change while nothing does.

A Job has no pod where another than the operator suspends it, or where the API server refuses the pod, which Kubernetes
tells in events alone. It is held by a container beside ours that never ends, as the sidecar of a mesh: Kubernetes
counts a Job by its pods, and a pod has ended when all of its containers have. Sidecars that are init containers, as
Kubernetes knows them, end by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gnnserve_api.pods.interface import PodExit
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem
from gnnserve_api.wording import in_words, sentence
from gnnserve_operator.decide.repository import ended_well
from gnnserve_operator.desired.metadata import QUEUE_NAME, is_repository_claim, pool_claim_name
from gnnserve_operator.desired.pod import PodTemplateInputs
from gnnserve_operator.observed import ObservedJob, ObservedPod, Termination

_CLAIM_MISSING = re.compile(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)')
_CLAIM_LOST = re.compile(r'persistentvolumeclaim "([^"]+)" bound to non-existent persistentvolume "([^"]+)"')
_CLAIM_PENDING = re.compile(
    r"unbound immediate PersistentVolumeClaims|find available persistent volumes to bind"
    r"|waiting for (a )?volume to be created|Waiting for volume"
)
_EXTENDED_RESOURCE = re.compile(r"Insufficient ([a-z0-9.-]+/[A-Za-z0-9._-]*[A-Za-z0-9_-])")
_NO_ROOM = re.compile(r"Insufficient |Too many pods|free ports|anti-affinity")
"""Words of the scheduler for what nodes lack as long as other pods are on them."""
_PREEMPTION = re.compile(r"[.,]?\s*(no new claims to deallocate[.,]?\s*)?preemption: .*$", re.DOTALL)
"""The scheduler's remark about preemption, which is cut off."""
_PREFILTER = re.compile(r"\. not found$")
"""Suffix of the scheduler where no node was examined, which is cut off."""
_LOCAL_ADDRESS = re.compile(r"[0-9a-f.:\[\]]+:[0-9]+->")
"""A local address, different at every attempt to reach a registry, which is cut out."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: )?')
_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_OPENSHIFT = "security context constraint"
"""Words of OpenShift's admission."""


@dataclass(frozen=True, slots=True)
class _Case:
    pod: ObservedPod
    given: PodTemplateInputs

    @property
    def section(self) -> str:
        return self.given.section

    def is_made(self, claim: str) -> bool:
        """Whether the operator makes it."""
        if self.given.pool:
            return claim == pool_claim_name(self.given.pool)
        return self.given.repository.claim_name is None and is_repository_claim(self.given.owner, claim)

    def field_of_claim(self, claim: str) -> str:
        """The field of the spec that names a claim."""
        if self.is_made(claim):
            return "the claim that the operator makes"
        named = (
            ("spec.graph.volume.claimName", self.given.data_claim),
            ("spec.repository.claimName", self.given.repository.claim_name),
        )
        fields = [field for field, name in named if name == claim]
        return f"named by {' and '.join(fields)}" if fields else "named by the operator's settings"


def pod_problem(pod: ObservedPod, given: PodTemplateInputs) -> Problem | None:
    """What is wrong with a pod that was made from these inputs; None: nothing, as far as is known."""
    if pod.deleting or pod.ready or pod.phase in {"Succeeded", "Failed"}:
        return None
    case = _Case(pod, given)
    return next((problem for question in _QUESTIONS if (problem := question(case)) is not None), None)


def lacks_room(pod: ObservedPod) -> bool:
    """Whether other pods take what it needs, so that it may start where one of them ends."""
    return pod.unschedulable is not None and _NO_ROOM.search(pod.unschedulable) is not None


def _unschedulable(case: _Case) -> Problem | None:
    message, pod = case.pod.unschedulable, case.pod.name
    if message is None:
        return None
    if missing := _CLAIM_MISSING.search(message):
        claim, what = missing.groups()
        return _without_claim(case, claim, is_going=what != "not found")
    if lost := _CLAIM_LOST.search(message):
        claim, volume = lost.groups()
        return Problem(
            Reason.VOLUME_CLAIM_MISSING,
            f"Pod {pod} waits: PersistentVolumeClaim {claim} ({case.field_of_claim(claim)}) is bound to "
            f"PersistentVolume {volume}, which does not exist. Restore the volume, or name another claim.",
            needs_person=True,
        )
    # Nodes may lack several things; a missing GPU comes first, since waiting does not help.
    if extended := _EXTENDED_RESOURCE.search(message):
        return _no_gpu(case, extended[1])
    if _CLAIM_PENDING.search(message):
        return Problem(
            Reason.VOLUME_CLAIM_PENDING,
            f"Pod {pod} waits for a volume: {_scheduler_words(message)}. If it lasts, see `kubectl describe pvc`: "
            "the cluster may have no default StorageClass (name one in spec.repository.claim.storageClassName) or no "
            "volume of that size.",
            needs_person=False,
        )
    return Problem(
        Reason.UNSCHEDULABLE,
        f"Pod {pod} finds no node: {_scheduler_words(message)}. If it lasts, lower {case.section}.resources, correct "
        f"{case.section}.nodeSelector, tolerations or affinity, or add nodes.",
        needs_person=False,
    )


def _without_claim(case: _Case, claim: str, *, is_going: bool) -> Problem:
    state = "is being deleted" if is_going else "does not exist"
    if case.is_made(claim):
        advice = (
            "Another is made in its place, the revision is generated into that, and pods that mount it follow"
            if is_going
            else "It is made within seconds"
        )
    elif is_going:
        advice = "No pod can start with it. Once it is gone, create it again in this namespace"
    else:
        advice = "Create it in this namespace, or name another"
    return Problem(
        Reason.VOLUME_CLAIM_TERMINATING if is_going else Reason.VOLUME_CLAIM_MISSING,
        f"Pod {case.pod.name} waits: PersistentVolumeClaim {claim} ({case.field_of_claim(claim)}) {state}. {advice}.",
        needs_person=not case.is_made(claim),
    )


def _no_gpu(case: _Case, resource: str) -> Problem:
    gpu, asked = case.given.gpu, case.given.settings.resources
    if gpu is not None and gpu.resource_name == resource:
        count, field = str(gpu.count), f"{case.section}.gpu"
    else:
        count = str(asked.limits.get(resource, asked.requests.get(resource, 1)))
        field = f"{case.section}.resources"
    update = " To replace a single worker takes one more than it holds." if case.pod.is_worker else ""
    return Problem(
        Reason.GPU_UNAVAILABLE,
        f"Pod {case.pod.name} finds no node with {count} × {resource} free ({field}). Add such a node or its device "
        f"plugin, free one, or correct {field}.{update}",
        needs_person=True,
    )


def _no_image(case: _Case) -> Problem | None:
    waiting = case.pod.waiting
    if waiting is None or waiting.reason not in _IMAGE_REASONS:
        return None
    # kubelet alternates between the error and a back-off that repeats it; ours stays the same.
    words = sentence(_LOCAL_ADDRESS.sub("", _BACK_OFF.sub("", waiting.message)).removeprefix("ErrImagePull: "))
    secrets = case.given.image_pull_secrets
    with_secrets = f"with imagePullSecrets {', '.join(secrets)}" if secrets else "without imagePullSecrets"
    field = "spec.image" if case.given.image else "the operator's image (the chart's values; spec.image is not set)"
    return Problem(
        Reason.IMAGE_UNAVAILABLE,
        f"Pod {case.pod.name} has no image: {case.pod.image} cannot be had {with_secrets}"
        + (f": {words}" if words else "")
        + f". Correct {field}, or "
        + (
            "see that these secrets exist in this namespace and fit."
            if secrets
            else "name a secret in spec.imagePullSecrets."
        ),
        needs_person=True,
    )


def _no_config(case: _Case) -> Problem | None:
    waiting = case.pod.waiting
    if waiting is None or waiting.reason not in _CONFIG_REASONS:
        return None
    return Problem(
        Reason.CONTAINER_CONFIG_INVALID,
        f"Pod {case.pod.name} cannot create its container: {sentence(waiting.message)}. Create what is missing, or "
        "correct the operator's extra environment and volumes (the chart's values).",
        needs_person=True,
    )


def _ended(case: _Case) -> Problem | None:
    """The problem of a worker that has ended, or that is starting again after it did."""
    pod = case.pod
    end = pod.terminated or pod.last_terminated
    if end is None or not pod.is_worker:
        return None
    if is_out_of_memory(end):
        return Problem(Reason.OUT_OF_MEMORY, f"Pod {pod.name} {memory_words(pod, case.section)}.", needs_person=True)
    return Problem(
        Reason.WORKER_CRASHING,
        f"Pod {pod.name} ended {exit_words(end)}. Kubernetes starts it again; see `kubectl logs {pod.name} "
        "--previous`.",
        needs_person=False,
    )


_QUESTIONS: tuple[Callable[[_Case], Problem | None], ...] = (_unschedulable, _no_image, _no_config, _ended)
"""Questions in a fixed order, so that the same pod always gets the same explanation."""


def is_out_of_memory(end: Termination) -> bool:
    return end.reason == "OOMKilled"


def memory_words(pod: ObservedPod, section: str) -> str:
    limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "what its node has"
    return f"was killed because it needed more memory than {limit}: raise {section}.resources.limits.memory"


_EXIT_WORDS: Mapping[int, str] = {
    2: "bad input",
    3: "the repository",
    4: "something is missing that may come back",
    7: "the GPU was lost",
    137: "killed",
    143: "stopped",
}


def exit_words(end: Termination) -> str:
    """`with exit code 3 (the repository): …`."""
    what = _EXIT_WORDS.get(end.exit_code)
    code = f"with exit code {end.exit_code}" + (f" ({what})" if what else "")
    return f"{code}: {sentence(_last_words(end.message))}" if end.message else f"{code} and left no message"


def _last_words(message: str) -> str:
    """The last message: without a termination message it is the tail of the log, of which our own JSON logs give the
    last line."""
    try:
        line = json.loads(message.rstrip().rpartition("\n")[2])
    except ValueError:
        return message
    return str(line["message"]) if isinstance(line, dict) and "message" in line else message


def _scheduler_words(message: str) -> str:
    return sentence(_PREFILTER.sub("", _PREEMPTION.sub("", message).strip())) or "the scheduler does not say why"


def remedy_of_refusal(refusal: str, section: str) -> str:
    """The remedy where the API server refuses to make pods, by what its refusal says. `section`: the part of the spec
    that asks for them."""
    if _OPENSHIFT in refusal:
        return (
            "Set the chart's podSecurity.runAs to Platform, so that pods name no user and OpenShift gives them one "
            "(docs/operator.md)"
        )
    return f"Raise the quota or relax the namespace's policy, or ask for less in {section}"


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
    program = spec.model.program
    files = [
        *(["graph's"] if paths_of(spec.graph.source) else []),
        *(["checkpoint's"] if any(one is not None and one.uri.hub is None for one in checkpoints) else []),
        *(["program's"] if program is not None and program.uri.hub is None else []),
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


_PREFIXES = ("(combined from similar events): ", "Error creating: ")
"""Prefixes that are cut off, in their order: of Kubernetes where many events differ in their message alone, and of the
Job controller."""
_LASTING = ("is forbidden", "is invalid")
"""Words of refusals that last until a person acts; others are of a webhook, or an API server, that is away."""


def words_of_suspension(job: ObservedJob, service: str) -> str:
    """Message about a Job that another suspends."""
    if not job.queue:
        return (
            f"Job {job.name} is suspended, not by the operator, and waits until that is lifted. If a queue of the "
            f"cluster holds Jobs that name none, name one in the label {QUEUE_NAME} of the GNNService. To let it go: "
            f'`kubectl patch job {job.name} --type=merge --patch=\'{{"spec":{{"suspend":false}}}}\'`.'
        )
    leave = (
        f" To have it run outside the queue, take the label off: `kubectl label gnns {service} {QUEUE_NAME}-`."
        if QUEUE_NAME in job.queue_labels
        else ""
    )
    return (
        f"Job {job.name} waits in queue {job.queue} (label {QUEUE_NAME}), which keeps it suspended. "
        f"`kubectl describe workloads` tells why: no quota is left, or there is no such queue "
        f"(`kubectl get localqueues`).{leave}"
    )


def is_in_wrong_queue(job: ObservedJob, queue: str) -> bool:
    """Whether a Job that waits is to be made anew: it has left its queue, which would hold it for ever, or the operator
    holds it where a queue is to decide. Queues take a Job in when it is created. `queue`: the one that the service
    names; empty: none."""
    if not job.suspended:
        return False
    return job.held if queue else QUEUE_NAME in job.queue_labels


def explain_refusal(job: ObservedJob) -> Problem | None:
    """The API server's refusal of the Job's pod, in its own words."""
    if not job.refusal:
        return None
    words = job.refusal
    for prefix in _PREFIXES:
        words = words.removeprefix(prefix)
    # Each attempt has another name.
    words = re.sub(rf'"{re.escape(job.name)}-[a-z0-9]*"', f'"{job.name}-…"', words)
    return Problem(
        Reason.PODS_FORBIDDEN,
        f"Job {job.name} gets no pod: {sentence(words)}. {remedy_of_refusal(words, 'spec.generation')}; it is tried "
        "again by itself.",
        needs_person=any(word in words for word in _LASTING),
    )


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
        f"{state}: {containers} {in_words(pod.beside)} of pod {pod.name} {run} on beside ours. {_WAYS_OUT} Then "
        f"delete the Job (`kubectl delete job {job}`): {then}."
    )
    return Problem(Reason.SIDECAR_HOLDS_JOB, message, needs_person=True)


def _may_be_about_to_end(pod: ObservedPod, now: datetime) -> bool:
    ended_at = pod.terminated.finished_at if pod.terminated is not None else ""
    return bool(ended_at) and now - datetime.fromisoformat(ended_at) < _PATIENCE
