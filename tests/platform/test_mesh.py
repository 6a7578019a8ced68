"""A mesh's sidecar in the pods of Jobs, played by a container that does not end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.pods import python_pod
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.platform.admission import mutating

OF_A_JOB = "object.metadata.?labels['app.kubernetes.io/component'].orValue('') == 'generation'"
NOT_LEFT_OUT = "object.metadata.?labels['sidecar.example/inject'].orValue('') != 'false'"


@contextmanager
def injected(namespace: Namespace, *, native: bool) -> Iterator[None]:
    """Sidecars in the pods of Jobs: containers before ours, or as Kubernetes knows them."""
    cluster = namespace.cluster
    place, kind = ("/spec/initContainers/-", "initContainers") if native else ("/spec/containers/0", "containers")
    restart = 'restartPolicy: "Always", ' if native else ""
    sidecar = (
        f'Object.spec.{kind}{{name: "mesh-proxy", image: "{cluster.worker_image}", imagePullPolicy: "IfNotPresent", '
        f'{restart}command: ["python", "-c", "import time; time.sleep(86400)"], '
        f"securityContext: Object.spec.{kind}.securityContext{{allowPrivilegeEscalation: false, "
        f'capabilities: Object.spec.{kind}.securityContext.capabilities{{drop: ["ALL"]}}}}}}'
    )
    # Our pods have no init containers, and only a list that is there can be added to.
    first = 'JSONPatch{op: "add", path: "/spec/initContainers", value: []}, ' if native else ""
    patch = f'[{first}JSONPatch{{op: "add", path: "{place}", value: {sidecar}}}]'
    with mutating(cluster, patch, [OF_A_JOB, NOT_LEFT_OUT]) as policy:
        policy.hold_in(namespace)
        # The API server follows a new policy some time after it was accepted.
        wait_for("sidecars to be injected", lambda: "mesh-proxy" in containers(trial_of_a_job(namespace), kind))
        yield


def trial_of_a_job(namespace: Namespace) -> dict[str, object]:
    """A pod as a Job's would be made now."""
    labels = {"app.kubernetes.io/component": "generation"}
    pod = python_pod(namespace.cluster, "trial", "pass", labels=labels)
    words = ("create", "--dry-run=server", "--output=json", "--filename=-")
    return dict(json.loads(namespace.kubectl(*words, stdin=json.dumps(pod))))


def containers(pod: dict[str, object], kind: str = "containers") -> list[str]:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    return [container["name"] for container in spec.get(kind, [])]


@pytest.fixture
def service(operator: Installation, namespace: Namespace) -> Service:
    return Service(namespace, "digits")


def test_a_sidecar_that_holds_the_job_is_named_and_left_out_by_a_label_without_training_anew(
    service: Service, cluster: Cluster
) -> None:
    with injected(service.namespace, native=False):
        service.apply(SMALL_SPEC)
        told = service.wait_for("Ready", "SidecarHoldsJob", "False")
        (pod,) = service.children("pods")
        assert containers(pod) == ["mesh-proxy", "generate"]
        assert f"container mesh-proxy of pod {pod['metadata']['name']} runs on beside ours" in told
        assert service.condition("Stalled")["reason"] == "SidecarHoldsJob"
        (held,) = service.children("jobs")
        assert "completionTime" not in held["status"]
        service.patch({"generation": {"podLabels": {"sidecar.example/inject": "false"}}})
        revision = service.wait_until_ready()["revision"]
        (job,) = service.children("jobs")
        assert job["metadata"]["uid"] != held["metadata"]["uid"]
        # What the held one made is found.
        log = service.namespace.kubectl("logs", f"job/{job['metadata']['name']}")
        assert f"published: revision {revision}" in log
        assert "publish: 1/1" not in log


def test_a_native_sidecar_ends_with_the_job(service: Service, cluster: Cluster) -> None:
    with injected(service.namespace, native=True):
        service.apply(SMALL_SPEC)
        service.wait_until_ready()
        jobs = service.namespace.items("pods", "--selector=app.kubernetes.io/component=generation")
        (pod,) = jobs
        assert containers(pod, "initContainers") == ["mesh-proxy"]
        wait_for("the Job to be complete", lambda: service.children("jobs")[0]["status"].get("completionTime"))
