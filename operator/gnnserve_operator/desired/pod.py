"""Common part of generation and worker pods: restricted security, the repository, the user's settings.

Both fit the `restricted` Pod Security Standard, also where the platform chooses their user; additions of `settings` are
the administrator's responsibility.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from gnnserve_api.pods import interface as pods
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.placement import Toleration
from gnnserve_api.spec.pods import Gpu, PodSettings, Resources
from gnnserve_api.spec.repository import RepositoryPlace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.settings import RunAs, Settings

REPOSITORY_VOLUME = "repository"
GRAPH_VOLUME = "graph"
ROUTING_VOLUME = "routing"
GENERATE_CONTAINER = "generate"
EMBEDDINGS_CONTAINER = "embeddings"
WORKER_CONTAINER = "worker"
_OUR_CONTAINERS = frozenset({GENERATE_CONTAINER, EMBEDDINGS_CONTAINER, WORKER_CONTAINER})
"""Names of the one container of ours in a pod: meshes and others add containers, also before it."""
_READABLE_BY_GROUP = 0o440
"""Files of a Secret belong to root and to the pod's group, as which the worker runs."""
_NO_RESOURCES = Resources()


_USERS: Mapping[RunAs, Manifest] = {
    RunAs.FIXED: {"runAsUser": pods.USER_ID, "runAsGroup": pods.USER_ID, "fsGroup": pods.USER_ID},
    RunAs.PLATFORM: {},
}
"""The user that pods name, by who decides."""


@dataclass(frozen=True, slots=True)
class PodTemplateInputs:
    """The fields of a spec that pods are made of, whichever spec has them: of the Jobs of a GNNService, of its workers,
    or of the workers of a GNNWorkerPool."""

    owner: str
    """Name of the GNNService or GNNWorkerPool."""
    section: str
    """Place of `settings` in the spec, for messages."""
    settings: PodSettings
    gpu: Gpu | None
    image: str | None
    """None: the operator's setting."""
    image_pull_secrets: tuple[str, ...]
    repository: RepositoryPlace
    """Where the revisions are."""
    pool: str = ""
    """Name of the GNNWorkerPool whose repository that is; empty: it is the GNNService's."""
    data_claim: str = ""
    """Name of the claim with the graph's files (`spec.graph.volume`); empty: none."""


def job_pods(name: str, spec: GNNServiceSpec) -> PodTemplateInputs:
    """The pods of the Jobs of the GNNService with that name."""
    return of_service(name, spec, "spec.generation", spec.generation, spec.generation.gpu)


def of_service(
    name: str, spec: GNNServiceSpec, section: str, settings: PodSettings, gpu: Gpu | None
) -> PodTemplateInputs:
    pool, volume = spec.worker.pool_ref, spec.graph.volume
    return PodTemplateInputs(
        name,
        section,
        settings,
        gpu,
        spec.image,
        spec.image_pull_secrets,
        spec.repository,
        "" if pool is None else pool.name,
        "" if volume is None else volume.claim_name,
    )


_IMAGES: Mapping[str, Callable[[PodTemplateInputs, Settings], str | None]] = {
    GENERATE_CONTAINER: lambda _, settings: settings.generation_image,
    EMBEDDINGS_CONTAINER: lambda _, settings: settings.generation_image,
    WORKER_CONTAINER: lambda given, settings: None if given.gpu is None else settings.gpu_worker_image,
}
"""The image that settings name for a kind of pod, by its container."""


def image_of(container: str, given: PodTemplateInputs, settings: Settings) -> str:
    return given.image or _IMAGES[container](given, settings) or settings.worker_image


def build_pod_spec(
    given: PodTemplateInputs, settings: Settings, *, container: Manifest, volumes: list[Manifest]
) -> Manifest:
    """The pod's own part of the spec; `container` is its container."""
    pod_settings = given.settings
    pod: Manifest = {
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            **_USERS[settings.run_as],
            # Changing the owner of every file at every start takes minutes on a large repository.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *volumes,
            *(dict(volume) for volume in settings.worker_extra_volumes),
        ],
    }
    if given.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in given.image_pull_secrets]
    if pod_settings.node_selector:
        pod["nodeSelector"] = dict(sorted(pod_settings.node_selector.items()))
    if pod_settings.tolerations:
        pod["tolerations"] = [_toleration(toleration) for toleration in pod_settings.tolerations]
    if pod_settings.runtime_class_name:
        pod["runtimeClassName"] = pod_settings.runtime_class_name
    if pod_settings.affinity is not None and (affinity := _declared(pod_settings.affinity)):
        pod["affinity"] = affinity
    if pod_settings.priority_class_name:
        pod["priorityClassName"] = pod_settings.priority_class_name
    return pod


def build_pod_metadata(
    pod_settings: PodSettings, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> Manifest:
    """The pod template. `labels` and `annotations` are the operator's own, which a spec cannot set."""
    annotated = {**pod_settings.pod_annotations, **(annotations or {})}
    metadata: Manifest = {"labels": {**pod_settings.pod_labels, **labels}}
    return metadata | {"annotations": annotated} if annotated else metadata


def build_failure_policy(container: str) -> Manifest:
    """A Job's `podFailurePolicy`: bad input ends it at once, since another attempt would find the same."""
    return {
        "rules": [
            {
                "action": "FailJob",
                "onExitCodes": {
                    "containerName": container,
                    "operator": "In",
                    "values": [int(pods.PodExit.BAD_INPUT)],
                },
            },
            # A drained node is not a failure, and uses up no attempt.
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }


def build_container(
    name: str,
    command: tuple[str, ...],
    given: PodTemplateInputs,
    settings: Settings,
    *,
    env: dict[str, str],
    mounts: list[Manifest],
    resources: Manifest,
) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": image_of(name, given, settings),
        "imagePullPolicy": settings.image_pull_policy.value,
        "command": list(command),
        "env": [
            # Kubernetes would expand $(NAME) in a value, of which a user's file name may be part.
            *({"name": variable, "value": value.replace("$", "$$")} for variable, value in env.items()),
            {"name": "HOME", "value": pods.TEMPORARY_PATH},
            # Without a limit this is the node's count, as it should be.
            {"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            *(dict(variable) for variable in settings.worker_extra_env),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": pods.TERMINATION_MESSAGE_PATH,
        # A traceback in the message is better than none.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": pods.TEMPORARY_PATH},
            *mounts,
            *(dict(mount) for mount in settings.worker_extra_volume_mounts),
        ],
    }
    return container if not resources else container | {"resources": resources}


def build_resources(pod_settings: PodSettings, gpu: Gpu | None = None, defaults: Resources = _NO_RESOURCES) -> Manifest:
    """`defaults`: requests and limits of each resource that the spec does not name at all: a default limit may be less
    than what a spec requests."""
    asked = pod_settings.resources
    named = {*asked.requests, *asked.limits}
    # The API server keeps a number as a string.
    requests, limits = (
        {name: str(value) for name, value in sorted({**_except(named, default), **own}.items())}
        for default, own in ((defaults.requests, asked.requests), (defaults.limits, asked.limits))
    )
    if gpu is not None:
        limits[gpu.resource_name] = str(gpu.count)
        if gpu.resource_name in requests:
            # Extended resources cannot be overcommitted: a request must equal its limit.
            requests[gpu.resource_name] = str(gpu.count)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _except(names: Set[str], quantities: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in quantities.items() if name not in names}


def claim_volume(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def repository_claim_in(pod: Mapping[str, Any]) -> str:
    """Name of the claim that a pod, or a template of pods, mounts as the repository; empty where it mounts none."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    volume: Mapping[str, Any] = next((found for found in volumes if found.get("name") == REPOSITORY_VOLUME), {})
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))


def own_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our container of a pod, or of a template of pods; empty where it is not complete yet."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    ours = (found for found in containers if found.get("name") in _OUR_CONTAINERS)
    return next(ours, next(iter(containers), {}))


def variable_in(pod: Mapping[str, Any], name: str) -> str:
    """Value of a variable of the container of a pod, or of a template of pods; empty where it has none of that name."""
    return next(
        (str(found.get("value") or "") for found in own_container(pod).get("env") or () if found.get("name") == name),
        "",
    )


def secret_volume(name: str, secret: str, *keys: str) -> Manifest:
    """`keys`: the only ones of the Secret that the pod sees; none: all of them.

    It is optional, so that a deleted Secret is noticed: the kubelet then empties the folder; it would keep the files of
    a required one, and start no further pod."""
    volume: Manifest = {"secretName": secret, "optional": True, "defaultMode": _READABLE_BY_GROUP}
    if keys:
        volume["items"] = [{"key": key, "path": key} for key in keys]
    return {"name": name, "secret": volume}


def _toleration(toleration: Toleration) -> Manifest:
    return toleration.model_dump(mode="json", by_alias=True, exclude_none=True)


def _declared(part: ApiModel) -> Manifest:
    """The part as a manifest, without absent fields."""
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True)
