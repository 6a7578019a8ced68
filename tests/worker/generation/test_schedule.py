"""When training ends, without training anything."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gnnserve_worker.generation import epochs as epochs_module
from gnnserve_worker.generation.epochs import History, Schedule, schedule_of


def _run(scores: Iterable[float], wanted: Schedule, losses: Iterable[float] | None = None) -> History:
    """As training does: one epoch at a time, until the history says that it ends."""
    history = History()
    found, falling = iter(scores), iter(losses) if losses is not None else None
    while len(history.scores) < history.ends_at(wanted):
        history.add(next(found), 1.0 if falling is None else next(falling))
    return history


def test_a_stated_number_is_that_many_epochs_whatever_validation_says() -> None:
    wanted = schedule_of(7, steps_per_epoch=2)

    assert len(_run([0.9, *[0.1] * 20], wanted).scores) == 7


@pytest.mark.parametrize("steps_per_epoch", [1, 2, 14, 90, 1000])
def test_auto_has_enough_steps_and_enough_epochs_for_graphs_of_any_size(steps_per_epoch: int) -> None:
    wanted = schedule_of("Auto", steps_per_epoch)

    assert wanted.patience is not None
    assert wanted.least * steps_per_epoch >= epochs_module.LEAST_STEPS
    assert wanted.patience * steps_per_epoch >= epochs_module.PATIENCE_STEPS
    assert wanted.patience >= epochs_module.PATIENCE_EPOCHS
    assert wanted.least + wanted.patience <= wanted.most
    assert wanted.most <= max(epochs_module.MOST_STEPS, epochs_module.MOST_EPOCHS)


def test_auto_ends_when_patience_has_passed_since_the_last_improvement() -> None:
    history = _run([0.1, 0.2, 0.3, *[0.3] * 100], Schedule(least=4, patience=5, most=50))

    assert len(history.scores) == 3 + 5


def test_auto_runs_at_least_the_least() -> None:
    assert len(_run([0.5] * 100, Schedule(least=20, patience=5, most=50)).scores) == 20


def test_auto_ends_at_the_latest_while_validation_goes_on_rising() -> None:
    wanted = Schedule(least=4, patience=5, most=50)

    history = _run((epoch / 100 for epoch in range(100)), wanted)

    assert len(history.scores) == 50
    assert history.is_rising(wanted)


def test_what_ended_by_patience_was_not_rising() -> None:
    wanted = Schedule(least=4, patience=5, most=50)

    assert not _run([*(epoch / 100 for epoch in range(20)), *[0.19] * 30], wanted).is_rising(wanted)


def test_a_falling_loss_counts_as_improvement_while_nothing_is_predicted_yet() -> None:
    """F1 of several labels a node stays 0 until the first score passes the threshold."""
    scores = [0.0] * 12 + [0.4] * 100
    losses = [0.7 * 0.95**epoch for epoch in range(12)] + [0.4] * 100

    history = _run(scores, Schedule(least=4, patience=5, most=50), losses)

    assert len(history.scores) == 13 + 5


def test_a_loss_that_falls_by_next_to_nothing_is_no_improvement() -> None:
    losses = [0.5 * (1 - 1e-4) ** epoch for epoch in range(100)]

    assert len(_run([0.5] * 100, Schedule(least=4, patience=5, most=50), losses).scores) == 6


@pytest.mark.parametrize(
    ("scores", "rising"),
    [
        pytest.param([epoch / 30 for epoch in range(30)], True, id="a straight line"),
        pytest.param([0.5 + 0.2 * (1 - 0.9**epoch) for epoch in range(15)], True, id="a curve that has not levelled"),
        pytest.param([0.7] * 30, False, id="level"),
        pytest.param([0.7, 0.71, 0.69, 0.7, 0.72] * 6, False, id="as good as before, by chance a little better"),
        pytest.param([*[0.70, 0.71, 0.69] * 9, 0.70, 0.71, 0.715], False, id="the best by chance at the end"),
        pytest.param([1 - epoch / 30 for epoch in range(30)], False, id="falling"),
        pytest.param([0.1, 0.2, 0.3], True, id="three epochs, each better"),
        pytest.param([0.1, 0.3, 0.2], False, id="three epochs, the last worse"),
        pytest.param([0.4], False, id="one epoch, which tells nothing"),
    ],
)
def test_validation_was_still_rising_at_the_end(scores: list[float], rising: bool) -> None:
    wanted = schedule_of(len(scores), steps_per_epoch=1)

    assert _run(scores, wanted).is_rising(wanted) is rising


def test_where_nothing_was_predicted_yet_a_falling_loss_says_that_more_epochs_help() -> None:
    losses = [0.7 * 0.9**epoch for epoch in range(10)]

    wanted = schedule_of(10, steps_per_epoch=1)

    assert _run([0.0] * 10, wanted, losses).is_rising(wanted)
    assert not _run([0.0] * 10, wanted, [0.7] * 10).is_rising(wanted)
