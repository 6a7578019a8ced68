"""Compaction of the log of changes: when its Job begins, what becomes of it, and what is said meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from tests.support.operator.observed import Namespace, make_route, make_settings
from tests.support.operator.planned_compaction import LITTLE, MUCH, environment, living, tell
from tests.support.operator.planned_updates import CREDENTIALS, POSTGRES, SQLITE

from gnnserve_api.pods.change_log import UpdatesProblem, UpdatesState
from gnnserve_api.pods.routing import Damage
from gnnserve_operator.fleet import NO_LIMIT, Turn
from gnnserve_operator.kinds import observed_ref
from gnnserve_operator.observed import Rejection

FULL = msgspec.structs.replace(MUCH, problem=UpdatesProblem("DeltaFull", "changes take 2 GiB"))


def compacting(updates: dict[str, Any] = POSTGRES, **spec: Any) -> Namespace:
    """A service whose compaction has begun."""
    namespace = living(updates, **spec)
    tell(namespace, *[MUCH] * len(namespace.workers()))
    namespace.settle()
    assert len(namespace.jobs()) == 2
    namespace.start_job()
    namespace.settle()
    return namespace


def switch(namespace: Namespace, base: int, revision: str = "rev-2") -> None:
    """Workers load what is declared, and have few changes again."""
    assert namespace.table().revision == revision
    few = msgspec.structs.replace(LITTLE, base=base, last=base, applied=base, changes_since_base=0, delta_bytes=0)
    tell(namespace, *[few] * len(namespace.workers()))
    namespace.settle()


def message(namespace: Namespace, kind: str) -> str:
    return str(namespace.condition(kind)["message"])


# --- when it begins


@pytest.mark.parametrize(
    ("state", "compaction", "is_due"),
    [
        pytest.param(LITTLE, {}, False, id="little of both"),
        pytest.param(msgspec.structs.replace(LITTLE, delta_bytes=2**30 - 1), {}, False, id="a byte less than half"),
        pytest.param(MUCH, {}, True, id="half of the memory"),
        pytest.param(MUCH, {"deltaPercent": 51}, False, id="less memory than the spec says"),
        pytest.param(LITTLE, {"changes": 1000}, False, id="few changes"),
        pytest.param(
            msgspec.structs.replace(LITTLE, changes_since_base=1000), {"changes": 1000}, True, id="many changes"
        ),
        pytest.param(
            msgspec.structs.replace(LITTLE, changes_since_base=10_000_000), {}, True, id="as many as by default"
        ),
        pytest.param(
            msgspec.structs.replace(LITTLE, problem=UpdatesProblem("DeltaFull", "full")), {}, True, id="no room left"
        ),
        pytest.param(
            msgspec.structs.replace(MUCH, problem=UpdatesProblem("LogConflict", "another's")), {}, False,
            id="a log that is not its own",
        ),
        pytest.param(msgspec.structs.replace(MUCH, base=7), {}, False, id="changes since another graph"),
        pytest.param(
            msgspec.structs.replace(MUCH, base=UNSET, changes_since_base=UNSET, delta_bytes=UNSET), {}, False,
            id="a worker that does not tell",
        ),
    ],
)  # fmt: skip
def test_it_begins_when_changes_take_too_much(state: UpdatesState, compaction: dict[str, Any], is_due: bool) -> None:
    namespace = living({**POSTGRES, "compaction": compaction})
    (first,) = namespace.jobs()
    tell(namespace, state)
    namespace.settle()
    assert len(namespace.jobs()) == (2 if is_due else 1)
    assert first in namespace.jobs(), "it is the record of the published revision"
    assert namespace.reason() == "True Serving"


def test_one_worker_of_several_is_enough() -> None:
    namespace = living(replicas=3)
    tell(namespace, LITTLE, MUCH, LITTLE)
    namespace.settle()
    assert len(namespace.jobs()) == 2


def test_workers_of_another_revision_do_not_count() -> None:
    """It has the same offset: both were made of the source."""
    namespace = living()
    other = msgspec.structs.replace(namespace.table(), revision="rev-0")
    tell(namespace, MUCH, table=other)
    namespace.settle()
    assert len(namespace.jobs()) == 1


def test_its_job_is_of_the_same_recipe_and_names_the_revision() -> None:
    namespace = compacting()
    first, second = namespace.jobs()
    job = namespace.job()
    assert first != second
    assert environment(job)["GNNSERVE_COMPACT"] == "rev-1"
    assert "GNNSERVE_RETRAIN" not in environment(job)
    assert job["metadata"]["labels"]["gnnserve.dev/recipe"] == namespace.recipe
    assert namespace.reason() == "True Serving"
    assert namespace.reason("VariantsGenerated") == "True Published"
    assert namespace.reason("Reconciling") == "True Compacting"
    assert f"Job {second} compacts the log of changes; follow it by" in message(namespace, "Reconciling")
    assert namespace.reason("Stalled") == "False Progressing"
    assert namespace.reason("UpdatesFollowed") == "True Following"
    assert namespace.events == [("Normal", "CompactionStarted")]


def test_networks_are_trained_anew_where_the_spec_says_so() -> None:
    namespace = compacting({**POSTGRES, "compaction": {"retrain": True}})
    assert environment(namespace.job())["GNNSERVE_RETRAIN"] == "true"


def test_what_is_said_of_compaction_is_no_part_of_the_recipe_and_replaces_no_pod() -> None:
    namespace = living()
    recipe, pods = namespace.recipe, namespace.workers()
    namespace.edit(updates={**POSTGRES, "compaction": {"deltaPercent": 90, "changes": 1000, "retrain": True}})
    namespace.settle()
    assert (namespace.recipe, namespace.workers()) == (recipe, pods)
    assert len(namespace.jobs()) == 1
    assert namespace.reason("Reconciling") == "False Settled"


# --- its end


@pytest.mark.parametrize("updates", [SQLITE, POSTGRES], ids=["SQLite", "PostgreSQL"])
def test_its_revision_is_published_and_workers_switch_while_they_answer(updates: dict[str, Any]) -> None:
    namespace = compacting(updates)
    before = namespace.table()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    assert namespace.table().revision == "rev-2"
    assert namespace.reason() == "True Serving", "workers answer as well from the revision before"
    assert "answer from revision rev-1, soon from rev-2" in message(namespace, "Ready")
    assert namespace.reason("Reconciling") == "True RevisionSwitching"
    tell(namespace, msgspec.structs.replace(MUCH, last=12, applied=12), table=before)
    namespace.settle()
    assert len(namespace.jobs()) == 1, "what is taken since an older graph does not count"
    switch(namespace, base=9)
    assert (namespace.reason(), namespace.reason("Reconciling")) == ("True Serving", "False Settled")
    assert message(namespace, "Ready").endswith("answer from revision rev-2.")
    assert namespace.events == [("Normal", "CompactionStarted"), ("Normal", "RevisionPublished")]


def test_earlier_jobs_are_deleted_once_its_revision_is_published() -> None:
    """They tell of a graph that has fewer changes."""
    namespace = compacting()
    _, second = namespace.jobs()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    assert namespace.jobs() == [second]
    switch(namespace, base=9)
    much = msgspec.structs.replace(MUCH, base=9, last=20, applied=20)
    tell(namespace, much)
    namespace.settle()
    assert len(namespace.jobs()) == 2, "the next one, of the next revision"
    assert environment(namespace.job())["GNNSERVE_COMPACT"] == "rev-2"
    namespace.finish_job("rev-3", offset=20)
    namespace.settle()
    assert (namespace.table().revision, len(namespace.jobs())) == ("rev-3", 1)


def test_a_job_whose_pod_is_gone_brings_no_earlier_revision_back() -> None:
    namespace = compacting()
    first, second = (namespace.get("Job", name) for name in namespace.jobs())
    pods = dict(namespace.pods)
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    switch(namespace, base=9)
    # A watch that is behind tells of the first Job, and its pod, again; that of the second is collected.
    second_name = second["metadata"]["name"]
    namespace.objects["Job", first["metadata"]["name"]] = first
    namespace.pods = {
        name: pod for name, pod in (pods | namespace.pods).items()
        if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") != second_name
    }  # fmt: skip
    namespace.settle()
    assert namespace.table().revision == "rev-2"
    assert first["metadata"]["name"] not in namespace.jobs()


def test_the_job_that_compacted_remembers_when_the_config_map_is_edited() -> None:
    namespace = compacting()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    switch(namespace, base=9)
    table = namespace.table()
    data = namespace.get("ConfigMap")["data"]
    data["routing.json"] = data["routing.json"].replace("rev-2", "rev-0")
    namespace.reconcile()
    assert namespace.table() == table


def test_the_status_tells_the_offset_that_is_compacted() -> None:
    namespace = compacting()
    assert namespace.status["updates"]["base"] == 0
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    namespace.now += timedelta(minutes=2)
    switch(namespace, base=9)
    assert namespace.status["updates"]["base"] == 9


def test_it_goes_on_to_the_end_whatever_workers_say_meanwhile() -> None:
    """A worker that starts anew has applied little at first."""
    namespace = compacting()
    jobs = namespace.jobs()
    tell(namespace, LITTLE)
    namespace.settle()
    namespace.routes = dict.fromkeys(namespace.workers(), "loading revision rev-1")
    namespace.settle()
    assert namespace.jobs() == jobs


def test_an_operator_that_starts_anew_goes_on_with_the_same_job() -> None:
    namespace = compacting()
    job = namespace.job()
    namespace.status, namespace.routed, namespace.wait = {}, None, None
    tell(namespace, LITTLE)
    namespace.settle()
    assert namespace.job() == job
    namespace.finish_job("rev-2", offset=9)
    namespace.status = {}
    namespace.settle()
    assert namespace.table().revision == "rev-2"


def test_a_result_that_is_yet_to_be_read_is_waited_for() -> None:
    namespace = compacting()
    jobs, job = namespace.jobs(), namespace.job()
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": namespace.now.strftime("%FT%TZ")}
    job["status"] = {"conditions": [complete]}
    tell(namespace, LITTLE)
    planned = namespace.reconcile()
    assert namespace.jobs() == jobs
    assert planned.look_again_s == 1.0
    assert namespace.reason() == "True Serving"
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    assert namespace.table().revision == "rev-2"


def test_a_job_whose_pod_was_never_seen_to_end_is_made_again() -> None:
    namespace = compacting()
    job = namespace.job()
    namespace.finish_job("rev-2", offset=9)
    namespace.pods = namespace.workers()
    namespace.now += timedelta(minutes=5)
    namespace.settle()
    assert namespace.job()["metadata"]["name"] == job["metadata"]["name"]
    assert namespace.job()["status"] == {}, "it is a new one"
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    assert namespace.table().revision == "rev-2"


def test_an_upgrade_of_the_image_does_not_throw_it_away() -> None:
    namespace = compacting()
    jobs = namespace.jobs()
    namespace.settings = make_settings(workerImage="gnnserve/worker:2")
    namespace.reconcile()
    namespace.roll_out()
    tell(namespace, MUCH)
    namespace.settle()
    assert namespace.jobs() == jobs
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    assert namespace.table().revision == "rev-2"


# --- what comes between


def test_a_suspended_service_compacts_nothing_and_goes_on_later() -> None:
    namespace = compacting()
    jobs = namespace.jobs()
    namespace.edit(suspend=True)
    namespace.settle()
    assert namespace.jobs() == jobs
    assert namespace.job()["spec"]["suspend"] is True
    assert namespace.reason() == "False Suspended"
    namespace.edit(suspend=False)
    namespace.settle()
    assert namespace.job()["spec"]["suspend"] is False


def test_a_suspended_service_begins_none() -> None:
    namespace = living()
    tell(namespace, MUCH)
    namespace.edit(suspend=True)
    namespace.settle()
    assert len(namespace.jobs()) == 1


def test_another_recipe_ends_it() -> None:
    namespace = compacting()
    first, _ = namespace.jobs()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert len(namespace.jobs()) == 2
    assert namespace.jobs()[0] == first, "workers answer from its revision"
    assert "GNNSERVE_COMPACT" not in environment(namespace.job())
    namespace.finish_job("rev-9", offset=9)
    namespace.settle()
    assert namespace.table().revision == "rev-9"


def test_updates_that_are_turned_off_end_it() -> None:
    namespace = compacting()
    first, _ = namespace.jobs()
    namespace.edit(updates=None)
    namespace.settle()
    assert namespace.jobs() == [first]


def test_a_damaged_revision_is_repaired_and_not_compacted() -> None:
    namespace = compacting()
    damaged = make_route(
        namespace.table(), credentials=CREDENTIALS, updates=MUCH, damaged=Damage("rev-1"), problem="x1.npy: was altered"
    )
    namespace.routes = dict.fromkeys(namespace.workers(), damaged)
    namespace.settle()
    assert namespace.reason() == "False RevisionDamaged"
    assert len(namespace.jobs()) == 1
    assert "GNNSERVE_COMPACT" not in environment(namespace.job())


def test_a_repair_of_a_compacted_revision_counts_though_its_graph_is_older() -> None:
    namespace = compacting()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    switch(namespace, base=9)
    damaged = make_route(
        namespace.table(), credentials=CREDENTIALS, updates=LITTLE, damaged=Damage("rev-2"), problem="x1.npy: altered"
    )
    namespace.routes = dict.fromkeys(namespace.workers(), damaged)
    namespace.settle()
    assert namespace.reason() == "False RevisionDamaged"
    namespace.finish_job("rev-1", offset=0)
    namespace.settle()
    assert (namespace.table().revision, namespace.table().repair) == ("rev-1", 1)
    tell(namespace, LITTLE)
    namespace.settle()
    assert (namespace.reason(), namespace.table().revision) == ("True Serving", "rev-1")


def test_it_waits_for_its_turn_among_generation_jobs() -> None:
    namespace = living()
    namespace.turns = replace(NO_LIMIT, generation=Turn(limit=1, under_way=1))
    tell(namespace, MUCH)
    namespace.settle()
    job = namespace.job()
    assert job["spec"]["suspend"] is True
    assert namespace.reason("Reconciling") == "True Queued"
    assert (namespace.reason(), namespace.reason("VariantsGenerated")) == ("True Serving", "True Published")
    namespace.turns = NO_LIMIT
    namespace.settle()
    assert namespace.job()["spec"]["suspend"] is False
    assert namespace.events == [("Normal", "CompactionStarted")]


def test_a_claim_that_goes_is_left_without_what_was_compacted() -> None:
    """The next claim's revision is made of the source, so that its offset is lower."""
    namespace = compacting()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    switch(namespace, base=9)
    claim = namespace.get("PersistentVolumeClaim")["metadata"]
    assert namespace.get("ConfigMap")["metadata"]["annotations"]["gnnserve.dev/claim"] == claim["uid"]
    claim["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    namespace.settle()
    assert "changes up to offset 9, which are compacted into it" in message(namespace, "RepositoryKept")
    namespace.finish_job("rev-1", offset=0)
    namespace.settle()
    assert namespace.table().revision == "rev-1"
    assert namespace.get("ConfigMap")["metadata"]["annotations"]["gnnserve.dev/claim"] != claim["uid"]


# --- failures


def test_a_failure_is_told_and_workers_answer_on() -> None:
    namespace = compacting()
    jobs = namespace.jobs()
    namespace.fail_job(4, "no space left on device")
    planned = namespace.settle()
    assert namespace.jobs() == jobs, "it stays as the record"
    assert (namespace.reason(), namespace.reason("Stalled")) == ("True Serving", "False CompactionFailed")
    assert namespace.reason("Reconciling") == "False Settled"
    assert namespace.reason("UpdatesFollowed") == "False CompactionFailed"
    said = message(namespace, "UpdatesFollowed")
    assert "no space left on device" in said
    assert f"`kubectl --namespace shop delete job {jobs[1]}`" in said
    assert "By itself it is tried again an hour after that." in said
    assert namespace.events == [("Normal", "CompactionStarted"), ("Warning", "CompactionFailed")]
    assert planned.look_again_s == 15.0, "no event tells of the end of the hour"


def test_the_first_attempt_that_fails_is_told_and_the_last_one_too() -> None:
    namespace = compacting()
    _, job = namespace.jobs()
    namespace.fail_attempt(4, "no space left on device")
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("UpdatesFollowed") == "False CompactionRetrying"
    said = message(namespace, "UpdatesFollowed")
    assert f"an attempt of Job {job} failed, pod {job}-" in said
    assert "no space left on device" in said
    assert namespace.reason("Reconciling") == "True Compacting"
    namespace.fail_job(4, "no space left on device")
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False CompactionFailed"
    assert namespace.events[1:] == [("Warning", "CompactionRetrying"), ("Warning", "CompactionFailed")]


def test_an_attempt_that_failed_is_forgotten_once_another_one_is_done() -> None:
    namespace = compacting()
    namespace.fail_attempt(4, "no space left on device")
    namespace.settle()
    namespace.finish_job("rev-2", offset=9)
    namespace.settle()
    switch(namespace, base=9)
    assert namespace.reason("UpdatesFollowed") == "True Following"
    assert namespace.reason("Stalled") == "False Settled"


def test_what_failed_beside_the_answers_is_not_called_done() -> None:
    namespace = compacting()
    namespace.fail_job(4, "no space left on device")
    namespace.settle()
    assert message(namespace, "Stalled") == (
        "No person has to act so that requests are answered; not all is done: see UpdatesFollowed."
    )


def test_a_failed_job_is_made_again_after_an_hour_while_changes_take_as_much() -> None:
    namespace = compacting()
    namespace.fail_job(1, "unexpected")
    namespace.settle()
    failed = namespace.job()["metadata"]["uid"]
    namespace.now += timedelta(minutes=59)
    tell(namespace, LITTLE)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == failed
    namespace.now += timedelta(minutes=1)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == failed, "there is no need for it"
    tell(namespace, MUCH)
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] != failed
    assert namespace.reason("Reconciling") == "True Compacting"
    assert namespace.reason("UpdatesFollowed") == "True Following"


FIXES: list[tuple[str, dict[str, Any]]] = [
    ("another image", {"image": "gnnserve/worker:2"}),
    ("more memory", {"generation": {"resources": {"limits": {"memory": "8Gi"}}}}),
    ("more time", {"generation": {"deadlineSeconds": 3600}}),
    ("more attempts", {"generation": {"retries": 3}}),
]


@pytest.mark.parametrize("fix", [case[1] for case in FIXES], ids=[case[0] for case in FIXES])
def test_a_spec_that_changes_what_the_job_does_tries_again(fix: dict[str, Any]) -> None:
    namespace = compacting()
    namespace.fail_job(1, "unexpected")
    namespace.settle()
    namespace.edit(**fix)
    namespace.settle()
    assert len(namespace.jobs()) == 2
    assert namespace.job()["status"] == {}, "it is a new one"


def test_deleting_a_failed_job_tries_again() -> None:
    namespace = compacting()
    namespace.fail_job(1, "unexpected")
    namespace.settle()
    _, name = namespace.jobs()
    del namespace.objects["Job", name]
    namespace.settle()
    assert namespace.jobs()[1] == name
    assert namespace.job()["status"] == {}


def test_a_job_that_compacts_nothing_is_not_repeated_for_ever() -> None:
    namespace = compacting()
    _, name = namespace.jobs()
    namespace.finish_job("rev-2", offset=0)
    namespace.settle()
    assert namespace.table().revision == "rev-1"
    assert namespace.reason("UpdatesFollowed") == "False CompactionFailed"
    assert "rev-2 that it made has no more changes" in message(namespace, "UpdatesFollowed")
    job = namespace.job()
    for _ in range(50):
        namespace.reconcile()
    assert namespace.job() == job
    namespace.now += timedelta(hours=1)
    namespace.settle()
    assert (namespace.job()["metadata"]["name"], namespace.job()["status"]) == (name, {})


def test_a_result_that_the_operator_does_not_understand_is_a_failure() -> None:
    namespace = compacting()
    namespace.finish_job(message="{")
    namespace.settle()
    assert (namespace.reason(), namespace.reason("UpdatesFollowed")) == ("True Serving", "False CompactionFailed")
    assert "are of different versions" in message(namespace, "UpdatesFollowed")


def test_a_pod_that_cannot_start_is_told_and_ready_stays() -> None:
    namespace = living()
    tell(namespace, MUCH)
    namespace.settle()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    namespace.add_pod(namespace.job(), state=waiting)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("True Serving", "False CompactionFailed")
    assert namespace.reason("UpdatesFollowed") == "False CompactionFailed"
    assert "not found" in message(namespace, "UpdatesFollowed")


def test_a_pod_that_finds_no_node_is_waited_for_and_then_called_stalled() -> None:
    namespace = living()
    tell(namespace, MUCH)
    namespace.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    namespace.add_pod(namespace.job(), conditions=[condition])
    namespace.settle()
    assert namespace.reason("Reconciling") == "True Compacting"
    assert "0/3 nodes" in message(namespace, "Reconciling")
    assert namespace.reason("UpdatesFollowed") == "True Following"
    namespace.now += timedelta(minutes=15)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("True Serving", "True Compacting")
    namespace.pods = namespace.workers()
    namespace.start_job()
    namespace.settle()
    assert namespace.reason("Reconciling") == "True Compacting"


def test_a_job_that_the_api_server_refuses_is_no_obstacle_to_answers() -> None:
    namespace = living()
    tell(namespace, MUCH)
    namespace.settle()
    ref = observed_ref(namespace.job())
    del namespace.objects["Job", ref.name]
    namespace.rejections = (Rejection(ref, "exceeded quota: count/jobs.batch"),)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Stalled")) == ("True Serving", "False CompactionFailed")
    assert namespace.reason("UpdatesFollowed") == "False CompactionFailed"
    assert "exceeded quota" in message(namespace, "UpdatesFollowed")


# --- no room


def test_compaction_that_does_not_keep_up_is_said_to() -> None:
    namespace = compacting()
    tell(namespace, FULL)
    namespace.settle()
    _, name = namespace.jobs()
    assert (namespace.reason(), namespace.reason("UpdatesFollowed")) == ("True Serving", "False DeltaFull")
    said = message(namespace, "UpdatesFollowed")
    assert f"Compaction does not keep up: Job {name} compacts the log of changes" in said
    assert "Requests are answered, and no changes taken." in said
    namespace.fail_job(4, "no space left on device")
    namespace.settle()
    assert namespace.reason("UpdatesFollowed") == "False DeltaFull"
    assert "Compaction does not keep up: Job" in message(namespace, "UpdatesFollowed")
    assert "no space left on device" in message(namespace, "UpdatesFollowed")


def test_workers_without_room_begin_it() -> None:
    namespace = living({**POSTGRES, "compaction": {"deltaPercent": 90}})
    tell(namespace, msgspec.structs.replace(FULL, delta_bytes=0))
    namespace.settle()
    assert len(namespace.jobs()) == 2
    assert "Compaction does not keep up" in message(namespace, "UpdatesFollowed")


def test_the_log_of_a_graph_of_several_types_is_compacted_too() -> None:
    namespace = living(graph={"source": {"typed": {"npz": {"uri": "file:///shop"}}}})
    tell(namespace, *[FULL] * len(namespace.workers()))
    namespace.settle()
    assert len(namespace.jobs()) == 2
