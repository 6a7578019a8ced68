"""What the slow loop decided last, per service: remembered between reconciles, and shown as metrics.

Lost with the process. The next one begins with what is in the routing ConfigMap, and with no ticks counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_operator.kinds import ServiceKey
from gnnserve_routing.decision import Advice, RoutingDecision

_LABELS = ("namespace", "service")


@dataclass(frozen=True, slots=True)
class _Remembered:
    uid: str
    decision: RoutingDecision
    wanted_ratio: float | None
    """Of the requests that are to be in time; None: no latency is asked for."""
    changes: int


@dataclass(slots=True)
class RoutingMemory:
    _of: dict[ServiceKey, _Remembered] = field(default_factory=dict)

    def recall(self, key: ServiceKey, uid: str) -> RoutingDecision | None:
        """None also for another service of that name."""
        found = self._of.get(key)
        return found.decision if found is not None and found.uid == uid else None

    def remember(self, key: ServiceKey, uid: str, decision: RoutingDecision, objective: ObjectiveSpec) -> None:
        before = self._of.get(key)
        changes = 0
        if before is not None and before.uid == uid:
            old, new = before.decision.state, decision.state
            is_change = old.revision == new.revision and None not in {old.base, new.base} and old.base != new.base
            changes = before.changes + is_change
        wanted_ratio = None if objective.latency_ms is None else objective.percentile / 100
        self._of[key] = _Remembered(uid, decision, wanted_ratio, changes)

    def forget(self, key: ServiceKey) -> None:
        self._of.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        """For Prometheus. A figure that was not measured has no series: 0 would be a figure."""
        gauges = {
            name: GaugeMetricFamily(f"gnnserve_operator_{name}", text, labels=(*_LABELS, *labels))
            for name, text, labels in (
                ("routing_base_variant", "1 for the base variant that the slow loop chose.", ("variant",)),
                ("routing_offered_seeds_per_second", "Seeds of the requests that came, refused ones included.", ()),
                ("routing_capacity_seeds_per_second", "Seeds that all ready workers carry.", ("variant",)),
                ("routing_wanted_workers", "The fewest that carry the load with the fastest allowed variant.", ()),
                (
                    "routing_metrics_available",
                    "1 if Prometheus told of the load lately, 0 if it did not twice in a row.",
                    (),
                ),
                ("routing_advice", "1 for what is advised: Sufficient, SteppedDown, ScaleOut.", ("advice",)),
                ("objective_attained_ratio", "Requests in time of those with a latency, in the last interval.", ()),
                ("objective_wanted_ratio", "What spec.objective.percentile asks for.", ()),
            )
        }
        changes = CounterMetricFamily(
            "gnnserve_operator_routing_changes", "Changes of the base variant.", labels=_LABELS
        )  # fmt: skip
        for key, of in sorted(self._of.items(), key=lambda item: (item[0].namespace, item[0].name)):
            service = (key.namespace, key.name)
            changes.add_metric(service, of.changes)
            for name, labels, value in _figures(of):
                gauges[name].add_metric((*service, *labels), value)
        yield from (*gauges.values(), changes)


def _figures(of: _Remembered) -> Iterator[tuple[str, tuple[str, ...], float]]:
    decision = of.decision
    if decision.is_measured is not None:
        yield "routing_metrics_available", (), float(decision.is_measured)
    if decision.state.base is not None:
        yield "routing_base_variant", (decision.state.base,), 1.0
    for name, value in (
        ("routing_offered_seeds_per_second", decision.offered_seeds_per_s),
        ("routing_wanted_workers", decision.wanted_workers),
        ("objective_attained_ratio", decision.attained_ratio),
        ("objective_wanted_ratio", of.wanted_ratio),
    ):
        if value is not None:
            yield name, (), value
    for variant, capacity in decision.capacity_seeds_per_s.items():
        yield "routing_capacity_seeds_per_second", (variant,), capacity
    if decision.advice is not None:
        for advice in Advice:
            yield "routing_advice", (advice.value,), float(advice is decision.advice)
