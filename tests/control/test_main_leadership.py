"""Two operators, with the real kopf, against an API server in memory: one works, and takes over from the other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes.api_server import Request
from tests.support.kubernetes.control_plane import finish_job, run_workers
from tests.support.kubernetes.fake_api import FakeApi, fake_api
from tests.support.kubernetes.fake_cluster import FakeCluster, Fault, Refusal
from tests.support.machine.waiting import WAIT_S
from tests.support.operator.operator import gnnservice
from tests.support.operator.running_operator import RunningOperator, operator_process, running_operator

from gnnserve_operator.cluster import CONNECTIONS
from gnnserve_operator.errors import LostLeadershipError
from gnnserve_operator.settings import LeaderElection

NAME = "gnnserve"
STATUS = "apply status GNNService digits"
TIMES = {"leaseName": NAME, "namespace": "default", "leaseSeconds": 4, "renewDeadlineSeconds": 3, "retrySeconds": 0.1}
PATIENT = LeaderElection(lease_name=NAME, namespace="default", retry_seconds=0.1)
"""Whoever dies here is waited for 15 s: a test that takes over sooner does so because the Lease was released."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with fake_api(FakeCluster()) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        yield api


@pytest.fixture
def cluster(api: FakeApi) -> FakeCluster:
    return api.cluster


def holder(cluster: FakeCluster) -> str | None:
    found = cluster.find("Lease", NAME)
    return None if found is None else found["spec"]["holderIdentity"]


def writes(cluster: FakeCluster) -> list[str]:
    return [str(write) for write in cluster.writes if write.kind not in {"Lease", "Event"}]


async def make_ready(operator: RunningOperator) -> None:
    cluster = operator.cluster
    cluster.create(gnnservice())
    await operator.until(lambda: cluster.all("Job"))
    finish_job(cluster, str(cluster.all("Job")[0]["metadata"]["name"]))
    await operator.until(lambda: cluster.all("Deployment"))
    run_workers(cluster)
    await operator.until_condition("Ready", "True")
    await operator.resync()


async def until_ready_with(operator: RunningOperator, text: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await operator.get("/readyz")) != (200, f"{text}\n"):
            assert not operator.task.done(), operator.task
            await asyncio.sleep(0.02)


def test_who_stands_by_takes_over_at_once_from_who_ends_and_touches_no_child(cluster: FakeCluster) -> None:
    """In a thread each, since kopf ends every task of its event loop that it does not know."""
    is_ready, stands_by = threading.Event(), threading.Event()

    async def first() -> None:
        async with running_operator(cluster, "a", leader_election=PATIENT) as operator:
            await make_ready(operator)
            is_ready.set()
            assert await asyncio.to_thread(stands_by.wait, WAIT_S)
            metrics = (await operator.get("/metrics"))[1]
            assert "gnnserve_operator_leader 1.0" in metrics
            assert 'gnnserve_operator_services{ready="True"} 1.0' in metrics
            cluster.writes.clear()

    async def second() -> None:
        assert await asyncio.to_thread(is_ready.wait, WAIT_S)
        async with running_operator(cluster, "b", leader_election=PATIENT, namespaces=("default",)) as operator:
            await until_ready_with(operator, "standing by")
            metrics = (await operator.get("/metrics"))[1]
            assert "gnnserve_operator_leader 0.0" in metrics
            assert "gnnserve_operator_services" not in metrics, "zeros would hide that nobody leads"
            assert "gnnserve_operator_namespace_watched{" not in metrics, "it has not looked"
            assert (await operator.get("/healthz"))[0] == 200
            assert await operator.reconciles() == 0
            stands_by.set()
            await operator.until(lambda: holder(cluster) == "b")
            await until_ready_with(operator, "ok")
            await operator.resync()
            assert writes(cluster) == [], "a new leader rewrites nothing"
            cluster.delete("Service", "digits")
            await operator.until(lambda: cluster.find("Service", "digits"))

    with ThreadPoolExecutor() as threads:
        for running in [threads.submit(asyncio.run, scene()) for scene in (first, second)]:
            running.result()
    assert holder(cluster) == ""


def test_an_operator_that_lost_the_lease_ends_and_leaves_everything_as_it_is(cluster: FakeCluster) -> None:
    async def scene() -> None:
        async with running_operator(cluster, "a", leader_election=PATIENT) as operator:
            await make_ready(operator)
            cluster.writes.clear()
            cluster.replace("Lease", NAME, lambda found: found["spec"].update(holderIdentity="somebody"))
            await asyncio.wait({operator.task}, timeout=WAIT_S)
            assert operator.task.done()

    with pytest.raises(LostLeadershipError, match="Lease gnnserve is held by somebody"):
        asyncio.run(scene())
    assert writes(cluster) == []
    assert cluster.get("Deployment", "digits-worker")["spec"]["replicas"] == 1
    assert holder(cluster) == "somebody"


def test_slow_writes_on_every_connection_leave_renewals_alone(api: FakeApi, cluster: FakeCluster) -> None:
    """As by an admission webhook that takes its time."""
    held, may_go = set[str](), threading.Event()

    def hold(request: Request) -> None:
        if request.method == "PATCH":
            held.add(request.path)
            with cluster.changed:
                cluster.changed.notify_all()
            may_go.wait()

    def renewals() -> int:
        return sum(write.kind == "Lease" for write in cluster.writes)

    async def scene() -> None:
        for number in range(24):
            cluster.create(gnnservice(name=f"digits{number}"))
        async with running_operator(cluster, "a", leader_election=election, concurrency=24) as operator:
            await operator.until(lambda: len(held) >= CONNECTIONS)
            before = renewals()
            # At more than retrySeconds each, for longer than the deadline.
            await operator.until(lambda: renewals() > before + 35)
            assert (await operator.get("/readyz"))[1] == "ok\n"
            may_go.set()

    election = LeaderElection.model_validate(TIMES, by_alias=True, by_name=False)
    api.hold = hold
    try:
        asyncio.run(scene())
    finally:
        may_go.set()


def test_who_stands_by_without_the_right_to_leases_is_not_ready(cluster: FakeCluster) -> None:
    cluster.kinds = tuple(kind for kind in cluster.kinds if kind.name != "Lease")

    async def scene() -> None:
        async with running_operator(cluster, "a", leader_election=PATIENT) as operator:
            await operator.until(lambda: cluster.paths)
            assert (await operator.get("/readyz"))[0] == 503
            assert (await operator.get("/healthz"))[0] == 200

    asyncio.run(scene())


# --- as processes


def make_pod(cluster: FakeCluster, name: str) -> None:
    """With the uid that `process` says it has."""
    new_uid, cluster.new_uid = cluster.new_uid, lambda: "u"
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}})
    cluster.new_uid = new_uid


@contextmanager
def process(folder: Path, name: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """As the container of a pod of that name."""
    pod = {"POD_ID": name, "POD_UID": "u"}
    built = {"resyncSeconds": 1, "leaderElection": TIMES, **settings}
    with operator_process(folder, f"{name}.yaml", pod, **built) as running:
        yield running


def test_a_leader_that_was_stopped_wakes_up_to_write_nothing_and_end(cluster: FakeCluster, tmp_path: Path) -> None:
    """The two want different things, so that whatever the old one writes would be seen."""
    cluster.create(gnnservice())
    make_pod(cluster, "old")
    with process(tmp_path, "old", networkPolicy=True) as old:
        cluster.wait_until(lambda: len(cluster.all("NetworkPolicy")) == 2 and cluster.all("Job"))
        assert holder(cluster) == "old_u"
        with process(tmp_path, "new", networkPolicy=False) as new:
            old.send_signal(signal.SIGSTOP)
            cluster.wait_until(lambda: holder(cluster) == "new_u")
            cluster.wait_until(lambda: cluster.all("NetworkPolicy") == [])
            old.send_signal(signal.SIGCONT)
            _, lines = old.communicate(timeout=WAIT_S)
            assert old.returncode == 3, lines
            assert "Traceback" not in lines
            assert cluster.all("NetworkPolicy") == []
            applied = [str(write) for write in cluster.writes if write.kind == "NetworkPolicy"]
            assert [write.partition(" ")[0] for write in applied] == ["apply", "apply", "delete", "delete"]
            new.send_signal(signal.SIGTERM)
            _, lines = new.communicate(timeout=WAIT_S)
            assert new.returncode == 0, lines
    assert holder(cluster) == ""


def test_a_leader_that_cannot_renew_ends_and_its_next_container_leads_when_it_can(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.create(gnnservice())
    with process(tmp_path, "a") as leader:
        cluster.wait_until(lambda: STATUS in writes(cluster))
        cluster.faults.append(Fault("put", "Lease", Refusal(500, "InternalError", "etcdserver: no leader")))
        _, lines = leader.communicate(timeout=WAIT_S)
        assert leader.returncode == 3, lines
        assert "etcdserver: no leader" in lines
    before = cluster.get("Lease", NAME)["spec"]
    assert before["holderIdentity"] == "a_u", "it had no way to let go"
    term = before["leaseTransitions"]
    cluster.writes.clear()
    with process(tmp_path, "a", leaderElection={**TIMES, "leaseSeconds": 3600}) as successor:
        cluster.wait_until(lambda: [write for write in cluster.writes if write.kind == "Lease"])
        assert cluster.get("Lease", NAME)["spec"]["leaseTransitions"] == term
        cluster.faults.clear()
        cluster.wait_until(lambda: cluster.get("Lease", NAME)["spec"]["leaseTransitions"] == term + 1)
        successor.send_signal(signal.SIGTERM)
        _, lines = successor.communicate(timeout=WAIT_S)
        assert successor.returncode == 0, lines
    assert writes(cluster) == []
