"""Why does a pod not run, or why is none made? A table from messages to what a person can do.

The messages are those of the scheduler and the kubelet of Kubernetes 1.36. Parts that change with every attempt
(counts, delays) are left out: the message becomes part of the status, which must not change while nothing does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnnserve_api.reasons import Reason
from gnnserve_operator.decide.problem import Problem
from gnnserve_operator.desired.names import is_repository_claim, pool_claim_name
from gnnserve_operator.desired.pod import PodTemplateInputs
from gnnserve_operator.observed import ObservedPod, Termination
from gnnserve_routing.verdict import sentence

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
