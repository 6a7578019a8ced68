"""Access to pods and of pods: the Service and the ports by which clients reach workers, with the credentials that these
mount (spec.endpoint); the PodMonitor by which Prometheus scrapes them; the workers' identity at the API server and
their rights; and the network that pods may reach.

Workers follow one ConfigMap, which has their routing, and accept requests from anywhere; generation fetches public
graphs, and weights of the Hugging Face Hub. Both reach the database with the log of changes.

Without spec.endpoint every manifest is, byte for byte, what it was before the field existed, so that an upgraded
operator restarts no workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.interface import HTTP_PORT, HUB_ENDPOINT_VARIABLE, MIRROR_VARIABLE
from gnnserve_api.pods.pool import FIRST_PORT, LAST_PORT, grpc_port
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.paths import hub_paths_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.metadata import (
    Component,
    Parent,
    child_metadata,
    embeddings_name,
    generation_name,
    pool_selector,
    selector_for,
    service_name,
)
from gnnserve_operator.desired.pod import secret_volume
from gnnserve_operator.desired.storage import log_secret
from gnnserve_operator.kinds import POD_MONITOR, Manifest
from gnnserve_operator.settings import Settings

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


def build_endpoint_environment(endpoint: EndpointSpec) -> dict[str, str]:
    """Where a worker listens beside HTTP, and folders of the credentials that it must use; it does not serve without
    certificate and tokens, and takes nothing in without those that may write."""
    found = {pods.GRPC_VARIABLE: str(pods.GRPC_PORT)} if endpoint.grpc else {}
    return found | {kind.variable: kind.path for kind, _ in _named(endpoint)}


def build_credential_mounts(endpoint: EndpointSpec) -> list[Manifest]:
    return [{"name": kind.volume, "mountPath": kind.path, "readOnly": True} for kind, _ in _named(endpoint)]


def build_credential_volumes(endpoint: EndpointSpec) -> list[Manifest]:
    """Volumes of the Secrets. A worker does not serve before it has its credentials: the environment names them
    (`build_endpoint_environment`), whether or not the Secret exists."""
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


_RBAC = "rbac.authorization.k8s.io"
_DNS = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
"""Policies see the port of the DNS pods, which is 5353 on OpenShift."""

_WEB_PORTS = {"http": 80, "https": 443}
_ADDRESS_VARIABLES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", MIRROR_VARIABLE, HUB_ENDPOINT_VARIABLE}
"""Variables of pods whose values are addresses that files are fetched from, or by way of."""


def build_service_account(parent: Parent) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(parent, parent.workers_name, Component.WORKER),
        # Worker pods request a token explicitly; no other pod gets one by accident.
        "automountServiceAccountToken": False,
    }


def build_role(parent: Parent, config_maps: Iterable[str]) -> Manifest:
    """`config_maps`: names of those that workers follow."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": child_metadata(parent, parent.workers_name, Component.WORKER),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                # list and watch are allowed by name only with a fieldSelector on metadata.name, as workers send it.
                "resourceNames": list(config_maps),
                "verbs": ["get", "list", "watch"],
            }
        ],
    }


def build_role_binding(parent: Parent) -> Manifest:
    name = parent.workers_name
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": child_metadata(parent, name, Component.WORKER),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": parent.namespace}],
    }


def build_worker_network_policy(parent: Parent, spec: GNNServiceSpec, settings: Settings) -> Manifest | None:
    if not settings.network_policy:
        return None
    return _worker_policy(
        parent, settings, build_ingress_ports(spec.endpoint), _database_ports(spec, settings), _receiver_ports(spec)
    )  # fmt: skip


def build_pool_network_policy(
    parent: Parent, settings: Settings, *, with_database: bool, receivers: Sequence[int]
) -> Manifest | None:
    """Services' ports are open whether or not there is one for each of them: a policy takes effect late, and a service
    joins at once. `with_database`: one of the services has a log of changes. `receivers`: ports of what takes the
    services' traces."""
    if not settings.network_policy:
        return None
    ingress = [
        {"protocol": "TCP", "port": HTTP_PORT},
        {"protocol": "TCP", "port": FIRST_PORT, "endPort": LAST_PORT},
        {"protocol": "TCP", "port": grpc_port(FIRST_PORT), "endPort": grpc_port(LAST_PORT)},
    ]
    return _worker_policy(parent, settings, ingress, settings.postgres_ports if with_database else (), receivers)


def _worker_policy(
    parent: Parent, settings: Settings, ingress: list[Manifest], *further: Iterable[int]
) -> Manifest:  # fmt: skip
    """`further`: ports that workers may reach beside the API server's, a rule for each that has any."""
    egress: list[Manifest] = [{"ports": [dict(port) for port in _DNS]}]
    # A rule without ports would allow all of them.
    egress += [
        {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
        for ports in (settings.api_server_ports, *further)
        if ports
    ]
    rules = {"ingress": [{"ports": ingress}], "egress": egress}
    return _policy(parent, parent.workers_name, Component.WORKER, settings, rules)


def build_generation_network_policy(parent: Parent, spec: GNNServiceSpec, settings: Settings) -> Manifest | None:
    if not settings.network_policy:
        return None
    ports = _download_ports(spec, settings).union(_database_ports(spec, settings))
    # Neither ingress nor egress rules: nothing is allowed. Volumes are mounted by the node, not through the pod's
    # network.
    rules: Manifest = {}
    if ports:
        reached = [{"protocol": "TCP", "port": port} for port in sorted(ports)]
        rules = {"egress": [{"ports": [dict(port) for port in _DNS]}, {"ports": reached}]}
    return _policy(parent, generation_name(parent.name), Component.GENERATION, settings, rules)


def build_embeddings_network_policy(parent: Parent, spec: GNNServiceSpec, settings: Settings) -> Manifest | None:
    if not settings.network_policy or spec.embeddings is None:
        return None
    rules: Manifest = {}
    if spec.embeddings.sinks and settings.postgres_ports:
        reached = [{"protocol": "TCP", "port": port} for port in settings.postgres_ports]
        rules = {"egress": [{"ports": [dict(port) for port in _DNS]}, {"ports": reached}]}
    return _policy(parent, embeddings_name(parent.name), Component.EMBEDDINGS, settings, rules)


def _database_ports(spec: GNNServiceSpec, settings: Settings) -> tuple[int, ...]:
    """Ports of the database with the log of changes. Its address is in a Secret, which the operator does not read."""
    return settings.postgres_ports if log_secret(spec) is not None else ()


def _receiver_ports(spec: GNNServiceSpec) -> tuple[int, ...]:
    """The port of what takes traces. A policy cannot name its host."""
    return () if spec.worker.tracing is None else port_of_receiver(spec.worker.tracing.endpoint)


def port_of_receiver(endpoint: str) -> tuple[int, ...]:
    """The port of this URL; empty, where it has none."""
    try:
        found = urlsplit(endpoint)
        port = found.port or _WEB_PORTS.get(found.scheme)
    except ValueError:  # not a valid port: workers report it
        return ()
    return () if port is None else (port,)


def _download_ports(spec: GNNServiceSpec, settings: Settings) -> set[int]:
    """Ports from which a public data set, and files of the Hugging Face Hub, may be fetched. A policy cannot name
    hosts, and redirects lead to others."""
    published = spec.graph.source.ogb or spec.graph.source.pyg
    mirror = None if published is None else published.mirror
    is_published = published is not None and (mirror is None or mirror.is_address)
    if not is_published and not hub_paths_of(spec):
        return set()
    others = (
        variable.get("value") for variable in settings.worker_extra_env
        if str(variable.get("name")).upper() in _ADDRESS_VARIABLES
    )  # fmt: skip
    addresses = [None if mirror is None else str(mirror), *others]
    return set(_WEB_PORTS.values()) | {port for address in addresses if (port := _port_of(address)) is not None}


def _port_of(address: object) -> int | None:
    if not isinstance(address, str):
        return None
    try:
        # As in httpx: a proxy may be given without a scheme, `proxy.lan:3128`.
        return urlsplit(address if "://" in address else f"//{address}").port
    except ValueError:  # not a valid port: connecting reports it
        return None


def _policy(parent: Parent, name: str, component: Component, settings: Settings, rules: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(parent, name, component),
        "spec": {
            "podSelector": {
                "matchLabels": parent.workers_selector
                if component is Component.WORKER
                else selector_for(parent.name, component)
            },
            "policyTypes": ["Ingress", "Egress"],
            **_with_mesh(rules, settings.mesh_ports),
        },
    }


def _with_mesh(rules: Manifest, mesh_ports: Iterable[int]) -> Manifest:
    """The rules, and one in each direction for the mesh, which carries a pod's traffic through ports of its own: also
    for pods that may reach nothing else, whose sidecar has to find its control plane before it lets them start."""
    ports = [{"protocol": "TCP", "port": port} for port in mesh_ports]
    if not ports:
        return rules
    names = {"ports": [dict(port) for port in _DNS]}
    return {
        "ingress": [*rules.get("ingress", []), {"ports": ports}],
        "egress": [*rules.get("egress", [names]), {"ports": [dict(port) for port in ports]}],
    }
