"""The Service that clients use, and the PodMonitor by which Prometheus scrapes workers."""

from __future__ import annotations

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.endpoint import build_service_ports, port_name, scheme, speaks_tls
from gnnserve_operator.desired.labels import Component, selector_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import service_name, worker_name
from gnnserve_operator.kinds import POD_MONITOR


def build_service(parent: Parent, spec: GNNServiceSpec) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(
            parent, service_name(parent.name), Component.WORKER, annotations=dict(spec.endpoint.service.annotations)
        ),
        "spec": {
            "type": spec.endpoint.service.type.value,
            "selector": selector_for(parent.name, Component.WORKER),
            "ports": build_service_ports(spec),
        },
    }


def service_url(parent: Parent, spec: GNNServiceSpec, cluster_domain: str) -> str:
    return f"{scheme(spec)}://{service_name(parent.name)}.{parent.namespace}.svc.{cluster_domain}"


_LONGEST_INTERVAL_S = 15


def build_pod_monitor(parent: Parent, spec: GNNServiceSpec, available: bool) -> Manifest | None:
    if not available:
        return None
    # The slow loop learns nothing new between two scrapes, and Prometheus' own default may be a minute.
    interval_s = min(spec.routing.interval_seconds, _LONGEST_INTERVAL_S)
    endpoint: Manifest = {"port": port_name(spec), "path": "/metrics", "interval": f"{interval_s}s"}
    if speaks_tls(spec):
        # A pod is scraped by its address, which is in no certificate.
        endpoint |= {"scheme": scheme(spec), "tlsConfig": {"insecureSkipVerify": True}}
    return {
        "apiVersion": POD_MONITOR.api_version,
        "kind": POD_MONITOR.name,
        "metadata": child_metadata(parent, worker_name(parent.name), Component.WORKER),
        "spec": {
            "selector": {"matchLabels": selector_for(parent.name, Component.WORKER)},
            "podMetricsEndpoints": [endpoint],
        },
    }
