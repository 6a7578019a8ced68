"""Who goes first, is refused and loses a place in the queue by priority, without a clock."""

from __future__ import annotations

import pytest
from tests.support.serving.batching import Queue, reason

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_worker.scheduling.refusal import RefusalReason

# TRADE_OFF: 1 seed costs x1 10.1, x4 4.04, x8 2.02 ms; 100 seeds cost 20, 8, 4 ms, and are a full batch.

PATIENT = Objective(latency_ms=5_000)


@pytest.mark.parametrize("objective", [NO_OBJECTIVE, PATIENT], ids=["no latency", "a latency"])
def test_higher_priorities_go_first_and_others_fill_what_is_left(objective: Objective) -> None:
    queue = Queue()
    for priority in (3, 2, 1, 2, 1):
        queue.ask(40, objective, priority=priority)
    assert sorted(queue.take_keys()[1]) == [2, 4]
    assert sorted(queue.take_keys()[1]) == [1, 3]
    assert queue.take_keys()[1] == [0]
    for priority in (2, 1):
        queue.ask(50, objective, priority=priority)
    assert sorted(queue.take_keys()[1]) == [5, 6]


def test_small_requests_of_a_higher_priority_share_batches_that_others_fill() -> None:
    queue = Queue()
    for _ in range(4):
        queue.ask(45)
    queue.ask(1, priority=1)
    assert queue.take_keys()[1] == [4, 0, 1]
    queue.ask(1, priority=1)
    assert queue.take_keys()[1] == [5, 2, 3]


@pytest.mark.parametrize("objective", [NO_OBJECTIVE, PATIENT], ids=["no latency", "a latency"])
@pytest.mark.parametrize(("later_ms", "first"), [(999, 1), (1001, 0)])
def test_a_level_is_worth_a_second(objective: Objective, later_ms: float, first: int) -> None:
    queue = Queue()
    queue.ask(99, objective)
    queue.ask(99, objective, at=later_ms, priority=1)
    assert queue.take_keys(at=later_ms)[1] == [first]


def test_nothing_waits_without_end_while_higher_priorities_take_all_there_is() -> None:
    queue, now_ms = Queue(), 0.0
    queue.ask(99, priority=3)
    for _ in range(200):
        queue.ask(99, priority=1, at=now_ms)
        batch = queue.take(at=now_ms)
        if batch.pieces[0].request.priority == 3:
            break
        now_ms += 20
        queue.batcher.finish()
    assert 2000 <= now_ms <= 2040


def test_a_backlog_of_lower_priority_makes_nothing_late_and_is_late_itself() -> None:
    queue, hurried = Queue(), Objective(latency_ms=24.5)
    queue.ask(100)
    queue.take()  # busy until 20
    queue.ask(50, hurried)
    queue.ask(50, hurried)  # together 4 ms by x8
    assert reason(queue.ask(50, hurried)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert reason(queue.ask(50, hurried, priority=3)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert queue.ask(100, hurried, priority=1) is None
    queue.batcher.finish()
    first = queue.batcher.take(20)
    assert first.batch is not None
    assert [piece.request.key for piece in first.batch.pieces] == [5]
    queue.batcher.finish()
    then = queue.batcher.take(24)
    assert then.batch is None
    assert [(request.key, refusal.reason) for request, refusal in then.refused] == [
        (1, RefusalReason.DEADLINE_PASSED), (2, RefusalReason.DEADLINE_PASSED),
    ]  # fmt: skip


def test_a_batch_is_not_filled_so_far_that_the_first_is_late() -> None:
    """Requests of a lower priority that are due later would fill it, and the first be given up for a full batch."""
    queue = Queue()
    queue.ask(4, Objective(latency_ms=3), priority=1)
    for _ in range(6):
        queue.ask(16, Objective(latency_ms=4))
    taken = queue.batcher.take(0.5)
    assert taken.batch is not None
    assert [piece.request.key for piece in taken.batch.pieces] == [0]


def test_the_first_gets_no_variant_that_makes_lower_ones_late_which_are_due_sooner() -> None:
    queue = Queue()
    queue.ask(60, Objective(latency_ms=900), priority=1)
    queue.ask(1, Objective(latency_ms=10))  # x1 would take 16.1 ms
    assert queue.take_keys() == ("x4", [0, 1])
    queue.ask(1, Objective(latency_ms=10))
    queue.ask(60, Objective(latency_ms=900, accuracy_tolerance_permille=0), priority=1)
    assert queue.take_keys() == ("x1", [3, 2])  # there is no faster one for the first
    queue.ask(150, Objective(latency_ms=900), priority=1)
    assert queue.take_shape() == ("x1", [(4, 0, 100)])
    queue.ask(1, Objective(latency_ms=10))
    assert queue.take_shape() == ("x1", [(4, 100, 125), (5, 0, 1)])  # begun by x1


def test_a_request_without_a_latency_does_not_yield_to_deadlines_of_a_lower_priority() -> None:
    queue = Queue()
    queue.ask(99, Objective(latency_ms=25))
    for _ in range(3):
        queue.ask(99, priority=1)
    assert [queue.take_keys()[1] for _ in range(4)] == [[1], [2], [3], [0]]


def test_a_deadline_is_judged_by_what_goes_first_without_a_latency_too() -> None:
    queue, hurried = Queue(), Objective(latency_ms=41)
    queue.ask(100)
    queue.take()  # busy until 20
    queue.ask(100, priority=1)  # by x1, until 40
    assert [reason(queue.ask(1, hurried, priority=priority)) for priority in (2, 3)] == [
        RefusalReason.DEADLINE_OUT_OF_REACH
    ] * 2
    assert queue.ask(1, Objective(latency_ms=43)) is None  # 2.02 ms by x8
    assert queue.ask(1, hurried, priority=1) is None


def displaced(queue: Queue) -> list[int]:
    """Keys of the requests that lost their place since the last call."""
    lost = queue.batcher.take_displaced()
    assert all(refusal.reason is RefusalReason.QUEUE_FULL and refusal.retry_after_s for _, refusal in lost)
    return [request.key for request, _ in lost]


def test_a_full_queue_gives_up_the_last_of_the_lowest_priority() -> None:
    queue = Queue(max_queued_seeds=100)
    for priority in (2, 3, 1, 2, 3):
        queue.ask(20, priority=priority)
    assert reason(queue.ask(1, priority=3)) is RefusalReason.QUEUE_FULL
    assert queue.ask(20, priority=2) is None
    assert displaced(queue) == [4]
    assert queue.ask(30, priority=1) is None
    assert displaced(queue) == [1, 6]
    assert (queue.batcher.queue.seeds, queue.batcher.admission.displaced) == (90, [])
    assert reason(queue.ask(60, priority=1)) is RefusalReason.QUEUE_FULL  # two of 20 are lower, and 50 would be needed
    assert not queue.batcher.admission.displaced
    assert sorted(queue.take_keys()[1]) == [0, 2, 3, 7]


def test_the_last_that_came_is_given_up_whatever_its_latency() -> None:
    queue = Queue(max_queued_seeds=100)
    for objective in (NO_OBJECTIVE, PATIENT, NO_OBJECTIVE, PATIENT, NO_OBJECTIVE):
        queue.ask(20, objective, priority=3)
    for expected in ([4], [3], [2]):
        assert queue.ask(20, priority=1) is None
        assert displaced(queue) == expected


def test_what_a_batch_passed_over_is_not_given_up_before_what_came_later() -> None:
    queue = Queue(max_queued_seeds=180)
    for seeds in (60, 60, 40, 20):
        queue.ask(seeds, priority=3)
    assert sorted(queue.take_keys()[1]) == [0, 2]
    queue.ask(99, priority=1)
    queue.ask(20, priority=1)
    assert displaced(queue) == [3]


def test_what_is_computed_in_part_is_given_up_last() -> None:
    queue = Queue(max_queued_seeds=300)
    queue.ask(150, PATIENT, priority=3)
    queue.ask(150, PATIENT, arrived=-100, priority=3)
    assert queue.take_shape()[1] == [(1, 0, 100)]
    queue.ask(99, priority=1)
    queue.ask(10, priority=1)
    assert displaced(queue) == [0]
    queue.ask(99, priority=1)
    queue.ask(80, priority=1)
    assert displaced(queue) == [1]


def test_a_request_that_is_refused_for_another_reason_takes_no_place() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(100, priority=3)
    refusal = queue.ask(1, Objective(latency_ms=1), strict=True)
    assert reason(refusal) is RefusalReason.OBJECTIVE_INFEASIBLE
    assert not queue.batcher.admission.displaced


def test_what_is_known_of_refusals_is_of_the_default_priority() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(100)
    assert reason(queue.ask(1, priority=3)) is RefusalReason.QUEUE_FULL
    assert queue.batcher.would_refuse(NO_OBJECTIVE, 1, 0) is None
    assert reason(queue.ask(1)) is RefusalReason.QUEUE_FULL
    assert queue.batcher.would_refuse(NO_OBJECTIVE, 1, 0) is not None
    assert queue.ask(1, priority=1) is None
    assert queue.batcher.would_refuse(NO_OBJECTIVE, 1, 0) is None
