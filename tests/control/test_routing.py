"""The slow loop's decisions: which base variant, which advice, and what workers are told, tick by tick."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.operator.routed_spec import CANDIDATES, COSTS, LATENCY_MS, REVISION, STALE, START, make_spec

from gnnserve_api.pods.routing import AffineCost, RoutingTable, VariantRoute
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_routing.attainment import Attainment, judge_attainment
from gnnserve_routing.costs import capacity_seeds_per_s
from gnnserve_routing.decision import (
    QUIET_TICKS,
    RETURN_UTILISATION,
    TARGET_UTILISATION,
    Advice,
    RoutingDecision,
    RoutingState,
    decide_routing,
    recover_state,
    routed_table,
    unknown_variants,
)
from gnnserve_routing.signals import BatchSums, Outcomes, Signals, Silence

CAPACITY = {name: capacity_seeds_per_s(cost, LATENCY_MS, 1000) for name, cost in COSTS.items()}
"""10,500, 23,000, 47,619 and 90,909 seeds/s of one worker."""


@dataclass
class Ticks:
    """One service, tick by tick."""

    spec: GNNServiceSpec = field(default_factory=make_spec)
    workers: int = 1
    candidates: tuple[VariantRoute, ...] = CANDIDATES
    state: RoutingState = field(default_factory=lambda: RoutingState(REVISION))
    now: datetime = START
    bases: list[str | None] = field(default_factory=list)
    tables: list[RoutingTable] = field(default_factory=list)
    """Those that were written."""
    last: RoutingDecision | None = None

    def __post_init__(self) -> None:
        self.tables.append(self.table())

    def table(self) -> RoutingTable:
        return routed_table(self.spec.routing_table(REVISION), self.state, self.spec.routing.interval_seconds)

    def tick(self, measured: float | Signals | Silence) -> RoutingDecision:
        if isinstance(measured, float | int):
            measured = Signals(float(measured))
        self.now += timedelta(seconds=self.spec.routing.interval_seconds)
        self.last = decide_routing(self.state, self.spec, self.candidates, self.workers, measured, self.now)
        self.state = self.last.state
        self.bases.append(self.state.base)
        if self.table() != self.tables[-1]:
            self.tables.append(self.table())
        return self.last

    def run(self, measured: Iterable[float | Signals | Silence]) -> list[str | None]:
        first = len(self.bases)
        for one in measured:
            self.tick(one)
        return self.bases[first:]


def edge(variant: str, share: float = TARGET_UTILISATION) -> float:
    """The load above which a faster variant is wanted, on one worker."""
    return share * CAPACITY[variant]


# --- the base variant


@pytest.mark.parametrize(
    ("offered", "workers", "base", "advice", "wanted_workers"),
    [
        (0, 1, "x1", Advice.SUFFICIENT, 1),
        (edge("x1") - 1, 1, "x1", Advice.SUFFICIENT, 1),
        (edge("x1") + 1, 1, "x2", Advice.STEPPED_DOWN, 1),
        (edge("x1") + 1, 2, "x1", Advice.SUFFICIENT, 1),
        (edge("x4") + 1, 1, "x8", Advice.STEPPED_DOWN, 1),
        (edge("x8") + 1, 1, "x8", Advice.SCALE_OUT, 2),
        (10 * edge("x8") - 1, 3, "x8", Advice.SCALE_OUT, 10),
        (3 * edge("x8") - 1, 3, "x8", Advice.STEPPED_DOWN, 3),
    ],
)
def test_the_most_accurate_variant_that_carries_the_load(
    offered: float, workers: int, base: str, advice: Advice, wanted_workers: int
) -> None:
    decision = Ticks(workers=workers).tick(offered)
    assert (decision.state.base, decision.advice, decision.wanted_workers) == (base, advice, wanted_workers)
    assert decision.capacity_seeds_per_s == pytest.approx({name: workers * of for name, of in CAPACITY.items()})


def test_it_never_leaves_the_services_tolerance() -> None:
    ticks = Ticks(make_spec(tolerance=20))
    decision = ticks.tick(100 * edge("x8"))
    assert (decision.state.base, decision.advice) == ("x4", Advice.SCALE_OUT)


def test_a_variant_that_is_neither_accurate_nor_fast_is_passed_over() -> None:
    bad = VariantRoute("bad", 10.0, AffineCost(8, 0.08), AffineCost(8, 0.08))
    ticks = Ticks(candidates=(*CANDIDATES, bad))
    assert ticks.run([edge("x2") + 1, 0, 0, 0, 0, 0, 0]) == ["x4", "x4", "x2", "x2", "x1", "x1", "x1"]


def test_without_a_latency_the_load_moves_nothing() -> None:
    ticks = Ticks(make_spec(latency_ms=None))
    assert ticks.run([0, 1e9, 0]) == ["x1", "x1", "x1"]
    assert Ticks(make_spec(latency_ms=None, tolerance=20)).run([0, 1e9]) == ["x4", "x4"]
    assert ticks.tick(1e9).advice is Advice.SCALE_OUT


def test_of_equally_accurate_variants_the_fastest_is_the_most_accurate_one() -> None:
    """In batches where there is a latency; for one node where an idle worker's choice is meant."""
    projected = VariantRoute("projected", 0.0, AffineCost(9, 0.02), AffineCost(9, 0.02))
    ticks = Ticks(candidates=(*CANDIDATES, projected))
    assert ticks.run([0]) == ["projected"]
    assert ticks.last is not None
    assert ticks.last.advice is Advice.SUFFICIENT
    assert Ticks(make_spec(latency_ms=None), candidates=(*CANDIDATES, projected)).run([0]) == ["x1"]


def test_an_objective_that_nobody_meets_is_said_and_not_scaled() -> None:
    decision = Ticks(make_spec(latency_ms=1.0)).tick(5)
    assert (decision.state.base, decision.advice, decision.wanted_workers) == ("x8", None, None)
    verdict = decision.capacity_sufficient
    assert (verdict.holds, verdict.reason) == (False, Reason.OUT_OF_REACH)
    assert "1 ms" in verdict.message


def test_the_variant_that_answers_one_node_soonest_comes_nearest_to_an_objective_that_nobody_meets() -> None:
    alone, together = (
        VariantRoute(name, loss, cost, cost)
        for name, loss, cost in (("alone", 1.0, AffineCost(1.0, 1.0)), ("together", 0.0, AffineCost(1.8, 0.5)))
    )
    assert Ticks(make_spec(latency_ms=1.5), candidates=(together, alone)).run([5]) == ["alone"]


def test_time_that_other_services_have_of_a_worker_carries_no_load() -> None:
    batches = BatchSums(100, 5000, 2.0, 5e5, 120.0)
    alone, beside = (
        Ticks(workers=2).tick(Signals(1.0, {"x1": of}, newest_s=15)).capacity_seeds_per_s["x4"]
        for of in (batches, replace(batches, wait_seconds=6.0))
    )
    assert beside == pytest.approx(alone / 4)


def test_faster_at_once_however_far() -> None:
    assert Ticks().run([100, edge("x4") + 1]) == ["x1", "x8"]


def test_back_one_variant_after_two_quiet_ticks() -> None:
    ticks = Ticks()
    ticks.tick(edge("x4") + 1)
    assert ticks.run([100] * 8) == ["x8", "x4", "x4", "x2", "x2", "x1", "x1", "x1"]


def test_a_tick_that_is_not_quiet_begins_the_count_anew() -> None:
    ticks = Ticks()
    ticks.tick(edge("x1") + 1)
    assert ticks.run([100, edge("x1") + 1, 100, 100]) == ["x2", "x2", "x2", "x1"]
    ticks.tick(edge("x1") + 1)


def test_silence_between_two_quiet_ticks_counts_neither_way() -> None:
    ticks = Ticks()
    ticks.tick(edge("x1") + 1)
    assert ticks.run([100, STALE, 100, 100]) == ["x2", "x2", "x1", "x1"]


def test_the_same_samples_again_are_no_tick() -> None:
    ticks = Ticks()
    ticks.tick(Signals(edge("x4") + 1, newest_s=0, gap_s=60))
    quiet = [Signals(100, newest_s=at_s, gap_s=60) for at_s in (60, 60, 60, 60, 120, 120, 120, 120, 180)]
    assert ticks.run(quiet) == ["x8"] * 4 + ["x4"] * 5
    ticks = Ticks()
    few = [replace(outcomes(9), newest_s=at_s, gap_s=60) for at_s in (0, 0, 0, 0, 60, 60, 120)]
    assert said(ticks, few) == [Reason.NO_TRAFFIC] * 6 + [Reason.OBJECTIVE_MET]
    ticks.run([replace(slow(100), newest_s=180, gap_s=60)] * 10)
    assert ticks.state.measured.sums["x1"].batches == 100
    assert len(ticks.tables) > 3, "costs are renewed meanwhile"


def test_fewer_workers_carry_less() -> None:
    ticks = Ticks(workers=4)
    ticks.tick(3 * edge("x1"))
    ticks.workers = 1
    assert ticks.run([3 * edge("x1")]) == ["x4"]


def test_a_base_that_a_new_tolerance_rules_out_is_left_at_once() -> None:
    ticks = Ticks()
    ticks.tick(edge("x4") + 1)
    ticks.spec = make_spec(tolerance=5)
    assert ticks.run([100]) == ["x1"]


@given(st.lists(st.one_of(st.floats(0, 2 * CAPACITY["x8"]), st.just(STALE)), max_size=60), st.integers(1, 3))
def test_back_only_one_step_after_quiet_ticks_and_forward_whenever_needed(
    measured: list[float | Silence], workers: int
) -> None:
    ticks, order, quiet = Ticks(workers=workers), list(COSTS), 0
    for one in measured:
        before = ticks.state.base
        after = ticks.tick(one).state.base
        if isinstance(one, Silence):
            assert after == before
            continue
        assert after is not None
        carries = one <= workers * edge(after)
        assert carries or after == "x8"
        if before is None or order.index(after) > order.index(before):
            # No further than needed.
            assert after == "x1" or one > workers * edge(order[order.index(after) - 1])
        more_accurate = order[: order.index(before)] if before else []
        is_quiet = any(one <= workers * edge(name, RETURN_UTILISATION) for name in more_accurate)
        quiet = quiet + 1 if is_quiet else 0
        if before is not None and order.index(after) < order.index(before):
            assert order.index(after) == order.index(before) - 1
            assert quiet >= QUIET_TICKS
            quiet = 0


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from(["x1", "x2", "x4"]), st.floats(0.96, 1.04))
def test_a_constant_load_at_an_edge_does_not_flap(seed: int, variant: str, where: float) -> None:
    """With the noise that 15 s of a few hundred requests have, for half an hour: it may step faster once, and does not
    come back to do it again."""
    noise = random.Random(seed)  # noqa: S311
    ticks = Ticks()
    bases = ticks.run([where * edge(variant) * noise.uniform(0.95, 1.05) for _ in range(120)])
    assert sum(a != b for a, b in pairwise(bases)) <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, CAPACITY["x8"]),
    st.fixed_dictionaries({name: st.floats(0.7, 1.5) for name in COSTS}),
    st.integers(1, 3),
    st.sampled_from([200, 8000]),
)
def test_a_constant_load_does_not_flap_where_only_some_variants_are_off_their_profile(
    offered: float, factors: dict[str, float], workers: int, batches: int
) -> None:
    """In mode Metrics only the base is measured: a variant that was left for being slow must not look fast again as
    soon as it is not used any more. For half an hour."""
    ticks = Ticks(make_spec(mode="Metrics"), workers=workers)
    for _ in range(120):
        variant = ticks.state.base or "x1"
        ticks.tick(slow(offered, factors[variant], variant, batches))
    changes = [b for a, b in pairwise(ticks.bases) if a != b]
    assert len(changes) <= 2 * len(COSTS)
    assert len(set(ticks.bases[40:])) == 1


def test_a_variant_that_is_slower_than_profiled_is_left_for_hours() -> None:
    """As it was: 59 changes an hour, for ever."""
    ticks = Ticks(make_spec(mode="Metrics"))
    for _ in range(240):
        base = ticks.state.base or "x1"
        ticks.tick(slow(0.72 * CAPACITY["x1"], 1.4 if base == "x1" else 1.0, base))
    assert set(ticks.bases) == {"x2"}


@given(st.floats(0, 2 * CAPACITY["x8"]), st.sampled_from([None, *COSTS]))
def test_a_constant_load_settles_and_then_nothing_is_written(offered: float, base: str | None) -> None:
    ticks = Ticks(state=RoutingState(REVISION, base=base))
    ticks.run([offered] * 10)
    written, verdict = len(ticks.tables), ticks.tick(offered).capacity_sufficient
    for _ in range(50):
        assert ticks.tick(offered).capacity_sufficient == verdict
    assert len(ticks.tables) == written


# --- silence


@pytest.mark.parametrize("offered", [0.0, edge("x4") + 1])
def test_silence_changes_neither_base_nor_costs_and_says_so(offered: float) -> None:
    ticks = Ticks()
    ticks.run([slow(offered)] * 3)
    before, table = ticks.state, ticks.table()
    for _ in range(10):
        decision = ticks.tick(STALE)
    assert (ticks.state.base, ticks.state.costs, ticks.table()) == (before.base, before.costs, table)
    assert (decision.metrics_available.holds, decision.metrics_available.reason) == (False, Reason.STALE)
    assert {decision.objective_met.reason, decision.capacity_sufficient.reason} == {Reason.NOT_MEASURED}
    assert (decision.is_measured, decision.advice, decision.offered_seeds_per_s) == (False, None, None)


def test_silence_from_the_beginning_leaves_the_specs_own_table() -> None:
    ticks = Ticks()
    ticks.run([STALE] * 5)
    assert ticks.tables == [ticks.spec.routing_table(REVISION)]


def test_costs_are_not_renewed_in_silence_so_that_workers_let_go_of_them() -> None:
    ticks = Ticks()
    ticks.run([slow(100)] * 3)
    issued_at = ticks.state.issued_at
    ticks.run([STALE] * 20)
    assert ticks.state.issued_at == issued_at


# --- what workers are told


def slow(offered: float, factor: float = 2.0, variant: str = "x1", batches: int = 100) -> Signals:
    """Batches of 100 seeds take so much longer than profiled."""
    seconds = COSTS[variant].at(100) / 1000 * factor
    return Signals(offered, {variant: BatchSums(1, 100, seconds, 1e4, 100 * seconds) * batches})


def test_the_table_is_the_specs_own_with_the_base() -> None:
    ticks = Ticks()
    ticks.run([0] * 5)
    (_, table) = ticks.tables
    assert table == msgspec.structs.replace(
        ticks.spec.routing_table(REVISION),
        base_variant="x1",
        reason=table.reason,
        issued_at="2026-01-01T00:00:15Z",
    )
    assert "0 seeds/s are offered" in table.reason


def test_each_change_of_base_is_told_with_its_reason() -> None:
    ticks = Ticks()
    ticks.run([0, edge("x1") + 1, 0, 0])
    assert [table.base_variant for table in ticks.tables] == [None, "x1", "x2", "x1"]
    assert "x1 carries 10,500" in ticks.tables[2].reason
    assert "the most accurate variant" in ticks.tables[3].reason
    stamps = [table.issued_at for table in ticks.tables]
    assert stamps == sorted(set(stamps))


def test_a_way_back_over_several_variants_is_told_as_such() -> None:
    ticks = Ticks()
    ticks.run([edge("x4") + 1, 0, 0])
    assert "on its way back to x1" in ticks.tables[-1].reason


def test_a_reason_speaks_of_what_is_asked_now() -> None:
    ticks = Ticks(make_spec(latency_ms=None))
    ticks.run([slow(100)] * 3)
    assert "no latency is asked for" in ticks.tables[-1].reason
    ticks.spec = make_spec()
    assert ticks.table().reason == "", "until it is decided by"
    ticks.run([slow(100)])
    assert "the most accurate variant within the objective" in ticks.table().reason
    ticks.spec = make_spec(mode="Static", variant="x8")
    assert (ticks.table().base_variant, ticks.table().reason) == ("x8", "")
    ticks.run([slow(100, variant="x8")])
    assert "spec.routing says who answers" in ticks.table().reason


def test_costs_are_renewed_when_the_clock_was_set_back() -> None:
    ticks = Ticks()
    ticks.run([slow(100)] * 3)
    ticks.now -= timedelta(hours=1)
    written = len(ticks.tables)
    ticks.run([slow(100)])
    assert len(ticks.tables) == written + 1
    ticks.run([slow(100)] * 2)
    assert len(ticks.tables) == written + 1


def test_a_machine_that_is_slower_than_profiled_has_its_costs_told_and_counted() -> None:
    ticks = Ticks()
    ticks.run([slow(0.6 * edge("x1"))] * 2)
    table = ticks.tables[-1]
    assert table.costs["x1"] == AffineCost(16, 0.16)
    assert table.costs["x8"] == AffineCost(2, 0.02), "the machine is slower for all"
    assert (table.base_variant, table.ttl_seconds) == ("x2", 75)


def test_costs_are_renewed_before_they_expire_and_not_more_often() -> None:
    ticks = Ticks()
    ticks.run([slow(100)] * 10)
    stamps = [datetime.fromisoformat(table.issued_at) for table in ticks.tables[1:]]
    assert len(stamps) > 2
    assert {after - at for at, after in pairwise(stamps[1:])} == {timedelta(seconds=45)}
    assert all(table.costs == ticks.tables[-1].costs for table in ticks.tables[1:])


def test_an_idle_service_forgets_its_costs_and_then_nothing_is_written() -> None:
    ticks = Ticks()
    ticks.run([slow(100)] * 3)
    ticks.run([0] * 40)
    assert ticks.table().costs == {}
    assert ticks.table().ttl_seconds is None
    written = len(ticks.tables)
    ticks.run([0] * 40)
    assert len(ticks.tables) == written


def test_a_short_interval_lives_a_minute() -> None:
    ticks = Ticks(make_spec(intervalSeconds=1))
    ticks.run([slow(100)] * 2)
    assert ticks.table().ttl_seconds == 60


# --- modes that are declared


@pytest.mark.parametrize(
    ("routing", "limit"),
    [
        ({"mode": "Static", "variant": "x4"}, CAPACITY["x4"]),
        ({"mode": "Weights", "weights": {"x1": 1, "x8": 1}}, 2 / (1 / CAPACITY["x1"] + 1 / CAPACITY["x8"])),
        ({"mode": "Weights", "weights": {"x1": 0, "x8": 5}}, CAPACITY["x8"]),
    ],
)
def test_declared_variants_stay_and_only_the_advice_follows_the_load(routing: dict[str, Any], limit: float) -> None:
    ticks = Ticks(make_spec(**routing))
    quiet = ticks.tick(0.8 * limit)
    assert (quiet.advice, quiet.capacity_sufficient.reason) == (Advice.SUFFICIENT, Reason.DECLARED)
    loud = ticks.tick(0.9 * limit)
    assert (loud.advice, loud.wanted_workers) == (Advice.SCALE_OUT, 2)
    assert ticks.tables == [ticks.spec.routing_table(REVISION)]


def test_a_static_service_is_told_corrected_costs_too() -> None:
    ticks = Ticks(make_spec(mode="Static", variant="x4"))
    ticks.run([slow(100, variant="x4")] * 2)
    table = ticks.table()
    assert (table.base_variant, table.costs["x4"]) == ("x4", AffineCost(4, 0.04))


def test_a_variant_that_is_not_there_is_found() -> None:
    names = list(COSTS)
    assert unknown_variants(make_spec(mode="Static", variant="x3"), names) == ("x3",)
    assert unknown_variants(make_spec(mode="Weights", weights={"x1": 1, "x16": 2}), names) == ("x16",)
    assert unknown_variants(make_spec(), names) == ()


# --- advice


def test_scale_out_is_not_taken_back_by_noise() -> None:
    ticks = Ticks()
    advice = [ticks.tick(edge("x8", share)).advice for share in (0.8, 0.86, 0.84, 0.76, 0.74, 0.84)]
    out, down = Advice.SCALE_OUT, Advice.STEPPED_DOWN
    assert advice == [down, out, out, out, down, down]


def test_the_words_of_scale_out_keep_still_and_the_number_of_workers_is_a_figure() -> None:
    ticks = Ticks(workers=2)
    decisions = [ticks.tick(times * edge("x8") - 1) for times in (5, 6)]
    assert [decision.wanted_workers for decision in decisions] == [5, 6]
    (verdict,) = {decision.capacity_sufficient for decision in decisions}
    assert (verdict.holds, verdict.reason) == (False, Reason.SCALE_OUT)
    assert "2 workers" in verdict.message


# --- the objective


def outcomes(met: float, late: float = 0, refused: float = 0) -> Signals:
    return Signals(100.0, outcomes=Outcomes(met, late, refused))


def said(ticks: Ticks, measured: Iterable[Signals | Silence]) -> list[Reason]:
    return [ticks.tick(one).objective_met.reason for one in measured]


def test_the_objective_is_missed_at_once_and_met_again_after_two_good_intervals() -> None:
    good, late, refused = outcomes(990, 10), outcomes(975, 25), outcomes(0, 0, 50)
    met, missed = Reason.OBJECTIVE_MET, Reason.OBJECTIVE_MISSED
    ticks = Ticks()
    assert said(ticks, [good, late, good, good, refused, good, late, good]) == [
        met, missed, missed, met, missed, missed, missed, missed,
    ]  # fmt: skip
    assert ticks.last is not None
    assert ticks.last.attained_ratio == pytest.approx(0.99)


def test_a_few_requests_are_gathered_until_they_are_enough() -> None:
    nothing, met = Reason.NO_TRAFFIC, Reason.OBJECTIVE_MET
    assert said(Ticks(), [outcomes(9)] * 4) == [nothing, nothing, met, met]


@pytest.mark.parametrize(
    ("percentile", "truly", "requests"), [(99.0, 0.995, 30), (99.0, 0.995, 3), (99.9, 0.9995, 200), (90.0, 0.95, 100)]
)
def test_a_service_that_meets_its_objective_is_not_said_to_miss_it(
    percentile: float, truly: float, requests: int
) -> None:
    """For a day."""
    drawn = random.Random(1)  # noqa: S311
    attainment, missed = Attainment(), 0
    for _ in range(5760):
        late = sum(drawn.random() > truly for _ in range(requests))
        attainment = judge_attainment(attainment, Outcomes(requests - late, late), percentile)
        missed += attainment.holds is False
    assert missed == 0


@pytest.mark.parametrize(("percentile", "share_in_time", "ticks"), [(99.0, 0.5, 1), (99.0, 0.9, 8), (99.9, 0.96, 20)])
def test_a_real_miss_is_told_soon(percentile: float, share_in_time: float, ticks: int) -> None:
    attainment = Attainment()
    for _ in range(100):
        attainment = judge_attainment(attainment, Outcomes(30), percentile)
    assert attainment.holds is True
    for _ in range(ticks):
        attainment = judge_attainment(attainment, Outcomes(30 * share_in_time, 30 * (1 - share_in_time)), percentile)
    assert attainment.holds is False


def test_without_requests_what_was_said_is_forgotten_at_last() -> None:
    ticks = Ticks()
    ticks.tick(outcomes(10, 20))
    reasons = said(ticks, [Signals(0.0)] * 25)
    assert (reasons[0], reasons[-1]) == (Reason.OBJECTIVE_MISSED, Reason.NO_TRAFFIC)
    assert ticks.last is not None
    assert ticks.last.attained_ratio is None


def test_without_a_latency_there_is_nothing_to_meet() -> None:
    assert said(Ticks(make_spec(latency_ms=None)), [outcomes(0, 100)]) == [Reason.NO_OBJECTIVE]


# --- restarts


def test_a_restart_goes_on_from_the_published_table() -> None:
    ticks = Ticks()
    ticks.run([slow(edge("x2") + 1)] * 3)
    table, decided = ticks.table(), ticks.state
    state = recover_state(REVISION, table, objective_met=True)
    assert (state.base, state.costs, state.issued_at) == (decided.base, decided.costs, decided.issued_at)
    assert state.attainment.holds is True
    again = Ticks(state=state, now=ticks.now)
    assert again.tables == [table]
    again.tick(slow(edge("x2") + 1))
    assert msgspec.structs.replace(again.table(), issued_at="") == msgspec.structs.replace(table, issued_at="")


@pytest.mark.parametrize(
    "table",
    [
        None,
        make_spec().routing_table(REVISION),
        msgspec.structs.replace(
            make_spec().routing_table("rev-0"), base_variant="x8", issued_at="2026-01-01T00:00:00Z"
        ),
    ],
)
def test_another_revision_or_nothing_published_begins_anew(table: RoutingTable | None) -> None:
    assert recover_state(REVISION, table) == RoutingState(REVISION)


def test_a_declared_variant_is_not_recovered_as_a_chosen_one() -> None:
    ticks = Ticks(make_spec(mode="Static", variant="x8"))
    ticks.run([slow(100, variant="x8")] * 2)
    assert ticks.table().issued_at
    assert recover_state(REVISION, ticks.table()).base is None


def test_a_state_of_another_revision_says_nothing_about_this_one() -> None:
    ticks = Ticks()
    ticks.run([slow(edge("x2") + 1)] * 3)
    declared = ticks.spec.routing_table("rev-2")
    assert routed_table(declared, ticks.state, 15) == declared


def test_a_stamp_that_is_none_is_renewed() -> None:
    state = RoutingState(REVISION, base="x1", costs={"x1": AffineCost(16, 0.16)}, issued_at="yesterday")
    ticks = Ticks(state=state)
    ticks.tick(slow(100))
    assert ticks.state.issued_at == "2026-01-01T00:00:15Z"


def test_every_sentence_is_one() -> None:
    specs: Mapping[str, GNNServiceSpec] = {
        "latency": make_spec(),
        "none": make_spec(latency_ms=None),
        "tolerance": make_spec(latency_ms=None, tolerance=20),
        "static": make_spec(mode="Static", variant="x2"),
        "weights": make_spec(mode="Weights", weights={"x1": 1}),
        "hopeless": make_spec(latency_ms=0.5),
    }
    for spec in specs.values():
        for workers in (1, 2):
            ticks = Ticks(spec, workers=workers)
            for measured in (0, edge("x1") + 1, edge("x8", 3), 0, 0, STALE, outcomes(5, 50)):
                decision = ticks.tick(measured)
                for verdict in (decision.metrics_available, decision.objective_met, decision.capacity_sufficient):
                    assert verdict.message[0].isupper() or verdict.message[0].isdigit() or "spec." in verdict.message
                    assert verdict.message.endswith(".")
                    assert "None" not in verdict.message
                assert "None" not in ticks.state.reason
