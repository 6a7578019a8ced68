"""Log of a service, as a worker uses it: it appends batches of changes, and applies what the log says.

A batch is checked against the graph as this worker has it, before anything is durable. Then it is appended, and its
client is answered when it is durable and applied here. Between the check and its place in the log others may come,
so that it may be refused there: by all workers alike, and the record stays without effect.

Two threads do what blocks (`writer.py`, `follower.py`). All else is on the event loop, in the order of their calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import msgspec

from gnnserve_worker.changes.follower import STUCK, Follower, HandedRecord, NoRoomError, RecordOutcome, catch_up
from gnnserve_worker.changes.lag import Lag
from gnnserve_worker.changes.log import ChangeLog, Entry, LogConflictError, LogCutError, LogError, Record
from gnnserve_worker.changes.replica import Replica
from gnnserve_worker.changes.writer import LogWriter, Submission, WrittenSubmission
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeRefusal

_RETRY_S = 10.0
"""For how long a batch is tried again that may not be durable."""
_SETTLE_S = 30.0
"""Longest time until a client learns what became of its batch, or that this is not known."""
_CATCH_UP_S = 5.0
"""How long a batch waits for others that are before it, where it seems wrong without them."""
_QUICK_ITEMS, _QUICK_BYTES = 2048, 1 << 20
"""Items and bytes of features: larger batches are checked in a thread, so that the event loop is not held up."""
_KEPT = 100_000
"""Records of which it is known that they were refused, or that some of their items changed nothing: the last ones."""
_NEVER = 1 << 63


class ChangesRefusedError(Exception):
    """A batch is refused, and nothing of it is durable."""

    def __init__(self, refusal: ChangeRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a batch that is durable."""

    offset: int
    unchanged: int
    is_repeated: bool
    """It had been sent before."""
    refusal: ChangeRefusal | None
    """Refused by all workers: the record stays without effect. For a repeated batch from before what this worker has
    followed it is not known, and None."""


class NotAppliedError(LogError):
    """A batch is durable, and this worker cannot apply it now."""

    def __init__(self, offset: int, reason: LogError) -> None:
        super().__init__(
            f"the batch is durable, at offset {offset:,} of the log of changes, but this worker has not applied it: "
            f"{reason}. It need not be sent again"
        )
        self.offset = offset


class _Durable(msgspec.Struct, frozen=True):
    """A batch that is durable, and not known to be applied."""

    told: asyncio.Future[Outcome]
    """Its client's. Bodies are not kept."""
    is_repeated: bool


class Updates:
    """Belongs to the event loop on which it is started."""

    def __init__(
        self,
        log: ChangeLog,
        open_again: Callable[[], ChangeLog] | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_again` opens the same log once more, for `another`."""
        self._log = log
        self._open_again = open_again
        self.on_followed: Callable[[], None] = lambda: None
        """Called on the event loop when records were applied, or the next one cannot be."""
        self._clock_s = clock_s
        self._running: asyncio.AbstractEventLoop | None = None
        self._lag = Lag(clock_s)
        self._follower = Follower(log, self._lag, self._hear_said, self._hear_stuck, clock_s=clock_s)
        self._writer = LogWriter(log, lambda: self._known, self._follower.expect, self._hear_written, clock_s)
        self._replica: Replica | None = None
        self._known = 0
        """An offset that the log is known to have."""
        self._noted = 0
        """The offset up to which it is known here what the replica said."""
        self._refused: dict[int, ChangeRefusal] = {}
        self._unchanged: dict[int, int] = {}
        """How many items of a record changed nothing, where any did."""
        self._kept: deque[int] = deque()
        """Offsets of the two above, in the order in which they came."""
        self._open: dict[Submission, asyncio.Future[Outcome]] = {}
        """Submissions whose clients wait."""
        self._durable: dict[int, list[_Durable]] = {}
        """Submissions that are durable, by offset."""
        self._waiters: dict[asyncio.Future[None], int] = {}
        """The offset that each one waits for."""
        self._next_waited = _NEVER
        """The least of these."""

    def start(self) -> None:
        """Begin; called once, on the event loop that everything else but the properties is called on."""
        self._running = asyncio.get_running_loop()

    def another(self) -> Updates:
        """What follows the same log with another replica, and writes nothing. It is started and closed on its own."""
        if self._open_again is None:
            raise RuntimeError("the log cannot be opened again")
        return Updates(self._open_again(), clock_s=self._clock_s)

    @property
    def replica(self) -> Replica | None:
        """What is followed with."""
        return self._replica

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._running is None:
            raise RuntimeError("not started")
        return self._running

    @property
    def first(self) -> int:
        """The first offset that can be read, as last seen."""
        return self._lag.first

    @property
    def last(self) -> int:
        """The log's end as last seen."""
        return max(self._lag.last, self.applied)

    @property
    def applied(self) -> int:
        return 0 if self._replica is None else self._replica.offset

    @property
    def reported(self) -> int:
        """The offset up to which records are applied and `refused` is complete. The follower's thread applies a
        record before the event loop hears what became of it, so that `applied` may be ahead of it."""
        return min(self._noted, self.applied)

    @property
    def changes_behind(self) -> int:
        """Items of the batches that are not applied."""
        return self._lag.changes_behind(self.applied)

    @property
    def staleness_s(self) -> float:
        """For how long this worker has lacked something that the log has; 0: it lacks nothing."""
        return self._lag.staleness_s(self.applied)

    @property
    def problem_error(self) -> LogError | None:
        """Why the log cannot be followed or written now. NoRoomError: changes take as much memory as they may."""
        return self._follower.problem or self._writer.problem

    @property
    def why_stuck(self) -> str | None:
        """Why the next record cannot be applied before something is done about it; None: it can, as far as is known."""
        error = self._follower.problem
        return str(error) if isinstance(error, STUCK) else None

    @property
    def problem(self) -> str | None:
        """Why the log cannot be followed or written now, as a sentence."""
        error = self.problem_error
        return None if error is None else str(error)

    @property
    def refused(self) -> Mapping[int, ChangeRefusal]:
        """Records without effect, by offset; the last ones."""
        return MappingProxyType(self._refused)

    def follow(self, replica: Replica | None) -> None:
        """Follow the log with this replica from now on. None: there is none, and no batch is taken."""
        self._replica = replica
        if replica is not None:
            # Before its thread goes on: of what it applies, the event loop has yet to hear what became of it.
            self._noted = replica.offset
            self._known = max(self._known, self._noted)
        self._follower.follow(replica)
        if replica is not None:
            self._settle()

    def catch_up(self, replica: Replica) -> None:
        """Apply to a replica that is not followed yet what the log has by now. It blocks, and may be called from any
        thread, before the start too. Raises LogError."""
        catch_up(self._log, replica, lambda said: self._call(self._keep, said))

    @contextmanager
    def handing_over(self, replica: Replica) -> Iterator[None]:
        """Within it, a replica has all that the followed one has and may still apply, so that `follow` takes nothing
        back that was told. Where that cannot be, it raises LogError, and the present one is followed on. Any thread
        but the event loop's may call it, one at a time."""
        self.catch_up(replica)
        # What is left to the replica is little now: meanwhile nothing is applied.
        self._follower.follow(None)
        try:
            # A record that is still being applied is in the log.
            self.catch_up(replica)
            yield
        except BaseException:
            self._follower.follow(self._replica)
            raise

    async def submit(self, body: bytes, batch: ChangeBatch, client: str, sequence: int) -> Outcome:
        """Append a batch and apply it. Raises ChangesRefusedError before anything is durable, and LogError."""
        replica = self._require_replica()
        if (refusal := await _check(replica, batch)) is not None:
            outcome = await self._look_again(refusal, batch, client, sequence)
            if outcome is not None:
                return outcome
        entry = Entry(client, sequence, batch.counts.items, body)
        return await self._append(Submission(entry, batch, self._clock_s() + _RETRY_S))

    async def wait_applied(self, offset: int, timeout_s: float) -> bool:
        """Wait until this worker has applied an offset and `refused` says what became of it; False: it has not."""
        ends_s = self._loop.time() + timeout_s
        while self.reported < offset:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiters[future] = offset
            self._next_waited = min(self._next_waited, offset)
            try:
                await asyncio.wait_for(future, ends_s - self._loop.time())
            except TimeoutError:
                return self.reported >= offset
            finally:
                self._waiters.pop(future, None)
        return True

    async def read(self, after: int, most_bytes: int) -> list[Record]:
        """Records of the log from `after` + 1 on, as `ChangeLog.read`."""
        return await asyncio.to_thread(self._log.read, after, most_bytes)

    async def close(self) -> None:
        """End both threads. Clients of what is not settled learn whether it is durable, where that is known."""
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._follower.close)
        # What the threads told last.
        await asyncio.sleep(0)
        self._fail_durable(LogError("this worker is stopping"))
        await asyncio.to_thread(self._log.close)

    def _require_replica(self) -> Replica:
        """The replica. Raises where no batch can be taken now."""
        problem = self._follower.problem
        if isinstance(problem, NoRoomError):
            raise ChangesRefusedError(problem.refusal)
        if isinstance(problem, LogCutError):
            # Nothing is wrong with the batch or the log: this worker is late, and loads a newer graph.
            raise LogError(f"{problem}. The batch is not in the log: send it again, or to another worker")
        if isinstance(problem, LogConflictError):
            raise problem
        if self._replica is None:
            raise LogError("this worker has no revision yet whose graph could change. The batch is not in the log")
        return self._replica

    async def _look_again(
        self, refusal: ChangeRefusal, batch: ChangeBatch, client: str, sequence: int
    ) -> Outcome | None:
        """Look at a batch that seems wrong: it may be a repeated one, or build upon some that are not applied here.

        Its outcome if it is a repeated one; None: it is right. Raises ChangesRefusedError where it is wrong.
        """
        ends_s = self._clock_s() + _CATCH_UP_S
        if earlier := list(self._open.values()):
            await asyncio.wait(earlier, timeout=_CATCH_UP_S)
        found, last = await asyncio.to_thread(lambda: (self._log.find(client, sequence), self._log.position().last))
        target = last if found is None else found
        is_applied = await self.wait_applied(target, max(0.0, ends_s - self._clock_s()))
        if found is not None:
            if not is_applied:
                raise NotAppliedError(found, LogError("it is behind"))
            return self._outcome(found, is_repeated=True)
        if not is_applied:
            raise LogError(
                f"this worker is {target - self.applied:,} batches behind the log of changes, and this one seems wrong "
                f"without them: {refusal.message}. It is not in the log: send it again, or to another worker"
            )
        refusal_now = await _check(self._require_replica(), batch)
        if refusal_now is not None:
            raise ChangesRefusedError(refusal_now)
        return None

    async def _append(self, submission: Submission) -> Outcome:
        future = self._open[submission] = self._loop.create_future()
        try:
            self._writer.put(submission)
            return await asyncio.wait_for(future, _SETTLE_S)
        except TimeoutError:
            raise LogError(
                f"the log of changes said nothing of the batch for {_SETTLE_S:g} s: it may be durable or not. Send it "
                "again under the same client and sequence, and it counts once"
            ) from None
        finally:
            submission.is_withdrawn = True
            del self._open[submission]

    def _hear_written(self, written: Sequence[WrittenSubmission]) -> None:
        """Called by the writer's thread."""
        results = [(one.result, one.submission.batch) for one in written if not isinstance(one.result, LogError)]
        self._follower.hand(HandedRecord(at.record, batch) for at, batch in results if at.record is not None)
        self._call(self._take_written, written)

    def _hear_said(self, said: Sequence[RecordOutcome]) -> None:
        """Called by the follower's thread."""
        self._call(self._take_said, said)

    def _hear_stuck(self, error: LogError) -> None:
        """Called by the follower's thread."""
        self._call(self._take_stuck, error)

    def _call(self, function: Callable[[Any], None], argument: object) -> None:
        """Call it on the event loop; before the start, at once."""
        loop = self._running
        if loop is None:
            function(argument)
            return
        try:
            loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            # A forced exit closes the loop while requests are open.
            if not loop.is_closed():
                raise

    def _take_written(self, written: Sequence[WrittenSubmission]) -> None:
        for one in written:
            if isinstance(one.result, LogError):
                self._fail(one.submission, one.result)
                continue
            self._known = max(self._known, one.result.offset)
            # Where a first try had an unknown outcome, it may be that try's record.
            is_repeated = one.result.is_repeated and not one.submission.may_have_written(one.result.offset)
            if (told := self._open.get(one.submission)) is not None:
                self._durable.setdefault(one.result.offset, []).append(_Durable(told, is_repeated))
        self._settle()

    def _take_said(self, said: Sequence[RecordOutcome]) -> None:
        self._keep(said)
        # The last words about a replica that is not followed any more may be of more than this one has.
        self._noted = max(self._noted, min(said[-1].offset, self.applied))
        self._known = max(self._known, self._noted)
        self._settle()
        self.on_followed()

    def _take_stuck(self, error: LogError) -> None:
        self._fail_durable(error)
        self.on_followed()

    def _keep(self, said: Sequence[RecordOutcome]) -> None:
        for one in said:
            if isinstance(one.said, ChangeRefusal):
                self._refused[one.offset] = one.said
                self._kept.append(one.offset)
            elif one.said.unchanged:
                self._unchanged[one.offset] = one.said.unchanged
                self._kept.append(one.offset)
        while len(self._kept) > _KEPT:
            offset = self._kept.popleft()
            self._refused.pop(offset, None)
            self._unchanged.pop(offset, None)

    def _settle(self) -> None:
        """Tell those whose offset is applied."""
        for offset in [offset for offset in self._durable if offset <= self._noted]:
            for one in self._durable.pop(offset):
                if not one.told.done():
                    one.told.set_result(self._outcome(offset, one.is_repeated))
        if self._next_waited <= self._noted:
            for waiter, offset in self._waiters.items():
                if offset <= self._noted and not waiter.done():
                    waiter.set_result(None)
            self._next_waited = min(
                (offset for offset in self._waiters.values() if offset > self._noted), default=_NEVER
            )

    def _outcome(self, offset: int, is_repeated: bool) -> Outcome:
        return Outcome(offset, self._unchanged.get(offset, 0), is_repeated, self._refused.get(offset))

    def _fail_durable(self, error: LogError) -> None:
        for offset, durable in self._durable.items():
            for one in durable:
                if not one.told.done():
                    one.told.set_exception(NotAppliedError(offset, error))
        self._durable.clear()

    def _fail(self, submission: Submission, error: LogError) -> None:
        future = self._open.get(submission)
        if future is not None and not future.done():
            future.set_exception(error)


async def _check(replica: Replica, batch: ChangeBatch) -> ChangeRefusal | None:
    is_quick = batch.counts.items <= _QUICK_ITEMS and batch.features.nbytes <= _QUICK_BYTES
    if is_quick and not replica.is_busy:
        return replica.check(batch)
    return await asyncio.to_thread(replica.check, batch)
