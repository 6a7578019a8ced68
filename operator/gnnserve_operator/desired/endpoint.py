"""The effect of spec.endpoint on children: the Service that clients use, ports, schemes, Secrets that workers mount,
and the PodMonitor by which Prometheus scrapes workers.

Without it every manifest is, byte for byte, what it was before the field existed, so that an upgraded operator restarts
no workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.pool import grpc_port
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.metadata import Component, Parent, child_metadata, pool_selector, service_name
from gnnserve_operator.desired.pod import secret_volume
from gnnserve_operator.kinds import POD_MONITOR, Manifest

TLS_SECRET_FIELD = "spec.endpoint.tls.secretName"  # noqa: S105 - a field
TOKENS_SECRET_FIELD = "spec.endpoint.tokens.secretName"  # noqa: S105 - a field
WRITE_TOKENS_SECRET_FIELD = "spec.endpoint.writeTokens.secretName"  # noqa: S105 - a field


@dataclass(frozen=True, slots=True)
class _Credentials:
    """A kind of credentials that a worker mounts."""

    field: str
    """The field of the spec that names the Secret."""
    volume: str
    path: str
    variable: str
    """Variable of the environment that names the folder."""


_TLS = _Credentials(TLS_SECRET_FIELD, "tls", pods.TLS_PATH, pods.TLS_VARIABLE)
_TOKENS = _Credentials(TOKENS_SECRET_FIELD, "tokens", pods.TOKENS_PATH, pods.TOKENS_VARIABLE)
_WRITE_TOKENS = _Credentials(
    WRITE_TOKENS_SECRET_FIELD, "write-tokens", pods.WRITE_TOKENS_PATH, pods.WRITE_TOKENS_VARIABLE
)


def _named(endpoint: EndpointSpec) -> Iterator[tuple[_Credentials, str]]:
    """The credentials that a spec asks for, each with the name of its Secret."""
    for kind, section in (
        (_TLS, endpoint.tls),
        (_TOKENS, endpoint.tokens),
        (_WRITE_TOKENS, endpoint.write_tokens),
    ):
        if section is not None:
            yield kind, section.secret_name


def speaks_tls(endpoint: EndpointSpec) -> bool:
    return endpoint.tls is not None


def port_name(endpoint: EndpointSpec) -> str:
    """Name of the workers' port and of the Service's, which leads only to pods that have a port of that name."""
    return pods.HTTPS_PORT_NAME if speaks_tls(endpoint) else pods.HTTP_PORT_NAME


def scheme(endpoint: EndpointSpec) -> str:
    return "https" if speaks_tls(endpoint) else "http"


def _grpc_port_name(endpoint: EndpointSpec) -> str:
    return pods.GRPC_TLS_PORT_NAME if speaks_tls(endpoint) else pods.GRPC_PORT_NAME


def build_container_ports(endpoint: EndpointSpec) -> list[Manifest]:
    ports = [{"name": port_name(endpoint), "containerPort": pods.HTTP_PORT, "protocol": "TCP"}]
    if endpoint.grpc:
        ports.append({"name": _grpc_port_name(endpoint), "containerPort": pods.GRPC_PORT, "protocol": "TCP"})
    return ports


def build_service_ports(endpoint: EndpointSpec, port_in_pool: int | None = None) -> list[Manifest]:
    """`port_in_pool`: where the workers of a pool answer for the service. Their pods have no name for each service's
    port, since services join without another pod. None: the service has pods of its own."""
    name, port = port_name(endpoint), pods.TLS_SERVICE_PORT if speaks_tls(endpoint) else pods.SERVICE_PORT
    target: int | str = name if port_in_pool is None else port_in_pool
    ports: list[Manifest] = [{"name": name, "protocol": "TCP", "port": port, "targetPort": target}]
    if endpoint.grpc:
        name = _grpc_port_name(endpoint)
        target = name if port_in_pool is None else grpc_port(port_in_pool)
        grpc = {"name": name, "protocol": "TCP", "port": pods.GRPC_PORT, "targetPort": target}
        # Gateways and meshes otherwise guess HTTP/1.1. With TLS they can only pass it on.
        ports.append(grpc if speaks_tls(endpoint) else {**grpc, "appProtocol": "kubernetes.io/h2c"})
    return ports


def build_ingress_ports(endpoint: EndpointSpec) -> list[Manifest]:
    """Ports of the workers that a network policy leaves open."""
    return [{"protocol": "TCP", "port": port["containerPort"]} for port in build_container_ports(endpoint)]


def endpoint_secrets(endpoint: EndpointSpec) -> dict[str, str]:
    """Names of the Secrets, by the field that names them."""
    return {kind.field: secret for kind, secret in _named(endpoint)}


def build_environment(endpoint: EndpointSpec) -> dict[str, str]:
    """Where a worker listens beside HTTP, and folders of the credentials that it must use; it does not serve without
    certificate and tokens, and takes nothing in without those that may write."""
    found = {pods.GRPC_VARIABLE: str(pods.GRPC_PORT)} if endpoint.grpc else {}
    return found | {kind.variable: kind.path for kind, _ in _named(endpoint)}


def build_mounts(endpoint: EndpointSpec) -> list[Manifest]:
    return [{"name": kind.volume, "mountPath": kind.path, "readOnly": True} for kind, _ in _named(endpoint)]


def build_volumes(endpoint: EndpointSpec) -> list[Manifest]:
    """Volumes of the Secrets. A worker does not serve before it has its credentials: the environment names them
    (`build_environment`), whether or not the Secret exists."""
    return [secret_volume(kind.volume, secret) for kind, secret in _named(endpoint)]


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """Place of a service's workers, if they are those of a pool."""

    pool: str
    port: int | None
    """The port at which they answer for the service; None: it is not chosen yet."""


def build_service(parent: Parent, spec: GNNServiceSpec, place: PoolPlace | None = None) -> Manifest | None:
    """`place`: None, where the service has pods of its own."""
    if place is not None and place.port is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(
            parent, service_name(parent.name), Component.WORKER, annotations=dict(spec.endpoint.service.annotations)
        ),
        "spec": {
            "type": spec.endpoint.service.type.value,
            "selector": parent.workers_selector if place is None else pool_selector(place.pool),
            "ports": build_service_ports(spec.endpoint, None if place is None else place.port),
        },
    }


def service_url(parent: Parent, spec: GNNServiceSpec, cluster_domain: str) -> str:
    return f"{scheme(spec.endpoint)}://{service_name(parent.name)}.{parent.namespace}.svc.{cluster_domain}"


_LONGEST_INTERVAL_S = 15


def build_pod_monitor(
    parent: Parent, endpoint: EndpointSpec, intervals_s: Iterable[int], available: bool
) -> Manifest | None:
    """The PodMonitor of a service's own workers, or of a pool: there one port has the metrics of all services.
    `intervals_s`: of the slow loops that read what is scraped."""
    if not available:
        return None
    # A slow loop learns nothing new between two scrapes, and Prometheus' own default may be a minute.
    interval_s = min((*intervals_s, _LONGEST_INTERVAL_S))
    scraped: Manifest = {"port": port_name(endpoint), "path": "/metrics", "interval": f"{interval_s}s"}
    if speaks_tls(endpoint):
        # A pod is scraped by its address, which is in no certificate.
        scraped |= {"scheme": scheme(endpoint), "tlsConfig": {"insecureSkipVerify": True}}
    return {
        "apiVersion": POD_MONITOR.api_version,
        "kind": POD_MONITOR.name,
        "metadata": child_metadata(parent, parent.workers_name, Component.WORKER),
        "spec": {
            "selector": {"matchLabels": parent.workers_selector},
            "podMetricsEndpoints": [scraped],
        },
    }
