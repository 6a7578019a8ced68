"""One round: processes, clients, faults; then what is there in the end, and what is wrong with all of it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.changes.campaign.checker import Kind, Violation, check
from tests.changes.campaign.clients import (
    Caller,
    Notes,
    Pace,
    Reached,
    Reader,
    Reply,
    Tail,
    Writer,
    as_answer,
    records_of,
)
from tests.changes.campaign.faults import (
    Away,
    Done,
    await_applied,
    await_recovery,
    await_revision,
    do,
    draw_events,
    state_of,
)
from tests.changes.campaign.history import History, LogRecord, Replica
from tests.changes.campaign.revision import draw_graph
from tests.changes.campaign.world import running_world
from tests.support.changes.postgres import PostgresServer

Logs = dict[str, tuple[LogRecord, ...]]
_TRIES = 10
"""How often what is there in the end is read again, where the log still grew."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is; its seed draws the rest."""

    seed: str
    kills: int
    variant: str
    workers: int = 3
    writers: int = 4
    readers: int = 3
    pace: Pace = field(default_factory=Pace)
    away: Away = field(default_factory=Away)


@dataclass(frozen=True, slots=True)
class Compactions:
    done: int
    """Revisions with a newer version of the graph that workers switched to."""
    killed: int
    failed: tuple[str, ...]
    """What the Jobs said that failed, as without their database."""


@dataclass(frozen=True, slots=True)
class Round:
    plan: Plan
    history: History
    done: tuple[Done, ...]
    compactions: Compactions
    violations: tuple[Violation, ...]


def play(plan: Plan, folder: Path, database: PostgresServer) -> Round:
    """Play a round over an empty log. `database` is running, and runs in the end. To be called in the main thread."""
    draw = random.Random(plan.seed)  # noqa: S311
    notes, first = Notes(), draw_graph(draw)
    done = []
    logs: Logs = {}
    replicas: dict[str, Replica] = {}
    stuck = []
    with running_world(folder, database, first, plan.variant, plan.workers) as world:
        try:
            with clients(plan, world.workers, world.token, notes):
                await_recovery(world, notes, time.monotonic())
                for event in draw_events(draw, plan.workers, plan.kills, plan.away):
                    done.append(do(event, world, notes))
            database.wait()
            world.declare(waits=True)
            await_revision(world)
            logs, replicas = read_end(world.workers, notes)
        except AssertionError as error:  # of what was waited for in vain
            stuck.append(Violation(Kind.STUCK, str(error)))
            read_rest(world.workers, notes)
        jobs = Compactions(world.compacted, world.jobs.killed, tuple(world.jobs.failed))
    history = History(first, notes.sent, tuple(notes.attempts), tuple(notes.reads), tuple(notes.log), logs, replicas)
    return Round(plan, history, tuple(done), jobs, (*stuck, *check(history)))


@contextmanager
def clients(plan: Plan, workers: Sequence[Reached], token: str, notes: Notes) -> Iterator[None]:
    """Clients at work; in the end each has heard of the batch that it sent last."""
    writers = [Writer(i, workers, token, notes, plan.pace, plan.seed) for i in range(plan.writers)]
    readers = [Reader(i, workers, notes, plan.pace, plan.seed) for i in range(plan.readers)]
    everyone = (*writers, *readers, Tail(workers, notes))
    with ThreadPoolExecutor(len(everyone)) as pool:
        running = [pool.submit(each.run) for each in everyone]
        try:
            yield
        except BaseException:
            notes.is_given_up = True
            raise
        finally:
            notes.stop.set()
        for each in running:
            each.result()


def read_end(workers: Sequence[Reached], notes: Notes) -> tuple[Logs, dict[str, Replica]]:
    """Every worker's log and answers, when all of them have applied all of it. Nothing is compacted meanwhile."""
    caller = Caller(workers)
    for _ in range(_TRIES):
        last = max(state_of(caller, number)[1] for number in range(len(workers)))
        await_applied(caller, workers, last)
        while Tail(workers, notes).read(caller, 0):
            pass
        logs = {worker.name: _read_log(caller, number) for number, worker in enumerate(workers)}
        replicas = {worker.name: _read_replica(caller, number) for number, worker in enumerate(workers)}
        # A batch that its client has given up may still be on its way.
        ends = {notes.log[-1].offset, *(replica.offset for replica in replicas.values())}
        if ends == {last} and all(log[-1].offset == last for log in logs.values() if log):
            break
    caller.close()
    return logs, replicas


def read_rest(workers: Sequence[Reached], notes: Notes) -> None:
    """Follow the log to its end by any worker that gives it."""
    caller, tail = Caller(workers), Tail(workers, notes)
    for number in range(len(workers)):
        with suppress(AssertionError):
            while tail.read(caller, number):
                pass
    caller.close()


def _read_log(caller: Caller, number: int) -> tuple[LogRecord, ...]:
    """What is not compacted away."""
    records: list[LogRecord] = []
    while True:
        after = f"after={records[-1].offset}&" if records else ""
        page = records_of(_get(caller, number, f"/v1/changes?{after}limit=1000&content=true"))
        if not page:
            return tuple(records)
        records += page


def _read_replica(caller: Caller, number: int) -> Replica:
    nodes, page = [], {"next": 0}
    while "next" in page:
        page = json.loads(_get(caller, number, f"/v1/nodes?start={page['next']}"))
        nodes += page["nodes"]
    asked = json.dumps({"nodes": nodes, "return": ["scores"]}).encode()
    told = json.loads(_require(caller.call(number, "POST", "/v1/predict", asked)))
    return Replica(told["offset"], dict(zip(nodes, map(as_answer, told["scores"]), strict=True)))


def _get(caller: Caller, number: int, path: str) -> bytes:
    return _require(caller.call(number, "GET", path))


def _require(reply: Reply | None) -> bytes:
    assert reply is not None
    assert reply.status == 200, reply.body
    return reply.body
