"""Following a log: a thread that applies its records to a replica, one after the other, while the worker lives.

No error ends it. What this worker appends itself comes from memory, everything else from the log.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gnnserve_worker.changes.lag import Lag
from gnnserve_worker.changes.log import ChangeLog, LogBehindError, LogConflictError, LogError, Record
from gnnserve_worker.changes.replica import Replica
from gnnserve_worker.changes.rules import require_offset
from gnnserve_worker.graph.change_batch import (
    OF_THIS_WORKER,
    BatchEffect,
    ChangeBatch,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
)
from gnnserve_worker.graph.change_ids import BatchFormError

_log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20
_HANDED_BYTES = 64 << 20
"""Appended records that are kept in memory until they are applied. Beyond it they are read from the log."""
_WAIT_S = 0.25
"""How soon the thread notices that it is to end, or to follow another replica."""
_LOOK_S = 1.0
"""How often the end of the log is asked for, by which a log that lost its end is noticed."""
_HANDING_S = 0.002
"""How long to wait for a record that this worker is appending before the log is read: it is often the next one."""
_SLICE_S = 0.001
"""Time of applying after which batches of predictions have their turn."""
_GROUP_ITEMS = 2048
"""Items of records that are applied in one go: of many small records, the nodes that they reach are made anew once."""
_LATE_ITEMS = 1 << 13
"""The same where nothing is asked and the worker is late: rows that several changes reach are made once, so that half
as many more changes a second are applied behind two stored layers. A prediction that comes just then waits for a tenth
of a second."""
_UNREAD_ITEMS = 1 << 14
"""The number of items before anything is answered over the replica: nothing waits for what a group has changed."""
_PAUSE_S = 0.00005
"""A thread that waits for a lock needs so long to wake up. Without a pause, the one that gave it back has it again."""
_BUSY_SHARE = 0.2
"""Share of the time in which predictions are computed from which on they keep as much: reading requests and writing
answers takes about as long again. Below it the pause is shorter in proportion."""
_LONGEST_REST_S = 0.1
_LATE_S = 0.5
"""How far behind the log a worker may be for the sake of predictions. Beyond it changes are applied without a pause."""
_BACKOFF_S = (0.1, 5.0)
_ROOM_S = 1.0
"""How often a record is tried again for which there was no room."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How applying changes takes turns with predictions. `benchmarks/staleness/turns.py` compares some."""

    items: int = 512
    """Items of records that are applied in one go while predictions are computed, each of which may wait until what a
    group has changed is published: less than a millisecond."""
    rest: float = 9.0
    """Where predictions keep a worker busy, a group is followed by a pause so many times as long as the processor time
    that it took: they keep nine tenths of the time. Applying takes the interpreter and the caches from them."""
    niceness: int = 0
    """What Linux has the thread give way by, 0 to 19."""


class HandedRecord(msgspec.Struct, frozen=True):
    """A record, and its batch where it is known."""

    record: Record
    batch: ChangeBatch | None = None


class RecordOutcome(msgspec.Struct, frozen=True):
    """Outcome of a record, as the replica told it."""

    offset: int
    said: BatchEffect | ChangeRefusal


class NoRoomError(LogError):
    """Changes take as much memory as they may: a record of the log is not applied."""

    def __init__(self, refusal: ChangeRefusal) -> None:
        super().__init__(f"{refusal.message}: {refusal.remedy}")
        self.refusal = refusal


STUCK = (NoRoomError, LogConflictError)
"""Errors that keep the next record from being applied before something is done about them."""


class RecordApplier:
    """Applies records to one replica, and checks that they follow each other."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._checksum = replica.base_checksum if replica.offset == replica.base_offset else None
        """Checksum of the last record that was applied; None: it is not known."""

    def apply(self, group: Sequence[HandedRecord], said: list[RecordOutcome]) -> None:
        """Apply these records in one go, and add to `said` what the replica said of each. Raises LogError where one is
        not the next record, and NoRoomError; then those before it are applied."""
        first = self.replica.offset + 1
        batches: list[ChangeBatch] = []
        problem: LogError | None = None
        checksum = self._checksum
        for number, handed in enumerate(group):
            try:
                batches.append(_next_batch(handed, first + number, checksum))
            except LogError as error:
                problem = error
                break
            checksum = handed.record.checksum
        answers = self.replica.apply(first, batches) if batches else []
        if answers and isinstance(last := answers[-1], ChangeRefusal) and last.problem in OF_THIS_WORKER:
            answers = answers[:-1]
            problem = NoRoomError(last) if last.problem is ChangeProblem.NO_ROOM else _unfit(first + len(answers), last)
        if answers:
            self._checksum = group[len(answers) - 1].record.checksum
        said += [RecordOutcome(first + number, answer) for number, answer in enumerate(answers)]
        if problem is not None:
            raise problem


def _unfit(offset: int, refusal: ChangeRefusal) -> LogConflictError:
    return LogConflictError(
        f"the batch at offset {offset:,} of the log of changes does not fit the revision that is served: "
        f"{refusal.field}: {refusal.message}. Serve one that can follow it: with a float32 table of all features, of a "
        "graph with the same columns"
    )


def _next_batch(handed: HandedRecord, offset: int, checksum: int | None) -> ChangeBatch:
    """The batch of a record, which must be that of the offset. `checksum`: of the record before, None: it is not
    known."""
    record = handed.record
    if record.offset != offset:
        raise LogError(f"the log of changes gave offset {record.offset:,} behind {offset - 1:,}: it lacks some")
    if checksum not in (None, record.previous):
        raise LogBehindError(
            f"the log of changes has another record at offset {offset - 1:,} than this worker has applied: it was "
            "restored from an older backup, and written since. Restart the workers, so that they apply what it "
            "has; batches that it lost must be sent again"
        )
    try:
        return decode_batch(record.body) if handed.batch is None else handed.batch
    except BatchFormError as error:
        raise LogConflictError(
            f"this release cannot read the batch at offset {record.offset:,} of the log of changes: {error}. "
            "Update the worker"
        ) from error


def grouped(
    handed: Sequence[HandedRecord], most_items: Callable[[], int] = lambda: _GROUP_ITEMS
) -> Iterator[Sequence[HandedRecord]]:
    """Records that are applied in one go: as many as have no more items together than is said then, at least one."""
    start, items, most = 0, 0, most_items()
    for number, one in enumerate(handed):
        items += one.record.changes
        if number > start and items > most:
            yield handed[start:number]
            start, items, most = number, one.record.changes, most_items()
    if start < len(handed):
        yield handed[start:]


def catch_up(log: ChangeLog, replica: Replica, on_said: Callable[[Sequence[RecordOutcome]], None]) -> None:
    """Apply all that the log has by now. `on_said` is called with what the replica said, before any LogError too."""
    applier = RecordApplier(replica)
    last = log.position().last
    require_offset(last, replica.offset)
    while replica.offset < last:
        said: list[RecordOutcome] = []
        try:
            handed = [HandedRecord(record) for record in log.read(replica.offset, _READ_BYTES)]
            for group in grouped(handed, lambda: _UNREAD_ITEMS):
                applier.apply(group, said)
        finally:
            on_said(said)


class Follower:
    """Its thread begins with the first replica."""

    def __init__(
        self,
        log: ChangeLog,
        lag: Lag,
        on_said: Callable[[Sequence[RecordOutcome]], None],
        on_stuck: Callable[[LogError], None],
        *,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
        turns: Turns = Turns(),
    ) -> None:
        """The callables are called in the follower's thread: with what was applied, when the next record cannot be
        applied before something is done about it, and for so many seconds between slices."""
        self.problem: LogError | None = None
        """Why nothing is applied now; None: nothing is in the way."""
        self._log = log
        self._lag = lag
        self._on_said = on_said
        self._on_stuck = on_stuck
        self._pause = pause
        self._clock_s, self._turns = clock_s, turns
        self._replica: Replica | None = None
        self._handed: deque[HandedRecord] = deque()
        self._handed_bytes = 0
        self._is_handing = False
        """This worker is appending."""
        self._changed = threading.Condition()
        """Held while any of the four above is changed."""
        self._is_closed = False
        self._failures = 0
        self._inferences = 0
        """Batches of predictions that the replica had seen when that was asked last."""
        self._seen_s = (0.0, 0.0)
        """When the last group was applied, and for how long predictions had been computed then."""
        self._looked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="changes-follower", daemon=True)

    def follow(self, replica: Replica | None) -> None:
        """Apply to this replica from now on. A record that is being applied to the one before may still be."""
        with self._changed:
            if replica is not self._replica:
                self.problem = None
            self._replica = replica
            self._changed.notify_all()
        if replica is not None and self._thread.ident is None:
            self._thread.start()

    def expect(self) -> None:
        """Records are being appended, and handed over soon."""
        with self._changed:
            self._is_handing = True

    def hand(self, handed: Iterable[HandedRecord]) -> None:
        """Hand over records that were appended, if any: they need not be read."""
        with self._changed:
            self._is_handing = False
            for one in handed:
                self._handed.append(one)
                self._handed_bytes += len(one.record.body)
            if self._handed_bytes > _HANDED_BYTES or self._replica is None:
                self._handed.clear()
                self._handed_bytes = 0
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        applier: RecordApplier | None = None
        if self._turns.niceness:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._turns.niceness)
        while (replica := self._await_replica()) is not None:
            if applier is None or applier.replica is not replica:
                applier = RecordApplier(replica)
                self._lag.begin()
                self._looked_s, self.problem, self._failures = 0.0, None, 0
            try:
                self._step(applier)
                self.problem, self._failures = None, 0
            except LogError as error:
                self._fail(replica, error)
            except Exception as error:  # noqa: BLE001  (a follower that died would leave the worker behind for ever)
                _log.exception("unexpected error while following the log of changes")
                self._fail(replica, LogError(f"applying the log of changes failed: {type(error).__name__}"))

    def _await_replica(self) -> Replica | None:
        """The replica to follow; None: the follower is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._replica is not None)
            return None if self._is_closed else self._replica

    def _step(self, applier: RecordApplier) -> None:
        """Apply what comes next, or wait for it for a moment."""
        after = applier.replica.offset
        self._look(after)
        if not (handed := self._take_handed(after)) and (self._lag.last > after or self._log.wait(after, _WAIT_S)):
            handed = self._await_handed(after) or [HandedRecord(one) for one in self._log.read(after, _READ_BYTES)]
        self._apply(applier, handed)

    def _look(self, after: int) -> None:
        now_s = self._clock_s()
        if now_s - self._looked_s >= _LOOK_S:
            position = self._log.position()
            require_offset(position.last, after)
            self._lag.see_end(position)
            # A follower that has enough to do never waits, and the server keeps notifications until they are taken.
            self._log.wait(after, 0.0)
            self._looked_s = now_s

    def _await_handed(self, after: int) -> list[HandedRecord]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_handing, _HANDING_S)
            return self._take_handed(after)

    def _take_handed(self, after: int) -> list[HandedRecord]:
        """The records behind `after` that are in memory, without a gap."""
        taken: list[HandedRecord] = []
        with self._changed:
            while self._handed and self._handed[0].record.offset <= after + len(taken) + 1:
                one = self._handed.popleft()
                self._handed_bytes -= len(one.record.body)
                if one.record.offset > after:
                    taken.append(one)
        return taken

    def _apply(self, applier: RecordApplier, handed: Sequence[HandedRecord]) -> None:
        """Apply them, in slices: others take their turns in between."""
        for one in (*handed[:1], *handed[-1:]):
            self._lag.see_record(one.record)
        said: list[RecordOutcome] = []
        began_s = self._clock_s()
        try:
            for group in grouped(handed, lambda: self._most_items(applier.replica)):
                if self._replica is not applier.replica or self._is_closed:
                    return
                used_s = time.thread_time()
                applier.apply(group, said)
                self._lag.see_applied(group[-1].record)
                rest_s = self._rest_s(applier.replica, time.thread_time() - used_s)
                if rest_s or self._clock_s() - began_s > _SLICE_S:
                    self._on_said(said)
                    said = []
                    self._pause(max(rest_s, _PAUSE_S))
                    began_s = self._clock_s()
        finally:
            if said:
                self._on_said(said)

    def _rest_s(self, replica: Replica, used_s: float) -> float:
        """How long to leave the processors to predictions after a group that took so much processor time; 0: there are
        no predictions, or the worker is late."""
        before, self._seen_s = self._seen_s, (self._clock_s(), replica.computing_s)
        passed_s, computed_s = (now - then for now, then in zip(self._seen_s, before, strict=True))
        if computed_s <= 0 or passed_s <= 0 or self._lag.staleness_s(replica.offset) > _LATE_S:
            return 0.0
        return min(self._turns.rest * used_s * min(1.0, computed_s / passed_s / _BUSY_SHARE), _LONGEST_REST_S)

    def _most_items(self, replica: Replica) -> int:
        """How many items to apply in one go: fewer, where predictions were computed since that was asked last; more,
        where none were and the worker is late."""
        before, self._inferences = self._inferences, replica.inferences
        if self._inferences != before:
            return self._turns.items
        return _LATE_ITEMS if self._lag.staleness_s(replica.offset) > _LATE_S else _GROUP_ITEMS

    def _fail(self, replica: Replica, error: LogError) -> None:
        """Tell what is wrong, and wait before the next try."""
        if self.problem is None or str(self.problem) != str(error):
            _log.warning("%s (%s)", error, error.__cause__ or "no other cause")
        self.problem = error
        shortest_s, longest_s = _BACKOFF_S
        delay_s = min(longest_s, shortest_s * 2 ** min(self._failures, 16))
        if isinstance(error, STUCK):
            self._on_stuck(error)
            delay_s = _ROOM_S
        self._failures += 1
        # Jitter: when a database comes back, the workers should not ask all at once.
        delay_s *= 0.5 + random.random() / 2  # noqa: S311 - no secret
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._replica is not replica, delay_s)
