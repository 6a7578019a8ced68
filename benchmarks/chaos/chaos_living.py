"""A service whose graph changes throughout a chaos run: clients write and read, and what they saw is checked.

Clients and checker are those of `make bench-updates-faults`. The log is in a PostgreSQL beside the node. Clients reach
workers at the addresses of their pods, so that each answer is known to be of one process.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tests.changes.campaign import play
from tests.changes.campaign.checker import Kind, Violation, check
from tests.changes.campaign.clients import Notes, Pace, Place
from tests.changes.campaign.graph import FirstGraph
from tests.changes.campaign.history import Absent, Acknowledged, History, Replica, Seen, Unanswered
from tests.changes.campaign.revision import draw_graph, spec_of, write_source
from tests.cluster.harness.client import Namespace, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.containers import ContainerProcess
from tests.cluster.harness.layout import HOST_IP, POD_CIDR
from tests.cluster.harness.processes import still_runs
from tests.cluster.harness.services import Service
from tests.support.changes.postgres import PostgresServer, postgres_server

from benchmarks.chaos.chaos_events import LIVING, WORKERS
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType

PACE = Pace(write_s=0.5, read_s=0.2)
"""Some tens of changes a second: a compaction, which takes seconds of processor time, begins about twice a minute."""
CHANGES_PER_COMPACTION = 1000
"""spec.updates.compaction.changes, of which it is the least."""
PORT = 8080
LOOK_EVERY_S = 0.3
SETTLED_S = 300.0
TOLD = ("last", "applied", "base")
SHOWN, SHOWN_CHARACTERS = 10, 300
"""So many violations are shown, and so much of each."""
_CLAIM, _LOG, _TOKENS = "living", "living-log", "living-writers"
_SEEN_AT = PurePosixPath("/data")
"""Where pods see the source."""


@dataclass(frozen=True, slots=True)
class LivingService:
    service: Service
    database: PostgresServer
    first: FirstGraph
    token: str
    """It may write."""


@contextmanager
def living_service(namespace: Namespace, seed: int) -> Iterator[LivingService]:
    """Applied, and not yet ready. For the main thread, with which its PostgreSQL ends."""
    first, token = draw_graph(random.Random(seed)), secrets.token_hex(16)  # noqa: S311 - chaos, not secrets
    with postgres_server() as database, tempfile.TemporaryDirectory(prefix="gnnserve-living-") as folder:
        uri = database.listen(HOST_IP, POD_CIDR)
        database.stop()
        database.start()
        write_source(Path(folder), first)
        # Pods have another user.
        Path(folder).chmod(0o755)
        namespace.bind_folder(_CLAIM, Path(folder))
        namespace.apply(_secret(_LOG, uri=uri), _secret(_TOKENS, writer=token))
        service = Service(namespace, LIVING)
        service.apply(living_spec())
        yield LivingService(service, database, first, token)


def living_spec() -> dict[str, Any]:
    spec = spec_of(_SEEN_AT)
    return {
        **spec,
        "graph": {**spec["graph"], "volume": {"claimName": _CLAIM, "mountPath": str(_SEEN_AT)}},
        "worker": {"replicas": WORKERS},
        "endpoint": {"writeTokens": {"secretName": _TOKENS}},
        "updates": {
            "log": {"postgres": {"secretName": _LOG}},
            "maxDelta": "256Mi",
            "compaction": {"changes": CHANGES_PER_COMPACTION},
        },
    }


def _secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


class WorkerPlace:
    """A place for a worker, which the process of another container takes once its own has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._taken: tuple[Place, str] | None = None
        """Place and identity of the process."""

    @property
    def place(self) -> Place | None:
        taken = self._taken
        # A process that still runs is the one that listens at the address of its pod.
        return taken[0] if taken is not None and still_runs(taken[1]) else None

    @property
    def identity(self) -> str | None:
        return None if self._taken is None else self._taken[1]

    def take(self, process: ContainerProcess) -> None:
        self._taken = Place(f"{process.pod} {process.identity}", PORT, process.pod_ip), process.identity


class WorkerPlaces:
    """The places of all workers, kept up to date by a thread; a context manager."""

    def __init__(self, running: Callable[[], Sequence[ContainerProcess]]) -> None:
        self.all = tuple(WorkerPlace(f"worker-{number}") for number in range(WORKERS))
        self._running = running
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="places", daemon=True)

    def __enter__(self) -> WorkerPlaces:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def look(self) -> None:
        held = {place.identity for place in self.all}
        coming = [process for process in self._running() if process.pod_ip and process.identity not in held]
        for place in self.all:
            if place.place is None and coming:
                place.take(coming.pop(0))

    def _follow(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            self.look()


@contextmanager
def clients_at_work(
    living: LivingService, running: Callable[[], Sequence[ContainerProcess]], seed: int
) -> Iterator[LivingClients]:
    """Begin when a batch is acknowledged. `running`: processes of its workers."""
    notes = Notes()
    plan = play.Plan(str(seed), 0, "", WORKERS, pace=PACE)
    with WorkerPlaces(running) as places, ExitStack() as clients:
        clients.enter_context(play.clients(plan, places.all, living.token, notes))
        notes.await_acknowledged(time.monotonic())
        yield LivingClients(living, places.all, notes, clients)


@dataclass(frozen=True, slots=True)
class LivingClients:
    living: LivingService
    places: Sequence[WorkerPlace]
    notes: Notes
    clients: ExitStack
    """Closed, they end, each when it has heard of what it sent last."""

    def finish(self) -> Finished:
        """What clients did, and what is there in the end. All is as declared by now. Checking takes seconds of
        processor time, which would keep the load on the other services from being even: `figures_of` does it."""
        notes = self.notes
        logs: play.Logs = {}
        replicas: dict[str, Replica] = {}
        stuck, compacted = [], 0
        try:
            self.clients.close()
            compacted = await_rest(self.living.service)
            logs, replicas = play.read_end(self.places, notes)
        except (AssertionError, HarnessError) as error:
            stuck.append(Violation(Kind.STUCK, str(error)))
            play.read_rest(self.places, notes)
        attempts, reads, log = tuple(notes.attempts), tuple(notes.reads), tuple(notes.log)
        history = History(self.living.first, notes.sent, attempts, reads, log, logs, replicas)
        return Finished(history, tuple(stuck), compacted)


@dataclass(frozen=True, slots=True)
class Finished:
    history: History
    stuck: tuple[Violation, ...] = ()
    """What did not come to its end."""
    compacted: int = 0
    """The offset that is compacted."""


def figures_of(finished: Finished) -> dict[str, Any]:
    """Figures, and violations of what docs/updates.md promises."""
    history = finished.history
    violations = [*finished.stuck, *check(history)]
    acknowledged = [one for one in history.attempts if isinstance(one.answer, Acknowledged)]
    return {
        "compacted_to": finished.compacted,
        "batches_acknowledged": len({one.key for one in acknowledged}),
        "attempts_without_an_answer": sum(isinstance(one.answer, Unanswered) for one in history.attempts),
        "reads": sum(isinstance(read.answer, Seen | Absent) for read in history.reads),
        "processes": len({one.process for one in history.attempts} | {read.process for read in history.reads}),
        "records": len(history.log),
        "records_compacted_away": min((log[0].offset - 1 for log in history.logs.values() if log), default=0),
        "violations_by_kind": dict(Counter(violation.kind.name for violation in violations)),
        "violations": [
            {"service": LIVING, "cause": violation.kind.value, "detail": violation.words[:SHOWN_CHARACTERS]}
            for violation in violations[:SHOWN]
        ],
    }


def await_rest(service: Service) -> int:
    """Wait until nothing is compacted, nothing will be, and the status tells of the end of the log, which it does once
    a minute where figures change. Returns the offset that is compacted."""

    def settled() -> int | None:
        with suppress(HarnessError, OSError, KeyError, ValueError):
            has_failed = service.condition(ConditionType.UPDATES_FOLLOWED).get("reason") == Reason.COMPACTION_FAILED
            is_reconciled = service.condition(ConditionType.RECONCILING).get("status") == "False"
            told, said = service.route()["updates"], service.status()["updates"]
            is_due = told["changesSinceBase"] >= CHANGES_PER_COMPACTION
            is_told = said["stalenessSeconds"] == 0 and all(said[name] == told[name] for name in TOLD)
            if is_reconciled and is_told and (has_failed or not is_due):
                return int(told["base"])
        return None

    return wait_for("compaction to end", settled, SETTLED_S, every_s=1)
