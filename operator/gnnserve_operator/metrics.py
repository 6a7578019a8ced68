"""Metrics of the operator itself, in the Prometheus format.

Each operator has its own registry, so that two operators in one process (in tests) do not collide. Callers do the
counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.slow_loop import RoutingMemory

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Result(StrEnum):
    SUCCESS = "success"
    """Everything is as it should be, or waits for the cluster."""
    RETRY = "retry"
    """The cluster was away or busy; tried again."""
    CONFLICT = "conflict"
    """Something changed while it was looked at; looked at again soon."""
    REFUSED = "refused"
    """The API server refused an object; a person must act."""
    ERROR = "error"
    """A defect of the operator; its log has the stack."""


class PrometheusResult(StrEnum):
    SUCCESS = "success"
    """A usable answer."""
    UNREACHABLE = "unreachable"
    """No connection, no name, no trust, or nothing in time."""
    REFUSED = "refused"
    """An HTTP status other than success."""
    INVALID = "invalid"
    """Something other than an answer of Prometheus."""


@dataclass(frozen=True, slots=True)
class ConditionLabels:
    """One condition of a GNNService's status, as a metric's labels."""

    type: str
    status: str
    reason: str


class Metrics:
    """The operator's metrics. `routing`: the slow loop's decisions."""

    def __init__(self, routing: RoutingMemory) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self.reconciles = Counter(
            "gnnserve_operator_reconciles", "Reconciles of a GNNService.", ["result"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "gnnserve_operator_reconcile_seconds", "Time of one reconcile.", buckets=_SECONDS, registry=registry
        )
        self.api_requests = Counter(
            "gnnserve_operator_api_requests",
            "Requests to the API server, watches excepted; code is `none` where no answer came.",
            ["verb", "kind", "code"],
            registry=registry,
        )
        self._queue_depth = Gauge(
            "gnnserve_operator_queue_depth", "GNNServices that are due and wait their turn.", registry=registry
        )
        self._turns = Gauge(
            "gnnserve_operator_turns",
            "GNNServices whose Job or rollout is under way, or waits because only so many may be at a time.",
            ["what", "state"],
            registry=registry,
        )
        self._last_event_age = Gauge(
            "gnnserve_operator_last_event_age_seconds",
            "Since a watch last told of a change; grows on a quiet cluster.",
            registry=registry,
        )
        self.prometheus_requests = Counter(
            "gnnserve_operator_prometheus_requests", "Questions to a Prometheus.", ["result"], registry=registry
        )
        self._leader = Gauge(
            "gnnserve_operator_leader", "1 if this operator leads, 0 if it stands by.", registry=registry
        )
        registry.register(_CallbackCollector(routing.collect))
        self._count_by_ready: Callable[[], Mapping[str, int]] | None = None
        self._declared_workers: Callable[[], Mapping[ServiceKey, int]] = dict
        registry.register(_CallbackCollector(self._collect_services))
        registry.register(_CallbackCollector(self._collect_declared))
        self._conditions: Callable[[], Mapping[ServiceKey, Iterable[ConditionLabels]]] = dict
        registry.register(_CallbackCollector(self._collect_conditions))
        self._namespaces: Callable[[], Mapping[str, bool]] = dict
        registry.register(_CallbackCollector(self._collect_namespaces))
        self._reverts: Callable[[], Mapping[tuple[ServiceKey, str], int]] = dict
        registry.register(_CallbackCollector(self._collect_reverts))
        # Series that start at 0, so that their first increase is seen.
        for result in Result:
            self.reconciles.labels(result.value)
        for asked in PrometheusResult:
            self.prometheus_requests.labels(asked.value)

    def observe_turns(self, what: str, under_way: Callable[[], float], waiting: Callable[[], float]) -> None:
        self._turns.labels(what, "underway").set_function(under_way)
        self._turns.labels(what, "waiting").set_function(waiting)

    def observe_leader(self, is_leader: Callable[[], bool]) -> None:
        self._leader.set_function(is_leader)

    def observe_queue(self, depth: Callable[[], float]) -> None:
        self._queue_depth.set_function(depth)

    def observe_last_event(self, age_s: Callable[[], float]) -> None:
        self._last_event_age.set_function(age_s)

    def observe_namespaces(self, is_watched: Callable[[], Mapping[str, bool]]) -> None:
        self._namespaces = is_watched

    def observe_services(
        self,
        count_by_ready: Callable[[], Mapping[str, int]],
        declared_workers: Callable[[], Mapping[ServiceKey, int]],
        conditions: Callable[[], Mapping[ServiceKey, Iterable[ConditionLabels]]],
    ) -> None:
        self._count_by_ready = count_by_ready
        self._declared_workers = declared_workers
        self._conditions = conditions

    def observe_reverts(self, counts: Callable[[], Mapping[tuple[ServiceKey, str], int]]) -> None:
        self._reverts = counts

    def _collect_services(self) -> Iterator[Metric]:
        """Metrics of the services; none before the watches begin, since zeros would look like a working operator."""
        if self._count_by_ready is None:
            return
        family = GaugeMetricFamily(
            "gnnserve_operator_services", "GNNServices by the status of Ready.", labels=("ready",)
        )
        counted = self._count_by_ready()  # once a scrape: it reads every service
        for ready in ("True", "False", "Unknown"):
            family.add_metric((ready,), counted.get(ready, 0))
        yield family

    def _collect_declared(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gnnserve_operator_declared_workers", "Workers that should answer.", labels=("namespace", "service")
        )
        for key, count in sorted(self._declared_workers().items()):
            family.add_metric((key.namespace, key.name), count)
        yield family

    def _collect_conditions(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gnnserve_operator_condition",
            "1 for each condition of a GNNService's status, as it is now.",
            labels=("namespace", "service", "type", "status", "reason"),
        )
        for key, conditions in sorted(self._conditions().items()):
            for told in conditions:
                family.add_metric((key.namespace, key.name, told.type, told.status, told.reason), 1)
        yield family

    def _collect_namespaces(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gnnserve_operator_namespace_watched",
            "1 for each namespace of the settings that is watched, 0 where the operator lacks rights.",
            labels=("namespace",),
        )
        for name, is_watched in sorted(self._namespaces().items()):
            family.add_metric((name,), is_watched)
        yield family

    def _collect_reverts(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "gnnserve_operator_reverts",
            "Changes of an object of the operator by others that were reverted. `kind` and `name`: GNNService or "
            "GNNWorkerPool that it belongs to; `object`: its own kind.",
            labels=("namespace", "kind", "name", "object"),
        )
        for (key, child), count in sorted(self._reverts().items()):
            family.add_metric((key.namespace, key.kind, key.name, child), count)
        yield family

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _CallbackCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()
