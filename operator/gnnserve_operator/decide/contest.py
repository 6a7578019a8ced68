"""Do an autoscaler and a manifest both set the number of workers?

An autoscaler writes it by the subresource scale. A manifest that has the field, too, sets it back with every apply: by
server-side apply (Flux, Argo CD), whose owner `metadata.managedFields` names, or by `kubectl apply`, which keeps the
manifest in an annotation. After each of their writes the field has one owner, so the last autoscaler is remembered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gnnserve_api.reasons import Reason
from gnnserve_operator.decide.reverts import managers_of
from gnnserve_operator.kinds import GNNWORKERPOOL, Manifest, ServiceKey
from gnnserve_routing.verdict import Verdict

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_GONE_AFTER = timedelta(hours=1)
_PEOPLE = "kubectl"
"""Begin of the manager's name where a person scales, which is done once."""


@dataclass(frozen=True, slots=True)
class ReplicasWriters:
    """The managers that set the number of workers of a GNNService or GNNWorkerPool; empty: none."""

    autoscaler: str = ""
    manifest: str = ""
    """Manager that applies a manifest with the field."""
    scaled_at: str = field(default="", compare=False)
    """When the autoscaler wrote last: RFC 3339 in UTC, which sorts as text. Empty: not known."""

    @property
    def are_two(self) -> bool:
        return bool(self.autoscaler and self.manifest)


NO_WRITERS = ReplicasWriters()


def find_writers(body: Manifest) -> ReplicasWriters:
    path = _path(body["kind"])
    autoscaler = manifest = scaled_at = ""
    for entry in managers_of(body, path):
        name = str(entry.get("manager") or "")
        if entry.get("subresource") == "scale":
            autoscaler = "" if name.startswith(_PEOPLE) else name
            scaled_at = str(entry.get("time") or "") if autoscaler else ""
        elif entry.get("operation") == "Apply":
            manifest = name
    if not manifest and _has(_applied(body), path):
        manifest = "kubectl apply"
    return ReplicasWriters(autoscaler, manifest, scaled_at)


def decide_replicas(owner: ServiceKey, writers: ReplicasWriters, now: datetime) -> Verdict | None:
    """Whether one writer alone sets the number of workers; None: no autoscaler does. Nothing tells that an
    autoscaler is deleted: without a write for an hour, while the manifest has the field, it counts as gone."""
    if not writers.autoscaler:
        return None
    path = ".".join(_path(owner.kind))
    if not writers.manifest:
        return Verdict(True, Reason.REPLICAS_SCALED, f"{path} is set by {writers.autoscaler} alone.")
    if writers.scaled_at and now - datetime.fromisoformat(writers.scaled_at) > _GONE_AFTER:
        words = f"{writers.autoscaler} set {path} at {writers.scaled_at}, and not since: the manifest's value stands."
        return Verdict(True, Reason.REPLICAS_DECLARED, words)
    return Verdict(
        False,
        Reason.REPLICAS_CONTESTED,
        f"{path} of {owner.kind} {owner.name} is set by {writers.autoscaler}, as autoscalers do, and by the manifest "
        f"that {writers.manifest} applies: each undoes what the other did. Take {path} out of the manifest, or delete "
        "the autoscaler.",
    )


def _path(kind: str) -> tuple[str, ...]:
    return ("spec", "replicas") if kind == GNNWORKERPOOL.name else ("spec", "worker", "replicas")


def _applied(body: Manifest) -> Any:
    try:
        return json.loads((body["metadata"].get("annotations") or {}).get(_APPLIED) or "null")
    except ValueError:
        return None


def _has(document: Any, path: tuple[str, ...]) -> bool:
    for step in path:
        if not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    return True
