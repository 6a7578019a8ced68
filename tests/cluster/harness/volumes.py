"""PersistentVolumes over folders of this machine.

Claims of the default StorageClass get theirs from the provisioner; a folder that exists already (Python packages, graph
files) is bound to a claim of its own by `read_only_claim`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS = {"app.kubernetes.io/managed-by": "gnnserve-tests"}


def volume(
    name: str, folder: Path, *, claim: dict[str, str], storage_class: str, capacity: str = "10Gi"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": OURS},
        "spec": {
            "capacity": {"storage": capacity},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            # Kubernetes itself cannot empty a host path; the provisioner removes volume and folder.
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim},
        },
    }


def read_only_claim(namespace: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """A claim and the volume bound to it. Host paths know no read-only volumes: the pod's mount has to say it."""
    volume_name = f"{namespace}-{name}"
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": volume_name,
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }
    return [volume(volume_name, folder, claim={"namespace": namespace, "name": name}, storage_class=""), claim]
