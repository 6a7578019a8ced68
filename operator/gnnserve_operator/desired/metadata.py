"""Metadata that all children share: names, labels, and the reference to the owner that deletes them with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
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
    """Digest of a manifest, independent of the order of its fields."""
    return _digest_of_text(msgspec.json.encode(manifest))


@lru_cache(maxsize=1024)
def _digest_of_text(manifest: bytes) -> str:
    """Digest of a text; cached, since each reconcile asks for the same few manifests of about 3 KB.

    Digests are stored in annotations and in names of Jobs, so the text that is hashed must never change.
    """
    text = json.dumps(json.loads(manifest), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
