"""The operator goes, comes, is killed, upgraded and set otherwise: one leads, and no worker notices.

Every other test needs the operator as it is, so these have it alone: they wait until the other processes of the run no
longer use it.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.installation import RELEASE, Installation
from tests.cluster.harness.load import Load
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.kubernetes.object_versions import versions as of_all
from tests.support.lacks import lacks_own_node

TIMES = {"leaseSeconds": 8, "renewDeadlineSeconds": 6, "retrySeconds": 1}
TAKEOVER_LIMIT_S = 60
"""Far beyond the 8 s of the Lease."""
LOST_LEADERSHIP = 3


@pytest.fixture(scope="module")
def operators(cluster: Cluster, operator: Installation) -> Iterator[Installation]:
    if cluster.node is None:
        lacks_own_node("stops and kills processes of the node, which must be this machine")
    with operator.alone():
        operator.upgrade({"replicas": 2, "leaderElection": TIMES})
        yield operator


@pytest.fixture(scope="module")
def service(cluster: Cluster, operators: Installation) -> Iterator[Service]:
    namespace = cluster.create_workspace(f"leaders-{uuid.uuid4().hex[:4]}")
    made = Service(namespace, "digits")
    made.apply(SMALL_SPEC)
    made.wait_until_ready()
    yield made
    namespace.delete()


@pytest.fixture
def namespace(service: Service) -> Namespace:
    """For the diagnosis of a failed test."""
    return service.namespace


def lease(operators: Installation) -> dict[str, Any]:
    return dict(operators.namespace.get(f"lease/{RELEASE}")["spec"])


def leader(operators: Installation) -> dict[str, Any]:
    """The pod that leads; waits while nobody does."""

    def look() -> dict[str, Any] | None:
        holder = lease(operators)["holderIdentity"]
        return next((pod for pod in operators.pods() if holder.endswith(pod["metadata"]["uid"])), None)

    return wait_for("a leader", look, TAKEOVER_LIMIT_S)


def wait_for_another_leader(operators: Installation, former: dict[str, Any]) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = leader(operators)
        return found if found["metadata"]["uid"] != former["metadata"]["uid"] else None

    return wait_for("another leader", look, TAKEOVER_LIMIT_S)


def process_of(pod: dict[str, Any]) -> int:
    """The operator's, by its environment: containers of this node are processes of this machine."""
    mark = f"\0POD_UID={pod['metadata']['uid']}\0".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in b"\0" + environment.read_bytes():
                return int(environment.parent.name)
        except OSError:
            continue  # it has ended
    raise AssertionError(f"no process of {pod['metadata']['name']}")


def wait_until_it_says(operators: Installation, pod: dict[str, Any], text: str) -> None:
    path = f"/api/v1/namespaces/{operators.namespace}/pods/{pod['metadata']['name']}:8080/proxy/readyz"

    def look() -> bool:
        try:
            return operators.cluster.kubectl("get", "--raw", path).strip() == text
        except HarnessError:
            return False  # its container is starting

    wait_for(f"{pod['metadata']['name']} to say {text!r}", look, TAKEOVER_LIMIT_S)


def versions(service: Service) -> dict[str, str]:
    """Of what the operator made, but for what other controllers write into."""
    kinds = "services,configmaps,persistentvolumeclaims,networkpolicies,roles,rolebindings,serviceaccounts,jobs"
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in service.namespace.items(kinds, "--selector=gnnserve.dev/service")
    }


def assert_followed(service: Service, latency_ms: int) -> None:
    """Somebody looks after it: a new objective reaches the workers."""
    service.patch({"objective": {"latencyMs": latency_ms}})
    wait_for("the worker to follow", lambda: service.route()["objective"].get("latencyMs") == latency_ms)
    service.wait_until_ready()


def test_one_leads_and_the_other_stands_by(operators: Installation, service: Service) -> None:
    first = leader(operators)
    (other,) = (pod for pod in operators.pods() if pod["metadata"]["uid"] != first["metadata"]["uid"])
    wait_until_it_says(operators, first, "ok")
    wait_until_it_says(operators, other, "standing by")
    assert_followed(service, 7001)


def test_an_installation_after_an_uninstall_does_not_wait_for_the_lease(
    operators: Installation, service: Service
) -> None:
    """The operator that is uninstalled has lost the right to let go by the time that it is told to end."""
    operators.upgrade({"leaderElection": {**TIMES, "leaseSeconds": 600}})
    former = leader(operators)
    wait_for("the longer Lease", lambda: lease(operators)["leaseDurationSeconds"] == 600, TAKEOVER_LIMIT_S)
    operators.remove()
    operators.upgrade({"replicas": 2, "leaderElection": TIMES})
    wait_for_another_leader(operators, former)
    assert_followed(service, 7007)


def test_a_leader_that_goes_is_followed_at_once_and_nothing_is_written(
    operators: Installation, service: Service
) -> None:
    before, pods, former, term = (
        versions(service), service.worker_pod_names(), leader(operators), lease(operators)["leaseTransitions"]
    )  # fmt: skip
    with Load(service) as load:
        operators.namespace.kubectl("delete", "pod", former["metadata"]["name"], "--wait=false")
        wait_for_another_leader(operators, former)
        assert lease(operators)["leaseTransitions"] == term + 1
        load.until_more_answers(100)
    assert load.failures == []
    assert versions(service) == before, "a new leader rewrites nothing"
    assert_followed(service, 7002)
    assert (service.worker_pod_names(), service.restarts()) == (pods, 0)


def test_a_leader_that_is_killed_leads_again_in_its_next_container_or_is_followed(
    operators: Installation, service: Service
) -> None:
    before, pods, term = versions(service), service.worker_pod_names(), lease(operators)["leaseTransitions"]
    with Load(service) as load:
        os.kill(process_of(leader(operators)), signal.SIGKILL)
        wait_for("a new term", lambda: lease(operators)["leaseTransitions"] > term, TAKEOVER_LIMIT_S)
        load.until_more_answers(100)
    assert load.failures == []
    assert versions(service) == before
    assert_followed(service, 7003)
    assert (service.worker_pod_names(), service.restarts()) == (pods, 0)


def test_a_leader_that_was_stopped_finds_another_and_ends_before_it_writes(
    operators: Installation, service: Service
) -> None:
    pods, former = service.worker_pod_names(), leader(operators)
    name, stopped = former["metadata"]["name"], process_of(former)
    before = former["status"]["containerStatuses"][0]["restartCount"]
    with Load(service) as load:
        os.kill(stopped, signal.SIGSTOP)
        try:
            present = wait_for_another_leader(operators, former)
            assert_followed(service, 7004)
            written = versions(service)
        finally:
            os.kill(stopped, signal.SIGCONT)

        def ended() -> dict[str, Any] | None:
            (status,) = operators.namespace.get(f"pod/{name}")["status"]["containerStatuses"]
            return status["lastState"].get("terminated") if status["restartCount"] > before else None

        assert wait_for("the former leader to end", ended, TAKEOVER_LIMIT_S)["exitCode"] == LOST_LEADERSHIP
        wait_until_it_says(operators, former, "standing by")
    assert load.failures == []
    assert leader(operators)["metadata"]["uid"] == present["metadata"]["uid"]
    assert versions(service) == written
    assert_followed(service, 7005)
    assert (service.worker_pod_names(), service.restarts()) == (pods, 0)


def test_a_restarted_operator_and_an_upgraded_chart_restart_no_worker(
    service: Service, operators: Installation
) -> None:
    pods = service.worker_pod_names()
    operators.upgrade({"logs": {"level": "DEBUG"}})
    operators.upgrade()
    operators.scale(0)
    operators.scale(1)
    assert "succeeded" in operators.cluster.helm("test", RELEASE, "--namespace", operators.namespace.name).lower()
    service.patch({"objective": {"latencyMs": 7700}})
    wait_for("the new operator to act", lambda: service.route()["objective"].get("latencyMs") == 7700)
    service.wait_until_ready()
    assert service.worker_pod_names() == pods
    assert service.restarts() == 0


def test_a_converged_service_is_left_alone(service: Service, operators: Installation) -> None:
    """Several resyncs pass, each of which looks at everything and writes nothing."""
    before, resyncs = of_all(service), _resyncs(operators)
    wait_for("three more resyncs", lambda: _resyncs(operators) >= resyncs + 3)
    assert of_all(service) == before


def test_deleting_it_while_the_operator_is_away_leaves_nothing(service: Service, operators: Installation) -> None:
    assert "finalizers" not in service.read()["metadata"]
    operators.scale(0)
    try:
        service.delete()
        wait_for("every child to be gone", lambda: not _children(service), 120)
    finally:
        operators.scale(1)
    assert _children(service) == []


def test_a_second_job_is_queued_until_the_first_is_done(operators: Installation, service: Service) -> None:
    operators.upgrade({"generation": {"maxConcurrentJobs": 1}})
    namespace = service.namespace
    try:
        first, second = Service(namespace, "first"), Service(namespace, "second")
        first.apply(SMALL_SPEC)
        first.wait_for("VariantsGenerated", "Generating", "False", timeout_s=60)
        second.apply(SMALL_SPEC)
        said = second.wait_for("VariantsGenerated", "Queued", "False", timeout_s=60)
        assert "it is next" in said
        (job,) = namespace.items("jobs", "--selector=gnnserve.dev/service=second")
        assert job["spec"]["suspend"] is True
        first.wait_until_ready()
        second.wait_until_ready()
    finally:
        operators.upgrade()


def _children(service: Service) -> list[str]:
    kinds = (
        "deployments,replicasets,jobs,pods,services,configmaps,persistentvolumeclaims,poddisruptionbudgets,"
        "networkpolicies,roles,rolebindings,serviceaccounts"
    )
    found = service.namespace.kubectl("get", kinds, "--selector=gnnserve.dev/service", "--output=name")
    return found.split()


def _resyncs(operators: Installation) -> float:
    """Reconciles that the operator has counted."""
    counted = [
        line.split()[1]
        for line in operators.metrics().splitlines()
        if line.startswith("gnnserve_operator_reconciles_total")
    ]
    return sum(float(value) for value in counted)
