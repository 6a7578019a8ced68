"""Storage that outlives pods: the claim that keeps revisions where the user names none, and the log of changes.

The claim is deleted with what it was made for, or retained.

The log is where spec.updates says, which also limits the memory that changes may take. Workers write it. A generation
Job begins from the newest graph that an earlier one has made of it, and one that compacts makes the next. Without
spec.updates every manifest is, byte for byte, what it was before the field existed, so that an upgraded operator
restarts no workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.device import size_bytes
from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.change_log import URI_KEY, logs_folder, sqlite_file
from gnnserve_api.spec.repository import RepositoryClaim, RepositoryPlace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_operator.desired.metadata import (
    BRING_BACK_ANNOTATION,
    Component,
    Parent,
    child_metadata,
    fields_to_bring_back,
)
from gnnserve_operator.desired.pod import REPOSITORY_VOLUME, secret_volume
from gnnserve_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """Decision about a claim that the operator makes."""

    name: str
    storage: str
    """The storage to request, a quantity."""
    is_retained: bool
    """Whether it stays when its owner is deleted."""
    log_uid: str = ""
    """The uid by which the log of changes is known that lies in the claim, or is compacted there; empty: there is
    none."""


def build_volume_claim(parent: Parent, repository: RepositoryPlace, wanted: WantedClaim) -> Manifest | None:
    if repository.claim_name is not None:
        return None
    claim = repository.claim or RepositoryClaim()
    claim_spec: Manifest = {
        "accessModes": [claim.access_mode.value],
        "resources": {"requests": {"storage": wanted.storage}},
    }
    if claim.storage_class_name is not None:
        claim_spec["storageClassName"] = claim.storage_class_name
    way_back = {BRING_BACK_ANNOTATION: fields_to_bring_back(wanted.name, wanted.log_uid)}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(
            parent,
            wanted.name,
            Component.GENERATION,
            annotations=way_back if wanted.is_retained else None,
            is_retained=wanted.is_retained,
        ),
        "spec": claim_spec,
    }


LOG_VOLUME = "change-log"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LOG_SECRET_FIELD = "spec.updates.log.postgres.secretName"  # noqa: S105 - a field


def log_secret(spec: GNNServiceSpec) -> str | None:
    """Name of the Secret with the address of the log's database; None: the log needs none."""
    postgres = None if spec.updates is None else spec.updates.log.postgres
    return None if postgres is None else postgres.secret_name


def log_uid_of(uid: str, updates: UpdatesSpec | None) -> str:
    """The uid by which the log of changes of the GNNService with `uid` is known; empty: it has none."""
    return "" if updates is None else updates.adopt or uid


def keeps_log_in_repository(spec: GNNServiceSpec) -> bool:
    """Whether the log of changes is a file of the repository's volume, and goes with it."""
    return spec.updates is not None and spec.updates.log.sqlite is not None


def excludes_second_worker(spec: GNNServiceSpec) -> bool:
    """Whether a worker must have ended before its successor starts. SQLite's locks hold among the pods of one node; on
    two nodes, over a network file system, two workers could damage the log."""
    return keeps_log_in_repository(spec) and spec.repository.may_be_on_several_nodes


def build_log_environment(parent: Parent, spec: GNNServiceSpec) -> dict[str, str]:
    if spec.updates is None:
        return {}
    return _build_log(parent, spec.updates, pods.UPDATES_PATH)


def build_log_mounts(parent: Parent, spec: GNNServiceSpec) -> list[Manifest]:
    if keeps_log_in_repository(spec):
        # The only part of the repository that a worker may write. Generation has made the folder; one that the kubelet
        # makes is root's.
        folder = logs_folder(parent.namespace, parent.name)
        return [{"name": REPOSITORY_VOLUME, "mountPath": pods.UPDATES_PATH, "subPath": folder}]
    return build_log_secret_mounts(spec)


def build_generation_environment(parent: Parent, spec: GNNServiceSpec, compacts: str | None) -> dict[str, str]:
    """`compacts`: the revision whose graph a Job makes anew; None: it makes what the spec says."""
    if spec.updates is None:
        return {}
    found = _build_log(parent, spec.updates, f"{pods.REPOSITORY_PATH}/{logs_folder(parent.namespace, parent.name)}")
    if compacts is not None:
        found[pods.COMPACT_VARIABLE] = compacts
        if spec.updates.compaction.retrain:
            found[pods.RETRAIN_VARIABLE] = "true"
    return found


def build_log_secret_mounts(spec: GNNServiceSpec) -> list[Manifest]:
    if log_secret(spec) is None:
        return []
    return [{"name": LOG_VOLUME, "mountPath": pods.LOG_SECRET_PATH, "readOnly": True}]


def build_log_volumes(spec: GNNServiceSpec) -> list[Manifest]:
    """A pod starts without the Secret, and tells what is missing."""
    secret = log_secret(spec)
    return [] if secret is None else [secret_volume(LOG_VOLUME, secret, URI_KEY)]


def beside_worker(pod: Manifest, parent: Parent) -> Manifest:
    """The pod as one that runs on the worker's node, within which SQLite's locks hold, whatever else its affinity
    says."""
    term = {
        "labelSelector": {"matchLabels": parent.workers_selector},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = pod.get("affinity", {})
    near = affinity.get("podAffinity", {})
    return {
        **pod,
        "affinity": {**affinity, "podAffinity": {**near, _REQUIRED: [*near.get(_REQUIRED, []), term]}},
    }


def _build_log(parent: Parent, updates: UpdatesSpec, folder: str) -> dict[str, str]:
    """`folder`: that of the service's SQLite logs."""
    uid = log_uid_of(parent.uid, updates)
    log = {}
    if updates.log.sqlite is not None:
        log[pods.SQLITE_LOG_VARIABLE] = f"{folder}/{sqlite_file(uid)}"
    if updates.log.postgres is not None:
        log[pods.POSTGRES_LOG_VARIABLE] = f"{pods.LOG_SECRET_PATH}/{URI_KEY}"
    return {
        pods.SERVICE_UID_VARIABLE: uid,
        **log,
        pods.MAX_DELTA_VARIABLE: str(size_bytes(updates.max_delta)),
    }
