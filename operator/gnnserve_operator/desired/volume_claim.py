"""The claim that keeps revisions where the user names none: deleted with what it was made for, or retained."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.spec.repository import RepositoryClaim, RepositoryPlace
from gnnserve_operator.desired.metadata import (
    BRING_BACK_ANNOTATION,
    Component,
    Parent,
    child_metadata,
    fields_to_bring_back,
)
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
