"""The log of a service: what changed its graph, in one order for all workers.

A record is one batch of changes. Offsets count records: 1, 2, 3, … without gaps, and they become visible in order. A
record is durable before its offset is told.

    LogError                      retry later
      LogFullError                make room
      LogConflictError            someone must decide
        LogBehindError            restore what the log lacks
        LogCutError               read on from its first record, or from a newer graph
        SequencePassedError       this batch alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class LogError(Exception):
    """The log cannot be read or written now; what was being appended may have become durable or not. The message says
    what is wrong and what helps."""


class LogFullError(LogError):
    """There is no room for more."""


class LogConflictError(LogError):
    """Another service uses this log, or it is of another schema, or it is behind what a revision was made of. Nothing
    was appended."""


class LogBehindError(LogConflictError):
    """The log lacks batches that it once had: it was restored from an older backup, or replaced."""


class LogCutError(LogConflictError):
    """Records that are asked for are compacted away."""


class SequencePassedError(LogConflictError):
    """A batch cannot be told from one that is compacted away. Others of its group are not to blame."""

    def __init__(self, client: str, sequence: int, passed: int) -> None:
        super().__init__(
            f"batch {sequence} of client {client!r} cannot be told from one that the graph has already: its batches up "
            f"to {passed} are compacted away. A client numbers new batches upwards"
        )
        self.client = client
        self.sequence = sequence


class Entry(msgspec.Struct, frozen=True):
    """A batch that is to be appended."""

    client: str
    sequence: int
    """A client's batches have ascending numbers. A batch that is sent again has the same."""
    changes: int
    """Items of the batch."""
    body: bytes
    """The batch in its binary form (`graph/change_batch.py`)."""


class Record(msgspec.Struct, frozen=True):
    offset: int
    client: str
    sequence: int
    time_ms: int
    """When it was appended: Unix time in milliseconds, by the log's clock."""
    changes: int
    total_changes: int
    """Items of all batches up to it."""
    body: bytes
    previous: int = 0
    """Checksum of the record before; 0: there is none. A log that was restored and then written has another there."""
    checksum: int = 0
    """CRC-32 of all other fields. Logs verify it on reading."""


class AppendResult(msgspec.Struct, frozen=True):
    offset: int
    record: Record | None = None
    """As the log has it; None: it was there already."""

    @property
    def is_repeated(self) -> bool:
        """The log had it already, under the same client and sequence."""
        return self.record is None


class Position(msgspec.Struct, frozen=True):
    first: int
    """The first offset that can be read; last + 1: none."""
    last: int
    """0: nothing was ever appended."""
    total_changes: int
    """Items of all batches up to the last."""


class ChangeLog(Protocol):
    """Methods block, and may be called from several threads. All raise LogError."""

    def append(self, entries: Sequence[Entry], known_offset: int = 0) -> list[AppendResult]:
        """Append in one transaction, in order, durable on return. Entries that the log has are not appended again. A
        sequence that its client has passed and that is compacted away raises SequencePassedError, and a log that ends
        before `known_offset`, which it once had, LogBehindError: nothing is appended then."""
        ...  # pragma: no cover

    def find(self, client: str, sequence: int) -> int | None:
        """The offset of a client's batch; None: it was not appended. SequencePassedError: it cannot be told from one
        that is compacted away."""
        ...  # pragma: no cover

    def read(self, after: int, most_bytes: int) -> list[Record]:
        """Records from `after` + 1 on without a gap, of about so many bytes, at least one if there is any. Raises
        LogCutError where `after` + 1 is compacted away, and LogBehindError where `after` is beyond the last."""
        ...  # pragma: no cover

    def position(self) -> Position: ...  # pragma: no cover

    def wait(self, after: int, timeout_s: float) -> bool:
        """Wait until there is a record beyond `after`; False: there is none yet. It may return early."""
        ...  # pragma: no cover

    def cut(self, through: int) -> None:
        """Remove records up to that offset, and remember what is needed to recognise repeated ones. LogBehindError: it
        is beyond the last."""
        ...  # pragma: no cover

    def drop(self) -> Position:
        """Remove the whole log for good, and close it; where it ended. Workers that follow it say that it is gone."""
        ...  # pragma: no cover

    def close(self) -> None: ...  # pragma: no cover
