"""Checks of a chaos run: Ready services answer as declared, and all converges once nothing is disturbed."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tests.cluster.harness.client import wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.services import Service

from benchmarks.chaos.chaos_events import SERVICES, WORKERS
from benchmarks.chaos.chaos_world import CONVERGENCE_LIMIT_S, World, node_of

SETTLED_S, SETTLE_LIMIT_S = 5.0, 60.0
WRITES = {"apply", "create", "delete", "update"}
INTERVAL_S = 5
"""spec.routing.intervalSeconds."""
ROUTING_UPDATE = "apply ConfigMap"
CHECK_EVERY_S = 1.0


class Checks:
    """Whether a service that says Ready answers with the revision that it declares; a context manager."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.made = 0
        self.violations: list[dict[str, Any]] = []
        self._hosts = {service.name: service.address() for service in world.services}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checks", daemon=True)

    def __enter__(self) -> Checks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_EVERY_S):
            for service in self._world.services:
                # Not answered by the API server or the worker: then nothing is claimed.
                with suppress(HarnessError, OSError, ValueError, KeyError):
                    self._check(service)

    def _check(self, service: Service) -> None:
        before = declared(service)
        if before is None:
            return
        answered = [revision_at(self._hosts[service.name]) for _ in range(WORKERS)]
        after = declared(service)
        if before != after:
            return  # it changed meanwhile: either may be right
        self.made += len(answered)
        self.violations += [
            {
                "service": service.name,
                "cause": "Ready=True, and another revision answers",
                "declared": before[1],
                "answered": revision,
                "at_s": self._world.since(time.monotonic()),
            }
            for revision in answered
            if revision != before[1]
        ]


def declared(service: Service) -> tuple[int, str] | None:
    """Generation and revision, where Ready=True is said of the spec as it is now."""
    found = service.namespace.get(f"gnns/{service.name}", "--request-timeout=3s")
    generation, status = found["metadata"]["generation"], found.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True" or ready["observedGeneration"] != generation:
        return None
    return generation, status["revision"]


def revision_at(host: str) -> str:
    with urllib.request.urlopen(f"http://{host}/v1/route", timeout=3) as answer:
        return str(json.loads(answer.read())["revision"])


def await_convergence(world: World, since_s: float) -> float | None:
    """Seconds until all is as declared, with every component ready; None: not within the limit."""
    node = node_of(world.cluster)

    def has_converged() -> bool:
        with suppress(HarnessError, OSError, ValueError, KeyError):
            return (
                all(state.startswith("ready") for state in node.status().values())
                and all(
                    (found := declared(service)) is not None
                    and service.status()["workers"]["ready"] == f"{WORKERS}/{WORKERS}"
                    and all(revision_at(service.address()) == found[1] for _ in range(WORKERS))
                    for service in (*world.services, world.living.service)
                )
                and all(_is_ready(pod) for pod in world.operator.namespace.items("pods"))
            )
        return False

    try:
        wait_for("everything to converge", has_converged, CONVERGENCE_LIMIT_S, every_s=0.5)
    except HarnessError as late:
        print(late)
        return None
    return round(time.monotonic() - since_s, 1)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def most_routing_updates(seconds: float) -> float:
    """Costs that are measured anew each interval may be published each interval, where they differ by over 10 %."""
    return len(SERVICES) * (seconds / INTERVAL_S + 1)


def count_writes(world: World, seconds: float) -> dict[str, int]:
    """What the operator writes once it has settled, or because it does not, by its own count."""

    def settled() -> Counter[str] | None:
        before = writes_so_far(world.operator)
        time.sleep(SETTLED_S)
        since = writes_so_far(world.operator) - before
        return None if set(since) - {ROUTING_UPDATE} else before

    try:
        before = wait_for("the operator to write nothing more", settled, SETTLE_LIMIT_S)
    except HarnessError as never:
        print(never)
        before = writes_so_far(world.operator)
    time.sleep(seconds)
    return dict(writes_so_far(world.operator) - before)


def writes_so_far(operator: Installation) -> Counter[str]:
    """Writes by verb and kind. A Lease is renewed all the time, and says nothing."""
    counted: Counter[str] = Counter()
    for line in operator.metrics().splitlines():
        if line.startswith("gnnserve_operator_api_requests_total{"):
            labels, _, value = line.rpartition(" ")
            verb, kind = (labels.partition(f'{name}="')[2].partition('"')[0] for name in ("verb", "kind"))
            if verb in WRITES and kind != "Lease":
                counted[f"{verb} {kind}"] += int(float(value))
    return counted
