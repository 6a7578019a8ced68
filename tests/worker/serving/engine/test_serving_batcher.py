"""Who is queued, refused, answered next and together, by tables and without a clock."""

from __future__ import annotations

import math

import pytest
from tests.support.serving.batching import ADAPTIVE, Queue, reason

from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import AffineCost, RoutingMode, RoutingTable
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason

# TRADE_OFF: 1 seed costs x1 10.1, x4 4.04, x8 2.02 ms; 100 seeds cost 20, 8, 4 ms; losses 0, 10, 30 permille. Nothing
# is corrected here, and 8 % are added where a batch has to be in time.


# What cannot be met


def test_infeasible_objective_is_answered_by_the_nearest_variant_however_late() -> None:
    queue = Queue()
    assert queue.ask(objective=Objective(3, 10)) is None
    assert queue.take_shape(at=60_000)[0] == "x4"


def test_infeasible_objective_is_refused_when_strict_and_another_attempt_is_not_suggested() -> None:
    refusal = Queue().ask(objective=Objective(latency_ms=1), strict=True)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.OBJECTIVE_INFEASIBLE, None)


@pytest.mark.parametrize(
    ("table", "names_of_others"),
    [
        (ADAPTIVE, "the fastest, x8, needs 2.02 ms; allow more time or a larger tolerance"),
        (
            RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x1"),
            "binds the request to x1, which needs 10.1 ms for 1 node, more than 2 ms; allow more time, send fewer",
        ),
    ],
    ids=["Adaptive", "Static"],
)
def test_strict_refusal_says_which_variant_is_too_slow(table: RoutingTable, names_of_others: str) -> None:
    refusal = Queue(table=table).ask(objective=Objective(latency_ms=2), strict=True)
    assert isinstance(refusal, Refusal)
    assert names_of_others in refusal.message


def test_measured_costs_never_turn_a_deadline_into_one_that_nobody_could_meet() -> None:
    """It would be answered however late then, by a worker that refuses nobody: just under load, when costs rise."""
    queue = Queue(max_queued_seeds=100_000)
    slower = {name: AffineCost(fixed_ms=1.5 * ms, per_seed_ms=0.015 * ms) for name, ms in (("x4", 4), ("x8", 2))}
    queue.batcher._chooser.use(slower)
    outcomes = [queue.ask(seeds=5, objective=Objective(latency_ms=3)) for _ in range(100)]
    assert {reason(outcome) for outcome in outcomes[1:]} == {RefusalReason.DEADLINE_OUT_OF_REACH}


def test_strict_changes_nothing_for_a_feasible_objective() -> None:
    assert Queue().ask(objective=Objective(latency_ms=3), strict=True) is None


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        pytest.param(Objective(latency_ms=25), RefusalReason.DEADLINE_OUT_OF_REACH, id="a deadline behind a backlog"),
        pytest.param(Objective(latency_ms=29), None, id="a deadline that the fastest variants can keep"),
        pytest.param(Objective(29, 0), RefusalReason.DEADLINE_OUT_OF_REACH, id="but they are not tolerated"),
        pytest.param(Objective(latency_ms=23), None, id="a deadline before the backlog's"),
        pytest.param(NO_OBJECTIVE, None, id="no objective"),
        pytest.param(Objective(accuracy_tolerance_permille=30), None, id="a tolerance alone"),
        pytest.param(Objective(latency_ms=1), None, id="an objective that nobody can ever meet"),
    ],
)
def test_backlog_refuses_only_what_it_makes_late_even_if_drained(
    objective: Objective, expected: RefusalReason | None
) -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)  # busy until 20
    queue.ask(seeds=50, objective=Objective(24.5))
    queue.ask(seeds=50, objective=Objective(24.5))  # together 4 ms by x8
    assert reason(queue.ask(objective=objective)) is expected


def test_those_without_a_deadline_are_no_backlog_for_those_with_one() -> None:
    queue = Queue(max_queued_seeds=100_000)
    queue.ask(seeds=10_000)  # 100 batches of 20 ms
    for _ in range(100):
        queue.ask(seeds=99)
    assert reason(queue.ask(objective=Objective(latency_ms=30))) is None
    assert queue.take_keys()[1][0] == 101


def test_refusal_for_a_backlog_says_when_to_come_back() -> None:
    queue = Queue(max_queued_seeds=100_000)
    queue.ask()
    queue.take()
    for _ in range(500):
        queue.ask(seeds=99, objective=Objective(latency_ms=60_000))
    refusal = queue.ask(objective=Objective(latency_ms=59_000))
    assert refusal is None
    for _ in range(400):
        queue.ask(seeds=99, objective=Objective(latency_ms=800))
    refusal = queue.ask(seeds=99, objective=Objective(latency_ms=800))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == 1
    assert "even the fastest variants would answer" in refusal.message


def test_what_is_left_of_the_running_batch_counts_as_backlog() -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)  # busy until 20
    assert reason(queue.ask(objective=Objective(latency_ms=10), at=5)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert reason(queue.ask(objective=Objective(latency_ms=10), at=12.5)) is None


def test_finished_batch_leaves_no_backlog() -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)
    queue.batcher.finish()
    assert reason(queue.ask(objective=Objective(latency_ms=3), at=1)) is None


def test_request_that_would_share_a_batch_is_not_charged_for_one_of_its_own() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=2.5))  # x8: 2.02
    assert reason(queue.ask(objective=Objective(latency_ms=2.5))) is None  # two together: 2.04


def test_idle_worker_takes_a_request_that_parsing_made_a_little_late() -> None:
    queue = Queue()
    assert queue.ask(objective=Objective(latency_ms=2.02), arrived=0, at=0.3) is None
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
    assert queue.batcher.queue.seeds == 0
    assert reason(queue.ask(seeds=100)) is None


def test_idle_worker_answers_even_what_turns_out_to_be_late() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=2.02))
    assert queue.take_shape(at=2)[0] == "x8"


def test_deadline_out_of_reach_while_waiting_is_refused_rather_than_computed() -> None:
    queue = Queue()
    queue.ask()
    queue.take()  # busy until 10.1
    queue.ask(objective=Objective(latency_ms=15))
    queue.ask()
    taken = queue.batcher.take(13)  # x8 would need 2.02
    assert [(request.key, refusal.reason) for request, refusal in taken.refused] == [(1, RefusalReason.DEADLINE_PASSED)]
    assert taken.batch is not None
    assert [piece.request.key for piece in taken.batch.pieces] == [2]


def test_queue_of_lost_requests_gives_no_batch() -> None:
    queue = Queue()
    queue.ask()
    queue.take()
    queue.ask(objective=Objective(latency_ms=15))
    taken = queue.batcher.take(14)
    assert (taken.batch, len(taken.refused), queue.batcher.queue.group_of, queue.batcher.queue.seeds) == (
        None,
        1,
        {},
        0,
    )


def test_refusals_are_known_beforehand_as_long_as_they_hold() -> None:
    queue = Queue()
    objective = Objective(latency_ms=10)
    queue.ask(seeds=100)
    queue.take(at=0)  # busy until 20

    def known(seeds: int, at: float, of: Objective = objective) -> bool:
        return queue.batcher.would_refuse(of, seeds, at) is not None

    assert not known(3, at=1)  # nobody was refused yet
    assert reason(queue.ask(seeds=3, objective=objective, at=1)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert known(3, at=2)
    assert queue.batcher.would_refuse(objective, 3, 2) is queue.batcher.would_refuse(objective, 3, 3)
    assert not known(2, at=2)  # a smaller one may fit
    assert not known(4, at=2)  # a larger one may be more than an idle worker can do, and is not refused then
    assert not known(3, at=2, of=Objective(latency_ms=11))
    assert not known(3, at=12.5)  # 22.06 by then
    assert reason(queue.ask(seeds=50, objective=objective, at=2)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert known(4, at=2)
    queue.batcher.finish()
    assert not known(3, at=2)


def test_refusals_of_a_full_queue_are_known_until_there_is_room() -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take(at=0)
    keys = [queue.ask(seeds=100) for _ in range(5)]
    assert len(keys) == 5
    assert reason(queue.ask(seeds=1)) is RefusalReason.QUEUE_FULL
    assert queue.batcher.would_refuse(NO_OBJECTIVE, 1, 1000) is not None
    queue.batcher.take(1000)
    assert queue.batcher.would_refuse(NO_OBJECTIVE, 1, 1000) is None


# The variant is chosen when the batch is closed


@pytest.mark.parametrize(
    ("objective", "taken_at", "expected"),
    [
        pytest.param(Objective(latency_ms=31), 20, "x1", id="at once: the most accurate"),
        pytest.param(Objective(latency_ms=31), 25, "x4", id="after waiting: what still fits"),
        pytest.param(Objective(latency_ms=31), 28, "x8", id="after long waiting: the fastest"),
        pytest.param(Objective(latency_ms=31), 28.9, "x8", id="in time but for the safety: still the fastest"),
        pytest.param(Objective(31, 10), 26.9, "x4", id="never below the tolerance"),
        pytest.param(Objective(31, 0), 20.9, "x1", id="never below the strictest tolerance"),
        pytest.param(NO_OBJECTIVE, 9999, "x1", id="no objective: waiting changes nothing"),
        pytest.param(Objective(None, 10), 9999, "x4", id="a tolerance alone: waiting changes nothing"),
    ],
)
def test_waiting_decides_the_variant(objective: Objective, taken_at: float, expected: str) -> None:
    queue = Queue()
    queue.ask(seeds=100)
    queue.take()  # busy until 20
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


def test_batch_that_would_be_too_slow_for_all_is_answered_faster() -> None:
    queue = Queue()
    for _ in range(4):
        queue.ask(seeds=20, objective=Objective(latency_ms=16))  # x1: 18 for all of them
    assert queue.take_keys() == ("x4", [0, 1, 2, 3])


def test_those_left_behind_must_fit_too_at_the_same_variant() -> None:
    queue = Queue()
    for _ in range(4):
        queue.ask(seeds=50, objective=Objective(latency_ms=36))  # two batches: 40 by x1, 16 by x4
    assert queue.take_keys() == ("x4", [0, 1])
    assert queue.take_keys(at=8) == ("x1", [2, 3])


def test_those_who_are_expected_must_fit_too() -> None:
    queue = Queue()
    for now in range(200):  # a seed each ms, answered within 25
        queue.ask(objective=Objective(latency_ms=25), at=now)
        if now % 10 == 9:
            queue.take_shape(at=now)
    queue.ask(seeds=60, objective=Objective(latency_ms=25), at=200)
    assert queue.take_keys(at=200)[0] == "x4"  # x1 takes 16: too long for who comes meanwhile
    quiet = Queue()
    quiet.ask(seeds=60, objective=Objective(latency_ms=25), at=200)
    assert quiet.take_keys(at=200)[0] == "x1"


def test_backlog_beyond_the_fastest_gives_up_the_oldest_and_keeps_batches_whole() -> None:
    queue = Queue()
    queue.ask()
    queue.take()  # busy until 10.1
    for _ in range(10):
        queue.ask(seeds=10, objective=Objective(latency_ms=16))
    taken = queue.batcher.take(11.8)  # x8 needs 4.32 for a full batch, with safety
    assert [request.key for request, _ in taken.refused] == list(range(1, 11))
    queue = Queue()
    queue.ask()
    queue.take()
    for latency in (15, 15, 18, 18, 18, 18, 18, 18):
        queue.ask(seeds=12, objective=Objective(latency_ms=latency))
    taken = queue.batcher.take(11)
    assert taken.batch is not None
    assert [request.key for request, _ in taken.refused] == [1, 2]
    assert (taken.batch.variant, taken.batch.seeds) == ("x8", 72)


def test_batch_shrinks_for_the_first_only_as_long_as_it_can_be_in_time() -> None:
    queue = Queue()
    queue.ask()
    queue.take()
    queue.ask(seeds=5, objective=Objective(latency_ms=14))
    queue.ask(seeds=30, objective=Objective(latency_ms=18))
    assert queue.take_keys(at=11.5) == ("x8", [1])  # both: 2.7 + 8 %
    queue = Queue()
    for seeds in (5, 30):
        queue.ask(seeds=seeds, objective=Objective(latency_ms=14))
    assert queue.take_keys(at=12)[1] == [0, 1]  # the first, which found an idle worker, is late anyway


def test_a_batch_takes_as_many_of_one_group_as_leave_the_first_in_time() -> None:
    queue = Queue()
    queue.ask()
    queue.take()
    for _ in range(4):
        queue.ask(seeds=10, objective=Objective(latency_ms=14))
    assert queue.take_keys(at=11.4) == ("x8", [1, 2])  # all: 2.8 + 8 %; 2.6 are left


def test_a_first_that_is_late_even_alone_is_not_taken_alone() -> None:
    queue = Queue()
    queue.ask(seeds=5, objective=Objective(latency_ms=14))
    queue.ask(seeds=30, objective=Objective(latency_ms=20))
    assert queue.take_keys(at=13) == ("x8", [0, 1])


def busy_with(latency: float, until: int = 200) -> Queue:
    """A queue to which a seed came in each ms that is to be answered within so many ms, and nothing waits."""
    queue = Queue()
    for now in range(until):
        queue.ask(objective=Objective(latency_ms=latency), at=now)
        if now % 4 == 3:
            queue.take_shape(at=now)
    return queue


def test_a_backlog_that_has_time_is_taken_in_batches_that_leave_time_for_who_is_expected() -> None:
    queue = busy_with(6)
    for _ in range(9):
        queue.ask(seeds=10, objective=Objective(latency_ms=40), at=200)
    batch = queue.take(at=200)  # all by x8: 3.8 + 8 %, and 2.2 for those that come meanwhile
    assert (batch.variant, 50 <= batch.seeds < 90) == ("x8", True)


def test_those_without_a_latency_fill_what_is_left_before_those_who_are_only_expected() -> None:
    queue = busy_with(20)
    for _ in range(9):
        queue.ask(seeds=10, at=200)
    batch = queue.take(at=200)  # all by x1: 19 + 8 %, and 2.6 for those that come meanwhile
    assert (batch.variant, 50 <= batch.seeds < 90) == ("x1", True)
    assert queue.batcher.decider.yields_until_ms == -math.inf, "it makes nothing late"


@pytest.mark.parametrize(("latency", "joins"), [(14.5, True), (15.5, False)])
def test_a_better_variant_is_waited_for_only_where_it_is_in_time_with_its_margin(latency: float, joins: bool) -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=5))
    queue.ask(objective=Objective(latency_ms=latency))  # by x4 and x1 after each other: 4.04 + 10.1, + 8 %
    assert queue.take_keys() == ("x4", [0, 1] if joins else [0])


def test_a_turn_that_makes_nothing_late_is_followed_by_another_at_once() -> None:
    queue = Queue()
    queue.ask()
    queue.ask(objective=Objective(latency_ms=5000))
    assert queue.take_keys()[1][0] == 0
    assert queue.batcher.decider.yields_until_ms == -math.inf


def test_strict_ones_are_drained_apart_from_those_who_go_faster_alone() -> None:
    queue = Queue()
    queue.ask()
    queue.take()
    queue.ask(seeds=10, objective=Objective(15, 10))
    queue.ask(seeds=30, objective=Objective(20, 30))
    assert queue.take_keys(at=10.5) == ("x4", [1])
    assert queue.take_keys(at=15) == ("x8", [2])


def test_patient_one_joins_a_batch_unless_waiting_gives_it_a_better_variant() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=5))
    queue.ask(objective=Objective(latency_ms=60))
    assert queue.take_keys() == ("x4", [0])
    assert queue.take_keys(at=4) == ("x1", [1])
    queue.ask(objective=Objective(latency_ms=5))
    queue.ask(objective=Objective(latency_ms=7))  # not in time by x1 after x4
    assert queue.take_keys() == ("x4", [2, 3])


@pytest.mark.parametrize("usual", [0, 1, 2])
@pytest.mark.parametrize(("patient", "latency"), [(90, 4.0), (90, 3.0), (90, 2.1), (200, 4.0), (60, 3.5)])
def test_nobody_is_given_up_for_the_sake_of_patient_ones(usual: float, patient: int, latency: float) -> None:
    queue = Queue()
    queue.batcher.decider._usual = usual
    for _ in range(patient):
        queue.ask(objective=Objective(latency_ms=1000))
    urgent = [patient, patient + 1]
    for _ in urgent:
        assert queue.ask(objective=Objective(latency)) is None
    taken = queue.batcher.take(0)
    assert taken.batch is not None
    assert not taken.refused
    assert {*urgent} <= {piece.request.key for piece in taken.batch.pieces}
    assert taken.batch.predicted_ms <= latency


def test_batch_says_how_long_its_computation_takes_though_a_measured_cost_has_more() -> None:
    queue = Queue()
    queue.batcher._chooser.use({"x1": AffineCost(fixed_ms=40, per_seed_ms=0)})
    queue.ask()
    assert queue.take().predicted_ms == pytest.approx(10.1)
    assert queue.batcher.busy_until_ms(0) == 40


def test_patient_ones_cost_nobody_a_variant_that_is_usual() -> None:
    queue = Queue()
    for _ in range(20):
        queue.ask(objective=Objective(latency_ms=1000))
    queue.ask(objective=Objective(latency_ms=12))  # alone 10.9 by x1, with safety
    assert queue.take_keys() == ("x1", [20])


def test_what_was_usual_is_forgotten_in_time_and_not_in_work() -> None:
    queue = Queue()
    for now in range(0, 4000, 4):
        queue.batcher.decider.note_usual(2, now + 4)
    queue.ask(objective=Objective(latency_ms=3), at=4000)
    queue.ask(objective=Objective(latency_ms=60), at=4000)
    assert queue.take_keys(at=4000) == ("x8", [0, 1]), "others have been x8's of late"
    for now in range(5000, 15_000, 1000):  # a request in a second
        queue.ask(objective=Objective(latency_ms=60), at=now)
        assert queue.take_keys(at=now)[0] == "x1"
    queue.ask(objective=Objective(latency_ms=3), at=15_000)
    queue.ask(objective=Objective(latency_ms=60), at=15_000)
    assert queue.take_keys(at=15_000) == ("x8", [12])


def test_earliest_deadline_goes_first_whoever_came_first() -> None:
    queue = Queue()
    for latency in (500, 400, 300):
        queue.ask(seeds=90, objective=Objective(latency_ms=latency))
    assert [queue.take_keys()[1] for _ in range(3)] == [[2], [1], [0]]


# Requests without a latency


def test_who_states_no_latency_yields_to_deadlines_that_are_nearer_than_a_second() -> None:
    queue = Queue()
    queue.ask(seeds=60)
    queue.ask(seeds=60, objective=Objective(latency_ms=50), at=10)
    assert [queue.take_keys(at=10)[1] for _ in range(2)] == [[1], [0]]


def test_who_states_no_latency_joins_where_the_variant_is_theirs() -> None:
    queue = Queue()
    queue.ask(objective=Objective(latency_ms=50))
    queue.ask()
    queue.ask(objective=Objective(None, 30))
    assert queue.take_keys() == ("x1", [0, 1, 2])


def test_hurried_ones_do_not_join_where_a_batch_of_their_own_costs_less() -> None:
    queue = Queue()
    queue.ask()
    queue.ask(seeds=90, objective=Objective(None, 30))  # 9 ms more by x1, 3.8 by x8
    assert queue.take_keys() == ("x1", [0])


def test_nobody_starves_while_deadlines_take_all_there_is() -> None:
    """Arrivals of twice what x8 can do; those without a latency wait from the beginning, and get their part."""
    queue = Queue(max_queued_seeds=100_000)
    for _ in range(20):
        queue.ask(seeds=20)
    now, soft, hard_ms, soft_ms = 0.0, 0, 0.0, 0.0
    while soft < 20:
        for _ in range(4):
            queue.ask(seeds=50, objective=Objective(latency_ms=12), at=now)
        taken = queue.batcher.take(now)
        queue.batcher.finish()
        if taken.batch is None:
            continue
        of_soft = sum(piece.request.key < 20 for piece in taken.batch.pieces)
        soft += of_soft
        if of_soft:
            soft_ms += taken.batch.predicted_ms
        else:
            hard_ms += taken.batch.predicted_ms
        now += taken.batch.predicted_ms
        assert now < 3000
    assert soft_ms < 0.4 * (soft_ms + hard_ms)


@pytest.mark.parametrize("latency", [15, 17, 19, 23])
def test_turn_of_those_without_a_latency_is_followed_by_others_however_large_they_are(latency: float) -> None:
    queue = Queue(max_queued_seeds=1000)
    for _ in range(6):
        queue.ask(seeds=99)
    now, of_soft, late = 1001.0, 0, 0
    for _ in range(8):
        for _ in range(2):
            queue.ask(objective=Objective(latency_ms=latency), at=now)
        taken = queue.batcher.take(now)
        assert taken.batch is not None
        late += len(taken.refused)
        of_soft += any(piece.request.key < 6 for piece in taken.batch.pieces)
        now += taken.batch.predicted_ms
        queue.batcher.finish()
    assert of_soft == 1
    assert late <= 2, "only those who came as it began"


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
    assert not queue.batcher.queue.group_of


def test_requests_of_ordinary_size_do_not_make_the_pieces_of_a_large_one_smaller() -> None:
    queue = Queue()
    queue.ask(seeds=250)
    queue.ask(seeds=26)
    assert [queue.take_shape(at) for at in (1, 21, 34)] == [
        ("x1", [(0, 0, 100)]),
        ("x1", [(0, 100, 125), (1, 0, 26)]),
        ("x1", [(0, 125, 225)]),
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


def test_small_request_with_a_near_deadline_does_not_wait_for_a_patient_large_one() -> None:
    queue = Queue(max_queued_seeds=10_000)
    queue.ask(seeds=5000)
    queue.take_shape(at=0)  # a piece; 1 s by x1 for all of them
    queue.ask(objective=Objective(latency_ms=30), at=20)
    _, pieces = queue.take_shape(at=20)
    assert (1, 0, 1) in pieces
    assert sum(stop - start for _, start, stop in pieces) < 100


def test_pieces_are_small_while_requests_with_near_deadlines_are_expected() -> None:
    queue = Queue(max_queued_seeds=10_000)
    now = 0.0
    for now in range(300):  # one each ms, answered within 18 ms
        queue.ask(objective=Objective(latency_ms=18), at=now)
        if now % 10 == 9:
            queue.take_shape(at=now)
    queue.ask(seeds=5000, at=300)
    assert 25 <= queue.take(at=300).seeds < 60  # not 100, which take 20 ms


def test_all_pieces_of_a_request_are_answered_by_one_variant() -> None:
    queue = Queue()
    queue.ask(seeds=200, objective=Objective(latency_ms=45))
    assert queue.take_shape(at=0)[0] == "x1"
    assert queue.take_shape(at=24)[0] == "x1"  # alone, the second piece would get x4


def test_last_piece_shares_its_batch() -> None:
    queue = Queue()
    queue.ask(seeds=110)
    queue.take_shape()
    queue.ask(seeds=10)
    assert queue.take_shape() == ("x1", [(0, 100, 110), (1, 0, 10)])


def test_split_request_is_given_up_when_its_deadline_is_lost_between_pieces() -> None:
    queue = Queue()
    queue.ask()
    queue.take()
    queue.ask(seeds=200, objective=Objective(latency_ms=60))
    queue.take_shape(at=10)
    taken = queue.batcher.take(45)
    assert taken.batch is None
    assert [request.key for request, _ in taken.refused] == [1]


# Modes that pin requests


@pytest.mark.parametrize("mode", [RoutingMode.STATIC, RoutingMode.METRICS])
def test_base_variant_answers_all_but_those_who_do_not_tolerate_it(mode: RoutingMode) -> None:
    queue = Queue(table=RoutingTable(revision="r", recipe="r", mode=mode, base_variant="x8"))
    for objective in (NO_OBJECTIVE, Objective(latency_ms=500), Objective(None, 10), Objective(500, 0)):
        queue.ask(objective=objective)
    taken: dict[int, str] = {}
    while queue.batcher.queue.group_of:
        variant, keys = queue.take_keys()
        taken |= dict.fromkeys(keys, variant)
    assert taken == {0: "x8", 1: "x8", 2: "x4", 3: "x1"}


def test_metrics_mode_without_a_base_variant_chooses_by_itself() -> None:
    queue = Queue(table=RoutingTable(revision="r", recipe="r", mode=RoutingMode.METRICS))
    queue.ask(objective=Objective(latency_ms=5))
    assert queue.take_keys()[0] == "x4"


def test_pinned_requests_are_refused_when_their_variant_is_too_slow() -> None:
    queue = Queue(table=RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x1"))
    queue.ask(seeds=99, objective=Objective(latency_ms=40))
    assert reason(queue.ask(seeds=99, objective=Objective(latency_ms=35))) is None
    assert reason(queue.ask(seeds=99, objective=Objective(latency_ms=35))) is RefusalReason.DEADLINE_OUT_OF_REACH


def test_weights_split_requests_and_a_new_table_holds_for_those_who_come() -> None:
    queue = Queue(table=RoutingTable(revision="r", recipe="r", mode=RoutingMode.WEIGHTS, weights={"x1": 1, "x4": 1}))
    for _ in range(20):
        queue.ask()
    queue.batcher.route_by(RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x8"))
    queue.ask()
    shares = {}
    while queue.batcher.queue.group_of:
        variant, keys = queue.take_keys()
        shares[variant] = len(keys)
    assert shares == {"x1": 10, "x4": 10, "x8": 1}


def test_weights_are_kept_to_though_the_table_is_renewed_after_every_few_requests() -> None:
    table = RoutingTable(revision="r", recipe="r", mode=RoutingMode.WEIGHTS, weights={"x1": 9, "x8": 1})
    queue = Queue(table=table)
    answered: list[str] = []
    for _ in range(40):
        for _ in range(5):
            queue.ask()
            answered.append(queue.take_keys()[0])
        queue.batcher.route_by(table)
    assert answered.count("x8") == pytest.approx(20, abs=1.5)


# Cancelling


def test_cancelled_request_is_skipped_and_frees_its_place() -> None:
    queue = Queue(max_queued_seeds=100)
    queue.ask(seeds=100)
    queue.batcher.cancel(0)
    assert queue.batcher.queue.seeds == 0
    queue.ask(seeds=100)
    assert queue.take_shape() == ("x1", [(1, 0, 100)])


def test_cancelling_between_pieces_drops_the_rest() -> None:
    queue = Queue()
    queue.ask(seeds=250)
    queue.take_shape()
    queue.batcher.cancel(0)
    assert not queue.batcher.queue.group_of


def test_cancelling_what_does_not_wait_changes_nothing() -> None:
    queue = Queue()
    queue.ask()
    queue.batcher.cancel(7)
    assert queue.take_shape() == ("x1", [(0, 0, 1)])


# Where others wait for the worker too


def test_a_turn_is_cut_to_what_is_computed_in_its_time() -> None:
    queue = Queue(max_queued_seeds=1000)
    for _ in range(30):
        assert queue.ask(seeds=2) is None
    batch = queue.batcher.take(0, longest_ms=1).batch  # 10.1 ms for one seed by x1, 0.1 for each more
    assert batch is not None
    assert (batch.variant, batch.seeds) == ("x1", 10)
    queue.batcher.finish()
    assert queue.take().seeds == 50, "the rest, with nobody else there"


def test_a_turn_too_short_for_anything_takes_one_request() -> None:
    queue = Queue()
    for _ in range(3):
        assert queue.ask(seeds=5) is None
    batch = queue.batcher.take(0, longest_ms=0.01).batch
    assert batch is not None
    assert [piece.request.key for piece in batch.pieces] == [0]


def test_pieces_of_a_large_request_are_cut_too_and_none_is_lost() -> None:
    queue = Queue(max_queued_seeds=1000)
    assert queue.ask(seeds=250) is None
    pieces: list[tuple[int, int]] = []
    while queue.batcher.queue.group_of:
        batch = queue.batcher.take(0, longest_ms=4.91).batch
        assert batch is not None
        pieces += [(piece.start, piece.stop) for piece in batch.pieces]
        queue.batcher.finish()
    assert pieces[0] == (0, 50)
    assert [start for start, _ in pieces[1:]] == [stop for _, stop in pieces[:-1]]
    assert pieces[-1][1] == 250


def test_all_requests_of_many_groups_may_be_late_at_once() -> None:
    queue = Queue()
    queue.ask(100)
    queue.take()
    for step in range(13):
        assert queue.ask(1, Objective(latency_ms=30 * 1.3**step)) is None
    queue.batcher.finish()
    taken = queue.batcher.take(10_000)
    assert (taken.batch, len(taken.refused)) == (None, 13)
