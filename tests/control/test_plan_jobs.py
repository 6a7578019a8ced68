"""The generation Job: when there is one, when it is kept, and what its failure leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.operator.observed import Namespace, make_result, make_settings

from gnnserve_api.pods.generation import encode_result
from gnnserve_operator.decide.repository import is_result_awaited
from gnnserve_operator.desired.metadata import Conflict
from gnnserve_operator.kinds import observed_ref
from gnnserve_operator.observed import ObservedJob, ObservedPod, Rejection


def begun(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.settle()
    return namespace


def serving(**spec: Any) -> Namespace:
    namespace = Namespace(**spec)
    namespace.serve()
    return namespace


def test_an_upgrade_of_the_image_does_not_throw_training_away() -> None:
    namespace = begun()
    namespace.start_job()
    (name,) = namespace.jobs()
    namespace.settings = make_settings(workerImage="gnnserve/worker:2")
    planned = namespace.settle()
    assert namespace.jobs() == [name]
    assert not [manifest for manifest in planned.apply if manifest["kind"] == "Job"], "its template cannot be changed"
    namespace.finish_job()
    namespace.settle()
    assert namespace.table().revision == "rev-1"
    assert namespace.jobs() == [name], "a completed Job of the recipe stays"


NOTHING_TO_LOSE: list[tuple[str, dict[str, Any]]] = [
    ("finds no node", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
    ("has no image", {"state": {"waiting": {"reason": "ImagePullBackOff", "message": ""}}}),
]


@pytest.mark.parametrize("status", [case[1] for case in NOTHING_TO_LOSE], ids=[case[0] for case in NOTHING_TO_LOSE])
def test_a_job_whose_pod_never_ran_gives_way_to_the_corrected_one(status: dict[str, Any]) -> None:
    namespace = begun(image="gnnserve/wroker:1")
    namespace.add_pod(namespace.get("Job"), **status)
    (stuck,) = namespace.jobs()
    namespace.edit(image="gnnserve/worker:1")
    namespace.settle()
    assert stuck not in namespace.jobs()
    assert len(namespace.jobs()) == 1


def test_a_job_whose_pod_has_not_been_told_of_is_not_thrown_away_for_another_image() -> None:
    namespace = begun()
    (name,) = namespace.jobs()
    namespace.job()["status"] = {"startTime": namespace.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    namespace.settings = make_settings(workerImage="gnnserve/worker:2")
    namespace.settle()
    assert namespace.jobs() == [name]
    namespace.now += timedelta(minutes=2)
    namespace.settle()
    (corrected,) = namespace.jobs()
    assert corrected != name, "it is not given a pod"


def test_a_failed_job_is_the_record_and_is_not_tried_again() -> None:
    namespace = begun()
    namespace.fail_job(2, "spec.graph.source.npz.uri: /data/a.npz does not exist", "PodFailurePolicy")
    (name,) = namespace.jobs()
    planned = namespace.settle()
    assert planned.look_again_s is None
    assert namespace.jobs() == [name]
    assert namespace.reason() == "False GenerationFailed"
    assert namespace.reason("Stalled") == "True GenerationFailed"
    assert namespace.reason("Reconciling") == "False GenerationFailed"
    message = namespace.condition("VariantsGenerated")["message"]
    assert "/data/a.npz does not exist" in message
    assert "exit code 2 (bad input)" in message
    assert f"`kubectl --namespace shop delete job {name}`" in message
    assert namespace.events == [("Normal", "GenerationStarted"), ("Warning", "GenerationFailed")]


def test_a_failed_job_is_the_record_while_its_service_is_suspended_and_afterwards() -> None:
    namespace = begun()
    namespace.fail_job(2, "spec.graph.source.npz.uri: /data/a.npz does not exist", "PodFailurePolicy")
    jobs = namespace.jobs()
    for suspend in (True, None):
        namespace.edit(suspend=suspend)
        namespace.settle()
        assert namespace.jobs() == jobs
    assert namespace.reason() == "False GenerationFailed"


def test_a_failure_leaves_the_old_revision_answering() -> None:
    namespace = serving()
    table = namespace.table()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.fail_job(1, "unexpected")
    namespace.settle()
    assert namespace.reason() == "False GenerationFailed"
    assert "revision rev-1 keeps answering" in namespace.condition("Ready")["message"]
    assert namespace.table() == table
    assert namespace.get("Deployment")["spec"]["replicas"] == 1


FIXES: list[tuple[str, dict[str, Any]]] = [
    ("another model", {"model": {"hidden": 64}}),
    ("another image", {"image": "gnnserve/worker:2"}),
    ("more memory", {"generation": {"resources": {"limits": {"memory": "8Gi"}}}}),
    ("more time", {"generation": {"deadlineSeconds": 3600}}),
    ("more attempts", {"generation": {"retries": 3}}),
    ("another volume", {"graph": {"source": {"builtin": "Digits"}, "volume": {"claimName": "graphs"}}}),
]


@pytest.mark.parametrize("fix", [case[1] for case in FIXES], ids=[case[0] for case in FIXES])
def test_a_spec_that_changes_what_the_job_does_tries_again(fix: dict[str, Any]) -> None:
    namespace = begun()
    namespace.fail_job()
    namespace.settle()
    namespace.edit(**fix)
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert namespace.reason("Stalled") == "False Progressing"
    job = namespace.get("Job")
    assert job["status"] == {}, "it is a new one"
    namespace.serve()


def test_an_objective_does_not_try_a_failed_job_again() -> None:
    namespace = begun()
    namespace.fail_job()
    namespace.settle()
    namespace.edit(objective={"latencyMs": 5})
    namespace.settle()
    assert namespace.reason() == "False GenerationFailed"


def test_deleting_a_failed_job_tries_again() -> None:
    namespace = begun()
    namespace.fail_job()
    namespace.settle()
    (name,) = namespace.jobs()
    del namespace.objects["Job", name]
    namespace.settle()
    assert namespace.jobs() == [name]
    assert namespace.reason() == "False Generating"


EXPLANATIONS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "memory",
        {"exit_code": 137, "why": "OOMKilled"},
        ["more memory than its limit of 2Gi", "spec.generation.resources.limits.memory"],
    ),
    (
        "time",
        {"exit_code": 143, "reason": "DeadlineExceeded"},
        ["was not done within 86400 s (spec.generation.deadlineSeconds)", "exit code 143 (stopped)"],
    ),
    ("the repository", {"exit_code": 3, "message": "altered\n"}, ["exit code 3 (the repository): altered."]),
    ("nothing said", {"exit_code": 1}, ["exit code 1 and left no message"]),
]


@pytest.mark.parametrize(("failure", "words"), [c[1:] for c in EXPLANATIONS], ids=[c[0] for c in EXPLANATIONS])
def test_a_failure_is_explained(failure: dict[str, Any], words: list[str]) -> None:
    namespace = begun(generation={"resources": {"limits": {"memory": "2Gi"}}})
    namespace.fail_job(**failure)
    namespace.settle()
    message = namespace.condition("Ready")["message"]
    assert [word for word in words if word not in message] == [], message


def test_a_failure_whose_pods_are_gone_is_told_by_the_job() -> None:
    namespace = begun()
    namespace.fail_job(reason="BackoffLimitExceeded")
    namespace.pods.clear()
    namespace.settle()
    assert "BackoffLimitExceeded: Job has failed" in namespace.condition("Ready")["message"]


def test_an_attempt_that_failed_is_told_while_the_next_runs() -> None:
    namespace = begun()
    namespace.fail_attempt(4, "no space left")
    namespace.start_job()
    namespace.settle()
    assert namespace.reason() == "False Generating"
    assert "exit code 4" in namespace.condition("Ready")["message"]
    assert "no space left" in namespace.condition("Ready")["message"]
    assert namespace.reason("Stalled") == "False Progressing"


def test_a_result_is_waited_for_when_success_is_seen_before_the_pod_ends() -> None:
    namespace = begun()
    namespace.start_job()
    namespace.get("Job")["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    planned = namespace.settle()
    assert (planned.delete, planned.look_again_s) == ((), 1.0)
    assert namespace.reason() == "False Generating"


def test_a_result_that_nothing_tells_of_any_more_is_asked_for_by_another_job() -> None:
    namespace = begun()
    namespace.finish_job()
    namespace.pods.clear()
    namespace.now += timedelta(minutes=2)
    planned = namespace.reconcile()
    assert len(planned.delete) == 1
    assert not [manifest for manifest in planned.apply if manifest["kind"] == "Job"], "not before the old one is gone"
    assert planned.look_again_s == 1.0
    namespace.settle()
    assert namespace.get("Job")["status"] == {}


@pytest.mark.parametrize("seen", ["no pod at all", "an attempt that failed"])
def test_a_job_that_is_done_is_not_made_again_while_the_watch_of_pods_is_behind(seen: str) -> None:
    namespace = begun()
    if seen == "an attempt that failed":
        namespace.fail_attempt(4, "no space left")
    attempts = dict(namespace.pods)
    namespace.finish_job()
    told = namespace.pods
    namespace.pods = attempts
    planned = namespace.reconcile()
    assert (planned.delete, planned.look_again_s) == ((), 1.0)
    assert "is being read" in namespace.condition("Ready")["message"]
    namespace.pods = told
    namespace.settle()
    assert namespace.table().revision == "rev-1"


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DONE = ObservedJob("j", "r", succeeded=True)


@pytest.mark.parametrize(
    ("job", "pods", "is_awaited"),
    [
        pytest.param(DONE, (ObservedPod("p", "generate", "j", phase="Running"),), True, id="a pod that runs"),
        pytest.param(DONE, (ObservedPod("p", "generate", "j", phase="Unknown"),), True, id="a node that is cut off"),
        pytest.param(DONE, (ObservedPod("p", "generate", "j", phase="Failed"),), False, id="rejected by the kubelet"),
        pytest.param(replace(DONE, succeeded_at="2026-01-01T11:59:00Z"), (), True, id="a minute ago"),
        pytest.param(replace(DONE, succeeded_at="2026-01-01T12:01:00Z"), (), True, id="by a clock a minute ahead"),
        pytest.param(replace(DONE, succeeded_at="2026-01-01T15:00:00Z"), (), False, id="by a clock hours ahead"),
    ],
)  # fmt: skip
def test_a_result_is_awaited_for_as_long_as_one_may_come(
    job: ObservedJob, pods: tuple[ObservedPod, ...], is_awaited: bool
) -> None:
    assert is_result_awaited(job, pods, NOW) == is_awaited


def test_a_job_whose_pod_is_done_before_it_says_so_is_not_thrown_away_for_another_image() -> None:
    namespace = begun()
    (name,) = namespace.jobs()
    namespace.finish_job()
    complete, namespace.job()["status"] = namespace.job()["status"], {}
    namespace.settings = make_settings(workerImage="gnnserve/worker:2")
    namespace.settle()
    assert namespace.jobs() == [name]
    namespace.job()["status"] = complete
    namespace.settle()
    assert namespace.table().revision == "rev-1"


def test_a_result_of_another_version_stalls_and_does_not_loop() -> None:
    namespace = begun()
    namespace.finish_job(message='{"revision": "r", "novel": 1}')
    planned = namespace.settle()
    assert (planned.delete, planned.look_again_s) == ((), None)
    assert namespace.reason() == "False ResultUnreadable"
    assert namespace.reason("Stalled") == "True ResultUnreadable"


def test_a_result_of_another_recipe_is_not_served() -> None:
    namespace = begun()
    namespace.finish_job(message=encode_result(make_result("0123456789abcdef")))
    namespace.settle()
    assert namespace.reason() == "False ResultUnreadable"
    assert "0123456789abcdef" in namespace.condition("Ready")["message"]


def test_the_config_map_remembers_when_job_and_pods_are_gone() -> None:
    namespace = serving()
    namespace.objects.pop(("Job", namespace.jobs()[0]))
    for name in [name for name in namespace.pods if "generate" in name]:
        del namespace.pods[name]
    namespace.settle()
    assert namespace.jobs() == []
    assert namespace.reason() == "True Serving"


def test_the_job_remembers_when_the_config_map_is_edited() -> None:
    namespace = serving()
    table = namespace.table()
    config_map = namespace.get("ConfigMap")
    config_map["data"]["routing.json"] = config_map["data"]["routing.json"].replace("rev-1", "rev-0")
    namespace.reconcile()
    assert namespace.table() == table


def test_an_edited_config_map_without_a_job_is_not_believed() -> None:
    namespace = serving()
    config_map = namespace.get("ConfigMap")
    config_map["data"]["routing.json"] = config_map["data"]["routing.json"].replace("rev-1", "rev-0")
    namespace.objects.pop(("Job", namespace.jobs()[0]))
    planned = namespace.settle()
    assert namespace.reason() == "False Generating"
    assert "ConfigMap" not in {manifest["kind"] for manifest in planned.apply}, "nobody knows what to declare"
    assert namespace.get("Deployment")["spec"]["replicas"] == 1, "workers go on with what they have"
    namespace.finish_job("rev-1")
    namespace.settle()
    assert namespace.table().revision == "rev-1"


def test_keys_that_others_add_to_the_config_map_are_theirs() -> None:
    namespace = serving()
    namespace.get("ConfigMap")["data"]["note"] = "hello"
    namespace.objects.pop(("Job", namespace.jobs()[0]))
    namespace.settle()
    assert namespace.jobs() == []


def test_an_edited_config_map_falls_back_to_the_old_job_while_a_new_recipe_is_generated() -> None:
    namespace = serving()
    old = namespace.table()
    namespace.edit(model={"hidden": 64})
    namespace.settle()
    namespace.get("ConfigMap")["data"]["routing.json"] = "{}"
    namespace.settle()
    assert namespace.table() == old


def test_a_job_that_gets_no_pod_stalls_after_a_while() -> None:
    namespace = begun()
    namespace.settle()
    assert namespace.reason("Stalled") == "False Progressing", "a pod takes a moment"
    namespace.now += timedelta(minutes=2)
    namespace.settle()
    assert namespace.reason("Stalled") == "True PodsForbidden"
    (name,) = namespace.jobs()
    assert f"`kubectl --namespace shop describe job {name}` tells which" in namespace.condition("Ready")["message"]
    namespace.start_job()
    namespace.settle()
    assert namespace.reason("Stalled") == "False Progressing"


def test_bad_input_is_not_called_an_attempt_that_is_repeated() -> None:
    namespace = begun()
    namespace.fail_attempt(2, "spec.graph.source.npz.uri: no such file")
    namespace.settle()
    message = namespace.condition("Ready")["message"]
    assert "no such file" in message
    assert "attempt" not in message


GIVEN = {"checkpoint": {"uri": "file:///data/model.safetensors"}}
NPZ = {"source": {"npz": {"uri": "file:///data/graph.npz"}}}
PROGRAM = {
    "program": {"uri": "file:///data/described"},
    "expected": {"uri": "file:///data/described/expected.npz"},
}
TABLES = {"nodes": {"uri": "file:///data/nodes", "label": "class"}, "edges": {"uri": "file:///data/edges"}}


@pytest.mark.parametrize(
    ("spec", "files"),
    [
        pytest.param({"graph": NPZ}, "the graph's file", id="of the graph"),
        pytest.param({"graph": {"source": {"parquet": TABLES}}}, "the graph's file", id="of tables"),
        pytest.param({"graph": {"source": {"csv": TABLES}}}, "the graph's file", id="of tables as text"),
        pytest.param(
            {"graph": {"source": {"pyg": {"name": "Cora", "mirror": "file:///data/cora"}}}},
            "the graph's file",
            id="of a public graph in a folder",
        ),
        pytest.param({"model": GIVEN}, "the checkpoint's file", id="of given weights"),
        pytest.param(
            {"variants": {"given": [{**GIVEN, "columns": [0]}]}}, "the checkpoint's file", id="of a given variant"
        ),
        pytest.param({"graph": NPZ, "model": GIVEN}, "the graph's and the checkpoint's file", id="of both"),
        pytest.param({"graph": NPZ, "model": PROGRAM}, "the graph's and the program's file", id="of a program"),
    ],
)
def test_files_that_no_volume_brings_are_named(spec: dict[str, Any], files: str) -> None:
    namespace = begun(**spec)
    namespace.fail_job(2, "cannot read the file")
    namespace.settle()
    message = namespace.condition("Ready")["message"]
    assert f"no volume is mounted: name the claim with {files} in spec.graph.volume.claimName" in message


@pytest.mark.parametrize(
    "source", [{"builtin": "Digits"}, {"ogb": {"name": "ogbn-arxiv"}}, {"pyg": {"name": "Cora", "mirror": "http://m"}}]
)
def test_a_graph_that_needs_no_volume_is_not_told_to_have_one(source: dict[str, Any]) -> None:
    namespace = begun(graph={"source": source})
    namespace.fail_job(2, "expected 2 to 65536 distinct classes, found 1")
    namespace.settle()
    assert "volume" not in namespace.condition("Ready")["message"]


def test_a_refused_claim_is_told_before_the_pod_that_waits_for_it() -> None:
    namespace = begun()
    claim = observed_ref(namespace.get("PersistentVolumeClaim"))
    namespace.rejections = (Rejection(claim, "maximum storage usage per PersistentVolumeClaim is 5Gi"),)
    unbound = 'persistentvolumeclaim "digits-repository" not found'
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unbound}
    namespace.add_pod(namespace.get("Job"), conditions=[condition])
    namespace.settle()
    assert namespace.reason("VariantsGenerated") == "False ChildRefused"


def test_a_job_on_its_way_out_is_waited_for() -> None:
    namespace = begun()
    namespace.get("Job")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    planned = namespace.plan()
    assert "Job" not in {manifest["kind"] for manifest in planned.apply}
    assert planned.look_again_s == 1.0


def test_a_job_is_not_said_to_be_made_while_its_claim_is_on_its_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the deletion of a service of that name, whose claim a pod holds."""
    namespace = Namespace()
    claim = next(found for found in namespace.plan().apply if found["kind"] == "PersistentVolumeClaim")
    observed = replace(namespace.observed(), leaving=(observed_ref(claim),))
    monkeypatch.setattr(namespace, "observed", lambda: observed)
    told = str(namespace.plan().status)
    assert "is made once PersistentVolumeClaim digits-repository is gone" in told
    assert "generates the revision" not in told


def test_a_deployment_on_its_way_out_is_waited_for() -> None:
    namespace = serving()
    namespace.get("Deployment")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    planned = namespace.plan()
    assert "Deployment" not in {manifest["kind"] for manifest in planned.apply}
    assert planned.look_again_s == 1.0


def test_a_job_that_lost_its_label_is_still_the_wanted_one() -> None:
    namespace = begun()
    namespace.start_job()
    (name,) = namespace.jobs()
    del namespace.get("Job")["metadata"]["labels"]["gnnserve.dev/recipe"]
    planned = namespace.settle()
    assert planned.delete == ()
    assert namespace.jobs() == [name]
    assert namespace.get("Job")["metadata"]["labels"]["gnnserve.dev/recipe"] == namespace.recipe


def test_a_claim_that_is_somebody_elses_starts_no_job() -> None:
    namespace = Namespace()
    ref = next(observed_ref(m) for m in namespace.plan().apply if m["kind"] == "PersistentVolumeClaim")
    namespace.conflicts = (Conflict(ref, "StatefulSet db"),)
    namespace.settle()
    assert not {"Job", "PersistentVolumeClaim"} & namespace.kinds()
    assert {"Service", "ServiceAccount"} <= namespace.kinds()
    assert namespace.reason() == "False NameTaken"
    assert namespace.reason("Stalled") == "True NameTaken"
    assert namespace.reason("VariantsGenerated") == "False NameTaken"
    message = namespace.condition("Ready")["message"]
    assert "PersistentVolumeClaim digits-repository exists already and belongs to StatefulSet db" in message
    assert namespace.events == [("Warning", "Stalled")]


# --- the deadline of a Job that did not compute


SHORTLY_BEFORE_S = 590
"""Time by the operator's clock, which may be slow, at which the controller finds that 600 s are over."""
GIVEN_UP = {"conditions": [{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]}


def pass_deadline(namespace: Namespace, **given_up: Any) -> None:
    """Kubernetes deletes the Job's pods, and only then says that it has failed. `given_up`: its status in between."""
    job = namespace.job()
    job["status"] = {"startTime": job["metadata"]["creationTimestamp"], **given_up}
    namespace.now += timedelta(seconds=SHORTLY_BEFORE_S if given_up else job["spec"]["activeDeadlineSeconds"])
    namespace.pods.clear()
    namespace.refusals = {}
    namespace.settle()
    assert namespace.reason("Stalled") != "True PodsForbidden", "its pod was there, and no other is wanted"
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active too long"}
    namespace.job()["status"] = {"conditions": [condition]}
    namespace.settle()


def wait_for_a_node(namespace: Namespace) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    namespace.add_pod(namespace.job(), conditions=[condition])


def wait_for_quota(namespace: Namespace) -> None:
    namespace.refusals = dict.fromkeys(namespace.jobs(), "Error creating: pods is forbidden: exceeded quota: small")


@pytest.mark.parametrize("given_up", [{}, GIVEN_UP], ids=["its time is over", "it is given up"])
@pytest.mark.parametrize(
    ("wait", "words"),
    [(wait_for_a_node, "0/3 nodes fit"), (wait_for_quota, "exceeded quota: small")],
    ids=["no node", "no quota"],
)
def test_a_job_that_waited_until_its_deadline_says_for_what(
    wait: Callable[[Namespace], None], words: str, given_up: dict[str, Any]
) -> None:
    namespace = begun(generation={"deadlineSeconds": 600})
    wait(namespace)
    namespace.settle()
    assert words in namespace.condition("Ready")["message"]
    pass_deadline(namespace, **given_up)
    message = namespace.condition("Ready")["message"]
    (name,) = namespace.jobs()
    assert f"Job {name} failed: its 600 s (spec.generation.deadlineSeconds) ended while it did not compute: " in message
    assert words in message
    assert "was not done within" not in message
    assert namespace.events[-1] == ("Warning", "GenerationFailed")


def test_a_job_that_a_sidecar_held_until_its_deadline_names_the_sidecar() -> None:
    namespace = held()
    namespace.now += timedelta(seconds=15)
    namespace.settle()
    pass_deadline(namespace)
    assert "container istio-proxy of pod" in namespace.condition("Ready")["message"]


def test_a_job_that_waited_and_then_computed_until_its_deadline_was_too_slow() -> None:
    namespace = begun()
    wait_for_a_node(namespace)
    namespace.settle()
    namespace.pods.clear()
    namespace.start_job()
    namespace.settle()
    pass_deadline(namespace)
    message = namespace.condition("Ready")["message"]
    assert "it was not done within 86400 s (spec.generation.deadlineSeconds)" in message
    assert "nodes fit" not in message


# --- held by a container beside ours


def held(exit_code: int = 0, **spec: Any) -> Namespace:
    """A Job whose container has ended, in a pod with a sidecar that goes on."""
    namespace = Namespace(**spec)
    namespace.settle()
    pod = namespace.start_job()
    # Meshes put theirs first, where it is to be up before ours.
    pod["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "proxy"})
    text = encode_result(make_result(namespace.recipe)) if exit_code == 0 else "/repository is full"
    ended = {"exitCode": exit_code, "message": text, "finishedAt": namespace.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    pod["status"]["containerStatuses"] = [
        {"name": "istio-proxy", "state": {"running": {}}}, {"name": "generate", "state": {"terminated": ended}}
    ]  # fmt: skip
    return namespace


def test_a_sidecar_that_holds_the_job_is_named_with_the_ways_out() -> None:
    namespace = held()
    namespace.settle()
    assert namespace.reason() == "False Generating", "it may be about to end, as sidecars do that watch us"
    namespace.now += timedelta(seconds=15)
    namespace.settle()
    assert namespace.reason() == "False SidecarHoldsJob"
    assert namespace.reason("Stalled") == "True SidecarHoldsJob"
    (job,), (pod,) = namespace.jobs(), namespace.pods
    told = namespace.condition("Ready")["message"]
    assert told.startswith(
        f"Job {job} is done, but does not complete: container istio-proxy of pod {pod} runs on beside"
    )
    assert 'the label sidecar.istio.io/inject: "false" in spec.generation.podLabels' in told
    assert f"delete job {job}`): the next one finds what this one made." in told
    assert namespace.plan().standings.generation.stance == "Idle", "other services' Jobs need not wait for it"


def test_a_sidecar_that_holds_a_failed_job_is_told_with_the_failure() -> None:
    namespace = held(exit_code=4)
    namespace.now += timedelta(seconds=15)
    namespace.settle()
    told = namespace.condition("Ready")["message"]
    assert "failed (pod" in told
    assert "with exit code 4 (something is missing that may come back): /repository is full), but does not end" in told
    assert "that tries again" in told


def test_a_job_without_the_sidecar_takes_the_place_of_the_held_one_and_the_old_revision_answers_meanwhile() -> None:
    namespace = Namespace()
    namespace.serve()
    namespace.edit(model={"hidden": 32})
    namespace.settle()
    first = namespace.jobs()[-1]
    pod = namespace.start_job()
    pod["spec"]["containers"].append({"name": "istio-proxy"})
    text = encode_result(make_result(namespace.recipe, "rev-2"))
    pod["status"]["containerStatuses"] = [
        {"name": "generate", "state": {"terminated": {"exitCode": 0, "message": text}}}
    ]
    namespace.settle()
    assert namespace.reason() == "False SidecarHoldsJob"
    assert namespace.condition("Ready")["message"].endswith("Until then revision rev-1 keeps answering.")
    namespace.edit(generation={"podLabels": {"sidecar.istio.io/inject": "false"}})
    namespace.settle()
    assert first not in namespace.jobs()
    namespace.finish_job("rev-2")
    namespace.settle()
    assert namespace.table().revision == "rev-2"


def test_a_native_sidecar_holds_nothing() -> None:
    namespace = Namespace()
    namespace.settle()
    pod = namespace.start_job()
    pod["spec"]["initContainers"] = [{"name": "istio-proxy", "restartPolicy": "Always"}]
    pod["status"]["initContainerStatuses"] = [{"name": "istio-proxy", "state": {"running": {}}}]
    pod["status"]["containerStatuses"] = [{"name": "generate", "state": {"terminated": {"exitCode": 0, "message": ""}}}]
    namespace.settle()
    assert namespace.reason("Stalled") == "False Progressing"


# --- as another user


def test_who_decides_as_which_user_pods_run_is_no_reason_to_generate_anew() -> None:
    namespace = Namespace()
    namespace.serve()
    jobs = namespace.jobs()
    namespace.settings = make_settings(runAs="Platform")
    namespace.settle()
    assert namespace.jobs() == jobs
    pod = namespace.get("Deployment")["spec"]["template"]["spec"]
    assert "runAsUser" not in pod["securityContext"]
    namespace.roll_out()
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.jobs() == jobs


def test_a_job_that_computes_goes_on_as_the_user_that_it_began_as() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    (job,) = namespace.jobs()
    namespace.settings = make_settings(runAs="Platform")
    namespace.settle()
    assert namespace.jobs() == [job]
