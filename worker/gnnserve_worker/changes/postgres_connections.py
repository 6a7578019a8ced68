"""Connections to a PostgreSQL: when one is made, how long anything may take on it, and what its errors mean.

Every wait ends: no operating system tells of a server that is stopped or cut off, so the time limits here do. A
connection that an error was met on is closed. Messages are for status and answers, so they have no part of the address;
what the server or libpq said is the cause of the error, for the worker's own log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gnnserve_api.errors import InputError
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.changes.log import LogConflictError, LogError, LogFullError

_log = logging.getLogger(__name__)

OLDEST_SERVER = 15
_IDLE = 3
"""Connections that are kept open: for the thread that appends, the one that follows, and one request."""
_ANSWER_S = 12.0
"""Longest wait for the server in one step; longer than its own limits, so that it may say what took so long."""
_DEFAULTS: Mapping[str, str | int] = {
    "application_name": "gnnserve",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # Of several hosts the one that is not a standby.
    "target_session_attrs": "read-write",
}
"""What the address need not say. After 25 seconds a server that is cut off counts as gone."""
_SETTINGS: Mapping[str, str] = {
    "statement_timeout": "10s",
    "lock_timeout": "5s",
    # A worker that is stopped in the middle of a transaction must not keep others from writing.
    "idle_in_transaction_session_timeout": "3s",
    # Every query looks up a few rows by an index, in its order. What the server knows of a table that grows must not
    # make it a scan.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

_Result = TypeVar("_Result")


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no step takes longer than `_ANSWER_S`."""

    log_id: int = 0
    """The log's key in the database."""

    def wait(self, gen: PQGen[_Result], interval: float = 0.1, timeout: float | None = None) -> _Result:
        return super().wait(gen, interval, _ANSWER_S if timeout is None else timeout)


class Connections:
    """Connections to the PostgreSQL whose address is in a file. A changed address is followed."""

    def __init__(self, uri_file: Path, prepare: Callable[[PostgresConnection], None]) -> None:
        """`prepare` is called with each new connection."""
        self._uri_file = uri_file
        self._prepare = prepare
        self._idle: list[tuple[PostgresConnection, str]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def borrow(self) -> Iterator[PostgresConnection]:
        """A connection that no other thread uses meanwhile. Errors become LogError."""
        connection = None
        with explained():
            try:
                connection, uri = self._take()
                yield connection
            except BaseException:
                if connection is not None:
                    discard(connection)
                raise
        with self._lock:
            if len(self._idle) < _IDLE and not self._is_closed:
                self._idle.append((connection, uri))
                return
        discard(connection)

    def open(self) -> tuple[PostgresConnection, str]:
        """Another connection, and the address that it is to. Raises LogError, and psycopg's errors."""
        uri = self.address()
        try:
            parameters: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(uri)}
            conninfo = make_conninfo(**parameters)
        except psycopg.ProgrammingError:
            # Without the cause, which may cite the password.
            raise LogError(
                "the address of the PostgreSQL with the log of changes cannot be read: it is like "
                "postgresql://user:password@host:5432/database, with special characters of the password as %40"
            ) from None
        connection = PostgresConnection.connect(conninfo, autocommit=True)
        try:
            _require_version(connection.info.server_version)
            _set_up(connection)
            self._prepare(connection)
        except BaseException:
            discard(connection)
            raise
        return connection, uri

    def address(self) -> str:
        try:
            return read_address(self._uri_file)
        except InputError as error:
            raise LogError(f"the address of the PostgreSQL with the log of changes: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            discard(connection)

    def _take(self) -> tuple[PostgresConnection, str]:
        address = self.address()
        with self._lock:
            while self._idle:
                connection, uri = self._idle.pop()
                if uri == address and not connection.closed:
                    return connection, uri
                discard(connection)
        return self.open()


def discard(connection: PostgresConnection) -> None:
    """Close it, whatever state it is in. The server rolls back what was not committed."""
    with suppress(psycopg.Error, OSError):
        connection.close()


@contextmanager
def explained() -> Iterator[None]:
    """Turn psycopg's errors into LogError."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from error


def explain(error: psycopg.Error) -> LogError:
    """What an error means for the log, and what helps."""
    state = error.sqlstate or ""
    for prefix, (kind, words) in _MEANINGS.items():
        if state.startswith(prefix):
            return kind(f"{_SUBJECT} {words}")
    if state:
        return LogError(f"{_SUBJECT} answered with error {state}: the worker's log has its words")
    return LogError(
        f"{_SUBJECT} went away, or lets the worker not connect: see that it runs, and that its address in the Secret "
        "has the right host, database, user and password. The worker's log has what it said"
    )


_SUBJECT = "the PostgreSQL with the log of changes"
_MEANINGS: Mapping[str, tuple[type[LogError], str]] = {
    "08": (LogError, "went away: see that it runs"),
    "23505": (LogError, "has a record at this offset already, from another writer: it is tried again"),
    "25006": (LogError, "is a standby, which cannot be written: the address must name the primary"),
    "42501": (
        LogError,
        "does not let the user make or use the schema gnnserve: make the user the owner of the database, or grant it "
        "CREATE on the database",
    ),
    "42P01": (LogConflictError, "has tables of another release in the schema gnnserve: use the release that made them"),
    "42703": (LogConflictError, "has tables of another release in the schema gnnserve: use the release that made them"),
    "53100": (LogFullError, "has a full disk: make room on it"),
    "55P03": (LogError, "kept the log locked for too long: another worker is stopped, or the server is overloaded"),
    "57014": (LogError, "took too long: it is overloaded, or its disk is slow"),
    "57": (LogError, "is shutting down or starting"),
}
"""By SQLSTATE or its beginning, the longer before the shorter. Those of a failed connect are not told."""


def _require_version(server_version: int) -> None:
    found = server_version // 10_000
    if found < OLDEST_SERVER:
        raise LogConflictError(
            f"{_SUBJECT} is of version {found}, and {OLDEST_SERVER} is the oldest that keeps it: upgrade the server"
        )


def _set_up(connection: PostgresConnection) -> None:
    names, values = list(_SETTINGS), list(_SETTINGS.values())
    connection.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)",
        (names, values),
    )
    # Where it is off, a commit is told before it is durable; what a standby has to do with it is the server's choice.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    unsafe = connection.execute("SELECT name FROM pg_settings WHERE name = 'fsync' AND setting = 'off'").fetchone()
    if unsafe is not None:
        _log.warning("%s runs with fsync off: what it confirms is lost when its machine fails", _SUBJECT)
