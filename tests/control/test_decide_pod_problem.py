"""From what scheduler and kubelet write to what a person can do: messages as of Kubernetes 1.36."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.operator.observed import make_service

from gnnserve_api.errors import DeviceError
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem
from gnnserve_operator.decide.pod_problem import pod_problem
from gnnserve_operator.decide.workers import decide_workers
from gnnserve_operator.desired.deployment import worker_pods
from gnnserve_operator.desired.pod import job_pods
from gnnserve_operator.observed import ContainerWaiting, ObservedPod, ObservedState, Termination, WorkerAnswer

POD = ObservedPod("digits-x", "generation", image="gnnserve/worker:1")
WORKER = replace(POD, component="worker")
PREEMPTION = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
NO_GPU = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, {PREEMPTION}"
NO_SLICE = f"0/3 nodes are available: 1 Insufficient cpu, 3 Insufficient nvidia.com/mig-1g.10gb. {PREEMPTION}"
NO_MEMORY = f"0/1 nodes are available: 1 Insufficient memory. no new claims to deallocate, {PREEMPTION}"
UNBOUND = (
    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found. "
    f"no new claims to deallocate, {PREEMPTION}"
)
NO_VOLUME = f"0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. {PREEMPTION}"
UNTOLERATED = f"0/2 nodes are available: 2 node(s) had untolerated taint(s). {PREEMPTION}"


def missing(claim: str) -> str:
    return f'0/1 nodes are available: persistentvolumeclaim "{claim}" not found. not found. {PREEMPTION}'


def unschedulable(message: str, pod: ObservedPod = POD) -> ObservedPod:
    return replace(pod, unschedulable=message)


def waiting(reason: str, message: str = "", pod: ObservedPod = POD) -> ObservedPod:
    return replace(pod, waiting=ContainerWaiting(reason, message))


GRAPHS = {"graph": {"source": {"builtin": "Digits"}, "volume": {"claimName": "graphs"}}}
OWN = {"repository": {"claimName": "shared"}}
GPU = {"generation": {"gpu": {"count": 2}}}
SLICE = {"worker": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 3}}}}
SECRETS = {"imagePullSecrets": ["registry", "mirror"], "image": "gnnserve/worker:1"}


CASES: list[tuple[str, ObservedPod, dict[str, Any], tuple[str, bool, list[str]]]] = [
    (
        "the graph's claim does not exist", unschedulable(missing("graphs")), GRAPHS,
        ("VolumeClaimMissing", True,
         ["PersistentVolumeClaim graphs (named by spec.graph.volume.claimName) does not exist", "Create it"]),
    ),
    (
        "the repository's claim does not exist", unschedulable(missing("shared")), OWN,
        ("VolumeClaimMissing", True, ["shared (named by spec.repository.claimName) does not exist"]),
    ),
    (
        "one claim for both", unschedulable(missing("graphs")), GRAPHS | {"repository": {"claimName": "graphs"}},
        ("VolumeClaimMissing", True, ["named by spec.graph.volume.claimName and spec.repository.claimName"]),
    ),
    (
        "the made claim is not there yet", unschedulable(missing("digits-repository")), {},
        ("VolumeClaimMissing", False, ["digits-repository (the claim that the operator makes) does not exist"]),
    ),
    (
        "the made claim was deleted and is still used",
        unschedulable('0/1 nodes are available: persistentvolumeclaim "digits-repository" is being deleted.', WORKER),
        {},
        ("VolumeClaimTerminating", False, ["is being deleted. Another is made in its place"]),
    ),
    (
        "a claim of the settings", unschedulable(missing("packages")), {},
        ("VolumeClaimMissing", True, ["packages (named by the operator's settings)"]),
    ),
    (
        "the volume of a claim is lost",
        unschedulable(
            '0/1 nodes are available: persistentvolumeclaim "shared" bound to non-existent persistentvolume "pv-7".'
        ), OWN,
        ("VolumeClaimMissing", True, ["bound to PersistentVolume pv-7, which does not exist"]),
    ),
    (
        "no GPU", unschedulable(NO_GPU), GPU,
        ("GpuUnavailable", True, ["2 × nvidia.com/gpu", "spec.generation.gpu"]),
    ),
    (
        "no GPU for a worker", unschedulable(NO_GPU, WORKER), {"worker": {"gpu": {"count": 4}}},
        ("GpuUnavailable", True,
         ["4 × nvidia.com/gpu free (spec.worker.gpu)", "To replace a single worker takes one more than it holds."]),
    ),
    (
        "no slice of a GPU, among other things", unschedulable(NO_SLICE, WORKER), SLICE,
        ("GpuUnavailable", True, ["3 × nvidia.com/mig-1g.10gb", "spec.worker.resources"]),
    ),
    (
        "no memory", unschedulable(NO_MEMORY), {},
        ("Unschedulable", False, ["finds no node: 0/1 nodes are available: 1 Insufficient memory. If it lasts"]),
    ),
    (
        "a taint", unschedulable(UNTOLERATED, WORKER), {},
        ("Unschedulable", False, ["2 node(s) had untolerated taint(s)", "nodeSelector, tolerations or affinity"]),
    ),
    (
        "an unbound claim", unschedulable(UNBOUND), {},
        ("VolumeClaimPending", False, ["PersistentVolumeClaims. If it lasts", "default StorageClass"]),
    ),
    ("no volume for a claim", unschedulable(NO_VOLUME), {}, ("VolumeClaimPending", False, ["of that size"])),
    (
        "an image that is not there", waiting("ErrImagePull", "failed to resolve reference: not found"), {},
        ("ImageUnavailable", True,
         ["gnnserve/worker:1 cannot be had without imagePullSecrets: failed to resolve reference: not found.",
          "the operator's image"]),
    ),
    (
        "an image behind secrets", waiting("ErrImagePull", "401 Unauthorized"), SECRETS,
        ("ImageUnavailable", True,
         ["with imagePullSecrets registry, mirror: 401 Unauthorized. Correct spec.image", "exist in this namespace"]),
    ),
    (
        "an image while kubelet waits", waiting("ImagePullBackOff", 'Back-off pulling image "gnnserve/worker:1"'), {},
        ("ImageUnavailable", True, ["cannot be had without imagePullSecrets. Correct"]),
    ),
    (
        "an image that must not be pulled",
        waiting("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never'), {},
        ("ImageUnavailable", True, ["not present with pull policy of Never"]),
    ),
    (
        "an image with no name",
        waiting("InvalidImageName", 'Failed to apply default image tag "A:b": invalid reference format'), {},
        ("ImageUnavailable", True, ["invalid reference format"]),
    ),
    (
        "a Secret of an environment variable", waiting("CreateContainerConfigError", 'secret "token" not found'), {},
        ("ContainerConfigInvalid", True, ['secret "token" not found']),
    ),
    (
        "a worker between two crashes",
        replace(
            waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container", WORKER),
            last_terminated=Termination(3, "Error", "revision rev-1: x.npy is altered"),
        ), {},
        ("WorkerCrashing", False, ["exit code 3 (the repository): revision rev-1: x.npy is altered", "--previous"]),
    ),
    (
        "a worker that starts again after a crash",
        replace(WORKER, phase="Running", running=True, last_terminated=Termination(1)), {},
        ("WorkerCrashing", False, ["exit code 1 and left no message"]),
    ),
    (
        "a worker that needed too much memory",
        replace(WORKER, memory_limit="2Gi", last_terminated=Termination(137, "OOMKilled")), {},
        ("OutOfMemory", True, ["its limit of 2Gi", "spec.worker.resources.limits.memory"]),
    ),
    (
        "a worker that needed more memory than its node had",
        replace(WORKER, terminated=Termination(137, "OOMKilled")), {},
        ("OutOfMemory", True, ["what its node has"]),
    ),
]  # fmt: skip


def problem_of(pod: ObservedPod, **fields: Any) -> Problem | None:
    spec = make_service(**fields).spec
    return pod_problem(pod, worker_pods("digits", spec).template if pod.is_worker else job_pods("digits", spec))


@pytest.mark.parametrize(("pod", "spec", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_problem_is_named(pod: ObservedPod, spec: dict[str, Any], expected: tuple[str, bool, list[str]]) -> None:
    reason, needs_person, words = expected
    problem = problem_of(pod, **spec)
    assert problem is not None
    assert (problem.reason.value, problem.needs_person) == (reason, needs_person), problem.message
    assert [word for word in words if word not in problem.message] == [], problem.message
    assert "digits-x" in problem.message
    assert "reemption" not in problem.message


FINE: list[tuple[str, ObservedPod]] = [
    ("a pod that has just been made", POD),
    ("a pod that creates its container", waiting("ContainerCreating")),
    ("a worker that starts", replace(WORKER, phase="Running", running=True)),
    ("a ready worker that once crashed", replace(WORKER, ready=True, last_terminated=Termination(1))),
    ("a pod on its way out", replace(waiting("ImagePullBackOff"), deleting=True)),
    ("a pod that is done", replace(POD, phase="Succeeded", terminated=Termination(0))),
    (
        "a generation pod that failed, which is its Job's to tell",
        replace(POD, phase="Failed", terminated=Termination(1)),
    ),
]


@pytest.mark.parametrize("pod", [case[1] for case in FINE], ids=[case[0] for case in FINE])
def test_there_is_no_problem(pod: ObservedPod) -> None:
    assert problem_of(pod) is None


def test_the_same_trouble_has_the_same_words_at_every_attempt() -> None:
    first = waiting("ErrImagePull", "not found")
    then = waiting("ImagePullBackOff", 'Back-off pulling image "gnnserve/worker:1": ErrImagePull: not found')
    assert problem_of(first) == problem_of(then)
    timeouts = [
        waiting("ErrImagePull", f"read tcp 10.1.0.7:{port}->10.9.9.9:443: i/o timeout") for port in (40001, 40002)
    ]
    assert len({problem_of(pod) for pod in timeouts}) == 1
    ended = Termination(1, "Error", "oh")
    back_off = replace(waiting("CrashLoopBackOff", "back-off 10s", WORKER), last_terminated=ended)
    later = replace(waiting("CrashLoopBackOff", "back-off 5m0s", WORKER), last_terminated=ended)
    again = replace(WORKER, phase="Running", running=True, last_terminated=ended)
    just_ended = replace(WORKER, phase="Running", terminated=ended)
    assert len({problem_of(pod) for pod in (back_off, later, again, just_ended)}) == 1


def problem_of_workers(*pods: ObservedPod, **words: str) -> Problem:
    answers = tuple(WorkerAnswer(pod, problem=said) for pod, said in words.items())
    asked_for = worker_pods("digits", make_service().spec)
    found = decide_workers(asked_for, "digest", True, ObservedState(pods=pods, answers=answers)).problem
    assert found is not None
    return found


def test_a_worker_that_cannot_compute_on_its_gpu_has_no_trouble_with_its_revision() -> None:
    waiting_for_it = replace(WORKER, name="a", phase="Running", running=True)
    said = str(DeviceError("the driver is older than torch's CUDA 13.0", "update it"))
    problem = problem_of_workers(waiting_for_it, a=f"revision rev-1 cannot be loaded: {said}")
    assert (problem.reason, problem.needs_person) == (Reason.GPU_UNAVAILABLE, False)
    assert "Worker a: revision rev-1 cannot be loaded: no GPU can be used: the driver is older" in problem.message
    assert "spec.worker.device to Auto" in problem.message
    assert "repository" not in problem.message


@pytest.mark.parametrize("words", ["rev-1 cannot be loaded: x.npy is altered", "rev-1 is not answered from: x.npy"])
def test_running_worker_knows_better_than_how_its_last_container_ended(words: str) -> None:
    long_ago = Termination(137, "OOMKilled")
    first, second = (
        replace(WORKER, name=name, phase="Running", running=True, last_terminated=long_ago) for name in ("a", "b")
    )
    problem = problem_of_workers(first, a=words)
    assert (problem.reason, words in problem.message) == (Reason.REVISION_NOT_LOADED, True)
    healthy = replace(second, last_terminated=None)
    problem = problem_of_workers(replace(first, last_terminated=None), healthy, a="rev-1 is being loaded", b=words)
    assert (problem.reason, "Worker b" in problem.message) == (Reason.REVISION_NOT_LOADED, True)
    # Who only loads may need more memory than there is; who has ended says nothing any more.
    assert problem_of_workers(first, a="rev-1 is being loaded").reason is Reason.OUT_OF_MEMORY
    assert problem_of_workers(first).reason is Reason.OUT_OF_MEMORY
    ended = replace(first, running=False, terminated=long_ago)
    assert problem_of_workers(ended, a=words).reason is Reason.OUT_OF_MEMORY
