"""What workers may do: follow the one ConfigMap that tells them their routing."""

from __future__ import annotations

from gnnserve_operator.desired.labels import Component
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import routing_name, worker_name

_RBAC = "rbac.authorization.k8s.io"


def build_role(parent: Parent) -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": child_metadata(parent, worker_name(parent.name), Component.WORKER),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                # list and watch are allowed by name only with a fieldSelector on metadata.name, as workers send it.
                "resourceNames": [routing_name(parent.name)],
                "verbs": ["get", "list", "watch"],
            }
        ],
    }


def build_role_binding(parent: Parent) -> Manifest:
    name = worker_name(parent.name)
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": child_metadata(parent, name, Component.WORKER),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": parent.namespace}],
    }
