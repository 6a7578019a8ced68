"""The condition Available: whether the endpoint answers, however much is not as declared; and its events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.operator.observed import UID, Namespace, make_route, make_service

from gnnserve_api.pods.routing import CredentialState
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_operator.decide.status import NOTHING_KNOWN
from gnnserve_operator.decide.workers import (
    Expectation,
    decide_availability,
    decide_pool_availability,
    expect_by_children,
)
from gnnserve_operator.kinds import ObjectRef
from gnnserve_operator.observed import (
    ObservedDeployment,
    ObservedMember,
    ObservedPod,
    ObservedPool,
    ObservedRouting,
    ObservedState,
    Rejection,
    WorkerAnswer,
    observed_place,
)
from gnnserve_operator.plan import Plan, ServiceIdentity, plan_for_invalid

ANSWERING = "True Answering"
TABLE = make_service().spec.routing_table("rev-1")


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    assert namespace.reason("Available") == ANSWERING
    namespace.events.clear()
    return namespace


def message(namespace: Namespace) -> str:
    return str(namespace.condition("Available")["message"])


def lose_workers(namespace: Namespace, count: int | None = None) -> None:
    """Have so many workers crash; None: all."""
    lost = sorted(namespace.workers())[:count]
    for name in lost:
        pod = namespace.pods[name]
        pod["status"]["conditions"] = []
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "segmentation fault"}}
        pod["status"]["containerStatuses"] = [{"name": "worker", "state": state, "lastState": ended}]
        namespace.routes.pop(name)
    left = len(namespace.workers()) - len(lost)
    namespace.get("Deployment")["status"]["readyReplicas"] = left
    if not left:
        namespace.endpoint = None


def become_invalid(namespace: Namespace) -> Plan:
    """Store a spec that cannot be read, and have it looked at."""
    namespace.generation += 1
    identity = ServiceIdentity(UID, namespace.generation, False, namespace.status)
    planned = plan_for_invalid(identity, "spec.quantum: unknown field", namespace.observed(), namespace.now)
    namespace.status = planned.status or namespace.status
    namespace.events += [(event.type, event.reason) for event in planned.events]
    return planned


# --- what answers, answers


def test_it_says_how_many_answer_from_which_revision_and_by_which_variant() -> None:
    namespace = serving(worker={"replicas": 2})
    assert message(namespace) == ("2 of 2 workers and the endpoint answer from revision rev-1, with base variant x1.")


def test_a_new_model_is_trained_and_then_loaded() -> None:
    namespace = serving(worker={"replicas": 2})
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Available")) == ("False Generating", ANSWERING)
    assert message(namespace).endswith("from revision rev-1, with base variant x1. Not all is as declared "
                                       "(Generating): see Ready.")  # fmt: skip
    namespace.finish_job("rev-2")
    namespace.settle()
    first, _ = sorted(namespace.workers())
    namespace.routes[first] = make_route(namespace.table())
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Available")) == ("False RevisionSwitching", ANSWERING)
    assert "2 of 2 workers and the endpoint answer from revisions rev-1 and rev-2" in message(namespace)
    namespace.answer()
    namespace.settle()
    assert message(namespace).endswith("from revision rev-2, with base variant x1.")


def test_an_edit_that_fails_leaves_it_true() -> None:
    namespace = serving()
    namespace.edit(graph={"source": {"npz": {"uri": "file:///data/none.npz"}}, "volume": {"claimName": "graphs"}})
    namespace.settle()
    namespace.fail_job(2, "spec.graph.source.npz.uri: /data/none.npz does not exist")
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("False GenerationFailed", "True GenerationFailed")
    assert namespace.reason("Available") == ANSWERING
    assert ("Warning", "Unavailable") not in namespace.events


def test_a_rollout_that_finds_no_room_leaves_it_true() -> None:
    namespace = serving()
    namespace.edit(image="gnnserve/worker:2")
    namespace.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    namespace.add_pod(namespace.get("Deployment"), conditions=[condition])
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Available")) == ("False Unschedulable", ANSWERING)
    assert "1 of 1 worker and the endpoint answer" in message(namespace)


def test_more_workers_than_asked_for_are_counted_as_such() -> None:
    namespace = serving()
    namespace.add_pod(namespace.get("Deployment"), state={"running": {}}, phase="Running")
    namespace.make_ready()
    namespace.answer()
    namespace.settle()
    assert message(namespace).startswith("2 workers (1 asked for) and the endpoint answer")


def test_one_of_two_workers_is_enough_and_the_message_says_so() -> None:
    namespace = serving(worker={"replicas": 2})
    lose_workers(namespace, 1)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Available")) == ("False WorkerCrashing", ANSWERING)
    assert message(namespace).startswith("1 of 2 workers and the endpoint answer from revision rev-1")
    assert namespace.events == [("Warning", "NotReady")]


def test_a_ready_worker_that_does_not_answer_is_named() -> None:
    namespace = serving(worker={"replicas": 2})
    silent = sorted(namespace.workers())[1]
    namespace.routes[silent] = "it does not answer in time"
    namespace.settle()
    assert namespace.reason("Available") == ANSWERING
    assert f"Worker {silent} is ready and does not: it does not answer in time." in message(namespace)


def test_a_claim_that_is_about_to_go_leaves_it_true() -> None:
    namespace = serving()
    namespace.get("PersistentVolumeClaim")["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settle()
    assert namespace.reason("RepositoryKept") == "False VolumeClaimTerminating"
    assert namespace.reason("Available") == ANSWERING


def test_a_child_that_is_refused_leaves_it_true() -> None:
    namespace = serving()
    ref = ObjectRef("apps/v1", "Deployment", "shop", "digits-worker")
    namespace.rejections = (Rejection(ref, "forbidden by a policy"),)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Available")) == ("False ChildRefused", ANSWERING)


# --- nothing answers


def test_before_the_first_revision_it_is_false_for_that() -> None:
    namespace = Namespace()
    namespace.settle()
    assert namespace.reason("Available") == "False WaitingForRevision"
    assert "Workers are told of no revision yet. Job digits-generate-" in message(namespace)
    assert namespace.events == [("Normal", "GenerationStarted")]


@pytest.mark.parametrize(
    ("edit", "reason", "words"),
    [
        ({"suspend": True}, "Suspended", "spec.suspend is true: no worker is wanted, none runs. Set it to false"),
        ({"worker": {"replicas": 0}}, "ScaledToZero", "spec.worker.replicas is 0: no worker is wanted, none runs."),
    ],
    ids=["suspended", "no replicas"],
)  # fmt: skip
def test_what_was_asked_for_is_told_and_is_no_warning(edit: dict[str, Any], reason: str, words: str) -> None:
    namespace = serving()
    namespace.edit(**edit)
    namespace.settle()
    assert namespace.reason("Available") == ANSWERING, "as long as it does"
    namespace.roll_out()
    namespace.answer()
    planned = namespace.settle()
    assert namespace.reason("Available") == f"False {reason}"
    assert message(namespace).startswith(words)
    assert planned.look_again_s is None
    assert ("Warning", "Unavailable") not in namespace.events


def test_the_last_worker_that_is_lost_is_an_event_and_so_is_the_first_that_is_back() -> None:
    namespace = serving()
    lose_workers(namespace)
    namespace.settle()
    assert namespace.reason("Available") == "False WorkerCrashing"
    assert message(namespace).startswith("Nothing answers. 0 of 1 workers are ready.")
    assert namespace.events == [("Warning", "Unavailable"), ("Warning", "NotReady")]
    namespace.settle()
    assert len(namespace.events) == 2
    for pod in namespace.workers().values():
        pod["status"]["containerStatuses"] = [{"name": "worker", "state": {"running": {}}}]
    namespace.make_ready()
    namespace.answer()
    namespace.settle()
    assert namespace.events[2:] == [("Normal", "Available"), ("Normal", "Ready")]


def test_an_upgrade_from_a_release_that_did_not_tell_of_it_is_no_event() -> None:
    namespace = serving()
    told = [condition for condition in namespace.status["conditions"] if condition["type"] != "Available"]
    namespace.status = {**namespace.status, "conditions": told}
    namespace.settle()
    assert (namespace.reason("Available"), namespace.events) == (ANSWERING, [])


def test_no_worker_after_an_edit_that_failed_is_told_with_what_is_wrong_with_the_workers() -> None:
    """Ready tells of the edit."""
    namespace = serving()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.fail_job(4, "no space left on device")
    lose_workers(namespace)
    planned = namespace.settle()
    assert namespace.reason() == "False GenerationFailed"
    assert namespace.reason("Available") == "False WorkerCrashing"
    assert planned.look_again_s is None, "an event tells when a pod is ready"


def test_an_endpoint_that_does_not_answer_while_workers_do_is_looked_at_again_though_an_edit_failed() -> None:
    namespace = serving()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.fail_job(4, "no space left on device")
    namespace.endpoint = None
    planned = namespace.settle()
    assert namespace.reason("Available") == "False EndpointUnreachable"
    assert "One worker answers from revision rev-1 when asked directly" in message(namespace)
    assert planned.look_again_s == 1.0


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([("tokens", False)], "False CredentialsUnusable"),
        ([("tls", False), ("tokens", True)], "False CredentialsUnusable"),
        ([("writeTokens", False), ("log", False)], ANSWERING),
        ([("tokens", True)], ANSWERING),
    ],
    ids=["no token", "no certificate", "none to write", "some token"],
)
def test_credentials_count_where_no_request_is_answered_without(states: list[tuple[str, bool]], reason: str) -> None:
    secrets = {"tokens": {"secretName": "a"}, "tls": {"secretName": "b"}, "writeTokens": {"secretName": "c"}}
    namespace = Namespace(endpoint=secrets)
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out()
    told = tuple(
        CredentialState(kind, is_usable=usable, problem="" if usable else "is gone") for kind, usable in states
    )
    namespace.answer(credentials=told, needs_token=True)
    namespace.settle()
    assert namespace.reason("Available") == reason


@pytest.mark.parametrize(("wanted", "words"), [(True, "without TLS"), (False, "over TLS alone")])
def test_workers_to_which_the_service_does_not_lead_are_told_as_such(wanted: bool, words: str) -> None:
    """As where TLS is added, and the successors of the present workers wait for a Secret that is not there."""
    pod = replace(POD, speaks_tls=not wanted)
    observed = ObservedState(pods=(pod,), answers=(WorkerAnswer("w-0", ROUTE),))
    verdict = decide_availability(Expectation(1, None, Reason.CREDENTIALS_UNUSABLE, speaks_tls=wanted), observed)
    assert (verdict.holds, verdict.reason) == (False, Reason.ENDPOINT_UNREACHABLE)
    assert words in verdict.message
    assert "kube-proxy" not in verdict.message, "which is in order"


def turn(namespace: Namespace, *statuses: str) -> list[tuple[str, str]]:
    """Events about Available while it takes on these statuses, one after the other."""
    namespace.events.clear()
    (worker,) = namespace.workers()
    for status in statuses:
        namespace.answer()
        if status != "True":
            namespace.endpoint = None
            # A pod that is silent may be cut off from the operator alone; one that refuses answers nobody.
            namespace.routes = {} if status == "Unknown" else {worker: "revision rev-1 is being loaded"}
        namespace.settle()
        assert namespace.condition("Available")["status"] == status
    return [event for event in namespace.events if event[1] in {"Available", "Unavailable"}]


LOST, BACK = ("Warning", "Unavailable"), ("Normal", "Available")


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        pytest.param(("False", "Unknown", "False", "Unknown", "False"), [LOST], id="a loss is told once"),
        pytest.param(("Unknown", "False", "Unknown", "True"), [LOST, BACK], id="not known before it turns"),
        pytest.param(("Unknown", "True", "Unknown", "True"), [], id="it was never known to be lost"),
    ],
)
def test_an_availability_that_is_not_known_in_between_neither_repeats_nor_hides_a_turn(
    statuses: tuple[str, ...], told: list[tuple[str, str]]
) -> None:
    assert turn(serving(), *statuses) == told


def test_an_operator_that_has_just_started_tells_of_a_loss_rather_twice_than_never() -> None:
    namespace = serving()
    turn(namespace, "Unknown")
    namespace.last_known = NOTHING_KNOWN
    assert turn(namespace, "False", "Unknown", "False") == [LOST]


# --- where the spec says nothing


def test_an_invalid_spec_leaves_it_true_while_workers_answer() -> None:
    namespace = serving(worker={"replicas": 2})
    planned = become_invalid(namespace)
    assert (planned.apply, planned.delete, planned.look_again_s) == ((), (), None)
    assert (namespace.reason(), namespace.reason("Available")) == ("False InvalidSpec", ANSWERING)
    assert message(namespace).startswith("2 of 2 workers and the endpoint answer from revision rev-1")
    assert message(namespace).endswith("Not all is as declared (InvalidSpec): see Ready.")
    assert namespace.events == [("Warning", "Stalled")]


def test_an_invalid_spec_is_false_once_nothing_answers() -> None:
    namespace = serving()
    become_invalid(namespace)
    lose_workers(namespace)
    become_invalid(namespace)
    assert namespace.reason("Available") == "False InvalidSpec"
    assert "no worker is ready. The spec cannot be read: spec.quantum: unknown field. Correct it" in message(namespace)
    assert namespace.events == [("Warning", "Stalled"), ("Warning", "Unavailable")]


def test_an_invalid_spec_whose_endpoint_does_not_answer_yet_is_looked_at_again() -> None:
    namespace = serving()
    namespace.endpoint = None
    assert become_invalid(namespace).look_again_s == 1.0


def test_an_invalid_spec_from_the_beginning_waits_for_a_revision() -> None:
    namespace = Namespace()
    become_invalid(namespace)
    assert namespace.reason("Available") == "False WaitingForRevision"


def test_an_invalid_spec_of_a_suspended_service_is_no_outage() -> None:
    namespace = serving()
    namespace.edit(suspend=True)
    namespace.settle()
    namespace.roll_out()
    namespace.answer()
    become_invalid(namespace)
    assert namespace.reason("Available") == "False ScaledToZero"


# --- by itself: what pods, workers and the endpoint say

POD = ObservedPod("w-0", "worker", phase="Running", ip="10.0.0.1", ready=True, running=True)
ROUTE = make_route(TABLE)
SILENT = WorkerAnswer("w-0", problem="it does not answer in time", is_silent=True)
LOADING = WorkerAnswer("w-0", problem="revision rev-1 is being loaded")
POOL = ObservedPool("shared", port=8100)
GONE = Problem(Reason.WORKER_POOL_MISSING, "GNNWorkerPool shared does not exist.", needs_person=True)


@pytest.mark.parametrize(
    ("observed", "holds", "reason", "words"),
    [
        pytest.param(ObservedState(pods=(POD,), answers=(WorkerAnswer("w-0", ROUTE),), endpoint_answers=ROUTE),
                     True, Reason.ANSWERING, "1 of 1 worker and the endpoint answer", id="all answer"),
        pytest.param(ObservedState(pods=(POD,), answers=(SILENT,), endpoint_answers=ROUTE),
                     True, Reason.ANSWERING, "The endpoint answers from revision rev-1", id="a mesh hides the pods"),
        pytest.param(ObservedState(pods=(POD,), answers=(WorkerAnswer("w-0", ROUTE),)),
                     False, Reason.ENDPOINT_UNREACHABLE, "kube-proxy", id="the endpoint alone is silent"),
        pytest.param(ObservedState(pods=(POD,), answers=(SILENT,)),
                     None, Reason.ENDPOINT_UNREACHABLE, "is not known", id="nothing comes back from a ready pod"),
        pytest.param(ObservedState(pods=(POD,)),
                     None, Reason.ENDPOINT_UNREACHABLE, "is not known", id="a ready pod was not asked yet"),
        pytest.param(ObservedState(pods=(POD,), answers=(LOADING,)),
                     False, Reason.NOT_SERVING, "Worker w-0 is ready and does not: revision rev-1 is being loaded.",
                     id="a ready pod refuses"),
        pytest.param(ObservedState(pods=(POD,), answers=(SILENT,), pool=POOL),
                     False, Reason.NOT_SERVING, "No ready worker answers", id="a pool's pod has no port for it"),
    ],
)  # fmt: skip
def test_it_is_decided_by_answers(observed: ObservedState, holds: bool | None, reason: Reason, words: str) -> None:
    verdict = decide_availability(Expectation(1, None), observed)
    assert (verdict.holds, verdict.reason) == (holds, reason)
    assert words in verdict.message


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (ObservedState(), Reason.WAITING_FOR_REVISION),
        (ObservedState(routing=ObservedRouting(TABLE), deployment=ObservedDeployment()), Reason.SCALED_TO_ZERO),
        (ObservedState(routing=ObservedRouting(TABLE), deployment=ObservedDeployment(1)), Reason.WORKER_POOL_MISSING),
        (ObservedState(routing=ObservedRouting(TABLE)), Reason.WORKER_POOL_MISSING),
    ],
    ids=["nothing published", "no replicas", "no pod", "nothing at all"],
)
def test_without_a_pool_the_children_tell_why_nothing_answers(observed: ObservedState, reason: Reason) -> None:
    verdict = decide_availability(expect_by_children(GONE, observed, None), observed)
    assert (verdict.holds, verdict.reason) == (False, reason)
    assert "GNNWorkerPool shared does not exist" in verdict.message


def test_a_live_service_tells_where_it_leads() -> None:
    ports = [{"name": "grpc", "targetPort": 8200}, {"name": "https", "targetPort": 8100}]
    place = observed_place({"spec": {"ports": ports}})
    assert place is not None
    assert (place.port, place.speaks_tls) == (8100, True)
    named = observed_place({"spec": {"ports": [{"name": "http", "targetPort": "http"}]}})
    assert named is not None
    assert (named.port, named.speaks_tls) == (0, False)
    assert observed_place({"spec": {"ports": [{"name": "web", "targetPort": 80}]}}) is None


# --- pools

ABSENT = Verdict(False, Reason.WORKER_CRASHING, "0 of 2 workers are ready.")


def member(name: str, *, available: bool, suspend: bool = False) -> ObservedMember:
    return ObservedMember(name, "uid", spec=make_service(suspend=suspend).spec, available=available)


def test_a_pool_is_available_while_one_of_its_workers_is_ready() -> None:
    members = [member("a", available=True), member("b", available=False), member("c", available=False, suspend=True)]
    verdict = decide_pool_availability(1, 2, ABSENT, members)
    assert (verdict.holds, verdict.reason) == (True, Reason.ANSWERING)
    assert verdict.message == (
        "1 of 2 workers are ready to answer for the pool's services. Nothing answers for b: see the condition "
        "Available there."
    )
    lost = decide_pool_availability(0, 2, ABSENT, members)
    assert (lost.holds, lost.reason) == (False, Reason.WORKER_CRASHING)
    assert lost.message == "Nothing answers for the pool's services. 0 of 2 workers are ready."


def test_a_pool_of_many_services_names_a_few() -> None:
    members = [member(f"s{number}", available=False) for number in range(9)]
    assert "for s0, s1, s2, s3, s4 and 4 more:" in decide_pool_availability(2, 2, ABSENT, members).message
