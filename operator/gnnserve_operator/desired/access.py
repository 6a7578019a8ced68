"""Access of pods: the workers' identity at the API server, their rights, and the network that pods may reach.

Workers follow one ConfigMap, which has their routing, and accept requests from anywhere; generation fetches public
graphs. Both reach the database with the log of changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from gnnserve_api.pods.interface import HTTP_PORT, MIRROR_VARIABLE
from gnnserve_api.pods.pool import FIRST_PORT, LAST_PORT, grpc_port
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.endpoint import build_ingress_ports
from gnnserve_operator.desired.metadata import (
    Component,
    Parent,
    child_metadata,
    embeddings_name,
    generation_name,
    selector_for,
)
from gnnserve_operator.desired.storage import log_secret
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.settings import Settings

_RBAC = "rbac.authorization.k8s.io"
_DNS = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
"""Policies see the port of the DNS pods, which is 5353 on OpenShift."""

_WEB_PORTS = {"http": 80, "https": 443}
_ADDRESS_VARIABLES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", MIRROR_VARIABLE}
"""Variables of pods whose values are addresses that data sets are fetched from, or by way of."""


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
    ports = _download_ports(spec.graph.source, settings).union(_database_ports(spec, settings))
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


def _download_ports(source: GraphSource, settings: Settings) -> set[int]:
    """Ports from which a public data set may be fetched. A policy cannot name hosts, and redirects lead to others."""
    published = source.ogb or source.pyg
    if published is None or (published.mirror is not None and not published.mirror.is_address):
        return set()
    others = (
        variable.get("value") for variable in settings.worker_extra_env
        if str(variable.get("name")).upper() in _ADDRESS_VARIABLES
    )  # fmt: skip
    addresses = [None if published.mirror is None else str(published.mirror), *others]
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
