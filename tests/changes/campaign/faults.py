"""What goes wrong while clients write and read: drawn from a seed, done to processes, and undone.

A kill is SIGKILL: of workers, of the database with its whole tree, or of both at once. After most faults the next one
waits until a batch is acknowledged again and the workers have followed the log; after the others it comes at once, so
that it meets what starts or recovers.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.changes.campaign.clients import Caller, Notes, Reached
from tests.changes.campaign.world import Worker, World
from tests.support.machine.waiting import until


class Fault(StrEnum):
    WORKERS_KILLED = "workers killed"
    DATABASE_KILLED = "database killed"
    BOTH_KILLED = "database and workers killed"
    WORKER_PAUSED = "worker paused"
    DATABASE_PAUSED = "database paused"
    WORKER_CUT_OFF = "worker cut off from the database"
    WORKER_SILENCED = "nothing gets through between worker and database"
    ALL_CUT_OFF = "all workers cut off from the database"
    COMPACTION = "compaction begun"
    COMPACTION_KILLED = "compaction killed"


KILLS = (Fault.WORKERS_KILLED, Fault.DATABASE_KILLED, Fault.BOTH_KILLED)
COMPACTIONS = (Fault.COMPACTION, Fault.COMPACTION_KILLED)
OTHERS = tuple(fault for fault in Fault if fault not in {*KILLS, *COMPACTIONS})
_KILLS_PER_COMPACTION = 4
"""Not a multiple of the kinds of kills, so that each of them meets one."""
_COMPACTED = 0.75
"""Share of the compactions that may end, if what follows lets them."""
_SHARE_OF_KILLS = 0.8
"""Of kills and others."""
_AWAITED = 0.75
"""Share of the faults after which the next one waits for recovery."""
_ALL = 0.15
"""Share of the faults of workers that hit all of them."""
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Away:
    """Longest times, in seconds, for which things are away."""

    killed_s: float = 0.2
    other_s: float = 4.0
    """Paused, cut off: mostly short, and up to longer than clients wait for an answer, so that they send again what is
    still on its way, and than a transaction may be idle."""
    between_s: float = 0.2
    """Between a recovery and the next fault."""


@dataclass(frozen=True, slots=True)
class Event:
    fault: Fault
    workers: tuple[int, ...]
    away_s: float
    gap_s: float
    is_awaited: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done. Times are those of `history.py`."""

    event: Event
    began_s: float
    ended_s: float
    """When what was away came back: killed processes are being started."""
    followed_s: float | None
    """When every worker had what was acknowledged by then; None: it was not waited for."""


def draw_events(draw: random.Random, workers: int, kills: int, away: Away) -> Iterator[Event]:
    """So many kills and other faults among them, as they are drawn by `draw_faults`. The last one is awaited."""
    done = 0
    for fault in draw_faults(draw, kills):
        done += (is_kill := fault in KILLS)
        hit = range(workers) if draw.random() < _ALL else [draw.randrange(workers)]
        away_s = away.killed_s * draw.random() if is_kill else away.other_s * draw.random() ** 3
        is_awaited = done == kills or draw.random() < _AWAITED
        yield Event(fault, tuple(hit), away_s, draw.uniform(0, away.between_s), is_awaited)


def draw_faults(draw: random.Random, kills: int) -> Iterator[Fault]:
    """So many kills, of every kind in turns; others between them, and compactions, which go on while some of them
    come."""
    for number in range(kills):
        while draw.random() >= _SHARE_OF_KILLS:
            yield draw.choice(OTHERS)
        if number % _KILLS_PER_COMPACTION == 0:
            yield Fault.COMPACTION if draw.random() < _COMPACTED else Fault.COMPACTION_KILLED
        yield KILLS[number % len(KILLS)]


def do(event: Event, world: World, notes: Notes) -> Done:
    """Do it, undo it, and wait for the recovery if that is part of it, and for a compaction that still runs. The next
    fault then meets workers that switch to its revision."""
    world.declare()
    if event.fault in COMPACTIONS:
        # The log is cut no farther than that.
        until(lambda: len(notes.log) >= world.published.offset, "the log is followed")
    hit = [world.workers[number] for number in event.workers]
    begin, end = _FAULTS[event.fault]
    began_s = time.monotonic()
    begin(world, hit)
    time.sleep(event.away_s)
    ended_s = time.monotonic()
    end(world, hit)
    followed_s = None
    if event.is_awaited:
        world.declare(waits=True)
        await_recovery(world, notes, ended_s)
        followed_s = time.monotonic()
        time.sleep(event.gap_s)
    return Done(event, began_s, ended_s, followed_s)


def await_recovery(world: World, notes: Notes, since_s: float) -> None:
    """Wait until a batch is acknowledged that was sent since then, and every worker has applied what was acknowledged
    by then."""
    notes.await_acknowledged(since_s)
    last = notes.last
    caller = Caller(world.workers)
    await_applied(caller, world.workers, last)
    caller.close()


def await_applied(caller: Caller, workers: Sequence[Reached], offset: int) -> None:
    """Wait until every worker answers from that offset, or from a later one."""
    for number, worker in enumerate(workers):
        until(lambda number=number: state_of(caller, number)[1] >= offset, f"{worker.name} applies {offset}")  # type: ignore[misc]


def await_revision(world: World) -> None:
    """Wait until every worker answers from the revision that is declared."""
    caller, revision = Caller(world.workers), world.published.revision
    for number, worker in enumerate(world.workers):
        until(lambda number=number: state_of(caller, number)[0] == revision, f"{worker.name} answers from {revision}")  # type: ignore[misc]
    caller.close()


def state_of(caller: Caller, number: int) -> tuple[str, int]:
    """Revision and offset that a worker answers from; -1: it does not answer."""
    reply = caller.call(number, "GET", "/v1/route")
    if reply is None or reply.status != 200:
        return "", -1
    told = json.loads(reply.body)
    return told["revision"], told["updates"]["applied"]


def _kill_workers(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.kill()


def _start_workers(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.start()


def _kill_database(world: World, hit: Sequence[Worker]) -> None:
    world.database.kill()


def _start_database(world: World, hit: Sequence[Worker]) -> None:
    world.database.launch()


def _kill_both(world: World, hit: Sequence[Worker]) -> None:
    _kill_database(world, hit)
    _kill_workers(world, hit)


def _start_both(world: World, hit: Sequence[Worker]) -> None:
    _start_database(world, hit)
    _start_workers(world, hit)


def _pause(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.pause()


def _resume(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.resume()


def _pause_database(world: World, hit: Sequence[Worker]) -> None:
    world.database.pause()


def _resume_database(world: World, hit: Sequence[Worker]) -> None:
    world.database.resume()


def _cut(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.partition.cut()


def _cut_all(world: World, hit: Sequence[Worker]) -> None:
    _cut(world, world.workers)


def _silence(world: World, hit: Sequence[Worker]) -> None:
    for worker in hit:
        worker.partition.silence()


def _heal(world: World, hit: Sequence[Worker]) -> None:
    for worker in world.workers:
        worker.partition.heal()


def _compact(world: World, hit: Sequence[Worker]) -> None:
    """It goes on during the faults that follow."""
    world.compact()


def _kill_compaction(world: World, hit: Sequence[Worker]) -> None:
    world.jobs.kill()


def _leave(world: World, hit: Sequence[Worker]) -> None:
    pass


_Step = Callable[[World, Sequence[Worker]], None]
_FAULTS: Mapping[Fault, tuple[_Step, _Step]] = {
    Fault.WORKERS_KILLED: (_kill_workers, _start_workers),
    Fault.DATABASE_KILLED: (_kill_database, _start_database),
    Fault.BOTH_KILLED: (_kill_both, _start_both),
    Fault.WORKER_PAUSED: (_pause, _resume),
    Fault.DATABASE_PAUSED: (_pause_database, _resume_database),
    Fault.WORKER_CUT_OFF: (_cut, _heal),
    Fault.WORKER_SILENCED: (_silence, _heal),
    Fault.ALL_CUT_OFF: (_cut_all, _heal),
    Fault.COMPACTION: (_compact, _leave),
    Fault.COMPACTION_KILLED: (_compact, _kill_compaction),
}
"""How each begins and ends."""
