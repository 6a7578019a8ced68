"""Who is queued, refused, answered next and together, by tables and without a clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.serving import TRADE_OFF

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_worker.serving.batcher import Admission, Batch, Batcher, Refusal, RefusalReason, Request
from gnnserve_worker.serving.choice import VariantChooser

# TRADE_OFF: 1 seed costs x1 10.1, x4 4.04, x8 2.02 ms; 100 seeds cost 20, 8, 4 ms; losses 0, 10, 30 permille.
CHOOSER = VariantChooser(TRADE_OFF, max_seeds=100)


class Queue:
    """A batcher with the defaults that most tests want."""

    def __init__(self, max_queued_seeds: int = 500) -> None:
        self.batcher = Batcher(CHOOSER, max_seeds=100, max_queued_seeds=max_queued_seeds)
        self._keys = itertools.count()

    def ask(
        self, seeds: int = 1, objective: Objective = NO_OBJECTIVE, *, at: float = 0, arrived: float | None = None,
        strict: bool = False,
    ) -> Admission | Refusal:  # fmt: skip
        request = Request(next(self._keys), seeds, objective, at if arrived is None else arrived)
        return self.batcher.admit(request, strict, at)

    def take(self, at: float = 0) -> Batch:
        batch = self.batcher.take(at).batch
        assert batch is not None
        return batch

    def take_shape(self, at: float = 0) -> tuple[str, list[tuple[int, int, int]]]:
        """The variant, and (request, start, stop) per piece."""
        batch = self.take(at)
        self.batcher.finish()
        return batch.variant, [(piece.request.key, piece.start, piece.stop) for piece in batch.pieces]


def reason(outcome: Admission | Refusal) -> RefusalReason | None:
    return outcome.reason if isinstance(outcome, Refusal) else None


# What cannot be met


def test_infeasible_objective_is_answered_by_the_nearest_variant_however_late() -> None:
    queue = Queue()
    assert queue.ask(objective=Objective(3, 10)) == Admission(feasible=False)
    assert queue.take_shape(at=60_000)[0] == "x4"


def test_infeasible_objective_is_refused_when_strict_and_another_attempt_is_not_suggested() -> None:
    refusal = Queue().ask(objective=Objective(latency_ms=1), strict=True)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.OBJECTIVE_INFEASIBLE, None)


def test_strict_changes_nothing_for_a_feasible_objective() -> None:
    assert Queue().ask(objective=Objective(latency_ms=3), strict=True) == Admission(feasible=True)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        pytest.param(Objective(latency_ms=15), RefusalReason.DEADLINE_OUT_OF_REACH, id="a deadline behind a backlog"),
        pytest.param(Objective(latency_ms=200), None, id="a deadline that leaves time"),
        pytest.param(NO_OBJECTIVE, None, id="no objective"),
        pytest.param(Objective(accuracy_tolerance_permille=30), None, id="a tolerance alone"),
        pytest.param(Objective(latency_ms=1), None, id="an objective that nobody can ever meet"),
    ],
)
def test_backlog_refuses_only_what_it_makes_late(objective: Objective, expected: RefusalReason | None) -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)  # busy until 20
    queue.ask(seeds=100)  # and another 20
    assert reason(queue.ask(objective=objective)) is expected


def test_refusal_for_a_backlog_says_when_to_come_back() -> None:
    queue = Queue(max_queued_seeds=100_000)
    queue.ask(seeds=10_000)  # 100 batches of 20 ms
    refusal = queue.ask(objective=Objective(latency_ms=10))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == 2
    assert "even x8 would answer" in refusal.message


def test_what_is_left_of_the_running_batch_counts_as_backlog() -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)  # busy until 20
    assert reason(queue.ask(objective=Objective(latency_ms=10), at=5)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert reason(queue.ask(objective=Objective(latency_ms=10), at=15)) is None


def test_finished_batch_leaves_no_backlog() -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)
    queue.batcher.finish()
    assert reason(queue.ask(objective=Objective(latency_ms=3), at=1)) is None


def test_request_that_would_share_a_batch_is_not_charged_for_one_of_its_own() -> None:
    queue = Queue()
    queue.ask(objective=Objective(accuracy_tolerance_permille=30))  # x8: 2.02
    assert reason(queue.ask(objective=Objective(latency_ms=2.5))) is None  # two together: 2.04


def test_idle_worker_takes_a_request_that_parsing_made_a_little_late() -> None:
    queue = Queue()
    assert queue.ask(objective=Objective(latency_ms=2.02), arrived=0, at=0.3) == Admission(feasible=True)
    assert queue.take_shape(at=0.4)[0] == "x8"


def test_full_queue_refuses_everybody() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(seeds=99)
    assert reason(queue.ask(seeds=1)) is None
    assert reason(queue.ask(seeds=1)) is RefusalReason.QUEUE_FULL


def test_running_batch_does_not_fill_the_queue() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(seeds=100)
    queue.take()
    assert queue.batcher.queued_seeds == 0
    assert reason(queue.ask(seeds=100)) is None


def test_deadline_that_passed_while_waiting_is_refused_rather_than_computed() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=5))
    queue.ask()
    taken = queue.batcher.take(5)
    assert [(request.key, refusal.reason) for request, refusal in taken.refused] == [(0, RefusalReason.DEADLINE_PASSED)]
    assert taken.batch is not None
    assert [piece.request.key for piece in taken.batch.pieces] == [1]


def test_queue_of_passed_deadlines_gives_no_batch() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=5))
    taken = queue.batcher.take(6)
    assert (taken.batch, len(taken.refused), queue.batcher.waiting, queue.batcher.queued_seeds) == (None, 1, False, 0)


# The variant is chosen when the batch is closed


@pytest.mark.parametrize(
    ("objective", "taken_at", "expected"),
    [
        pytest.param(Objective(latency_ms=11), 0, "x1", id="at once: the most accurate"),
        pytest.param(Objective(latency_ms=11), 5, "x4", id="after waiting: what still fits"),
        pytest.param(Objective(latency_ms=11), 8, "x8", id="after long waiting: the fastest"),
        pytest.param(Objective(latency_ms=11), 10, "x8", id="barely late by the prediction: still the fastest"),
        pytest.param(Objective(11, 10), 8, "x4", id="never below the tolerance"),
        pytest.param(Objective(11, 0), 8, "x1", id="never below the strictest tolerance"),
        pytest.param(NO_OBJECTIVE, 9999, "x1", id="no objective: waiting changes nothing"),
        pytest.param(Objective(None, 10), 9999, "x4", id="a tolerance alone: waiting changes nothing"),
    ],
)
def test_waiting_decides_the_variant(objective: Objective, taken_at: float, expected: str) -> None:
    queue = Queue()
    queue.ask(objective=objective)
    assert queue.take_shape(at=taken_at)[0] == expected


# Batches


def test_requests_with_the_same_choice_share_a_batch_up_to_its_size() -> None:
    queue = Queue()
    for seeds in (40, 50, 20, 10):
        queue.ask(seeds=seeds)
    assert queue.take_shape() == ("x1", [(0, 0, 40), (1, 0, 50), (3, 0, 10)])
    assert queue.take_shape() == ("x1", [(2, 0, 20)])


def test_requests_with_another_choice_wait_for_their_own_batch() -> None:
    queue = Queue()
    queue.ask(objective=Objective(accuracy_tolerance_permille=10))
    queue.ask()
    queue.ask(objective=Objective(accuracy_tolerance_permille=12))
    assert queue.take_shape() == ("x4", [(0, 0, 1), (2, 0, 1)])
    assert queue.take_shape() == ("x1", [(1, 0, 1)])


def test_batch_grows_no_further_than_the_tightest_deadline_in_it() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=10.5))  # x1 with up to 5 seeds
    for seeds in (3, 2, 1):
        queue.ask(seeds=seeds)
    assert queue.take_shape() == ("x1", [(0, 0, 1), (1, 0, 3), (3, 0, 1)])


def test_request_joins_no_batch_that_would_make_it_late() -> None:
    queue = Queue()
    queue.ask(seeds=60, objective=Objective(accuracy_tolerance_permille=30))  # x8: 3.2 ms
    queue.batcher.admit(Request(99, 1, Objective(latency_ms=2.5), 0), strict=False, now_ms=0)
    queue.batcher.admit(Request(100, 1, Objective(latency_ms=3.3), 0), strict=False, now_ms=0)
    assert queue.take_shape() == ("x8", [(0, 0, 60), (100, 0, 1)])


def test_request_that_is_late_anyway_neither_holds_up_nor_leaves_the_batch() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=3))
    queue.ask(objective=Objective(latency_ms=3))
    queue.ask(seeds=20, objective=Objective(accuracy_tolerance_permille=30))
    assert queue.take_shape(at=2) == ("x8", [(0, 0, 1), (1, 0, 1), (2, 0, 20)])


def test_large_request_is_split_and_shares_smaller_pieces_while_small_ones_wait() -> None:
    queue = Queue()
    queue.ask(seeds=250)
    queue.ask(seeds=1)
    assert queue.take_shape() == ("x1", [(0, 0, 25), (1, 0, 1)])
    assert queue.take_shape() == ("x1", [(0, 25, 125)])
    queue.ask(seeds=25)
    queue.ask(seeds=26)
    assert queue.take_shape() == ("x1", [(0, 125, 150), (2, 0, 25), (3, 0, 26)])
    assert queue.take_shape() == ("x1", [(0, 150, 250)])
    assert not queue.batcher.waiting


def test_requests_of_ordinary_size_do_not_make_the_pieces_of_a_large_one_smaller() -> None:
    queue = Queue()
    queue.ask(seeds=250)
    queue.ask(seeds=26)
    assert [queue.take_shape() for _ in range(3)] == [
        ("x1", [(0, 0, 100)]),
        ("x1", [(1, 0, 26)]),
        ("x1", [(0, 100, 200)]),
    ]


def test_only_one_large_request_has_a_piece_in_a_batch_with_small_ones() -> None:
    queue = Queue(max_queued_seeds=1000)
    for seeds in (100, 250, 1, 200):
        queue.ask(seeds=seeds)
    assert queue.take_shape() == ("x1", [(0, 0, 25), (2, 0, 1)])
    assert queue.take_shape() == ("x1", [(1, 0, 100)])


def test_small_requests_wait_for_no_more_than_one_piece_of_a_huge_one() -> None:
    queue = Queue(max_queued_seeds=100_000)
    queue.ask(seeds=50_000)
    for small in range(1, 20):
        queue.take_shape()  # a piece of the huge one
        queue.ask(seeds=1)
        assert (small, 0, 1) in queue.take_shape()[1]


def test_large_request_whose_deadline_is_near_is_not_held_up_for_small_ones() -> None:
    queue = Queue()
    queue.ask(seeds=100, objective=Objective(latency_ms=39))  # 20 ms by x1
    queue.ask(seeds=1)
    assert queue.take_shape() == ("x1", [(0, 0, 100)])


def test_all_pieces_of_a_request_are_answered_by_one_variant() -> None:
    queue = Queue()
    queue.ask(seeds=200, objective=Objective(latency_ms=45))
    assert queue.take_shape(at=0)[0] == "x1"
    assert queue.take_shape(at=40)[0] == "x1"  # alone, the second piece would get x8


def test_last_piece_shares_its_batch() -> None:
    queue = Queue()
    queue.ask(seeds=110)
    queue.take_shape()
    queue.ask(seeds=10)
    assert queue.take_shape() == ("x1", [(0, 100, 110), (1, 0, 10)])


def test_split_request_is_given_up_when_its_deadline_passes_between_pieces() -> None:
    queue = Queue()
    queue.ask(seeds=200, objective=Objective(latency_ms=45))
    queue.take_shape(at=0)
    taken = queue.batcher.take(45)
    assert taken.batch is None
    assert [request.key for request, _ in taken.refused] == [0]


def test_cancelled_request_is_skipped_and_frees_its_place() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(seeds=100)
    queue.batcher.cancel(0)
    assert queue.batcher.queued_seeds == 0
    queue.ask(seeds=100)
    assert queue.take_shape() == ("x1", [(1, 0, 100)])


def test_cancelling_between_pieces_drops_the_rest() -> None:
    queue = Queue()
    queue.ask(seeds=250)
    queue.take_shape()
    queue.batcher.cancel(0)
    assert not queue.batcher.waiting


def test_cancelling_what_does_not_wait_changes_nothing() -> None:
    queue = Queue()
    queue.ask()
    queue.batcher.cancel(7)
    assert queue.take_shape() == ("x1", [(0, 0, 1)])


_objectives = st.builds(
    Objective,
    latency_ms=st.none() | st.floats(0.5, 60),
    accuracy_tolerance_permille=st.none() | st.sampled_from([0, 10, 20, 30]),
)


@given(
    asked=st.lists(st.tuples(st.integers(1, 300), _objectives, st.booleans()), max_size=30),
    step_ms=st.floats(0, 10),
    cancelled=st.sets(st.integers(0, 29)),
)
def test_every_seed_is_answered_once_within_its_tolerance_or_its_request_refused(
    asked: list[tuple[int, Objective, bool]], step_ms: float, cancelled: set[int]
) -> None:
    batcher = Batcher(CHOOSER, max_seeds=100, max_queued_seeds=2000)
    now = 0.0
    accepted: dict[int, Request] = {}
    for key, (seeds, objective, strict) in enumerate(asked):
        request = Request(key, seeds, objective, now)
        if isinstance(batcher.admit(request, strict, now), Admission):
            accepted[key] = request
        assert batcher.queued_seeds <= 2000
        now += step_ms / 10
    for key in cancelled:
        batcher.cancel(key)
    covered: dict[int, int] = dict.fromkeys(accepted, 0)
    variants: dict[int, set[str]] = {key: set() for key in accepted}
    refused: set[int] = set()
    while batcher.waiting:
        taken = batcher.take(now)
        for request, _ in taken.refused:
            assert request.objective.latency_ms is not None
            assert now - request.arrived_ms >= request.objective.latency_ms
            refused.add(request.key)
        if taken.batch is not None:
            assert taken.batch.seeds == sum(p.stop - p.start for p in taken.batch.pieces) <= 100
            for piece in taken.batch.pieces:
                assert piece.start == covered[piece.request.key]
                covered[piece.request.key] = piece.stop
                variants[piece.request.key].add(taken.batch.variant)
        batcher.finish()
        now += step_ms
    for key, request in accepted.items():
        tolerance = request.objective.accuracy_tolerance_permille
        assert len(variants[key]) <= 1
        assert all(tolerance is None or CHOOSER.loss_permille(v) <= tolerance + 1e-6 for v in variants[key])
        assert covered[key] == request.seeds or key in refused or key in cancelled
    assert batcher.queued_seeds == 0
