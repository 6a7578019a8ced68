"""What kubelet and controllers do to the operator's children in a `FakeCluster`, when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.machine.fake_server import Asked, Told

from gnnserve_api.pods.generation import GenerationResult, VariantSummary, encode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.pods.routing import ROUTING_KEY, AffineCost, Route, VariantRoute, decode_routing

Manifest = dict[str, Any]
VARIANTS = (
    VariantSummary("x1", 64, 972.0, 2.5), VariantSummary("x2", 32, 967.0, 1.75), VariantSummary("x4", 16, 941.5, 1.25)
)  # fmt: skip
VARIANT_ROUTES = tuple(
    VariantRoute(name, loss_permille, AffineCost(fixed_ms, per_seed_ms), AffineCost(fixed_ms, per_seed_ms))
    for name, loss_permille, fixed_ms, per_seed_ms in (("x1", 0, 4, 0.04), ("x2", 5, 2, 0.02), ("x4", 30.5, 1, 0.01))
)
"""With an objective of 88 ms and batches of 1000 seeds, one worker carries 22,727, 45,455 and 90,909 seeds/s."""


def result_of(job: Manifest, revision: str) -> GenerationResult:
    return GenerationResult(revision, job["metadata"]["labels"]["gnnserve.dev/recipe"], "9" * 16, VARIANTS)


def finish_job(cluster: FakeCluster, job: str, revision: str = "r1") -> None:
    """Its pod leaves the result as its termination message."""
    message = encode_result(result_of(cluster.get("Job", job), revision))
    _end_job(cluster, job, PodExit.OK, message, {"type": "Complete", "status": "True"})


def fail_job(cluster: FakeCluster, job: str, message: str, code: PodExit = PodExit.BAD_INPUT) -> None:
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "see the pod"}
    _end_job(cluster, job, code, message, failed)


def _end_job(cluster: FakeCluster, job: str, code: PodExit, message: str, condition: Manifest) -> None:
    with cluster.changed:
        found = cluster.get("Job", job)
        pod = _pod(found, f"{job}-pod", found["spec"]["template"])
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = job
        terminated = {"exitCode": int(code), "reason": "Completed" if code == 0 else "Error", "message": message}
        pod["status"] = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [{"name": _container(pod), "state": {"terminated": terminated}}],
        }
        cluster.create(pod)
        # With the time: the watch of Jobs may be ahead of that of pods, whose news the operator then waits for.
        ended = {**condition, "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        cluster.replace("Job", job, lambda live: live.update(status={"conditions": [ended]}))


def run_workers(cluster: FakeCluster, deployment: str = "digits-worker") -> None:
    """Runs as many ready pods of the newest template as the spec asks for."""
    with cluster.changed:
        found = cluster.get("Deployment", deployment)
        wanted = found["spec"]["replicas"]
        replica_set = _replica_set(cluster, found)
        pods = [pod for pod in cluster.all("Pod") if pod["metadata"]["name"].startswith(f"{deployment}-")]
        for pod in pods[wanted:]:
            cluster.delete("Pod", pod["metadata"]["name"])
        for number in range(len(pods), wanted):
            pod = _pod(replica_set, f"{deployment}-{number}", found["spec"]["template"])
            pod["status"] = {
                "phase": "Running",
                "podIP": f"10.0.0.{number + 1}",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": _container(pod), "state": {"running": {}}, "ready": True}],
            }
            cluster.create(pod)
        status = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), wanted)
        generation = found["metadata"]["generation"]
        cluster.replace(
            "Deployment", deployment, lambda live: live.update(status={**status, "observedGeneration": generation})
        )


def answer_like_a_worker(cluster: FakeCluster, config_map: str = "digits-routing") -> Any:
    """Answers for `fake_server` as a worker that follows its ConfigMap."""

    def answer(asked: Asked) -> Told:
        assert asked.path == "/v1/route"
        table = decode_routing(cluster.get("ConfigMap", config_map)["data"][ROUTING_KEY])
        names = tuple(variant.name for variant in VARIANTS)
        route = Route(
            table.revision, table.base_variant or "x1", "the most accurate", names, table.objective, table.batching,
            mode=table.mode, issued_at=table.issued_at, variants=VARIANT_ROUTES,
        )  # fmt: skip
        return Told(body=msgspec.json.encode(route))

    return answer


def _replica_set(cluster: FakeCluster, deployment: Manifest) -> Manifest:
    name = f"{deployment['metadata']['name']}-rs"
    found = cluster.find("ReplicaSet", name)
    if found is not None:
        return found
    metadata = {"name": name, "namespace": "default", "ownerReferences": [_owned_by(deployment)]}
    return cluster.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata})


def _pod(parent: Manifest, name: str, template: Manifest) -> Manifest:
    metadata = {
        "name": name,
        "namespace": parent["metadata"]["namespace"],
        "labels": dict(template["metadata"]["labels"]),
        "ownerReferences": [_owned_by(parent)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _owned_by(parent: Manifest) -> Manifest:
    metadata = parent["metadata"]
    identity = {"apiVersion": parent["apiVersion"], "kind": parent["kind"]}
    return {**identity, "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def _container(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0]["name"])
