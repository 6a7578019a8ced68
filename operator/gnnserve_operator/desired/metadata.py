"""Metadata that all children share: names, labels, and the reference to the owner that deletes them with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from gnnserve_api.spec.service import API_VERSION, KIND
from gnnserve_operator.desired.labels import Component, labels_for

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parent:
    """The GNNService that a child belongs to."""

    name: str
    namespace: str
    uid: str


def child_metadata(
    parent: Parent,
    name: str,
    component: Component,
    *,
    recipe: str | None = None,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    metadata: Manifest = {
        "name": name,
        "namespace": parent.namespace,
        "labels": labels_for(parent.name, component, recipe),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": parent.name,
                "uid": parent.uid,
                "controller": True,
                # True would need the right to update the owner's finalizers, without any use.
                "blockOwnerDeletion": False,
            }
        ],
    }
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
