"""What batches are taken to cost, from sums over them, and how much a worker then carries."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_api.pods.routing import AffineCost
from gnnserve_routing.costs import (
    MeasuredCosts,
    capacity_seeds_per_s,
    estimate_costs,
    publish_costs,
    remember,
    share_of_time,
)
from gnnserve_routing.signals import BatchSums

MAX_SEEDS = 1000
PROFILED = {"x1": AffineCost(10, 0.05), "x4": AffineCost(2, 0.01)}


def sums(cost: AffineCost, sizes: Iterable[int], noise: float = 0.0, seed: int = 0) -> BatchSums:
    """Of batches that cost so."""
    drawn = random.Random(seed)  # noqa: S311
    total = BatchSums()
    for seeds in sizes:
        seconds = cost.at(seeds) / 1000 * (1 + noise * drawn.uniform(-1, 1))
        total += BatchSums(1, seeds, seconds, seeds**2, seeds * seconds)
    return total


def after(before: MeasuredCosts, new: dict[str, BatchSums], ticks: int = 1) -> MeasuredCosts:
    for _ in range(ticks):
        before = remember(before, PROFILED, new, MAX_SEEDS, interval_s=15)
    return before


def costs(measured: MeasuredCosts) -> dict[str, AffineCost]:
    return dict(estimate_costs(measured, PROFILED))


def estimate(new: dict[str, BatchSums]) -> dict[str, AffineCost]:
    return costs(after(MeasuredCosts(), new))


def same(cost: AffineCost, fixed_ms: float, per_seed_ms: float, rel: float = 1e-6) -> bool:
    return (cost.fixed_ms, cost.per_seed_ms) == (
        pytest.approx(fixed_ms, rel=rel),
        pytest.approx(per_seed_ms, rel=rel),
    )


VARIED = [1, 10, 50, 200, 400] * 20


def test_batches_of_different_sizes_tell_both_parts_of_the_cost() -> None:
    assert same(estimate({"x1": sums(AffineCost(15, 0.04), VARIED)})["x1"], 15, 0.04)
    assert same(estimate({"x1": sums(AffineCost(15, 0.04), VARIED, noise=0.1)})["x1"], 15, 0.04, rel=0.15)


def test_batches_of_one_size_scale_the_profile() -> None:
    assert same(estimate({"x1": sums(AffineCost(15, 0.075), [100] * 100)})["x1"], 15, 0.075)


@pytest.mark.parametrize(
    ("batches", "factor"),
    [
        pytest.param(sums(AffineCost(15, 0.075), VARIED[:40]), 1.5, id="too few for a line"),
        pytest.param(sums(AffineCost(25, 0.0), VARIED), None, id="more seeds cost nothing"),
        pytest.param(BatchSums(100, 5000, 1.0, 5e5, 60.0), None, id="a negative fixed part"),
        pytest.param(sums(AffineCost(10, 0.5), [1, 2, 3, 4] * 30), None, id="a line far off the profile at its end"),
    ],
)
def test_a_line_that_makes_no_sense_scales_the_profile(batches: BatchSums, factor: float | None) -> None:
    predicted_s = (batches.batches * 10 + batches.seeds * 0.05) / 1000
    factor = factor or batches.seconds / predicted_s
    assert same(estimate({"x1": batches})["x1"], 10 * factor, 0.05 * factor)


def test_an_unused_variant_is_as_much_slower_as_the_used_ones() -> None:
    found = estimate({"x1": sums(AffineCost(20, 0.1), VARIED)})
    assert same(found["x4"], 4, 0.02)


def test_a_few_batches_change_nothing() -> None:
    few = {"x1": sums(AffineCost(100, 1), [10] * 4)}
    assert estimate(few) == PROFILED
    assert after(MeasuredCosts({}, 2.0), few, 20).slowness == 2.0


def test_few_batches_in_each_of_many_intervals_do_tell() -> None:
    measured = after(MeasuredCosts(), {"x1": sums(AffineCost(20, 0.1), [10] * 6)}, 5)
    assert same(costs(measured)["x1"], 20, 0.1)


def test_what_nobody_measures_any_more_is_forgotten() -> None:
    measured = after(after(MeasuredCosts(), {"x1": sums(AffineCost(40, 0.2), VARIED)}), {"x1": BatchSums()}, 12)
    for name, cost in costs(measured).items():
        assert same(cost, PROFILED[name].fixed_ms, PROFILED[name].per_seed_ms, rel=0.1)
    assert measured.sums == {}


def test_after_a_restart_the_published_costs_are_what_is_known() -> None:
    recovered = MeasuredCosts(costs={"x1": AffineCost(20, 0.1)})
    found = costs(after(recovered, {"x1": sums(AffineCost(20, 0.1), [10] * 4)}))
    assert found == {"x1": AffineCost(20, 0.1), "x4": PROFILED["x4"]}, "of the other one nothing was published"


USED_X4 = {"x4": sums(PROFILED["x4"], [100] * 200)}
LEFT = after(after(MeasuredCosts(), {"x1": sums(AffineCost(12.5, 0.0625), VARIED)}), USED_X4, 20)
"""x1 is slower than profiled, and has not been used for a while; x4 is as profiled."""


def test_what_a_variant_cost_is_remembered_when_another_one_is_used() -> None:
    assert "x1" not in LEFT.sums
    assert same(costs(LEFT)["x1"], 12.5, 0.0625, rel=0.02)
    assert same(costs(LEFT)["x4"], 2, 0.01)


def test_a_variant_that_is_not_used_gets_slower_with_the_machine() -> None:
    found = costs(after(LEFT, {"x4": sums(AffineCost(4, 0.02), [100] * 200)}, 10))
    assert same(found["x1"], 25, 0.125, rel=0.05)


def test_what_a_variant_cost_is_forgotten_within_hours() -> None:
    hour = 240
    assert same(costs(after(LEFT, USED_X4, hour))["x1"], 11.25, 0.05625, rel=0.02)
    assert same(costs(after(LEFT, USED_X4, 6 * hour))["x1"], 10, 0.05, rel=0.02)


def test_a_measurement_that_cannot_be_is_bounded() -> None:
    for seconds in (0.0, 1e9):
        found = estimate({"x1": BatchSums(100, 100, seconds, 100, seconds)})
        assert 0.1 * 10 <= found["x1"].fixed_ms <= 20 * 10


@given(
    st.builds(BatchSums, *[st.floats(0, 1e12, allow_nan=False) for _ in range(5)]),
    st.builds(BatchSums, *[st.floats(0, 1e12, allow_nan=False) for _ in range(5)]),
)
def test_no_sums_give_a_cost_that_is_not_positive(x1: BatchSums, x4: BatchSums) -> None:
    for cost in estimate({"x1": x1, "x4": x4}).values():
        assert cost.fixed_ms > 0
        assert cost.per_seed_ms > 0


# --- publishing


def published(before: dict[str, AffineCost], factor: float) -> dict[str, AffineCost]:
    estimated = {n: AffineCost(c.fixed_ms * factor, c.per_seed_ms * factor) for n, c in PROFILED.items()}
    return publish_costs(before, estimated, PROFILED, MAX_SEEDS)


def test_costs_near_the_profile_are_not_published() -> None:
    assert published({}, 1.09) == {}
    assert published({}, 0.92) == {}


def test_costs_are_published_when_they_moved_and_then_keep_still() -> None:
    first = published({}, 1.5)
    assert same(first["x1"], 15, 0.075)
    assert published(first, 1.42) == first
    assert same(published(first, 1.7)["x1"], 17, 0.085)


def test_costs_that_are_the_profiles_again_are_taken_back() -> None:
    assert published(published({}, 1.5), 1.02) == {}


def test_at_the_edge_of_the_noteworthy_nothing_swings() -> None:
    now = published({}, 1.12)
    for factor in (1.08, 1.12, 1.09, 1.11) * 5:
        assert published(now, factor) == now


# --- capacity


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [
        pytest.param(None, 1000 / 0.060, id="no latency: full batches"),
        pytest.param(1000, 1000 / 0.060, id="full batches fit"),
        pytest.param(60, 400 / 0.030, id="a batch lasts half of the latency"),
        pytest.param(15, 1 / 0.01005, id="one seed fits, though not in half"),
        pytest.param(10, 0, id="not even one seed fits"),
    ],
)
def test_capacity(latency_ms: float | None, expected: float) -> None:
    assert capacity_seeds_per_s(PROFILED["x1"], latency_ms, MAX_SEEDS) == pytest.approx(expected)


@given(st.floats(0.01, 100), st.floats(0, 1), st.floats(0.1, 1000), st.integers(1, 4096))
def test_more_time_is_never_less_capacity(fixed: float, per_seed: float, latency_ms: float, max_seeds: int) -> None:
    cost = AffineCost(fixed, per_seed)
    at = [capacity_seeds_per_s(cost, latency, max_seeds) for latency in (latency_ms, 1.5 * latency_ms, None)]
    assert at == pytest.approx(sorted(at))


def test_time_that_others_have_is_no_cost_and_is_taken_off_what_a_worker_can_do() -> None:
    batches = BatchSums(100, 5000, 2.0, 5e5, 120.0)
    waiting = replace(batches, wait_seconds=6.0)
    alone, beside = after(MeasuredCosts(), {"x1": batches}), after(MeasuredCosts(), {"x1": waiting})
    assert beside.costs == alone.costs
    assert (share_of_time(alone), share_of_time(beside)) == (1, 0.25)
    assert share_of_time(MeasuredCosts()) == 1, "nothing was measured"
