"""Shares of one worker's time: as weights say among models that always have work, and nothing lost by idleness."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_worker.scheduling.turns import (
    LEAST_TURN_MS,
    MOST_CLAIMED_MS,
    MOST_STALLED_MS,
    Turns,
    longest_turn_ms,
    most_claimed_ms,
)


def turns_of(weights: list[float]) -> Turns[int]:
    turns: Turns[int] = Turns()
    for model, weight in enumerate(weights):
        turns.add(model, weight)
    return turns


def serve(
    turns: Turns[int], waiting: list[int], lengths_ms: list[float], rounds: int, most_claimed_ms: float = 0.0
) -> list[float]:
    """Time that each model got while these always have requests."""
    got = [0.0] * len(lengths_ms)
    for _ in range(rounds):
        turn = turns.next_of(dict.fromkeys(waiting, most_claimed_ms))
        assert turn is not None
        turns.charge(turn, lengths_ms[turn])
        got[turn] += lengths_ms[turn]
    return got


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.5, 50)), min_size=2, max_size=5),
)
def test_shares_of_the_time_are_the_weights_whatever_the_lengths_of_turns(models: list[tuple[float, float]]) -> None:
    weights, lengths_ms = [weight for weight, _ in models], [length_ms for _, length_ms in models]
    got_ms = serve(turns_of(weights), list(range(len(models))), lengths_ms, 2000)
    # Fair to within a turn of each (Goyal, Vin and Cheng, theorem 1).
    for i in range(len(models)):
        for j in range(i):
            difference = abs(got_ms[i] / weights[i] - got_ms[j] / weights[j])
            assert difference <= lengths_ms[i] / weights[i] + lengths_ms[j] / weights[j] + 1e-6


def test_another_weight_holds_from_the_next_turn_on() -> None:
    turns = turns_of([1, 1])
    serve(turns, [0, 1], [2.0, 2.0], 100)
    turns.reweigh(0, 3)
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 400)
    assert got_ms[0] == pytest.approx(600, abs=4.01)


def test_of_what_a_model_left_it_claims_no_more_than_the_limit_and_goes_first_so_long() -> None:
    turns = turns_of([1, 1])
    serve(turns, [0], [2.0, 2.0], 100, 20.0)
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 10, 20.0)
    assert got_ms[1] == pytest.approx(20, abs=2.01), "every turn until it has had what it may claim"
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 140, 20.0)
    assert abs(got_ms[0] - got_ms[1]) <= 8, "then by the weights again"


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [2.0, 1.0, 4.0], [1.0, 1.0, 1.0, 5.0]])
def test_claims_of_all_others_together_are_within_the_limit(weights: list[float]) -> None:
    turns, lengths_ms = turns_of(weights), [1.0] * len(weights)
    serve(turns, [0], lengths_ms, 1000, 30.0)
    waited_ms = 0.0
    while (turn := turns.next_of(dict.fromkeys(range(len(weights)), 30.0))) != 0:
        assert turn is not None
        turns.charge(turn, 1.0)
        waited_ms += 1.0
    assert 20.0 <= waited_ms <= 30.0 + sum(weights) + len(weights), "and what is theirs of the time of its last turn"


def test_models_that_are_within_their_shares_take_turns_though_one_was_idle() -> None:
    turns = turns_of([1, 1])
    for _ in range(200):
        serve(turns, [0], [3.0, 3.0], 1, 50.0)
        turns.pass_idle(7.0)
    got_ms = serve(turns, [0, 1], [3.0, 3.0], 6, 50.0)
    assert got_ms == [9.0, 9.0]


def test_what_a_model_had_of_idle_time_is_not_held_against_it() -> None:
    turns = turns_of([1, 1])
    serve(turns, [0], [2.0, 2.0], 1000)
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 40)
    assert got_ms == pytest.approx([40, 40], abs=4.01)


def test_a_model_claims_no_more_than_it_left() -> None:
    turns = turns_of([1, 1])
    serve(turns, [0, 1], [2.0, 2.0], 100, 100.0)
    serve(turns, [0], [2.0, 2.0], 5, 100.0)
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 40, 100.0)
    assert got_ms[1] - got_ms[0] == pytest.approx(10, abs=4.01)


def test_batches_that_often_take_much_longer_than_expected_are_charged_all_the_same() -> None:
    turns = turns_of([1, 1])
    got_ms, number = [0.0, 0.0], 0
    for _ in range(20_000):
        turn = turns.next_of({0: 0.0, 1: 0.0})
        assert turn is not None
        number += turn == 0
        took_ms = 20.0 if turn == 0 and number % 20 == 0 else 1.0
        turns.charge(turn, took_ms, 1.0)
        got_ms[turn] += took_ms
    assert got_ms[0] <= 1.07 * got_ms[1] + MOST_STALLED_MS


def test_a_stall_counts_as_twice_what_was_expected() -> None:
    turns = turns_of([1, 1])
    assert turns.next_of({0: 0.0, 1: 0.0}) == 0
    turns.charge(0, 500.0, 5.0)
    got_ms = serve(turns, [0, 1], [2.0, 2.0], 40)
    assert got_ms[1] - got_ms[0] == pytest.approx(10, abs=2.01)


def test_what_a_model_leaves_goes_to_the_others_and_is_not_saved_up_without_a_claim() -> None:
    turns = turns_of([1, 1, 1])
    serve(turns, [0, 1], [2.0, 2.0, 2.0], 100)
    got_ms = serve(turns, [0, 1, 2], [2.0, 2.0, 2.0], 30)
    assert got_ms[2] == pytest.approx(20, abs=2.01), "a third, and no more for the time in which it had nothing"


def test_models_of_equal_tags_take_turns() -> None:
    turns = turns_of([1, 1, 1])
    order = [turns.next_of(dict.fromkeys((0, 1, 2), 0.0)) for _ in range(6)]
    assert order == [0, 1, 2, 0, 1, 2], "turns that took no time"


def test_none_is_next_where_none_waits() -> None:
    assert turns_of([1, 1]).next_of({}) is None


def test_a_model_that_comes_later_owes_nothing_and_has_saved_nothing() -> None:
    turns = turns_of([1, 1])
    serve(turns, [0, 1], [2.0, 2.0], 100)
    turns.add(2, 2)
    turns.remove(0)
    got_ms = serve(turns, [1, 2], [2.0, 2.0, 2.0], 30)
    assert got_ms[2] == pytest.approx(40, abs=2.01), "two thirds, by its weight"


@pytest.mark.parametrize(
    ("latencies_ms", "expected_ms"),
    [
        ([], math.inf),
        ([None], math.inf),
        ([None, 50.0], 2.5),
        ([200.0, 50.0], 2.5),
        ([2.0], LEAST_TURN_MS),
    ],
)
def test_a_turn_is_short_beside_what_others_promise(latencies_ms: list[float | None], expected_ms: float) -> None:
    assert longest_turn_ms(latencies_ms) == expected_ms


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "expected_ms"),
    [
        (None, [50.0], 0.0),
        (None, [None], 0.0),
        (50.0, [], 50.0),
        (50.0, [None], 50.0),
        (30_000.0, [None], MOST_CLAIMED_MS),
        (50.0, [200.0], 50.0),
        (200.0, [50.0, None], 45.0),
        (200.0, [2.0], 0.0),
    ],
)
def test_a_claim_serves_a_promise_and_breaks_none(
    own_ms: float | None, others_ms: list[float | None], expected_ms: float
) -> None:
    assert most_claimed_ms(own_ms, others_ms) == expected_ms
