"""Worker pods that are replaced where there is no room for one more: what is said, and what the spec can change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.operator.observed import UID, Namespace, make_service, make_settings

from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.worker import RolloutSpec
from gnnserve_operator.decide.workers import decide_workers
from gnnserve_operator.desired.deployment import (
    MountedClaim,
    WorkerPods,
    build_deployment,
    digest_of_pods,
    pool_pods,
    worker_pods,
)
from gnnserve_operator.desired.metadata import Parent
from gnnserve_operator.observed import ObservedDeployment, ObservedPod, ObservedState

NO_CPU = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available"
NO_LABEL = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
GPU = {"gpu": {}}
SQLITE = {"updates": {"log": {"sqlite": {}}}, "repository": {"claim": {"accessMode": "ReadWriteMany"}}}


def strategy(**spec: Any) -> Any:
    built = build_deployment(
        Parent("digits", "shop", UID), make_service(**spec).spec, make_settings(), MountedClaim("digits-repository")
    )
    return built["spec"]["strategy"]


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        pytest.param({}, 0, id="a successor is ready first"),
        pytest.param({"replicas": 3}, 0, id="of several as well"),
        pytest.param({"replicas": 3, **GPU}, 1, id="a spare GPU is rare"),
        pytest.param(GPU, 0, id="a single worker answers until its successor does"),
        pytest.param({"rollout": {"maxUnavailable": 1}}, 1, id="the spec lets one stop first"),
        pytest.param({"replicas": 3, "rollout": {"maxUnavailable": 2}}, 2, id="or several"),
        pytest.param({"replicas": 3, "rollout": {"maxUnavailable": 0}, **GPU}, 0, id="or none, though a GPU is rare"),
    ],
)
def test_how_many_workers_may_stop_before_their_successors_are_ready(worker: Any, expected: int) -> None:
    rolling = {"maxSurge": 1, "maxUnavailable": expected}
    assert strategy(worker=worker) == {"type": "RollingUpdate", "rollingUpdate": rolling}


def test_a_log_in_a_file_has_the_worker_stop_first_whatever_is_said() -> None:
    assert strategy(worker={"rollout": {"maxUnavailable": 0}}, **SQLITE) == {"type": "Recreate"}


def test_the_field_replaces_no_pod() -> None:
    said = make_service(worker={"rollout": {"maxUnavailable": 1}}).spec
    assert digest_of_pods(said) == digest_of_pods(make_service().spec)


def test_a_pool_lends_it_to_its_pods() -> None:
    spec = GNNWorkerPoolSpec.model_validate({"rollout": {"maxUnavailable": 1}})
    assert pool_pods("shared", spec).rollout == RolloutSpec(max_unavailable=1)


def test_a_service_of_a_pool_has_no_rollout_of_its_own() -> None:
    with pytest.raises(ValueError, match="found rollout"):
        make_service(worker={"poolRef": {"name": "shared"}, "rollout": {"maxUnavailable": 1}})


# --- what is said


def replacing(asked_for: WorkerPods, message: str | None = NO_CPU, *, old: int = 1, **deployment: Any) -> str:
    """The message about workers while a new pod finds no node beside the old ones."""
    pods = [ObservedPod(f"old-{number}", "worker", phase="Running", ready=True, running=True) for number in range(old)]
    if message is not None:
        pods.append(ObservedPod("new", "worker", unschedulable=message))
    seen = {"replicas": asked_for.replicas, "template_digest": "new", "ready_replicas": old, **deployment}
    observed = ObservedState(deployment=ObservedDeployment(**seen), pods=tuple(pods))
    problem = decide_workers(asked_for, "new", True, observed).problem
    return "" if problem is None else problem.message


def service(**worker: Any) -> WorkerPods:
    return worker_pods("digits", make_service(worker=worker).spec)


def test_a_pod_without_room_beside_its_predecessor_names_the_way_out_and_its_price() -> None:
    said = replacing(service())
    assert "Pod new finds no node: 0/1 nodes are available: 1 Insufficient cpu." in said
    assert "until it is ready the present one answers, and keeps its room" in said
    assert (
        "set spec.worker.rollout.maxUnavailable to 1: a pod then stops before its successor starts, and no request is "
        "answered until its successor is ready."
    ) in said


def test_several_workers_answer_while_one_is_replaced() -> None:
    assert said_of_price(replacing(service(replicas=2), old=2)) == "the others answer meanwhile."


def said_of_price(said: str) -> str:
    return said.partition("before its successor starts, and ")[2]


def test_a_pool_names_its_own_field() -> None:
    asked_for = pool_pods("shared", GNNWorkerPoolSpec.model_validate({}))
    assert "set spec.rollout.maxUnavailable of GNNWorkerPool shared to 1" in replacing(asked_for)


def test_a_gpu_that_the_predecessor_holds_is_such_room() -> None:
    said = replacing(service(**GPU), "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert "set spec.worker.rollout.maxUnavailable to 1" in said


def test_a_quota_for_the_present_pods_alone_is_such_room() -> None:
    said = replacing(service(), None, replica_failure='pods "digits-worker-x" is forbidden: exceeded quota')
    assert "exceeded quota" in said
    assert "set spec.worker.rollout.maxUnavailable to 1" in said


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(replacing(service(), NO_LABEL), id="no node fits, with or without the predecessor"),
        pytest.param(replacing(service(rollout={"maxUnavailable": 1})), id="a pod stops first already"),
        pytest.param(replacing(service(replicas=2), rolled_out=True), id="a further worker replaces none"),
        pytest.param(replacing(service(), old=0), id="the first worker"),
        pytest.param(
            replacing(service(replicas=2), None, replica_failure="exceeded quota", rolled_out=True),
            id="a quota for fewer workers than are wanted",
        ),
    ],
)
def test_elsewhere_it_is_not_the_way_out(said: str) -> None:
    assert said
    assert "maxUnavailable" not in said


def test_the_service_says_it_and_goes_on_once_the_field_is_set() -> None:
    namespace = Namespace()
    namespace.serve()
    namespace.edit(worker={"podLabels": {"team": "search"}})
    namespace.settle()
    deployment = namespace.get("Deployment")
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_CPU}
    namespace.add_pod(deployment, conditions=[scheduled])
    counts = {"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1}
    deployment["status"] = {"observedGeneration": deployment["metadata"]["generation"], **counts}
    namespace.settle()
    assert namespace.reason() == "False Unschedulable"
    assert "spec.worker.rollout.maxUnavailable to 1" in namespace.condition("Ready")["message"]
    namespace.edit(worker={"podLabels": {"team": "search"}, "rollout": {"maxUnavailable": 1}})
    namespace.reconcile()
    assert namespace.get("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
