"""Logs of changes for tests: one of each kind, all made the same way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.changes.postgres import PostgresServer

from gnnserve_worker.changes.log import ChangeLog, Entry, Record
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile
from gnnserve_worker.changes.registry import open_log

UID = "0b9c6cf6-6d6c-4d5e-9e1d-0a4d55f0c8b1"


@dataclass
class LogPlace:
    """Where a log lies. Each `open` is another object, as if in another process."""

    place: SqliteFile | PostgresAddress
    uid: str = UID
    server: PostgresServer | None = None
    opened: list[ChangeLog] = field(default_factory=list)

    def open(self, uid: str | None = None) -> ChangeLog:
        log = open_log(self.place, uid or self.uid)
        self.opened.append(log)
        return log

    @property
    def path(self) -> Path:
        return self.place.path if isinstance(self.place, SqliteFile) else self.place.uri_file

    def close(self) -> None:
        for log in self.opened:
            log.close()

    def change(self, statement: str) -> list[Any]:
        """Run a statement on the tables, behind the log's back; they are called `{log}`, `{records}`, `{clients}`."""
        names = ("log", "records", "clients")
        if self.server is not None:
            found = statement.format(**{name: f"gnnserve.{name}" for name in names})
            return self.server.execute(found)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement.format(**{name: name for name in names})).fetchall()


def sqlite_place(folder: Path) -> LogPlace:
    return LogPlace(SqliteFile(folder / "updates" / "log.sqlite"))


def postgres_place(server: PostgresServer, folder: Path) -> LogPlace:
    """A log in the server's one database, of which `clear` makes a new one."""
    path = folder / "uri"
    path.write_text(server.uri() + "\n")
    return LogPlace(PostgresAddress(path), server=server)


def clear(server: PostgresServer) -> None:
    """Remove all logs, and the settings of the database."""
    server.execute("DROP SCHEMA IF EXISTS gnnserve CASCADE")
    server.execute("ALTER DATABASE postgres RESET ALL")


def entry(client: str, sequence: int, body: bytes = b"body", changes: int = 1) -> Entry:
    return Entry(client, sequence, changes, body)


def entries(client: str, *sequences: int) -> list[Entry]:
    return [entry(client, sequence, f"{client} {sequence}".encode()) for sequence in sequences]


def read_all(log: ChangeLog, after: int = 0) -> list[Record]:
    """All records behind `after`."""
    records: list[Record] = []
    while more := log.read(records[-1].offset if records else after, 1 << 20):
        records += more
    return records
