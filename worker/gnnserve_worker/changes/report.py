"""Report of a worker about its log of changes, for operators and for people."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from gnnserve_api.pods.change_log import UpdatesProblem, UpdatesProblemKind, UpdatesState
from gnnserve_worker.changes.follower import NoRoomError
from gnnserve_worker.changes.log import LogConflictError, LogError
from gnnserve_worker.changes.worker_log import Updates

_KINDS: tuple[tuple[type[LogError], UpdatesProblemKind], ...] = (
    (NoRoomError, UpdatesProblemKind.DELTA_FULL),
    (LogConflictError, UpdatesProblemKind.LOG_CONFLICT),
    (LogError, UpdatesProblemKind.LOG_UNAVAILABLE),
)
"""The first that an error is counts."""


def state_of(updates: Updates) -> UpdatesState:
    error = updates.problem_error
    problem = UNSET if error is None else UpdatesProblem(_kind_of(error), str(error))
    told = UpdatesState(updates.last, updates.applied, updates.changes_behind, updates.staleness_s, problem)
    if (replica := updates.replica) is None:
        return told
    return msgspec.structs.replace(
        told,
        base=replica.base_offset,
        changes_since_base=replica.changes_since_base,
        delta_bytes=replica.delta_bytes,
    )


def _kind_of(error: LogError) -> UpdatesProblemKind:
    return next(kind for type_, kind in _KINDS if isinstance(error, type_))
