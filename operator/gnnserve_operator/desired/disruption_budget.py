"""How many workers a node drain may take at once."""

from __future__ import annotations

from gnnserve_operator.desired.labels import Component, selector_for
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata
from gnnserve_operator.desired.names import worker_name


def build_disruption_budget(parent: Parent) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(parent, worker_name(parent.name), Component.WORKER),
        "spec": {
            # Not minAvailable: with one replica that would block every drain.
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector_for(parent.name, Component.WORKER)},
            # A worker that cannot become ready must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
