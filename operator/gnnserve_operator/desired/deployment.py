"""Worker pods of a GNNService or a GNNWorkerPool: their template, their Deployment, and the PodDisruptionBudget that
limits node drains.

A pod template depends on nothing that workers learn while they run: a new revision, objective, batching or number of
replicas never restarts a pod. Only a claim that replaced a lost one does. What is built and decided of both owners'
pods alike is told by `WorkerPods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.tracing import ENDPOINT_VARIABLE, SAMPLER_ARGUMENT_VARIABLE, SAMPLER_VARIABLE, TraceSampler
from gnnserve_api.spec.audience import Audience, parts_for
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.placement import TopologySpreadConstraint, WhenUnsatisfiable
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.worker import RolloutSpec, Worker
from gnnserve_operator.desired import access, storage
from gnnserve_operator.desired.metadata import (
    CLAIM_ANNOTATION,
    TEMPLATE_ANNOTATION,
    Component,
    Parent,
    child_metadata,
    digest_of,
    routing_name,
)
from gnnserve_operator.desired.pod import (
    REPOSITORY_VOLUME,
    ROUTING_VOLUME,
    WORKER_CONTAINER,
    PodTemplateInputs,
    build_container,
    build_pod_metadata,
    build_pod_spec,
    build_resources,
    claim_volume,
    of_service,
)
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.settings import Settings

_STARTUP_ATTEMPTS = 150
"""Probes until a worker is restarted. One every 2 s leaves five minutes until the HTTP server must be up, for images
that load slowly from a network."""
_PROGRESS_DEADLINE_S = 900
"""Seconds without progress after which a rollout counts as stalled; a large revision takes minutes to verify."""
_OVER_NODES = TopologySpreadConstraint(
    topology_key="kubernetes.io/hostname", when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY
)


@dataclass(frozen=True, slots=True)
class WorkerPods:
    """The worker pods that a spec asks for."""

    template: PodTemplateInputs
    replicas: int
    """Their number, as the spec says it; those that are wanted: `wanted`."""
    rollout: RolloutSpec | None
    spread: tuple[TopologySpreadConstraint, ...]
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    """Settings of their port; of a pool, that with the metrics of all services."""
    is_suspended: bool = False
    stops_first: bool = False
    """Whether a worker must have ended before its successor starts, since both would write one log."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Names of the Secrets without which a worker does not answer, by the field that names them."""

    @property
    def wanted(self) -> int:
        return 0 if self.is_suspended else self.replicas

    @property
    def most_unavailable(self) -> int:
        """Most unavailable workers during a rollout. An old one answers until its successor does; but a spare GPU is
        rare, and without one the successor would wait for its predecessor's for ever: one of several stops first."""
        if self.rollout is not None and self.rollout.max_unavailable is not None:
            return self.rollout.max_unavailable
        return 1 if self.template.gpu is not None and self.replicas > 1 else 0


def worker_pods(name: str, spec: GNNServiceSpec) -> WorkerPods:
    """The worker pods of the GNNService with that name; `spec` has what a pool lends it."""
    worker = spec.worker
    section = "spec.worker" if worker.pool_ref is None else f"{POOL_KIND} {worker.pool_ref.name}: spec"
    return WorkerPods(
        of_service(name, spec, section, worker, worker.gpu),
        worker.replicas,
        worker.rollout,
        worker.topology_spread_constraints,
        spec.endpoint,
        spec.suspend,
        storage.excludes_second_worker(spec),
        secrets_by_field(spec),
    )


def secrets_by_field(spec: GNNServiceSpec) -> dict[str, str]:
    """Names of the Secrets of a GNNService, by the field that names them."""
    log = storage.log_secret(spec)
    found = access.endpoint_secrets(spec.endpoint)
    return found if log is None else found | {storage.LOG_SECRET_FIELD: log}


def pool_pods(name: str, spec: GNNWorkerPoolSpec) -> WorkerPods:
    """The worker pods of the GNNWorkerPool with that name."""
    template = PodTemplateInputs(
        name, f"{POOL_KIND} {name}: spec", spec, None, spec.image, spec.image_pull_secrets, spec.repository, name
    )  # fmt: skip
    return WorkerPods(template, spec.replicas, spec.rollout, spec.topology_spread_constraints)


@dataclass(frozen=True, slots=True)
class MountedClaim:
    """The claim that worker pods mount."""

    name: str
    uid: str = ""
    """uid of the claim; empty while it is not known."""
    successor_uid: str = ""
    """uid of the claim if it replaced a lost claim of the same name: the pod template then names it, so that earlier
    pods are replaced. Empty otherwise."""


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """Program of a worker pod, with what it mounts beside the repository."""

    command: tuple[str, ...]
    owner_variable: str
    """Variable that names the owner."""
    followed_variable: str
    """Variable that names the ConfigMap which it follows."""
    followed: str
    """Name of that ConfigMap."""
    volume: str
    path: str
    """Volume of the ConfigMap, and where it is mounted."""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Manifest] = ()
    volumes: Sequence[Manifest] = ()


def build_deployment(parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: MountedClaim) -> Manifest:
    template = build_worker_template(parent, spec, settings, claim)
    return deployment_of(parent, worker_pods(parent.name, spec), claim, template)


def deployment_of(parent: Parent, given: WorkerPods, claim: MountedClaim, template: Manifest) -> Manifest:
    """The Deployment of these pods. `claim`: what they mount."""
    rolling = {"maxSurge": 1, "maxUnavailable": given.most_unavailable}
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
            "replicas": given.wanted,
            "selector": {"matchLabels": parent.workers_selector},
            "strategy": {"type": "Recreate"}
            if given.stops_first
            else {"type": "RollingUpdate", "rollingUpdate": rolling},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": _PROGRESS_DEADLINE_S,
            "template": template,
        },
    }


def digest_of_pods(spec: BaseModel) -> str:
    """Digest of the part of a GNNService's or a GNNWorkerPool's spec about worker pods, except their number. It does
    not depend on the operator's settings."""
    return digest_of(parts_for(spec, Audience.PODS))


def build_worker_template(parent: Parent, spec: GNNServiceSpec, settings: Settings, claim: MountedClaim) -> Manifest:
    """The pod template of a GNNService's own workers."""
    program = WorkerProgram(
        pods.SERVE_COMMAND,
        pods.SERVICE_VARIABLE,
        pods.ROUTING_VARIABLE,
        routing_name(parent.name),
        ROUTING_VOLUME,
        pods.ROUTING_PATH,
        {
            **_build_device_environment(spec.worker),
            **access.build_endpoint_environment(spec.endpoint),
            **_build_tracing_environment(spec.worker),
            **storage.build_log_environment(parent, spec),
        },
        [*access.build_credential_mounts(spec.endpoint), *storage.build_log_mounts(parent, spec)],
        [*access.build_credential_volumes(spec.endpoint), *storage.build_log_volumes(spec)],
    )
    return template_of(parent, worker_pods(parent.name, spec), settings, claim, program)


def template_of(
    parent: Parent, given: WorkerPods, settings: Settings, claim: MountedClaim, program: WorkerProgram
) -> Manifest:
    """The pod template of workers. What is in its annotations has Prometheus scrape the port with all metrics."""
    container = build_container(
        WORKER_CONTAINER,
        program.command,
        given.template,
        settings,
        env={
            program.owner_variable: parent.name,
            pods.NAMESPACE_VARIABLE: parent.namespace,
            program.followed_variable: program.followed,
            pods.REPOSITORY_VARIABLE: pods.REPOSITORY_PATH,
            pods.LAME_DUCK_VARIABLE: str(pods.LAME_DUCK_S),
            **program.environment,
        },
        mounts=[
            {"name": REPOSITORY_VOLUME, "mountPath": pods.REPOSITORY_PATH, "readOnly": True},
            {"name": program.volume, "mountPath": program.path, "readOnly": True},
            *program.mounts,
        ],
        resources=build_resources(given.template.settings, given.template.gpu),
    )
    pod = build_pod_spec(
        given.template,
        settings,
        container=container | _ports_and_probes(given.endpoint),
        volumes=[
            claim_volume(REPOSITORY_VOLUME, claim.name),
            # Optional, so that a pod starts and reports what is missing instead of waiting for its volume.
            {"name": program.volume, "configMap": {"name": program.followed, "optional": True}},
            *program.volumes,
        ],
    )
    return {
        "metadata": build_pod_metadata(
            given.template.settings,
            parent.labels(Component.WORKER),
            {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(pods.HTTP_PORT),
                "prometheus.io/path": "/metrics",
                **({"prometheus.io/scheme": "https"} if access.speaks_tls(given.endpoint) else {}),
                **({CLAIM_ANNOTATION: claim.successor_uid} if claim.successor_uid else {}),
            },
        ),
        "spec": pod | _placed_with_account(parent, given),
    }


def _ports_and_probes(served: EndpointSpec) -> Manifest:
    """The container's port, at which the kubelet probes it, and what it does before it ends."""
    return {
        "ports": access.build_container_ports(served),
        "startupProbe": _probe(served, "/healthz", period_s=2, timeout_s=2, failures=_STARTUP_ATTEMPTS),
        "readinessProbe": _probe(served, "/readyz", period_s=1, timeout_s=2, failures=3),
        # Slow on purpose: a busy worker answers late, and restarting it would only slow down the others.
        "livenessProbe": _probe(served, "/healthz", period_s=10, timeout_s=5, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": pods.PRE_STOP_S}}},
    }


def _placed_with_account(parent: Parent, given: WorkerPods) -> Manifest:
    """The pod's account at the API server, the time it has to end, and how pods are spread."""
    pod: Manifest = {
        "serviceAccountName": parent.workers_name,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": pods.TERMINATION_GRACE_S,
    }
    if not given.template.repository.may_be_on_several_nodes:
        # A ReadWriteOnce volume is attached to one node: a worker on another would wait for it for ever.
        return pod
    return pod | {
        "topologySpreadConstraints": [
            {
                **constraint.model_dump(mode="json", by_alias=True, exclude_none=True),
                "labelSelector": {"matchLabels": parent.workers_selector},
                # Pods of the template that is on its way out do not count.
                "matchLabelKeys": ["pod-template-hash"],
            }
            for constraint in given.spread or (_OVER_NODES,)
        ]
    }


def _build_device_environment(worker: Worker) -> dict[str, str]:
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


def _build_tracing_environment(worker: Worker) -> dict[str, str]:
    """OpenTelemetry's variables, which spec.worker.tracing asks for."""
    tracing = worker.tracing
    if tracing is None:
        return {}
    return {
        ENDPOINT_VARIABLE: tracing.endpoint,
        SAMPLER_VARIABLE: TraceSampler.SHARE.value,
        SAMPLER_ARGUMENT_VARIABLE: str(tracing.sampled_permille / 1000),
    }


def _probe(served: EndpointSpec, path: str, *, period_s: int, timeout_s: int, failures: int) -> Manifest:
    return {
        # The kubelet does not verify the certificate.
        "httpGet": {"path": path, "port": access.port_name(served), "scheme": access.scheme(served).upper()},
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
