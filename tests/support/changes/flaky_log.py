"""A log in which what tests choose goes wrong, around one that works."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gnnserve_worker.changes.log import AppendResult, ChangeLog, Entry, Position, Record


class FlakyLog:
    def __init__(self, log: ChangeLog) -> None:
        self.log = log
        self.before: list[Exception] = []
        """Raised by the next calls of `append`, which append nothing."""
        self.after: list[Exception] = []
        """Raised by the next calls of `append` that append."""
        self.reading: list[Exception] = []
        """Raised by the next calls of `read`."""
        self.groups: list[list[Entry]] = []
        """What `append` was called with."""
        self.reads = 0
        self.gate = threading.Event()
        """While it is clear, `append` waits."""
        self.gate.set()
        self.reached = threading.Event()
        """Set when `append` is called."""
        self.is_blind = threading.Event()
        """While it is set, nothing new is seen."""

    def append(self, entries: Sequence[Entry], known_offset: int = 0) -> list[AppendResult]:
        self.groups.append(list(entries))
        self.reached.set()
        assert self.gate.wait(60)
        if self.before:
            raise self.before.pop(0)
        appended = self.log.append(entries, known_offset)
        if self.after:
            raise self.after.pop(0)
        return appended

    def find(self, client: str, sequence: int) -> int | None:
        return self.log.find(client, sequence)

    def read(self, after: int, most_bytes: int) -> list[Record]:
        self.reads += 1
        if self.reading:
            raise self.reading.pop(0)
        return self.log.read(after, most_bytes)

    def position(self) -> Position:
        if self.is_blind.is_set():
            return Position(1, 0, 0)
        return self.log.position()

    def wait(self, after: int, timeout_s: float) -> bool:
        return self.log.wait(after, timeout_s) and not self.is_blind.wait(0.0)

    def cut(self, through: int) -> None:
        self.log.cut(through)

    def drop(self) -> Position:
        return self.log.drop()

    def close(self) -> None:
        self.log.close()
