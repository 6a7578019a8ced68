"""The Service that clients use, and the PodMonitor by which Prometheus scrapes workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.endpoint import build_service_ports, port_name, scheme, speaks_tls
from gnnserve_operator.desired.labels import Component, pool_selector
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import service_name
from gnnserve_operator.kinds import POD_MONITOR


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """Where a service's workers are, if they are those of a pool."""

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
