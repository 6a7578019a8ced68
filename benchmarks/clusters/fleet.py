"""100 and 500 GNNServices at rest in every state, and one operator: what does it ask of the API server, and in how
much memory?

On an API server without nodes (etcd, kube-apiserver, kube-controller-manager), with the operator as a process that has
the rights and the settings of the chart, but for a resync twice as often. A stand-in for the nodes ends Jobs and
answers as workers. Services run, are suspended, are suspended before their first revision, are scaled to zero, or have
failed (`fleet_states.py`). Beside them services come where a quota allows no pod (`fleet_quota.py`). What the operator
asks of the API server is counted by the API server's own audit log, watches included; a read of one object is counted
for the state of its service.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.helm import render

from benchmarks.clusters.fleet_process import RELEASE, SYSTEM_NAMESPACE, Audit, Operator, writes_in
from benchmarks.clusters.fleet_quota import measure_quota
from benchmarks.clusters.fleet_rest import STILL_S, ResyncFinder, find_changes
from benchmarks.clusters.fleet_services import NAMESPACES, Fleet
from benchmarks.clusters.fleet_states import FAILED, STATES, state_by_name
from benchmarks.clusters.kubernetes_api import KubernetesApi
from benchmarks.clusters.stand_in_kubelet import StandInKubelet
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, given
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.health import CHECK_EVERY_S

_TRIES = 8
_LABELS_UNTIL, _NO_RESYNC_UNTIL = 0.7, 0.9
"""Shares of the time from one resync to the next: until when labels are given, and until when the next one has not
begun."""
_LAST_LISTED = WATCHED_CHILDREN[-1].plural
"""Resource that the operator lists last in a round of its check of watches."""
_MOST_SHOWN = 20
"""Writes at rest that the result tells of."""
QUIET_S = 5.0
"""Seconds without a write after which everything has settled."""
WANTED_RSS_MB = 200
WANTED_QUOTED_S = 3.0
"""Seconds from the creation of a service."""
WANTED_CALLS_A_MINUTE = 75
"""Calls a minute of an operator whose services rest, as docs/operator.md promises them, and a tenth for lists and
renewals at the edges of what was measured."""


@dataclass(frozen=True, slots=True)
class Extent:
    sizes: tuple[int, ...]
    """Numbers of services that are measured at rest."""
    resync_s: int
    idle_rounds: int
    """Rounds of the operator's check of its watches, a half minute each, for which services are watched at rest."""
    patience_s: float


FULL = Extent((100, 500), 30, 4, 600.0)  # two minutes: as long as a watch, so that each is opened again once
QUICK = Extent((10, 20), 10, 1, 120.0)


def run_all(run: Run) -> dict[str, Any]:
    return measure_fleet(QUICK if run.quick else FULL)


def measure_fleet(extent: Extent) -> dict[str, Any]:
    """Start an API server and an operator, and measure fleets of those sizes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gnnserve-fleet-")))
        audit = Audit(folder)
        cluster = stack.enter_context(running_api_server(controllers=True, api_server_flags=audit.flags()))
        fleet = Fleet(KubernetesApi(cluster.kubeconfig))
        settings = {**install(cluster, fleet.api, folder), "resyncSeconds": extent.resync_s}
        nodes = StandInKubelet(fleet.api, lambda service: state_by_name(service) is FAILED)
        operator = Operator(cluster, folder, settings, nodes.workers_url, audit)
        stack.enter_context(operator.running())
        nodes.start()
        return {
            "services": extent.sizes[-1], "namespaces": len(NAMESPACES), "resync_seconds": extent.resync_s,
            **measure(fleet, operator, audit, extent),
        }  # fmt: skip


def measure(fleet: Fleet, operator: Operator, audit: Audit, extent: Extent) -> dict[str, Any]:
    empty_mb = operator.memory_mb()
    fleet.watch()
    grown, idle = {}, {}
    for size in extent.sizes:
        grow = partial(fleet.grow, size, extent.patience_s)
        grown[str(size)] = watched(operator, audit, grow, fleet.is_as_declared, extent)
        idle[str(size)] = measure_idle(operator, audit, fleet, extent)
    labelled = measure_labels(operator, audit, fleet, extent)
    quota = measure_quota(fleet.api)
    changed = watched(operator, audit, fleet.change, fleet.is_as_declared, extent)
    restarted = measure_restart(operator, audit, extent)
    deleted = watched(operator, audit, fleet.delete, fleet.is_gone, extent)
    parts = (*grown.values(), *idle.values(), changed, restarted, deleted)
    return {
        "memory_empty_mb": empty_mb,
        "children": sum(fleet.children().values()),
        "grow": grown,
        "idle": idle,
        "labels": labelled,
        **quota,
        "change": changed,
        "restart": restarted,
        "delete": deleted,
        "memory_peak_mb": max(part["memory_peak_mb"] for part in parts),
    }


def verdicts_of(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure: what was wanted, what was measured, and whether that meets it."""
    idle, labels = found["idle"], found["labels"]
    smallest, largest = min(idle, key=int), max(idle, key=int)
    reads = Counter[str]()
    for part in idle.values():
        reads.update(part["reads_by_state"])
    words = {state.name: state.words for state in STATES}
    of_states = ", ".join(f"{count} that are {words.get(name, name)}" for name, count in reads.items() if count)
    verdicts = {
        "reads about services at rest": {
            "wanted": "0, in whichever state they are",
            "measured": of_states or "0",
            "passed": not reads.total(),
        }
    }
    for size, part in idle.items():
        verdicts[f"calls a minute, {size} services at rest"] = _at_most(
            WANTED_CALLS_A_MINUTE, part["requests_per_minute"]
        )
    more = round(idle[largest]["requests_per_minute"] / idle[smallest]["requests_per_minute"], 2)
    verdicts[f"calls of {largest} services over those of {smallest}"] = _at_most(1.1, more)
    verdicts["writes while all services rest"] = _at_most(0, sum(part["writes"] for part in idle.values()))
    verdicts["reconciles for labels and annotations of services"] = _at_most(0, labels["reconciles"])
    verdicts["writes of a restarted operator"] = _at_most(0, found["restart"]["writes"])
    verdicts[f"memory of the operator, {largest} services, at most, MB"] = _at_most(
        WANTED_RSS_MB, found["memory_peak_mb"]
    )
    if "quota" in found:  # runs of before had none
        verdicts["a quota's refusal of a Job's pod, quoted by its service after, at most, s"] = _at_most(
            WANTED_QUOTED_S, max(found["quota"]["told_after_s"])
        )
    return verdicts


def _at_most(wanted: float, measured: float) -> dict[str, Any]:
    return {"wanted": f"at most {wanted:g}" if wanted else "0", "measured": measured, "passed": measured <= wanted}


def install(cluster: Cluster, api: KubernetesApi, folder: Path) -> dict[str, Any]:
    """The chart without its Deployment, whose process is ours; returns the settings that it would have had."""
    for name in (SYSTEM_NAMESPACE, *NAMESPACES):
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


def measure_idle(operator: Operator, audit: Audit, fleet: Fleet, extent: Extent) -> dict[str, Any]:
    """Measure from the end of a round of lists to the end of another, so that no part of one is counted."""
    await_lists(audit, 1)
    operator.forget_peak()
    mark, own, reconciles, before = audit.mark(), operator.requests(), operator.reconciles(), fleet.conditions()
    processor_s, began = operator.processor_s(), time.monotonic()
    await_lists(audit, extent.idle_rounds)
    took_s, counted, read = time.monotonic() - began, audit.since(mark), audit.reads_by_name(mark)
    by_state: Counter[str] = Counter()
    for name, number in read.items():
        if (state := state_by_name(name)) is not None:
            by_state[state.name] += number
    found = {
        "services": fleet.size,
        "seconds": round(took_s),
        "requests": counted.total(),
        "requests_per_minute": round(counted.total() / (took_s / 60), 1),
        "requests_own_count": operator.requests() - own,
        "reads_by_state": dict(by_state),
        "writes": writes_in(counted),
        "statuses_written": find_changes(before, audit.statuses(mark))[:_MOST_SHOWN],
        "requests_by_kind": _by_kind(counted),
        "reconciles": (operator.reconciles() - reconciles).total(),
        "processor_share": round((operator.processor_s() - processor_s) / took_s, 3),
        "memory_peak_mb": operator.peak_mb(),
        "memory_after_mb": operator.memory_mb(),
    }
    print(json.dumps(found), flush=True)
    return found


def await_lists(audit: Audit, rounds: int) -> None:
    """Wait for the end of so many rounds in which the operator lists all that it watches."""
    mark, last = audit.mark(), ("list", _LAST_LISTED)
    wait_for("rounds of lists", lambda: audit.since(mark)[last] >= rounds, (rounds + 1) * 2 * CHECK_EVERY_S, 0.05)


def measure_labels(operator: Operator, audit: Audit, fleet: Fleet, extent: Extent) -> dict[str, Any]:
    """Measure the calls and reconciles that changes of labels and annotations of services cause.

    Between the end of a resync and the next one, so that no reconcile is one of these; once more where the machine was
    so busy that the next resync may have begun meanwhile. Raises HarnessError where there was never time."""
    for _ in range(_TRIES):
        found, until_s = _label_between_resyncs(operator, audit, fleet, extent)
        if found["changes"] and until_s < _NO_RESYNC_UNTIL * extent.resync_s:
            print(json.dumps(found), flush=True)
            return found
    raise HarnessError(f"a resync takes nearly all of {extent.resync_s} s here: no time is left to change labels in")


def _label_between_resyncs(
    operator: Operator, audit: Audit, fleet: Fleet, extent: Extent
) -> tuple[dict[str, Any], float]:
    """Return the findings, and when they ended, in seconds since the resync before began."""
    resyncs = ResyncFinder(fleet.size)
    resynced_at = wait_for(
        "the end of a resync",
        lambda: resyncs.note(time.monotonic(), operator.reconciles().total()),
        extent.patience_s,
        every_s=0.1,
    )
    mark, reconciles, processor_s = audit.mark(), operator.reconciles(), operator.processor_s()
    began = time.monotonic()
    changes = fleet.label(until=resynced_at + _LABELS_UNTIL * extent.resync_s)
    acted_s = time.monotonic() - began
    time.sleep(STILL_S)
    counted, read = audit.since(mark), audit.reads_by_name(mark)
    reconciled, until_s = operator.reconciles() - reconciles, time.monotonic() - resynced_at
    used_ms = 1000 * (operator.processor_s() - processor_s)
    found = {
        "changes": changes,
        "acted_s": round(acted_s, 1),
        "reconciles": reconciled.total(),
        "reads_of_objects": sum(number for name, number in read.items() if state_by_name(name) is not None),
        "writes": writes_in(counted),
        "processor_ms_per_change": round(used_ms / max(changes, 1), 2),
    }
    return found, until_s


def measure_restart(operator: Operator, audit: Audit, extent: Extent) -> dict[str, Any]:
    operator.stop()
    mark, began = audit.mark(), time.monotonic()
    operator.start()
    ready_s = time.monotonic() - began
    wait_for(
        "every service to be looked at",
        lambda: operator.reconciles().total() >= extent.sizes[-1],
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
    table = Table(f"{result['services']} GNNServices, {result['children']:,} children", "measured")
    for size, part in result["grow"].items():
        table.add_row(f"{size} services: created, every one in its state", _words_of(part))
    for name, what in (("change", "all objectives changed"), ("delete", "all deleted: no child left")):
        table.add_row(what, _words_of(result[name]))
    restart, labels = result["restart"], result["labels"]
    table.add_row(
        "operator restarted: ready, all looked at", f"{restart['ready_s']:.1f} s, {restart['all_looked_at_s']:.1f} s"
    )  # fmt: skip
    table.add_row("a label or an annotation", f"{labels['processor_ms_per_change']:.2f} ms of a processor")
    if "quota" in result:
        told = ", ".join(f"{seconds:.2f}" for seconds in result["quota"]["told_after_s"])
        table.add_row("a quota's refusal is quoted after", f"{told} s")
    for size, part in result["idle"].items():
        said = f"{part['processor_share']:.1%} of a core, {part['memory_after_mb']} MB"
        table.add_row(f"{size} services at rest", said)
    Console().print(table)


def _words_of(part: Mapping[str, Any]) -> str:
    return f"{part['converged_s']:.1f} s, {part['reconciles_per_s']:.0f} reconciles/s, {part['writes']:,} writes"


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    # Runs of before counted services at rest in one number.
    return given(verdicts_of(found), _REASONS) if "labels" in found else ()


_REASONS = {
    "writes while": "the result's `statuses_written` has the conditions that turned",
}
"""Why figures may be missed, by words of their names."""

BENCHMARK = Benchmark(
    "fleet",
    (Part("all", run_all, ("gnnserve_operator.__main__",), ("charts/gnnserve",)),),
    verdicts,
    about=__doc__,
    show=show,
)

if __name__ == "__main__":
    main(BENCHMARK)
