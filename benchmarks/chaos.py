"""All that can be killed or paused, at random moments and under load: what do users notice, and does it converge?

On the harness's own node with Prometheus: two GNNServices of two workers each, asked through their Services' addresses.
Events are drawn from a printed seed: processes of the operator, of workers, of Prometheus and of Kubernetes itself are
killed or paused, pods deleted, specs edited. The harness starts again what systemd would on a real node; everything
else has to mend itself. A request may fail only if it was in flight at a worker that was killed; of each other failure
this tells when, why, and which pod its connection led to.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.cluster.harness import components, containers
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.components import Component
from tests.cluster.harness.containers import ContainerProcess
from tests.cluster.harness.diagnosis import diagnose
from tests.cluster.harness.installation import RELEASE, SYSTEM_NAMESPACE, Installation, installed_operator
from tests.cluster.harness.processes import still_runs
from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.cluster.harness.session import running_cluster

from benchmarks.chaos_load import Cause, Failure, Load
from benchmarks.results import write_result

DEFAULT_MINUTES, QUICK_MINUTES = 10.0, 0.5
SERVICES = ("alpha", "beta")
WORKERS = 2
RATE_PER_S = 40.0
GAP_S = (2.0, 8.0)
"""From the beginning of one event to that of the next."""
SCRAPE_S = 5.0
DYING_S = 0.1
"""From the end of a process to when its peer's kernel has told the peer's program of it; on two busy cores."""
CONVERGENCE_LIMIT_S = 300.0
PERSISTENCE_S = 60.0
"""How long an edit or a deletion is tried while the API server is away."""
QUIET_S, QUICK_QUIET_S = 60.0, 10.0
SETTLED_S, SETTLE_LIMIT_S = 5.0, 60.0
WRITES = {"apply", "create", "delete", "update"}
INTERVAL_S = 5
"""spec.routing.intervalSeconds."""
ROUTING_UPDATE = "apply ConfigMap"
CHECK_EVERY_S = 1.0


class Kind(StrEnum):
    OPERATOR_KILLED = "operator killed"
    OPERATOR_PAUSED = "operator paused"
    OPERATOR_DELETED = "operator's pod deleted"
    WORKER_KILLED = "worker killed"
    WORKER_PAUSED = "worker paused"
    WORKER_DELETED = "worker's pod deleted"
    WORKER_FORCED = "worker's pod deleted without grace"
    API_KILLED = "API server killed"
    API_PAUSED = "API server paused"
    ETCD_KILLED = "etcd killed"
    ETCD_PAUSED = "etcd paused"
    KUBELET_KILLED = "kubelet killed"
    KUBELET_PAUSED = "kubelet paused"
    CONTROLLERS_KILLED = "controller-manager killed"
    SCHEDULER_KILLED = "scheduler killed"
    PROXY_KILLED = "kube-proxy killed"
    PROMETHEUS_KILLED = "Prometheus killed"
    PROMETHEUS_PAUSED = "Prometheus paused"
    OBJECTIVE_EDITED = "objective edited"
    REVISION_EDITED = "another revision asked for"


# Kind -> how often, and for how many seconds something is away. A pause of the kubelet stays far below the 50 s after
# which Kubernetes calls a node lost, and one of a worker below what a patient client waits for.
TABLE: Mapping[Kind, tuple[float, float, float]] = {
    Kind.OPERATOR_KILLED: (3, 0, 0),
    Kind.OPERATOR_PAUSED: (2, 3, 25),
    Kind.OPERATOR_DELETED: (1, 0, 0),
    Kind.WORKER_KILLED: (4, 0, 0),
    Kind.WORKER_PAUSED: (2, 0.5, 4),
    Kind.WORKER_DELETED: (2, 0, 0),
    Kind.WORKER_FORCED: (2, 0, 0),
    Kind.API_KILLED: (2, 1, 8),
    Kind.API_PAUSED: (2, 2, 12),
    Kind.ETCD_KILLED: (1, 1, 5),
    Kind.ETCD_PAUSED: (1, 1, 8),
    Kind.KUBELET_KILLED: (2, 1, 12),
    Kind.KUBELET_PAUSED: (1, 2, 12),
    Kind.CONTROLLERS_KILLED: (1, 1, 5),
    Kind.SCHEDULER_KILLED: (1, 1, 5),
    Kind.PROXY_KILLED: (1, 1, 5),
    Kind.PROMETHEUS_KILLED: (2, 0, 0),
    Kind.PROMETHEUS_PAUSED: (1, 3, 20),
    Kind.OBJECTIVE_EDITED: (2, 0, 0),
    Kind.REVISION_EDITED: (1, 0, 0),
}
COMPONENTS: Mapping[Kind, Component] = {
    Kind.API_KILLED: components.API_SERVER,
    Kind.API_PAUSED: components.API_SERVER,
    Kind.ETCD_KILLED: components.ETCD,
    Kind.ETCD_PAUSED: components.ETCD,
    Kind.KUBELET_KILLED: components.KUBELET,
    Kind.KUBELET_PAUSED: components.KUBELET,
    Kind.CONTROLLERS_KILLED: components.CONTROLLER_MANAGER,
    Kind.SCHEDULER_KILLED: components.SCHEDULER,
    Kind.PROXY_KILLED: components.PROXY,
}
PAUSES = {kind for kind in Kind if kind.value.endswith("paused")}
OF_WORKERS = {Kind.WORKER_KILLED, Kind.WORKER_PAUSED, Kind.WORKER_DELETED, Kind.WORKER_FORCED}


@dataclass(frozen=True, slots=True)
class Event:
    """As drawn; what of it is done depends on what is there."""

    after_s: float
    """The event before."""
    kind: Kind
    away_s: float
    service: str
    worker: int
    """Index among the running workers, in the order of their names."""


def draw(seed: int) -> Iterator[Event]:
    """Without end; the same for the same seed."""
    drawn = random.Random(seed)  # noqa: S311 - chaos, not secrets
    kinds, weights = list(TABLE), [often for often, _, _ in TABLE.values()]
    while True:
        after_s = drawn.uniform(*GAP_S)
        (kind,) = drawn.choices(kinds, weights)
        _, shortest_s, longest_s = TABLE[kind]
        yield Event(
            after_s, kind, drawn.uniform(shortest_s, longest_s), drawn.choice(SERVICES), drawn.randrange(WORKERS)
        )


@dataclass(frozen=True, slots=True)
class Kill:
    service: str
    pod: str
    pod_ip: str
    how: Kind
    at_s: float
    gone_at_s: float
    """When the process was seen to be gone; both on `time.monotonic`."""


def was_in_flight(failure: Failure, kills: Sequence[Kill]) -> bool:
    """Sent to a pod before its worker was gone, and not answered since."""
    return failure.cause in {Cause.LOST, Cause.SILENT} and any(
        kill.service == failure.service
        and kill.pod_ip == failure.pod_ip
        and failure.sent_at_s <= kill.gone_at_s + DYING_S
        and failure.failed_at_s >= kill.at_s
        for kill in kills
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute: does it work at all?")
    parser.add_argument("--minutes", type=float, help=f"of events under load; {DEFAULT_MINUTES:g} by default")
    parser.add_argument("--seed", type=int, help="of the events; random by default")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    minutes = options.minutes or (QUICK_MINUTES if options.quick else DEFAULT_MINUTES)
    print(f"seed {seed}, {minutes:g} minutes", flush=True)

    with running_cluster() as cluster, installed_operator(cluster) as operator, prepared(cluster) as services:
        world = World(cluster, operator, services)
        result = measure(world, seed, minutes, QUICK_QUIET_S if options.quick else QUIET_S)
        if result["violations"] or not result["converged"]:
            print(diagnose(world.namespace))
    result = {"seed": seed, "minutes": minutes, **result}
    show(result)
    write_result("chaos", options.quick, result)
    if result["violations"] or not result["converged"]:
        raise SystemExit(1)


@contextmanager
def prepared(cluster: Cluster) -> Iterator[tuple[Service, ...]]:
    if cluster.node is None:
        raise SystemExit("the node's own processes are killed: unset KUBECONFIG")
    namespace = cluster.create_workspace(f"chaos-{uuid.uuid4().hex[:4]}")
    try:
        prometheus = Prometheus(namespace, f"{RELEASE}.{SYSTEM_NAMESPACE}.svc:8080", SCRAPE_S)
        services = tuple(Service(namespace, name) for name in SERVICES)
        for service in services:
            service.apply(
                {
                    **SMALL_SPEC,
                    "worker": {"replicas": WORKERS},
                    "routing": {"intervalSeconds": INTERVAL_S, "prometheus": {"url": prometheus.url}},
                }
            )
        prometheus.install()
        for service in services:
            service.wait_until_ready()
        yield services
    finally:
        namespace.delete()


def measure(world: World, seed: int, minutes: float, quiet_s: float) -> dict[str, Any]:
    checks = Checks(world)
    with ExitStack() as stack:
        loads = [stack.enter_context(Load(service, RATE_PER_S)) for service in world.services]
        stack.enter_context(checks)
        run_events(world, draw(seed), minutes * 60)
        ended_s = time.monotonic()
        converged_s = await_convergence(world, ended_s)
        # Under load still: that it ends is an event too, of which the operator tells.
        writes = None if converged_s is None else count_writes(world, quiet_s)
    updates = 0 if writes is None else writes.pop(ROUTING_UPDATE, 0)
    failures = [failure for load in loads for failure in load.tally.failures]
    in_flight = [failure for failure in failures if was_in_flight(failure, world.kills)]
    others = [failure for failure in failures if failure not in in_flight]
    return {
        "services": len(world.services),
        "workers_each": WORKERS,
        "rate_per_s_each": RATE_PER_S,
        "requests": sum(load.tally.requests for load in loads),
        "answered": sum(load.tally.answered for load in loads),
        "longest_answer_s": round(max(load.tally.longest_s for load in loads), 2),
        "connections": sum(load.tally.connections for load in loads),
        "connections_tried_again": dict(sum((load.tally.failed_connections for load in loads), Counter())),
        "failed": len(failures),
        "in_flight_at_a_killed_worker": len(in_flight),
        "failures_by_cause": dict(Counter(failure.cause.value for failure in failures)),
        "violations": [world.described(failure) for failure in others] + checks.violations + world.problems,
        "answers_checked_while_ready": checks.made,
        "converged": converged_s is not None and not writes and updates <= most_routing_updates(quiet_s),
        "converged_after_s": converged_s,
        "writes_after_convergence": writes,
        "routing_updates_after_convergence": updates,
        "quiet_s": quiet_s,
        "events_by_kind": dict(Counter(event["event"] for event in world.events if "left_out" not in event)),
        "events": sorted(world.events, key=lambda event: event["at_s"]),
        "kills": [
            {**asdict(kill), "at_s": world.since(kill.at_s), "gone_at_s": world.since(kill.gone_at_s)}
            for kill in world.kills
        ],
    }


# What happens


def run_events(world: World, events: Iterator[Event], seconds: float) -> None:
    """Returns once what was taken away is back."""
    end_s = time.monotonic() + seconds
    under_way: list[Future[None]] = []
    with ThreadPoolExecutor() as pool:
        for event in events:
            if time.monotonic() + event.after_s > end_s:
                time.sleep(max(end_s - time.monotonic(), 0))
                break
            time.sleep(event.after_s)
            problem = world.take(event)
            world.note(event, left_out=problem)
            if problem is None:
                under_way.append(pool.submit(world.do, event))
        for done in under_way:
            done.result()


@dataclass(slots=True)
class World:
    cluster: Cluster
    operator: Installation
    services: tuple[Service, ...]
    began_s: float = field(default_factory=time.monotonic)
    events: list[dict[str, Any]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    """What did not come back in time."""
    _busy: set[str] = field(default_factory=set)
    """What is away, or not whole again: not to be taken away twice."""
    _edits: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def namespace(self) -> Namespace:
        return self.services[0].namespace

    def since(self, at_s: float) -> float:
        return round(at_s - self.began_s, 2)

    def note(self, event: Event, **more: Any) -> None:
        known = {name: value for name, value in more.items() if value is not None}
        about = {"service": event.service} if event.kind in {*OF_WORKERS, *EDITS} else {}
        away = {"away_s": round(event.away_s, 1)} if event.away_s else {}
        noted = {"at_s": self.since(time.monotonic()), "event": event.kind.value, **about, **away, **known}
        self.events.append(noted)
        print(f"{noted['at_s']:8.2f} s  {json.dumps({k: v for k, v in noted.items() if k != 'at_s'})}", flush=True)

    def described(self, failure: Failure) -> dict[str, Any]:
        times = {"sent_at_s": self.since(failure.sent_at_s), "failed_at_s": self.since(failure.failed_at_s)}
        return {**asdict(failure), **times}

    def service(self, name: str) -> Service:
        return next(service for service in self.services if service.name == name)

    def workers(self, service: str) -> list[ContainerProcess]:
        found = containers.running("gnnserve_worker.pods.serve")
        return [process for process in found if process.pod.startswith(f"{service}-worker-")]

    # One event

    def take(self, event: Event) -> str | None:
        """Why it is left out, or None: then its target is taken until `do` has given it back."""
        target = _target(event)
        with self._lock:
            if target in self._busy:
                return f"{target} is away, or not whole again yet"
            if event.kind in OF_WORKERS and len(self.workers(event.service)) != WORKERS:
                return f"{target} has not all of its workers"
            self._busy.add(target)
            return None

    def do(self, event: Event) -> None:
        try:
            self._do(event)
        except HarnessError as late:
            # It stays taken away for the others, and the rest of the run goes on.
            processes = [(found.pod, found.pod_ip, found.identity) for found in self.workers(event.service)]
            print(f"{late}; its processes: {processes}", diagnose(self.namespace), sep="\n", flush=True)
            with self._lock:
                self.problems.append({"event": event.kind.value, "service": event.service, "cause": str(late)})
        finally:
            with self._lock:
                self._busy.discard(_target(event))

    def _do(self, event: Event) -> None:
        if event.kind in EDITS:
            self._edit(event)
        elif event.kind in COMPONENTS:
            self._disturb_component(COMPONENTS[event.kind], event)
        elif event.kind is Kind.OPERATOR_DELETED:
            selector = "--selector=app.kubernetes.io/component=operator"
            self._insist(lambda: self.operator.namespace.kubectl("delete", "pods", selector, "--wait=false"))
        elif event.kind in {Kind.OPERATOR_KILLED, Kind.OPERATOR_PAUSED}:
            self._disturb(containers.running("gnnserve_operator"), event)
        elif event.kind in {Kind.PROMETHEUS_KILLED, Kind.PROMETHEUS_PAUSED}:
            self._disturb(containers.running("/prometheus/prometheus"), event)
        else:
            self._disturb_worker(event)

    def _edit(self, event: Event) -> None:
        with self._lock:
            self._edits += 1
            number = self._edits
        patch = (
            {"objective": {"latencyMs": 1000 + number}}
            if event.kind is Kind.OBJECTIVE_EDITED
            else {"model": {"training": {"seed": number}}}
        )
        self._insist(lambda: self.service(event.service).patch(patch))

    def _disturb_component(self, component: Component, event: Event) -> None:
        layout = _node(self.cluster).layout
        process = component.process(layout)
        if event.kind in PAUSES:
            process.signal(signal.SIGSTOP)
            time.sleep(event.away_s)
            process.signal(signal.SIGCONT)
            return
        process.signal(signal.SIGKILL)
        time.sleep(event.away_s)
        # What starts it again on a real node is systemd, or the kubelet.
        component.start(layout)

    def _disturb(self, processes: Sequence[ContainerProcess], event: Event) -> None:
        number = signal.SIGSTOP if event.kind in PAUSES else signal.SIGKILL
        for process in processes:
            _signal(process, number)
        if event.kind in PAUSES:
            time.sleep(event.away_s)
            for process in processes:
                _signal(process, signal.SIGCONT)

    def _disturb_worker(self, event: Event) -> None:
        running = self.workers(event.service)
        if len(running) != WORKERS:
            return  # it has ended between the two looks
        process = running[event.worker]
        at_s = time.monotonic()
        if event.kind is Kind.WORKER_PAUSED:
            self._disturb([process], event)
        elif event.kind is Kind.WORKER_KILLED:
            self._disturb([process], event)
            self._await_end(process, event, at_s)
        else:
            grace = ["--grace-period=0", "--force"] if event.kind is Kind.WORKER_FORCED else []
            self._insist(
                lambda: self.namespace.kubectl(
                    "delete", "pod", process.pod, "--wait=false", "--ignore-not-found", *grace
                )
            )
            if event.kind is Kind.WORKER_FORCED:
                self._await_end(process, event, at_s)
            else:
                wait_for(f"{process.pod} to end", lambda: not still_runs(process.identity), 180)
        self._await_whole(event.service)

    def _await_end(self, process: ContainerProcess, event: Event, at_s: float) -> None:
        wait_for(f"{process.pod} to end", lambda: not still_runs(process.identity), 120, every_s=0.005)
        self.kills.append(
            Kill(event.service, process.pod, process.pod_ip, event.kind, at_s, gone_at_s=time.monotonic())
        )

    def _await_whole(self, service: str) -> None:
        """Until its workers run, and kube-proxy is about to know of all of them."""

        def is_whole() -> bool:
            with suppress(HarnessError, ValueError):
                slices = self.namespace.items(
                    "endpointslices", f"--selector=kubernetes.io/service-name={service}", "--request-timeout=3s"
                )
                ready = {
                    address
                    for found in slices
                    for endpoint in found.get("endpoints") or ()
                    if endpoint["conditions"].get("ready")
                    for address in endpoint["addresses"]
                }
                return ready == {process.pod_ip for process in self.workers(service)} and len(ready) == WORKERS
            return False

        wait_for(f"{service} to have all of its workers", is_whole, CONVERGENCE_LIMIT_S, every_s=1)
        time.sleep(1)  # kube-proxy follows within milliseconds, unless it was killed too

    def _insist(self, act: Callable[[], object]) -> None:
        """As a person or a pipeline would, while the API server is away."""

        def is_done() -> bool:
            with suppress(HarnessError):
                act()
                return True
            return False

        wait_for("the API server to take it", is_done, PERSISTENCE_S, every_s=1)


EDITS = {Kind.OBJECTIVE_EDITED, Kind.REVISION_EDITED}


def _target(event: Event) -> str:
    if event.kind in COMPONENTS:
        return COMPONENTS[event.kind].name
    if event.kind in OF_WORKERS:
        return event.service
    if event.kind in EDITS:
        return f"the spec of {event.service}"
    return "prometheus" if event.kind in {Kind.PROMETHEUS_KILLED, Kind.PROMETHEUS_PAUSED} else "operator"


def _node(cluster: Cluster) -> Any:
    if cluster.node is None:
        raise RuntimeError("only on a node of our own")
    return cluster.node


def _signal(process: ContainerProcess, number: int) -> None:
    if still_runs(process.identity):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


# What must hold


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
    node = _node(world.cluster)

    def has_converged() -> bool:
        with suppress(HarnessError, OSError, ValueError, KeyError):
            return (
                all(state.startswith("ready") for state in node.status().values())
                and all(
                    (found := declared(service)) is not None
                    and service.status()["workers"]["ready"] == f"{WORKERS}/{WORKERS}"
                    and all(revision_at(service.address()) == found[1] for _ in range(WORKERS))
                    for service in world.services
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
    """By verb and kind. A Lease is renewed all the time, and says nothing."""
    counted: Counter[str] = Counter()
    for line in operator.metrics().splitlines():
        if line.startswith("gnnserve_operator_api_requests_total{"):
            labels, _, value = line.rpartition(" ")
            verb, kind = (labels.partition(f'{name}="')[2].partition('"')[0] for name in ("verb", "kind"))
            if verb in WRITES and kind != "Lease":
                counted[f"{verb} {kind}"] += int(float(value))
    return counted


def show(result: Mapping[str, Any]) -> None:
    table = Table(f"{result['minutes']:g} minutes of chaos, seed {result['seed']}", "measured", "wanted")
    table.add_row("events", f"{sum(result['events_by_kind'].values())}, {len(result['kills'])} workers killed", "")
    table.add_row("requests", f"{result['requests']:,}, answered {result['answered']:,}", "")
    table.add_row("longest answer, from when it was due", f"{result['longest_answer_s']:.2f} s", "")
    table.add_row("in flight at a killed worker", f"{result['in_flight_at_a_killed_worker']} requests failed", "")
    for cause, number in result["failures_by_cause"].items():
        table.add_row(f"  failed by: {cause}", str(number), "")
    again = ", ".join(f"{number} {problem}" for problem, number in result["connections_tried_again"].items())
    table.add_row("connections made again before anything was sent", again or "0", "")
    table.add_row("violations: every other failure", str(len(result["violations"])), "0")
    for violation in result["violations"][:10]:
        table.add_row(f"  {violation['service']}: {violation['cause']}", json.dumps(violation), "")
    table.add_row("answers checked while Ready=True", str(result["answers_checked_while_ready"]), "")
    after_s = result["converged_after_s"]
    table.add_row(
        "converged after the last event",
        "never" if after_s is None else f"{after_s:.1f} s",
        f"< {CONVERGENCE_LIMIT_S:.0f} s",
    )
    table.add_row(
        f"writes in {result['quiet_s']:.0f} s after that", json.dumps(result["writes_after_convergence"] or 0), "0"
    )
    updates = str(result["routing_updates_after_convergence"])
    table.add_row("  and updates of routing tables", updates, f"<= {most_routing_updates(result['quiet_s']):.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
