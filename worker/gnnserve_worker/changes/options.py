"""Options of a server about the changes of its graph: where their log is, whose it is, how much memory they may take.

A pod reads it from its environment, `gnnserve run` makes it of the manifest and its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """The log as a file of this machine. Folder and file may be missing."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The log in a PostgreSQL."""

    uri_file: Path
    """A file with the address (`address.py`). It may be missing, and may change: read it for each new connection."""


@dataclass(frozen=True, slots=True)
class UpdatesOptions:
    log: SqliteFile | PostgresAddress
    uid: str
    """uid of the service, which the log is named by: a log of another uid is another service's."""
    max_delta_bytes: int
    """Memory that changes may take, beside what the server takes without any."""
