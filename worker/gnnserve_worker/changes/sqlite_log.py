"""The log as a SQLite file: for a service on one machine. Several processes of it may share the file.

SQLite lets one transaction write at a time, and syncs its write-ahead log before a commit returns.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gnnserve_api.errors import permission_remedy
from gnnserve_worker.changes.log import (
    AppendResult,
    Entry,
    LogConflictError,
    LogError,
    LogFullError,
    Position,
    Record,
)
from gnnserve_worker.changes.rules import (
    SCHEMA_VERSION,
    LogHead,
    checksum_bodies,
    number_group,
    require_new,
    require_offset,
    require_readable,
    verify,
)

_BUSY_S = 10.0
"""Longest wait for another process's transaction. None takes so long, but where its process is stopped."""
_TURN_S = 0.0005
"""How soon a writer tries again while another one writes. SQLite's own waiting becomes 100 ms long."""
_POLL_S = 0.01
"""How soon what other processes append is seen. What this process appends is seen at once."""
_IDLE = 3
"""Connections that are kept open: for the thread that appends, the one that follows, and one request."""
_CUT_RECORDS = 1000
"""Records that are removed in one transaction, so that others append in between."""
_FULL_BYTES = 1 << 16
_TABLES = (
    "CREATE TABLE log (service_uid TEXT NOT NULL, schema_version INTEGER NOT NULL, first INTEGER NOT NULL, "
    "last INTEGER NOT NULL, total_changes INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    'CREATE TABLE records ("offset" INTEGER PRIMARY KEY, client TEXT NOT NULL, sequence INTEGER NOT NULL, '
    "time_ms INTEGER NOT NULL, changes INTEGER NOT NULL, total_changes INTEGER NOT NULL, body BLOB NOT NULL, "
    "previous INTEGER NOT NULL, checksum INTEGER NOT NULL, UNIQUE (client, sequence))",
    "CREATE TABLE clients (client TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID",
)
"""`log` has one row. `clients`: per client the largest sequence that was cut."""
_HEAD = "SELECT first, last, total_changes, checksum FROM log"
_INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
"""In the order of the fields of `Record`."""
_READ = 'SELECT * FROM records WHERE "offset" > ? ORDER BY "offset"'


_File = tuple[int, int]
"""Device and inode."""


class SqliteLog:
    """It opens the file at the first use, and makes it where there is none."""

    def __init__(self, path: Path, service_uid: str) -> None:
        self._path = path
        self._service_uid = service_uid
        self._idle: list[sqlite3.Connection] = []
        self._file: _File | None = None
        """The file that idle connections are to; None: there are none."""
        self._lock = threading.Lock()
        """Held while the two above are changed."""
        self._appended = threading.Condition()
        self._groups = 0
        """How many groups this object has appended."""

    def append(self, entries: Sequence[Entry], known_offset: int = 0) -> list[AppendResult]:
        body_checksums = checksum_bodies(entries)
        with self._writing() as connection:
            head = _head(connection)
            require_offset(head.last, known_offset)
            known: dict[tuple[str, int], int] = {}
            passed: dict[str, int] = {}
            for entry in entries:
                key = (entry.client, entry.sequence)
                if (offset := _find(connection, *key)) is not None:
                    known[key] = offset
                elif entry.client not in passed:
                    passed |= _passed(connection, entry.client)
            group = number_group(entries, body_checksums, head, known, passed, time.time_ns() // 1_000_000)
            connection.executemany(
                _INSERT,
                (msgspec.structs.astuple(record) for record in group.records),
            )
            connection.execute(
                "UPDATE log SET last = ?, total_changes = ?, checksum = ?",
                (group.head.last, group.head.total_changes, group.head.checksum),
            )
        with self._appended:
            self._groups += 1
            self._appended.notify_all()
        return group.appended

    def find(self, client: str, sequence: int) -> int | None:
        with self._connection() as connection:
            offset = _find(connection, client, sequence)
            if offset is None:
                require_new(client, sequence, _passed(connection, client))
            return offset

    def read(self, after: int, most_bytes: int) -> list[Record]:
        records: list[Record] = []
        size = 0
        with self._connection() as connection:
            # One transaction, so that nothing is cut in between.
            connection.execute("BEGIN")
            require_readable(_head(connection), after)
            for row in connection.execute(_READ, (after,)):
                records.append(Record(*row))
                size += len(records[-1].body)
                if size >= most_bytes:
                    break
            connection.execute("COMMIT")
        verify(records, after)
        return records

    def position(self) -> Position:
        with self._connection() as connection:
            head = _head(connection)
        return Position(head.first, head.last, head.total_changes)

    def wait(self, after: int, timeout_s: float) -> bool:
        ends_s = time.monotonic() + timeout_s
        groups = self._groups
        while self.position().last <= after:
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                return False
            with self._appended:
                if self._groups == groups:
                    self._appended.wait(min(_POLL_S, left_s))
                groups = self._groups
        return True

    def cut(self, through: int) -> None:
        is_done = False
        while not is_done:
            with self._writing() as connection:
                head = _head(connection)
                require_offset(head.last, through)
                upper = min(through, head.first + _CUT_RECORDS - 1)
                connection.execute(
                    'INSERT INTO clients SELECT client, max(sequence) FROM records WHERE "offset" <= ? GROUP BY client '
                    "ON CONFLICT (client) DO UPDATE SET sequence = max(sequence, excluded.sequence)",
                    (upper,),
                )
                connection.execute('DELETE FROM records WHERE "offset" <= ?', (upper,))
                connection.execute("UPDATE log SET first = max(first, ?)", (upper + 1,))
            is_done = upper >= through

    def drop(self) -> Position:
        # Emptied first, so that a worker which has the file open sees an end, and appends nothing that would be lost.
        with self._writing() as connection:
            head = _head(connection)
            connection.execute("DELETE FROM records")
            connection.execute("DELETE FROM clients")
            connection.execute("UPDATE log SET first = 1, last = 0, total_changes = 0, checksum = 0")
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return Position(head.first, head.last, head.total_changes)

    def close(self) -> None:
        with self._lock:
            self._close_idle()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, in turn with those of other threads and processes; committed at the end."""
        with self._connection() as connection:
            _begin(connection)
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile. One that an error was met on is closed, which rolls back
        its transaction."""
        connection = None
        try:
            connection, file = self._take()
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise self._explain(error) from error
            raise
        with self._lock:
            if len(self._idle) < _IDLE and self._file == file:
                self._idle.append(connection)
                return
        connection.close()

    def _take(self) -> tuple[sqlite3.Connection, _File | None]:
        with self._lock:
            if self._file is None or self._file != _identify(self._path):
                # Removed or replaced: what is open is no longer the log.
                self._close_idle()
                self._idle.append(self._open())
                self._file = _identify(self._path)
            if self._idle:
                return self._idle.pop(), self._file
            file = self._file
        return self._open(), file

    def _close_idle(self) -> None:
        self._file = None
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            # The latter two are for macOS, where fsync does not reach the disk.
            for pragma in ("synchronous=FULL", "fullfsync=ON", "checkpoint_fullfsync=ON"):
                connection.execute(f"PRAGMA {pragma}")
            if not _tables(connection):
                self._make(connection)
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make(self, connection: sqlite3.Connection) -> None:
        """Make the tables, unless another process does."""
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise LogError(
                f"the log of changes {self._path} is on a file system that SQLite's write-ahead log cannot be on, such "
                "as one over a network: put it on a disk of this machine"
            )
        _begin(connection)
        if not _tables(connection):
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO log VALUES (?, ?, 1, 0, 0, 0)", (self._service_uid, SCHEMA_VERSION))
        connection.execute("COMMIT")
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check(self, connection: sqlite3.Connection) -> None:
        """Raise LogConflictError where this is not the service's log."""
        if "log" not in _tables(connection):
            raise LogConflictError(
                f"{self._path} is a SQLite file of something else, without a log of changes: name another file"
            )
        found_uid, version = connection.execute("SELECT service_uid, schema_version FROM log").fetchone()
        if version != SCHEMA_VERSION:
            raise LogConflictError(
                f"the log of changes {self._path} is of schema {version}, and this release reads schema "
                f"{SCHEMA_VERSION}: use the release that wrote it"
            )
        if found_uid != self._service_uid:
            raise LogConflictError(
                f"the log of changes {self._path} belongs to the service with uid {found_uid}, not to this one, whose "
                f"uid is {self._service_uid}: name another file"
            )

    def _explain(self, error: sqlite3.Error | OSError) -> LogError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and self._is_disk_full()):
            return LogFullError(f"the disk with the log of changes {self._path} is full: make room on it")
        return LogError(f"the log of changes {self._path} {self._described(code, error)}")

    def _described(self, code: int, error: sqlite3.Error | OSError) -> str:
        if code in _CLOSED:
            is_read_only = self._path.parent.is_dir() and os.statvfs(self._path.parent).f_flag & os.ST_RDONLY
            return f"{_CLOSED[code]}: {_READ_ONLY if is_read_only else permission_remedy(self._path)}"
        if isinstance(error, PermissionError):
            return f"cannot be used: {permission_remedy(self._path)}"
        return _REMEDIES.get(code, f"cannot be used: {error}")

    def _is_disk_full(self) -> bool:
        """SQLite has no room for its index of the write-ahead log, and says only that it failed."""
        return shutil.disk_usage(self._path.parent).free < _FULL_BYTES


_CLOSED = {sqlite3.SQLITE_READONLY: "cannot be written", sqlite3.SQLITE_CANTOPEN: "cannot be opened"}
"""Codes of SQLite where its user may not use the file or its folder."""
_READ_ONLY = "the disk that it is on is mounted read-only, and has to be writable"
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "is locked by another process, which is stopped or busy: end what else has it open",
    sqlite3.SQLITE_NOTADB: "is not a SQLite file: name another file, or restore this one from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a backup",
}


def _head(connection: sqlite3.Connection) -> LogHead:
    return LogHead(*connection.execute(_HEAD).fetchone())


def _find(connection: sqlite3.Connection, client: str, sequence: int) -> int | None:
    found = connection.execute(
        'SELECT "offset" FROM records WHERE client = ? AND sequence = ?', (client, sequence)
    ).fetchone()
    return None if found is None else int(found[0])


def _passed(connection: sqlite3.Connection, client: str) -> dict[str, int]:
    """The largest sequence of the client that was cut, if any was."""
    return dict(connection.execute("SELECT client, sequence FROM clients WHERE client = ?", (client,)).fetchall())


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction that writes, when it is this connection's turn."""
    ends_s = time.monotonic() + _BUSY_S
    connection.execute("PRAGMA busy_timeout=0")
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= ends_s:
                raise
            time.sleep(_TURN_S)
    connection.execute(f"PRAGMA busy_timeout={_BUSY_S * 1000:.0f}")


def _identify(path: Path) -> _File | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
