"""Who worker pods are to the API server."""

from __future__ import annotations

from gnnserve_operator.desired.labels import Component
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import worker_name


def build_service_account(parent: Parent) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(parent, worker_name(parent.name), Component.WORKER),
        # Worker pods ask for a token themselves; nobody gets one by accident.
        "automountServiceAccountToken": False,
    }
