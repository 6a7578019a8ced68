"""Fields of a live Job that the operator declared itself, where others have a say in the same ones.

A Job may be suspended by the operator, by a queue of the cluster or by a person, and its queue may be named by its
GNNService or by the queue's own webhook. `managedFields` tell who declared what. They are most of an object's text, so
the index keeps of them the two answers that are needed.
"""

from __future__ import annotations

from typing import Any

from gnnserve_operator.desired.labels import FIELD_MANAGER
from gnnserve_operator.desired.queue import QUEUE_PREFIX
from gnnserve_operator.kinds import JOB, Manifest, Raw


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
