"""The effect of spec.endpoint on children: ports, schemes, and the Secrets that workers mount.

Without it every manifest is, byte for byte, what it was before the field existed, so that an upgraded operator restarts
no workers.
"""

from __future__ import annotations

from gnnserve_api import pods
from gnnserve_api.pool import grpc_port
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.metadata import Manifest
from gnnserve_operator.desired.pod import secret_volume

TLS_VOLUME = "tls"
TOKENS_VOLUME = "tokens"
WRITE_TOKENS_VOLUME = "write-tokens"
TLS_SECRET_FIELD = "spec.endpoint.tls.secretName"  # noqa: S105 - a field
TOKENS_SECRET_FIELD = "spec.endpoint.tokens.secretName"  # noqa: S105 - a field
WRITE_TOKENS_SECRET_FIELD = "spec.endpoint.writeTokens.secretName"  # noqa: S105 - a field


def speaks_tls(spec: GNNServiceSpec) -> bool:
    return spec.endpoint.tls is not None


def port_name(spec: GNNServiceSpec) -> str:
    """Name of the workers' port and of the Service's, which leads only to pods that have a port of that name."""
    return pods.HTTPS_PORT_NAME if speaks_tls(spec) else pods.HTTP_PORT_NAME


def grpc_port_name(spec: GNNServiceSpec) -> str:
    return pods.GRPC_TLS_PORT_NAME if speaks_tls(spec) else pods.GRPC_PORT_NAME


def service_port(spec: GNNServiceSpec) -> int:
    return pods.TLS_SERVICE_PORT if speaks_tls(spec) else pods.SERVICE_PORT


def scheme(spec: GNNServiceSpec) -> str:
    return "https" if speaks_tls(spec) else "http"


def build_container_ports(spec: GNNServiceSpec) -> list[Manifest]:
    ports = [{"name": port_name(spec), "containerPort": pods.HTTP_PORT, "protocol": "TCP"}]
    if spec.endpoint.grpc:
        ports.append({"name": grpc_port_name(spec), "containerPort": pods.GRPC_PORT, "protocol": "TCP"})
    return ports


def build_service_ports(spec: GNNServiceSpec, port_in_pool: int | None = None) -> list[Manifest]:
    """`port_in_pool`: where the workers of a pool answer for the service. Their pods have no name for each service's
    port, since services join without another pod. None: the service has pods of its own."""
    name = port_name(spec)
    target: int | str = name if port_in_pool is None else port_in_pool
    ports: list[Manifest] = [{"name": name, "protocol": "TCP", "port": service_port(spec), "targetPort": target}]
    if spec.endpoint.grpc:
        name = grpc_port_name(spec)
        target = name if port_in_pool is None else grpc_port(port_in_pool)
        port = {"name": name, "protocol": "TCP", "port": pods.GRPC_PORT, "targetPort": target}
        # Gateways and meshes otherwise guess HTTP/1.1. With TLS they can only pass it on.
        ports.append(port if speaks_tls(spec) else {**port, "appProtocol": "kubernetes.io/h2c"})
    return ports


def build_ingress_ports(spec: GNNServiceSpec) -> list[Manifest]:
    """Ports of the workers that a network policy leaves open."""
    return [{"protocol": "TCP", "port": port["containerPort"]} for port in build_container_ports(spec)]


def secrets_of(spec: GNNServiceSpec) -> dict[str, str]:
    """Names of the Secrets, by the field that names them."""
    found = {}
    if spec.endpoint.tls is not None:
        found[TLS_SECRET_FIELD] = spec.endpoint.tls.secret_name
    if spec.endpoint.tokens is not None:
        found[TOKENS_SECRET_FIELD] = spec.endpoint.tokens.secret_name
    if spec.endpoint.write_tokens is not None:
        found[WRITE_TOKENS_SECRET_FIELD] = spec.endpoint.write_tokens.secret_name
    return found


def build_environment(spec: GNNServiceSpec) -> dict[str, str]:
    """Where a worker listens beside HTTP, and folders of the credentials that it must use; it does not serve without
    certificate and tokens, and takes nothing in without those that may write."""
    found = {}
    if spec.endpoint.grpc:
        found[pods.GRPC_VARIABLE] = str(pods.GRPC_PORT)
    if spec.endpoint.tls is not None:
        found[pods.TLS_VARIABLE] = pods.TLS_PATH
    if spec.endpoint.tokens is not None:
        found[pods.TOKENS_VARIABLE] = pods.TOKENS_PATH
    if spec.endpoint.write_tokens is not None:
        found[pods.WRITE_TOKENS_VARIABLE] = pods.WRITE_TOKENS_PATH
    return found


def build_mounts(spec: GNNServiceSpec) -> list[Manifest]:
    return [
        {"name": name, "mountPath": path, "readOnly": True}
        for name, path, secret in _secrets(spec)
        if secret is not None
    ]


def build_volumes(spec: GNNServiceSpec) -> list[Manifest]:
    """Volumes of the Secrets. A worker does not serve before it has its credentials: the environment names them
    (`build_environment`), whether or not the Secret exists."""
    return [secret_volume(name, secret) for name, _, secret in _secrets(spec) if secret is not None]


def _secrets(spec: GNNServiceSpec) -> tuple[tuple[str, str, str | None], ...]:
    tls, tokens, write_tokens = spec.endpoint.tls, spec.endpoint.tokens, spec.endpoint.write_tokens
    return (
        (TLS_VOLUME, pods.TLS_PATH, None if tls is None else tls.secret_name),
        (TOKENS_VOLUME, pods.TOKENS_PATH, None if tokens is None else tokens.secret_name),
        (
            WRITE_TOKENS_VOLUME,
            pods.WRITE_TOKENS_PATH,
            None if write_tokens is None else write_tokens.secret_name,
        ),
    )
