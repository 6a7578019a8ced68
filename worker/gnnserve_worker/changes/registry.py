"""All kinds of logs. A new one is added here; what it imports is for those who use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.changes.log import ChangeLog, LogConflictError, LogError
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile


def _open_sqlite(place: SqliteFile, service_uid: str) -> ChangeLog:
    from gnnserve_worker.changes.sqlite_log import SqliteLog  # noqa: PLC0415

    return SqliteLog(place.path, service_uid)


def _open_postgres(place: PostgresAddress, service_uid: str) -> ChangeLog:
    # It takes 8 MB, and looks for a library of the system.
    from gnnserve_worker.changes.postgres_log import PostgresLog  # noqa: PLC0415

    return PostgresLog(place.uri_file, service_uid)


LOGS: Mapping[type[object], Callable[[Any, str], ChangeLog]] = {
    SqliteFile: _open_sqlite,
    PostgresAddress: _open_postgres,
}
"""What opens a log, by where it is."""


def open_log(place: SqliteFile | PostgresAddress, service_uid: str) -> ChangeLog:
    """A service's log. Nothing is opened before the first use, which raises LogError where it fails: a worker starts
    without its log, and answers."""
    return LOGS[type(place)](place, service_uid)


@contextmanager
def opened_log(place: SqliteFile | PostgresAddress, service_uid: str) -> Iterator[ChangeLog]:
    """A service's log for a command or a Job, which a person reads what is wrong with: InputError where someone must
    decide, ResourceError where a later try may help."""
    try:
        with closing(open_log(place, service_uid)) as log:
            yield log
    except LogConflictError as error:
        raise InputError("spec.updates.log", str(error)) from error
    except LogError as error:
        raise ResourceError(f"the log of changes: {error}") from error
