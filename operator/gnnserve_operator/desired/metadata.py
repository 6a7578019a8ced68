"""Metadata that all children share: names, labels, and the reference to the owner that deletes them with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from gnnserve_api.spec.pool import POOL_KIND
from gnnserve_api.spec.service import API_VERSION, KIND
from gnnserve_operator.desired.labels import OWNER_UID, Component, labels_for, pool_labels, pool_selector, selector_for
from gnnserve_operator.desired.names import pool_name, worker_name

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parent:
    """The GNNService, or the GNNWorkerPool, that a child belongs to."""

    name: str
    namespace: str
    uid: str
    kind: str = KIND

    @property
    def is_pool(self) -> bool:
        return self.kind == POOL_KIND

    @property
    def workers_name(self) -> str:
        """Name of what belongs to its workers alone."""
        return pool_name(self.name) if self.is_pool else worker_name(self.name)

    @property
    def workers_selector(self) -> dict[str, str]:
        """Selector of its worker pods."""
        return pool_selector(self.name) if self.is_pool else selector_for(self.name, Component.WORKER)

    def labels(self, component: Component, recipe: str | None = None) -> dict[str, str]:
        """Labels of what belongs to it."""
        return pool_labels(self.name) if self.is_pool else labels_for(self.name, component, recipe)


def child_metadata(
    parent: Parent,
    name: str,
    component: Component,
    *,
    recipe: str | None = None,
    annotations: dict[str, str] | None = None,
    is_retained: bool = False,
) -> Manifest:
    """`is_retained`: it stays when its owner is deleted, and names it in a label alone (`belonging.py`)."""
    labels = parent.labels(component, recipe)
    metadata: Manifest = {"name": name, "namespace": parent.namespace, "labels": labels}
    if is_retained:
        metadata["labels"] = labels | {OWNER_UID: parent.uid}
    else:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": parent.kind,
                "name": parent.name,
                "uid": parent.uid,
                "controller": True,
                # True would need the right to update the owner's finalizers, without any use.
                "blockOwnerDeletion": False,
            }
        ]
    return metadata if not annotations else metadata | {"annotations": annotations}


def digest_of(manifest: Manifest) -> str:
    """Digest of a manifest, independent of the order of its fields.

    Digests are stored in annotations and in names of Jobs, so the text that is hashed must never change. They are
    remembered by a hash of the manifest as it stands: each reconcile asks for the same few manifests of about 3 KB,
    which are too large to be kept for it.
    """
    text = msgspec.json.encode(manifest)
    known_by = hashlib.blake2b(text, digest_size=16).digest()
    digest = _DIGESTS.get(known_by)
    if digest is None:
        if len(_DIGESTS) >= _MOST_DIGESTS:
            _DIGESTS.clear()
        canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        digest = _DIGESTS[known_by] = hashlib.sha256(canonical.encode()).hexdigest()
    return digest


_MOST_DIGESTS = 8192
"""Most digests that are remembered, about 200 bytes each."""
_DIGESTS: dict[bytes, str] = {}


def as_manifest(parent: Parent, parts: dict[str, Any]) -> str:
    """A GNNService with these parts of its spec, as JSON: what a Job is handed in its environment."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": parent.name, "namespace": parent.namespace},
        "spec": parts,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
