"""What batches are expected to cost, and how expectations follow what they really take."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.serving.serving import TRADE_OFF, variant

from gnnserve_api.pods.routing import AffineCost
from gnnserve_worker.scheduling.cost_terms import Overhead
from gnnserve_worker.scheduling.variants import LEAST_MARGIN, CostModel

X1, X4, X8 = 0, 1, 2


def model() -> CostModel:
    return CostModel(TRADE_OFF.variants, max_seeds=100)


def run(costs: CostModel, factor: float, of: int = X4, batches: int = 100, start_ms: float = 0.0) -> float:
    """Batches that take `factor` times what the profile, or the table, says. The time at the end."""
    now_ms = start_ms
    for _ in range(batches):
        took_ms = factor * costs.base_ms(of, 50)
        now_ms += took_ms
        costs.observe(of, 50, 1, took_ms, took_ms, now_ms)
    return now_ms


def test_curve_is_the_profiles_medians_and_larger_requests_cost_several_batches() -> None:
    costs = model()
    assert [costs.compute_ms(X1, seeds) for seeds in (1, 50, 100)] == pytest.approx([10.1, 15, 20])
    assert costs.compute_ms(X1, 250) == pytest.approx(20 + 20 + 15)
    assert costs.stretched_ms(X1, 50) == pytest.approx(15)
    assert costs.stretched_ms(X1, 300) == pytest.approx(20 + 2 * 9.9)


def test_noise_in_the_profile_never_makes_more_seeds_cheaper() -> None:
    noisy = variant("x1", 0.9, 10, -0.5)
    costs = CostModel([noisy], max_seeds=100)
    assert costs.compute_ms(0, 100) >= costs.compute_ms(0, 1)


def test_slow_machine_is_noticed_within_tens_of_batches_for_every_variant() -> None:
    costs = model()
    run(costs, 1.6, batches=40)
    assert costs.factors[X4] == pytest.approx(1.6, rel=0.05)
    assert costs.factors[X8] > 1.25, "which nobody used: the machine is the same"


def test_single_stall_is_no_drift() -> None:
    costs = model()
    now_ms = run(costs, 1.0)
    costs.observe(X4, 50, 1, 100 * 6.0, 100 * 6.0, now_ms + 600)
    assert costs.factors[X4] < 1.15
    run(costs, 1.0, start_ms=now_ms + 600, batches=60)
    assert costs.factors[X4] == pytest.approx(1, abs=0.02)


def test_unused_variant_goes_back_to_what_the_machine_does() -> None:
    costs = model()
    now_ms = run(costs, 3.0, of=X1)
    for _ in range(300):
        now_ms = run(costs, 1.0, of=X4, batches=50, start_ms=now_ms)
    assert costs.factors[X4] == pytest.approx(1, abs=0.1)
    assert costs.factors[X1] == pytest.approx(costs.factors[X4], abs=0.1)


def test_margin_follows_how_far_batches_are_from_what_was_expected() -> None:
    costs, draw = model(), np.random.default_rng(0)
    assert costs.margin == LEAST_MARGIN
    for _ in range(300):
        run(costs, float(draw.choice([0.6, 1.4])), batches=1)
    assert 0.4 < costs.margin <= 0.5
    run(costs, 1.0, batches=600)
    assert costs.margin == LEAST_MARGIN


def test_tables_costs_replace_the_curve_and_what_was_learnt_of_it() -> None:
    costs = model()
    run(costs, 1.5)
    costs.use({X4: AffineCost(fixed_ms=7, per_seed_ms=0.07)})
    assert costs.compute_ms(X4, 100) == pytest.approx(14), "measured on this machine: its slowness is in it already"
    learnt = costs.factors[X8]
    run(costs, 1.2)
    assert costs.factors[X4] == pytest.approx(1.2, rel=0.05)
    corrected = costs.factors[X4]
    costs.use({X4: AffineCost(fixed_ms=7, per_seed_ms=0.07)})
    assert costs.factors[X4] == corrected, "equal costs are no news"
    costs.use({})
    assert costs.compute_ms(X4, 100) == pytest.approx(8 * costs.factors[X8])
    assert learnt > 1.2


def test_a_turn_is_measured_by_computation_alone_though_a_tables_cost_has_more() -> None:
    costs = model()
    assert costs.seeds_computed_within(X4, 6.01) == 50
    costs.use({variant: AffineCost(fixed_ms=20, per_seed_ms=0.2) for variant in (X1, X4, X8)})
    assert costs.computing_ms(X4, 50) > 6.0, "a table's costs tell how fast the machine is"
    assert costs.seeds_computed_within(X4, costs.computing_ms(X4, 50) + 0.01) == 50
    assert costs.compute_ms(X4, 50) > costs.computing_ms(X4, 50)


@pytest.mark.parametrize("fixed_ms", [0.1, 0.5, 1.0, 1.9, 2.0, 2.1, 5.0, 10.0])
def test_a_turn_is_for_more_than_a_seed_whatever_every_batch_costs(fixed_ms: float) -> None:
    costs = CostModel([variant("x1", 0.9, fixed_ms, 0.02)], 1024)
    costs.longest_turn_ms = 2.0
    one_ms, seeds = costs.computing_ms(0, 1), costs.seeds_of_turn(0)
    assert seeds >= 0.9 * min(one_ms, 2.0) / 0.02, "half of its time at least, or as much as a turn may last"
    assert costs.computing_ms(0, seeds) <= max(2.0, one_ms + 2.0)


def test_turns_of_others_are_waited_for_once_for_each_batch_even_where_turns_have_no_limit() -> None:
    costs = model()
    for batch in range(200):
        costs.observe(X4, 100, 1, 8.0, 8.2, 10.0 * batch, waited_ms=5.0)
    assert costs.waits_ms(costs.turns(X4, 1, 4.04)) == pytest.approx(5, rel=0.01)
    assert costs.waits_ms(costs.turns(X4, 450, 36.0)) == pytest.approx(25, rel=0.01)
    assert costs.waits_ms(costs.turns(X4, 450, 36.0), has_turn=True) == pytest.approx(20, rel=0.01)
    costs.longest_turn_ms = 1.0
    assert costs.waits_ms(costs.turns(X4, 100, 8.0)) == pytest.approx(10, rel=0.01), "turns of 5 ms"


def test_next_revision_inherits_what_concerns_the_machine() -> None:
    before = model()
    run(before, 1.6)
    after = CostModel(TRADE_OFF.variants, 100, before)
    assert after.factors[X8] == pytest.approx(before.factors[X8], rel=0.01)
    assert after.overhead is before.overhead


def test_slow_spell_makes_no_objective_look_as_if_it_could_never_be_met() -> None:
    costs = model()
    run(costs, 0.5)
    quick_ms = costs.least_ms(X4, 1)
    assert quick_ms < 0.7 * 4.04
    run(costs, 3.0)
    assert costs.least_ms(X4, 1) == quick_ms


def test_neither_costs_nor_another_revision_make_an_objective_look_as_if_it_could_never_be_met() -> None:
    costs = model()
    run(costs, 0.5)
    quick_ms = costs.least_ms(X4, 1)
    costs.use({v: AffineCost(fixed_ms=9, per_seed_ms=0.09) for v in (X1, X4, X8)})
    assert costs.least_ms(X4, 1) == quick_ms
    costs.use({X4: AffineCost(fixed_ms=1, per_seed_ms=0.01)})
    assert costs.least_ms(X4, 1) == pytest.approx(1.01), "measured, so it can be done"
    costs.use({})
    assert costs.least_ms(X4, 250) == pytest.approx(2 + 2 + 1.5)
    run(costs, 3.0, of=X8)
    after = CostModel(TRADE_OFF.variants, 100, costs)
    assert after.least_ms(X4, 1) < 0.7 * 4.04, "the machine is known to be quicker than the profile's"


def test_short_batches_do_not_tell_how_fast_the_machine_is() -> None:
    """Each takes a tenth of a millisecond longer than by the profile, which measured them one after the other."""
    costs = CostModel([variant("x1", 0.9, 0.02, 0.002)], max_seeds=1024)
    for batch in range(2000):
        costs.observe(0, 1, 1, 0.122, 0.16, float(batch))
    assert costs.factors == [1.0]
    assert costs.batch_ms(0, 1, 1) == pytest.approx(0.16)
    for batch in range(200):
        costs.observe(0, 500, 1, 3 * 1.02, 3.2, 2000.0 + batch)
    assert costs.factors[0] == pytest.approx(3, rel=0.05)


def test_short_batches_tell_that_a_slow_spell_is_over() -> None:
    costs = CostModel([variant("x1", 0.9, 0.02, 0.002)], max_seeds=1000)
    slow_ms = 12 * costs.base_ms(0, 1000)
    for batch in range(60):
        costs.observe(0, 1000, 1, slow_ms, slow_ms, batch * slow_ms)
    assert costs.factors[0] > 10
    for batch in range(300):
        costs.observe(0, 1, 1, 0.022, 0.1, 20_000 + batch)
    assert 1 < costs.factors[0] <= 2
    lowest = costs.factors[0]
    for batch in range(300):
        costs.observe(0, 1, 1, 0.066, 0.1, 20_300 + batch)
    assert costs.factors[0] == pytest.approx(lowest, rel=0.01), "what they take longer is overhead"


def test_quick_short_batches_take_nothing_from_what_long_ones_tell() -> None:
    """A limit of processor time slows only batches that last longer than it allows at once."""
    costs = CostModel([variant("x1", 0.9, 0.02, 0.002)], max_seeds=1000)
    slow_ms = 6 * costs.base_ms(0, 1000)
    now_ms = 0.0
    for batch in range(2000):
        now_ms += slow_ms
        if batch % 10:
            costs.observe(0, 1, 1, 0.022, 0.1, now_ms)
        else:
            costs.observe(0, 1000, 1, slow_ms, slow_ms, now_ms)
    assert costs.compute_ms(0, 1000) == pytest.approx(slow_ms, rel=0.05)


def test_expired_costs_leave_what_they_told_of_a_machine_that_had_just_started() -> None:
    costs = model()
    measured = [AffineCost(fixed_ms=3 * ms, per_seed_ms=0.03 * ms) for ms in (10, 4, 2)]
    costs.use(dict(enumerate(measured)))
    assert costs.factors == [1, 1, 1]
    assert costs.computing_ms(X4, 50) == pytest.approx(3 * 6)
    costs.use({})
    assert costs.compute_ms(X4, 50) == pytest.approx(3 * 6)


def test_computation_is_told_apart_in_a_measured_cost() -> None:
    costs = model()
    run(costs, 1.0)
    costs.use({X4: AffineCost(fixed_ms=40, per_seed_ms=0.4)})
    assert costs.compute_ms(X4, 50) == 60
    assert costs.computing_ms(X4, 50) == pytest.approx(6)


def test_what_requests_cost_is_learnt_apart_from_what_batches_do() -> None:
    overhead, draw = Overhead(), np.random.default_rng(0)
    for requests in draw.integers(1, 40, 400).tolist():
        overhead.observe(requests, 0.1 + 0.03 * requests)
    assert overhead.fixed_ms == pytest.approx(0.1, rel=0.1)
    assert overhead.per_request_ms == pytest.approx(0.03, rel=0.05)


def test_lone_requests_are_expected_to_cost_as_much_each() -> None:
    overhead = Overhead()
    for _ in range(30):
        overhead.observe(1, 0.05)
    assert overhead.at(1) == pytest.approx(0.05)
    assert overhead.at(10) == pytest.approx(0.5)
    assert overhead.least_ms == pytest.approx(0.05)
    for _ in range(30):
        overhead.observe(1, 0.5)
    assert overhead.least_ms == pytest.approx(0.05), "an idle worker can still do it"


@pytest.mark.parametrize("usual_batches", [0, 1, 2, 10, 300])
def test_single_outlier_counts_as_at_most_twice_from_the_first_batch_on(usual_batches: int) -> None:
    costs = CostModel([variant("x1", 0.9, 0.02, 0.002)], max_seeds=1024)
    for batch in range(usual_batches):
        costs.observe(0, 1, 1, 0.022, 0.037, float(batch))
    before_ms = costs.batch_ms(0, 1, 1)
    costs.observe(0, 1, 1, 60.0, 60.0, float(usual_batches))
    assert costs.batch_ms(0, 1, 1) < max(2 * before_ms, 0.15)
    assert costs.batch_ms(0, 1, 20) < 20 * max(2 * before_ms, 0.15)


def test_overhead_that_repeats_itself_is_no_outlier() -> None:
    overhead = Overhead()
    for _ in range(3):
        overhead.observe(1, 60.0)
    assert overhead.at(1) > 15, "a third in a row counts in full"
    for _ in range(30):
        overhead.observe(1, 60.0)
    assert overhead.at(1) == pytest.approx(60, rel=0.1)


def test_answers_of_two_sizes_give_their_mean() -> None:
    """Three of ten batches write ten times as much; these are no outliers."""
    overhead, draw = Overhead(), np.random.default_rng(0)
    for _ in range(2000):
        overhead.observe(1, 1.0 if draw.random() < 0.3 else 0.1)
    assert overhead.at(1) == pytest.approx(0.37, rel=0.25)


def test_cost_for_peoples_sums_is_a_line_through_the_medians() -> None:
    costs = model()
    assert costs.profiled(X4).fixed_ms == pytest.approx(4)
    assert costs.profiled(X4).per_seed_ms == pytest.approx(0.04)
    run(costs, 2.0)
    assert costs.expected(X4).at(50) == pytest.approx(2 * 6, rel=0.05)
