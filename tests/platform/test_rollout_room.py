"""A pool that fills its node, and whose pods are replaced: no room for one more, and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.support.lacks import lacks_own_node

from gnnserve_api.quantity import parse_quantity

pytestmark = pytest.mark.usefixtures("operator")


def pool(cpu: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNWorkerPool",
        "metadata": {"name": "shared"},
        "spec": {"resources": {"requests": {"cpu": cpu}}, **spec},
    }


def ready_of(namespace: Namespace) -> dict[str, Any]:
    """The condition Ready of the pool, if it is about the spec as it is now."""
    found = namespace.get("gnnworkerpools/shared")
    for told in found.get("status", {}).get("conditions", ()):
        if told["type"] == "Ready" and told["observedGeneration"] == found["metadata"]["generation"]:
            return dict(told)
    return {}


def test_a_pool_that_fills_its_node_says_how_its_pods_can_be_replaced(cluster: Cluster, namespace: Namespace) -> None:
    if cluster.node is None:
        lacks_own_node("about the only node")
    (node,) = cluster.get("nodes")["items"]
    cores = parse_quantity(node["status"]["allocatable"]["cpu"])
    assert cores is not None
    cpu = f"{int(600 * cores)}m"  # there is room for one such pod, and for no two
    namespace.apply(pool(cpu))
    service = Service(namespace, "digits")
    service.apply({**SMALL_SPEC, "worker": {"poolRef": {"name": "shared"}}})
    service.wait_until_ready()

    namespace.apply(pool(cpu, podLabels={"team": "search"}))

    def stuck() -> str | None:
        told = ready_of(namespace)
        return told["message"] if told.get("reason") == "Unschedulable" else None

    said = wait_for("the pool to be without room", stuck, 120)
    assert "Insufficient cpu" in said
    assert "set spec.rollout.maxUnavailable of GNNWorkerPool shared to 1" in said
    assert "no request is answered until its successor is ready" in said
    assert len(service.predict(0, 1)["labels"]) == 2, "the present pod answers"

    namespace.apply(pool(cpu, podLabels={"team": "search"}, rollout={"maxUnavailable": 1}))
    wait_for("the pods to be replaced", lambda: ready_of(namespace).get("status") == "True", 300)
    (pod,) = namespace.items("pods", "--selector=gnnserve.dev/pool=shared,team=search")
    assert "deletionTimestamp" not in pod["metadata"]
    service.wait_until_ready()
    assert len(service.predict(0, 1)["labels"]) == 2
