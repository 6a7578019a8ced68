"""Batches from submit to outcome: checked, appended in groups, applied by all, and what is told when they are not."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.support.changes.flaky_log import FlakyLog
from tests.support.changes.logs import LogPlace, entry, read_all, sqlite_place
from tests.support.changes.replica import Edge, FakeReplica, make_batch
from tests.support.machine.waiting import WAIT_S

from gnnserve_worker.changes import follower, writer
from gnnserve_worker.changes import worker_log as module
from gnnserve_worker.changes.follower import Follower, HandedRecord, NoRoomError, grouped
from gnnserve_worker.changes.lag import Lag
from gnnserve_worker.changes.log import (
    ChangeLog,
    LogBehindError,
    LogConflictError,
    LogError,
    LogFullError,
    Record,
    SequencePassedError,
)
from gnnserve_worker.changes.worker_log import ChangesRefusedError, NotAppliedError, Outcome, Updates
from gnnserve_worker.graph.change_batch import ChangeProblem, encode_batch

_numbers = itertools.count(1)


@asynccontextmanager
async def running(log: ChangeLog, replica: FakeReplica | None = None) -> AsyncIterator[Updates]:
    updates = Updates(log)
    updates.start()
    updates.follow(replica)
    try:
        yield updates
    finally:
        await updates.close()


async def submit(
    updates: Updates,
    new: Sequence[int] = (),
    edges: Sequence[Edge] = (),
    removed_edges: Sequence[Edge] = (),
    client: str = "client",
    sequence: int | None = None,
) -> Outcome:
    batch = make_batch(new, edges, removed_edges)
    number = next(_numbers) if sequence is None else sequence
    return await updates.submit(encode_batch(batch), batch, client, number)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def refused(outcome: Awaitable[Outcome]) -> ChangeProblem:
    with pytest.raises(ChangesRefusedError) as told:
        await outcome
    return told.value.refusal.problem


def run(scene: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await scene

    asyncio.run(limited())


def test_a_batch_is_answered_when_it_is_durable_and_applied(place: LogPlace) -> None:
    async def scene() -> None:
        replica = FakeReplica()
        async with running(place.open(), replica) as updates:
            assert await submit(updates, [1, 2], [(1, 2)]) == Outcome(1, 0, False, None)
            assert replica.nodes == {1, 2}
            assert await submit(updates, [3], [(1, 2), (1, 3)], [(2, 1)]) == Outcome(2, 2, False, None)
            assert (updates.applied, updates.last, updates.problem) == (2, 2, None)
            assert [r.offset for r in await updates.read(0, 1 << 20)] == [1, 2]
        assert [r.changes for r in read_all(place.open())] == [3, 4]

    run(scene())


def test_a_wrong_batch_is_refused_before_anything_is_durable(place: LogPlace) -> None:
    async def scene() -> None:
        async with running(place.open(), FakeReplica([1])) as updates:
            assert await refused(submit(updates, [1])) is ChangeProblem.STORED_NODE
            assert await refused(submit(updates, edges=[(1, 2)])) is ChangeProblem.UNKNOWN_NODE
            assert (await submit(updates, [2])).offset == 1

    run(scene())


def test_every_worker_applies_the_same_in_the_same_order(place: LogPlace) -> None:
    """Three workers, clients at each of them, and batches that contradict each other."""

    async def client(number: int, workers: Sequence[Updates]) -> None:
        draw = random.Random(number)  # noqa: S311
        for sequence in range(30):
            new = [draw.randint(0, 200) for _ in range(draw.randint(0, 2))]
            edges = [(draw.randint(0, 200), draw.randint(0, 200))] if draw.random() < 0.3 else []
            try:
                outcome = await submit(draw.choice(workers), sorted(set(new)), edges, [], f"client{number}", sequence)
                outcomes.append((outcome, f"client{number}", sequence))
            except ChangesRefusedError:
                refusals.append(number)

    outcomes: list[tuple[Outcome, str, int]] = []
    refusals: list[int] = []

    async def scene() -> None:
        replicas = [FakeReplica(range(20)) for _ in range(3)]
        async with (
            running(place.open(), replicas[0]) as one,
            running(place.open(), replicas[1]) as two,
            running(place.open(), replicas[2]) as three,
        ):
            workers = [one, two, three]
            await asyncio.gather(*(client(number, workers) for number in range(8)))
            for worker in workers:
                assert await worker.wait_applied(len(outcomes), WAIT_S)
                assert worker.refused == one.refused
                assert (worker.changes_behind, worker.problem) == (0, None)
        assert len({replica.history for replica in replicas}) == 1
        assert replicas[0].nodes == replicas[1].nodes
        records = read_all(place.open())
        assert [(r.offset, r.client, r.sequence) for r in records] == sorted(
            (outcome.offset, name, sequence) for outcome, name, sequence in outcomes
        )
        assert {outcome.offset for outcome, _, _ in outcomes if outcome.refusal is not None} == set(one.refused)
        assert refusals

    run(scene())


def test_an_offset_counts_as_applied_once_it_is_known_what_became_of_it(sqlite: LogPlace) -> None:
    async def scene() -> None:
        replicas = [FakeReplica(), FakeReplica([7])]
        async with running(sqlite.open(), replicas[0]) as one, running(sqlite.open(), replicas[1]) as two:
            replicas[1].gate.clear()
            assert (await submit(one, [7])).offset == 1
            replicas[1].gate.set()
            # The follower's thread applies the record while the event loop hears nothing of it.
            ends_s = time.monotonic() + WAIT_S
            while two.applied < 1 and time.monotonic() < ends_s:
                time.sleep(0.001)
            assert (two.applied, two.reported, dict(two.refused)) == (1, 0, {})
            assert await two.wait_applied(1, WAIT_S)
            assert (two.reported, {at: refusal.problem for at, refusal in two.refused.items()}) == (
                1,
                {1: ChangeProblem.STORED_NODE},
            )

    run(scene())


def test_batches_that_race_are_refused_by_all_workers_alike(sqlite: LogPlace) -> None:
    async def scene() -> None:
        replicas = [FakeReplica(), FakeReplica()]
        async with running(sqlite.open(), replicas[0]) as one, running(sqlite.open(), replicas[1]) as two:
            for replica in replicas:
                replica.gate.clear()
            first = asyncio.create_task(submit(one, [7]))
            await until(lambda: sqlite.open().position().last == 1)
            second = asyncio.create_task(submit(two, [7], [(7, 7)]))
            await until(lambda: sqlite.open().position().last == 2)
            for replica in replicas:
                replica.gate.set()
            assert await first == Outcome(1, 0, False, None)
            outcome = await second
            assert (outcome.offset, outcome.refusal and outcome.refusal.problem) == (2, ChangeProblem.STORED_NODE)
            assert await one.wait_applied(2, WAIT_S)
            assert dict(one.refused) == dict(two.refused) == {2: outcome.refusal}
            assert replicas[0].history == replicas[1].history
            assert not replicas[0].edges

    run(scene())


def test_a_batch_that_is_sent_again_counts_once_though_it_now_seems_wrong(place: LogPlace) -> None:
    async def scene() -> None:
        async with running(place.open(), FakeReplica()) as one, running(place.open(), FakeReplica()) as two:
            first = await submit(one, [1], sequence=5)
            assert first == Outcome(1, 0, False, None)
            for worker in (one, two):
                assert await submit(worker, [1], sequence=5) == Outcome(1, 0, True, None)
            assert await refused(submit(one, [1], sequence=6)) is ChangeProblem.STORED_NODE
            assert await submit(one, edges=[(1, 1)], sequence=7) == Outcome(2, 0, False, None)
            assert await submit(one, edges=[(1, 1)], sequence=7) == Outcome(2, 0, True, None)

    run(scene())


def test_a_repeated_batch_that_was_refused_by_all_is_told_so(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = sqlite.open()
        batch = encode_batch(make_batch([1]))
        log.append([entry("a", 1, batch), entry("b", 1, batch)])
        async with running(log, FakeReplica()) as updates:
            outcome = await submit(updates, [1], client="b", sequence=1)
            assert (outcome.offset, outcome.is_repeated) == (2, True)
            assert outcome.refusal is not None

    run(scene())


def test_the_same_batch_twice_at_once_counts_once(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.gate.clear()
            both = [asyncio.create_task(submit(updates, [1], sequence=1)) for _ in range(2)]
            await until(log.reached.is_set)
            log.gate.set()
            assert sorted(outcome.is_repeated for outcome in await asyncio.gather(*both)) == [False, True]
            assert updates.last == 1

    run(scene())


def test_a_batch_may_build_upon_one_that_only_another_worker_has_applied(place: LogPlace) -> None:
    async def scene() -> None:
        behind = FakeReplica()
        async with running(place.open(), FakeReplica()) as one, running(place.open(), behind) as two:
            behind.gate.clear()
            await submit(one, [1])
            task = asyncio.create_task(submit(two, edges=[(1, 1)]))
            await asyncio.sleep(0)
            behind.gate.set()
            assert (await task).offset == 2

    run(scene())


def test_a_batch_may_build_upon_one_that_is_on_its_way(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.gate.clear()
            tasks = [asyncio.create_task(submit(updates, [1])), asyncio.create_task(submit(updates, [2], [(1, 2)]))]
            await until(log.reached.is_set)
            log.gate.set()
            assert [outcome.offset for outcome in await asyncio.gather(*tasks)] == [1, 2]

    run(scene())


def test_a_worker_that_does_not_catch_up_does_not_judge(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CATCH_UP_S", 0.05)

    async def scene() -> None:
        behind = FakeReplica()
        async with running(sqlite.open(), FakeReplica()) as one, running(sqlite.open(), behind) as two:
            behind.gate.clear()
            await submit(one, [1], sequence=1)
            with pytest.raises(LogError, match="1 batches behind the log of changes, and this one seems wrong"):
                await submit(two, edges=[(1, 1)])
            behind.nodes.add(1)
            with pytest.raises(NotAppliedError, match="durable, at offset 1"):
                await submit(two, [1], sequence=1)
            behind.nodes.clear()
            behind.gate.set()

    run(scene())


def test_everything_that_waits_goes_into_the_next_transaction(
    sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.gate.clear()
            tasks = [asyncio.create_task(submit(updates, [0]))]
            await until(log.reached.is_set)
            tasks += [asyncio.create_task(submit(updates, [node])) for node in range(1, 20)]
            await asyncio.sleep(0)
            await until(lambda: len(updates._open) == 20)
            monkeypatch.setattr(writer, "_GROUP_BYTES", 5 * len(encode_batch(make_batch([1]))))
            log.gate.set()
            assert [outcome.offset for outcome in await asyncio.gather(*tasks)] == list(range(1, 21))
        assert [len(group) for group in log.groups] == [1, 5, 5, 5, 4]
        assert log.reads == 0, "what a worker appends itself it need not read"

    run(scene())


def test_a_transaction_of_unknown_outcome_is_tried_again_and_counts_once(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.after = [LogError("the server is away"), LogError("the server is away")]
            assert await submit(updates, [1]) == Outcome(1, 0, False, None)
            log.before = [LogError("the server is away")]
            assert await submit(updates, [2]) == Outcome(2, 0, False, None)
            assert updates.problem is None
        assert len(read_all(sqlite.open())) == 2

    run(scene())


def test_a_batch_that_was_known_before_is_repeated_whatever_became_of_the_first_try(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica([1])) as updates:
            assert not (await submit(updates, edges=[(1, 1)], sequence=1)).is_repeated
            log.before.append(LogError("the connection was lost"))
            again = await submit(updates, edges=[(1, 1)], sequence=1)
            assert (again.offset, again.is_repeated, log.before) == (1, True, [])

    run(scene())


def test_a_batch_that_cannot_be_written_in_time_may_be_durable_or_not(
    sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.2)

    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.before = [LogError("the server is away")] * 1000
            with pytest.raises(
                LogError, match=r"the server is away\. The batch may be in the log or not: send it again"
            ):
                await submit(updates, [1], sequence=1)
            assert updates.problem == "the server is away"
            log.before = []
            assert not (await submit(updates, [1], sequence=1)).is_repeated
            assert updates.problem is None

    run(scene())


def test_a_full_log_is_told_at_once(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.before = [LogFullError("the disk is full")]
            with pytest.raises(LogFullError, match=r"the disk is full\. The batch is not in the log"):
                await submit(updates, [1])
            assert len(log.groups) == 1
            assert updates.problem == "the disk is full"
            assert (await submit(updates, [1])).offset == 1
            assert updates.problem is None

    run(scene())


def test_a_batch_that_its_client_has_passed_fails_alone(place: LogPlace) -> None:
    async def scene() -> None:
        log = place.open()
        replica = FakeReplica()
        flaky = FlakyLog(log)
        async with running(flaky, replica) as updates:
            for sequence in (1, 2, 3):
                await submit(updates, edges=[], new=[sequence], client="a", sequence=sequence)
            log.cut(3)
            flaky.gate.clear()
            flaky.reached.clear()
            tasks = [asyncio.create_task(submit(updates, [10], client="b", sequence=1))]
            await until(flaky.reached.is_set)
            tasks += [
                asyncio.create_task(submit(updates, [node], client=client, sequence=1))
                for node, client in ((11, "c"), (12, "a"), (13, "d"))
            ]
            await until(lambda: len(updates._open) == 4)
            flaky.gate.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [r.offset for r in results if isinstance(r, Outcome)] == [4, 5, 6]
            assert isinstance(results[2], SequencePassedError)
            with pytest.raises(SequencePassedError):
                await submit(updates, [1], client="a", sequence=1)

    run(scene())


def test_too_much_that_waits_is_told(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_WAITING_BYTES", 100)

    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.gate.clear()
            tasks = [asyncio.create_task(submit(updates, [1]))]
            await until(log.reached.is_set)
            tasks += [asyncio.create_task(submit(updates, [node])) for node in (2, 3)]
            await until(lambda: len(updates._open) == 3)
            with pytest.raises(
                LogError, match=r"too many changes wait .* the log is slow\. The batch is not in the log"
            ):
                await submit(updates, [4])
            log.gate.set()
            await asyncio.gather(*tasks)
            assert (await submit(updates, [4])).offset == 4

    run(scene())


def test_a_client_that_is_gone_leaves_nothing_behind(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        async with running(log, FakeReplica()) as updates:
            log.gate.clear()
            under_way = asyncio.create_task(submit(updates, [1]))
            await until(log.reached.is_set)
            waiting = asyncio.create_task(submit(updates, [2]))
            await until(lambda: len(updates._open) == 2)
            for task in (under_way, waiting):
                task.cancel()
            await asyncio.gather(under_way, waiting, return_exceptions=True)
            log.gate.set()
            assert (await submit(updates, [2])).offset == 2
            assert not updates._open
            assert not updates._durable

    run(scene())


def test_without_a_replica_no_batch_is_taken_and_the_log_can_be_read(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = sqlite.open()
        log.append([entry("a", 1, encode_batch(make_batch([1])))])
        async with running(log) as updates:
            with pytest.raises(LogError, match="has no revision yet"):
                await submit(updates, [1])
            assert len(await updates.read(0, 1000)) == 1
            assert not await updates.wait_applied(1, 0.01)
            updates.follow(FakeReplica())
            assert await updates.wait_applied(1, WAIT_S)
            updates.follow(None)
            assert updates.applied == 0

    run(scene())


def test_where_there_is_no_room_nothing_is_taken_until_another_revision_has_some(sqlite: LogPlace) -> None:
    async def scene() -> None:
        full, other = FakeReplica(room=3), FakeReplica()
        async with running(sqlite.open(), full) as one, running(sqlite.open(), other) as two:
            await submit(one, [1, 2])
            full.gate.clear()
            own = asyncio.create_task(submit(one, [3], sequence=1))
            await until(lambda: sqlite.open().position().last == 2)
            await submit(two, [4])
            late = asyncio.create_task(submit(one, [9]))
            await until(lambda: sqlite.open().position().last == 4)
            full.gate.set()
            assert (await own).offset == 2
            with pytest.raises(NotAppliedError, match=r"durable, at offset 4 .*: changes take all of their memory"):
                await late
            assert isinstance(one.problem_error, NoRoomError)
            assert one.problem == "changes take all of their memory: compact the graph"
            assert await refused(submit(one, [5])) is ChangeProblem.NO_ROOM
            assert (one.applied, one.last) == (2, 4)
            assert one.changes_behind == 2
            assert one.staleness_s > 0
            full.room = 5
            assert await one.wait_applied(4, WAIT_S)
            await until(lambda: one.problem is None)
            assert full.nodes == other.nodes == {1, 2, 3, 4, 9}
            assert one.staleness_s == 0

    run(scene())


def test_another_revision_is_followed_from_its_own_offset(place: LogPlace) -> None:
    async def scene() -> None:
        async with running(place.open(), FakeReplica()) as updates:
            for node in range(10):
                await submit(updates, [node])
            compacted = FakeReplica(range(5), offset=5)
            updates.follow(compacted)
            assert updates.applied >= 5
            assert await updates.wait_applied(10, WAIT_S)
            assert compacted.nodes == set(range(10))
            assert (await submit(updates, [10])).offset == 11
            ready = FakeReplica(range(7), offset=7)
            await asyncio.to_thread(updates.catch_up, ready)
            assert ready.offset == 11
            updates.follow(ready)
            assert updates.applied == 11
            assert (await submit(updates, edges=[(10, 9)])).offset == 12
            assert compacted.offset == 11

    run(scene())


def test_a_replica_that_takes_over_has_all_that_was_told(place: LogPlace) -> None:
    async def scene() -> None:
        before, after = FakeReplica(), FakeReplica()
        async with running(place.open(), before) as updates:

            def take_over() -> None:
                with updates.handing_over(after):
                    assert after.offset >= before.offset
                    loop.call_soon_threadsafe(updates.follow, after)

            loop, sending = asyncio.get_running_loop(), True

            async def send(first: int) -> None:
                for node in itertools.count(first, 2):
                    if not sending:
                        break
                    outcome = await submit(updates, [node])
                    assert updates.applied >= outcome.offset

            senders = [asyncio.create_task(send(first)) for first in (0, 1)]
            assert await updates.wait_applied(5, WAIT_S)
            await asyncio.to_thread(take_over)
            await until(lambda: updates.replica is after)
            assert await updates.wait_applied(before.offset + 5, WAIT_S)
            sending = False
            await asyncio.gather(*senders)
            assert after.nodes == set(range(after.offset))

    run(scene())


def test_a_replica_does_not_take_over_where_the_log_cannot_be_read(place: LogPlace) -> None:
    async def scene() -> None:
        log, before, after = FlakyLog(place.open()), FakeReplica(), FakeReplica()
        async with running(log, before) as updates:

            def take_over() -> None:
                with updates.handing_over(after):
                    raise AssertionError("it lacks what was told")

            await submit(updates, [1])
            log.reading.append(LogError("the database is away"))
            with pytest.raises(LogError, match="the database is away"):
                await asyncio.to_thread(take_over)
            assert updates.replica is before
            assert (await submit(updates, [2])).offset == before.offset == 2

    run(scene())


def test_a_log_that_is_cut_beyond_a_replica_is_told(place: LogPlace) -> None:
    async def scene() -> None:
        log = place.open()
        log.append([entry("a", node, encode_batch(make_batch([node]))) for node in range(5)])
        log.cut(3)
        async with running(log, FakeReplica()) as updates:
            await until(lambda: updates.problem is not None)
            assert "offset 1 of the log of changes is compacted away" in updates.problem
            with pytest.raises(LogError, match="send it again, or to another worker") as told:
                await submit(updates, [9])
            assert not isinstance(told.value, LogConflictError)
            updates.follow(FakeReplica(range(3), offset=3))
            assert await updates.wait_applied(5, WAIT_S)

    run(scene())


def test_a_log_behind_its_revision_is_told_and_not_written(place: LogPlace) -> None:
    async def scene() -> None:
        log = place.open()
        log.append([entry("a", 1, encode_batch(make_batch([1])))])
        async with running(log, FakeReplica(offset=40)) as updates:
            await until(lambda: updates.problem is not None)
            assert "ends at offset 1, and this worker has seen it at 40: it was restored" in updates.problem
            with pytest.raises(LogBehindError):
                await submit(updates, [2])
            with pytest.raises(LogBehindError):
                updates.catch_up(FakeReplica(offset=2))
        assert log.position().last == 1

    run(scene())


def test_a_batch_is_not_written_before_it_is_known_that_the_log_has_the_revision_s_offset(sqlite: LogPlace) -> None:
    async def scene() -> None:
        async with running(sqlite.open(), FakeReplica(offset=40)) as updates:
            with pytest.raises(LogBehindError):
                await submit(updates, [2])
        assert sqlite.open().position().last == 0

    run(scene())


def replace_folder(folder: Path, other: Path) -> None:
    """Until nobody has made the first one again meanwhile, as whoever looks for the log does."""
    while True:
        shutil.rmtree(folder)
        with suppress(OSError):
            other.rename(folder)
            return


def test_a_log_that_was_restored_and_written_anew_is_told(sqlite: LogPlace, tmp_path: object) -> None:
    """It is as long as the worker knows it, and is not what the worker has applied."""

    async def scene() -> None:
        replica = FakeReplica()
        async with running(sqlite.open(), replica) as updates:
            for node in (1, 2, 3):
                await submit(updates, [node])
            anew = sqlite_place(sqlite.path.parents[1] / "anew")
            log = anew.open()
            log.append([entry("b", node, encode_batch(make_batch([node]))) for node in range(10, 15)])
            anew.close()
            replace_folder(sqlite.path.parent, anew.path.parent)
            await until(lambda: updates.problem is not None)
            assert "has another record at offset 3 than this worker has applied" in updates.problem
            assert replica.nodes == {1, 2, 3}
            with pytest.raises(LogBehindError):
                await submit(updates, [4])

    run(scene())


def test_a_log_that_cannot_be_read_is_told_and_read_when_it_can(
    sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_BACKOFF_S", (0.01, 0.02))

    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        log.reading = [LogError("the server is away")] * 5
        sqlite.open().append([entry("a", 1, encode_batch(make_batch([1])))])
        replica = FakeReplica()
        async with running(log, replica) as updates:
            await until(lambda: updates.problem == "the server is away")
            assert await updates.wait_applied(1, WAIT_S)
            await until(lambda: updates.problem is None)

    run(scene())


def test_a_record_that_this_release_cannot_read_is_told_and_not_skipped(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = sqlite.open()
        log.append([entry("a", 1, b"of a newer release"), entry("a", 2, encode_batch(make_batch([1])))])
        replica = FakeReplica()
        async with running(log, replica) as updates:
            await until(lambda: updates.problem is not None)
            assert "cannot read the batch at offset 1 " in updates.problem
            assert updates.applied == 0

    run(scene())


def test_a_replica_that_fails_is_told_and_tried_again(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_BACKOFF_S", (0.01, 0.02))

    async def scene() -> None:
        replica = FakeReplica()
        replica.fault = ZeroDivisionError()
        async with running(sqlite.open(), replica) as updates:
            task = asyncio.create_task(submit(updates, [1]))
            await until(lambda: updates.problem == "applying the log of changes failed: ZeroDivisionError")
            replica.fault = None
            assert (await task).offset == 1

    run(scene())


def test_an_unexpected_error_while_appending_does_not_end_the_writer(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = FlakyLog(sqlite.open())
        log.before = [ZeroDivisionError()]
        async with running(log, FakeReplica()) as updates:
            assert (await submit(updates, [1])).offset == 1

    run(scene())


def test_closing_tells_what_waits(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log, replica = FlakyLog(sqlite.open()), FakeReplica()
        updates = Updates(log)
        updates.start()
        updates.follow(replica)
        replica.gate.clear()
        durable = asyncio.create_task(submit(updates, [1]))
        await until(lambda: sqlite.open().position().last == 1)
        log.gate.clear()
        log.reached.clear()
        under_way = asyncio.create_task(submit(updates, [2]))
        await until(log.reached.is_set)
        waiting = asyncio.create_task(submit(updates, [3]))
        await until(lambda: len(updates._open) == 3)
        closing = asyncio.create_task(updates.close())
        await until(lambda: updates._writer._is_closed)
        log.gate.set()
        replica.gate.set()
        await closing
        results = await asyncio.gather(durable, under_way, waiting, return_exceptions=True)
        for at, result in enumerate(results[:2]):
            assert isinstance(result, NotAppliedError | Outcome)
            assert result.offset == at + 1
        assert str(results[2]) == "this worker is stopping. The batch is not in the log"
        with pytest.raises(LogError, match="this worker is stopping"):
            await submit(updates, [4])

    run(scene())


def test_waiting_for_an_offset(sqlite: LogPlace) -> None:
    async def scene() -> None:
        replica = FakeReplica()
        async with running(sqlite.open(), replica) as updates:
            assert await updates.wait_applied(0, 0.0)
            assert not await updates.wait_applied(1, 0.02)
            assert not await updates.wait_applied(1, -1.0)
            waits = [asyncio.create_task(updates.wait_applied(offset, WAIT_S)) for offset in (1, 3, 1, 2)]
            never = asyncio.create_task(updates.wait_applied(1 << 62, WAIT_S))
            await submit(updates, [1])
            assert await waits[0]
            assert await waits[2]
            assert not waits[1].done()
            await submit(updates, [2])
            assert await waits[3]
            await submit(updates, [3])
            assert await waits[1]
            never.cancel()
            await asyncio.gather(never, return_exceptions=True)
            assert not updates._waiters

    run(scene())


def test_records_are_applied_in_slices(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_SLICE_S", 0.0)
    monkeypatch.setattr(follower, "_GROUP_ITEMS", 1)
    pauses: list[int] = []

    async def scene() -> None:
        log = sqlite.open()
        log.append([entry("a", node, encode_batch(make_batch([node]))) for node in range(20)])
        replica = FakeReplica()
        updates = Updates(log)
        updates.start()
        updates._follower._pause = lambda _: pauses.append(replica.offset)
        updates.follow(replica)
        assert await updates.wait_applied(20, WAIT_S)
        await updates.close()

    run(scene())
    assert pauses == list(range(1, 21))


def test_while_predictions_are_computed_fewer_records_are_applied_in_one_go() -> None:
    handed = [HandedRecord(Record(number, "a", number, 0, 50, 50 * number, b"")) for number in range(1, 62)]
    said = iter([1024, 128, 128, 1024, 1024])
    assert [len(group) for group in grouped(handed, lambda: next(said))] == [20, 2, 2, 20, 17]
    replica, applied = FakeReplica(), Follower(FlakyLog(None), Lag(lambda: 0.0), print, print)  # type: ignore[arg-type]
    items = []
    for replica.inferences in (0, 0, 1, 1, 3):
        items.append(applied._most_items(replica))
    assert items == [2048, 2048, 512, 2048, 512]


def test_a_late_worker_that_is_asked_nothing_applies_more_in_one_go() -> None:
    now_s = 0.0
    lag, replica = Lag(lambda: now_s), FakeReplica()
    applied = Follower(FlakyLog(None), lag, print, print, clock_s=lambda: now_s)  # type: ignore[arg-type]
    lag.see_record(Record(1, "a", 1, 0, 1, 1, b""))
    items = []
    for at_s, replica.inferences in ((0.4, 0), (0.6, 0), (0.7, 1), (0.8, 1)):
        now_s = at_s
        items.append(applied._most_items(replica))
    assert items == [2048, 8192, 512, 8192]


def test_predictions_have_nine_tenths_of_the_time_unless_the_worker_is_late() -> None:
    now_s = 0.0
    lag, replica = Lag(lambda: now_s), FakeReplica()
    applied = Follower(FlakyLog(None), lag, print, print, clock_s=lambda: now_s)  # type: ignore[arg-type]

    def rest_after(passed_s: float, computed_s: float, used_s: float) -> float:
        nonlocal now_s
        now_s, replica.computing_s = now_s + passed_s, replica.computing_s + computed_s
        return applied._rest_s(replica, used_s)

    assert rest_after(0.1, 0.0, 0.001) == 0.0
    assert rest_after(0.01, 0.01, 0.001) == pytest.approx(0.009)
    assert rest_after(0.01, 0.0002, 0.001) == pytest.approx(0.0009)
    assert rest_after(0.01, 0.01, 1.0) == pytest.approx(0.1)
    lag.see_record(Record(1, "a", 1, 0, 1, 1, b""))
    assert rest_after(0.4, 0.4, 0.001) > 0
    assert rest_after(0.2, 0.2, 0.001) == 0.0


def test_records_that_wait_in_memory_are_bounded(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_HANDED_BYTES", 500)

    async def scene() -> None:
        replica = FakeReplica()
        async with running(sqlite.open(), replica) as updates:
            replica.gate.clear()
            tasks = [asyncio.create_task(submit(updates, [node])) for node in range(20)]
            await until(lambda: sqlite.open().position().last == 20)
            assert updates._follower._handed_bytes <= 500
            replica.gate.set()
            await asyncio.gather(*tasks)
            assert replica.nodes == set(range(20))

    run(scene())


def test_what_was_said_of_old_records_is_forgotten(sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 5)

    async def scene() -> None:
        log = sqlite.open()
        batches = [make_batch([1], [(1, 1)]), *(make_batch(edges=[(1, 1)]) for _ in range(5)), make_batch([1])]
        log.append([entry("a", number, encode_batch(batch)) for number, batch in enumerate(batches)])
        async with running(log, FakeReplica()) as updates:
            assert await updates.wait_applied(7, WAIT_S)
            await until(lambda: bool(updates.refused))
            assert sorted([*updates._unchanged, *updates.refused]) == [3, 4, 5, 6, 7]

    run(scene())


def test_what_was_refused_while_a_replica_caught_up_is_known(sqlite: LogPlace) -> None:
    async def scene() -> None:
        log = sqlite.open()
        batch = encode_batch(make_batch([1]))
        log.append([entry("a", 1, batch), entry("b", 1, batch), entry("c", 1, b"unreadable")])
        updates = Updates(log)
        replica = FakeReplica()
        with pytest.raises(LogConflictError, match="cannot read the batch at offset 3"):
            updates.catch_up(replica)
        assert replica.offset == 2
        assert set(updates.refused) == {2}
        updates.start()
        await updates.close()

    run(scene())
