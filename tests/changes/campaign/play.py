"""One round: processes, clients, faults; then what is there in the end, and what is wrong with all of it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.changes.campaign.checker import Kind, Violation, check
from tests.changes.campaign.clients import Caller, Notes, Pace, Reader, Reply, Writer, as_answer
from tests.changes.campaign.faults import Away, Done, applied, await_applied, await_recovery, do, draw_events
from tests.changes.campaign.history import History, LogRecord, Replica
from tests.changes.campaign.revision import draw_graph, from_json
from tests.changes.campaign.world import World, running_world
from tests.support.postgres import PostgresServer

_PAGE_RECORDS = 1000
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
class Round:
    plan: Plan
    history: History
    done: tuple[Done, ...]
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
            with clients(plan, world, notes):
                await_recovery(world, notes, time.monotonic())
                for event in draw_events(draw, plan.workers, plan.kills, plan.away):
                    done.append(do(event, world, notes))
            database.wait()
            logs, replicas = read_end(world)
        except AssertionError as error:  # of what was waited for in vain
            stuck.append(Violation(Kind.STUCK, str(error)))
            logs = read_logs_that_are_there(world)
    history = History(first, notes.sent, tuple(notes.attempts), tuple(notes.reads), logs, replicas)
    # Without any log there is no witness.
    found = check(history) if logs else []
    return Round(plan, history, tuple(done), (*stuck, *found))


@contextmanager
def clients(plan: Plan, world: World, notes: Notes) -> Iterator[None]:
    """Clients at work; in the end each has heard of the batch that it sent last."""
    writers = [Writer(i, world.workers, world.token, notes, plan.pace, plan.seed) for i in range(plan.writers)]
    readers = [Reader(i, world.workers, notes, plan.pace, plan.seed) for i in range(plan.readers)]
    with ThreadPoolExecutor(plan.writers + plan.readers) as pool:
        running = [pool.submit(each.run) for each in (*writers, *readers)]
        try:
            yield
        except BaseException:
            notes.is_given_up = True
            raise
        finally:
            notes.stop.set()
        for each in running:
            each.result()


def read_end(world: World) -> tuple[Logs, dict[str, Replica]]:
    """Every worker's log and answers, when all of them have applied all of it."""
    caller = Caller(world.workers)
    for _ in range(_TRIES):
        last = max(applied(caller, number) for number in range(len(world.workers)))
        await_applied(caller, world, last)
        logs = {worker.name: _read_log(caller, number) for number, worker in enumerate(world.workers)}
        replicas = {worker.name: _read_replica(caller, number) for number, worker in enumerate(world.workers)}
        # A batch that its client has given up may still be on its way.
        if all(log[-1].offset == last for log in logs.values()) and all(
            replica.offset == last for replica in replicas.values()
        ):
            break
    caller.close()
    return logs, replicas


def read_logs_that_are_there(world: World) -> Logs:
    """Logs of the workers that give one."""
    caller, logs = Caller(world.workers), {}
    for number, worker in enumerate(world.workers):
        with suppress(AssertionError):
            logs[worker.name] = _read_log(caller, number)
    caller.close()
    return logs


def _read_log(caller: Caller, number: int) -> tuple[LogRecord, ...]:
    records: list[LogRecord] = []
    while True:
        after = records[-1].offset if records else 0
        page = json.loads(_get(caller, number, f"/v1/changes?after={after}&limit={_PAGE_RECORDS}&content=true"))
        records += [
            LogRecord(one["offset"], one["client"], one["sequence"], from_json(one["content"]))
            for one in page["records"]
        ]
        if not page["records"]:
            return tuple(records)


def _read_replica(caller: Caller, number: int) -> Replica:
    nodes: list[int] = []
    while (page := json.loads(_get(caller, number, f"/v1/nodes?start={len(nodes)}")))["nodes"]:
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
