"""Pods that restricted Pod Security lets in, for what tests want to see from inside the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.harness.client import PACKAGES_CLAIM, Cluster
from tests.cluster.harness.images import PACKAGES_PATH
from tests.cluster.harness.layout import POD_UID


def python_pod(
    cluster: Cluster,
    name: str,
    program: str,
    *,
    arguments: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs a Python program once, with everything importable that workers have."""
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if cluster.node is not None:
        volumes.append({"name": "packages", "persistentVolumeClaim": {"claimName": PACKAGES_CLAIM, "readOnly": True}})
        mounts.append({"name": "packages", "mountPath": PACKAGES_PATH, "readOnly": True})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": POD_UID,
                "runAsGroup": POD_UID,
                "fsGroup": POD_UID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": cluster.worker_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", program, *arguments],
                    "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
                    "resources": dict(resources or {}),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }
