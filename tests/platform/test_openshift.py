"""As on OpenShift: an admission gives each pod a user of the namespace's range, and refuses pods that name another."""

from __future__ import annotations

import http.client
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.installation import RELEASE, Installation
from tests.cluster.harness.pods import python_pod
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.platform.admission import mutating, validating
from tests.support.lacks import lacks_own_node

USER = 1_000_680_000
TOKEN = "a-token-that-writes-0123456789"  # noqa: S105 - of the tests
SPEC: Mapping[str, Any] = {
    **SMALL_SPEC,
    "generation": {"retries": 0},
    "updates": {"log": {"sqlite": {}}, "maxDelta": "256Mi"},
    "endpoint": {"writeTokens": {"secretName": "writing"}},
}
GIVEN = (
    f'[JSONPatch{{op: "add", path: "/spec/securityContext/runAsUser", value: {USER}}}, '
    f'JSONPatch{{op: "add", path: "/spec/securityContext/fsGroup", value: {USER}}}]'
)
IN_RANGE = f"object.spec.securityContext.?runAsUser.orValue(0) == {USER}"
REFUSAL = "unable to validate against any security context constraint: runAsUser must be in the ranges"


@pytest.fixture
def namespace(cluster: Cluster, operator: Installation) -> Iterator[Namespace]:
    made = cluster.create_workspace(f"openshift-{uuid.uuid4().hex[:4]}")
    made.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "writing"}, "stringData": {"token": TOKEN}})
    yield made
    made.delete()


@contextmanager
def platform(*namespaces: Namespace) -> Iterator[None]:
    """The admission, in these namespaces."""
    given = mutating(namespaces[0].cluster, GIVEN, ["!has(object.spec.securityContext.runAsUser)"])
    with given as gives, validating(namespaces[0].cluster, IN_RANGE, REFUSAL) as refuses:
        for policy in (gives, refuses):
            for namespace in namespaces:
                policy.hold_in(namespace)
        wait_for("the policies to hold", lambda: all(is_refused(namespace) for namespace in namespaces))
        try:
            yield
        finally:
            for policy in (refuses, gives):
                for namespace in namespaces:
                    policy.end_in(namespace)


def is_refused(namespace: Namespace) -> bool:
    """Whether a pod that names its user is."""
    pod = python_pod(namespace.cluster, "trial", "pass")
    try:
        namespace.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
    except HarnessError as error:
        return REFUSAL in str(error)
    return False


def folder_of(service: Service) -> Path:
    """The folder of this machine that is the repository's volume."""
    node = service.namespace.cluster.node
    assert node is not None
    claim = service.namespace.get(f"pvc/{service.name}-repository")
    return node.layout.volumes / f"claim-{claim['metadata']['uid']}"


def change(service: Service, **parts: object) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(service.address(), 80, timeout=30)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/v1/changes", json.dumps(parts), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_every_pod_runs_as_the_user_that_the_platform_gives_it_trains_answers_and_writes_changes(
    namespace: Namespace, operator: Installation, cluster: Cluster
) -> None:
    if cluster.node is None:
        lacks_own_node("about files of a volume on this machine")
    service = Service(namespace, "digits")
    with operator.alone(), platform(namespace, operator.namespace):
        service.apply(SPEC)
        # As the chart comes, pods name 65532, and the platform has its say.
        told = service.wait_for("Ready", "PodsForbidden", "False")
        assert REFUSAL in told
        assert "Set the chart's podSecurity.runAs to Platform" in told
        operator.upgrade({"podSecurity": {"runAs": "Platform"}})
        assert operator.pod()["spec"]["securityContext"]["runAsUser"] == USER
        tested = cluster.helm("test", RELEASE, "--namespace", operator.namespace.name, "--timeout=2m")
        assert "Succeeded" in tested

        # The volume is a folder of user 65532's, and of a kind that knows no fsGroup.
        told = service.wait_for("Ready", "GenerationFailed", "False")
        folder = folder_of(service)
        owner = folder.stat()
        assert f"/repository/{namespace}/digits: cannot be written: Permission denied" in told
        assert f"runs as user {USER} and group 0 (and {USER})" in told
        assert f"/repository belongs to user {owner.st_uid} and group {owner.st_gid} with mode 770" in told
        assert "by chmod or chown (in a cluster, fsGroup does so, but not on NFS and host paths)" in told
        assert "Traceback" not in told

        shutil.chown(folder, group=USER)
        namespace.kubectl("delete", "jobs", "--all")
        revision = service.wait_until_ready()["revision"]
        for pod in service.children("pods"):
            assert pod["spec"]["securityContext"]["runAsUser"] == USER
        (worker,) = service.worker_pod_names()
        ids = "import os; print(os.getuid(), os.getgid(), *os.getgroups())"
        assert namespace.kubectl("exec", worker, "--", "python", "-c", ids).split()[:2] == [str(USER), "0"]
        service.predict(0, 1, 2)
        status, answer = change(service, edges=[[0, 1]])
        assert (status, answer["offset"]) == (200, 1)
        assert service.restarts() == 0
        jobs = {job["metadata"]["name"] for job in service.children("jobs")}
    # As the chart comes again: another template of pods, and neither another revision nor another Job.
    users = {65_532}
    wait_for(
        "workers of the user that pods name",
        lambda: {pod["spec"]["securityContext"]["runAsUser"] for pod in service.worker_pods()} == users,
        timeout_s=180,
    )
    assert service.status()["revision"] == revision
    assert {job["metadata"]["name"] for job in service.children("jobs")} == jobs
