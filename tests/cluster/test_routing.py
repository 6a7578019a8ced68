"""Routing with a real Prometheus: each mode by real requests, and what happens when nothing is measured.

One service and one Prometheus for all of it; the tests run in the order of their life. Intervals are a second, so that
what takes half a minute in production is over in two.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.load.communities import Communities, make
from tests.cluster.harness.client import Cluster, Namespace, wait_for
from tests.cluster.harness.installation import RELEASE, SYSTEM_NAMESPACE, Installation
from tests.cluster.harness.load import OpenLoad
from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.services import Service
from tests.support.kubernetes.dashboards import expressions
from tests.support.lacks import lacks_own_node

GRAPH = Communities(nodes=4_000, links=100_000, features=2048, classes=4, train=1_000, validation=500, test=500)
ACCURATE, FAST = "x1", "x32"
SPEC: Mapping[str, Any] = {
    "graph": {"source": {"npz": {"uri": "file:///data/graph.npz"}}, "volume": {"claimName": "graphs"}},
    "model": {"hidden": 16, "fanouts": [10, 10], "training": {"epochs": 2, "batchSize": 256}},
    "variants": {"pruning": {"factors": [1, 32]}, "projection": "Disabled"},
    "objective": {"latencyMs": 500},
    # Small batches, so that less is carried: the load on top of it has to come from this machine too.
    "worker": {"batching": {"maxSeeds": 64}},
}
SCRAPE_S = 1.0
SEEDS_EACH = 256


@pytest.fixture(scope="module")
def service(cluster: Cluster, operator: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    if cluster.node is None:
        lacks_own_node("about a Prometheus and a graph of this machine")
    folder = tmp_path_factory.mktemp("graphs")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    write_graph(folder / "graph.npz")
    namespace = cluster.create_workspace(f"routing-{uuid.uuid4().hex[:4]}")
    namespace.bind_folder("graphs", folder)
    yield Service(namespace, "routed")
    namespace.delete()


@pytest.fixture(scope="module")
def prometheus(service: Service) -> Prometheus:
    return Prometheus(service.namespace, f"{RELEASE}.{SYSTEM_NAMESPACE}.svc:8080", SCRAPE_S)


@pytest.fixture
def namespace(service: Service) -> Namespace:
    """For the diagnosis of a failed test."""
    return service.namespace


def write_graph(path: Path) -> None:
    np.savez(path, **make(GRAPH))
    path.chmod(0o644)


def route_by(service: Service, **routing: Any) -> None:
    """Another mode, once the worker follows it."""
    absent = {"variant": None, "weights": None}
    service.patch({"routing": {**absent, **routing}})
    wait_for(f"the worker to route by {routing}", lambda: service.route()["mode"] == routing["mode"])
    service.wait_until_ready()


def wait_for_base(service: Service, variant: str) -> None:
    wait_for(f"{variant} to be the base variant", lambda: service.route()["baseVariant"] == variant)


def answerers(service: Service, count: int) -> Counter[str]:
    """Of so many requests, one after the other."""
    return Counter(service.predict(number)["variant"] for number in range(count))


def answered_by(service: Service) -> str | None:
    status, answer = service.ask("POST", "/v1/predict", {"nodes": [1]})
    assert status in {200, 429}, answer
    return str(answer["variant"]) if status == 200 else None


def capacities(prometheus: Prometheus) -> tuple[float, float]:
    """Seeds/s that the accurate variant carries, and those that the fast one does, by what the operator measured."""

    def capacity(variant: str) -> float | None:
        return prometheus.value(f'gnnserve_operator_routing_capacity_seeds_per_second{{variant="{variant}"}}')

    accurate, fast = (
        wait_for(f"the capacity of {variant}", lambda variant=variant: capacity(variant))
        for variant in (ACCURATE, FAST)
    )
    return accurate, fast


def too_much_for_the_accurate(prometheus: Prometheus) -> float:
    """Seeds/s that the fast variant carries and the accurate one does not."""
    accurate, fast = capacities(prometheus)
    assert fast > 3 * accurate, "too near to each other for a test on a busy machine"
    return 0.85 * (accurate * fast) ** 0.5


def table(service: Service) -> str:
    """The routing table, and every write to it."""
    found = service.namespace.get("configmap/routed-routing")
    return str(found["metadata"]["resourceVersion"])


def test_a_service_without_a_prometheus_says_so_and_answers(service: Service, prometheus: Prometheus) -> None:
    service.apply(SPEC)
    prometheus.install()
    service.wait_until_ready()
    route = service.route()
    assert (route["mode"], route["baseVariant"], route["isExpired"]) == ("Adaptive", ACCURATE, False)
    assert [variant["name"] for variant in route["variants"]] == [ACCURATE, FAST]
    service.wait_for("MetricsAvailable", "NotConfigured", "False")
    assert answerers(service, 3).total() == 3


def test_adaptive_answers_by_what_the_worker_sees_and_the_operator_tells_what_it_measures(
    service: Service, prometheus: Prometheus
) -> None:
    service.patch({"routing": {"mode": "Adaptive", "intervalSeconds": 1, "prometheus": {"url": prometheus.url}}})
    with OpenLoad(service, seeds_per_s=2_000, seeds_each=SEEDS_EACH):
        service.wait_for("MetricsAvailable", "Measured")
        service.wait_for("ObjectiveMet", "ObjectiveMet")
        service.wait_for("CapacitySufficient", "MostAccurate")
        wait_for("the operator's own series", lambda: prometheus.value("gnnserve_operator_objective_attained_ratio"))
    (told,) = prometheus.query("gnnserve_operator_objective_attained_ratio")
    # The service's own namespace, not the operator's.
    assert (told["metric"]["namespace"], told["metric"]["service"]) == (str(service.namespace), "routed")
    (scraped,) = wait_for("the worker's series", lambda: prometheus.query("gnnserve_routing_info"))
    (pod,) = service.worker_pod_names()
    assert scraped["metric"].items() >= {
        ("pod", pod), ("namespace", str(service.namespace)), ("mode", "Adaptive"), ("base_variant", ACCURATE)
    }  # fmt: skip


def test_metrics_steps_down_under_load_and_back_when_it_is_over(service: Service, prometheus: Prometheus) -> None:
    route_by(service, mode="Metrics")
    wait_for_base(service, ACCURATE)
    assert answerers(service, 5) == {ACCURATE: 5}
    with OpenLoad(service, too_much_for_the_accurate(prometheus), SEEDS_EACH):
        wait_for_base(service, FAST)
        # Until what waited is done, some are refused.
        assert wait_for("an answer", lambda: answered_by(service)) == FAST
        service.wait_for("CapacitySufficient", "SteppedDown", timeout_s=60)
    assert FAST in service.route()["reason"]
    wait_for_base(service, ACCURATE)
    assert answerers(service, 5) == {ACCURATE: 5}
    assert "RoutingChanged" in {event["reason"] for event in service.events()}
    changes = wait_for("both changes", lambda: prometheus.value("gnnserve_operator_routing_changes_total >= 2"))
    assert changes == 2


def test_without_prometheus_the_table_stays_and_requests_are_answered(
    service: Service, prometheus: Prometheus, operator: Installation
) -> None:
    with OpenLoad(service, too_much_for_the_accurate(prometheus), SEEDS_EACH):
        wait_for_base(service, FAST)
        prometheus.kill()
        service.wait_for("MetricsAvailable", "Unreachable", "False")
        before = table(service)
    # The load is gone, and nobody tells the operator: not even one that has just started.
    operator.scale(0)
    assert answerers(service, 5) == {FAST: 5}
    operator.scale(1)
    service.wait_for("MetricsAvailable", "Unreachable", "False")
    assert (service.route()["baseVariant"], answerers(service, 5)) == (FAST, {FAST: 5})
    assert table(service) == before
    prometheus.start()
    service.wait_for("MetricsAvailable", "Measured")
    wait_for_base(service, ACCURATE)


def test_weights_split_the_requests(service: Service) -> None:
    route_by(service, mode="Weights", weights={ACCURATE: 3, FAST: 1})
    answered = answerers(service, 40)
    assert abs(answered[FAST] - 10) <= 2, answered
    assert answered.total() == 40


def test_static_is_one_variant_whatever_the_load(service: Service, prometheus: Prometheus) -> None:
    route_by(service, mode="Static", variant=FAST)
    wait_for_base(service, FAST)
    assert answerers(service, 5) == {FAST: 5}
    route_by(service, mode="Static", variant=ACCURATE)
    wait_for_base(service, ACCURATE)
    # Far beyond the accurate one, also where the machine is faster by now than it was when that was measured. The lone
    # requests of just now tell only of small batches, which may be so cheap that it seems the faster of both meanwhile.
    with OpenLoad(service, max(capacities(prometheus)), SEEDS_EACH):
        service.wait_for("CapacitySufficient", "ScaleOut", "False", timeout_s=60)
        # Some are refused; those that are answered are answered by that variant.
        assert wait_for("an answer", lambda: answered_by(service)) == ACCURATE


def test_a_variant_that_there_is_not_is_named_and_the_last_table_stays(service: Service) -> None:
    service.patch({"routing": {"variant": "x3"}})
    said = service.wait_for("Stalled", "VariantUnknown")
    assert "x3" in said
    assert answerers(service, 3) == {ACCURATE: 3}
    route_by(service, mode="Adaptive")


def test_every_rule_and_every_panel_of_the_dashboard_is_answered(service: Service, prometheus: Prometheus) -> None:
    """By this Prometheus, which loads the rules as they are, about this service, which has had all kinds of load."""

    def evaluated() -> bool:
        return all(rule["health"] == "ok" for rule in prometheus.rules())

    wait_for("every rule to be evaluated", evaluated)
    with OpenLoad(service, 2_000, SEEDS_EACH):
        for parameter in expressions():
            expression = (
                str(parameter.values[0])
                .replace("$namespace", str(service.namespace))
                .replace("$service", "routed")
                .replace("$__rate_interval", "1m")
            )
            # Annotations are drawn where their series changes, and it need not just now.
            expression = expression.removesuffix(" > 0")
            # Alerts do not fire; nothing is said of GPUs where none computes, of programs where the model is
            # none, of changes where the graph has none, nor of a tolerance where the objective has none.
            unsaid = r"gnnserve_(gpu|program|cache|link|log|applied|changes|stale|staleness|rows|objective_tolerance)_"
            if "Gnnserve" not in str(parameter.id) and not re.search(unsaid, expression):
                wait_for(f"{parameter.id}: {expression}", lambda asked=expression: prometheus.query(asked), 30)
