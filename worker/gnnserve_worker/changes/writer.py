"""Group commit: everything that waits goes into the log in one transaction, by a thread of its own.

A transaction whose outcome is unknown is repeated: what it wrote is found by client and sequence. What was not written
in time is given up, and its client learns whether it may be in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gnnserve_worker.changes.log import (
    AppendResult,
    ChangeLog,
    Entry,
    LogConflictError,
    LogError,
    LogFullError,
    SequencePassedError,
)
from gnnserve_worker.graph.change_batch import ChangeBatch

_log = logging.getLogger(__name__)

_GROUP_BYTES = 8 << 20
"""Bodies of one transaction. Larger ones gain nothing, and others wait for them."""
_WAITING_BYTES = 256 << 20
"""Bodies that wait in memory. Beyond it no more are taken."""
_BACKOFF_S = (0.05, 2.0)


class Submission(msgspec.Struct, eq=False):
    """A batch on its way into the log."""

    entry: Entry
    batch: ChangeBatch
    expires_s: float
    """When it is given up, by the writer's clock."""
    known_before: int | None = None
    """An offset that the log was known to have before the first transaction with it whose outcome is unknown. None:
    there was no such transaction."""
    is_withdrawn: bool = False
    """Its client is gone. It is left out, unless it was attempted."""

    @property
    def is_attempted(self) -> bool:
        """A transaction with it had an unknown outcome."""
        return self.known_before is not None

    def may_have_written(self, offset: int) -> bool:
        """Whether such a transaction may have made the record at that offset."""
        return self.known_before is not None and offset > self.known_before


class WrittenSubmission(msgspec.Struct, frozen=True):
    """A submission that is done with."""

    submission: Submission
    result: AppendResult | LogError


def take_group(waiting: deque[Submission], most_bytes: int) -> list[Submission]:
    """Remove the first submissions that fit one transaction, at least one."""
    group: list[Submission] = []
    size = 0
    while waiting and (not group or size + len(waiting[0].entry.body) <= most_bytes):
        group.append(waiting.popleft())
        size += len(group[-1].entry.body)
    return group


def judge_failure(submission: Submission, error: LogError, now_s: float) -> LogError | None:
    """What an unwritten submission's client is told after a transaction failed. None: it is tried again."""
    if isinstance(error, SequencePassedError):
        is_it = (error.client, error.sequence) == (submission.entry.client, submission.entry.sequence)
        return error if is_it else None
    # These are found before anything is written: a full disk after the log was searched for the batch.
    is_absent = isinstance(error, LogFullError) or not submission.is_attempted
    if isinstance(error, LogFullError | LogConflictError):
        return _tell(error, is_absent)
    if now_s < submission.expires_s:
        return None
    return _tell(error, is_absent=False)


def _tell(error: LogError, is_absent: bool) -> LogError:
    fate = (
        "The batch is not in the log"
        if is_absent
        else "The batch may be in the log or not: send it again under the same client and sequence, and it counts once"
    )
    return type(error)(f"{error}. {fate}")


class LogWriter:
    """Its thread begins with the first submission."""

    def __init__(
        self,
        log: ChangeLog,
        known_offset: Callable[[], int],
        on_appending: Callable[[], None],
        on_written: Callable[[Sequence[WrittenSubmission]], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known_offset`: an offset that the log is known to have. The two others are called in the writer's thread:
        before each transaction, and after it with what is done with."""
        self.problem: LogError | None = None
        """Why the last transaction failed; None: it did not."""
        self._log = log
        self._known_offset = known_offset
        self._on_appending = on_appending
        self._on_written = on_written
        self._clock_s = clock_s
        self._waiting: deque[Submission] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="changes-writer", daemon=True)

    def put(self, submission: Submission) -> None:
        """Raises LogError where too much waits already."""
        with self._changed:
            if self._is_closed:
                raise LogError("this worker is stopping. The batch is not in the log: send it to another one")
            if self._waiting_bytes > _WAITING_BYTES:
                why = "the log is slow" if self.problem is None else str(self.problem)
                raise LogError(f"too many changes wait for the log: {why}. The batch is not in the log")
            self._waiting.append(submission)
            self._waiting_bytes += len(submission.entry.body)
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the thread after its transaction, and give up what waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        left = list(self._waiting)
        self._waiting.clear()
        error = LogError("this worker is stopping")
        self._on_written(
            [WrittenSubmission(submission, _tell(error, not submission.is_attempted)) for submission in left]
        )

    def _run(self) -> None:
        while group := self._take():
            delay_s = _BACKOFF_S[0]
            while group := self._append(group):
                with self._changed:
                    if self.problem is not None:
                        self._changed.wait_for(lambda: self._is_closed, delay_s)
                        delay_s = min(2 * delay_s, _BACKOFF_S[1])
                    if self._is_closed:
                        self._waiting.extendleft(reversed(group))
                        return

    def _take(self) -> list[Submission]:
        """Wait for submissions, and take a group of them; none: the writer is closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return []
                taken = take_group(self._waiting, _GROUP_BYTES)
                self._waiting_bytes -= sum(len(submission.entry.body) for submission in taken)
                if group := [submission for submission in taken if not submission.is_withdrawn]:
                    return group

    def _append(self, group: list[Submission]) -> list[Submission]:
        """Append the group in one transaction; what is left of it, to be tried again."""
        self._on_appending()
        known_offset = self._known_offset()
        try:
            appended = self._log.append([submission.entry for submission in group], known_offset)
        except SequencePassedError as error:
            self.problem = None
            return self._sort_out(group, error)
        except LogError as error:
            return self._fail(group, error, known_offset)
        except Exception as error:  # noqa: BLE001  (a writer that died would leave every client waiting)
            _log.exception("unexpected error while appending to the log of changes")
            failure = LogError(f"appending to the log of changes failed: {type(error).__name__}")
            return self._fail(group, failure, known_offset)
        self.problem = None
        self._on_written([WrittenSubmission(submission, at) for submission, at in zip(group, appended, strict=True)])
        return []

    def _fail(self, group: list[Submission], error: LogError, known_offset: int) -> list[Submission]:
        if self.problem is None or str(self.problem) != str(error):
            _log.warning("%s (%s)", error, error.__cause__ or "no other cause")
        self.problem = error
        if not isinstance(error, LogFullError | LogConflictError):
            for submission in group:
                if submission.known_before is None:
                    submission.known_before = known_offset
        return self._sort_out(group, error)

    def _sort_out(self, group: Iterable[Submission], error: LogError) -> list[Submission]:
        """Tell those that are given up; the others."""
        now_s = self._clock_s()
        judged = [(submission, judge_failure(submission, error, now_s)) for submission in group]
        self._on_written([WrittenSubmission(submission, told) for submission, told in judged if told is not None])
        return [submission for submission, told in judged if told is None]
