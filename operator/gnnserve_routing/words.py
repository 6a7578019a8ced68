"""Messages of the slow loop's decisions: conditions, and the reason in the routing table.

Conditions are written only when they change, so they have no figure that changes by the second; those are metrics. The
reason is written when the base or the objective changes, and has the figures of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Verdict
from gnnserve_routing.signals import Silence

MEASURED = Verdict(True, Reason.MEASURED, "Prometheus tells of the workers' load.")
NOT_MEASURED = Verdict(None, Reason.NOT_MEASURED, "Nothing was measured; see MetricsAvailable.")


@dataclass(frozen=True, slots=True)
class RoutingSituation:
    spec: GNNServiceSpec
    workers: int
    capacity: Mapping[str, float]
    """Seeds/s of all workers, by variant."""
    offered: float
    """Seeds/s."""
    limit: float
    """Seeds/s that the workers can carry at most."""
    allowed: Sequence[str]
    """The most accurate first."""

    @property
    def with_whom(self) -> str:
        routing = self.spec.routing
        if routing.weights is not None:
            return "with the weights of spec.routing"
        return f"with {routing.variant}" if routing.variant is not None else "with any variant allowed"

    @property
    def count(self) -> str:
        return "1 worker" if self.workers == 1 else f"{self.workers} workers"

    @property
    def who_carry(self) -> str:
        return f"{self.count} {'carries' if self.workers == 1 else 'carry'}"


def most_accurate(allowed: Sequence[str], capacity: Mapping[str, float]) -> str:
    """The most accurate variant that can answer in time at all."""
    return next((name for name in allowed if capacity[name] > 0), allowed[0])


def silent(silence: Silence) -> Verdict:
    return Verdict(
        False, silence.reason, f"{silence.message} Meanwhile the last routing table holds, and workers go by it."
    )


def objective_met(spec: GNNServiceSpec, holds: bool | None) -> Verdict:
    percent = f"{spec.objective.percentile:g} %"
    if spec.objective.latency_ms is None:
        return Verdict(None, Reason.NO_OBJECTIVE, "spec.objective.latencyMs is not set: there is nothing to meet.")
    if holds is None:
        return Verdict(None, Reason.NO_TRAFFIC, "Too few requests asked for a latency lately.")
    if holds:
        return Verdict(True, Reason.OBJECTIVE_MET, f"At least {percent} of the requests are answered in time.")
    return Verdict(
        False,
        Reason.OBJECTIVE_MISSED,
        f"Fewer than {percent} of the requests are answered in time, refused ones counted. CapacitySufficient says "
        "whether workers are missing.",
    )


def out_of_reach(situation: RoutingSituation) -> Verdict:
    return Verdict(
        False,
        Reason.OUT_OF_REACH,
        f"Not even one node is answered within {situation.spec.objective.latency_ms:g} ms {situation.with_whom}. Raise "
        "spec.objective.latencyMs, or allow faster variants.",
    )


def scale_out(situation: RoutingSituation, base: str | None) -> Verdict:
    whom = situation.with_whom if base is None else f"with {base}"
    return Verdict(
        False,
        Reason.SCALE_OUT,
        f"More is asked than {situation.count} can answer in time {whom}. Raise "
        f"{situation.spec.worker.replicas_field}, allow more time, "
        "or tolerate more. The metric gnnserve_operator_routing_wanted_workers says how many are needed.",
    )


def stepped_down(situation: RoutingSituation, base: str | None) -> Verdict:
    return Verdict(
        True,
        Reason.STEPPED_DOWN,
        f"The load is, or was until lately, too much for {situation.count} with a more accurate variant than {base}. "
        "More workers would bring it back.",
    )


def sufficient(situation: RoutingSituation, base: str | None) -> Verdict:
    if base is None:
        return Verdict(True, Reason.DECLARED, f"{situation.who_carry} the load {situation.with_whom}.")
    return Verdict(True, Reason.MOST_ACCURATE, f"{situation.who_carry} the load with {base}.")


def reason(  # noqa: PLR0911 - a ladder, one rung a sentence
    situation: RoutingSituation, base: str | None, goal: str | None, is_scale_out: bool
) -> str:
    """The reason for the present base variant."""
    capacity, allowed, objective = situation.capacity, situation.allowed, situation.spec.objective
    if base is None:
        return "spec.routing says who answers; what batches cost was measured"
    if objective.latency_ms is None:
        kind = "most accurate variant" if objective.accuracy_tolerance_permille is None else "fastest variant allowed"
        return f"{base} is the {kind}, and no latency is asked for"
    if situation.limit <= 0:
        return f"no variant answers within {objective.latency_ms:g} ms, and {base} comes nearest"
    said = f"{situation.offered:,.0f} seeds/s are offered, and {situation.who_carry} {capacity[base]:,.0f} with {base}"
    if is_scale_out:
        return f"{said}, which no variant exceeds"
    if base == most_accurate(allowed, capacity):
        return f"{said}, the most accurate variant within the objective"
    if base != goal:
        return f"{said}; it was on its way back to {goal} then, one variant at a time"
    faster = max(allowed[: allowed.index(base)], key=capacity.__getitem__)
    return f"{said}; {faster} carries {capacity[faster]:,.0f}, of which 85 % are used"
