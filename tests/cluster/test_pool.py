"""Two services in a pool's worker, on a real cluster: one joins, one is poisoned, one is deleted; the other answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.load import Load
from tests.cluster.harness.pods import python_pod
from tests.cluster.harness.services import SMALL_SPEC, Service

pytestmark = pytest.mark.usefixtures("operator")

POISON = """
import pathlib, sys
for path in pathlib.Path("/repository").rglob("revisions/*/*.safetensors"):
    if sys.argv[1] in path.parts:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
        print("poisoned", path)
"""


def pool(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNWorkerPool",
        "metadata": {"name": "shared"},
        "spec": {"resources": {"limits": {"memory": "1Gi"}}, **spec},
    }


def retained_in(namespace: Namespace) -> str:
    """What the event of a claim that stays says; empty: there is none."""
    return next(
        (found["message"] for found in namespace.items("events") if found["reason"] == "RepositoryRetained"), ""
    )


def pool_of(namespace: Namespace) -> dict[str, Any]:
    return namespace.get("gnnworkerpools/shared")


def worker_pods(namespace: Namespace) -> set[str]:
    found = namespace.items("pods", "--selector=gnnserve.dev/pool=shared")
    return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def in_pool(namespace: Namespace, name: str, **worker: Any) -> Service:
    service = Service(namespace, name)
    service.apply({**SMALL_SPEC, "worker": {"poolRef": {"name": "shared"}, **worker}})
    return service


def test_services_share_a_worker_and_leave_each_other_alone(cluster: Cluster, namespace: Namespace) -> None:
    reviews = in_pool(namespace, "reviews")
    said = reviews.wait_for("Ready", "WorkerPoolMissing", status="False", timeout_s=60)
    assert "create it" in said
    namespace.apply(pool())
    reviews.wait_until_ready()
    assert len(reviews.predict(0, 1)["labels"]) == 2
    assert not namespace.exists("deployments/reviews-worker")
    pods = worker_pods(namespace)
    assert len(pods) == 1

    with Load(reviews) as load:
        papers = in_pool(namespace, "papers", share=3)
        papers.wait_until_ready()
        assert papers.predict(0)["revision"] == papers.status()["revision"]
        line = namespace.kubectl("get", "gnnp").splitlines()[1]
        assert line.split()[:3] == ["shared", "True", "True"]
        assert "reviews papers" in line
        assert "of 1,024 MiB" in line

        pod = python_pod(cluster, "poison", POISON, arguments=["papers"])
        pod["spec"].setdefault("volumes", []).append(
            {"name": "repository", "persistentVolumeClaim": {"claimName": "shared-pool-repository"}}
        )
        pod["spec"]["containers"][0].setdefault("volumeMounts", []).append(
            {"name": "repository", "mountPath": "/repository"}
        )
        assert "poisoned" in namespace.run(pod)
        # It is found, said, and generated again, while the other one answers.
        wait_for("papers to notice", lambda: papers.condition("Ready").get("status") == "False")
        papers.wait_until_ready()
        papers.delete()
        wait_for("papers to leave", lambda: pool_of(namespace)["status"].get("serviceNames") == "reviews")
        load.until_more_answers(20)
    assert load.failures == []
    assert worker_pods(namespace) == pods

    with pytest.raises(HarnessError, match="answers for GNNServices reviews, which would answer no more"):
        namespace.kubectl("delete", "gnnworkerpools/shared")
    assert reviews.predict(0, 1)["labels"]
    namespace.kubectl("annotate", "gnnworkerpools/shared", "gnnserve.dev/allow-deletion=true")
    namespace.kubectl("delete", "gnnworkerpools/shared", "--wait=true")
    reviews.wait_for("Available", "WorkerPoolMissing", status="False", timeout_s=90)
    reviews.wait_for("Ready", "WorkerPoolMissing", status="False", timeout_s=60)
    assert namespace.exists("configmaps/reviews-routing")
    told = wait_for("what stays to be told", lambda: retained_in(namespace))
    assert "make GNNWorkerPool shared again with spec.repository.claimName: shared-pool-repository." in told

    # As the event says: the models are there, and nothing trains.
    jobs = {job["metadata"]["uid"] for job in namespace.items("jobs")}
    namespace.apply(pool(repository={"claimName": "shared-pool-repository"}))
    reviews.wait_until_ready()
    assert reviews.predict(0, 1)["labels"]
    assert {job["metadata"]["uid"] for job in namespace.items("jobs")} == jobs
