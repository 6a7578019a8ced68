"""The whole operator, with the real kopf, against an API server in memory: what it writes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.control_plane import fail_job, finish_job, run_workers
from tests.support.kubernetes.fake_api import FakeApi, fake_api
from tests.support.kubernetes.fake_cluster import FakeCluster, Fault, Refusal
from tests.support.machine.clock import QuickClock
from tests.support.machine.waiting import WAIT_S
from tests.support.operator.operator import gnnservice
from tests.support.operator.running_operator import RunningOperator, condition_of, operator_process, running_operator

from gnnserve_api.pods.routing import ROUTING_KEY, decode_routing
from gnnserve_operator import main
from gnnserve_operator.desired.metadata import APPLIED_ANNOTATION
from gnnserve_operator.kinds import GNNSERVICE
from gnnserve_operator.main import Ending, tell_of_error
from gnnserve_operator.settings import Settings

FIRST_CHILDREN = [
    "apply ServiceAccount digits-worker",
    "apply Role digits-worker",
    "apply RoleBinding digits-worker",
    "apply NetworkPolicy digits-worker",
    "apply NetworkPolicy digits-generate",
    "apply PersistentVolumeClaim digits-repository",
    "apply Service digits",
]
CHILDREN_OF_A_REVISION = [
    "apply ConfigMap digits-routing",
    "apply Deployment digits-worker",
    "apply PodDisruptionBudget digits-worker",
]
STATUS = "apply status GNNService digits"
CLAIM = "PersistentVolumeClaim"
UPDATES = {"log": {"postgres": {"secretName": "log"}}}
MINUTES_IN_MOMENTS: dict[str, Any] = {"clock": QuickClock(200), "resync_seconds": 200}
"""Watches are looked after every 30 s, and may be silent for 60 s."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with fake_api(FakeCluster()) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        yield api


@pytest.fixture
def cluster(api: FakeApi) -> FakeCluster:
    return api.cluster


def play(
    cluster: FakeCluster, scene: Callable[[RunningOperator], Coroutine[None, None, None]], **settings: Any
) -> None:
    async def run() -> None:
        async with running_operator(cluster, **settings) as operator:
            await scene(operator)

    asyncio.run(run())


def only_job(cluster: FakeCluster) -> str:
    (job,) = cluster.all("Job")
    return str(job["metadata"]["name"])


async def make_ready(operator: RunningOperator) -> None:
    cluster = operator.cluster
    cluster.create(gnnservice())
    await operator.until(lambda: cluster.all("Job"))
    finish_job(cluster, only_job(cluster))
    await operator.until(lambda: cluster.all("Deployment"))
    run_workers(cluster)
    await operator.until_condition("Ready", "True")
    await operator.resync()


def writes_of(cluster: FakeCluster) -> list[str]:
    """Events have names that nobody reads."""
    return [f"create Event {write.body['reason']}" if write.verb == "create" and write.body else str(write)
            for write in cluster.writes]  # fmt: skip


def writes_from(cluster: FakeCluster, first: str) -> list[str]:
    """Those from that one on; none before it has come."""
    written = writes_of(cluster)
    return written[written.index(first) :] if first in written else []


def test_a_service_becomes_ready_with_these_writes_and_then_nothing_is_written(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        cluster.create(gnnservice())
        await operator.until(lambda: condition_of(cluster, "Reconciling"))
        job = only_job(cluster)
        await operator.until(lambda: len(cluster.writes) == len(FIRST_CHILDREN) + 3)
        written = writes_of(cluster)
        assert written[: len(FIRST_CHILDREN) + 2] == [*FIRST_CHILDREN, f"apply Job {job}", STATUS]
        cluster.writes.clear()

        finish_job(cluster, job)
        await operator.until(lambda: STATUS in writes_from(cluster, CHILDREN_OF_A_REVISION[0]))
        # Another look at the running Job may have told something before that: only the order from here on is meant.
        written = writes_from(cluster, CHILDREN_OF_A_REVISION[0])
        assert written[: len(CHILDREN_OF_A_REVISION) + 1] == [*CHILDREN_OF_A_REVISION, STATUS]
        await operator.resync()
        cluster.writes.clear()

        run_workers(cluster)
        await operator.until_condition("Ready", "True")
        await operator.resync()
        assert set(writes_of(cluster)) <= {STATUS, "create Event Ready", "create Event Available"}
        status = cluster.get("GNNService", "digits")["status"]
        assert (status["revision"], status["baseVariant"], status["workers"]["ready"]) == ("r1", "x1", "1/1")

        cluster.writes.clear()
        await operator.resync()
        assert cluster.writes == []

    play(cluster, scene)


def test_nothing_but_ours_is_on_any_object(cluster: FakeCluster) -> None:
    """kopf would add finalizers and annotations, had it handlers of another kind."""
    play(cluster, make_ready)
    service = cluster.get("GNNService", "digits")
    assert "finalizers" not in service["metadata"]
    assert "annotations" not in service["metadata"]
    ours = [
        found for found in cluster.objects.values() if found["kind"] not in {"GNNService", "Event", "Pod", "ReplicaSet"}
    ]
    assert len(ours) == len(FIRST_CHILDREN) + len(CHILDREN_OF_A_REVISION) + 1
    for found in ours:
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (service["metadata"]["uid"], True)
        assert "finalizers" not in found["metadata"]
        assert all(name.startswith("gnnserve.dev/") for name in found["metadata"]["annotations"])
        assert APPLIED_ANNOTATION in found["metadata"]["annotations"]


def test_an_operator_that_begins_releases_all_claims_before_it_reconciles_one(cluster: FakeCluster) -> None:
    """An earlier operator had them go with their services, which may be deleted right after an upgrade."""
    claims = {f"{name}-repository" for name in ("digits", "papers", "reviews")}

    async def before(operator: RunningOperator) -> None:
        for name in ("digits", "papers", "reviews"):
            cluster.create(gnnservice(name))
        await operator.until(lambda: {found["metadata"]["name"] for found in cluster.all(CLAIM)} == claims)
        await operator.resync()

    async def after(operator: RunningOperator) -> None:
        await operator.until(lambda: len(cluster.writes) > len(claims))
        assert sorted(map(str, cluster.writes[: len(claims)])) == [f"apply {CLAIM} {claim}" for claim in sorted(claims)]
        assert all("ownerReferences" not in found["metadata"] for found in cluster.all(CLAIM))
        await operator.resync()
        cluster.delete("GNNService", "papers")
        await operator.until(lambda: [e for e in cluster.all("Event") if e["reason"] == "RepositoryRetained"])
        assert cluster.get(CLAIM, "papers-repository")

    play(cluster, before)
    for name in ("digits", "papers", "reviews"):
        cluster.replace("GNNService", name, lambda found: found["spec"].update(updates=UPDATES))
    cluster.writes.clear()
    play(cluster, after)


def test_a_restart_writes_nothing(cluster: FakeCluster) -> None:
    play(cluster, make_ready)
    cluster.writes.clear()

    async def scene(operator: RunningOperator) -> None:
        await operator.until(lambda: condition_of(cluster, "Ready")["status"] == "True")
        await operator.resync()

    play(cluster, scene)
    assert cluster.writes == []


def test_a_changed_objective_reaches_the_workers_by_one_write(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.writes.clear()
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(objective={"latencyMs": 7.5}))
        await operator.until(lambda: cluster.get("GNNService", "digits")["status"]["observedGeneration"] == 2)
        await operator.until_condition("Ready", "True")
        await operator.resync()
        table = decode_routing(cluster.get("ConfigMap", "digits-routing")["data"][ROUTING_KEY])
        assert table.objective.latency_ms == 7.5
        assert set(writes_of(cluster)) - {STATUS, "create Event Ready", "create Event Available"} == {
            "apply ConfigMap digits-routing"
        }

    play(cluster, scene)


def test_a_child_that_is_deleted_or_edited_by_hand_is_restored(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        deleted = cluster.get("Service", "digits")
        cluster.delete("Service", "digits")
        await operator.until(lambda: cluster.find("Service", "digits"))
        restored = cluster.get("Service", "digits")
        assert restored["metadata"]["uid"] != deleted["metadata"]["uid"]
        assert restored["spec"] == deleted["spec"]

        cluster.replace("Deployment", "digits-worker", lambda found: found["spec"].update(replicas=7))
        await operator.until(lambda: cluster.get("Deployment", "digits-worker")["spec"]["replicas"] == 1)

    play(cluster, scene)


def test_a_deleted_service_takes_its_children_along_and_none_comes_back(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.writes.clear()
        cluster.delete("GNNService", "digits")
        cluster.create(gnnservice("other"))
        await operator.until(lambda: cluster.find("Service", "other"))
        await operator.resync()
        assert [name for (kind, _, name) in cluster.objects if kind != "Event" and "digits" in name] == []
        assert [write for write in cluster.writes if write.name.startswith("digits")] == []

    play(cluster, scene)


def test_a_service_that_is_made_again_waits_until_the_old_ones_children_are_gone(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.collects_garbage = False
        cluster.delete("GNNService", "digits")
        uid = cluster.create(gnnservice())["metadata"]["uid"]
        await operator.until_condition("Ready", "False")
        assert condition_of(cluster, "Stalled")["status"] == "False"
        await operator.resync()
        cluster.collects_garbage = True
        cluster.collect_garbage()
        await operator.until(lambda: cluster.all("Job") and cluster.find("Service", "digits"))
        children = [found for found in cluster.objects.values() if found["kind"] in {"Service", "Job", "Role"}]
        assert {found["metadata"]["ownerReferences"][0]["uid"] for found in children} == {uid}

    play(cluster, scene)


def test_a_foreign_service_of_that_name_is_left_alone_until_it_is_gone(cluster: FakeCluster) -> None:
    metadata = {"name": "digits", "namespace": "default"}
    foreign = cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": []}})

    async def scene(operator: RunningOperator) -> None:
        cluster.create(gnnservice())
        stalled = await operator.until_condition("Stalled", "True", "NameTaken")
        assert "Service digits" in stalled["message"]
        await operator.resync()
        assert cluster.get("Service", "digits") == foreign
        cluster.delete("Service", "digits")
        await operator.until(lambda: cluster.find("Service", "digits"))
        await operator.until_condition("Stalled", "False")

    play(cluster, scene)


def test_what_the_api_server_says_against_a_child_is_in_the_status(cluster: FakeCluster) -> None:
    sentence = "exceeded quota: compute, requested: count/jobs.batch=1, used: 4, limited: 4"
    cluster.faults.append(Fault("apply", "Job", Refusal(403, "Forbidden", sentence)))

    async def scene(operator: RunningOperator) -> None:
        cluster.create(gnnservice())
        stalled = await operator.until_condition("Stalled", "True")
        assert sentence in stalled["message"]
        assert "Job digits-generate-" in stalled["message"]
        assert cluster.find("Service", "digits") is not None
        cluster.faults.clear()
        await operator.until(lambda: cluster.all("Job"))
        await operator.until_condition("Stalled", "False")

    play(cluster, scene)


def test_a_failed_job_is_told_in_the_words_of_its_pod(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        cluster.create(gnnservice())
        await operator.until(lambda: cluster.all("Job"))
        fail_job(cluster, only_job(cluster), "nodes[3] has 12 features, expected 64")
        stalled = await operator.until_condition("Stalled", "True")
        assert "nodes[3] has 12 features, expected 64" in stalled["message"]

    play(cluster, scene)


def test_one_broken_service_does_not_stop_another(cluster: FakeCluster) -> None:
    broken = Fault("apply", "ServiceAccount", Refusal(500, "InternalError", "etcd is away"), name="broken-worker")
    cluster.faults.append(broken)

    async def scene(operator: RunningOperator) -> None:
        cluster.create(gnnservice("broken"))
        await operator.until(lambda: broken.times < 1_000_000)
        await make_ready(operator)
        assert cluster.find("ServiceAccount", "broken-worker") is None

    play(cluster, scene)


def test_a_service_that_this_operator_does_not_understand_keeps_what_it_has(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.writes.clear()
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(quantum={"qubits": 3}))
        stalled = await operator.until_condition("Stalled", "True", "InvalidSpec")
        assert "quantum" in stalled["message"]
        available = await operator.until_condition("Available", "True")
        assert "answer from revision" in available["message"]
        await operator.resync()
        assert {write.kind for write in cluster.writes} <= {"GNNService", "Event"}
        assert len(cluster.all("Pod")) == 2

    play(cluster, scene)


def test_a_lost_event_changes_nothing_else(cluster: FakeCluster) -> None:
    cluster.faults.append(Fault("create", "Event", Refusal(403, "Forbidden", "no events here")))
    play(cluster, make_ready)
    assert cluster.all("Event") == []


def test_in_chosen_namespaces_nothing_cluster_wide_is_asked_for(cluster: FakeCluster) -> None:
    play(cluster, make_ready, namespaces=("default",))
    discovery = {"/api", "/apis", "/api/v1", "/apis/apiextensions.k8s.io/v1", "/apis/monitoring.coreos.com/v1",
                 *(kind.api_path for kind in cluster.kinds)}  # fmt: skip
    asked = {path.partition(" ")[2] for path in cluster.paths}
    assert {path for path in asked - discovery if "/namespaces/default/" not in path} == set()


def test_in_all_namespaces_neither_namespaces_nor_crds_are_watched(cluster: FakeCluster) -> None:
    play(cluster, make_ready)
    assert {path for path in cluster.paths if path.endswith(("/namespaces", "/customresourcedefinitions"))} == set()


def test_the_operator_waits_for_its_crd(cluster: FakeCluster) -> None:
    kinds = cluster.kinds
    cluster.kinds = tuple(kind for kind in kinds if kind is not GNNSERVICE)

    async def scene(operator: RunningOperator) -> None:
        assert (await operator.get("/readyz"))[0] == 503
        assert (await operator.get("/healthz"))[0] == 200
        cluster.kinds = kinds
        await make_ready(operator)
        assert (await operator.get("/readyz"))[0] == 200

    play(cluster, scene)


def test_what_was_deleted_while_a_watch_was_away_comes_back(cluster: FakeCluster) -> None:

    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        with cluster.changed:
            cluster.delete("Service", "digits")
            cluster.forget_history()
        await operator.until(lambda: cluster.find("Service", "digits"))

    play(cluster, scene, **MINUTES_IN_MOMENTS)


def test_a_dead_watch_makes_the_operator_unhealthy(cluster: FakeCluster) -> None:

    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        # A machine that is busy for a moment may find any watch silent for a while; this one stays silent.
        await says(operator, "ok\n")
        cluster.frozen_kinds.add("Pod")
        cluster.replace("Pod", "digits-worker-0", lambda found: found["status"].update(phase="Failed"))
        await says(operator, "the watch on pods has been silent")

    async def says(operator: RunningOperator, words: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while words not in (await operator.get("/healthz"))[1]:
                await asyncio.sleep(0.05)

    play(cluster, scene, **MINUTES_IN_MOMENTS)


def test_the_operator_ends_with_what_killed_a_watch(cluster: FakeCluster) -> None:
    async def scene() -> None:
        async with running_operator(cluster) as operator:
            await make_ready(operator)
            with cluster.changed:
                cluster.broken_kinds.add("Job")
                cluster.changed.notify_all()
            await asyncio.wait({operator.task}, timeout=WAIT_S)
            assert operator.task.done()

    with pytest.raises(Exception, match="Error in the watch-stream"):
        asyncio.run(scene())


# --- namespaces in which it has no rights

TWO: dict[str, Any] = {
    "clock": QuickClock(200),
    "namespaces": ("default", "other"),
    "namespace_grant": {"cluster_role": "system:gnnserve", "service_account": "system:gnnserve"},
}


async def ending(operator: RunningOperator) -> Ending:
    async with asyncio.timeout(WAIT_S):
        return await operator.task


def test_a_namespace_without_rights_is_told_and_keeps_the_operator_from_no_other(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.forbidden_namespaces = {"other"}

    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        assert await operator.get("/readyz") == (200, "ok; not watched for lack of rights: other\n")
        told = (await operator.get("/metrics"))[1]
        assert 'gnnserve_operator_namespace_watched{namespace="default"} 1.0' in told
        assert 'gnnserve_operator_namespace_watched{namespace="other"} 0.0' in told

    play(cluster, scene, **TWO)
    (warning,) = (line for line in caplog.messages if line.startswith("namespace other is not watched"))
    assert 'is forbidden: User "operator" cannot list resource in the namespace "other"' in warning
    command = "kubectl create rolebinding gnnserve --namespace other --clusterrole=system:gnnserve"
    assert f"`{command} --serviceaccount=system:gnnserve`" in warning


def test_the_operator_begins_anew_when_it_is_given_rights_in_a_namespace(cluster: FakeCluster) -> None:
    cluster.forbidden_namespaces = {"other"}

    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.forbidden_namespaces = set()
        assert await ending(operator) is Ending.OTHER_NAMESPACES

    play(cluster, scene, **TWO)


def test_the_operator_begins_anew_without_a_namespace_whose_rights_are_taken_away(cluster: FakeCluster) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        cluster.forbidden_namespaces = {"other"}
        assert await ending(operator) is Ending.OTHER_NAMESPACES

    async def next_scene(operator: RunningOperator) -> None:
        await operator.resync()
        assert (await operator.get("/readyz"))[1] == "ok; not watched for lack of rights: other\n"
        assert condition_of(cluster, "Ready")["status"] == "True"

    play(cluster, scene, **TWO)
    play(cluster, next_scene, **TWO)


def test_without_rights_in_any_namespace_the_operator_waits_and_is_not_ready(cluster: FakeCluster) -> None:
    cluster.forbidden_namespaces = {"default", "other"}

    async def scene(operator: RunningOperator) -> None:
        await operator.until(lambda: cluster.paths)
        async with asyncio.timeout(WAIT_S):
            while "for lack of rights: default, other" not in (told := await operator.get("/readyz"))[1]:
                await asyncio.sleep(0.05)
        assert told[0] == 503
        cluster.forbidden_namespaces = {"other"}
        await make_ready(operator)

    play(cluster, scene, **TWO)


def test_the_process_begins_anew_until_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    endings = [Ending.OTHER_NAMESPACES, Ending.OTHER_NAMESPACES, Ending.STOPPED]

    async def play_once(_settings: Settings) -> Ending:
        return endings.pop(0)

    (tmp_path / "settings.yaml").write_text("workerImage: a")
    monkeypatch.setenv("GNNSERVE_SETTINGS", str(tmp_path / "settings.yaml"))
    monkeypatch.setattr(main, "run", play_once)
    monkeypatch.setattr(main, "configure_logging", lambda *_: None)
    assert main.main() == 0
    assert endings == []


# --- as a process


def test_a_watch_that_is_closed_half_way_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @contextlib.asynccontextmanager
    async def stream() -> AsyncIterator[None]:
        try:
            yield
        finally:
            yield

    async def watch() -> AsyncIterator[int]:
        async with stream():
            yield 1

    async def end() -> None:
        asyncio.get_running_loop().set_exception_handler(tell_of_error)
        watches.append(watch())
        await anext(watches[0])
        asyncio.get_running_loop().call_exception_handler({"message": "nothing awaits this"})

    watches: list[AsyncIterator[int]] = []
    asyncio.run(end())
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == ["nothing awaits this"]


def test_sigterm_ends_the_process_with_success(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.create(gnnservice())
    with operator_process(tmp_path) as operator:
        cluster.wait_until(lambda: condition_of(cluster, "Reconciling"))
        operator.send_signal(signal.SIGTERM)
        _, lines = operator.communicate(timeout=WAIT_S)
    assert operator.returncode == 0, lines
    logged = [yaml.safe_load(line) for line in lines.splitlines()]
    created = next(line for line in logged if line["message"] == "created Service digits")
    assert created["object"] == {"namespace": "default", "name": "digits"}
    assert {"time", "level", "logger"} <= created.keys()
    assert "not-a-secret" not in lines


def test_sigterm_ends_the_process_also_while_it_waits_for_its_crd(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.kinds = ()
    with operator_process(tmp_path, logFormat="Text") as operator:
        cluster.wait_until(lambda: cluster.paths)
        operator.send_signal(signal.SIGTERM)
        _, lines = operator.communicate(timeout=WAIT_S)
    assert operator.returncode == 0, lines


def test_without_a_way_to_the_api_the_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere.yaml"))
    with operator_process(tmp_path, logFormat="Text") as operator:
        _, lines = operator.communicate(timeout=WAIT_S)
    assert operator.returncode == 2
    assert "no way to the Kubernetes API" in lines
    assert "Traceback" not in lines


def test_wrong_settings_are_told_by_field(tmp_path: Path) -> None:
    with operator_process(tmp_path, resyncSeconds=0) as operator:
        _, lines = operator.communicate(timeout=WAIT_S)
    assert operator.returncode == 2
    assert "resyncSeconds" in lines
    assert "Traceback" not in lines
