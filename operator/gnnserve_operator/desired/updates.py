"""The effect of spec.updates on worker pods: where the log of changes is, and how much memory changes may take.

Without it every manifest is, byte for byte, what it was before the field existed, so that an upgraded operator restarts
no workers.
"""

from __future__ import annotations

from gnnserve_api import pods
from gnnserve_api.device import Device, size_bytes
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.updates import URI_KEY, logs_folder, sqlite_file
from gnnserve_operator.desired.metadata import Manifest, Parent
from gnnserve_operator.desired.pod import REPOSITORY_VOLUME, secret_volume

LOG_VOLUME = "change-log"
LOG_SECRET_FIELD = "spec.updates.log.postgres.secretName"  # noqa: S105 - a field


def log_secret(spec: GNNServiceSpec) -> str | None:
    """Name of the Secret with the address of the log's database; None: the log needs none."""
    postgres = None if spec.updates is None else spec.updates.log.postgres
    return None if postgres is None else postgres.secret_name


def keeps_log_in_repository(spec: GNNServiceSpec) -> bool:
    """Whether the log of changes is a file of the repository's volume, and goes with it."""
    return spec.updates is not None and spec.updates.log.sqlite is not None


def excludes_second_worker(spec: GNNServiceSpec) -> bool:
    """Whether a worker must have ended before its successor starts. SQLite's locks hold among the pods of one node; on
    two nodes, over a network file system, two workers could damage the log."""
    return keeps_log_in_repository(spec) and spec.repository.may_be_on_several_nodes


def build_environment(parent: Parent, spec: GNNServiceSpec) -> dict[str, str]:
    if spec.updates is None:
        return {}
    log = {}
    if spec.updates.log.sqlite is not None:
        log[pods.SQLITE_LOG_VARIABLE] = f"{pods.UPDATES_PATH}/{sqlite_file(parent.uid)}"
    if spec.updates.log.postgres is not None:
        log[pods.POSTGRES_LOG_VARIABLE] = f"{pods.LOG_SECRET_PATH}/{URI_KEY}"
    return {
        pods.SERVICE_UID_VARIABLE: parent.uid,
        **log,
        pods.MAX_DELTA_VARIABLE: str(size_bytes(spec.updates.max_delta)),
        # Also where the node's runtime shows a GPU to every pod.
        pods.DEVICE_VARIABLE: Device.CPU.value,
    }


def build_mounts(parent: Parent, spec: GNNServiceSpec) -> list[Manifest]:
    if log_secret(spec) is not None:
        return [{"name": LOG_VOLUME, "mountPath": pods.LOG_SECRET_PATH, "readOnly": True}]
    if keeps_log_in_repository(spec):
        # The only part of the repository that a worker may write. Generation has made the folder; one that the kubelet
        # makes is root's.
        folder = logs_folder(parent.namespace, parent.name)
        return [{"name": REPOSITORY_VOLUME, "mountPath": pods.UPDATES_PATH, "subPath": folder}]
    return []


def build_volumes(spec: GNNServiceSpec) -> list[Manifest]:
    """A worker starts without the Secret, and tells what is missing."""
    secret = log_secret(spec)
    return [] if secret is None else [secret_volume(LOG_VOLUME, secret, URI_KEY)]
