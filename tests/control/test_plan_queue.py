"""A Job that a queue of the cluster, or a person, suspends: it is left so, and its service says what it waits for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.operator.observed import Namespace, make_settings
from tests.support.operator.planned_compaction import MUCH, living, tell
from tests.support.operator.planned_embeddings import embedding_jobs, end, serving
from tests.support.operator.planned_turns import FULL, with_generation

from gnnserve_operator.desired.metadata import QUEUE_NAME
from gnnserve_operator.fleet import IDLE, UNDER_WAY

IN_QUEUE = {QUEUE_NAME: "team-a"}
PRIORITY = "kueue.x-k8s.io/priority-class"


def in_queue(**spec: Any) -> Namespace:
    """Its Job waits in the queue, whose webhook has suspended it."""
    namespace = Namespace(**spec)
    namespace.labels = {**IN_QUEUE, PRIORITY: "low", "team": "search"}
    namespace.settle()
    namespace.suspend_job()
    namespace.settle()
    return namespace


def labels_of(job: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in job["metadata"]["labels"].items() if name.startswith("kueue")}


def test_a_job_that_another_suspends_is_left_so_and_its_service_is_queued() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.suspend_job()
    planned = namespace.settle()
    assert namespace.job()["spec"]["suspend"] is True
    assert namespace.reason() == "False Queued"
    assert namespace.reason("Reconciling") == "True Queued"
    assert namespace.reason("Stalled") == "False Progressing"
    message = namespace.condition("Ready")["message"]
    (name,) = namespace.jobs()
    assert f"Job {name} is suspended, not by the operator" in message
    assert f"`kubectl --namespace shop patch job {name} --type=merge" in message
    assert planned.standings.generation == IDLE, "it keeps no other service waiting"
    assert planned.look_again_s is None

    namespace.now += timedelta(days=2)
    namespace.settle()
    assert namespace.reason("Stalled") == "False Progressing", "a queue may be long"

    namespace.suspend_job(suspend=False)
    assert namespace.settle().standings.generation == UNDER_WAY
    assert namespace.jobs() == [name]
    assert [reason for _, reason in namespace.events] == ["GenerationStarted", "GenerationQueued", "GenerationStarted"]
    namespace.serve()


def test_the_queues_labels_go_to_the_job_and_the_message_names_the_queue() -> None:
    namespace = in_queue()
    assert labels_of(namespace.job()) == {**IN_QUEUE, PRIORITY: "low"}
    assert "team" not in namespace.job()["metadata"]["labels"]
    assert "team-a" not in str(namespace.job()["spec"]["template"]), "no part of what a Job is named after"
    message = namespace.condition("Ready")["message"]
    assert "waits in queue team-a" in message
    assert "`kubectl --namespace shop describe workloads`" in message
    assert f"`kubectl --namespace shop label gnns digits {QUEUE_NAME}-`" in message


def test_a_job_that_is_preempted_goes_on_later_and_has_not_failed() -> None:
    namespace = in_queue()
    namespace.suspend_job(suspend=False)
    namespace.start_job()
    namespace.settle()
    assert namespace.reason() == "False Generating"
    (name,) = namespace.jobs()
    namespace.suspend_job()
    namespace.settle()
    assert namespace.reason() == "False Queued"
    assert "failed" not in namespace.condition("Ready")["message"]
    namespace.suspend_job(suspend=False)
    namespace.serve()
    assert namespace.jobs() == [name]


def test_a_waiting_job_follows_another_queue_name_and_one_that_runs_keeps_its_own() -> None:
    namespace = in_queue()
    (name,) = namespace.jobs()
    namespace.labels = {QUEUE_NAME: "team-b"}
    namespace.settle()
    assert labels_of(namespace.job()) == {QUEUE_NAME: "team-b"}
    namespace.suspend_job(suspend=False)
    namespace.settle()
    namespace.labels = {QUEUE_NAME: "team-c"}
    namespace.settle()
    assert labels_of(namespace.job()) == {QUEUE_NAME: "team-b"}, "a queue accepts no other while it runs"
    namespace.serve()
    assert namespace.jobs() == [name], "nothing is generated anew for a label"
    namespace.labels = {}
    namespace.settle()
    assert namespace.jobs() == [name]


def test_a_label_that_names_no_queue_is_none() -> None:
    """As a template leaves it whose value is not set."""
    namespace = Namespace()
    namespace.labels = {QUEUE_NAME: "", PRIORITY: ""}
    with_generation(namespace, FULL)
    namespace.settle()
    assert (namespace.reason(), namespace.job()["spec"]["suspend"]) == ("False Queued", True)
    uid = namespace.job()["metadata"]["uid"]
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] == uid, "it is not made again and again"
    assert labels_of(namespace.job()) == {}


def test_a_label_that_a_queues_own_webhook_gave_is_not_taken_away() -> None:
    """As by a LocalQueue named default, which takes in Jobs that name none."""
    namespace = Namespace()
    namespace.settle()
    namespace.job()["metadata"]["labels"][QUEUE_NAME] = "default"
    namespace.suspend_job()
    namespace.settle()
    assert labels_of(namespace.job()) == {QUEUE_NAME: "default"}
    message = namespace.condition("Ready")["message"]
    assert "waits in queue default" in message
    assert "label gnns" not in message, "the GNNService has no such label"


@pytest.mark.parametrize(("before", "after"), [({}, IN_QUEUE), (IN_QUEUE, {})], ids=["joins", "leaves"])
def test_a_waiting_job_that_joins_or_leaves_a_queue_is_made_again(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """A queue takes a Job in when it is created; one that is no longer in a queue would be held for ever."""
    namespace = Namespace()
    namespace.labels = before
    with_generation(namespace, FULL)
    namespace.settle()
    if before:
        namespace.suspend_job()
        with_generation(namespace, replace(FULL, under_way=0))
    namespace.settle()
    uid = namespace.job()["metadata"]["uid"]
    namespace.labels = after
    namespace.settle()
    assert namespace.job()["metadata"]["uid"] != uid
    assert namespace.job()["spec"]["suspend"] is False
    assert labels_of(namespace.job()) == after


def test_a_job_in_a_queue_waits_for_no_turn_and_counts_while_it_runs() -> None:
    """Two queues for one Job would each start what the other holds."""
    namespace = Namespace()
    namespace.labels = IN_QUEUE
    with_generation(namespace, FULL)
    assert namespace.reconcile().standings.generation == UNDER_WAY
    assert namespace.job()["spec"]["suspend"] is False, "it is the queue that suspends it"
    namespace.suspend_job()
    assert namespace.settle().standings.generation == IDLE
    namespace.suspend_job(suspend=False)
    assert namespace.settle().standings.generation == UNDER_WAY


def test_a_job_that_the_operator_holds_and_another_lets_go_runs() -> None:
    namespace = Namespace()
    with_generation(namespace, FULL)
    namespace.settle()
    assert namespace.job()["spec"]["suspend"] is True
    namespace.suspend_job(suspend=False)
    assert namespace.settle().standings.generation == UNDER_WAY
    assert namespace.job()["spec"]["suspend"] is False


def test_a_job_that_the_operator_holds_and_another_suspends_too_is_the_others_then() -> None:
    namespace = Namespace()
    with_generation(namespace, FULL)
    namespace.settle()
    with_generation(namespace, replace(FULL, under_way=1))
    (entry,) = namespace.job()["metadata"]["managedFields"]
    planned = namespace.plan()
    entry["fieldsV1"].pop("f:spec")  # the apply that follows takes nothing away: another owns the field as well
    for manifest in planned.apply:
        namespace._apply(manifest)
    assert namespace.settle().standings.generation == IDLE
    assert namespace.reason() == "False Queued"


def test_a_suspended_service_has_no_job_in_a_queue_and_makes_it_again() -> None:
    namespace = in_queue()
    namespace.edit(suspend=True)
    namespace.settle()
    assert namespace.jobs() == [], "a queue would start it again, and keeps quota for it meanwhile"
    assert namespace.reason() == "False Suspended"
    namespace.edit(suspend=False)
    namespace.settle()
    assert labels_of(namespace.job()) == {**IN_QUEUE, PRIORITY: "low"}


def test_a_compaction_waits_in_the_queue_while_workers_answer() -> None:
    namespace = living()
    namespace.labels = IN_QUEUE
    tell(namespace, MUCH)
    namespace.settle()
    assert labels_of(namespace.job()) == IN_QUEUE
    namespace.suspend_job()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Reconciling") == "True Queued"
    assert "waits in queue team-a" in namespace.condition("Reconciling")["message"]


def test_embeddings_wait_in_the_queue_while_workers_answer() -> None:
    namespace = Namespace(embeddings={})
    namespace.labels = IN_QUEUE
    namespace.serve()
    (job,) = embedding_jobs(namespace)
    assert labels_of(job) == IN_QUEUE
    namespace.suspend_job(job)
    namespace.settle()
    assert (namespace.reason(), namespace.reason("EmbeddingsPublished")) == ("True Serving", "Unknown Queued")
    assert "waits in queue team-a" in namespace.condition("EmbeddingsPublished")["message"]
    namespace.labels = {}
    namespace.settle()
    (again,) = embedding_jobs(namespace)
    assert again["metadata"]["uid"] != job["metadata"]["uid"]
    assert labels_of(again) == {}


# --- what the API server refuses

QUOTA = (
    'Error creating: pods "{job}-x7k2f" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, '
    "limited: pods=0"
)


def test_a_refused_pod_is_told_at_once_in_the_api_servers_words_and_goes_on_by_itself() -> None:
    namespace = Namespace()
    namespace.settle()
    (name,) = namespace.jobs()
    namespace.refusals = {name: QUOTA.format(job=name)}
    namespace.settle()
    assert namespace.reason("Stalled") == "True PodsForbidden"
    message = namespace.condition("Stalled")["message"]
    quoted = f'pods "{name}-…" is forbidden: exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0.'
    assert f"Job {name} gets no pod: {quoted}" in message
    assert namespace.plan().standings.generation == IDLE, "it keeps no other service waiting"

    namespace.refusals = {name: QUOTA.format(job=name).replace("x7k2f", "ab9zz")}
    assert namespace.plan().status is None, "another attempt says the same"

    namespace.refusals = {}
    namespace.start_job()
    namespace.settle()
    assert namespace.reason("Stalled") == "False Progressing"
    namespace.serve()


def test_many_refusals_that_kubernetes_tells_in_one_event_say_the_same_as_one() -> None:
    namespace = Namespace()
    namespace.settle()
    (name,) = namespace.jobs()
    namespace.refusals = {name: QUOTA.format(job=name)}
    namespace.settle()
    namespace.refusals = {name: f"(combined from similar events): {QUOTA.format(job=name)}"}
    assert namespace.plan().status is None


def test_a_job_whose_attempt_failed_is_not_said_to_lack_a_pod_until_its_next_one_is_refused() -> None:
    namespace = Namespace()
    namespace.settle()
    (name,) = namespace.jobs()
    namespace.fail_attempt(1, "out of luck", "Error")
    namespace.now += timedelta(minutes=2)
    namespace.settle()
    assert namespace.reason() == "False Generating", "Kubernetes waits longer from attempt to attempt"
    namespace.refusals = {name: QUOTA.format(job=name)}
    namespace.settle()
    assert namespace.reason() == "False PodsForbidden"


def test_a_webhook_that_is_away_is_quoted_and_nobody_has_to_act() -> None:
    namespace = Namespace()
    namespace.settle()
    (name,) = namespace.jobs()
    namespace.refusals = {name: "Error creating: Internal error occurred: failed calling webhook"}
    namespace.settle()
    assert namespace.reason() == "False PodsForbidden"
    assert namespace.reason("Stalled") == "False Progressing"


def test_a_job_without_a_pod_is_looked_at_every_second_and_later_less_often() -> None:
    namespace = Namespace()
    namespace.settle()
    assert namespace.plan().look_again_s == 1
    namespace.now += timedelta(minutes=2)
    assert namespace.plan().look_again_s == 10


def test_the_refused_pod_of_embeddings_is_told_too() -> None:
    namespace = serving(embeddings={})
    (job,) = embedding_jobs(namespace)
    name = job["metadata"]["name"]
    namespace.refusals = {name: QUOTA.format(job=name)}
    namespace.settle()
    assert (namespace.reason(), namespace.reason("EmbeddingsPublished")) == ("True Serving", "False PodsForbidden")
    assert "exceeded quota: small" in namespace.condition("EmbeddingsPublished")["message"]


# --- requests by default

DEFAULTS = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "8Gi"}}


def test_defaults_that_a_new_chart_brings_generate_nothing_again() -> None:
    namespace = Namespace(embeddings={})
    namespace.serve()
    end(namespace)
    namespace.settle()
    jobs = namespace.jobs()
    namespace.settings = make_settings(generationResources=DEFAULTS)
    namespace.settle()
    assert namespace.jobs() == jobs, "neither a revision nor its embeddings"
    assert namespace.reason("EmbeddingsPublished") == "True EmbeddingsPublished"
    assert namespace.reason() == "True Serving"


def test_a_job_that_computes_is_kept_when_defaults_change() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    (name,) = namespace.jobs()
    namespace.settings = make_settings(generationResources=DEFAULTS)
    namespace.settle()
    assert namespace.jobs() == [name]


@pytest.mark.parametrize(
    ("asked", "built"),
    [
        pytest.param({}, DEFAULTS, id="nothing is said"),
        pytest.param(
            {"requests": {"memory": "16Gi"}},
            {"requests": {"cpu": "500m", "memory": "16Gi"}},
            id="a request without a limit that would be less",
        ),
        pytest.param(
            {"limits": {"memory": "512Mi", "cpu": "2"}},
            {"limits": {"cpu": "2", "memory": "512Mi"}},
            id="a limit without a request that would be more",
        ),
    ],
)
def test_defaults_fill_in_what_the_spec_does_not_name(asked: dict[str, Any], built: dict[str, Any]) -> None:
    spec = {"generation": {"resources": asked}} if asked else {}
    namespace = Namespace(settings=make_settings(generationResources=DEFAULTS), **spec)
    namespace.settle()
    (container,) = namespace.job()["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == built
