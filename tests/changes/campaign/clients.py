"""Clients that write batches and read nodes through several workers, and note what they sent and heard.

A writer sends a batch until it is acknowledged or refused, to whichever worker, and then the next one. It also sends
batches again that were acknowledged. Readers ask for what was acknowledged lately.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from tests.changes.campaign.graph import Answer, Batch
from tests.changes.campaign.history import (
    Absent,
    Acknowledged,
    Attempt,
    Key,
    LogRecord,
    Passed,
    Read,
    Refused,
    Seen,
    Strange,
    Unanswered,
)
from tests.changes.campaign.revision import NODES, VALUES, from_json, to_binary, to_json
from tests.support.machine.waiting import Patience, until

from gnnserve_api.http.changes import CHANGES_TYPE, CLIENT_HEADER, SEQUENCE_HEADER

CONTESTED = tuple(range(900, 904))
"""Nodes that every writer adds, changes and removes: batches about them may be refused, before they are in the log or
after."""
_FIRST_OF_WRITER = 10_000
"""Nodes of a writer's own begin at multiples of it."""
_ANSWER_S = 1.5
"""Longest wait for an answer; a paused worker gives none."""
_NEXT_S = 0.02
"""Wait before the next worker is tried, where one is down or cannot answer."""
_AGAIN = 0.05
"""Share of batches that are sent again though they were acknowledged."""
_BEHIND_EACH_OTHER = 40
"""Batches of a writer for which all writers prefer one worker; then each prefers another one, and so on in turns."""
_REFUSALS = ("UnknownNode", "StoredNode")
_PAGE_RECORDS = 1000
_RECORD = re.compile(r"record ([\d,]+) of the log")


@dataclass(frozen=True, slots=True)
class Pace:
    """Longest pauses of clients between requests, in seconds."""

    write_s: float = 0.1
    read_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker answers in one of its lives."""

    process: str
    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Reply:
    place: Place
    status: int
    """0: there was no answer."""
    body: bytes
    began_s: float
    ended_s: float

    @property
    def error(self) -> str:
        """Code and message of an error."""
        try:
            told = json.loads(self.body)["error"]
            return f"{told['code']}: {told['message']}"
        except (ValueError, KeyError, TypeError):
            return repr(self.body[:200])


class Reached(Protocol):
    """A worker, as clients reach it."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> Place | None:
        """The same object for as long as its process lives; None: there is none, and nothing is sent. A connection that
        is made between two looks at it that find the same one leads to that process."""
        ...


class Caller:
    """Connections to workers, for one thread."""

    def __init__(self, workers: Sequence[Reached]) -> None:
        self._workers = workers
        self._open: dict[int, tuple[Place, http.client.HTTPConnection]] = {}

    def call(
        self, number: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply | None:
        """One request to that worker; None: it is down, and nothing was sent."""
        found = self._connect(number)
        if found is None:
            return None
        place, connection = found
        began_s = time.monotonic()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            status, read = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._forget(number)
            return Reply(place, 0, repr(error).encode(), began_s, time.monotonic())
        if response.will_close:
            self._forget(number)
        return Reply(place, status, read, began_s, time.monotonic())

    def close(self) -> None:
        for number in [*self._open]:
            self._forget(number)

    def _connect(self, number: int) -> tuple[Place, http.client.HTTPConnection] | None:
        place = self._workers[number].place
        if (found := self._open.get(number)) is not None:
            if found[0] is place:
                return found
            self._forget(number)
        if place is None:
            return None
        connection = http.client.HTTPConnection(place.host, place.port, timeout=_ANSWER_S)
        try:
            connection.connect()
        except OSError:
            return None
        connection.auto_open = 0
        # Else it may be that of another process by now.
        if self._workers[number].place is not place:
            connection.close()
            return None
        self._open[number] = place, connection
        return place, connection

    def _forget(self, number: int) -> None:
        _, connection = self._open.pop(number)
        connection.close()


@dataclass(slots=True)
class Notes:
    """What all clients sent and heard; lists are only appended to, by any thread."""

    sent: dict[Key, Batch] = field(default_factory=dict)
    log: list[LogRecord] = field(default_factory=list)
    """As it is followed."""
    attempts: list[Attempt] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """Nodes that were changed lately."""
    last: int = 0
    """The largest offset that was acknowledged."""
    stop: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False
    """Nothing goes on any more: writers leave the batch that is not answered."""
    _sent_s: float = 0.0
    """When an acknowledged batch was sent, at the latest."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def note(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if isinstance(attempt.answer, Acknowledged):
            with self._changing:
                self.last = max(self.last, attempt.answer.offset)
                self._sent_s = max(self._sent_s, attempt.began_s)

    def await_acknowledged(self, since_s: float) -> None:
        """Wait until a batch is acknowledged that was sent after that time."""
        until(lambda: self._sent_s >= since_s, "a batch is acknowledged again")


Answered = Acknowledged | Refused | Passed | Strange


class Writer:
    def __init__(
        self, number: int, workers: Sequence[Reached], token: str, notes: Notes, pace: Pace, seed: str
    ) -> None:
        self._number = number
        self._client = f"writer-{number}"
        self._workers = len(workers)
        self._caller = Caller(workers)
        self._authorization = f"Bearer {token}"
        self._notes = notes
        self._pace = pace
        self._draw = random.Random(f"{seed} writer {number}")  # noqa: S311
        self._own: list[int] = []
        """Nodes of this writer that are there."""
        self._next_node = count(_FIRST_OF_WRITER * (1 + number))

    def run(self) -> None:
        for sequence in count():
            if self._notes.stop.wait(self._draw.uniform(0, self._pace.write_s)):
                break
            batch = self._draw_batch(sequence)
            self._notes.sent[self._client, sequence] = batch
            body, media_type = self._encoded(batch)
            if isinstance(self._send_until_answered(sequence, body, media_type), Acknowledged):
                gone = set(batch.removed)
                there = (*self._own, *(node for node, _ in batch.new))
                self._own = [node for node in there if node not in gone and node not in CONTESTED]
                self._notes.recent.extend(node for node, _ in (*batch.new, *batch.overrides))
                if self._draw.random() < _AGAIN:
                    self._send_until_answered(sequence, body, media_type)
        self._caller.close()

    def _send_until_answered(self, sequence: int, body: bytes, media_type: str) -> Answered:
        headers = {
            "authorization": self._authorization, "content-type": media_type,
            CLIENT_HEADER: self._client, SEQUENCE_HEADER: str(sequence),
        }  # fmt: skip
        turn = sequence // _BEHIND_EACH_OTHER
        preferred = turn if turn % 2 else self._number + turn
        patience = Patience()
        for attempt in count(preferred):
            is_late = self._notes.is_given_up or patience.is_over()
            assert not is_late, f"batch {sequence} of {self._client} is not answered"
            reply = self._caller.call(attempt % self._workers, "POST", "/v1/changes", body, headers)
            if reply is None:
                time.sleep(_NEXT_S)
                continue
            answer = answer_to_batch(reply)
            self._notes.note(Attempt(self._client, sequence, reply.place.process, reply.began_s, reply.ended_s, answer))
            if not isinstance(answer, Unanswered):
                return answer
            time.sleep(_NEXT_S)
        raise AssertionError

    def _encoded(self, batch: Batch) -> tuple[bytes, str]:
        if self._draw.random() < 0.5:
            return to_binary(batch), CHANGES_TYPE
        return json.dumps(to_json(batch)).encode(), "application/json"

    def _draw_batch(self, sequence: int) -> Batch:
        """A batch that fits the graph whatever the others do; or one about a contested node, which may not."""
        draw = self._draw
        value = float(1 + (sequence * 8 + self._number) % (VALUES - 1))
        if draw.random() < 0.15:
            return _draw_contested(draw, value)
        near = [*range(NODES), *self._own]
        new, removed, added, gone = [], [], [], []
        overrides = [(node, value) for node in draw.sample(near, draw.randint(0, 3))]
        if draw.random() < 0.4:
            node = next(self._next_node)
            new.append((node, value))
            added += [(node, other) for other in draw.sample(near, draw.randint(0, 3))]
        if draw.random() < 0.5:
            added += [_edge(draw, near) for _ in range(draw.randint(1, 3))]
            gone += [_edge(draw, near) for _ in range(draw.randint(0, 3))]
        if self._own and draw.random() < 0.2:
            removed.append(draw.choice(self._own))
        if not (new or overrides or added or gone or removed):
            overrides = [(draw.randrange(NODES), value)]
        return Batch(tuple(new), tuple(overrides), tuple(added), tuple(gone), tuple(removed))


def _draw_contested(draw: random.Random, value: float) -> Batch:
    node, other = draw.choice(CONTESTED), draw.randrange(NODES)
    return draw.choice(
        [
            Batch(new=((node, value),), edges=((node, other),)),
            Batch(overrides=((node, value), (other, value))),
            Batch(edges=((other, node),)),
            Batch(overrides=((other, value),), removed=(node,)),
        ]
    )


def _edge(draw: random.Random, nodes: Sequence[int]) -> tuple[int, int]:
    source, target = draw.sample(nodes, 2)
    return source, target


class Reader:
    def __init__(self, number: int, workers: Sequence[Reached], notes: Notes, pace: Pace, seed: str) -> None:
        self._caller = Caller(workers)
        self._workers = len(workers)
        self._notes = notes
        self._pace = pace
        self._draw = random.Random(f"{seed} reader {number}")  # noqa: S311

    def run(self) -> None:
        notes, draw = self._notes, self._draw
        while not notes.stop.wait(draw.uniform(0, self._pace.read_s)):
            recent = [*notes.recent]
            node = draw.choice(recent if recent and draw.random() < 0.7 else (*range(NODES), *CONTESTED))
            min_offset = notes.last if draw.random() < 0.6 else 0
            asked = {"nodes": [node], "return": ["scores"], **({"minOffset": min_offset} if min_offset else {})}
            number = draw.randrange(self._workers)
            reply = self._caller.call(number, "POST", "/v1/predict", json.dumps(asked).encode())
            if reply is not None:
                answer = answer_to_read(reply)
                place = reply.place.process
                notes.reads.append(Read(place, node, min_offset, reply.began_s, reply.ended_s, answer))
        self._caller.close()


class Tail:
    """Follows the log, so that what is compacted away later is known."""

    def __init__(self, workers: Sequence[Reached], notes: Notes) -> None:
        self._workers = workers
        self._notes = notes

    def run(self) -> None:
        caller = Caller(self._workers)
        for number in count():
            if self._notes.stop.is_set():
                break
            if not self.read(caller, number % len(self._workers), wait_s=1):
                time.sleep(_NEXT_S)
        caller.close()

    def read(self, caller: Caller, number: int, wait_s: int = 0) -> bool:
        """Read what a worker has beyond it; whether that was anything."""
        log = self._notes.log
        after = log[-1].offset if log else 0
        path = f"/v1/changes?after={after}&limit={_PAGE_RECORDS}&content=true&wait={wait_s}"
        reply = caller.call(number, "GET", path)
        if reply is None or reply.status in {0, 503}:
            return False
        assert reply.status == 200, reply.body
        log += (records := records_of(reply.body))
        return bool(records)


def records_of(page: bytes) -> list[LogRecord]:
    told = json.loads(page)["records"]
    return [LogRecord(one["offset"], one["client"], one["sequence"], from_json(one["content"])) for one in told]


def answer_to_batch(reply: Reply) -> Acknowledged | Refused | Passed | Unanswered | Strange:
    if reply.status in {0, 503}:
        return Unanswered(reply.error)
    if reply.status == 200:
        told = json.loads(reply.body)
        return Acknowledged(told["offset"], told["repeated"])
    if reply.status == 400 and reply.error.startswith(_REFUSALS):
        record = _RECORD.search(reply.error)
        return Refused(None if record is None else int(record[1].replace(",", "")))
    if reply.status == 409 and reply.error.startswith("SequencePassed"):
        return Passed()
    return Strange(f"{reply.status} {reply.error}")


def answer_to_read(reply: Reply) -> Seen | Absent | Unanswered | Strange:
    if reply.status in {0, 503}:
        return Unanswered(reply.error)
    if reply.status == 200:
        told = json.loads(reply.body)
        return Seen(told["offset"], as_answer(told["scores"][0]))
    if reply.status == 400 and reply.error.startswith("UnknownNode"):
        return Absent()
    return Strange(f"{reply.status} {reply.error}")


def as_answer(scores: Sequence[float]) -> Answer:
    own, mean, mean_of_means = scores
    return own, mean, mean_of_means
