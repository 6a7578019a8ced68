"""Versions of a service's objects on a cluster."""

from __future__ import annotations

from tests.cluster.harness.services import Service


def versions(service: Service) -> dict[str, str]:
    """Of the service and everything it owns, but for what other controllers write into."""
    kinds = (
        "services,configmaps,persistentvolumeclaims,networkpolicies,roles,rolebindings,serviceaccounts,jobs,"
        "deployments,gnns"
    )
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in service.namespace.items(kinds)
    }
