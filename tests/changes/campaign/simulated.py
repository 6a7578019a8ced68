"""Workers without processes, in simulated time, with flaws that the checker has to find in what they do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from tests.changes.campaign.checker import Kind
from tests.changes.campaign.graph import Batch, FirstGraph, PlainGraph
from tests.changes.campaign.history import (
    Absent,
    Acknowledged,
    Attempt,
    History,
    Key,
    LogRecord,
    Read,
    Refused,
    Replica,
    Seen,
    Unanswered,
)

_WORKERS, _STEPS = 3, 150
_FIRST = FirstGraph({node: 10.0 * node for node in range(6)}, ((0, 1), (1, 2), (3, 4)))


class Flaw(Enum):
    """A flaw, and the violations that it shows as."""

    ACKNOWLEDGES_EARLY = (Kind.LOST,)
    """A batch is acknowledged before it is durable."""
    APPENDS_AGAIN = (Kind.DOUBLED,)
    """A batch that is sent again is not recognised."""
    RECOGNISES_ITS_OWN_ALONE = (Kind.DOUBLED, Kind.TWO_OFFSETS)
    """Only the worker that appended a batch recognises it."""
    TAKES_OFFSETS_FIRST = (Kind.GAP,)
    """An offset is taken by a transaction that is then rolled back."""
    TELLS_THE_NEXT_OFFSET = (Kind.ELSEWHERE,)
    """An offset is told that another batch got."""
    NEVER_WAITS = (Kind.BEHIND,)
    """`minOffset` is not looked at."""
    ANSWERS_BEFORE_APPLYING = (Kind.BACKWARDS,)
    """A batch is acknowledged when it is durable, and not yet applied."""
    SKIPS = (Kind.WRONG_ANSWER, Kind.WRONG_REPLICA, Kind.REPLICAS_DIFFER)
    """A worker that is started anew begins behind the log's first records."""
    APPLIES_ITS_OWN_FIRST = (Kind.WRONG_ANSWER, Kind.WRONG_REPLICA, Kind.REPLICAS_DIFFER)
    """What a worker appends it applies before earlier records of others."""
    NAMES_THE_END = (Kind.WRONG_ANSWER,)
    """Answers name the end of the log, whatever is applied."""

    @property
    def expected(self) -> frozenset[Kind]:
        return frozenset(self.value)


@dataclass(slots=True)
class _Worker:
    number: int
    life: int = 1
    graph: PlainGraph = field(default_factory=lambda: PlainGraph.of(_FIRST))
    applied: list[LogRecord] = field(default_factory=list)
    offset: int = 0
    appended: set[Key] = field(default_factory=set)
    """Since it was started."""

    @property
    def process(self) -> str:
        return f"worker-{self.number}.{self.life}"

    def apply(self, record: LogRecord) -> None:
        self.offset = max(self.offset, record.offset)
        self.applied.append(record)
        if not self.graph.refuses(record.batch):
            self.graph.apply(record.batch)


class _Simulation:
    def __init__(self, flaw: Flaw | None, seed: int) -> None:
        self.flaw = flaw
        self.draw = random.Random(f"{flaw} {seed}")  # noqa: S311
        self.workers = [_Worker(number) for number in range(_WORKERS)]
        self.log: list[LogRecord] = []
        self.next_offset = 1
        self.now_s = 0.0
        self.sent: dict[Key, Batch] = {}
        self.attempts: list[Attempt] = []
        self.reads: list[Read] = []
        self.open: dict[str, Key | None] = {"a": None, "b": None}
        """The batch that each client has not heard of."""
        self.last = 0
        self.node_ids, self.sequences = count(6), count()

    def step(self) -> None:
        self.now_s += 1
        worker = self.draw.choice(self.workers)
        if self.draw.random() < 0.5:
            self._write(worker)
        elif self.draw.random() < 0.8:
            self._read(worker)
        else:
            self._start_anew(worker)
        for each in self.workers:
            if self.draw.random() < 0.3:
                self._follow(each, self.draw.randint(0, 2))

    def _write(self, worker: _Worker) -> None:
        client = self.draw.choice([*self.open])
        key = self.open[client] or self._next_key(client)
        answer = self._take(worker, key)
        self.open[client] = key if isinstance(answer, Unanswered) else None
        self.attempts.append(Attempt(*key, worker.process, self.now_s, self.now_s + 0.5, answer))
        if isinstance(answer, Acknowledged):
            self.last = max(self.last, answer.offset)

    def _next_key(self, client: str) -> Key:
        heard = [one.key for one in self.attempts if one.client == client and isinstance(one.answer, Acknowledged)]
        if heard and self.draw.random() < 0.2:
            return self.draw.choice(heard)
        key = client, next(self.sequences)
        node, near, far = next(self.node_ids), *self.draw.sample(range(6), 2)
        self.sent[key] = self.draw.choice(
            [
                Batch(overrides=((near, float(100 + key[1])),)),
                Batch(new=((node, float(100 + key[1])),), edges=((node, near),)),
                Batch(edges=((near, far),), removed_edges=((0, 1),)),
                Batch(removed=(node - 2,)),
            ]
        )
        return key

    def _take(self, worker: _Worker, key: Key) -> Acknowledged | Refused | Unanswered:
        if self.draw.random() < 0.15:
            return Unanswered("lost on its way there")
        if self.flaw is not Flaw.ANSWERS_BEFORE_APPLYING and self.flaw is not Flaw.APPLIES_ITS_OWN_FIRST:
            self._follow(worker, len(self.log))
        found = next((record for record in self.log if record.key == key), None)
        if self.flaw is Flaw.APPENDS_AGAIN or (
            self.flaw is Flaw.RECOGNISES_ITS_OWN_ALONE and key not in worker.appended
        ):
            found = None
        is_repeated = found is not None
        if found is None:
            if worker.graph.refuses(self.sent[key]):
                return Refused(None)
            if self.flaw is Flaw.ACKNOWLEDGES_EARLY and self.draw.random() < 0.2:
                return Acknowledged(self.next_offset, False)
            found = self._append(worker, key)
        if self.draw.random() < 0.15:
            return Unanswered("lost on its way back")
        if self.flaw is Flaw.APPLIES_ITS_OWN_FIRST and not is_repeated:
            worker.apply(found)
        if self.flaw is not Flaw.ANSWERS_BEFORE_APPLYING:
            self._follow(worker, len(self.log))
        tells_another = self.flaw is Flaw.TELLS_THE_NEXT_OFFSET and self.draw.random() < 0.2
        return Acknowledged(found.offset + tells_another, is_repeated)

    def _append(self, worker: _Worker, key: Key) -> LogRecord:
        if self.flaw is Flaw.TAKES_OFFSETS_FIRST and self.draw.random() < 0.1:
            self.next_offset += 1
        record = LogRecord(self.next_offset, *key, self.sent[key])
        self.next_offset += 1
        self.log.append(record)
        worker.appended.add(key)
        return record

    def _read(self, worker: _Worker) -> None:
        node = self.draw.choice([*range(6), *worker.graph.values])
        min_offset = self.draw.choice([0, self.last])
        if self.flaw is not Flaw.NEVER_WAITS:
            self._follow(worker, sum(record.offset <= min_offset for record in self.log) - len(worker.applied))
        found = worker.graph.answer(node)
        offset = self.next_offset - 1 if self.flaw is Flaw.NAMES_THE_END else worker.offset
        answer = Absent() if found is None else Seen(offset, found)
        self.reads.append(Read(worker.process, node, min_offset, self.now_s, self.now_s + 0.5, answer))

    def _start_anew(self, worker: _Worker) -> None:
        self.workers[worker.number] = fresh = _Worker(worker.number, worker.life + 1)
        if self.flaw is Flaw.SKIPS:
            fresh.applied += self.log[:3]
        self._follow(fresh, len(self.log))

    def _follow(self, worker: _Worker, most: int) -> None:
        """Apply so many of the records that it lacks."""
        for record in [record for record in self.log if record not in worker.applied][: max(0, most)]:
            worker.apply(record)

    def end(self) -> History:
        replicas = {}
        for worker in self.workers:
            self._follow(worker, len(self.log))
            answers = {node: worker.graph.answer(node) for node in worker.graph.values}
            replicas[f"worker-{worker.number}"] = Replica(worker.offset, answers)
        log = tuple(self.log)
        logs = dict.fromkeys(replicas, log)
        return History(_FIRST, self.sent, tuple(self.attempts), tuple(self.reads), log, logs, replicas)


def simulate(flaw: Flaw | None, seed: int) -> History:
    simulation = _Simulation(flaw, seed)
    for _ in range(_STEPS):
        simulation.step()
    return simulation.end()
