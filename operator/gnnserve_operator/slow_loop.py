"""The slow loop's timing: a task per service that asks Prometheus at the service's interval and wakes the reconcile.

Tasks run beside the reconciles, not inside them: a Prometheus that answers slowly, or not at all, must not delay a
service, least of all another one. The plan decides what is asked, and what follows from the answer; this module only
keeps the times.

The last decision is kept between reconciles, and shown as metrics. It is lost with the process: the next one begins
with the routing ConfigMap, and with no ticks counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_operator.clock import Clock
from gnnserve_operator.decide.service_routing import PrometheusQuestion
from gnnserve_operator.kinds import ServiceKey
from gnnserve_routing.decision import Advice, RoutingDecision, next_due_s
from gnnserve_routing.signals import QueryAnswer, Silence

LONGEST_FIRST_WAIT_S = 15.0
"""Longest wait before the first question: even with an interval of an hour, a user wants to know soon whether
Prometheus answers."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingQuery:
    question: PrometheusQuestion
    task: asyncio.Task[None]
    unread: QueryAnswer | Silence | None = None


class SlowLoop:
    """Asks for the services. Each plan calls `follow`; an answer stays unread until the plan that used it says so."""

    def __init__(
        self,
        ask: Callable[[str, str], Awaitable[QueryAnswer | Silence]],
        wake: Callable[[ServiceKey], None],
        clock: Clock,
    ) -> None:
        self._ask = ask
        """Function that asks the Prometheus at a URL a query."""
        self._wake = wake
        self._clock = clock
        self._followed: dict[ServiceKey, _PendingQuery] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, key: ServiceKey, question: PrometheusQuestion | None) -> None:
        """Ask this question from now on, at its interval; None: ask nothing. An unchanged question keeps its rhythm."""
        followed = self._followed.get(key)
        if followed is not None and followed.question == question:
            return
        if followed is not None:
            del self._followed[key]
            followed.task.cancel()
            self._ending.add(followed.task)
            followed.task.add_done_callback(self._ending.discard)
        if question is not None:
            task = asyncio.create_task(self._run(key, question), name=f"slow loop {key}")
            self._followed[key] = _PendingQuery(question, task)

    def unread(self, key: ServiceKey) -> QueryAnswer | Silence | None:
        followed = self._followed.get(key)
        return None if followed is None else followed.unread

    def read(self, key: ServiceKey, answer: QueryAnswer | Silence | None) -> None:
        """Mark that answer as read; a later one is still unread."""
        followed = self._followed.get(key)
        if followed is not None and followed.unread is answer:
            followed.unread = None

    async def close(self) -> None:
        for key in list(self._followed):
            self.follow(key, None)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _run(self, key: ServiceKey, question: PrometheusQuestion) -> None:
        never = asyncio.Event()
        due = self._clock.now() + min(question.interval_s, LONGEST_FIRST_WAIT_S)
        while True:
            await self._clock.wait(never, max(due - self._clock.now(), 0))
            answer = await self._answer(key, question)
            self._followed[key].unread = answer
            self._wake(key)
            due = next_due_s(due, question.interval_s, self._clock.now())

    async def _answer(self, key: ServiceKey, question: PrometheusQuestion) -> QueryAnswer | Silence:
        try:
            return await self._ask(question.url, question.query)
        except Exception:
            logger.exception("Prometheus could not be asked", extra=key.about(reason="AskFailed"))
            return Silence(Reason.UNREACHABLE, "Asking Prometheus failed; the operator's log has the details.")


_LABELS = ("namespace", "service")


@dataclass(frozen=True, slots=True)
class _LastDecision:
    uid: str
    decision: RoutingDecision
    wanted_ratio: float | None
    """Share of the requests that should be in time; None: there is no latency objective."""
    changes: int


@dataclass(slots=True)
class RoutingMemory:
    _of: dict[ServiceKey, _LastDecision] = field(default_factory=dict)

    def recall(self, key: ServiceKey, uid: str) -> RoutingDecision | None:
        """The last decision; None also for another service of that name."""
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
        self._of[key] = _LastDecision(uid, decision, wanted_ratio, changes)

    def forget(self, key: ServiceKey) -> None:
        self._of.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        """Metrics for Prometheus. A value that was not measured has no series, since 0 would be a value."""
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


def _figures(of: _LastDecision) -> Iterator[tuple[str, tuple[str, ...], float]]:
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
