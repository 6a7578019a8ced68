"""The owner of a live object, the GNNService or GNNWorkerPool that it belongs to, and the fields that the operator
declared itself.

An owner reference binds an object to its owner: Kubernetes deletes the one with the other. A claim that is to stay has
none. It names the uid of its owner in a label instead, which deletes nothing, so that the operator knows its own claim
and never takes that of an earlier service of the same name for it.

A Job may be suspended by the operator, by a queue of the cluster or by a person, and its queue may be named by its
GNNService or by the queue's own webhook. `managedFields` tell who declared what. They are most of an object's text, so
the index keeps of them the two answers that are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnnserve_operator.desired.metadata import (
    BRING_BACK_ANNOTATION,
    FIELD_MANAGER,
    OWNER_UID,
    POOL,
    QUEUE_PREFIX,
    SERVICE,
    fields_to_bring_back,
)
from gnnserve_operator.kinds import CLAIM, GNNSERVICE, GNNWORKERPOOL, JOB, Manifest, ObjectRef, Raw, controller_of


@dataclass(frozen=True, slots=True)
class Owner:
    kind: str
    name: str
    uid: str
    is_bound: bool = True
    """Whether the object is deleted with its owner; False: it is retained."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object that has a child's name, and is not controlled by this GNNService."""

    ref: ObjectRef
    owner: str | None = None
    """Controller of the object, as `Kind name`; None: it has none."""
    to_bring_back: str = ""
    """Fields by which an owner that is made again goes on with a claim that an earlier one of its name left; empty: it
    is no such claim."""
    owner_uid: str = ""
    """uid of that earlier one."""


def owner_of(raw: Raw) -> Owner | None:
    """The owner of a live object; None: it has none that controls it."""
    controller = controller_of(raw)
    if controller is not None:
        return Owner(str(controller.get("kind")), str(controller.get("name")), str(controller.get("uid")))
    labels = raw.get("metadata", {}).get("labels") or {}
    uid = labels.get(OWNER_UID)
    if raw.get("kind") != CLAIM.name or not uid:
        return None
    if POOL in labels:
        return Owner(GNNWORKERPOOL.name, labels[POOL], uid, is_bound=False)
    return Owner(GNNSERVICE.name, labels.get(SERVICE, ""), uid, is_bound=False)


def bound_to(raw: Raw) -> tuple[Owner, ...]:
    """The objects with which Kubernetes deletes a live object, when the last of them goes."""
    references = raw.get("metadata", {}).get("ownerReferences") or ()
    return tuple(Owner(str(ref.get("kind")), str(ref.get("name")), str(ref.get("uid"))) for ref in references)


def belongs_to(raw: Raw, uid: str) -> bool:
    """Whether the live object belongs to the GNNService or GNNWorkerPool of that uid."""
    owner = owner_of(raw)
    return owner is not None and owner.uid == uid


def observed_conflict(ref: ObjectRef, raw: Raw, uid: str, *, is_retained: bool = False) -> Conflict | None:
    """The conflict, or None where the live object `raw` belongs to the GNNService with that uid. `is_retained`: it is a
    claim that an earlier one of that name left."""
    owner = owner_of(raw)
    if owner is None:
        return Conflict(ref)
    if owner.uid == uid:
        return None
    if not is_retained:
        return Conflict(ref, str(owner))
    annotations = raw.get("metadata", {}).get("annotations") or {}
    told = str(annotations.get(BRING_BACK_ANNOTATION) or fields_to_bring_back(ref.name, ""))
    return Conflict(ref, str(owner), told, owner.uid)


def needed_managed_fields(body: Raw) -> list[Manifest]:
    """The part of `managedFields` that decisions need: the operator's own entry of a Job, without all other fields."""
    if (body.get("apiVersion"), body.get("kind")) != (JOB.api_version, JOB.name):
        return []
    fields: dict[str, Any] = {}
    if declares_suspend(body):
        fields["f:spec"] = {"f:suspend": {}}
    if labels := declared_queue_labels(body):
        fields["f:metadata"] = {"f:labels": {f"f:{name}": {} for name in labels}}
    return [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}] if fields else []


def declares_suspend(body: Raw) -> bool:
    """Whether the operator's last apply said that the Job is to be suspended."""
    return "f:suspend" in (_declared(body).get("f:spec") or {}) and bool((body.get("spec") or {}).get("suspend"))


def declared_queue_labels(body: Raw) -> dict[str, str]:
    """Labels of a queue that the operator's last apply gave the Job, as they are now."""
    names = (_declared(body).get("f:metadata") or {}).get("f:labels") or {}
    labels = body.get("metadata", {}).get("labels") or {}
    return {
        name: value for name, value in sorted(labels.items()) if name.startswith(QUEUE_PREFIX) and f"f:{name}" in names
    }


def _declared(body: Raw) -> Manifest:
    entries = body.get("metadata", {}).get("managedFields") or ()
    ours = (FIELD_MANAGER, "Apply")
    return next((dict(e.get("fieldsV1") or {}) for e in entries if (e.get("manager"), e.get("operation")) == ours), {})
