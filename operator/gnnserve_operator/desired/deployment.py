"""The Deployment of the workers, and the PodDisruptionBudget that limits node drains.

The pod template depends on nothing that workers learn while they run: a new revision, objective, batching or number of
replicas never restarts a pod. Only a claim that replaced a lost one does.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api import pods
from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.spec.audience import Audience, parts_for
from gnnserve_api.spec.placement import TopologySpreadConstraint, WhenUnsatisfiable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.worker import Worker
from gnnserve_operator.desired import endpoint, tracing, updates
from gnnserve_operator.desired.labels import CLAIM_ANNOTATION, TEMPLATE_ANNOTATION, Component, labels_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata, digest_of
from gnnserve_operator.desired.names import routing_name
from gnnserve_operator.desired.pod import (
    REPOSITORY_VOLUME,
    ROUTING_VOLUME,
    WORKER_CONTAINER,
    build_container,
    build_pod_metadata,
    build_pod_spec,
    build_resources,
    claim_volume,
)
from gnnserve_operator.settings import Settings

_STARTUP_ATTEMPTS = 150
"""Probes until a worker is restarted. One every 2 s leaves five minutes until the HTTP server must be up, for images
that load slowly from a network."""
_PROGRESS_DEADLINE_S = 900
"""Seconds without progress after which a rollout counts as stalled; a large revision takes minutes to verify."""


def wanted_replicas(spec: GNNServiceSpec) -> int:
    return 0 if spec.suspend else spec.worker.replicas


@dataclass(frozen=True, slots=True)
class MountedClaim:
    """The claim that worker pods mount."""

    name: str
    uid: str = ""
    """uid of the claim; empty while it is not known."""
    successor_uid: str = ""
    """uid of the claim if it replaced a lost claim of the same name: the pod template then names it, so that earlier
    pods are replaced. Empty otherwise."""


def build_deployment(parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: MountedClaim) -> Manifest:
    return deployment_of(parent, spec, claim, build_worker_template(parent, spec, settings, claim))


def deployment_of(parent: Parent, spec: GNNServiceSpec, claim: MountedClaim, template: Manifest) -> Manifest:
    """The Deployment of these pods. `claim`: what they mount."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(
            parent,
            parent.workers_name,
            Component.WORKER,
            annotations={
                TEMPLATE_ANNOTATION: digest_of(template),
                **({CLAIM_ANNOTATION: claim.uid} if claim.uid else {}),
            },
        ),
        "spec": {
            "replicas": wanted_replicas(spec),
            "selector": {"matchLabels": parent.workers_selector},
            "strategy": _build_strategy(spec),
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": _PROGRESS_DEADLINE_S,
            "template": template,
        },
    }


def digest_of_pods(spec: GNNServiceSpec) -> str:
    """Digest of the spec's part about worker pods, except their number. It does not depend on the operator's
    settings."""
    return digest_of(parts_for(spec, Audience.PODS))


def build_worker_template(parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: MountedClaim) -> Manifest:
    container = build_container(
        WORKER_CONTAINER,
        pods.SERVE_COMMAND,
        spec,
        settings,
        env={
            pods.SERVICE_VARIABLE: parent.name,
            pods.NAMESPACE_VARIABLE: parent.namespace,
            pods.ROUTING_VARIABLE: routing_name(parent.name),
            pods.REPOSITORY_VARIABLE: pods.REPOSITORY_PATH,
            pods.LAME_DUCK_VARIABLE: str(pods.LAME_DUCK_S),
            **build_device_environment(spec.worker),
            **endpoint.build_environment(spec),
            **tracing.build_environment(spec),
            **updates.build_worker_environment(parent, spec),
        },
        mounts=[
            {"name": REPOSITORY_VOLUME, "mountPath": pods.REPOSITORY_PATH, "readOnly": True},
            {"name": ROUTING_VOLUME, "mountPath": pods.ROUTING_PATH, "readOnly": True},
            *endpoint.build_mounts(spec),
            *updates.build_worker_mounts(parent, spec),
        ],
        resources=build_resources(spec.worker, spec.worker.gpu),
    )
    container |= ports_and_probes(spec)
    pod = build_pod_spec(
        spec,
        spec.worker,
        settings,
        container=container,
        volumes=[
            claim_volume(REPOSITORY_VOLUME, claim.name),
            # Optional, so that a pod starts and reports what is missing instead of waiting for its volume.
            {"name": ROUTING_VOLUME, "configMap": {"name": routing_name(parent.name), "optional": True}},
            *endpoint.build_volumes(spec),
            *updates.build_volumes(spec),
        ],
    )
    pod |= placed_with_account(parent, spec)
    return {
        "metadata": build_pod_metadata(
            spec.worker,
            labels_for(parent.name, Component.WORKER),
            {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(pods.HTTP_PORT),
                "prometheus.io/path": "/metrics",
                **({"prometheus.io/scheme": "https"} if endpoint.speaks_tls(spec) else {}),
                **({CLAIM_ANNOTATION: claim.successor_uid} if claim.successor_uid else {}),
            },
        ),
        "spec": pod,
    }


def ports_and_probes(spec: GNNServiceSpec) -> Manifest:
    """The container's port, at which the kubelet probes it, and what it does before it ends."""
    return {
        "ports": endpoint.build_container_ports(spec),
        "startupProbe": _probe(spec, "/healthz", period_s=2, timeout_s=2, failures=_STARTUP_ATTEMPTS),
        "readinessProbe": _probe(spec, "/readyz", period_s=1, timeout_s=2, failures=3),
        # Slow on purpose: a busy worker answers late, and restarting it would only slow down the others.
        "livenessProbe": _probe(spec, "/healthz", period_s=10, timeout_s=5, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": pods.PRE_STOP_S}}},
    }


def placed_with_account(parent: Parent, spec: GNNServiceSpec) -> Manifest:
    """The pod's account at the API server, the time it has to end, and how pods are spread."""
    pod: Manifest = {
        "serviceAccountName": parent.workers_name,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": pods.TERMINATION_GRACE_S,
    }
    spread = _build_spread(parent, spec)
    return pod | {"topologySpreadConstraints": spread} if spread else pod


_OVER_NODES = TopologySpreadConstraint(
    topology_key="kubernetes.io/hostname", when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY
)


def _build_spread(parent: Parent, spec: GNNServiceSpec) -> list[Manifest]:
    if not spec.repository.may_be_on_several_nodes:
        # A ReadWriteOnce volume is attached to one node: a worker on another would wait for it for ever.
        return []
    return [
        {
            **constraint.model_dump(mode="json", by_alias=True, exclude_none=True),
            "labelSelector": {"matchLabels": parent.workers_selector},
            # Pods of the template that is on its way out do not count.
            "matchLabelKeys": ["pod-template-hash"],
        }
        for constraint in spec.worker.topology_spread_constraints or (_OVER_NODES,)
    ]


def _build_strategy(spec: GNNServiceSpec) -> Manifest:
    if updates.excludes_second_worker(spec):
        return {"type": "Recreate"}
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": most_unavailable(spec)}}


def most_unavailable(spec: GNNServiceSpec) -> int:
    """Most unavailable workers during a rollout. An old one answers until its successor does; but a spare GPU is rare,
    and without one the successor would wait for its predecessor's for ever: one of several stops first."""
    rollout = spec.worker.rollout
    if rollout is not None and rollout.max_unavailable is not None:
        return rollout.max_unavailable
    return 1 if spec.worker.gpu is not None and spec.worker.replicas > 1 else 0


def build_device_environment(worker: Worker) -> dict[str, str]:
    """Environment of the device settings, only where they differ from the defaults, so that an upgraded operator
    restarts no workers."""
    found: dict[str, str] = {}
    if worker.device is not Device.AUTO:
        found[pods.DEVICE_VARIABLE] = worker.device.value
    if worker.cache.policy is not CachePolicy.FREQUENCY:
        found[pods.CACHE_VARIABLE] = worker.cache.policy.value
    if worker.gpu_memory is not None:
        found[pods.GPU_MEMORY_VARIABLE] = str(size_bytes(worker.gpu_memory))
    return found


def _probe(spec: GNNServiceSpec, path: str, *, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        # The kubelet does not verify the certificate.
        "httpGet": {"path": path, "port": endpoint.port_name(spec), "scheme": endpoint.scheme(spec).upper()},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def build_disruption_budget(parent: Parent) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(parent, parent.workers_name, Component.WORKER),
        "spec": {
            # minAvailable is not used: with one replica it would block every drain.
            "maxUnavailable": 1,
            "selector": {"matchLabels": parent.workers_selector},
            # A worker that cannot become ready must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
