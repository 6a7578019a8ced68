"""Time until a service quotes the API server about a Job whose pod a quota refuses, beside a fleet at rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.cluster.harness.client import wait_for

from benchmarks.clusters.fleet_services import service
from benchmarks.clusters.kubernetes_api import KubernetesApi, Manifest
from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR
from gnnserve_operator.kinds import GNNSERVICE, JOB

QUOTA, NAMESPACE = "no-pods", "fleet-quota"
SENTENCE = f"is forbidden: exceeded quota: {QUOTA}, requested: pods=1, used: pods=0, limited: pods=0"
TRIES = 5
_PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.02


def measure_quota(api: KubernetesApi) -> dict[str, Any]:
    """Create services one after another where no pod is allowed, and measure from each to the API server's sentence in
    its condition Stalled. None of them is left."""
    api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    identity: Manifest = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}}
    api.call("POST", quotas, {**identity, "spec": {"hard": {"pods": "0"}}})
    # Until then the API server knows no limit, and says so in another sentence.
    wait_for("the quota to count", lambda: "used" in api.call("GET", f"{quotas}/{QUOTA}").get("status", {}), 60)
    told_s = [_measure_one(api, f"refused-{number}") for number in range(TRIES)]
    wait_for("their children to go", lambda: not api.count(JOB.path(NAMESPACE), CHILDREN_SELECTOR), _PATIENCE_S)
    return {"quota": {"told_after_s": told_s, "sentence": SENTENCE}}


def _measure_one(api: KubernetesApi, name: str) -> float:
    path = GNNSERVICE.path(NAMESPACE, name)
    began = time.monotonic()
    api.call("POST", GNNSERVICE.path(NAMESPACE), service(name, NAMESPACE))
    wait_for("the refusal to be told", lambda: SENTENCE in _stalled(api.call("GET", path)), _PATIENCE_S, _LOOK_EVERY_S)
    took_s = round(time.monotonic() - began, 2)
    api.call("DELETE", path)
    return took_s


def _stalled(found: Mapping[str, Any]) -> str:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next(
        (str(told["message"]) for told in conditions if (told["type"], told["status"]) == ("Stalled", "True")), ""
    )
