"""The log in PostgreSQL: for any number of workers. One database may have the logs of several services.

One writer at a time: a transaction locks the log's row, gives the next offsets to its group of batches and commits
before another one begins. So offsets have no gaps and become visible in order, which a sequence does not give. The
notification is part of the transaction. A writer whose connection is lost does not know whether it committed: it
appends again, and what is there is found by client and sequence, once the lost connection's transaction is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from gnnserve_worker.changes import postgres_statements as sql
from gnnserve_worker.changes.log import (
    AppendResult,
    Entry,
    LogConflictError,
    Position,
    Record,
)
from gnnserve_worker.changes.postgres_connections import Connections, PostgresConnection, discard, explained
from gnnserve_worker.changes.rules import (
    SCHEMA_VERSION,
    AppendGroup,
    LogHead,
    checksum_bodies,
    number_group,
    require_new,
    require_offset,
    require_readable,
    verify,
)

_POLL_S = 1.0
"""How soon records are seen whose notification was lost."""
_CUT_RECORDS = 1000
"""Records that are removed in one transaction, so that others append in between."""
_QUICK_RECORDS = 512
_QUICK_BYTES = 1 << 19
"""Groups up to these two are appended by one statement. COPY is faster for larger ones."""
_BUSY_S = 0.1
"""For so long after another writer was quicker, no append takes for granted how the log ends."""
_ARRAYS = ("offset", "client", "sequence", "time_ms", "changes", "body", "previous")


class PostgresLog:
    """It connects at the first use, and makes the log where there is none. `uri_file` has the address,
    `postgresql://…`: TLS and other options are in its query, as libpq has them."""

    def __init__(self, uri_file: Path, service_uid: str) -> None:
        self._service_uid = service_uid
        self._connections = Connections(uri_file, self._prepare)
        self._was_found = False
        """The log was in the database. It is not made again then."""
        self._head: LogHead | None = None
        """How the log ends, as this object saw it last."""
        self._missed_s = -_BUSY_S
        """When it last ended otherwise than an append took for granted."""
        self._clock_ahead_ms = 0
        """How far the server's clock is ahead of this machine's."""
        self._listening: tuple[PostgresConnection, str] | None = None
        """The connection that notifications come on, and the address that it is to."""
        self._listening_lock = threading.Lock()
        self._looked_s = 0.0
        """When the end of the log was last asked for, by a thread that waits."""
        self._heard = 0
        """The last offset that a notification or an answer told."""

    def append(self, entries: Sequence[Entry], known_offset: int = 0) -> list[AppendResult]:
        body_checksums = checksum_bodies(entries)
        with self._connections.borrow() as connection:
            # Where this fails, it is not known any more how the log ends.
            head, self._head = self._head, None
            group = None
            if head is not None and head.last >= known_offset and _is_small(entries) and not self._is_busy():
                group = self._append_quickly(connection, entries, body_checksums, head)
                if group is None:
                    self._missed_s = time.monotonic()
            if group is None:
                group = self._append_in_turn(connection, entries, body_checksums, known_offset)
        self._head = group.head
        return group.appended

    def find(self, client: str, sequence: int) -> int | None:
        with self._connections.borrow() as connection:
            _, _, offset = self._require_row(_ask(connection, [client], [sequence]).fetchone())
            if offset is None:
                require_new(
                    client, sequence, dict(connection.execute(sql.PASSED, (connection.log_id, [client])).fetchall())
                )
        return None if offset is None else int(offset)

    def read(self, after: int, most_bytes: int) -> list[Record]:
        with self._connections.borrow() as connection:
            cursor = connection.cursor(binary=True)
            cursor.execute(sql.READ, {"log": connection.log_id, "after": after, "most_bytes": most_bytes})
            rows = cursor.fetchall()
        head = LogHead(*self._require_row(rows[0] if rows else None)[:4])
        require_readable(head, after)
        if self._head is None or self._head.last < head.last:
            self._head = head
        records = [Record(*row[4:]) for row in rows if row[4] is not None]
        verify(records, after)
        return records

    def position(self) -> Position:
        with self._connections.borrow() as connection:
            row = connection.execute(
                "SELECT first, last, total_changes FROM gnnserve.log WHERE id = %s", (connection.log_id,)
            ).fetchone()
        return Position(*self._require_row(row))

    def wait(self, after: int, timeout_s: float) -> bool:
        ends_s = time.monotonic() + timeout_s
        with self._listening_lock, explained():
            try:
                return self._listen(after, ends_s)
            except BaseException:
                self._stop_listening()
                raise

    def cut(self, through: int) -> None:
        is_done = False
        while not is_done:
            with self._connections.borrow() as connection, connection.transaction():
                connection.execute(sql.TURN, (connection.log_id,))
                *numbers, _ = self._require_row(connection.execute(sql.LOCK, (connection.log_id,)).fetchone())
                head = LogHead(*numbers)
                require_offset(head.last, through)
                upper = min(through, head.first + _CUT_RECORDS - 1)
                connection.execute(sql.CUT, (connection.log_id, upper))
                connection.execute(
                    'DELETE FROM gnnserve.records WHERE log_id = %s AND "offset" <= %s', (connection.log_id, upper)
                )
                connection.execute(
                    "UPDATE gnnserve.log SET first = greatest(first, %s) WHERE id = %s", (upper + 1, connection.log_id)
                )
            is_done = upper >= through

    def drop(self) -> Position:
        with self._connections.borrow() as connection, connection.transaction():
            connection.execute(sql.TURN, (connection.log_id,))
            *numbers, _ = self._require_row(connection.execute(sql.LOCK, (connection.log_id,)).fetchone())
            head = LogHead(*numbers)
            connection.execute("DELETE FROM gnnserve.records WHERE log_id = %s", (connection.log_id,))
            connection.execute("DELETE FROM gnnserve.clients WHERE log_id = %s", (connection.log_id,))
            connection.execute("DELETE FROM gnnserve.log WHERE id = %s", (connection.log_id,))
        self.close()
        return Position(head.first, head.last, head.total_changes)

    def close(self) -> None:
        with self._listening_lock:
            self._stop_listening()
        self._connections.close()

    def _append_quickly(
        self, connection: PostgresConnection, entries: Sequence[Entry], body_checksums: Sequence[int], head: LogHead
    ) -> AppendGroup | None:
        """Append in one statement, which locks nothing while it is on its way. None: nothing is appended, since the log
        does not end with `head`, or it has one of the entries."""
        time_ms = time.time_ns() // 1_000_000 + self._clock_ahead_ms
        group = number_group(entries, body_checksums, head, {}, {}, time_ms)
        columns = {name: [getattr(r, name) for r in group.records] for name in _ARRAYS}
        try:
            cursor = connection.execute(
                sql.QUICK,
                {
                    **columns,
                    "totals": [r.total_changes for r in group.records],
                    "checksums": [r.checksum for r in group.records],
                    "log": connection.log_id,
                    "was_first": head.first,
                    "was_last": head.last,
                    "was_checksum": head.checksum,
                    "last": group.head.last,
                    "total_changes": group.head.total_changes,
                    "checksum": group.head.checksum,
                    "channel": _channel(connection.log_id),
                    "payload": str(group.head.last),
                },
            )
        except psycopg.errors.UniqueViolation:
            return None
        return group if cursor.rowcount == 1 else None

    def _is_busy(self) -> bool:
        """Another writer appends as well."""
        return time.monotonic() - self._missed_s < _BUSY_S

    def _append_in_turn(
        self, connection: PostgresConnection, entries: Sequence[Entry], body_checksums: Sequence[int], known_offset: int
    ) -> AppendGroup:
        """Append in a transaction that locks the log first, so that it sees what the log has."""
        with connection.pipeline():
            connection.execute("BEGIN")
            connection.execute(sql.TURN, (connection.log_id,))
            locked = connection.execute(sql.LOCK, (connection.log_id,))
            found = _ask(connection, [e.client for e in entries], [e.sequence for e in entries])
            cut = connection.execute(sql.PASSED, (connection.log_id, list({e.client for e in entries})))
        *numbers, time_ms = self._require_row(locked.fetchone())
        self._clock_ahead_ms = time_ms - time.time_ns() // 1_000_000
        head = LogHead(*numbers)
        require_offset(head.last, known_offset)
        known = {(client, sequence): offset for client, sequence, offset in found if offset is not None}
        group = number_group(entries, body_checksums, head, known, dict(cut.fetchall()), time_ms)
        if group.records:
            _copy(connection, group)
        else:
            connection.execute("ROLLBACK")
        return group

    def _listen(self, after: int, ends_s: float) -> bool:
        """Whether there is a record beyond `after`, by notifications; each second, and at first, by asking."""
        if self._listening is not None and self._listening[1] != self._connections.address():
            self._stop_listening()
        if self._listening is None:
            self._listening = self._connections.open()
            connection = self._listening[0]
            # Before the first look, so that nothing is missed between the two.
            connection.execute(f"LISTEN {_channel(connection.log_id)}")
            self._looked_s = self._heard = 0
        connection = self._listening[0]
        # What came meanwhile, at least: the server keeps what is not taken.
        self._hear(connection, 0.0)
        while self._heard <= after:
            now_s = time.monotonic()
            if now_s - self._looked_s >= _POLL_S:
                row = connection.execute("SELECT last FROM gnnserve.log WHERE id = %s", (connection.log_id,)).fetchone()
                self._looked_s, (self._heard,) = now_s, self._require_row(row)
                continue
            if now_s >= ends_s:
                return False
            self._hear(connection, min(ends_s, self._looked_s + _POLL_S) - now_s)
        return True

    def _hear(self, connection: PostgresConnection, timeout_s: float) -> None:
        """Wait for a notification, and take all that have come."""
        for notification in connection.notifies(timeout=timeout_s, stop_after=1):
            self._heard = int(notification.payload)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            discard(self._listening[0])
            self._listening = None

    def _prepare(self, connection: PostgresConnection) -> None:
        """Find the log in the database; make it where there is none."""
        if not _has_tables(connection):
            # The lock is the session's: the transaction after it sees what was made by another that had it before.
            connection.execute("SELECT pg_advisory_lock(%s, 0)", (sql.LOCK_SPACE,))
            if not _has_tables(connection):
                connection.execute(sql.TABLES)
            connection.execute("SELECT pg_advisory_unlock(%s, 0)", (sql.LOCK_SPACE,))
        # Asked before the database is: another thread may make the log in between.
        was_found = self._was_found
        find = "SELECT id, schema_version FROM gnnserve.log WHERE service_uid = %s"
        row = connection.execute(find, (self._service_uid,)).fetchone()
        if row is None and not was_found:
            connection.execute(
                "INSERT INTO gnnserve.log (service_uid, schema_version, first, last, total_changes, checksum) "
                "VALUES (%s, %s, 1, 0, 0, 0) ON CONFLICT (service_uid) DO NOTHING",
                (self._service_uid, SCHEMA_VERSION),
            )
            row = connection.execute(find, (self._service_uid,)).fetchone()
        connection.log_id, version = self._require_row(row)
        self._was_found = True
        if version != SCHEMA_VERSION:
            raise LogConflictError(
                f"the log of changes of the service with uid {self._service_uid} is of schema {version}, and this "
                f"release reads schema {SCHEMA_VERSION}: use the release that wrote it"
            )

    def _require_row(self, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if row is None:
            raise LogConflictError(
                f"the log of changes of the service with uid {self._service_uid} is not in the database any more: "
                "restore it from a backup, or restart the workers to begin another"
            )
        return row


def _is_small(entries: Sequence[Entry]) -> bool:
    return len(entries) <= _QUICK_RECORDS and sum(len(entry.body) for entry in entries) <= _QUICK_BYTES


def _copy(connection: PostgresConnection, group: AppendGroup) -> None:
    """Write the group, and end the transaction that has the log locked. The primary key fences: had another writer got
    here, nothing of this would be written."""
    log_id, head = connection.log_id, group.head
    with connection.cursor() as cursor, cursor.copy(sql.COPY) as copy:
        copy.set_types(sql.TYPES)
        for record in group.records:
            copy.write_row((log_id, *msgspec.structs.astuple(record)))
    with connection.pipeline():
        connection.execute(sql.ADVANCE, (head.last, head.total_changes, head.checksum, log_id))
        connection.execute("SELECT pg_notify(%s, %s)", (_channel(log_id), str(head.last)))
        connection.execute("COMMIT")


def _ask(connection: PostgresConnection, clients: list[str], sequences: list[int]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Ask for the offsets that the log has for these."""
    return connection.execute(sql.KNOWN, {"log": connection.log_id, "clients": clients, "sequences": sequences})


def _has_tables(connection: PostgresConnection) -> bool:
    return connection.execute("SELECT to_regclass('gnnserve.clients')").fetchone() != (None,)


def _channel(log_id: int) -> str:
    return f"gnnserve_log_{log_id}"
