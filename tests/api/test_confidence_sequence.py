"""Confidence sequences: what must hold of one, and of the decision that a promise is broken, on streams of labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_api.confidence_sequence import CHANCE, SlidingMean, StatedAccuracy, mean_interval

STREAMS, LABELS, CHANGE_AT = 100, 10_000, 5000
LOOKS = sorted({round(1.1**power) for power in range(73)})
"""Counts of values up to 1,000 at which an interval is looked at, the early ones more often."""
ACCURACY, DRIFTING_CLASS, VALIDATION_NODES, VARIANTS = 0.8, 0.2, 1000, 4


@given(st.integers(0, 3000), st.integers(0, 3000), st.floats(1e-9, 0.2))
def test_an_interval_holds_the_mean_and_narrows_with_the_chance(right: int, wrong: int, chance: float) -> None:
    interval = mean_interval(right, right + wrong, chance)
    assert 0 <= interval.low <= interval.high <= 1
    if right + wrong:
        assert interval.low - 1e-9 <= right / (right + wrong) <= interval.high + 1e-9
    wider = mean_interval(right, right + wrong, chance / 10)
    assert wider.low <= interval.low and interval.high <= wider.high


def test_nothing_is_known_without_values() -> None:
    assert (mean_interval(0, 0, CHANCE).low, mean_interval(0, 0, CHANCE).high) == (0.0, 1.0)
    assert (SlidingMean().count, SlidingMean().mean) == (0, 0.0)


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.9])
def test_the_interval_is_never_wrong_at_any_time_in_most_streams(mean: float) -> None:
    wrong = 0
    for seed in range(100):
        totals = np.cumsum(np.random.default_rng(seed).random(1000) < mean)
        wrong += any(not mean_interval(totals[count - 1], count, CHANCE).contains(mean) for count in LOOKS)
    assert wrong <= 5


def test_values_between_0_and_1_are_covered_too() -> None:
    wrong = 0
    for seed in range(50):
        totals = np.cumsum(np.random.default_rng(seed).beta(8, 2, 1000))
        wrong += any(not mean_interval(totals[count - 1], count, CHANCE).contains(0.8) for count in LOOKS)
    assert wrong == 0


def test_the_window_slides() -> None:
    stream = SlidingMean(window_values=80)
    for _ in range(1000):
        stream.add(1.0, 1)
    for _ in range(100):
        stream.add(0.0, 1)
    assert stream.mean == 0.0 and 70 <= stream.count <= 80
    assert stream.interval.high < 0.3


def _stream(seed: int, drifts: bool) -> tuple[StatedAccuracy, np.ndarray]:
    """What the profile counted, and what the variant then got right of 10,000 labels. With a drift, half-way the labels
    of a class of 20 % become another's, so that none of them is right any more."""
    draw = np.random.default_rng(seed)
    validated = float(np.mean(draw.random(VALIDATION_NODES) < ACCURACY))
    right = draw.random(LABELS) < ACCURACY
    if drifts:
        right[CHANGE_AT:] &= draw.random(LABELS - CHANGE_AT) >= DRIFTING_CLASS
    return StatedAccuracy(validated, VALIDATION_NODES, VARIANTS), right


def _broken_at(promise: StatedAccuracy, right: np.ndarray) -> int | None:
    """Labels after which the promise is found to be broken, looking after every 10."""
    found = promise.stream()
    for count in range(10, LABELS + 1, 10):
        found.add(float(right[count - 10 : count].sum()), 10)
        if promise.is_broken_by(found):
            return count
    return None


@pytest.mark.parametrize("seed", range(20))
def test_a_permuted_class_is_told_within_1000_labels(seed: int) -> None:
    at = _broken_at(*_stream(seed, drifts=True))
    assert at is not None and CHANGE_AT < at <= CHANGE_AT + 1000


def test_at_most_5_of_100_streams_without_drift_raise_an_alarm() -> None:
    assert sum(_broken_at(*_stream(seed, drifts=False)) is not None for seed in range(STREAMS)) <= 5


def test_the_decision_is_that_of_the_interval() -> None:
    promise, right = _stream(0, drifts=True)
    found = promise.stream()
    for start in range(0, LABELS, 250):
        found.add(float(right[start : start + 250].sum()), 250)
        assert promise.is_broken_by(found) == (found.recent.interval.high < promise.interval.low)
        assert found.recent.interval.contains(found.recent.mean)
