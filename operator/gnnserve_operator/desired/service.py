"""The address that clients use."""

from __future__ import annotations

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.endpoint import port_name, scheme, service_port
from gnnserve_operator.desired.labels import Component, selector_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import service_name


def build_service(parent: Parent, spec: GNNServiceSpec) -> Manifest:
    name = port_name(spec)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(
            parent, service_name(parent.name), Component.WORKER, annotations=dict(spec.endpoint.service.annotations)
        ),
        "spec": {
            "type": spec.endpoint.service.type.value,
            "selector": selector_for(parent.name, Component.WORKER),
            "ports": [{"name": name, "protocol": "TCP", "port": service_port(spec), "targetPort": name}],
        },
    }


def service_url(parent: Parent, spec: GNNServiceSpec, cluster_domain: str) -> str:
    return f"{scheme(spec)}://{service_name(parent.name)}.{parent.namespace}.svc.{cluster_domain}"
