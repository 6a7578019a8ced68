"""Shares of one worker's time: as weights say among models that always have work, and nothing lost by idleness."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_worker.scheduling.turns import LEAST_TURN_MS, Turns, longest_turn_ms


def turns_of(weights: list[float]) -> Turns[int]:
    turns: Turns[int] = Turns()
    for model, weight in enumerate(weights):
        turns.add(model, weight)
    return turns


def serve(turns: Turns[int], waiting: list[int], lengths_ms: list[float], rounds: int) -> list[float]:
    """Time that each model got while these always have requests."""
    got = [0.0] * len(lengths_ms)
    for _ in range(rounds):
        turn = turns.next_of(waiting)
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


def test_what_a_model_leaves_goes_to_the_others_and_is_not_saved_up() -> None:
    turns = turns_of([1, 1, 1])
    serve(turns, [0, 1], [2.0, 2.0, 2.0], 100)
    got_ms = serve(turns, [0, 1, 2], [2.0, 2.0, 2.0], 30)
    assert got_ms[2] == pytest.approx(20, abs=2.01), "a third, and no more for the time in which it had nothing"


def test_models_of_equal_tags_take_turns() -> None:
    turns = turns_of([1, 1, 1])
    order = [turns.next_of([0, 1, 2]) for _ in range(6)]
    assert order == [0, 1, 2, 0, 1, 2], "turns that took no time"


def test_none_is_next_where_none_waits() -> None:
    assert turns_of([1, 1]).next_of([]) is None


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
        ([None, 50.0], 5.0),
        ([200.0, 50.0], 5.0),
        ([2.0], LEAST_TURN_MS),
    ],
)
def test_a_turn_is_short_beside_what_others_promise(latencies_ms: list[float | None], expected_ms: float) -> None:
    assert longest_turn_ms(latencies_ms) == expected_ms
