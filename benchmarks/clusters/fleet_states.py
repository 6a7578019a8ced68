"""States of rest that the services of a fleet are in, and what there is of each: the fleet is mixed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clusters.kubernetes_api import Manifest

Conditions = Mapping[str, Mapping[str, Any]]
_ALWAYS = {
    "ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "NetworkPolicy": 2, "PersistentVolumeClaim": 1, "Service": 1,
}  # fmt: skip
_GENERATED = {**_ALWAYS, "Job": 1, "Pod": 1}
_DECLARED = {**_GENERATED, "ConfigMap": 1, "Deployment": 1, "PodDisruptionBudget": 1}


def _is_ready(conditions: Conditions) -> bool:
    return conditions.get("Ready", {}).get("status") == "True"


def _is_stalled(conditions: Conditions) -> bool:
    return conditions.get("Stalled", {}).get("status") == "True"


def _says(reason: str) -> Callable[[Conditions], bool]:
    return lambda conditions: conditions.get("Ready", {}).get("reason") == reason


@dataclass(frozen=True, slots=True)
class State:
    name: str
    """First part of the names of its services."""
    words: str
    share: int
    """So many of ten services."""
    children: Mapping[str, int]
    """Children of one service, and the pods that controllers make of them."""
    is_reached: Callable[[Conditions], bool]
    spec: Manifest = field(default_factory=dict)
    """Fields of the spec that are set from the start."""
    later: Manifest = field(default_factory=dict)
    """Fields that are set once the service answers."""


STATES = (
    State("running", "running", 4, {**_DECLARED, "Pod": 2}, _is_ready),
    State("suspended", "suspended", 2, _DECLARED, _says("Suspended"), later={"suspend": True}),
    State("unborn", "suspended before the first revision", 2, _ALWAYS, _says("Suspended"), spec={"suspend": True}),
    State("zero", "scaled to zero", 1, _DECLARED, _says("ScaledToZero"), spec={"worker": {"replicas": 0}}),
    State("failed", "stopped by a failed generation", 1, _GENERATED, _is_stalled),
)
"""The states, which take turns over ten services."""
FAILED = STATES[-1]
_TURNS = tuple(state for state in STATES for _ in range(state.share))


def state_of(number: int) -> State:
    """The state of the service with that number."""
    return _TURNS[number % len(_TURNS)]


def state_by_name(name: str) -> State | None:
    """The state of the service that an object belongs to, by its name; None: it belongs to none."""
    first = name.partition("-")[0]
    return next((state for state in STATES if state.name == first), None)
