"""Whom pods may talk to: workers are asked by anyone and follow the API server; generation needs nobody."""

from __future__ import annotations

from gnnserve_api.pods import HTTP_PORT
from gnnserve_operator.desired.labels import Component, selector_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import generation_name, worker_name
from gnnserve_operator.settings import Settings

_DNS = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
"""Policies see the port of the DNS pods, which is 5353 on OpenShift."""


def build_worker_network_policy(parent: Parent, settings: Settings) -> Manifest | None:
    if not settings.network_policy:
        return None
    egress: list[Manifest] = [{"ports": [dict(port) for port in _DNS]}]
    if settings.api_server_ports:
        # A rule without ports would allow all of them.
        egress.append({"ports": [{"protocol": "TCP", "port": port} for port in settings.api_server_ports]})
    return _policy(
        parent,
        worker_name(parent.name),
        Component.WORKER,
        {"ingress": [{"ports": [{"protocol": "TCP", "port": HTTP_PORT}]}], "egress": egress},
    )


def build_generation_network_policy(parent: Parent, settings: Settings) -> Manifest | None:
    if not settings.network_policy:
        return None
    # Neither ingress nor egress rules: nothing is allowed. Volumes are the node's affair.
    return _policy(parent, generation_name(parent.name), Component.GENERATION, {})


def _policy(parent: Parent, name: str, component: Component, rules: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(parent, name, component),
        "spec": {
            "podSelector": {"matchLabels": selector_for(parent.name, component)},
            "policyTypes": ["Ingress", "Egress"],
            **rules,
        },
    }
