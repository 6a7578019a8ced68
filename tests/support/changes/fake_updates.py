"""A log of changes in memory, and a replica of it that a test may hold back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from gnnserve_worker.changes.log import LogConflictError, LogError, Record
from gnnserve_worker.changes.worker_log import ChangesRefusedError, Outcome
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeRefusal

TIME_MS = 1_795_000_000_000


@dataclass(slots=True)
class FakeUpdates:
    """It applies what is appended at once, unless it is held back. It has no graph: a test says what is refused."""

    records: list[Record] = field(default_factory=list)
    applied: int = 0
    first: int = 1
    is_held: bool = False
    """What is appended is not applied until `apply_all`."""
    check: ChangeRefusal | None = None
    """Refuses batches before they are durable."""
    refusal: ChangeRefusal | None = None
    """Refuses batches after they are durable."""
    failure: LogError | None = None
    """The log cannot be read or written."""
    unchanged: int = 0
    problem: str | None = None
    staleness_s: float = 0.0
    refused: Mapping[int, ChangeRefusal] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waits: list[int] = field(default_factory=list)
    """Offsets that were waited for."""
    handed_over: list[object] = field(default_factory=list)
    """Replicas that were brought to where the followed one is."""
    replica: object | None = None
    """The one that is followed."""
    why_stuck: str | None = None
    on_followed: Callable[[], None] = lambda: None
    is_started: bool = False
    is_closed: bool = False

    @property
    def reported(self) -> int:
        return self.applied

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1

    @property
    def changes_behind(self) -> int:
        return sum(record.changes for record in self.records if record.offset > self.applied)

    def append(self, body: bytes = b"", changes: int = 1, client: str = "another", sequence: int = 1) -> int:
        """Append a record as another worker does."""
        total = changes + (self.records[-1].total_changes if self.records else 0)
        self.records.append(Record(self.last + 1, client, sequence, TIME_MS, changes, total, body))
        if not self.is_held:
            self.apply_all()
        return self.last

    def apply_all(self) -> None:
        self.applied = self.last
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def problem_error(self) -> LogError | None:
        return None if self.problem is None else LogError(self.problem)

    @contextmanager
    def handing_over(self, replica: object) -> Iterator[None]:
        if self.failure is not None:
            raise self.failure
        self.handed_over.append(replica)
        yield

    def start(self) -> None:
        self.is_started = True

    def follow(self, replica: object | None) -> None:
        self.replica = replica

    async def submit(self, body: bytes, batch: ChangeBatch, client: str, sequence: int) -> Outcome:
        if self.failure is not None:
            raise self.failure
        for record in self.records:
            if (record.client, record.sequence) == (client, sequence):
                return Outcome(record.offset, self.unchanged, True, self.refused.get(record.offset))
        if self.check is not None:
            raise ChangesRefusedError(self.check)
        offset = self.append(body, batch.counts.items, client, sequence)
        if self.refusal is not None:
            self.refused = {**self.refused, offset: self.refusal}
        await self.wait_applied(offset, 60)
        return Outcome(offset, self.unchanged, False, self.refusal)

    async def wait_applied(self, offset: int, timeout_s: float) -> bool:
        self.waits.append(offset)
        try:
            async with asyncio.timeout(timeout_s):
                while self.applied < offset:
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    async def read(self, after: int, most_bytes: int) -> list[Record]:
        if self.failure is not None:
            raise self.failure
        if after < self.first - 1:
            raise LogConflictError(f"records up to {self.first - 1} are compacted away")
        taken: list[Record] = []
        for record in self.records:
            if record.offset > after and (not taken or sum(len(one.body) for one in taken) < most_bytes):
                taken.append(record)
        return taken

    async def close(self) -> None:
        self.is_closed = True
