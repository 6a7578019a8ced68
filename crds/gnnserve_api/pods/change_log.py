"""The log of changes of a service's graph: where it lies, and what a worker tells of following it.

Operator, workers and command line share it. What a batch of changes is: `http/changes.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

URI_KEY = "uri"
"""Key of the Secret whose value is the address of the PostgreSQL; CloudNativePG's Secrets have the same."""

Offset = Annotated[int, Meta(ge=0, le=2**53)]
"""An offset of the log, or a number of changes. Bounded, since the status repeats it."""
_MOST_SECONDS = 1e9


def logs_folder(namespace: str, service: str) -> str:
    """Path of the folder with a service's SQLite logs, below the repository's root."""
    return f"{namespace}/{service}/updates"


def sqlite_file(uid: str) -> str:
    """Path of a SQLite log in that folder; SQLite makes other files beside it. `uid`: of the service; one that is made
    anew under the same name has another uid, and begins a log of its own."""
    return f"{uid}/log.sqlite"


class UpdatesProblemKind(StrEnum):
    """Why a worker cannot follow the log, or cannot write to it. Each is a reason of the condition UpdatesFollowed."""

    LOG_CONFLICT = "LogConflict"
    """It is another service's log, of another schema, or behind what the revision or this worker has."""
    LOG_UNAVAILABLE = "LogUnavailable"
    """It cannot be read or written now: it is away, it is full, or it refuses the worker."""
    DELTA_FULL = "DeltaFull"
    """The changes in memory take `maxDelta`: no further ones are taken or applied."""


class UpdatesProblem(msgspec.Struct, frozen=True, rename="camel"):
    """Why a worker cannot follow the log, or cannot write to it. It is public, and has no part of the address."""

    kind: str
    """An `UpdatesProblemKind`; a newer worker may tell of others."""
    message: str
    """A sentence: what is wrong and what helps."""


class UpdatesState(msgspec.Struct, frozen=True, rename="camel"):
    """How far a worker has followed the log of changes."""

    last: Offset
    """The log's last offset, as the worker saw it last; 0: nothing was ever appended."""
    applied: Offset
    """The offset that it has applied, as of which it answers."""
    changes_behind: Offset
    """Items of the batches between the two."""
    staleness_seconds: Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]
    """For how long it has not had all that the log has; 0: it has all of it."""
    problem: UpdatesProblem | UnsetType = UNSET
    """Absent: it follows."""
    base: Offset | UnsetType = UNSET
    """The offset that the graph of its revision was made at. Absent here and below: an earlier gnnserve tells."""
    changes_since_base: Offset | UnsetType = UNSET
    """Items of the batches that it has applied since."""
    delta_bytes: Offset | UnsetType = UNSET
    """Memory that they have taken."""
