"""What stale rows are expected to do to answers, and by which steps routing follows that."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.serving.serving import TRADE_OFF

from gnnserve_worker.scheduling.variants import Losses, VariantChooser
from gnnserve_worker.staleness.choice import beyond
from gnnserve_worker.staleness.loss import (
    LEAST_PERMILLE,
    LossSteps,
    ReadErrors,
    Sensitivity,
    loss_permille,
    step_of,
)

LONG_MS = 60_000.0


def test_a_sensitivity_that_was_not_measured_is_above_any_that_was() -> None:
    assert Sensitivity().bound > 1


def test_a_sensitivity_is_bounded_ever_closer_and_from_above() -> None:
    draw, true, bounds = np.random.default_rng(1), 0.05, list[float]()
    sensitivity = Sensitivity()
    for _ in range(4000):
        error = float(draw.uniform(0, 0.5))
        sensitivity.note(error, 8, int(draw.binomial(8, true * error)))
        bounds.append(sensitivity.bound)
    assert min(bounds) > true
    assert bounds[0] > bounds[100] > bounds[-1]
    assert bounds[-1] < 1.5 * true


def test_what_was_measured_long_ago_counts_little() -> None:
    sensitivity = Sensitivity()
    for differing in (0, 8):
        for _ in range(10_000):
            sensitivity.note(0.5, 8, differing)
    assert sensitivity.bound == pytest.approx(2, rel=0.1)


def test_batches_that_read_staler_rows_than_others_count_as_that() -> None:
    reads = ReadErrors()
    assert reads.expected(0.01) == 0.01
    for _ in range(10):
        reads.note(0.2, 0.01)
    assert reads.expected(0.01) == pytest.approx(0.2)
    assert reads.expected(0.001) == pytest.approx(0.02)
    assert reads.expected(0.5) == 1
    for _ in range(1000):
        reads.note(0.0, 0.01)
    assert reads.expected(0.01) < 1e-6


def test_losses_are_at_most_all_answers() -> None:
    assert loss_permille(0.01, 0.5) == 5
    assert loss_permille(0.9, 2.0) == 1000


@pytest.mark.parametrize("permille", [1e-9, LEAST_PERMILLE, 0.3, 1.0, 7.0, 999.0])
def test_a_step_is_no_less_than_the_loss_and_little_more(permille: float) -> None:
    step = step_of(permille)
    assert permille <= step <= max(LEAST_PERMILLE, 1.25 * permille)
    assert step_of(step) == pytest.approx(step)


def test_only_nothing_is_no_loss() -> None:
    assert (step_of(0.0), step_of(1e-12)) == (0.0, LEAST_PERMILLE)


def test_a_loss_is_raised_at_once_and_lowered_after_a_while() -> None:
    steps = LossSteps()
    assert steps.follow({"stored2": 0.0}, 0.0)
    assert steps.follow({"stored2": 4.0}, 1.0)
    high = steps.permille["stored2"]
    assert not steps.follow({"stored2": 0.0}, 2.0)
    assert not steps.follow({"stored2": high}, 1999.0)  # it is needed again
    assert not steps.follow({"stored2": 0.0}, 3000.0)
    assert steps.permille == {"stored2": high}
    assert steps.follow({"stored2": 0.0}, LONG_MS)
    assert steps.permille == {"stored2": 0.0}
    assert steps.follow({}, LONG_MS)
    assert steps.permille == {}


def test_the_largest_errors_are_made_until_the_rest_is_a_share_of_them() -> None:
    errors = np.array([0.1, 0.4, 0.2, 0.3])
    assert beyond(errors, 0.7).tolist() == [1]
    assert beyond(errors, 0.5).tolist() == [1, 3]
    assert beyond(errors, 0.0).tolist() == [1, 3, 2, 0]
    assert beyond(errors, -1.0).tolist() == [1, 3, 2, 0]


# Losses of variants


def test_what_is_stale_is_no_better_than_the_best_that_is_exact() -> None:
    """x1 is the most accurate by the profile, by 10 permille before x4, and loses less than that by stale rows."""
    chooser = VariantChooser(TRADE_OFF, 100, known=Losses(stale={"x1": 2.0}))
    assert chooser.names[:2] == ("x4", "x1")
    assert chooser.loss_permille[:2] == (0.0, 2.0)
    assert chooser.names[: chooser.count_within(0)] == ("x4",)
    assert chooser.bearable_permille("x1", 5.0) == 5.0


def test_losses_of_stale_rows_come_on_top_of_others() -> None:
    chooser = VariantChooser(TRADE_OFF, 100, known=Losses(stale={"x4": 3.0, "x8": 0.0}))
    assert dict(zip(chooser.names, chooser.loss_permille, strict=True))["x4"] == pytest.approx(13)
    assert chooser.bearable_permille("x4", 15.0) == pytest.approx(5)
    assert chooser.bearable_permille("x4", 5.0) < 0


def test_where_all_may_be_stale_the_least_one_answers_and_nothing_of_it_is_borne() -> None:
    stale = dict.fromkeys((variant.name for variant in TRADE_OFF.variants), 4.0)
    chooser = VariantChooser(TRADE_OFF, 100, known=Losses(stale=stale))
    assert chooser.names[: chooser.count_within(0)] == ("x1",)
    assert chooser.bearable_permille("x1", 0.0) == 0.0


def test_costs_that_were_learnt_stay_with_their_variants() -> None:
    before = VariantChooser(TRADE_OFF, 100)
    for _ in range(20):
        before.costs.observe(before.indices["x8"], 10, 1, 500.0, 500.0, 0.0)
    after = VariantChooser(TRADE_OFF, 100, before.costs, Losses(stale={"x1": 50.0}), before)
    assert after.names != before.names
    for name in after.names:
        now, then = after.indices[name], before.indices[name]
        assert after.costs.factors[now] == pytest.approx(before.costs.factors[then])
        assert after.costs.batch_ms(now, 10, 1) == pytest.approx(before.costs.batch_ms(then, 10, 1))
