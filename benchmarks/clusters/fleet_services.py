"""The services of a fleet: created, brought to their states, labelled, changed and deleted, many at a time."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tests.cluster.harness.client import wait_for

from benchmarks.clusters.fleet_states import state_of
from benchmarks.clusters.kubernetes_api import MERGE_PATCH, KubernetesApi, Manifest
from benchmarks.clusters.stand_in_kubelet import until_it_is_gone
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR
from gnnserve_operator.kinds import GNNSERVICE, ResourceKind

NAMESPACES = tuple(f"fleet-{number}" for number in range(10))
AT_ONCE = 8
LATENCY_MS = 50


def namespace_of(number: int) -> str:
    # Ten services in a row have all states, and so has every namespace.
    return NAMESPACES[number // 10 % len(NAMESPACES)]


@dataclass(slots=True)
class Fleet:
    api: KubernetesApi
    size: int = 0
    _labels: int = 0
    _latency_ms: int = LATENCY_MS
    _seen: dict[str, Manifest] = field(default_factory=dict)
    """Objects by name, as a watch tells them, since listing them over and over would keep the API server busier than
    the operator does."""

    def watch(self) -> None:
        """Watches as long as there is an API server."""

        def follow() -> None:
            for found in self.api.follow(GNNSERVICE.path(None)):
                self._seen[found["metadata"]["name"]] = found

        threading.Thread(target=until_it_is_gone, args=(follow,), daemon=True).start()

    def grow(self, size: int, patience_s: float) -> None:
        """Create services up to that number, and bring each to its state."""
        new = range(self.size, size)
        self._each(new, self._create)
        self.size = size
        later = [number for number in new if state_of(number).later]
        wait_for("services to answer", lambda: all(map(self._is_ready, later)), patience_s, every_s=0.5)
        self._each(later, lambda number: self._patch(number, {"spec": state_of(number).later}))

    def label(self, until: float) -> int:
        """Give every service a label and then an annotation, as a tool for deployments does; returns the number of
        changes. None begins after that time."""
        self._labels += 1
        changes = 0

        def add(number: int, metadata: Manifest) -> None:
            nonlocal changes
            if time.monotonic() < until:
                self._patch(number, {"metadata": metadata})
                changes += 1

        for field_name in ("labels", "annotations"):
            metadata = {field_name: {"fleet.example/change": str(self._labels)}}
            self._each(range(self.size), partial(add, metadata=metadata))
        return changes

    def change(self) -> None:
        """Give every service another objective."""
        self._latency_ms += 1
        objective = {"latencyMs": self._latency_ms}
        self._each(range(self.size), lambda number: self._patch(number, {"spec": {"objective": objective}}))

    def delete(self) -> None:
        for namespace in NAMESPACES:
            self.api.call("DELETE", GNNSERVICE.path(namespace))

    def children(self) -> Counter[str]:
        """Children of all services by kind, and the pods that controllers make of them."""
        return sum((Counter(state_of(number).children) for number in range(self.size)), Counter[str]())

    def is_as_declared(self) -> bool:
        """Every service is in its state and its status of its generation, and there are all children and no others."""
        children = self.children()
        return all(map(self._is_at_rest, range(self.size))) and all(
            self._count(kind) == children[kind.name] for kind in WATCHED_CHILDREN
        )

    def conditions(self) -> dict[str, dict[str, Manifest]]:
        """Conditions of each service by type."""
        return {name: _conditions(found) for name, found in self._seen.items()}

    def is_gone(self) -> bool:
        return not self.api.count(GNNSERVICE.path(None)) and not any(map(self._count, WATCHED_CHILDREN))

    def _is_at_rest(self, number: int) -> bool:
        service, state = self._seen.get(_name(number)), state_of(number)
        if (
            service is None
            or service["spec"]["objective"]["latencyMs"] != self._latency_ms
            or any(service["spec"].get(name) != value for name, value in state.later.items())
        ):
            return False
        generation, conditions = service["metadata"]["generation"], _conditions(service)
        seen = (service.get("status") or {}).get("observedGeneration")
        is_said = all(found["observedGeneration"] == generation for found in conditions.values())
        return seen == generation and is_said and state.is_reached(conditions)

    def _is_ready(self, number: int) -> bool:
        service = self._seen.get(_name(number))
        return service is not None and _conditions(service).get("Ready", {}).get("status") == "True"

    def _count(self, kind: ResourceKind) -> int:
        return self.api.count(kind.path(None), CHILDREN_SELECTOR)

    def _each(self, numbers: Iterable[int], act: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(act, number) for number in numbers]:
                done.result()

    def _create(self, number: int) -> None:
        namespace, state = namespace_of(number), state_of(number)
        manifest = service(_name(number), namespace, seed=number, fields=state.spec)
        self.api.call("POST", GNNSERVICE.path(namespace), manifest)

    def _patch(self, number: int, patch: Manifest) -> None:
        self.api.call("PATCH", GNNSERVICE.path(namespace_of(number), _name(number)), patch, MERGE_PATCH)


def _name(number: int) -> str:
    return f"{state_of(number).name}-{number:04}"


def _conditions(service: Manifest) -> dict[str, Manifest]:
    return {found["type"]: found for found in (service.get("status") or {}).get("conditions") or ()}


def service(name: str, namespace: str, *, seed: int = 0, fields: Manifest | None = None) -> Manifest:
    """A service as people write it: with comments' worth of settings, and kubectl's annotation of what was applied.
    `fields`: of the spec, beside or in place of these."""
    beside = fields or {}
    worker = {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}}
    manifest = {
        "apiVersion": GNNSERVICE.api_version,
        "kind": GNNSERVICE.name,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"hidden": 64, "fanouts": [10, 5], "training": {"seed": seed}},
            "variants": {"pruning": {"factors": [1, 2]}, "projection": "Disabled"},
            "objective": {"latencyMs": LATENCY_MS},
            **beside,
            "worker": {**worker, **beside.get("worker", {})},
        },
    }
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": applied}}  # type: ignore[dict-item]
