"""The claim that keeps revisions where the user names none; deleted with what it was made for."""

from __future__ import annotations

from gnnserve_api.spec.repository import RepositoryClaim, RepositoryPlace
from gnnserve_operator.desired.labels import Component
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata


def build_volume_claim(parent: Parent, repository: RepositoryPlace, name: str, storage: str) -> Manifest | None:
    """`storage`: what to ask for (`decide_claim_storage`)."""
    if repository.claim_name is not None:
        return None
    claim = repository.claim or RepositoryClaim()
    claim_spec: Manifest = {
        "accessModes": [claim.access_mode.value],
        "resources": {"requests": {"storage": storage}},
    }
    if claim.storage_class_name is not None:
        claim_spec["storageClassName"] = claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(parent, name, Component.GENERATION),
        "spec": claim_spec,
    }
