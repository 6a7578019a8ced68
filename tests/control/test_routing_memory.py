"""What the slow loop decided, as it is remembered and as Prometheus sees it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.support.operator.observed import VARIANT_ROUTES, make_service
from tests.support.operator.operator import KEY

from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Verdict
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.slow_loop import RoutingMemory
from gnnserve_routing.decision import RoutingDecision, RoutingState, decide_routing
from gnnserve_routing.signals import Outcomes, Signals, Silence

SPEC = make_service(objective={"latencyMs": 88, "percentile": 99.5}, worker={"batching": {"maxSeeds": 1000}}).spec
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"namespace": KEY.namespace, "service": KEY.name}
PREFIX = "gnnserve_operator_"


def decide(measured: Signals | Silence, base: str | None = None) -> RoutingDecision:
    return decide_routing(RoutingState("r1", base=base), SPEC, VARIANT_ROUTES, 2, measured, NOW)


def series(memory: RoutingMemory) -> dict[str, float]:
    """Of one service, without its labels."""
    found = {}
    for family in Metrics(memory).registry.collect():
        for sample in family.samples:
            if sample.labels.items() >= LABELS.items():
                more = ",".join(value for name, value in sample.labels.items() if name not in LABELS)
                found[sample.name.removeprefix(PREFIX) + (f"[{more}]" if more else "")] = sample.value
    return found


def test_a_decision_is_shown_in_full() -> None:
    memory = RoutingMemory()
    memory.remember(KEY, "uid", decide(Signals(60_000.0, outcomes=Outcomes(90, 5, 5))), SPEC.objective)
    shown = series(memory)
    capacity = {f"routing_capacity_seeds_per_second[{name}]": pytest.approx(of, abs=1)
                for name, of in (("x1", 45_455), ("x2", 90_909), ("x4", 181_818))}  # fmt: skip
    assert shown == capacity | {
        "routing_metrics_available": 1,
        "routing_base_variant[x2]": 1,
        "routing_offered_seeds_per_second": 60_000,
        "routing_wanted_workers": 1,
        "routing_changes_total": 0,
        "routing_advice[Sufficient]": 0,
        "routing_advice[SteppedDown]": 1,
        "routing_advice[ScaleOut]": 0,
        "objective_attained_ratio": 0.9,
        "objective_wanted_ratio": 0.995,
    }


def test_what_was_not_measured_has_no_series() -> None:
    memory = RoutingMemory()
    memory.remember(KEY, "uid", decide(Silence(Reason.STALE, "Old."), "x2"), SPEC.objective)
    assert series(memory) == {
        "routing_metrics_available": 0,
        "routing_base_variant[x2]": 1,
        "routing_changes_total": 0,
        "objective_wanted_ratio": 0.995,
    }
    unknown = Verdict(None, Reason.NOT_SERVING, "No worker answers.")
    memory.remember(KEY, "uid", RoutingDecision(RoutingState("r1"), unknown, unknown, unknown), ObjectiveSpec())
    assert series(memory) == {"routing_changes_total": 0}


def test_changes_of_the_base_are_counted_within_one_revision_of_one_service() -> None:
    memory = RoutingMemory()
    decision = decide(Signals(0.0))
    for revision, base in (("r1", None), ("r1", "x1"), ("r1", "x4"), ("r1", "x4"), ("r1", "x2"), ("r2", "x1")):
        state = replace(decision.state, revision=revision, base=base)
        memory.remember(KEY, "uid", replace(decision, state=state), SPEC.objective)
    assert series(memory)["routing_changes_total"] == 2
    memory.remember(KEY, "another uid", decision, SPEC.objective)
    assert series(memory)["routing_changes_total"] == 0


def test_another_service_of_that_name_remembers_nothing_and_a_deleted_one_shows_nothing() -> None:
    memory = RoutingMemory()
    decision = decide(Signals(0.0))
    memory.remember(KEY, "uid", decision, SPEC.objective)
    assert memory.recall(KEY, "uid") is decision
    assert memory.recall(KEY, "another uid") is None
    memory.forget(KEY)
    assert memory.recall(KEY, "uid") is None
    assert series(memory) == {}
