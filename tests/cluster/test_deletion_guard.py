"""The chart's guard on a real API server: no pool that services name is deleted by a slip, and nothing hangs on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.helm import render

from gnnserve_api.generated.schema import RESOURCES, crd_yaml

# The first test may wait until Kubernetes is compiled.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

NAMESPACE = "guarded"
KINDS = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def add_pool(cluster: Cluster, name: str, services: Sequence[str] = (), namespace: str = NAMESPACE) -> None:
    """A pool, and what its status says of its services."""
    cluster.apply(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNWorkerPool",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {},
        }
    )
    status = {"status": {"services": [{"name": service} for service in services]}}
    patch = ("patch", f"gnnp/{name}", "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    cluster.kubectl("--namespace", namespace, *patch)


def delete(cluster: Cluster, name: str, *more: str, namespace: str = NAMESPACE) -> str:
    """What the API server has against it; empty: nothing."""
    try:
        cluster.kubectl("--namespace", namespace, "delete", "gnnp", name, *more)
    except HarnessError as error:
        return str(error)
    return ""


def is_served(cluster: Cluster) -> bool:
    try:
        cluster.kubectl("get", "gnnworkerpools.gnnserve.dev", "--all-namespaces")
    except HarnessError:
        return False
    return True


def is_there(cluster: Cluster, what: str, namespace: str = NAMESPACE) -> bool:
    return bool(cluster.kubectl("--namespace", namespace, "get", what, "--ignore-not-found", "--output=name").strip())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_api_server(controllers=True) as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        for resource in RESOURCES:
            cluster.kubectl("apply", "--server-side", "--filename=-", stdin=crd_yaml(resource))
        wait_for("pools to be served", lambda: is_served(cluster))
        cluster.apply(*(found for found in render() if found["kind"] in KINDS))
        add_pool(cluster, "probe", ["reviews"])
        # A policy holds a moment after it was made; a trial deletes nothing.
        wait_for("the policy to hold", lambda: "would answer no more" in delete(cluster, "probe", "--dry-run=server"))
        yield cluster


def test_a_pool_that_services_name_stays_with_a_sentence_and_one_without_goes(cluster: Cluster) -> None:
    add_pool(cluster, "shared", ["papers", "reviews"])
    for _ in range(2):
        said = delete(cluster, "shared")
        assert "GNNWorkerPool shared answers for GNNServices papers, reviews, which would answer no more" in said
        assert f"kubectl annotate --namespace {NAMESPACE} gnnworkerpool/shared gnnserve.dev/allow-deletion=true" in said
    add_pool(cluster, "idle")
    assert delete(cluster, "idle") == ""
    add_pool(cluster, "shared")  # its services are deleted
    assert delete(cluster, "shared") == ""


def test_a_person_who_says_so_may_delete_it_all_the_same(cluster: Cluster) -> None:
    add_pool(cluster, "given-up", ["papers"])
    said = delete(cluster, "given-up")
    command = said[said.index("kubectl annotate") :].split()[1:6]
    cluster.kubectl(*command)
    assert delete(cluster, "given-up") == ""


def test_a_namespace_and_an_owner_that_are_deleted_wait_for_no_pool(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "leaving")
    add_pool(cluster, "shared", ["papers"], namespace="leaving")
    cluster.kubectl("delete", "namespace", "leaving", "--timeout=60s")
    cluster.kubectl("--namespace", NAMESPACE, "create", "configmap", "application")
    uid = cluster.kubectl("--namespace", NAMESPACE, "get", "cm/application", "--output=jsonpath={.metadata.uid}")
    add_pool(cluster, "owned", ["papers"])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "application", "uid": uid}
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    cluster.kubectl("--namespace", NAMESPACE, "patch", "gnnp/owned", "--type=merge", f"--patch={patch}")
    cluster.kubectl("--namespace", NAMESPACE, "delete", "cm/application")
    wait_for("the pool to go with its owner", lambda: not is_there(cluster, "gnnp/owned"))
