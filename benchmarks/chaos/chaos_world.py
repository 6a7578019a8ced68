"""The cluster that a chaos run disturbs: one event after another is done to it, and what was taken away comes back."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.cluster.harness import containers
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.components import Component
from tests.cluster.harness.containers import ContainerProcess
from tests.cluster.harness.diagnosis import diagnose
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.processes import still_runs
from tests.cluster.harness.services import Service

from benchmarks.chaos.chaos_events import (
    COMPONENTS,
    EDITS,
    OF_DATABASE,
    OF_WORKERS,
    PAUSES,
    WORKERS,
    Event,
    Kill,
    Kind,
)
from benchmarks.chaos.chaos_living import LivingService
from benchmarks.chaos.chaos_load import Failure

CONVERGENCE_LIMIT_S = 300.0
PERSISTENCE_S = 60.0
"""How long an edit or a deletion is tried while the API server is away."""


def run_events(world: World, events: Iterator[Event], seconds: float) -> None:
    """Returns once what was taken away is back. For the main thread, with which a PostgreSQL ends."""
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
            if problem is not None:
                continue
            if event.kind is Kind.DATABASE_KILLED:
                world.do(event)
            else:
                under_way.append(pool.submit(world.do, event))
        for done in under_way:
            done.result()


@dataclass(slots=True)
class World:
    cluster: Cluster
    operator: Installation
    services: tuple[Service, ...]
    """Services that are asked, and edited."""
    living: LivingService
    """The one whose graph changes."""
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
        return next(service for service in (*self.services, self.living.service) if service.name == name)

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
        elif event.kind in OF_DATABASE:
            self._disturb_database(event)
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
        layout = node_of(self.cluster).layout
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

    def _disturb_database(self, event: Event) -> None:
        """The whole tree of PostgreSQL."""
        database = self.living.database
        if event.kind in PAUSES:
            database.pause()
            time.sleep(event.away_s)
            database.resume()
            return
        database.kill()
        time.sleep(event.away_s)
        database.launch()

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
        """Waits until its workers run, and kube-proxy is about to know of all of them."""

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
        """Tries again while the API server is away, as a person or a pipeline would."""

        def is_done() -> bool:
            with suppress(HarnessError):
                act()
                return True
            return False

        wait_for("the API server to take it", is_done, PERSISTENCE_S, every_s=1)


def _target(event: Event) -> str:
    if event.kind in COMPONENTS:
        return COMPONENTS[event.kind].name
    if event.kind in OF_WORKERS:
        return event.service
    if event.kind in EDITS:
        return f"the spec of {event.service}"
    if event.kind in OF_DATABASE:
        return "PostgreSQL"
    return "prometheus" if event.kind in {Kind.PROMETHEUS_KILLED, Kind.PROMETHEUS_PAUSED} else "operator"


def node_of(cluster: Cluster) -> Any:
    if cluster.node is None:
        raise RuntimeError("only on a node of our own")
    return cluster.node


def _signal(process: ContainerProcess, number: int) -> None:
    if still_runs(process.identity):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
