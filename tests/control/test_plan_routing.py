"""The slow loop within the plan: when it is asked, what it makes of a table, of conditions and of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.operator.observed import START, VARIANT_ROUTES, Namespace, make_settings
from tests.support.operator.samples import NOW_S, batches, offered

from gnnserve_api.generated.schema import crd
from gnnserve_api.pods.routing import RoutingMode
from gnnserve_api.status.reasons import Reason
from gnnserve_operator.fleet import IDLE
from gnnserve_operator.plan import Plan, ServiceIdentity, plan_for_invalid
from gnnserve_routing.costs import capacity_seeds_per_s
from gnnserve_routing.signals import QueryAnswer, Series, Silence

PROMETHEUS = make_settings(prometheusUrl="http://prometheus:9090")
OBJECTIVE = {"latencyMs": 88}
CAPACITY = {route.name: capacity_seeds_per_s(route.profiled, 88, 1000) for route in VARIANT_ROUTES}
CONDITIONS = ("MetricsAvailable", "ObjectiveMet", "CapacitySufficient")
HIGH = 1.1 * CAPACITY["x2"]
"""Too much for all but x4."""


def serving(settings: Any = PROMETHEUS, **spec: Any) -> Namespace:
    defaults = {"objective": OBJECTIVE, "worker": {"batching": {"maxSeeds": 1000}}}
    namespace = Namespace(settings=settings, **{**defaults, **spec})
    namespace.serve()
    return namespace


def answer(namespace: Namespace, seeds_per_s: float, also: Iterable[Series] = ()) -> QueryAnswer:
    """Of all workers alike."""
    points = [(at_s, 1e6 + seeds_per_s * (60 + at_s)) for at_s in (-30.0, -15.0, 0.0)]
    return QueryAnswer((*(offered(pod, *points) for pod in namespace.workers()), *also), NOW_S)


def later(measured: QueryAnswer, by_s: float) -> QueryAnswer:
    moved = [
        replace(one, samples=tuple(replace(sample, time_s=sample.time_s + by_s) for sample in one.samples))
        for one in measured.series
    ]
    return QueryAnswer(tuple(moved), measured.now_s + by_s)


def tick(namespace: Namespace, measured: float | QueryAnswer | Silence) -> Plan:
    """An interval later, what Prometheus says is decided by, done, and followed by the workers."""
    namespace.now += timedelta(seconds=15)
    said = answer(namespace, measured) if isinstance(measured, float | int) else measured
    namespace.measured = later(said, (namespace.now - START).total_seconds()) if isinstance(said, QueryAnswer) else said
    planned = namespace.reconcile()
    namespace.answer()
    return planned


def reasons(namespace: Namespace) -> list[str]:
    return [namespace.reason(kind) for kind in CONDITIONS]


# --- the question


def test_prometheus_is_asked_while_somebody_answers() -> None:
    namespace = Namespace(settings=PROMETHEUS, objective=OBJECTIVE)
    assert namespace.settle().question is None
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out(ready=False)
    assert namespace.settle().question is None
    namespace.serve()
    question = namespace.plan().question
    assert question is not None
    assert (question.url, question.interval_s) == ("http://prometheus:9090", 15)
    assert 'service="digits",namespace="shop"' in question.query
    namespace.edit(suspend=True)
    assert namespace.plan().question is None
    namespace.edit(suspend=None)
    namespace.deleting = True
    assert namespace.plan().question is None


def test_the_service_may_name_another_prometheus_and_interval() -> None:
    namespace = serving(routing={"prometheus": {"url": "https://metrics/team"}, "intervalSeconds": 5})
    question = namespace.plan().question
    assert question is not None
    assert (question.url, question.interval_s) == ("https://metrics/team", 5)
    assert serving(make_settings(prometheusUrl="http://p", prometheusNamespaceLabel="ns")).plan().question is not None


def test_the_label_of_the_namespace_is_a_setting() -> None:
    question = serving(make_settings(prometheusUrl="http://p", prometheusNamespaceLabel="kube_ns")).plan().question
    assert question is not None
    assert 'kube_ns="shop"' in question.query


# --- what is said before anything is measured


def test_without_a_prometheus_the_table_is_the_specs_own_and_the_condition_says_why() -> None:
    namespace = serving(make_settings())
    assert reasons(namespace) == ["False NotConfigured", "Unknown NotConfigured", "Unknown NotConfigured"]
    assert "prometheus.url" in namespace.condition("MetricsAvailable")["message"]
    assert namespace.table() == namespace.service.spec.routing_table("rev-1")
    assert namespace.plan().question is None


def test_while_nobody_answers_nothing_is_known() -> None:
    namespace = Namespace(settings=PROMETHEUS, objective=OBJECTIVE)
    namespace.settle()
    assert reasons(namespace) == ["Unknown NotServing"] * 3
    namespace.serve()
    assert reasons(namespace) == ["Unknown NotMeasured"] * 3
    namespace.edit(worker={"replicas": 0})
    namespace.settle()
    namespace.roll_out()
    namespace.settle()
    assert reasons(namespace) == ["Unknown NotServing"] * 3


def test_a_worker_of_an_older_version_tells_of_no_costs_and_is_left_as_it_is() -> None:
    namespace = serving()
    namespace.answer(variants=())
    namespace.measured = answer(namespace, HIGH)
    namespace.reconcile()
    assert reasons(namespace) == ["Unknown NotMeasured"] * 3
    assert namespace.table().base_variant is None


# --- deciding


def test_a_measured_load_becomes_a_base_variant_and_is_told_everywhere() -> None:
    namespace = serving()
    tick(namespace, 0)
    assert (namespace.table().base_variant, namespace.status["baseVariant"]) == ("x1", "x1")
    assert reasons(namespace) == ["True Measured", "Unknown NoTraffic", "True MostAccurate"]
    planned = tick(namespace, HIGH)
    assert (namespace.table().base_variant, namespace.status["baseVariant"]) == ("x4", "x4")
    assert namespace.reason("CapacitySufficient") == "True SteppedDown"
    (event,) = planned.events
    assert (event.type, event.reason) == ("Normal", "RoutingChanged")
    assert event.message.startswith("The base variant is x4 and no longer x1: 50,000 seeds/s are offered")
    assert namespace.reason() == "True Serving"


def test_between_two_answers_nothing_changes_and_nothing_is_written() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    before = namespace.table()
    for _ in range(5):
        planned = namespace.reconcile()
        assert (planned.status, planned.events) == (None, ())
    assert namespace.table() == before


def test_the_plan_is_the_same_when_it_is_made_again() -> None:
    namespace = serving()
    namespace.measured = answer(namespace, HIGH)
    assert namespace.plan() == namespace.plan()


def test_two_workers_carry_twice_as_much() -> None:
    namespace = serving(worker={"replicas": 2, "batching": {"maxSeeds": 1000}})
    tick(namespace, HIGH / 4)
    assert namespace.table().base_variant == "x1"


def test_the_load_of_pods_that_are_not_ready_is_nobodys() -> None:
    namespace = serving()
    stray = [offered("digits-worker-old", *[(at_s, 1e6 + HIGH * (60 + at_s)) for at_s in (-30.0, -15.0, 0.0)])]
    tick(namespace, answer(namespace, 10, stray))
    assert namespace.table().base_variant == "x1"


def test_slower_batches_correct_the_costs() -> None:
    namespace = serving()
    (pod,) = namespace.workers()
    for _ in range(2):
        tick(namespace, answer(namespace, 100, batches(pod, "x1", (-30, -15, 0), [(100, 0.024)] * 50)))
    table = namespace.table()
    assert table.costs["x1"].at(100) == pytest.approx(24)
    assert table.ttl_seconds == 75
    assert namespace.reason() == "True Serving"


def test_scale_out_tells_the_number_of_workers() -> None:
    namespace = serving()
    planned = tick(namespace, 2.9 * 0.85 * CAPACITY["x4"])
    assert namespace.reason("CapacitySufficient") == "False ScaleOut"
    assert planned.routed is not None
    assert planned.routed.wanted_workers == 3
    assert tick(namespace, 3.9 * 0.85 * CAPACITY["x4"]).status is None, "figures are metrics"


def test_a_worker_that_has_just_become_ready_is_not_put_at_the_others_mean() -> None:
    namespace = serving(worker={"replicas": 2, "batching": {"maxSeeds": 1000}})
    stamp = (START + timedelta(days=1)).isoformat()
    old, new = namespace.workers()
    namespace.pods[new]["status"]["conditions"][0]["lastTransitionTime"] = stamp
    points = [(at_s, 1e6 + 100 * (60 + at_s)) for at_s in (-30.0, -15.0, 0.0)]
    now_s = datetime.fromisoformat(stamp).timestamp() + 5
    namespace.measured = later(QueryAnswer((offered(old, *points),), NOW_S), now_s - NOW_S)
    planned = namespace.reconcile()
    assert planned.routed is not None
    assert planned.routed.offered_seeds_per_s == pytest.approx(100)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (QueryAnswer((), NOW_S), "NoData"),
        (QueryAnswer((offered("digits-worker-2", (-90, 0), (-75, 5)),), NOW_S), "Stale"),
        (Silence(Reason.UNREACHABLE, "http://prometheus:9090 takes no connection."), "Unreachable"),
        (Silence(Reason.INVALID, "Is this Prometheus?"), "Invalid"),
    ],
)
def test_when_prometheus_falls_silent_the_last_table_is_kept_and_it_is_said(measured: Any, reason: str) -> None:
    namespace = serving()
    tick(namespace, HIGH)
    before = namespace.table()
    for _ in range(3):
        tick(namespace, measured)
    assert namespace.table() == before
    assert reasons(namespace) == [f"False {reason}", "Unknown NotMeasured", "Unknown NotMeasured"]
    assert namespace.reason() == "True Serving", "workers go on by themselves"
    assert tick(namespace, measured).status is None, "and the status keeps still"
    tick(namespace, HIGH)
    assert reasons(namespace)[0] == "True Measured"
    assert namespace.table() == before


def test_one_question_without_an_answer_is_no_news() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    silence = Silence(Reason.UNREACHABLE, "http://prometheus:9090 takes no connection.")
    planned = tick(namespace, silence)
    assert planned.status is None
    assert planned.routed is not None
    assert planned.routed.wanted_workers == 1, "an autoscaler goes on"
    assert namespace.reconcile().status is None
    tick(namespace, silence)
    assert reasons(namespace)[0] == "False Unreachable"
    tick(namespace, HIGH)
    assert tick(namespace, silence).status is None


# --- the operator starts again


def test_a_restart_writes_nothing_and_goes_on_from_the_table() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    before = namespace.table()
    namespace.routed = None
    for _ in range(3):
        planned = namespace.reconcile()
        assert (planned.status, planned.events) == (None, ())
    assert namespace.table() == before
    tick(namespace, 0)
    assert namespace.table() == before, "the first quiet tick"
    tick(namespace, 0)
    assert namespace.table().base_variant == "x2", "one step, and not anew from the beginning"


def test_after_an_edit_by_hand_the_remembered_base_is_declared_again() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    before = namespace.table()
    namespace.get("ConfigMap")["data"]["routing.json"] = "{}"
    namespace.reconcile()
    assert namespace.table() == before


def test_a_prometheus_that_is_taken_away_leaves_the_specs_own_table() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    namespace.settings = make_settings()
    namespace.reconcile()
    assert namespace.table() == namespace.service.spec.routing_table("rev-1")
    assert reasons(namespace)[0] == "False NotConfigured"


def test_another_revision_begins_anew() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert namespace.table().base_variant == "x4", "of the old revision, which still answers"
    namespace.finish_job("rev-2")
    namespace.events.clear()
    namespace.settle()
    assert namespace.table() == namespace.service.spec.routing_table("rev-2")
    # Workers still answer from the old one, whose costs say nothing about the new one.
    namespace.measured = answer(namespace, HIGH)
    namespace.reconcile()
    assert namespace.table().base_variant is None
    namespace.answer()
    namespace.settle()
    assert [reason for _, reason in namespace.events] == ["RevisionPublished", "Ready"]
    tick(namespace, HIGH)
    assert namespace.table().base_variant == "x4"


# --- modes


def test_mode_metrics_declares_the_base_that_answers() -> None:
    namespace = serving(routing={"mode": "Metrics"})
    assert (namespace.table().mode, namespace.table().base_variant) == (RoutingMode.METRICS, None)
    tick(namespace, HIGH)
    assert namespace.table().base_variant == "x4"


def test_declared_modes_are_left_as_declared() -> None:
    for routing in ({"mode": "Static", "variant": "x2"}, {"mode": "Weights", "weights": {"x1": 9, "x4": 1}}):
        namespace = serving(routing=routing)
        for _ in range(3):
            tick(namespace, HIGH)
        assert namespace.table() == namespace.service.spec.routing_table("rev-1")
        assert namespace.reason("MetricsAvailable") == "True Measured"
        assert namespace.reason("CapacitySufficient") == "False ScaleOut"


def test_ready_waits_until_workers_have_taken_on_another_mode() -> None:
    namespace = serving()
    namespace.edit(routing={"mode": "Metrics"})
    namespace.settle()
    assert namespace.reason() == "False RevisionSwitching"
    assert "spec.routing.mode" in namespace.condition("Ready")["message"]
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_ready_waits_until_workers_answer_with_another_static_variant() -> None:
    namespace = serving(routing={"mode": "Static", "variant": "x2"})
    namespace.edit(routing={"mode": "Static", "variant": "x4"})
    namespace.settle()
    assert "spec.routing.variant" in namespace.condition("Ready")["message"]
    namespace.answer()
    namespace.settle()
    assert (namespace.reason(), namespace.status["baseVariant"]) == ("True Serving", "x4")
    namespace.answer(allowed_variants=("x1",), base_variant="x1")
    namespace.settle()
    assert namespace.reason() == "True Serving", "the tolerance excludes it"


@pytest.mark.parametrize(
    "routing", [{"mode": "Static", "variant": "x3"}, {"mode": "Weights", "weights": {"x1": 1, "x3": 0}}]
)
def test_a_variant_that_the_revision_lacks_is_named_and_the_old_table_stays(routing: dict[str, Any]) -> None:
    namespace = serving()
    tick(namespace, HIGH)
    before = namespace.table()
    namespace.edit(routing=routing)
    planned = namespace.settle()
    assert namespace.table() == before
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False VariantUnknown", "True VariantUnknown")
    message = namespace.condition("Ready")["message"]
    assert "spec.routing names x3, but revision rev-1 has x1 x2 x4." in message
    assert (planned.question, reasons(namespace)) == (None, ["Unknown VariantUnknown"] * 3)
    namespace.edit(routing={"mode": "Static", "variant": "x2"})
    namespace.settle()
    assert namespace.table().base_variant == "x2"
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_a_variant_that_is_still_being_generated_is_waited_for() -> None:
    namespace = serving()
    before = namespace.table()
    namespace.edit(routing={"mode": "Static", "variant": "x3"}, variants={"pruning": {"factors": [1, 3]}})
    namespace.settle()
    assert (namespace.reason(), namespace.table()) == ("False Generating", before)
    assert namespace.reason("Stalled").startswith("False")


def test_a_new_service_with_a_variant_that_cannot_be_says_so_before_anything_is_trained() -> None:
    namespace = Namespace(settings=PROMETHEUS, routing={"mode": "Static", "variant": "x3"})
    planned = namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False VariantUnknown", "True VariantUnknown")
    message = namespace.condition("Ready")["message"]
    assert message.startswith("spec.routing names x3, which spec.variants does not generate. Name some of x1 x2 x4 ")
    assert namespace.kinds().isdisjoint({"Job", "ConfigMap", "Deployment"})
    assert planned.standings.generation == IDLE, "others may train meanwhile"
    namespace.edit(routing={"mode": "Static", "variant": "x4"})
    namespace.serve()
    assert namespace.table().base_variant == "x4"


def test_a_model_is_not_trained_again_for_a_variant_that_cannot_be() -> None:
    namespace = serving(routing={"mode": "Static", "variant": "x4"})
    namespace.edit(variants={"pruning": {"factors": [1, 2]}})
    namespace.settle()
    assert namespace.reason("Stalled") == "True VariantUnknown"
    assert "no Job is started" in namespace.condition("Stalled")["message"]
    assert namespace.table().base_variant == "x4", "the old revision answers"


def test_a_variant_that_cannot_follow_changes_is_not_routed_to() -> None:
    namespace = Namespace(
        settings=PROMETHEUS,
        variants={"stored": [1, 2]},
        routing={"mode": "Static", "variant": "stored2"},
        updates={"log": {"sqlite": {}}},
    )
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False VariantUnknown", "True VariantUnknown")
    message = namespace.condition("Ready")["message"]
    assert message.startswith("spec.routing names stored2, which cannot follow changes of the graph. Name some of x1 ")
    assert namespace.kinds().isdisjoint({"Job", "ConfigMap", "Deployment"})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"embeddings": {"variant": "x3"}}, "variant x3 is none that spec.variants generates; name one of x1, x2, x4"),
        ({"embeddings": {"variant": "mlp0"}, "variants": {"oneRow": [{"hops": 0}]}}, "variant mlp0 gives no embedding"),
    ],
)
def test_embeddings_that_cannot_be_are_told_before_anything_is_trained(spec: dict[str, Any], words: str) -> None:
    namespace = Namespace(**spec)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False VariantUnknown", "True VariantUnknown")
    assert namespace.condition("Ready")["message"].startswith(f"spec.embeddings: {words}")
    assert namespace.kinds().isdisjoint({"Job", "ConfigMap", "Deployment"})


def test_embeddings_that_cannot_be_do_not_withdraw_a_revision_that_answers() -> None:
    namespace = serving()
    namespace.edit(embeddings={"variant": "x3"})
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_a_variant_that_may_be_left_out_is_known_after_training_only() -> None:
    namespace = Namespace(settings=PROMETHEUS, routing={"mode": "Static", "variant": "projected"})
    namespace.settle()
    assert namespace.reason() == "False Generating"
    namespace.finish_job()
    namespace.settle()
    assert namespace.reason("Stalled") == "True VariantUnknown"
    assert namespace.kinds().isdisjoint({"ConfigMap", "Deployment"})
    namespace.edit(routing={"mode": "Static", "variant": "x4"})
    namespace.serve()
    assert namespace.table().base_variant == "x4"


def test_measurements_that_are_lost_and_back_are_told_once_each() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    namespace.events.clear()
    for reason in (Reason.UNREACHABLE, Reason.UNREACHABLE, Reason.INVALID, Reason.INVALID, Reason.UNREACHABLE):
        tick(namespace, Silence(reason, "Prometheus does not tell."))
    assert [event for event in namespace.events if "Metrics" in event[1]] == [("Warning", "MetricsUnavailable")]
    for _ in range(3):
        tick(namespace, HIGH)
    told = [event for event in namespace.events if "Metrics" in event[1]]
    assert told == [("Warning", "MetricsUnavailable"), ("Normal", "MetricsAvailable")]


def test_measurements_that_are_lost_while_no_worker_was_ready_are_told_once_too() -> None:
    """Meanwhile they are not known."""
    namespace = serving()
    tick(namespace, HIGH)
    namespace.events.clear()
    unreachable = Silence(Reason.UNREACHABLE, "Prometheus does not tell.")
    for _ in range(2):
        for pod in namespace.workers().values():
            pod["status"]["conditions"] = []
        tick(namespace, unreachable)
        assert namespace.reason("MetricsAvailable") == "Unknown NotServing"
        namespace.make_ready()
        for _ in range(3):
            tick(namespace, unreachable)
        assert namespace.reason("MetricsAvailable") == "False Unreachable"
    assert [event for event in namespace.events if "Metrics" in event[1]] == [("Warning", "MetricsUnavailable")]
    for pod in namespace.workers().values():
        pod["status"]["conditions"] = []
    tick(namespace, HIGH)
    namespace.make_ready()
    tick(namespace, HIGH)
    tick(namespace, HIGH)
    told = [event for event in namespace.events if "Metrics" in event[1]]
    assert told == [("Warning", "MetricsUnavailable"), ("Normal", "MetricsAvailable")]


def test_a_spec_that_cannot_be_read_measures_nothing() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    identity = ServiceIdentity("uid", 2, False, namespace.status)
    planned = plan_for_invalid(identity, "spec.quantum is not known", namespace.observed(), namespace.now)
    assert planned.status is not None
    said = {c["type"]: (c["status"], c["reason"]) for c in planned.status["conditions"]}
    assert {said[kind] for kind in CONDITIONS} == {("Unknown", "InvalidSpec")}
    assert planned.question is None
    told = replace(identity, status=planned.status)
    again = plan_for_invalid(told, "spec.quantum is not known", namespace.observed(), namespace.now)
    assert again.status is None


def test_status_says_which_variant_and_why_in_kubectl_get() -> None:
    (version,) = crd()["spec"]["versions"]
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    assert columns["Base"] == ".status.baseVariant"
    assert columns["Load"] == '.status.conditions[?(@.type=="CapacitySufficient")].reason'


def test_a_routed_table_is_read_back_as_it_was_written() -> None:
    namespace = serving()
    tick(namespace, HIGH)
    observed = namespace.observed().routing
    assert observed is not None
    assert observed.table == namespace.table()
    assert msgspec.structs.asdict(namespace.table())["issued_at"].endswith("Z")
