"""The address that clients use."""

from __future__ import annotations

from gnnserve_api.pods import SERVICE_PORT
from gnnserve_operator.desired.labels import Component, selector_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import service_name


def build_service(parent: Parent) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(parent, service_name(parent.name), Component.WORKER),
        "spec": {
            "type": "ClusterIP",
            "selector": selector_for(parent.name, Component.WORKER),
            "ports": [{"name": "http", "protocol": "TCP", "port": SERVICE_PORT, "targetPort": "http"}],
        },
    }


def service_url(parent: Parent, cluster_domain: str) -> str:
    return f"http://{service_name(parent.name)}.{parent.namespace}.svc.{cluster_domain}"
