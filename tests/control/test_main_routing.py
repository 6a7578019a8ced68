"""The whole operator beside a Prometheus: what it writes when the load rises and falls, and when Prometheus fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes.control_plane import finish_job, run_workers
from tests.support.kubernetes.fake_api import fake_api
from tests.support.kubernetes.fake_cluster import FakeCluster, Fault, Refusal
from tests.support.machine.fake_server import Asked, FakeServer, Told
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import WAIT_S
from tests.support.operator.fake_prometheus import FakePrometheus, Rates, answer_with, serving
from tests.support.operator.operator import gnnservice
from tests.support.operator.running_operator import RunningOperator, condition_of, running_operator

from gnnserve_api.pods.routing import ROUTING_KEY, RoutingTable, decode_routing

IDLE = Rates(offered_seeds=1000.0, met=500)
BUSY = Rates(offered_seeds=50_000.0, met=500, late=80, refused=20)
"""Too much for x1 and x2."""
SPEC = {
    "objective": {"latencyMs": 88},
    "worker": {"batching": {"maxSeeds": 1000}},
    "routing": {"intervalSeconds": 1},
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with fake_api(FakeCluster()) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        yield api.cluster


@pytest.fixture
def prometheus(cluster: FakeCluster) -> FakePrometheus:
    """Sees every worker."""
    return FakePrometheus(lambda: [name for name in names(cluster) if "-worker-" in name], IDLE, gap_s=0.1)


@pytest.fixture
def server(prometheus: FakePrometheus) -> Iterator[FakeServer]:
    with serving(prometheus) as server:
        yield server


def names(cluster: FakeCluster) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in cluster.all("Pod")]


def play(
    cluster: FakeCluster, server: FakeServer, scene: Callable[[RunningOperator], Coroutine[None, None, None]]
) -> None:
    async def run() -> None:
        async with running_operator(cluster, prometheus_url=server.url, resync_seconds=60) as operator:
            await scene(operator)

    asyncio.run(run())


async def make_ready(operator: RunningOperator, **spec: Any) -> None:
    cluster = operator.cluster
    cluster.create(gnnservice(**{**SPEC, **spec}))
    await operator.until(lambda: cluster.all("Job"))
    (job,) = cluster.all("Job")
    finish_job(cluster, job["metadata"]["name"])
    await operator.until(lambda: cluster.all("Deployment"))
    run_workers(cluster)
    await operator.until_condition("Ready", "True")


def table(cluster: FakeCluster) -> RoutingTable:
    return decode_routing(cluster.get("ConfigMap", "digits-routing")["data"][ROUTING_KEY])


def bases_written(cluster: FakeCluster) -> list[str | None]:
    """In the tables, in order."""
    tables = (
        decode_routing(write.body["data"][ROUTING_KEY])
        for write in cluster.writes
        if write.kind == "ConfigMap" and write.body is not None
    )
    return [found.base_variant for found in tables]


def events(cluster: FakeCluster) -> list[str]:
    found = [event for event in cluster.all("Event") if event["reason"] == "RoutingChanged"]
    return [event["message"] for event in found]


async def until_base(operator: RunningOperator, base: str) -> None:
    def holds() -> bool:
        status = operator.cluster.get("GNNService", "digits").get("status") or {}
        return table(operator.cluster).base_variant == base and status.get("baseVariant") == base

    await operator.until(holds)


async def until_asked(operator: RunningOperator, prometheus: FakePrometheus, times: int) -> None:
    """So often from now on, and the last answer has been decided by: the next question is asked after that."""
    wanted = len(prometheus.queries) + times
    async with asyncio.timeout(WAIT_S):
        while len(prometheus.queries) < wanted:
            await asyncio.sleep(0.02)
            assert not operator.task.done()


def test_it_steps_up_at_once_and_back_one_variant_at_a_time(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        await until_base(operator, "x1")
        cluster.writes.clear()
        prometheus.rates = BUSY
        await until_base(operator, "x4")
        await operator.until_condition("ObjectiveMet", "False", "ObjectiveMissed")
        await operator.until_condition("CapacitySufficient", "True", "SteppedDown")

        asked = len(prometheus.queries)
        prometheus.rates = IDLE
        await until_base(operator, "x2")
        assert len(prometheus.queries) >= asked + 2
        await until_base(operator, "x1")
        assert len(prometheus.queries) >= asked + 4
        await operator.until_condition("ObjectiveMet", "True", "ObjectiveMet")
        await operator.until_condition("CapacitySufficient", "True", "MostAccurate")
        assert bases_written(cluster) == ["x4", "x2", "x1"]
        await operator.until(lambda: len(events(cluster)) == 3)  # an event follows its status
        assert [message.split(":")[0] for message in events(cluster)] == [
            "The base variant is x4 and no longer x1",
            "The base variant is x2 and no longer x4",
            "The base variant is x1 and no longer x2",
        ]
        assert condition_of(cluster, "Ready")["status"] == "True"

    play(cluster, server, scene)


def test_a_constant_load_is_asked_about_and_written_once(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        await until_base(operator, "x1")
        await operator.until_condition("ObjectiveMet", "True")
        await until_asked(operator, prometheus, 2)
        cluster.writes.clear()
        await until_asked(operator, prometheus, 4)
        assert cluster.writes == []
        assert len(set(prometheus.queries)) == 1

    play(cluster, server, scene)


def unreachable(_: Asked) -> Told:
    return Told(hang_up=True)


def failing(_: Asked) -> Told:
    return Told(500, {"status": "error", "error": "no space left on device"})


def empty(_: Asked) -> Told:
    return answer_with([])


def garbage(_: Asked) -> Told:
    return Told(body=b"<html>Welcome</html>")


def test_whatever_happens_to_prometheus_the_last_table_holds_and_it_recovers(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    troubles: list[tuple[dict[str, Any], str]] = [
        ({"fault": unreachable}, "Unreachable"),
        ({"fault": empty}, "NoData"),
        ({"fault": failing}, "Unreachable"),
        ({"fault": garbage}, "Invalid"),
        ({"fault": None, "age_s": 600.0}, "Stale"),
        ({"age_s": 0.0, "value": "NaN"}, "Invalid"),
    ]
    labels = '{namespace="default",service="digits"}'

    async def scene(operator: RunningOperator) -> None:
        prometheus.rates = BUSY
        await make_ready(operator)
        await until_base(operator, "x4")
        before = table(cluster)
        for trouble, reason in troubles:
            for name, value in trouble.items():
                setattr(prometheus, name, value)
            await operator.until_condition("MetricsAvailable", "False", reason)
            assert table(cluster) == before
            assert condition_of(cluster, "Ready")["status"] == "True"
        metrics = (await operator.get("/metrics"))[1]
        assert f"gnnserve_operator_routing_metrics_available{labels} 0.0" in metrics
        assert f"gnnserve_operator_routing_offered_seeds_per_second{labels}" not in metrics

        prometheus.value = None
        await operator.until_condition("MetricsAvailable", "True", "Measured")
        assert table(cluster) == before
        prometheus.rates = IDLE
        await until_base(operator, "x2")

    play(cluster, server, scene)


def test_a_prometheus_that_never_answers_holds_up_nothing(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    released = threading.Event()

    def hang(_: Asked) -> Told:
        released.wait(60)
        return Told(hang_up=True)

    async def scene(operator: RunningOperator) -> None:
        prometheus.fault = hang
        await make_ready(operator)
        await until_asked(operator, prometheus, 1)
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(objective={"latencyMs": 50}))
        await operator.until(lambda: table(cluster).objective.latency_ms == 50)
        assert condition_of(cluster, "MetricsAvailable")["reason"] == "NotMeasured"
        released.set()

    play(cluster, server, scene)


def test_after_a_restart_it_goes_on_from_the_table_and_writes_nothing(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    prometheus.rates = BUSY

    async def first(operator: RunningOperator) -> None:
        await make_ready(operator)
        await until_base(operator, "x4")
        await operator.until_condition("ObjectiveMet", "False")
        await until_asked(operator, prometheus, 2)

    async def second(operator: RunningOperator) -> None:
        await until_asked(operator, prometheus, 3)
        assert cluster.writes == []
        prometheus.rates = IDLE
        await until_base(operator, "x2")

    play(cluster, server, first)
    cluster.writes.clear()
    play(cluster, server, second)
    assert bases_written(cluster)[0] == "x2"


def test_a_table_that_could_not_be_written_is_written_later(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        await until_base(operator, "x1")
        fault = Fault("apply", "ConfigMap", Refusal(500, "InternalError", "etcd is away"))
        cluster.faults.append(fault)
        prometheus.rates = BUSY
        await operator.until(lambda: fault.times < 1_000_000)
        cluster.faults.clear()
        await until_base(operator, "x4")

    play(cluster, server, scene)


def test_a_deleted_service_is_asked_about_no_more_and_leaves_no_series(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        await make_ready(operator)
        await until_base(operator, "x1")
        metrics = (await operator.get("/metrics"))[1]
        assert (
            'gnnserve_operator_routing_base_variant{namespace="default",service="digits",variant="x1"} 1.0' in metrics
        )
        assert 'gnnserve_operator_objective_wanted_ratio{namespace="default",service="digits"} 0.99' in metrics
        cluster.delete("GNNService", "digits")

        async def is_gone() -> bool:
            return 'service="digits"' not in (await operator.get("/metrics"))[1]

        async with asyncio.timeout(WAIT_S):
            while not await is_gone():
                await asyncio.sleep(0.05)
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("slow loop")] == []

    play(cluster, server, scene)


def test_a_suspended_service_is_not_asked_about_and_keeps_what_it_knew(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        prometheus.rates = BUSY
        await make_ready(operator)
        await until_base(operator, "x4")
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(suspend=True))
        await operator.until_condition("MetricsAvailable", "Unknown", "NotServing")
        assert table(cluster).base_variant == "x4"

    play(cluster, server, scene)


def test_mode_metrics_and_static_each_say_what_they_are(
    cluster: FakeCluster, prometheus: FakePrometheus, server: FakeServer
) -> None:
    async def scene(operator: RunningOperator) -> None:
        prometheus.rates = BUSY
        await make_ready(operator, routing={"mode": "Metrics", "intervalSeconds": 1})
        await until_base(operator, "x4")
        assert table(cluster).mode == "Metrics"
        static = {"mode": "Static", "variant": "x2", "intervalSeconds": 1}
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(routing=static))
        await operator.until_condition("CapacitySufficient", "False", "ScaleOut")
        await until_base(operator, "x2")
        unknown = {"mode": "Weights", "weights": {"x1": 1, "x16": 1}, "intervalSeconds": 1}
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(routing=unknown))
        stalled = await operator.until_condition("Stalled", "True", "VariantUnknown")
        assert "x16" in stalled["message"]
        assert table(cluster).mode == "Static"
        weights = {"mode": "Weights", "weights": {"x1": 1, "x4": 1}, "intervalSeconds": 1}
        cluster.replace("GNNService", "digits", lambda found: found["spec"].update(routing=weights))
        await operator.until(lambda: table(cluster).weights == {"x1": 1, "x4": 1})
        await operator.until_condition("Ready", "True")

    play(cluster, server, scene)


def test_a_wrong_address_is_said(cluster: FakeCluster, server: FakeServer) -> None:
    with reserved_port() as port:
        nobody = f"http://127.0.0.1:{port}"

        async def scene(operator: RunningOperator) -> None:
            await make_ready(operator, routing={"intervalSeconds": 1, "prometheus": {"url": nobody}})
            said = await operator.until_condition("MetricsAvailable", "False", "Unreachable")
            assert nobody in said["message"]

        play(cluster, server, scene)
