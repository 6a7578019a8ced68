"""The loop's promises: each key once, one at a time, soon after a change and at every resync, with growing delays."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.machine.clock import FakeClock, settle
from tests.support.machine.waiting import WAIT_S

from gnnserve_operator import loop as loop_module
from gnnserve_operator.errors import ConflictError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.loop import (
    BURST,
    LONGEST_BACKOFF_S,
    ROUTINE_WAIT_S,
    SETTLE_S,
    Loop,
    WorkQueue,
    backoff_s,
)
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.slow_loop import RoutingMemory

A, B, C, D = (ServiceKey("default", name) for name in "abcd")
SOON_S = 2 * SETTLE_S


@dataclass(slots=True)
class Work:
    """Reconciles that a test holds open, fails and counts."""

    clock: FakeClock
    seen: list[ServiceKey] = field(default_factory=list)
    at: dict[ServiceKey, list[float]] = field(default_factory=dict)
    answers: dict[ServiceKey, float | Exception | None] = field(default_factory=dict)
    gates: dict[ServiceKey, asyncio.Event] = field(default_factory=dict)
    running: Counter[ServiceKey] = field(default_factory=Counter)
    most_at_once: int = 0
    cancelled: list[ServiceKey] = field(default_factory=list)

    async def reconcile(self, key: ServiceKey) -> float | None:
        self.seen.append(key)
        self.at.setdefault(key, []).append(self.clock.now())
        self.running[key] += 1
        assert self.running[key] == 1, "two reconciles of one key at once"
        self.most_at_once = max(self.most_at_once, self.running.total())
        try:
            if key in self.gates:
                await self.gates[key].wait()
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        finally:
            self.running[key] -= 1
        answer = self.answers.get(key)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def gaps(self, key: ServiceKey) -> list[float]:
        times = self.at[key]
        return [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)]


@dataclass(slots=True)
class Running:
    loop: Loop
    work: Work
    clock: FakeClock
    metrics: Metrics
    keys: list[ServiceKey]


@asynccontextmanager
async def running(*, resync_s: float = 3600, concurrency: int = 8) -> AsyncIterator[Running]:
    clock, metrics = FakeClock(), Metrics(RoutingMemory())
    keys: list[ServiceKey] = []
    work = Work(clock)
    loop = Loop(
        work.reconcile, lambda: keys, metrics,
        concurrency=concurrency, resync_s=resync_s, clock=clock, jitter=lambda: 1.0,
    )  # fmt: skip
    task = asyncio.create_task(loop.run())
    await settle()
    try:
        yield Running(loop, work, clock, metrics, keys)
    finally:
        loop.stop()
        await task


def scenario(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def value_of(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@scenario
async def test_a_burst_of_changes_is_one_reconcile() -> None:
    async with running() as it:
        for _ in range(100):
            it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert it.work.seen == [A]


@scenario
async def test_changes_while_a_key_is_reconciled_lead_to_one_more_after_it() -> None:
    async with running() as it:
        it.work.gates[A] = asyncio.Event()
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        for _ in range(10):
            it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert it.work.seen == [A]
        it.work.gates.pop(A).set()
        await it.clock.advance(SOON_S)
        assert it.work.seen == [A, A]


@scenario
async def test_only_so_many_keys_are_reconciled_side_by_side() -> None:
    async with running(concurrency=2) as it:
        gate = asyncio.Event()
        it.work.gates = dict.fromkeys((A, B, C), gate)
        for key in (A, B, C):
            it.loop.enqueue(key)
        await it.clock.advance(SOON_S)
        assert it.work.seen == [A, B]
        assert value_of(it.metrics, "gnnserve_operator_queue_depth") == 1
        gate.set()
        await settle()
        assert it.work.seen == [A, B, C]
        assert it.work.most_at_once == 2


@scenario
async def test_what_changed_while_it_was_looked_at_is_looked_at_again_soon() -> None:
    async with running() as it:
        it.work.answers[A] = ConflictError("the object has been modified")
        it.loop.enqueue(A)
        await it.clock.advance(SETTLE_S + 3.0)
        assert it.work.gaps(A) == [0.1, 0.2, 0.4, 0.8]
        assert value_of(it.metrics, "gnnserve_operator_reconciles_total", result="conflict") == 5


def test_a_conflict_is_not_worth_a_word_unless_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running() as it:
            it.work.answers[A] = ConflictError("the watch tells nothing")
            it.loop.enqueue(A)
            await it.clock.advance(SETTLE_S + 3.0)
            assert caplog.records == []
            await it.clock.advance(57)
            assert it.work.gaps(A)[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 1, 2, 4]
            it.work.answers[A] = None
            await it.clock.advance(LONGEST_BACKOFF_S)
            it.work.at.clear()
            it.work.answers[A] = ConflictError("the object has been modified")
            it.loop.enqueue(A)
            await it.clock.advance(SETTLE_S + 1)
            assert it.work.gaps(A) == [0.1, 0.2, 0.4]

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "the watch tells nothing; attempt 1 failed, the next one is in 1.0 s at the latest"
    ]


@scenario
async def test_a_reconcile_that_asks_for_it_is_looked_at_again_then() -> None:
    async with running() as it:
        it.work.answers[A] = 5.0
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S + 16)
        assert it.work.gaps(A) == [5, 5, 5]


@scenario
async def test_everything_is_looked_at_when_it_begins_and_at_every_resync() -> None:
    async with running(resync_s=60) as it:
        it.keys.extend([A, B])
        await it.clock.advance(125)
        assert it.work.gaps(A) == [60]
        assert Counter(it.work.seen) == {A: 2, B: 2}


@scenario
async def test_a_change_amid_a_resync_is_looked_at_before_the_rest_of_it() -> None:
    async with running(resync_s=60, concurrency=1) as it:
        it.keys.extend(ServiceKey("default", f"at-rest-{number}") for number in range(20))
        it.work.gates = {key: asyncio.Event() for key in it.keys}
        await it.clock.advance(60)
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert it.work.seen == it.keys[:1], "the one that runs is not interrupted"
        it.work.answers[A] = 1.0
        it.work.gates[it.keys[0]].set()
        await it.clock.advance(SOON_S)
        assert it.work.seen == [it.keys[0], A, it.keys[1]]
        await it.clock.advance(1.0)
        it.work.gates[it.keys[1]].set()
        await it.clock.advance(SOON_S)
        assert it.work.seen[3:] == [A, it.keys[2]], "and so is the look that a reconcile asked for"
        for gate in it.work.gates.values():
            gate.set()
        await it.clock.advance(SOON_S)
        assert {*it.work.seen} == {A, *it.keys}


@scenario
async def test_beside_a_change_a_resync_goes_on_one_by_one() -> None:
    async with running(resync_s=60, concurrency=4) as it:
        it.keys.extend(ServiceKey("default", f"at-rest-{number}") for number in range(6))
        gates = it.work.gates = {key: asyncio.Event() for key in (A, *it.keys)}
        one, two, three, four, five, six = it.keys
        await it.clock.advance(60)
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert it.work.seen == [one, two, three, four], "all at once while nothing has happened"
        for key in (one, two, three):
            gates[key].set()
        await settle()
        assert it.work.seen[4:] == [A], "one of the resync runs on beside it"
        gates[four].set()
        await settle()
        assert it.work.seen[5:] == [five]
        gates[A].set()
        await settle()
        assert it.work.seen[6:] == [six]
        gates[five].set()
        gates[six].set()


@scenario
async def test_failures_are_retried_with_growing_delays_until_the_first_success() -> None:
    async with running() as it:
        it.work.answers[A] = RetryLaterError("busy")
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S + 1 + 2 + 4)
        assert it.work.gaps(A) == [1, 2, 4]
        it.work.answers[A] = None
        await it.clock.advance(8)
        it.work.answers[A] = RetryLaterError("busy")
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S + 1)
        assert it.work.gaps(A)[-1] == 1
        assert value_of(it.metrics, "gnnserve_operator_reconciles_total", result="retry") == 6
        assert value_of(it.metrics, "gnnserve_operator_reconciles_total", result="success") == 1


@scenario
async def test_a_delay_that_the_api_server_asks_for_is_kept() -> None:
    async with running() as it:
        it.work.answers[A] = RetryLaterError("too many requests", after_s=30)
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S + 31)
        assert it.work.gaps(A) == [30]


@scenario
async def test_a_change_is_looked_at_at_once_although_the_key_is_backing_off() -> None:
    async with running() as it:
        it.work.answers[A] = RefusedError("apply Deployment a-worker", "image is empty", 422)
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S + 1 + 2 + 4 + 8)
        it.work.answers[A] = None
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert len(it.work.at[A]) == 6
        assert value_of(it.metrics, "gnnserve_operator_reconciles_total", result="refused") == 5


@scenario
async def test_somebody_who_undoes_everything_is_not_answered_faster_than_once_a_second() -> None:
    async with running() as it:
        for _ in range(600):
            it.loop.enqueue(A)
            await it.clock.advance(0.1)
        assert BURST + 55 <= len(it.work.seen) <= BURST + 65
        it.loop.enqueue(B)
        await it.clock.advance(SOON_S)
        assert B in it.work.seen, "another key must not wait for it"
        await it.clock.advance(BURST)
        before = len(it.work.seen)
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        assert len(it.work.seen) == before + 1


def test_a_resync_does_not_bring_a_retry_forward_nor_say_the_same_again(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_for_a_minute() -> None:
        async with running(resync_s=1) as it:
            it.keys.append(A)
            it.work.answers[A] = RefusedError("apply Job a-generate", "exceeded quota", 403)
            await it.clock.advance(1 + 64)
            assert it.work.gaps(A) == [1, 2, 4, 8, 16, 32]

    asyncio.run(fail_for_a_minute())
    assert [r.levelname for r in caplog.records if "exceeded quota" in r.getMessage()] == ["WARNING"]


@scenario
async def test_news_that_can_wait_does_not_bring_a_retry_forward() -> None:
    async with running() as it:
        it.loop.nudge(A)
        await it.clock.advance(SOON_S)
        assert it.work.seen == [A]
        it.work.answers[A] = RetryLaterError("away")
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        failed = len(it.work.seen)
        it.loop.nudge(A)
        await it.clock.advance(SOON_S)
        assert len(it.work.seen) == failed


@scenario
async def test_one_broken_object_never_stops_another() -> None:
    async with running(resync_s=10) as it:
        it.keys.extend([A, B])
        it.work.answers[A] = KeyError("a mistake in the operator")
        await it.clock.advance(25)
        assert it.work.gaps(B) == [10]
        assert len(it.work.at[A]) > 2
        assert value_of(it.metrics, "gnnserve_operator_reconciles_total", result="error") == len(it.work.at[A])


@scenario
async def test_what_is_under_way_is_finished_before_the_loop_ends() -> None:
    async with running() as it:
        it.work.gates[A] = asyncio.Event()
        it.loop.enqueue(A)
        await it.clock.advance(SOON_S)
        it.loop.stop()
        it.loop.enqueue(B)
        await settle()
        it.work.gates[A].set()
    assert it.work.seen == [A]
    assert it.work.cancelled == []


def test_what_hangs_is_cancelled_when_the_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "STOP_S", 0)

    async def hang() -> Work:
        async with running() as it:
            it.work.gates[A] = asyncio.Event()
            it.loop.enqueue(A)
            await it.clock.advance(SOON_S)
        return it.work

    assert asyncio.run(hang()).cancelled == [A]


def test_a_reconcile_that_never_ends_is_cancelled_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "RECONCILE_LIMIT_S", 0)

    async def hang() -> Work:
        async with running() as it:
            it.work.gates[A] = asyncio.Event()
            it.loop.enqueue(A)
            await it.clock.advance(SOON_S)
            await until(lambda: it.work.cancelled == [A])
            it.work.gates[A].set()
            await it.clock.advance(1)
            await until(lambda: len(it.work.seen) == 2)
        return it.work

    assert asyncio.run(hang()).seen == [A, A]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0)


def test_how_long_the_oldest_reconcile_runs_is_told() -> None:
    async def look() -> float:
        async with running() as it:
            it.work.gates[A] = asyncio.Event()
            it.loop.enqueue(A)
            await it.clock.advance(SOON_S)
            await it.clock.advance(400)
            told = it.loop.longest_running_s()
            it.work.gates[A].set()
        return told

    assert asyncio.run(look()) == pytest.approx(400, abs=1)


@pytest.mark.parametrize(
    ("failures", "jitter", "expected_s"),
    [
        pytest.param(1, 1.0, 1, id="the first retry comes after at most a second"),
        pytest.param(1, 0.0, 0.5, id="jitter takes up to half of it"),
        pytest.param(4, 1.0, 8, id="each failure doubles it"),
        pytest.param(6, 1.0, 32, id="until a minute"),
        pytest.param(10, 1.0, LONGEST_BACKOFF_S, id="which it never passes"),
        pytest.param(100_000, 1.0, LONGEST_BACKOFF_S, id="however often it failed"),
    ],
)
def test_backoff_doubles_up_to_its_limit(failures: int, jitter: float, expected_s: float) -> None:
    assert backoff_s(failures, jitter) == expected_s


class TestWorkQueue:
    def test_the_key_that_has_been_due_for_longest_is_first(self) -> None:
        queue = WorkQueue()
        queue.add(A, 5)
        queue.add(B, 3)
        queue.add(C, 9)
        assert [queue.take(6), queue.take(6), queue.take(6)] == [B, A, None]
        assert queue.next_due() == 9

    def test_what_happened_goes_before_what_is_routine(self) -> None:
        queue = WorkQueue()
        queue.add(A, 1, is_routine=True)
        queue.add(B, 2, is_routine=True)
        queue.add(C, 3)
        assert [queue.take(2.5), queue.take(3)] == [A, C]
        queue.done(A)
        assert queue.take(3) == B

    def test_what_is_routine_does_not_wait_for_ever(self) -> None:
        queue = WorkQueue()
        queue.add(A, 1, is_routine=True)
        queue.add(B, 1 + ROUTINE_WAIT_S + 0.1)
        assert queue.take(ROUTINE_WAIT_S + 2) == A
        queue.add(C, ROUTINE_WAIT_S + 1, is_routine=True)
        assert [queue.take(ROUTINE_WAIT_S + 2) for _ in range(2)] == [B, C]
        queue.add(D, ROUTINE_WAIT_S + 1, is_routine=True)
        assert queue.take(ROUTINE_WAIT_S + 2) is None, "C runs on beside B"
        assert queue.take(2 * ROUTINE_WAIT_S + 1) == D

    def test_a_routine_look_does_not_put_off_what_happened_to_a_key(self) -> None:
        queue = WorkQueue()
        queue.add(A, 3)
        queue.add(B, 4)
        queue.add(B, 1, is_routine=True)
        queue.add(A, 5, is_routine=True)
        assert [queue.take(5), queue.take(5), queue.take(5)] == [A, B, None], "each once"

    def test_what_happens_while_a_key_runs_keeps_its_place(self) -> None:
        queue = WorkQueue()
        for key in (A, B):
            queue.add(key, 1)
            assert queue.take(1) == key
        queue.add(A, 2, is_routine=True)
        queue.add(B, 3)
        queue.done(A)
        queue.done(B)
        assert [queue.take(3), queue.take(3)] == [B, A]

    def test_the_next_time_is_told_of_keys_that_are_not_due(self) -> None:
        queue = WorkQueue()
        for key, due in ((A, 5), (B, 3), (C, 9)):
            queue.add(key, due)
        assert [queue.next_due(), queue.next_due(after=3), queue.next_due(after=9)] == [3, 5, None]

    def test_the_earliest_time_asked_for_wins(self) -> None:
        queue = WorkQueue()
        queue.add(A, 5)
        queue.add(A, 2)
        queue.add(A, 7)
        assert queue.next_due() == 2

    def test_a_key_that_runs_is_not_taken_again_until_it_is_done(self) -> None:
        queue = WorkQueue()
        queue.add(A, 1)
        assert queue.take(1) == A
        queue.add(A, 4)
        queue.add(A, 2)
        assert queue.take(10) is None
        queue.done(A)
        assert queue.next_due() == 2
        assert queue.take(2) == A

    def test_a_key_that_is_done_and_was_not_asked_for_again_is_forgotten(self) -> None:
        queue = WorkQueue()
        queue.add(A, 1)
        queue.take(1)
        queue.done(A)
        assert queue.next_due() is None
        assert queue.depth(100) == 0
