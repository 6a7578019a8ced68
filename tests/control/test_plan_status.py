"""The status is true: what Ready needs, what conditions say meanwhile, when their times change, which events tell."""

from __future__ import annotations

import copy
import re
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.support.campaigns import examples
from tests.support.operator.observed import START, UID, Namespace, make_result, make_route, make_service, make_settings

from gnnserve_api.limits import OverlayLimits
from gnnserve_api.pods.generation import encode_message
from gnnserve_api.pods.routing import Route
from gnnserve_api.spec.service import GNNService
from gnnserve_api.status.service_status import ConditionType, GNNServiceStatus
from gnnserve_api.variants import MAX_VARIANT_NAME, MAX_VARIANTS
from gnnserve_operator.decide.status import condition_in
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.metadata import Conflict, Parent, digest_of
from gnnserve_operator.kinds import ObjectRef, observed_ref
from gnnserve_operator.observed import (
    ContainerWaiting,
    ObservedDeployment,
    ObservedJob,
    ObservedPod,
    ObservedRouting,
    ObservedState,
    Rejection,
    Termination,
    WorkerAnswer,
)
from gnnserve_operator.plan import ServiceIdentity, plan, plan_for_invalid

SETTINGS = make_settings()
OPTIONAL = {
    ConditionType.CREDENTIALS_VALID,
    ConditionType.ACCURACY_HOLDS,
    ConditionType.UPDATES_FOLLOWED,
    ConditionType.EMBEDDINGS_PUBLISHED,
    ConditionType.CANARY_ANSWERS,
    ConditionType.PROGRAM_HEALTHY,
    ConditionType.REPLICAS_UNCONTESTED,
}
CONDITIONS = [kind.value for kind in ConditionType if kind not in OPTIONAL]
"""Of a service whose spec names no Secret, no updates and no embeddings."""


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


# --- Ready is never true by mistake

SERVICES = [
    make_service(),
    make_service(worker={"replicas": 2}, objective={"latencyMs": 5}),
    make_service(worker={"replicas": 0}),
    make_service(suspend=True),
    make_service(model={"hidden": 64}),
]
NAMES = ("a", "b", "c")


@st.composite
def sightings(draw: st.DrawFn) -> tuple[GNNService, ObservedState]:
    """Mostly close to ready, so that what is missing is one thing and not ten."""
    service = draw(st.sampled_from(SERVICES))
    rarely = st.integers(0, 9).map(lambda n: n == 0)
    recipe = service.spec.recipe() if not draw(rarely) else "0123456789abcdef"
    result = make_result(recipe)
    declared = service.spec.routing_table(result.revision)
    routes = st.sampled_from(
        [make_route(declared)] * 12
        + [
            make_route(declared, revision="rev-0"),
            make_route(declared, problem="revision rev-1 cannot be loaded: altered"),
            msgspec.structs.replace(make_route(declared), objective=SERVICES[1].spec.objective.to_objective()),
            msgspec.structs.replace(
                make_route(declared), batching=msgspec.convert({"maxSeeds": 1}, type(declared.batching))
            ),
            make_route(declared, overlay=OverlayLimits(max_nodes=0)),
        ]
    )
    mounted = MountedClaim("digits-repository")
    template = digest_of(build_worker_template(Parent("digits", "shop", UID), service.spec, SETTINGS, mounted))
    pods = tuple(
        ObservedPod(
            name,
            "worker",
            phase="Running",
            ip="10.0.0.1",
            ready=not draw(rarely),
            deleting=draw(rarely),
            running=True,
            waiting=draw(st.sampled_from([None] * 9 + [ContainerWaiting("ImagePullBackOff")])),
            last_terminated=draw(st.sampled_from([None] * 9 + [Termination(3, "Error", "altered")])),
        )
        for name in NAMES[: draw(st.integers(0, 3))]
    )
    refs = st.sampled_from(
        [
            ObjectRef("v1", "Service", "shop", "digits"),
            ObjectRef("apps/v1", "Deployment", "shop", "digits-worker"),
            ObjectRef("v1", "ConfigMap", "shop", "digits-routing"),
        ]
    )
    job = ObservedJob("digits-generate-00000000", recipe, succeeded=draw(st.booleans()), failed=draw(rarely))
    observed = ObservedState(
        routing=None if draw(rarely) else ObservedRouting(msgspec.structs.replace(declared, recipe=recipe), result),
        jobs=(job,) if draw(st.booleans()) else (),
        deployment=None
        if draw(rarely)
        else ObservedDeployment(
            replicas=service.spec.worker.replicas,
            template_digest=template if not draw(rarely) else "another",
            rolled_out=not draw(rarely),
            ready_replicas=0 if draw(rarely) else service.spec.worker.replicas,
            progress_stopped=draw(rarely),
            replica_failure="exceeded quota" if draw(rarely) else None,
            deleting=draw(rarely),
        ),
        pods=pods,
        answers=tuple(
            WorkerAnswer(pod.name, None, "draining") if draw(rarely) else WorkerAnswer(pod.name, draw(routes))
            for pod in pods
            if not draw(rarely)
        ),
        conflicts=(Conflict(draw(refs)),) if draw(rarely) else (),
        rejections=(Rejection(draw(refs), "forbidden"),) if draw(rarely) else (),
        endpoint_answers=None if draw(rarely) else draw(routes),
    )
    return service, observed


def answers_as_declared(route: Route | None, service: GNNService) -> bool:
    return (
        route is not None
        and route.revision == "rev-1"
        and route.objective == service.spec.objective.to_objective()
        and route.batching == service.spec.worker.batching.to_batching()
        and route.overlay == service.spec.endpoint.overlay.to_limits()
    )


@settings(max_examples=examples(400), deadline=None)
@given(sightings())
def test_ready_is_true_only_if_everything_answers_as_declared(sighting: tuple[GNNService, ObservedState]) -> None:
    service, observed = sighting
    planned = plan(service, ServiceIdentity(UID, 7, False, {}), observed, SETTINGS, START)
    assert planned.status is not None
    GNNServiceStatus.model_validate(planned.status)
    conditions = {condition["type"]: condition for condition in planned.status["conditions"]}
    assert list(conditions) == CONDITIONS
    assert {condition["observedGeneration"] for condition in conditions.values()} == {7}
    assert all(condition["reason"] and condition["message"] for condition in conditions.values())
    commands = re.findall("kubectl [^`]*", " ".join(condition["message"] for condition in conditions.values()))
    assert all("--namespace shop" in command or "-n shop" in command for command in commands)
    is_true = {kind for kind, condition in conditions.items() if condition["status"] == "True"}
    assert not {"Reconciling", "Stalled"} <= is_true
    if "Ready" not in is_true:
        return
    assert is_true == {"Ready", "Available", "VariantsGenerated", "WorkersAvailable"}
    assert planned.look_again_s is None
    routing, deployment = observed.routing, observed.deployment
    assert routing is not None
    assert routing.result is not None
    assert routing.result.recipe == service.spec.recipe()
    assert not service.spec.suspend
    assert not observed.conflicts
    assert not observed.rejections
    assert deployment is not None
    assert deployment.rolled_out
    assert not deployment.deleting
    assert deployment.template_digest != "another"
    ready = [pod for pod in observed.pods if pod.ready and not pod.deleting]
    assert len(ready) >= service.spec.worker.replicas > 0
    routes = {answer.pod: answer.route for answer in observed.answers}
    for pod in ready:
        route = routes[pod.name]
        assert answers_as_declared(route, service)
        assert route is not None
        assert route.problem is None
    assert answers_as_declared(observed.endpoint_answers, service)


def test_some_of_them_are_ready() -> None:
    def is_ready(sighting: tuple[GNNService, ObservedState]) -> bool:
        status = plan(sighting[0], ServiceIdentity(UID, 7, False, {}), sighting[1], SETTINGS, START).status
        return status is not None and condition_in(status, ConditionType.READY)["status"] == "True"

    # The first one found suffices: to shrink it takes half a minute and tells nothing.
    first = settings(phases=[Phase.generate], database=None, max_examples=10_000, deadline=None)
    service, _ = find(sightings(), is_ready, settings=first, random=Random(0))  # noqa: S311
    assert service.spec.worker.replicas > 0


# --- one thing is missing

MISSING: list[tuple[str, dict[str, Any], str, str]] = [
    ("another revision", {"revision": "rev-0"}, "RevisionSwitching", "is to load rev-1"),
    ("no revision", {"revision": ""}, "RevisionSwitching", "answers from revision none"),
    ("another objective", {"objective": make_service(objective={"latencyMs": 1}).spec.objective.to_objective()},
     "RevisionSwitching", "has yet to take on the objective"),
    ("a problem", {"problem": "revision rev-1 cannot be loaded: x.npy is altered"},
     "RevisionNotLoaded", "x.npy is altered"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason", "words"), [case[1:] for case in MISSING], ids=[c[0] for c in MISSING])
def test_a_worker_that_answers_otherwise_keeps_it_from_ready(change: dict[str, Any], reason: str, words: str) -> None:
    namespace = serving(worker={"replicas": 2})
    worker = sorted(namespace.workers())[1]
    namespace.routes[worker] = make_route(namespace.table(), **change)
    planned = namespace.settle()
    assert namespace.reason() == f"False {reason}"
    assert words in namespace.condition("Ready")["message"]
    assert worker in namespace.condition("Ready")["message"]
    assert namespace.reason("Reconciling") == f"True {reason}"
    assert planned.look_again_s == 1.0


def test_a_worker_that_fell_back_to_the_cpu_serves_and_says_so_where_a_gpu_was_asked_for() -> None:
    problem = "no GPU is seen: there is no NVIDIA driver."
    namespace = serving(worker={"gpu": {}})
    still = namespace.condition("Ready")["message"]
    namespace.answer(device="CPU", device_problem=problem)
    namespace.settle()
    (worker,) = namespace.workers()
    said = f"{still} Worker {worker} computes on CPU: no GPU is seen: there is no NVIDIA driver."
    assert (namespace.reason(), namespace.condition("Ready")["message"]) == ("True Serving", said)
    namespace.answer(device="NVIDIA H200")
    namespace.settle()
    assert namespace.condition("Ready")["message"] == still
    without = serving()
    without.answer(device="CPU", device_problem=problem)
    without.settle()
    assert "CPU" not in without.condition("Ready")["message"], "nobody asked for one"


def test_an_endpoint_that_does_not_answer_keeps_it_from_ready() -> None:
    namespace = serving()
    namespace.endpoint = None
    namespace.settle()
    assert namespace.reason() == "False EndpointUnreachable"


def test_an_endpoint_that_answers_otherwise_keeps_it_from_ready() -> None:
    namespace = serving()
    namespace.endpoint = make_route(namespace.table(), revision="rev-0")
    namespace.settle()
    assert namespace.reason() == "False RevisionSwitching"
    assert namespace.condition("Ready")["message"].startswith("The endpoint answers from revision rev-0")


def test_a_worker_that_answers_without_the_declared_tokens_keeps_it_from_ready() -> None:
    """An older image takes no notice of what the operator tells it of tokens."""
    namespace = serving()
    namespace.edit(endpoint={"tokens": {"secretName": "accepted"}})
    namespace.settle()
    assert namespace.reason() == "False RollingOut"
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "False TokensNotChecked"
    assert namespace.reason("Stalled") == "True TokensNotChecked"
    message = namespace.condition("Ready")["message"]
    assert "its image gnnserve/worker:1 is too old" in message
    of_new = make_route(namespace.table(), needs_token=True)
    namespace.routes = dict.fromkeys(namespace.workers(), of_new)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    namespace.edit(endpoint=None)
    namespace.settle()
    namespace.roll_out()
    namespace.routes = dict.fromkeys(namespace.workers(), of_new)
    namespace.settle()
    assert namespace.reason() == "True Serving"  # who asks for more than declared fails no one silently


def test_what_does_not_come_is_asked_for_less_often() -> None:
    namespace = serving()
    namespace.endpoint = None
    assert namespace.settle().look_again_s == 1.0
    namespace.now += timedelta(minutes=6)
    assert namespace.plan().look_again_s == 10.0


def test_a_deployment_that_is_being_deleted_is_not_called_a_rolling_update() -> None:
    namespace = serving()
    namespace.get("Deployment")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    namespace.reconcile()
    assert namespace.reason() == "False RollingOut"
    message = namespace.condition("Ready")["message"]
    assert message.startswith("Deployment digits-worker is being deleted, and is made again once it is gone")
    assert "see its finalizers" in message
    assert "replaced" not in message


def test_a_rolling_update_is_not_ready_before_it_is_done() -> None:
    namespace = serving()
    namespace.edit(image="gnnserve/worker:2")
    namespace.reconcile()
    assert namespace.reason() == "False RollingOut", "although every pod is ready and answers"
    namespace.settle()
    assert namespace.reason() == "False RollingOut"
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert ("Warning", "NotReady") not in namespace.events


def test_an_edited_objective_is_not_ready_before_workers_have_it() -> None:
    namespace = serving()
    namespace.edit(objective={"latencyMs": 5})
    namespace.reconcile()
    assert namespace.reason() == "False RevisionSwitching"
    assert namespace.status["observedGeneration"] == 2
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert ("Warning", "NotReady") not in namespace.events


def test_more_replicas_are_waited_for_and_fewer_are_not() -> None:
    namespace = serving(worker={"replicas": 2})
    namespace.edit(worker={"replicas": 3})
    namespace.reconcile()
    assert namespace.reason() == "False WorkersStarting"
    assert namespace.status["workers"]["ready"] == "2/3"
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.status["workers"]["ready"] == "3/3"
    namespace.edit(worker={"replicas": 1})
    namespace.reconcile()
    assert namespace.reason() == "True Serving"


def test_a_loading_worker_says_so() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out(ready=False)
    worker = next(iter(namespace.workers()))
    namespace.routes[worker] = "revision rev-1 is being loaded"
    planned = namespace.settle()
    assert namespace.reason() == "False WorkersStarting"
    assert f"Worker {worker}: revision rev-1 is being loaded" in namespace.condition("Ready")["message"]
    assert planned.look_again_s == 1.0
    namespace.routes[worker] = "revision rev-1 cannot be loaded: x.npy is altered"
    namespace.settle()
    assert namespace.reason() == "False RevisionNotLoaded"
    assert "gnnserve.dev/service=digits" in namespace.condition("Ready")["message"]
    assert namespace.reason("Stalled") == "False Progressing"


def test_a_rollout_without_progress_stalls() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out(ready=False)
    namespace.get("Deployment")["status"]["conditions"] = [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    ]
    namespace.settle()
    assert namespace.reason("Stalled") == "True WorkersNotStarting"
    namespace.routes = dict.fromkeys(namespace.workers(), "revision rev-1 cannot be loaded: altered")
    namespace.settle()
    assert namespace.reason("Stalled") == "True RevisionNotLoaded"


def test_a_quota_that_forbids_pods_stalls() -> None:
    namespace = serving()
    namespace.edit(worker={"replicas": 2})
    namespace.settle()
    deployment = namespace.get("Deployment")
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": 'pods "digits-worker-x" is forbidden: exceeded quota',
    }
    deployment["status"] |= {"observedGeneration": deployment["metadata"]["generation"], "conditions": [failure]}
    namespace.settle()
    assert namespace.reason() == "False PodsForbidden"
    assert namespace.reason("Stalled") == "True PodsForbidden"
    assert "exceeded quota" in namespace.condition("Ready")["message"]
    assert "Raise the quota" in namespace.condition("Ready")["message"]
    failure["message"] = (
        'pods "digits-worker-x" is forbidden: unable to validate against any security context constraint: [provider '
        "restricted-v2: .spec.securityContext.fsGroup: Invalid value: []int64{65532}: 65532 is not an allowed group]"
    )
    namespace.settle()
    assert "Set the chart's podSecurity.runAs to Platform" in namespace.condition("Ready")["message"]


def test_a_bad_image_stalls_while_the_old_workers_answer() -> None:
    namespace = serving()
    namespace.edit(image="gnnserve/wroker:2")
    namespace.settle()
    namespace.add_pod(
        namespace.get("Deployment"), state={"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    )
    namespace.settle()
    assert namespace.reason() == "False ImageUnavailable"
    assert namespace.reason("WorkersAvailable") == "True WorkersReady"
    assert namespace.reason("Stalled") == "True ImageUnavailable"
    assert namespace.events[-1] == ("Warning", "Stalled")
    before = namespace.status
    stuck = namespace.pods[sorted(namespace.pods)[-1]]
    stuck["status"]["containerStatuses"][0]["state"] = {
        "waiting": {
            "reason": "ImagePullBackOff",
            "message": 'Back-off pulling image "gnnserve/wroker:2": ErrImagePull: not found',
        }
    }
    assert namespace.reconcile().status is None, "kubelet alternates between the two"
    assert namespace.status == before


# --- names that are taken, children that are refused


def test_a_service_name_that_is_taken_is_left_alone_and_the_rest_goes_on() -> None:
    namespace = serving()
    ref = observed_ref(namespace.get("Service"))
    del namespace.objects["Service", "digits"]
    namespace.conflicts = (Conflict(ref),)
    planned = namespace.settle()
    assert {manifest["kind"] for manifest in planned.apply} >= {"ConfigMap", "Deployment", "PersistentVolumeClaim"}
    assert "Service" not in {manifest["kind"] for manifest in planned.apply}
    assert namespace.reason() == "False NameTaken"
    assert namespace.reason("Stalled") == "True NameTaken"
    assert namespace.reason("VariantsGenerated") == "True Published"
    assert "endpoint" not in namespace.status
    message = namespace.condition("Ready")["message"]
    assert "Service digits exists already and has no owner" in message
    assert "Delete or rename it" in message


def test_all_names_that_are_taken_are_told_at_once_with_the_command_that_has_them_taken_over() -> None:
    namespace = serving()
    orphans = [observed_ref(namespace.get(kind)) for kind in ("ServiceAccount", "Role", "PersistentVolumeClaim")]
    namespace.conflicts = (*map(Conflict, orphans), Conflict(observed_ref(namespace.get("Service")), "Gateway web"))
    namespace.settle()
    message = namespace.condition("Ready")["message"]
    assert (
        "ServiceAccount digits-worker, Role digits-worker and PersistentVolumeClaim digits-repository exist" in message
    )
    assert "Service digits exists already and belongs to Gateway web" in message
    assert (
        "`kubectl annotate -n shop serviceaccount/digits-worker role/digits-worker "
        "persistentvolumeclaim/digits-repository gnnserve.dev/adopt=digits`"
    ) in message
    assert namespace.events[-1] == ("Warning", "Stalled")


def test_what_another_controls_is_not_offered() -> None:
    namespace = serving()
    namespace.conflicts = (Conflict(observed_ref(namespace.get("Service")), "Gateway web"),)
    namespace.settle()
    assert "kubectl annotate" not in namespace.condition("Ready")["message"]


def test_a_taken_name_is_looked_at_often_and_after_a_while_less_so() -> None:
    namespace = serving()
    namespace.conflicts = (Conflict(observed_ref(namespace.get("Service"))),)
    assert namespace.settle().look_again_s == 2
    namespace.now += timedelta(minutes=6)
    assert namespace.settle().look_again_s == 10


TAKEN: list[tuple[str, set[str]]] = [
    ("ServiceAccount", {"ServiceAccount", "RoleBinding", "Deployment"}),
    ("Role", {"Role", "RoleBinding"}),
    ("PersistentVolumeClaim", {"PersistentVolumeClaim", "Deployment"}),
    ("ConfigMap", {"ConfigMap", "Deployment"}),
    ("Deployment", {"Deployment"}),
    ("PodDisruptionBudget", {"PodDisruptionBudget"}),
]


@pytest.mark.parametrize(("kind", "missing"), TAKEN, ids=[case[0] for case in TAKEN])
def test_nothing_builds_on_what_is_somebody_elses(kind: str, missing: set[str]) -> None:
    namespace = serving()
    all_kinds = {manifest["kind"] for manifest in namespace.plan().apply}
    namespace.conflicts = (Conflict(observed_ref(namespace.get(kind)), "Deployment other"),)
    assert all_kinds - {manifest["kind"] for manifest in namespace.plan().apply} == missing


def test_a_name_that_is_free_again_is_used() -> None:
    namespace = serving()
    namespace.conflicts = (Conflict(observed_ref(namespace.get("Service"))),)
    namespace.settle()
    namespace.conflicts = ()
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_what_the_api_server_refuses_is_told_in_its_words() -> None:
    namespace = serving()
    ref = observed_ref(namespace.get("Deployment"))
    namespace.rejections = (Rejection(ref, "spec.template: must be less than or equal to cpu limit of 1"),)
    planned = namespace.settle()
    assert "Deployment" in {manifest["kind"] for manifest in planned.apply}, "it is tried again"
    assert namespace.reason() == "False ChildRefused"
    assert namespace.reason("Stalled") == "True ChildRefused"
    assert "must be less than or equal to cpu limit of 1" in namespace.condition("Ready")["message"]


# --- what else the status tells


def test_the_status_tells_what_kubectl_get_shows() -> None:
    namespace = serving(worker={"replicas": 2})
    status = namespace.status
    assert status["endpoint"] == "http://digits.shop.svc.cluster.local"
    assert (status["revision"], status["baseVariant"], status["variantNames"]) == ("rev-1", "x1", "x1 x2 x4")
    assert status["variants"][0] == {
        "name": "x1", "columns": 64, "accuracy": "0.9705", "latencyMs": "1.25", "factor": 1, "sizeBytes": 400,
        "memoryBytes": 7000, "tierPermille": 0,
    }  # fmt: skip
    assert status["workers"] == {
        "replicas": 2,
        "readyReplicas": 2,
        "ready": "2/2",
        "selector": "app.kubernetes.io/component=worker,gnnserve.dev/service=digits",
    }


@pytest.mark.parametrize(("updates", "tiers"), [(None, [0, 4, 9]), ({"log": {"sqlite": {}}}, [None, 0, 5])])
def test_tiers_are_of_the_variants_that_answer(updates: dict[str, Any] | None, tiers: list[int | None]) -> None:
    """Nothing is generated where `updates` is given or left out: the result tells both."""
    namespace = Namespace(**({} if updates is None else {"updates": updates, "worker": {"replicas": 1}}))
    namespace.settle()
    result = make_result(namespace.job()["metadata"]["labels"]["gnnserve.dev/recipe"])
    of_all = zip(result.variants, (0, 4, 9), strict=True)
    result = msgspec.structs.replace(
        result,
        variants=tuple(msgspec.structs.replace(one, tier_permille=permille) for one, permille in of_all),
        following_tiers={"x2": 0, "x4": 5},
    )
    namespace.finish_job(message=encode_message(result))
    namespace.settle()
    assert [variant.get("tierPermille") for variant in namespace.status["variants"]] == tiers


def test_the_status_tells_every_variant_of_a_revision_with_the_most_and_the_longest_names() -> None:
    namespace = Namespace()
    namespace.settle()
    names = tuple(f"{place:0{MAX_VARIANT_NAME}}" for place in range(MAX_VARIANTS))
    recipe = namespace.job()["metadata"]["labels"]["gnnserve.dev/recipe"]
    namespace.finish_job(message=encode_message(make_result(recipe, names=names)))
    namespace.settle()
    assert namespace.status["variantNames"] == " ".join(names)
    assert [variant["name"] for variant in namespace.status["variants"]] == list(names)


def test_the_base_variant_keeps_still_while_one_worker_says_it() -> None:
    namespace = serving(worker={"replicas": 2})
    first, second = sorted(namespace.workers())
    namespace.routes[first] = make_route(namespace.table(), "x4")
    namespace.settle()
    assert namespace.status["baseVariant"] == "x1"
    namespace.routes[second] = make_route(namespace.table(), "x4")
    namespace.settle()
    assert namespace.status["baseVariant"] == "x4"


def test_a_transition_time_stays_while_the_status_does() -> None:
    namespace = serving()
    first = copy.deepcopy(namespace.status)
    namespace.edit(objective={"latencyMs": 5})
    namespace.reconcile()
    changed = {c: condition_in(namespace.status, ConditionType(c))["lastTransitionTime"] for c in CONDITIONS}
    for kind in ("Stalled", "VariantsGenerated", "WorkersAvailable"):
        assert changed[kind] == condition_in(first, ConditionType(kind))["lastTransitionTime"]
    for kind in ("Ready", "Reconciling"):
        assert changed[kind] > condition_in(first, ConditionType(kind))["lastTransitionTime"]
    assert {condition["observedGeneration"] for condition in namespace.status["conditions"]} == {2}


def test_conditions_of_others_are_not_a_difference() -> None:
    namespace = serving()
    namespace.status["conditions"].append({"type": "Audited", "status": "True"})
    assert namespace.plan().status is None


def test_a_field_that_is_no_longer_said_is_a_difference() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.status["revision"] = "rev-0"
    planned = namespace.plan()
    assert planned.status is not None
    assert "revision" not in planned.status


def test_a_status_that_somebody_wrote_triggers_nothing() -> None:
    namespace = serving()
    calm = namespace.plan()
    namespace.status = {
        "revision": "rev-9",
        "conditions": [{"type": "Stalled", "status": "True", "reason": "Nonsense"}],
    }
    planned = namespace.plan()
    assert (planned.apply, planned.delete) == (calm.apply, calm.delete)
    assert planned.status is not None


# --- events


def test_a_worker_that_dies_is_told_once() -> None:
    namespace = serving(worker={"replicas": 2})
    namespace.events.clear()
    namespace.workers()[sorted(namespace.workers())[0]]["status"]["conditions"] = []
    namespace.settle()
    namespace.settle()
    assert namespace.events == [("Warning", "NotReady")]
    namespace.make_ready()
    namespace.settle()
    assert namespace.events == [("Warning", "NotReady"), ("Normal", "Ready")]


def test_a_job_is_announced_once_although_the_watch_is_behind() -> None:
    namespace = Namespace()
    namespace.reconcile()
    job = namespace.objects.pop(("Job", namespace.jobs()[0]))
    assert namespace.plan().events == ()
    namespace.objects["Job", job["metadata"]["name"]] = job
    namespace.settle()
    assert namespace.events == [("Normal", "GenerationStarted")]


# --- a spec that cannot be read


def test_a_spec_that_cannot_be_read_stalls_and_touches_nothing() -> None:
    namespace = serving()
    problem, observed = "spec.model.kind: unknown field", namespace.observed()
    planned = plan_for_invalid(ServiceIdentity(UID, 9, False, namespace.status), problem, observed, START)
    assert (planned.apply, planned.delete, planned.look_again_s) == ((), (), None)
    assert planned.status is not None
    GNNServiceStatus.model_validate(planned.status)
    assert planned.status["observedGeneration"] == 9
    assert planned.status["revision"] == "rev-1"
    stalled = condition_in(planned.status, ConditionType.STALLED)
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "spec.model.kind: unknown field" in stalled["message"]
    assert [event.reason for event in planned.events] == ["Stalled"]
    again = plan_for_invalid(ServiceIdentity(UID, 9, False, planned.status), problem, observed, START)
    assert (again.status, again.events) == (None, ())


def test_every_status_fits_the_schema() -> None:
    adapter = TypeAdapter(GNNServiceStatus)
    namespace = Namespace()
    for step in (namespace.settle, namespace.finish_job, namespace.settle, namespace.roll_out, namespace.settle):
        step()
        if namespace.status:
            adapter.validate_python(namespace.status)


@pytest.mark.parametrize("edit", [{"suspend": True}, {"worker": {"replicas": 0}}], ids=["suspended", "no replicas"])
def test_a_base_variant_is_not_told_where_nobody_is_to_answer(edit: dict[str, Any]) -> None:
    """It would be that of long ago: another may be declared meanwhile."""
    namespace = Namespace()
    namespace.serve()
    namespace.edit(**edit)
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert "baseVariant" not in namespace.status


def test_pods_that_only_one_watch_says_are_ready_are_not_ready_yet() -> None:
    namespace = serving()
    namespace.get("Deployment")["status"]["readyReplicas"] = 0
    namespace.settle()
    assert namespace.reason() == "False WorkersStarting"
    namespace.make_ready()
    namespace.settle()
    assert namespace.reason() == "True Serving"
