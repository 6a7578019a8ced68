"""Where a pod's environment says that the log of changes is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gnnserve_api.errors import InputError
from gnnserve_api.pods.interface import (
    MAX_DELTA_VARIABLE,
    POSTGRES_LOG_VARIABLE,
    SERVICE_UID_VARIABLE,
    SQLITE_LOG_VARIABLE,
)
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile, UpdatesOptions
from gnnserve_worker.pods.environment import required

_LOGS: Mapping[str, Callable[[Path], SqliteFile | PostgresAddress]] = {
    SQLITE_LOG_VARIABLE: SqliteFile,
    POSTGRES_LOG_VARIABLE: PostgresAddress,
}


def read_updates(environ: Mapping[str, str]) -> UpdatesOptions | None:
    """None: there is no log, and the graph stays as it was generated."""
    named = [variable for variable in _LOGS if variable in environ]
    if not named:
        return None
    if len(named) > 1:
        words = f"environment variables {' and '.join(named)}"
        raise InputError(words, "are both set, and a service has one log", "leave one out")
    log = _LOGS[named[0]](Path(required(environ, named[0])))
    return UpdatesOptions(log, required(environ, SERVICE_UID_VARIABLE), _bytes(environ))


def _bytes(environ: Mapping[str, str]) -> int:
    text = required(environ, MAX_DELTA_VARIABLE)
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(
            f"environment variable {MAX_DELTA_VARIABLE}",
            f"{text!r} is not a number of bytes",
            "the operator sets it in every pod it makes",
        )
    return int(text)
