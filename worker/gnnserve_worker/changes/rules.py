"""The order of a log, as pure functions: what every kind of log does with a group of batches, and checks on reading.

Checksums are chained: that of a record covers that of the record before. So two logs that differ anywhere differ from
there on, and a worker sees that a log was restored from a backup and then written, though its offsets look right.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gnnserve_worker.changes.log import (
    AppendResult,
    Entry,
    LogBehindError,
    LogCutError,
    LogError,
    Record,
    SequencePassedError,
)

SCHEMA_VERSION = 1
"""Version of the tables. Other versions are refused: a worker of another release must not misread them."""
_FIELDS = struct.Struct("<IqqqqqI")


class LogHead(msgspec.Struct, frozen=True):
    """State of a log, as it keeps it; the row that one writer at a time changes."""

    first: int = 1
    """The first offset that was not cut."""
    last: int = 0
    total_changes: int = 0
    checksum: int = 0
    """Checksum of the last record."""


class AppendGroup(msgspec.Struct, frozen=True):
    """Result of appending a group of entries."""

    appended: list[AppendResult]
    """One for each entry."""
    records: list[Record]
    """The new ones among them."""
    head: LogHead
    """The head after them."""


def number_group(
    entries: Sequence[Entry],
    body_checksums: Sequence[int],
    head: LogHead,
    known: Mapping[tuple[str, int], int],
    passed: Mapping[str, int],
    time_ms: int,
) -> AppendGroup:
    """Give offsets to the entries that the log does not have.

    `known`: offsets of those that it has, by client and sequence. `passed`: the largest sequence that was cut, by
    client. Raises SequencePassedError for the first entry that cannot be told from one that was cut.
    """
    appended: list[AppendResult] = []
    records: list[Record] = []
    offsets = dict(known)
    for entry, body_checksum in zip(entries, body_checksums, strict=True):
        key = (entry.client, entry.sequence)
        if key in offsets:
            appended.append(AppendResult(offsets[key]))
            continue
        require_new(entry.client, entry.sequence, passed)
        record = Record(
            head.last + 1, entry.client, entry.sequence, time_ms, entry.changes, head.total_changes + entry.changes,
            entry.body, head.checksum,
        )  # fmt: skip
        record = msgspec.structs.replace(record, checksum=checksum_of(record, body_checksum))
        offsets[key] = record.offset
        records.append(record)
        appended.append(AppendResult(record.offset, record))
        head = LogHead(head.first, record.offset, record.total_changes, record.checksum)
    return AppendGroup(appended, records, head)


def require_new(client: str, sequence: int, passed: Mapping[str, int]) -> None:
    """Raise SequencePassedError where a batch cannot be told from one that was cut."""
    if sequence <= passed.get(client, -1):
        raise SequencePassedError(client, sequence, passed[client])


def checksum_bodies(entries: Iterable[Entry]) -> list[int]:
    """Checksums of the bodies. Apart from the rest, since it takes time and needs no lock."""
    return [zlib.crc32(entry.body) for entry in entries]


def checksum_of(record: Record, body_checksum: int) -> int:
    """CRC-32 of all fields but the checksum itself."""
    numbers = _FIELDS.pack(
        record.previous, record.offset, record.sequence, record.time_ms, record.changes, record.total_changes,
        body_checksum,
    )  # fmt: skip
    return zlib.crc32(record.client.encode(), zlib.crc32(numbers))


def require_offset(last: int, known_offset: int) -> None:
    """Raise LogBehindError where the log ends before an offset that it once had."""
    if last < known_offset:
        raise LogBehindError(
            f"the log of changes ends at offset {last:,}, and this worker has seen it at {known_offset:,}: it was "
            "restored from an older backup, or replaced. Restore a backup that has these offsets, or generate the "
            "revision anew and restart the workers"
        )


def require_readable(head: LogHead, after: int) -> None:
    """Raise LogCutError or LogBehindError where the log does not have the offset behind `after`, and never will."""
    require_offset(head.last, after)
    if after + 1 < head.first:
        raise LogCutError(
            f"offset {after + 1:,} of the log of changes is compacted away: its first is {head.first:,}. A worker that "
            "needs it must load a newer revision; a client must read the nodes that it is interested in"
        )


def verify(records: Sequence[Record], after: int) -> None:
    """Raise LogError where these are not the records behind `after`, one after the other, as they were written."""
    offset, checksum = after, None
    for record in records:
        if record.offset != offset + 1:
            raise LogError(
                f"the log of changes lacks offset {offset + 1:,} and has {record.offset:,}: records were removed. "
                "Restore it from a backup"
            )
        is_intact = record.checksum == checksum_of(record, zlib.crc32(record.body))
        if not is_intact or checksum not in (None, record.previous):
            raise LogError(
                f"record {record.offset:,} of the log of changes is not what was written: its checksum is wrong. "
                "Restore the log from a backup"
            )
        offset, checksum = record.offset, record.checksum
