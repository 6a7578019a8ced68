"""A loader's surroundings: a server that notes what it is told, a repository whose revisions are broken or slow."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving.serving import FakeWorker, with_compute

from gnnserve_api.limits import Batching
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Damage, RoutingTable
from gnnserve_worker.following.loader import Loader
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.served import ServedRevision

DEADLINE_S = 60

Switch = tuple[str, Objective, Batching]


@dataclass(slots=True)
class FakeServer:
    switches: queue.Queue[Switch] = field(default_factory=queue.Queue)
    tables: queue.Queue[RoutingTable] = field(default_factory=queue.Queue)
    """Tables that were switched to, one for each of `switches`."""
    problems: queue.Queue[str | None] = field(default_factory=queue.Queue)
    withdrawn: queue.Queue[str] = field(default_factory=queue.Queue)
    damage: Damage | None = None
    """The damage that was reported last."""

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
        self.tables.put(table)
        self.switches.put((revision.manifest.revision, table.objective, table.batching))

    def report(self, problem: str | None, damage: Damage | None = None) -> None:
        self.damage = damage
        self.problems.put(problem)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        self.withdrawn.put(revision.manifest.revision)
        self.problems.put(problem)

    def warn(self, revision: ServedRevision, problem: str) -> None:
        assert revision.manifest.revision
        self.problems.put(problem)

    def next_switch(self) -> Switch:
        return self.switches.get(timeout=DEADLINE_S)

    def wait_for_problem(self, part: str | None) -> str | None:
        while True:
            problem = self.problems.get(timeout=DEADLINE_S)
            if problem is part or (part is not None and problem is not None and part in problem):
                return problem


@dataclass(slots=True)
class FakeRepository:
    loads: queue.Queue[str] = field(default_factory=queue.Queue)
    broken: dict[str, Exception] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    """Loading a revision waits for its gate, where it has one."""
    nice: dict[str, int] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    """What a revision says that it is mapped from."""
    forget_copies: Callable[[], None] = lambda: None
    """`forget_copies` of every revision."""
    stats: dict[str, list[DeviceStats]] = field(default_factory=dict)
    """Stats of a revision, load after load; the CPU's where none are left."""

    def load(self, revision: str) -> ServedRevision:
        self.nice[revision] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.loads.put(revision)
        if revision in self.gates:
            assert self.gates[revision].wait(DEADLINE_S)
        if revision in self.broken:
            raise self.broken[revision]
        served = FakeWorker(name=revision).revision()
        left = self.stats.get(revision)
        stats = left.pop(0) if left else ON_CPU
        return with_compute(
            served, files=self.files.get(revision), forget_copies=self.forget_copies, device_stats=lambda: stats
        )

    def next_load(self) -> str:
        return self.loads.get(timeout=DEADLINE_S)


@dataclass(frozen=True, slots=True)
class Loading:
    server: FakeServer
    repository: FakeRepository
    loader: Loader


@contextmanager
def loading_into(server: FakeServer, retry_s: tuple[float, float] = (0.001, 0.01)) -> Iterator[Loading]:
    repository = FakeRepository()
    loader = Loader(server, repository.load, retry_s)
    loader.start()
    yield Loading(server, repository, loader)
    for gate in repository.gates.values():
        gate.set()
    assert loader.stop(DEADLINE_S)
