"""The operator's settings: one frozen object, read once from the file that the Helm chart renders.

A YAML file rather than variables, because some values are lists of Kubernetes objects. Pydantic, since a person's
values.yaml ends up here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from gnnserve_api.errors import InputError
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.pods import Resources

SETTINGS_VARIABLE = "GNNSERVE_SETTINGS"
DEFAULT_PATH = Path("/etc/gnnserve/settings.yaml")


class ImagePullPolicy(StrEnum):
    ALWAYS = "Always"
    """Ask the registry at every start."""
    IF_NOT_PRESENT = "IfNotPresent"
    """Pull what the node lacks."""
    NEVER = "Never"
    """Use what the node has."""


class LogFormat(StrEnum):
    JSON = "JSON"
    """One object a line, for collectors."""
    TEXT = "Text"
    """For people."""


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    """Every reconcile."""
    INFO = "INFO"
    """What changed."""
    WARNING = "WARNING"
    """What needs attention."""


class RunAs(StrEnum):
    """Choice of the user that pods run as."""

    FIXED = "Fixed"
    """User, group and fsGroup 65532, as every pod names them."""
    PLATFORM = "Platform"
    """The platform: pods name none, and an admission such as OpenShift's gives them theirs."""


class LeaderElection(ApiModel):
    lease_name: Annotated[str, Field(min_length=1)]
    """Name of the Lease that makes one operator of several the leader."""
    namespace: Annotated[str, Field(min_length=1)]
    """Namespace of the Lease."""
    lease_seconds: Annotated[int, Field(ge=2, le=3600)] = 15
    """Another operator takes over when it has seen no renewal for this long."""
    renew_deadline_seconds: Annotated[float, Field(ge=1)] = 10
    """The leader stops writing when no renewal was granted for this long. The rest of `lease_seconds` is for requests
    that are under way."""
    retry_seconds: Annotated[float, Field(ge=0.1)] = 2
    """Interval of renewals, and of a standby operator's looks at the Lease."""

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if not 2 * self.retry_seconds <= self.renew_deadline_seconds < self.lease_seconds:
            raise ValueError(
                f"expected 2 x retrySeconds <= renewDeadlineSeconds < leaseSeconds, found {self.retry_seconds:g}, "
                f"{self.renew_deadline_seconds:g} and {self.lease_seconds}"
            )
        return self


class NamespaceGrant(ApiModel):
    cluster_role: Annotated[str, Field(min_length=1)]
    """ClusterRole with the operator's rights, which grants nothing until it is bound in a namespace."""
    service_account: Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]
    """The operator's own, as `namespace:name`."""


KubernetesObjects = tuple[dict[str, Any], ...]
"""Kubernetes objects, passed on verbatim: the API server validates them."""


class Settings(ApiModel):
    worker_image: Annotated[str, Field(pattern=r"^\S+$")]
    """Image of pods where spec.image names none, and no other setting one for their kind."""
    gpu_worker_image: Annotated[str, Field(pattern=r"^\S+$")] | None = None
    """Image of worker pods that ask for a GPU; absent: worker_image."""
    generation_image: Annotated[str, Field(pattern=r"^\S+$")] | None = None
    """Image of pods that generate or make embeddings; absent: worker_image."""
    image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    generation_resources: Resources = Resources()
    """Requests and limits of generation pods, and of those that make embeddings, for each resource that spec.generation
    does not name."""
    worker_extra_volumes: KubernetesObjects = ()
    """Added to every generation and worker pod."""
    worker_extra_volume_mounts: KubernetesObjects = ()
    """Added to their container."""
    worker_extra_env: KubernetesObjects = ()
    """Added to their container."""
    run_as: RunAs = RunAs.FIXED
    """Choice of the user that generation and worker pods run as."""
    namespaces: tuple[str, ...] = ()
    """Namespaces watched for GNNServices; empty: all."""
    namespace_grant: NamespaceGrant | None = None
    """What an administrator of one of them can bind there, to give the operator its rights; absent: it has a Role in
    each."""
    cluster_domain: Annotated[str, Field(min_length=1)] = "cluster.local"
    """The cluster's DNS domain, for the URL in status.endpoint."""
    network_policy: bool = True
    """Whether NetworkPolicies are made for the pods."""
    api_server_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (443, 6443)
    """Ports on which worker pods may reach the API server, to follow their routing table."""
    postgres_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (5432,)
    """Ports on which worker pods may reach PostgreSQL, where spec.updates keeps the log of changes there."""
    mesh_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = ()
    """Ports of a service mesh, which every NetworkPolicy opens in both directions, such as 15008 of Istio's ambient
    mode."""
    prometheus_url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")] | None = None
    """Prometheus to ask for the load of workers where spec.routing.prometheus.url names none; absent: it is not
    asked."""
    prometheus_namespace_label: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")] = "namespace"
    """Label of Prometheus' samples that has the pod's namespace."""
    resync_seconds: Annotated[float, Field(ge=1, le=3600)] = 60
    """Interval after which every GNNService is reconciled again, even without a change."""
    max_concurrent_jobs: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Generation Jobs that run at a time, in all namespaces together; further ones are queued. 0: any number."""
    max_concurrent_rollouts: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Services whose worker pods are replaced at a time because a setting here or the operator itself has changed.
    0: any number."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    """GNNServices reconciled side by side."""
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of /healthz, /readyz and /metrics; 0 takes a free one."""
    leader_election: LeaderElection | None = None
    """Absent: this operator is the only one, and needs no Lease."""
    log_format: LogFormat = LogFormat.JSON
    log_level: LogLevel = LogLevel.INFO


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Load the settings. Raises InputError that names the file, the field and the value."""
    path = Path(environment.get(SETTINGS_VARIABLE) or DEFAULT_PATH)
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            str(path), f"cannot be read as YAML: {error}", f"set {SETTINGS_VARIABLE} to a settings file"
        ) from error
    try:
        return Settings.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']} (value {detail['input']!r})"
            for detail in error.errors()
        ]
        raise InputError(str(path), "; ".join(problems), "correct the chart's values") from None
