"""Objects that the operator's tests begin with."""

from __future__ import annotations

from typing import Any

from gnnserve_operator.kinds import ServiceKey

Manifest = dict[str, Any]
KEY = ServiceKey("default", "digits")
UID = "uid-of-digits"


def gnnservice(name: str = "digits", **spec: Any) -> Manifest:
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"graph": {"source": {"builtin": "Digits"}}, **spec},
    }


def owner(name: str = "digits", uid: str = UID, kind: str = "GNNService", **fields: Any) -> Manifest:
    return {"apiVersion": "gnnserve.dev/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": True} | fields


def child(kind: str = "ConfigMap", name: str = "digits-routing", **fields: Any) -> Manifest:
    """The child as the operator would declare it."""
    return {
        "apiVersion": {"Deployment": "apps/v1", "Job": "batch/v1"}.get(kind, "v1"),
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner()]},
        **fields,
    }


def live(manifest: Manifest, version: int = 1, **metadata: Any) -> Manifest:
    """The child as the API server would answer it."""
    found = {"uid": f"uid-of-{manifest['metadata']['name']}", "resourceVersion": str(version), "generation": 1}
    return {**manifest, "metadata": {**manifest["metadata"], **found, **metadata}}
