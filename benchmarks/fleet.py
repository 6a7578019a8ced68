"""500 GNNServices and one operator: how long until all are as declared, in how much memory, and what does idling cost?

On an API server without nodes (etcd, kube-apiserver, kube-controller-manager), with the operator as a process that has
the rights and the settings of the chart. First no pod runs: everything is made that can be made before a generation Job
ends. Then a stand-in for the nodes ends Jobs and answers as workers, until all are Ready. What the operator asks of the
API server is counted by the API server's own audit log, watches included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.session import running_api_server
from tests.support.helm import render

from benchmarks.fleet_process import RELEASE, SYSTEM_NAMESPACE, Audit, Operator, writes_in
from benchmarks.kubernetes_api import MERGE_PATCH, KubernetesApi, Manifest
from benchmarks.results import write_result
from benchmarks.stand_in_kubelet import StandInKubelet, until_it_is_gone
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR
from gnnserve_operator.kinds import GNNSERVICE, Kind

NAMESPACES = 10
AT_ONCE = 8
QUIET_S = 5.0
"""Seconds without a write after which everything has settled."""
WANTED_RSS_MB, WANTED_REQUESTS = 200, 1.0
BEFORE_GENERATION = {
    "ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "NetworkPolicy": 2, "PersistentVolumeClaim": 1, "Service": 1,
    "Job": 1, "Pod": 1,
}  # fmt: skip
SERVING = {**BEFORE_GENERATION, "ConfigMap": 1, "Deployment": 1, "PodDisruptionBudget": 1, "Pod": 2}
"""Children of one service, and the pods that controllers make of them."""


@dataclass(frozen=True, slots=True)
class Extent:
    services: int
    idle_s: float
    """Several of the operator's resyncs, and some ends of its watches."""
    patience_s: float


FULL = Extent(500, 300.0, 900.0)
QUICK = Extent(40, 15.0, 120.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.services} services: does it work at all?")
    quick = parser.parse_args(arguments).quick
    extent = QUICK if quick else FULL

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gnnserve-fleet-")))
        audit = Audit(folder)
        cluster = stack.enter_context(running_api_server(controllers=True, api_server_flags=audit.flags()))
        fleet = Fleet(KubernetesApi(cluster.kubeconfig), extent)
        settings = install(cluster, fleet.api, folder)
        nodes = StandInKubelet(fleet.api)
        operator = Operator(cluster, folder, settings, nodes.workers_url, audit)
        stack.enter_context(operator.running())
        result = {"services": extent.services, "namespaces": NAMESPACES, **measure(fleet, operator, audit, nodes)}
    show(result)
    write_result("fleet", quick, result)


def measure(fleet: Fleet, operator: Operator, audit: Audit, nodes: StandInKubelet) -> dict[str, Any]:
    extent = fleet.extent
    empty_mb = operator.memory_mb()
    fleet.watch()
    created = watched(operator, audit, fleet.create, lambda: fleet.is_as_declared(BEFORE_GENERATION), extent)
    served = watched(operator, audit, nodes.start, lambda: fleet.is_as_declared(SERVING, ready=True), extent)
    idle = measure_idle(operator, audit, extent)
    changed = watched(operator, audit, fleet.change, lambda: fleet.is_as_declared(SERVING, ready=True), extent)
    restarted = measure_restart(operator, audit, extent)
    deleted = watched(operator, audit, fleet.delete, fleet.is_gone, extent)
    return {
        "memory_empty_mb": empty_mb,
        "children": sum(SERVING.values()) * extent.services,
        "create": created,
        "serve": served,
        "idle": idle,
        "change": changed,
        "restart": restarted,
        "delete": deleted,
        "memory_peak_mb": max(part["memory_peak_mb"] for part in (created, served, idle, changed, restarted, deleted)),
    }


def install(cluster: Cluster, api: KubernetesApi, folder: Path) -> dict[str, Any]:
    """The chart without its Deployment, whose process is ours; returns the settings that it would have had."""
    namespaces = [SYSTEM_NAMESPACE, *(namespace_of(number) for number in range(NAMESPACES))]
    for name in namespaces:
        api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    rendered = [
        found
        # Without a limit: what is measured is the operator, not the length of a queue.
        for found in render({"generation": {"maxConcurrentJobs": 0}}, release=RELEASE, namespace=SYSTEM_NAMESPACE)
        if found["kind"] not in {"Deployment", "Pod"}
    ]
    objects = folder / "objects.json"
    objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}))
    cluster.kubectl("apply", "--server-side", f"--filename={objects}")
    cluster.kubectl("wait", "--for=condition=Established", "crd/gnnservices.gnnserve.dev", "--timeout=60s")
    config = next(found for found in rendered if found["kind"] == "ConfigMap")
    return dict(yaml.safe_load(config["data"]["settings.yaml"]))


def namespace_of(number: int) -> str:
    return f"fleet-{number % NAMESPACES}"


@dataclass(slots=True)
class Fleet:
    api: KubernetesApi
    extent: Extent
    _changes: int = field(default=0)
    _seen: dict[str, Manifest] = field(default_factory=dict)
    """Objects by name, as a watch tells them, since listing them over and over would keep the API server busier than
    the operator does."""

    def watch(self) -> None:
        """Watches as long as there is an API server."""

        def follow() -> None:
            for found in self.api.follow(GNNSERVICE.path(None)):
                self._seen[found["metadata"]["name"]] = found

        threading.Thread(target=until_it_is_gone, args=(follow,), daemon=True).start()

    def create(self) -> None:
        self._each(self._create)

    def change(self) -> None:
        self._changes += 1
        self._each(self._change)

    def delete(self) -> None:
        for number in range(NAMESPACES):
            self.api.call("DELETE", GNNSERVICE.path(namespace_of(number)))

    def is_as_declared(self, children: Mapping[str, int], *, ready: bool = False) -> bool:
        """Every status is of its service's generation, and there are all children and no others."""
        services = list(self._seen.values())
        return (
            len(services) == self.extent.services
            and all(_is_said(service, self._changes, ready=ready) for service in services)
            and all(self._count(kind) == children.get(kind.name, 0) * self.extent.services for kind in WATCHED_CHILDREN)
        )

    def is_gone(self) -> bool:
        return not self.api.count(GNNSERVICE.path(None)) and not any(map(self._count, WATCHED_CHILDREN))

    def _count(self, kind: Kind) -> int:
        return self.api.count(kind.path(None), CHILDREN_SELECTOR)

    def _each(self, act: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(act, number) for number in range(self.extent.services)]:
                done.result()

    def _create(self, number: int) -> None:
        self.api.call("POST", GNNSERVICE.path(namespace_of(number)), _service(number))

    def _change(self, number: int) -> None:
        path = GNNSERVICE.path(namespace_of(number), _name(number))
        self.api.call("PATCH", path, {"spec": {"objective": {"latencyMs": _latency_ms(self._changes)}}}, MERGE_PATCH)


def _latency_ms(changes: int) -> int:
    return 50 + changes


def _name(number: int) -> str:
    return f"gnn-{number:04}"


def _service(number: int) -> Manifest:
    """A service as people write it: with comments' worth of settings, and kubectl's annotation of what was applied."""
    manifest = {
        "apiVersion": GNNSERVICE.api_version,
        "kind": GNNSERVICE.name,
        "metadata": {"name": _name(number), "namespace": namespace_of(number)},
        "spec": {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"hidden": 64, "fanouts": [10, 5], "training": {"seed": number}},
            "variants": {"pruning": {"factors": [1, 2]}, "projection": "Disabled"},
            "objective": {"latencyMs": _latency_ms(0)},
            "worker": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}},
        },
    }
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": applied}}  # type: ignore[dict-item]


def _is_said(service: Manifest, changes: int, *, ready: bool) -> bool:
    generation, status = service["metadata"]["generation"], service.get("status") or {}
    conditions = {found["type"]: found for found in status.get("conditions") or ()}
    is_ready = conditions.get("Ready", {}).get("status") == "True"
    return (
        service["spec"]["objective"]["latencyMs"] == _latency_ms(changes)
        and status.get("observedGeneration") == generation
        and all(found["observedGeneration"] == generation for found in conditions.values())
        and (is_ready or not ready)
    )


# Measuring


def watched(
    operator: Operator, audit: Audit, act: Callable[[], None], done: Callable[[], bool], extent: Extent
) -> dict[str, Any]:
    """Watches from the beginning of `act` until `done`, and what it took; then nothing, until all is quiet."""
    operator.forget_peak()
    mark, before, processor_s, began = audit.mark(), operator.reconciles(), operator.processor_s(), time.monotonic()
    act()
    acted_s = time.monotonic() - began
    wait_for("the fleet to be as declared", done, extent.patience_s, every_s=0.5)
    took_s = time.monotonic() - began
    reconciles, used_s = operator.reconciles() - before, operator.processor_s() - processor_s
    settled_s = settle(audit, extent)
    counted = audit.since(mark)
    found = {
        "acted_s": round(acted_s, 1),
        "converged_s": round(took_s, 1),
        "settled_after_s": round(settled_s, 1),
        "reconciles": reconciles.total(),
        "reconciles_by_result": dict(reconciles),
        "reconciles_per_s": round(reconciles.total() / took_s, 1),
        "processor_share": round(used_s / took_s, 2),
    } | _asked_and_held(counted, operator)
    print(json.dumps(found), flush=True)
    return found


def settle(audit: Audit, extent: Extent) -> float:
    """Waits until the operator has written nothing for a while; returns how long that took, without the while."""
    began, quiet_since, mark = time.monotonic(), time.monotonic(), audit.mark()

    def is_quiet() -> bool:
        nonlocal quiet_since, mark
        now_at = audit.mark()
        if writes_in(audit.since(mark)):
            quiet_since = time.monotonic()
        mark = now_at
        return time.monotonic() - quiet_since >= QUIET_S

    wait_for("the operator to write nothing more", is_quiet, extent.patience_s, every_s=0.5)
    return quiet_since - began


def measure_idle(operator: Operator, audit: Audit, extent: Extent) -> dict[str, Any]:
    operator.forget_peak()
    mark, own, reconciles = audit.mark(), operator.requests(), operator.reconciles()
    processor_s, began = operator.processor_s(), time.monotonic()
    time.sleep(extent.idle_s)
    took_s, counted = time.monotonic() - began, audit.since(mark)
    per_object_minute = counted.total() / extent.services / (took_s / 60)
    found = {
        "seconds": round(took_s),
        "requests": counted.total(),
        "requests_own_count": operator.requests() - own,
        "requests_per_object_minute": round(per_object_minute, 3),
        "writes": writes_in(counted),
        "requests_by_kind": _by_kind(counted),
        "reconciles": (operator.reconciles() - reconciles).total(),
        "processor_share": round((operator.processor_s() - processor_s) / took_s, 3),
        "memory_peak_mb": operator.peak_mb(),
        "memory_after_mb": operator.memory_mb(),
    }
    print(json.dumps(found), flush=True)
    return found


def measure_restart(operator: Operator, audit: Audit, extent: Extent) -> dict[str, Any]:
    operator.stop()
    mark, began = audit.mark(), time.monotonic()
    operator.start()
    ready_s = time.monotonic() - began
    wait_for(
        "every service to be looked at",
        lambda: operator.reconciles().total() >= extent.services,
        extent.patience_s,
        every_s=0.1,
    )
    looked_s = time.monotonic() - began
    settle(audit, extent)
    counted = audit.since(mark)
    found = {
        "ready_s": round(ready_s, 1),
        "all_looked_at_s": round(looked_s, 1),
    } | _asked_and_held(counted, operator)
    print(json.dumps(found), flush=True)
    return found


def _asked_and_held(counted: Counter[tuple[str, str]], operator: Operator) -> dict[str, Any]:
    return {
        "requests": counted.total(),
        "writes": writes_in(counted),
        "requests_by_kind": _by_kind(counted),
        "memory_peak_mb": operator.peak_mb(),
        "memory_after_mb": operator.memory_mb(),
    }


def _by_kind(counted: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """The most frequent first."""
    ordered = sorted(counted.items(), key=lambda item: -item[1])
    return {f"{verb} {resource}": number for (verb, resource), number in ordered}


def show(result: Mapping[str, Any]) -> None:
    table = Table(f"{result['services']} GNNServices, {result['children']:,} children", "measured", "wanted")
    for name, what in (
        ("create", "created: all children made, every status of its generation"),
        ("serve", "Jobs done and workers up: all Ready"),
        ("change", "all objectives changed: all Ready again"),
        ("delete", "all deleted: no child left"),
    ):
        part = result[name]
        table.add_row(
            what,
            f"{part['converged_s']:.1f} s, {part['reconciles_per_s']:.0f} reconciles/s, {part['writes']:,} writes",
            "",
        )
    restart, idle = result["restart"], result["idle"]
    table.add_row(
        "operator restarted: ready, all looked at",
        f"{restart['ready_s']:.1f} s, {restart['all_looked_at_s']:.1f} s, {restart['writes']} writes",
        "0 writes",
    )
    table.add_row(
        f"idle for {idle['seconds']} s: requests per object and minute",
        f"{idle['requests_per_object_minute']:.2f}, {idle['writes']} writes, {idle['processor_share']:.1%} of a core",
        f"< {WANTED_REQUESTS:g}, 0 writes",
    )
    table.add_row(
        "operator's memory: empty, idle, peak",
        f"{result['memory_empty_mb']} MB, {idle['memory_after_mb']} MB, {result['memory_peak_mb']} MB",
        f"< {WANTED_RSS_MB} MB",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
