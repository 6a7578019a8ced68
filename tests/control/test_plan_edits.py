"""Every edit of a spec does the least that it needs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.support.operator.observed import Namespace, make_settings


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


LEAST: list[tuple[str, dict[str, Any], set[str]]] = [
    # what is edited, how, and which live objects differ afterwards
    ("an objective reaches the table alone", {"objective": {"latencyMs": 5}}, {"ConfigMap"}),
    (
        "batching reaches the table alone",
        {"worker": {"batching": {"maxSeeds": 64, "maxQueuedSeeds": 640}}},
        {"ConfigMap"},
    ),
    (
        "limits of overlays reach the table alone",
        {"endpoint": {"overlay": {"maxNodes": 0}}},
        {"ConfigMap"},
    ),
    ("replicas scale the Deployment", {"worker": {"replicas": 3}}, {"Deployment"}),
    ("an image rolls the workers and trains nothing", {"image": "gnnserve/worker:2"}, {"Deployment"}),
    ("worker resources roll the workers", {"worker": {"resources": {"limits": {"cpu": 2}}}}, {"Deployment"}),
    ("a GPU rolls the workers and trains nothing", {"worker": {"gpu": {}}}, {"Deployment"}),
    ("generation resources wait for the next Job", {"generation": {"resources": {"limits": {"cpu": 2}}}}, set()),
    ("retries wait for the next Job", {"generation": {"retries": 5}}, set()),
    (
        "a graph volume waits for the next Job",
        {"graph": {"source": {"builtin": "Digits"}, "volume": {"claimName": "graphs"}}},
        set(),
    ),
    ("the order of factors changes nothing", {"variants": {"pruning": {"factors": [8, 4, 2, 1]}}}, set()),
    ("a larger claim is one field", {"repository": {"claim": {"storage": "20Gi"}}}, {"PersistentVolumeClaim"}),
    ("suspending scales the Deployment", {"suspend": True}, {"Deployment"}),
]


@pytest.mark.parametrize(("edit", "changed"), [case[1:] for case in LEAST], ids=[case[0] for case in LEAST])
def test_an_edit_touches_only_what_it_concerns(edit: dict[str, Any], changed: set[str]) -> None:
    namespace = serving()
    before = _without_generation(namespace)
    namespace.edit(**edit)
    namespace.settle()
    after = _without_generation(namespace)
    assert before.keys() == after.keys()
    assert {kind for kind, name in after if before[kind, name] != after[kind, name]} == changed


def _without_generation(namespace: Namespace) -> dict[tuple[str, str], Any]:
    objects = copy.deepcopy(namespace.objects)
    for raw in objects.values():
        raw["metadata"].pop("generation")
    return objects


NEVER_RESTART: list[tuple[str, dict[str, Any]]] = [
    ("objective", {"objective": {"latencyMs": 5, "accuracyTolerancePermille": 10}}),
    ("batching", {"worker": {"batching": {"maxSeeds": 64, "maxQueuedSeeds": 640}}}),
    ("overlays", {"endpoint": {"overlay": {"maxNodes": 7, "maxEdges": 70}}}),
    ("replicas", {"worker": {"replicas": 7}}),
    ("model", {"model": {"hidden": 64}}),
    ("variants", {"variants": {"pruning": {"factors": [1, 3]}}}),
    ("graph", {"graph": {"source": {"npz": {"uri": "file:///data/a.npz"}}, "volume": {"claimName": "graphs"}}}),
    ("suspend", {"suspend": True}),
    ("generation", {"generation": {"gpu": {}}}),
]


@pytest.mark.parametrize("edit", [case[1] for case in NEVER_RESTART], ids=[case[0] for case in NEVER_RESTART])
def test_the_worker_template_stays_as_it_is(edit: dict[str, Any]) -> None:
    namespace = serving()
    before = copy.deepcopy(namespace.get("Deployment")["spec"]["template"])
    namespace.edit(**edit)
    namespace.settle()
    assert namespace.get("Deployment")["spec"]["template"] == before
    if namespace.jobs() and namespace.reason() == "False Generating":
        namespace.finish_job("rev-2")
        namespace.settle()
        assert namespace.table().revision == "rev-2"
        assert namespace.get("Deployment")["spec"]["template"] == before


def test_the_first_revision_comes_before_workers() -> None:
    namespace = Namespace()
    planned = namespace.settle()
    assert not {"Deployment", "PodDisruptionBudget", "ConfigMap"} & namespace.kinds()
    assert namespace.reason() == "False Generating"
    assert namespace.reason("WorkersAvailable") == "False WaitingForRevision"
    assert planned.look_again_s is not None
    assert namespace.status["workers"]["ready"] == "0/1"
    namespace.finish_job()
    namespace.settle()
    assert {"Deployment", "PodDisruptionBudget", "ConfigMap"} <= namespace.kinds()
    assert namespace.reason("VariantsGenerated") == "True Published"
    assert namespace.status["variantNames"] == "x1 x2 x4"


def test_a_new_model_trains_while_the_old_revision_answers() -> None:
    namespace = serving()
    old_recipe, old_jobs = namespace.recipe, namespace.jobs()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert "Until then revision rev-1 keeps answering." in namespace.condition("Ready")["message"]
    assert namespace.reason("WorkersAvailable") == "True WorkersReady"
    assert namespace.reason("VariantsGenerated") == "False Generating"
    assert namespace.reason("Reconciling") == "True Generating"
    assert (namespace.table().revision, namespace.table().recipe) == ("rev-1", old_recipe)
    assert namespace.status["revision"] == "rev-1"
    assert namespace.jobs()[0] == old_jobs[0], "the old Job is the second witness of what is published"

    namespace.finish_job("rev-2")
    namespace.reconcile()
    assert old_jobs[0] not in namespace.jobs()
    assert (namespace.table().revision, namespace.table().recipe) == ("rev-2", namespace.recipe)
    assert namespace.reason() == "False RevisionSwitching"
    assert "answers from revision rev-1 and is to load rev-2" in namespace.condition("Ready")["message"]
    assert namespace.plan().look_again_s == 1.0
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.events[-2:] == [("Normal", "RevisionPublished"), ("Normal", "Ready")]


def test_objective_and_batching_reach_the_old_revision_while_a_new_one_is_generated() -> None:
    namespace = serving()
    old_recipe = namespace.recipe
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.edit(objective={"latencyMs": 3}, worker={"batching": {"maxSeeds": 8, "maxQueuedSeeds": 80}})
    namespace.settle()
    table = namespace.table()
    assert (table.revision, table.recipe) == ("rev-1", old_recipe)
    assert (table.objective.latency_ms, table.batching.max_seeds) == (3, 8)


def test_a_spec_that_goes_back_to_the_published_recipe_needs_no_job() -> None:
    namespace = serving()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.edit(model=None)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert [raw["status"]["conditions"][0]["type"] for raw in namespace.objects.values() if raw["kind"] == "Job"] == [
        "Complete"
    ]


def test_an_edit_while_the_job_runs_makes_another_job_of_it() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    (first,) = namespace.jobs()
    namespace.edit(model={"hidden": 64})
    planned = namespace.reconcile()
    assert [(ref.kind, ref.name) for ref in planned.delete] == [("Job", first)]
    assert [name != first for name in namespace.jobs()] == [True]
    assert namespace.condition("Ready")["observedGeneration"] == 2


def test_an_objective_edited_while_the_job_runs_leaves_it_alone() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    before = copy.deepcopy(namespace.get("Job"))
    namespace.edit(objective={"latencyMs": 5})
    planned = namespace.settle()
    assert not planned.delete
    assert namespace.get("Job") == before


def test_suspending_keeps_the_data_and_resuming_goes_on() -> None:
    namespace = serving(worker={"replicas": 2})
    namespace.edit(suspend=True)
    namespace.reconcile()
    assert namespace.get("Deployment")["spec"]["replicas"] == 0
    assert namespace.reason() == "False Suspended"
    assert namespace.reason("Reconciling") == "True Suspended", "pods are still there"
    namespace.roll_out()
    namespace.answer()
    assert namespace.settle().look_again_s is None
    assert namespace.reason("Reconciling") == "False Settled"
    assert namespace.reason("Stalled") == "False Settled"
    assert namespace.reason("VariantsGenerated") == "True Published"
    assert {"PersistentVolumeClaim", "ConfigMap", "Service", "Deployment"} <= namespace.kinds()
    namespace.edit(suspend=None)
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.events == [
        ("Normal", "GenerationStarted"),
        ("Normal", "RevisionPublished"),
        ("Normal", "Available"),
        ("Normal", "Ready"),
        ("Normal", "Suspended"),
        ("Normal", "Resumed"),
        ("Normal", "Available"),
        ("Normal", "Ready"),
    ]


def test_suspending_stops_the_job_and_resuming_starts_it_again() -> None:
    namespace = Namespace()
    namespace.settle()
    (name,) = namespace.jobs()
    namespace.edit(suspend=True)
    namespace.settle()
    assert namespace.get("Job")["spec"]["suspend"] is True
    assert namespace.reason("VariantsGenerated") == "False Suspended"
    assert namespace.reason("Reconciling") == "False Settled"
    namespace.edit(suspend=False)
    namespace.settle()
    assert namespace.jobs() == [name]
    assert namespace.get("Job")["spec"]["suspend"] is False


def test_a_service_that_begins_suspended_starts_nothing() -> None:
    namespace = Namespace(suspend=True)
    assert namespace.settle().look_again_s is None
    assert not {"Job", "Deployment"} & namespace.kinds()
    assert namespace.reason() == "False Suspended"


def test_a_job_of_another_template_is_not_kept_over_a_suspension() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    namespace.edit(suspend=True, image="gnnserve/worker:2")
    namespace.settle()
    assert namespace.jobs() == []
    namespace.edit(suspend=False)
    namespace.settle()
    assert len(namespace.jobs()) == 1


def test_no_replicas_are_at_rest_and_not_ready() -> None:
    namespace = serving()
    namespace.edit(worker={"replicas": 0})
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    assert namespace.settle().look_again_s is None
    assert namespace.reason() == "False ScaledToZero"
    assert namespace.reason("Reconciling") == "False Settled"
    assert namespace.status["workers"]["ready"] == "0/0"


def test_settings_that_turn_network_policies_off_take_them_away() -> None:
    namespace = serving()
    assert "NetworkPolicy" in namespace.kinds()
    namespace.settings = make_settings(networkPolicy=False)
    namespace.settle()
    assert "NetworkPolicy" not in namespace.kinds()


def test_a_pod_monitor_is_made_where_that_api_exists() -> None:
    namespace = serving()
    assert "PodMonitor" not in namespace.kinds()
    namespace.pod_monitor_available = True
    namespace.settle()
    assert "PodMonitor" in namespace.kinds()


def test_a_deleted_service_is_left_to_garbage_collection() -> None:
    namespace = serving()
    namespace.deleting = True
    namespace.objects.clear()
    planned = namespace.plan()
    assert (planned.apply, planned.delete, planned.status, planned.events) == ((), (), None, ())


CHILDREN = [
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "Service",
    "ConfigMap",
    "Deployment",
    "PodDisruptionBudget",
]


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_deleted_by_hand_comes_back_the_same(kind: str) -> None:
    namespace = serving()
    before = {key: copy.deepcopy(raw) for key, raw in namespace.objects.items() if key[0] == kind}
    for key in before:
        del namespace.objects[key]
    namespace.settle()
    for key, raw in before.items():
        back = namespace.objects[key]
        assert (back.get("spec"), back.get("data"), back.get("rules")) == (
            raw.get("spec"), raw.get("data"), raw.get("rules"),
        )  # fmt: skip
    assert len(namespace.jobs()) == 1, "nothing is generated again"


def test_planning_again_plans_the_same_and_no_status() -> None:
    namespace = serving(worker={"replicas": 2})
    first, second = namespace.plan(), namespace.plan()
    assert first == second
    assert (first.status, first.events, first.delete, first.look_again_s) == (None, (), (), None)
    for manifest in first.apply:
        live = namespace.objects[manifest["kind"], manifest["metadata"]["name"]]
        assert live.get("spec") == manifest.get("spec")
        assert live.get("data") == manifest.get("data")
