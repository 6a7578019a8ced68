"""Autoscalers on a service, and on its Deployment by mistake: the node's own HorizontalPodAutoscaler decides."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.load import Load
from tests.cluster.harness.metrics_api import MetricsApi, metrics_api
from tests.cluster.harness.services import SMALL_SPEC, Service

EXAMPLES = REPOSITORY / "examples/autoscaling"
PATIENCE_S = 300


def autoscaler(example: str) -> dict[str, Any]:
    """The example, but that it takes workers away at once, and not after five minutes."""
    found = dict(yaml.safe_load((EXAMPLES / example).read_text()))
    found["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 0}
    return found


def wait_for_workers(service: Service, count: int) -> None:
    def looks_so() -> bool:
        return service.status()["workers"]["ready"] == f"{count}/{count}" and len(service.worker_pod_names()) == count

    wait_for(f"{count} workers", looks_so, PATIENCE_S)


def cores_of(api: MetricsApi, service: Service) -> float:
    """Processors that its worker pods use together, as measured twice from now on."""
    pods = {(str(service.namespace), name) for name in service.worker_pod_names()}
    for _ in range(2):
        before = {pod: api.cores.get(pod) for pod in pods}

        def is_measured_again(before: dict[tuple[str, str], Any] = before) -> bool:
            return all(api.cores.get(pod) not in {None, before[pod]} for pod in pods)

        wait_for("a new measurement", is_measured_again, 90)
    return sum(found[0] for pod in pods if (found := api.cores[pod]))


def told_of(service: Service, reason: str) -> list[str]:
    return [event["message"] for event in service.events() if event["reason"] == reason]


@pytest.mark.usefixtures("operator")
def test_an_autoscaler_of_the_service_moves_workers_under_load_and_no_request_fails(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    service = Service(namespace, "digits")
    service.apply(SMALL_SPEC)
    service.wait_until_ready()
    with metrics_api(cluster, tmp_path) as api, Load(service) as steady:
        little = cores_of(api, service)
        with contextlib.ExitStack() as stack:
            busy = [stack.enter_context(Load(service)) for _ in range(3)]
            much = cores_of(api, service)
            assert much > 1.3 * little, "the load makes no difference on this machine"
            by_cpu = autoscaler("hpa-cpu.yaml")
            (metric,) = by_cpu["spec"]["metrics"]
            # Between the two loads: the one needs another worker, the other does not.
            metric["resource"]["target"]["averageValue"] = f"{round(1000 * (little + much) / 2)}m"
            by_cpu["spec"]["maxReplicas"] = 2
            namespace.apply(by_cpu)
            wait_for_workers(service, 2)
            steady.until_more_answers(50)
        wait_for_workers(service, 1)
        steady.until_more_answers(50)
        namespace.kubectl("delete", "hpa/digits")

        # The operator's own figure, as prometheus-adapter would have it of Prometheus.
        api.external["gnnserve_operator_routing_wanted_workers"] = 2
        namespace.apply(autoscaler("hpa-wanted-workers.yaml"))
        wait_for_workers(service, 2)
        steady.until_more_answers(50)

        # A manifest with the number of workers, as a GitOps tool would apply it again and again.
        service.apply({**SMALL_SPEC, "worker": {"replicas": 1}})
        (said,) = wait_for("the contest to be named", lambda: told_of(service, "ReplicasContested"), PATIENCE_S)
        assert (
            "set by kube-controller-manager, as autoscalers do, and by the manifest that kubectl apply applies" in said
        )
        assert service.condition("ReplicasUncontested")["status"] == "False"
        wait_for_workers(service, 2)
    assert [load.failures for load in (steady, *busy)] == [[], [], [], []]
    assert told_of(service, "ChangeReverted") == []


def test_an_autoscaler_of_the_deployment_is_named_by_few_events(
    cluster: Cluster, namespace: Namespace, operator: Installation, tmp_path: Path
) -> None:
    service = Service(namespace, "digits")
    service.apply(SMALL_SPEC)
    service.wait_until_ready()
    pods = service.worker_pod_names()
    with metrics_api(cluster, tmp_path) as api:
        api.external["gnnserve_operator_routing_wanted_workers"] = 3
        misled = autoscaler("hpa-wanted-workers.yaml")
        misled["spec"]["scaleTargetRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "digits-worker"}
        namespace.apply(misled)
        (said,) = wait_for("an event", lambda: told_of(service, "ChangeReverted"), PATIENCE_S)
        assert "Deployment digits-worker was changed by kube-controller-manager (by the subresource scale" in said
        assert "spec.replicas from 3 back to 1" in said
        assert "Set spec.worker.replicas of GNNService digits" in said
        assert f"kubectl scale -n {namespace} gnns/digits --replicas=3" in said

        def fights() -> bool:
            line = f'gnnserve_operator_reverts_total{{kind="GNNService",name="digits",namespace="{namespace}",'
            counted = [text for text in operator.metrics().splitlines() if text.startswith(line)]
            return bool(counted) and float(counted[0].split()[-1]) >= 3

        wait_for("three rounds of the fight", fights, PATIENCE_S)
        assert told_of(service, "ChangeReverted") == [said]
        namespace.kubectl("delete", "hpa/digits")
    wait_for_workers(service, 1)
    assert pods == service.worker_pod_names()
