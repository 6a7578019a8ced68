"""Where only so many services may do something at a time: a plan that waits for its turn says so, and goes on then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.operator.observed import Namespace, make_settings
from tests.support.operator.planned_turns import FULL, with_generation

from gnnserve_operator.desired.metadata import Conflict
from gnnserve_operator.fleet import IDLE, UNDER_WAY, Stance, Standing, Turn, place_words
from gnnserve_operator.kinds import observed_ref

OURS = Turn(limit=2, under_way=1, is_ours=True)


@pytest.mark.parametrize(
    ("turn", "may_go"),
    [
        pytest.param(Turn(), True, id="without a limit"),
        pytest.param(Turn(limit=2, under_way=1), True, id="a place is free"),
        pytest.param(Turn(limit=2, under_way=1, ahead=1), False, id="and another goes first"),
        pytest.param(Turn(limit=2, ahead=1), True, id="and a second one"),
        pytest.param(FULL, False, id="none is free"),
        pytest.param(Turn(limit=1, under_way=4, is_ours=True), True, id="it has its turn, though the limit is lower"),
    ],
)
def test_whether_a_service_may_go(turn: Turn, *, may_go: bool) -> None:
    assert turn.may_go is may_go


def test_how_far_a_long_line_is_is_rounded() -> None:
    words = {ahead: place_words(Turn(1, 1, ahead)) for ahead in (0, 1, 10, 11, 20, 21, 50, 51, 499, 500, 1001)}
    assert words[0] == "it is next"
    assert words[1] == "1 waits before it"
    assert words[10] == "10 wait before it"
    assert [words[n].split()[2] for n in (11, 20, 21, 50, 51, 499, 500, 1001)] == [
        "10", "10", "20", "20", "50", "200", "200", "1000",
    ]  # fmt: skip


# --- generation


def queued(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    with_generation(namespace, FULL)
    namespace.settle()
    return namespace


def test_a_job_that_waits_is_there_and_suspended_and_its_service_says_so() -> None:
    namespace = queued()
    planned = namespace.settle()
    assert namespace.job()["spec"]["suspend"] is True
    assert namespace.reason() == "False Queued"
    assert namespace.reason("VariantsGenerated") == "False Queued"
    assert namespace.reason("Reconciling") == "True Queued"
    assert namespace.reason("Stalled") == "False Progressing"
    message = namespace.condition("Ready")["message"]
    assert "at most 2 generation Jobs run at a time" in message
    assert "generation.maxConcurrentJobs" in message
    assert "it is next" in message
    assert namespace.events == [("Normal", "GenerationQueued")]
    assert planned.standings.generation == Standing(Stance.WAITING, namespace.job()["metadata"]["creationTimestamp"])
    assert planned.look_again_s is None, "it is woken"


def test_a_job_whose_turn_has_come_runs() -> None:
    namespace = queued()
    (name,) = namespace.jobs()
    with_generation(namespace, Turn(limit=2, under_way=1))
    planned = namespace.reconcile()
    assert planned.standings.generation == UNDER_WAY
    assert namespace.jobs() == [name]
    assert namespace.job()["spec"]["suspend"] is False
    assert namespace.reason() == "False Generating"
    assert namespace.events == [("Normal", "GenerationQueued"), ("Normal", "GenerationStarted")]
    with_generation(namespace, OURS)
    namespace.serve()


def test_the_wait_of_a_new_recipe_leaves_the_old_revision_answering() -> None:
    namespace = Namespace()
    namespace.serve()
    with_generation(namespace, FULL)
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert namespace.reason() == "False Queued"
    assert "revision rev-1 keeps answering" in namespace.condition("Ready")["message"]


def test_a_job_that_runs_is_not_suspended_for_a_lower_limit() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    with_generation(namespace, FULL)
    planned = namespace.settle()
    assert namespace.job()["spec"]["suspend"] is False
    assert planned.standings.generation == UNDER_WAY


def test_a_job_that_is_over_needs_no_turn() -> None:
    namespace = Namespace()
    namespace.settle()
    assert namespace.plan().standings.generation == UNDER_WAY
    namespace.fail_job()
    assert namespace.plan().standings.generation == IDLE
    namespace = Namespace()
    namespace.serve()
    assert namespace.plan().standings.generation == IDLE


def test_a_suspended_service_waits_for_nothing_and_keeps_its_place() -> None:
    namespace = queued()
    since = namespace.job()["metadata"]["creationTimestamp"]
    namespace.edit(suspend=True)
    assert namespace.settle().standings.generation == IDLE
    namespace.now += timedelta(hours=1)
    namespace.edit(suspend=False)
    assert namespace.settle().standings.generation == Standing(Stance.WAITING, since)


def test_a_job_that_cannot_start_gives_way_and_one_that_finds_no_node_does_after_ten_minutes() -> None:
    namespace = Namespace()
    namespace.settle()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": ""}}
    namespace.add_pod(namespace.job(), state=waiting)
    assert namespace.settle().standings.generation == IDLE

    namespace = Namespace()
    namespace.settle()
    unschedulable = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}]
    namespace.add_pod(namespace.job(), conditions=unschedulable)
    assert namespace.settle().standings.generation == UNDER_WAY, "a cluster may be growing for it"
    namespace.now += timedelta(minutes=11)
    assert namespace.settle().standings.generation == IDLE


def test_a_job_that_cannot_be_made_takes_no_turn() -> None:
    namespace = Namespace()
    claim = next(manifest for manifest in namespace.plan().apply if manifest["kind"] == "PersistentVolumeClaim")
    namespace.conflicts = (Conflict(observed_ref(claim), "StatefulSet db"),)
    assert namespace.plan().standings.generation == IDLE
    with_generation(namespace, FULL)
    assert namespace.plan().standings.generation == IDLE


# --- rollouts

NEW = make_settings(workerImage="gnnserve/worker:2")


def with_rollout(namespace: Namespace, turn: Turn, followed: str | None = None) -> None:
    namespace.turns = replace(namespace.turns, rollout=turn, followed=followed)


def upgraded(**spec: Any) -> Namespace:
    """The operator has just begun anew with another worker image, while other services are rolled."""
    namespace = Namespace(**spec)
    namespace.serve()
    namespace.settings = NEW
    with_rollout(namespace, FULL)
    namespace.settle()
    return namespace


def image_of(namespace: Namespace) -> str:
    (container,) = namespace.get("Deployment")["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


def test_workers_that_wait_for_a_new_image_answer_on_and_their_service_says_so() -> None:
    namespace = upgraded()
    planned = namespace.settle()
    assert image_of(namespace) == "gnnserve/worker:1"
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Reconciling") == "True RolloutQueued"
    assert namespace.reason("Stalled") == "False Progressing"
    message = namespace.condition("Reconciling")["message"]
    assert "at most 2 services are updated at a time" in message
    assert "rollout.maxConcurrentServices" in message
    assert planned.standings.rollout.stance is Stance.WAITING
    assert planned.look_again_s is None, "it is woken"
    assert [reason for _, reason in namespace.events][-1] == "Ready", "nothing is told as if something had happened"


def test_a_service_has_its_turn_until_every_pod_is_new() -> None:
    namespace = upgraded()
    with_rollout(namespace, Turn(limit=2, under_way=1))
    assert namespace.reconcile().standings.rollout == UNDER_WAY
    assert image_of(namespace) == "gnnserve/worker:2"
    with_rollout(namespace, OURS)
    assert namespace.settle().standings.rollout == UNDER_WAY
    assert namespace.reason() == "False RollingOut"
    namespace.serve()
    assert namespace.plan().standings.rollout == IDLE


def test_a_roll_without_progress_gives_its_turn_to_the_next() -> None:
    namespace = upgraded()
    with_rollout(namespace, OURS)
    namespace.settle()
    stopped = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    deployment = namespace.get("Deployment")
    deployment["status"] |= {"observedGeneration": deployment["metadata"]["generation"], "conditions": [stopped]}
    assert namespace.settle().standings.rollout == IDLE


def test_one_that_is_being_replaced_already_does_not_wait_for_the_image_that_mends_it() -> None:
    namespace = upgraded()
    deployment = namespace.get("Deployment")
    deployment["status"] |= {"replicas": 2, "updatedReplicas": 1}
    assert namespace.reconcile().standings.rollout == UNDER_WAY
    assert image_of(namespace) == "gnnserve/worker:2"


USERS: list[tuple[str, dict[str, Any]]] = [
    ("another image", {"image": "gnnserve/worker:3"}),
    ("more memory", {"worker": {"resources": {"limits": {"memory": "8Gi"}}}}),
    ("another number of workers", {"worker": {"replicas": 2}}),
]


@pytest.mark.parametrize("edit", [case[1] for case in USERS], ids=[case[0] for case in USERS])
def test_what_a_user_changes_about_the_pods_waits_for_nobody(edit: dict[str, Any]) -> None:
    namespace = upgraded()
    with_rollout(namespace, FULL, namespace.plan().followed)
    namespace.edit(**edit)
    assert namespace.reconcile().standings.rollout == IDLE, "nor does it count"
    assert namespace.get("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] != "gnnserve/worker:1"


def test_what_is_changed_elsewhere_in_the_spec_does_not_jump_the_line() -> None:
    namespace = upgraded()
    with_rollout(namespace, FULL, namespace.plan().followed)
    namespace.edit(objective={"latencyMs": 5})
    namespace.settle()
    assert image_of(namespace) == "gnnserve/worker:1"
    assert namespace.table().objective.latency_ms == 5


def test_a_later_change_of_the_spec_is_the_users_though_the_process_is_the_same() -> None:
    namespace = Namespace()
    namespace.serve()
    with_rollout(namespace, FULL, namespace.plan().followed)
    namespace.edit(worker={"resources": {"limits": {"memory": "8Gi"}}})
    namespace.settle()
    limits = namespace.get("Deployment")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi"}


def test_workers_that_are_not_wanted_or_not_there_wait_for_nobody() -> None:
    namespace = Namespace()
    with_rollout(namespace, FULL)
    namespace.serve()
    namespace.edit(suspend=True)
    namespace.settle()
    namespace.settings = NEW
    namespace.settle()
    assert image_of(namespace) == "gnnserve/worker:2"


def test_a_service_without_a_ready_worker_goes_first() -> None:
    namespace = upgraded()
    assert namespace.plan().standings.rollout == Standing(Stance.WAITING, "1")
    for pod in namespace.workers().values():
        pod["status"]["conditions"] = []
    assert namespace.plan().standings.rollout == Standing(Stance.WAITING, "0")
    namespace.settle()
    assert namespace.reason() == "False WorkersStarting"
    assert "wait to be updated" in namespace.condition("Reconciling")["message"]


def test_workers_that_leave_a_claim_that_is_being_deleted_wait_for_no_turn() -> None:
    """Nothing else could make the claim go, and the new image comes with them."""
    namespace = upgraded()
    namespace.get("PersistentVolumeClaim")["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settle()
    namespace.finish_job()
    planned = namespace.settle()
    assert planned.standings.rollout == IDLE
    (volume,) = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in namespace.get("Deployment")["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert (volume, image_of(namespace)) == ("digits-repository-2", "gnnserve/worker:2")
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"


def test_workers_of_a_users_claim_that_is_being_deleted_are_not_replaced_by_the_operator() -> None:
    """None could start in their place."""
    namespace = Namespace(repository={"claimName": "shared"})
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "shared", "uid": "u-shared"}, "spec": {}}
    namespace.objects["PersistentVolumeClaim", "shared"] = claim
    namespace.serve()
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settings = NEW
    planned = namespace.settle()
    assert image_of(namespace) == "gnnserve/worker:1"
    assert planned.standings.rollout == IDLE, "it keeps no other service waiting"
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Reconciling") == "True VolumeClaimTerminating"
    namespace.now += timedelta(minutes=16)
    namespace.settle()
    assert namespace.reason("Stalled") == "True VolumeClaimTerminating", "nothing goes on by itself"
    del claim["metadata"]["deletionTimestamp"]
    namespace.settle()
    assert image_of(namespace) == "gnnserve/worker:2"


def test_a_deployment_that_cannot_be_applied_takes_no_turn() -> None:
    """It would keep every other service waiting for as long as somebody else's object is there."""
    namespace = upgraded()
    account = next(manifest for manifest in namespace.plan().apply if manifest["kind"] == "ServiceAccount")
    namespace.conflicts = (Conflict(observed_ref(account), "ServiceAccount of somebody else"),)
    with_rollout(namespace, Turn(limit=2, under_way=1))
    planned = namespace.plan()
    assert all(manifest["kind"] != "Deployment" for manifest in planned.apply)
    assert planned.standings.rollout == IDLE
    with_rollout(namespace, FULL)
    assert namespace.plan().standings.rollout == IDLE
