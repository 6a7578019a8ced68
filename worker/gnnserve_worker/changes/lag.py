"""How far a worker is behind its log, in changes and in seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnnserve_worker.changes.log import Position, Record

_SILENT_S = 3.0
"""After this time without a word of the log, what is applied counts as stale: its end is asked for each second."""
_APART_S = 0.05
"""Precision of the staleness. A worker that is far behind would otherwise keep every end that it saw."""


class Lag:
    """Written by the thread that follows the log; read by others."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._heard_s = clock_s()
        self._ends: deque[tuple[int, float]] = deque()
        """Ends of the log beyond what is applied, and when each was first seen."""
        self._applied_changes: int | None = None
        self.first = 1
        self.last = 0
        self.total_changes = 0

    def begin(self) -> None:
        """Another replica is followed, of which it is not known how many changes it has."""
        self._applied_changes = None

    def see_end(self, position: Position) -> None:
        self.first = position.first
        self._see(position.last, position.total_changes)

    def see_record(self, record: Record) -> None:
        if record.offset > self.last:
            self._see(record.offset, record.total_changes)
        if self._applied_changes is None:
            self._applied_changes = record.total_changes - record.changes

    def see_applied(self, record: Record) -> None:
        self._applied_changes = record.total_changes
        while self._ends and self._ends[0][0] <= record.offset:
            self._ends.popleft()

    def changes_behind(self, applied: int) -> int:
        if applied >= self.last:
            return 0
        if self._applied_changes is None:
            return self.last - applied
        return max(0, self.total_changes - self._applied_changes)

    def staleness_s(self, applied: int) -> float:
        """For how long there has been something in the log that is not applied, or how long ago the log was last
        heard of."""
        now_s = self._clock_s()
        silent_s = now_s - self._heard_s
        try:
            end, seen_s = self._ends[0]
        except IndexError:
            end, seen_s = applied, now_s
        behind_s = now_s - seen_s if end > applied else 0.0
        return max(behind_s, silent_s if silent_s > _SILENT_S else 0.0)

    def _see(self, last: int, total_changes: int) -> None:
        self._heard_s = self._clock_s()
        if last > self.last and (not self._ends or self._heard_s - self._ends[-1][1] > _APART_S):
            self._ends.append((last, self._heard_s))
        self.last, self.total_changes = last, total_changes
