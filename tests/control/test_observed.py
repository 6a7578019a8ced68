"""Live objects, as the API server may answer them, and what the operator reads from them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.operator.observed import make_result

from gnnserve_api.pods.generation import encode_result
from gnnserve_api.pods.routing import RoutingTable, encode_routing
from gnnserve_operator.desired.metadata import observed_conflict
from gnnserve_operator.desired.routing import routing_digest
from gnnserve_operator.kinds import ObjectRef, observed_ref
from gnnserve_operator.observed import (
    ContainerWaiting,
    ObservedDeployment,
    ObservedJob,
    ObservedPod,
    ObservedRouting,
    Termination,
    observed_deployment,
    observed_job,
    observed_pod,
    observed_routing,
)

TABLE = RoutingTable(revision="rev-1", recipe="recipe-1")
RESULT = make_result("recipe-1")
DATA = {"routing.json": encode_routing(TABLE), "generation.json": encode_result(RESULT)}


def config_map(data: dict[str, str] | None, digest: str | None) -> dict[str, Any]:
    annotations = {} if digest is None else {"gnnserve.dev/digest": digest, "gnnserve.dev/claim": "uid-1"}
    return {"metadata": {"annotations": annotations}, "data": data}


ROUTING: list[tuple[str, dict[str, Any], ObservedRouting]] = [
    ("what the operator wrote", config_map(DATA, routing_digest(DATA)), ObservedRouting(TABLE, RESULT, "uid-1")),
    (
        "with a key of somebody else's",
        config_map(DATA | {"note": "hi"}, routing_digest(DATA)),
        ObservedRouting(TABLE, RESULT, "uid-1"),
    ),
    ("edited", config_map(DATA | {"routing.json": "{}"}, routing_digest(DATA)), ObservedRouting()),
    ("without its annotation", config_map(DATA, None), ObservedRouting()),
    ("emptied", config_map(None, routing_digest(DATA)), ObservedRouting()),
    ("empty and signed", config_map({}, routing_digest({})), ObservedRouting()),
    (
        "of another version",
        config_map(DATA | {"routing.json": '{"novel": 1}'}, routing_digest(DATA | {"routing.json": '{"novel": 1}'})),
        ObservedRouting(),
    ),
]


@pytest.mark.parametrize(("raw", "expected"), [case[1:] for case in ROUTING], ids=[case[0] for case in ROUTING])
def test_a_routing_config_map_is_believed_only_as_it_was_written(
    raw: dict[str, Any], expected: ObservedRouting
) -> None:
    assert observed_routing(raw) == expected


def test_a_job_is_read() -> None:
    raw = {
        "metadata": {
            "name": "j", "labels": {"gnnserve.dev/recipe": "r"}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T00:00:01Z",
        },
        "spec": {"suspend": True, "backoffLimit": 0, "activeDeadlineSeconds": 60},
        "status": {
            "conditions": [
                {"type": "Complete", "status": "False"},
                {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"},
            ]
        },
    }  # fmt: skip
    assert observed_job(raw) == ObservedJob(
        name="j", recipe="r", created_at="2026-01-01T00:00:00Z", deleting=True, suspended=True, failed=True,
        failure_reason="DeadlineExceeded", failure_message="too long", retries=0, deadline_seconds=60,
    )  # fmt: skip
    assert observed_job({"metadata": {"name": "j"}}) == ObservedJob("j", "")


_FAILING = [
    {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
    {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
]


def test_a_deployment_is_rolled_out_when_its_controller_says_so_of_this_generation() -> None:
    raw: dict[str, Any] = {
        "metadata": {"generation": 2, "annotations": {"gnnserve.dev/template": "d"}},
        "spec": {"replicas": 0},
        "status": {"observedGeneration": 2},
    }
    assert observed_deployment(raw) == ObservedDeployment(0, "d", rolled_out=True)
    raw["status"] = {"observedGeneration": 2, "readyReplicas": 3}
    assert observed_deployment(raw).ready_replicas == 3
    raw["status"] = {"observedGeneration": 1}
    assert not observed_deployment(raw).rolled_out
    raw["status"] = {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2}
    assert not observed_deployment(raw).rolled_out
    raw["status"] = {"observedGeneration": 2, "conditions": _FAILING}
    stopped = observed_deployment(raw)
    assert (stopped.progress_stopped, stopped.replica_failure) == (True, "exceeded quota")


def test_what_stopped_an_earlier_generation_of_a_deployment_is_not_said_of_the_next() -> None:
    status = {"observedGeneration": 1, "conditions": _FAILING}
    edited = observed_deployment({"metadata": {"generation": 2}, "spec": {}, "status": status})
    assert (edited.progress_stopped, edited.replica_failure, edited.rolled_out) == (False, None, False)


def test_a_pod_is_read() -> None:
    raw: dict[str, Any] = {
        "metadata": {
            "name": "p", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/component": "worker", "batch.kubernetes.io/job-name": "j"},
        },
        "spec": {"containers": [
            {"name": "worker", "image": "i", "resources": {"limits": {"memory": "2Gi"}}}, {"name": "sidecar"},
        ]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}],
            "containerStatuses": [
                {"name": "sidecar", "state": {"running": {}}},
                {
                    "name": "worker", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "altered\n"}},
                },
            ],
        },
    }  # fmt: skip
    pod = observed_pod(raw)
    assert pod == ObservedPod(
        name="p", component="worker", job="j", created_at="2026-01-01T00:00:00Z", phase="Running", ip="10.0.0.1",
        image="i", ready=True, ready_since="2026-01-01T00:00:05Z", waiting=ContainerWaiting("CrashLoopBackOff",
        "back-off"),
        last_terminated=Termination(3, "Error", "altered"), beside=("sidecar",), memory_limit="2Gi",
    )  # fmt: skip
    assert not pod.can_be_asked
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    assert not observed_pod(raw).ready
    assert observed_pod({"metadata": {"name": "p"}}) == ObservedPod("p", "")


def test_only_the_scheduler_says_unschedulable() -> None:
    def scheduled(**condition: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "PodScheduled", **condition}]}}

    assert observed_pod(scheduled(status="False", reason="Unschedulable", message="m")).unschedulable == "m"
    assert observed_pod(scheduled(status="False", reason="SchedulingGated", message="m")).unschedulable is None
    assert observed_pod(scheduled(status="True")).unschedulable is None


def test_a_worker_can_be_asked_while_it_runs() -> None:
    pod = ObservedPod("p", "worker", ip="10.0.0.1", running=True)
    assert pod.can_be_asked
    assert not ObservedPod("p", "generation", ip="10.0.0.1", running=True).can_be_asked
    assert not ObservedPod("p", "worker", running=True).can_be_asked


def test_what_is_not_controlled_by_the_service_is_a_conflict() -> None:
    def owned(**owner: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "digits", "namespace": "shop", "ownerReferences": [owner] if owner else []},
        }  # fmt: skip

    ref = observed_ref(owned())
    assert ref == ObjectRef("v1", "Service", "shop", "digits")
    assert str(ref) == "Service digits"
    assert observed_conflict(ref, owned(uid="u", controller=True, kind="GNNService", name="digits"), "u") is None
    for raw, owner in (
        (owned(uid="u", kind="GNNService", name="digits"), None),
        (owned(uid="old", controller=True, kind="GNNService", name="digits"), "GNNService digits"),
        (owned(), None),
    ):
        conflict = observed_conflict(ref, raw, "u")
        assert conflict is not None
        assert conflict.owner == owner
