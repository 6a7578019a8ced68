"""One tick of the slow loop, as the operator and `gnnserve run` both take it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.operator.routed_spec import CANDIDATES, REVISION, STALE, STAMP, START, make_spec
from tests.support.operator.samples import NOW_S, offered

from gnnserve_api.status.reasons import Reason
from gnnserve_routing.decision import RoutingState, TickContext, next_due_s, run_tick, undecided
from gnnserve_routing.signals import QueryAnswer, Signals

SPEC = make_spec()
CONTEXT = TickContext(SPEC, SPEC.routing_table(REVISION), CANDIDATES)
KNOWN = undecided(RoutingState(REVISION))


def answer(*pods: str, seeds_per_s: float) -> QueryAnswer:
    points = ((-30.0, 0.0), (-15.0, 15 * seeds_per_s), (0.0, 30 * seeds_per_s))
    return QueryAnswer(tuple(offered(pod, *points) for pod in pods), NOW_S)


def test_samples_become_a_table_with_the_base_variant_and_its_reason() -> None:
    tick = run_tick(KNOWN, CONTEXT, answer("w1", seeds_per_s=20_000), START)
    assert isinstance(tick.measured, Signals)
    assert (tick.table.base_variant, tick.table.issued_at) == ("x4", STAMP)
    assert tick.table.reason == tick.decision.state.reason


def test_workers_that_nobody_counted_are_those_that_the_samples_are_of() -> None:
    said = answer("w1", "w2", seeds_per_s=8_000)
    assert run_tick(KNOWN, CONTEXT, said, START).table.base_variant == "x1"
    assert run_tick(KNOWN, replace(CONTEXT, workers=1), said, START).table.base_variant == "x2"


def test_nothing_new_and_no_candidates_change_nothing() -> None:
    for context, said in ((CONTEXT, None), (replace(CONTEXT, candidates=()), answer("w1", seeds_per_s=20_000))):
        tick = run_tick(KNOWN, context, said, START)
        assert tick.decision is KNOWN
        assert tick.table == CONTEXT.declared


def test_one_silence_keeps_the_words_and_a_second_one_changes_them() -> None:
    known = run_tick(KNOWN, CONTEXT, answer("w1", seeds_per_s=20_000), START)
    first = run_tick(known.decision, CONTEXT, STALE, START)
    assert first.decision == replace(known.decision, state=replace(known.decision.state, silences=1))
    second = run_tick(first.decision, CONTEXT, STALE, START)
    assert second.decision.metrics_available.reason is Reason.STALE
    assert second.table == known.table


def test_missed_ticks_are_not_made_up_for() -> None:
    assert next_due_s(100.0, 15.0, now_s=101.0) == 115.0
    assert next_due_s(100.0, 15.0, now_s=140.0) == 140.0
