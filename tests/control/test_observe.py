"""What is seen of a service: its own pods, and not those of a namesake that was there before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.control.campaign.clock import SimClock, let_run
from tests.control.campaign.sim_operator import SimProber
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.kubernetes.in_process import InProcessTransport
from tests.support.operator.operator import KEY, gnnservice, live

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.errors import RetryLaterError
from gnnserve_operator.handlers.index import Index, IndexedObject
from gnnserve_operator.kinds import POD_MONITOR, ResourceKind, ServiceKey, kind_of, observed_ref
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.observe import JobRefusals, ListedObjects, Observer, PodMonitors, RepositoryClaims, UsersClaims
from gnnserve_operator.observed import ObservedPod
from gnnserve_operator.probe import Addresses, Answers
from gnnserve_operator.slow_loop import RoutingMemory


def _pod(name: str, created_at: str) -> dict[str, Any]:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {}}
    return live(pod, creationTimestamp=created_at)


@dataclass(slots=True)
class Meanwhile(SimProber):
    """Pods come and go while others are asked."""

    index: Index = field(default_factory=Index)
    after: list[tuple[str, ...]] = field(default_factory=list)
    """The pods that are there after each asking."""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def ask(self, key: ServiceKey, pods: Iterable[ObservedPod], *, tls: bool = False) -> Answers:
        self.asked.append(tuple(pod.name for pod in pods))
        there(self.index, *self.after.pop(0))
        return Answers()


def claims_of(cluster: Cluster) -> RepositoryClaims:
    return RepositoryClaims(cluster, UsersClaims(cluster, 60, SimClock()))


def there(index: Index, *names: str) -> None:
    pods = [_pod(name, "2026-01-01T00:00:09Z") for name in names]
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-of-{pod['metadata']['name']}"
    for uid in index.by_uid(kind_of("v1", "Pod")):
        index.drop(uid)
    for pod in pods:
        index.keep(KEY, IndexedObject.of(pod))


@pytest.mark.parametrize(
    ("after", "asked"),
    [
        pytest.param([("a",)], [("a",)], id="nothing"),
        pytest.param([("b",), ("b",)], [("a",), ("b",)], id="a replacement"),
        pytest.param([("b",), ("c",)], [("a",), ("b",)], id="one after the other"),
    ],
)
def test_who_is_judged_is_who_is_there_after_the_asking(
    after: list[tuple[str, ...]], asked: list[tuple[str, ...]]
) -> None:
    index = Index()
    there(index, "a")
    prober = Meanwhile(Addresses("cluster.local"), index=index, after=list(after))
    cluster = Cluster(InProcessTransport(ApiServer(FakeCluster()).respond), Metrics(RoutingMemory()))
    clock = SimClock()
    monitors = PodMonitors(cluster, Namespaces(), 60, clock)
    observer = Observer(index, prober, monitors, claims_of(cluster), JobRefusals(cluster, clock))
    seen = asyncio.run(observer.observe(KEY, live(gnnservice(), creationTimestamp="2026-01-01T00:00:05Z")))
    assert tuple(pod.name for pod in seen.observed.pods) == after[-1]
    assert prober.asked == asked


# --- PodMonitors


class Monitored:
    """An API server that may not answer."""

    def __init__(self) -> None:
        self.looks, self.lists = 0, list[str | None]()
        self.is_away = self.has_api = True
        self.gate = asyncio.Event()
        self.monitors: list[dict[str, Any]] = []

    async def has_pod_monitors(self) -> bool:
        self.looks += 1
        await self.gate.wait()
        if self.is_away:
            raise RetryLaterError("away")
        return self.has_api

    async def list_objects(self, kind: ResourceKind, namespace: str | None, selector: str) -> list[dict[str, Any]]:
        self.lists.append(namespace)
        return list(self.monitors)


def monitor(version: int) -> dict[str, Any]:
    labels = {"gnnserve.dev/service": KEY.name}
    identity = {"name": "digits-worker", "namespace": KEY.namespace, "labels": labels}
    return live({"apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.name, "metadata": identity}, version)


def test_an_api_that_did_not_answer_is_asked_again_and_not_taken_to_be_missing() -> None:
    async def scene() -> None:
        cluster, clock = Monitored(), SimClock()
        monitors = PodMonitors(cluster, Namespaces(("a", "b")), 60, clock)  # type: ignore[arg-type]
        cluster.gate.set()
        with pytest.raises(RetryLaterError):
            await monitors.listed()
        cluster.is_away = False
        assert await monitors.listed() is not None
        assert cluster.lists == ["a", "b"]

    asyncio.run(scene())


def test_one_list_is_for_all_who_ask_and_for_as_long_as_it_is_good() -> None:
    async def scene() -> None:
        cluster, clock = Monitored(), SimClock()
        cluster.is_away, cluster.monitors = False, [monitor(1)]
        monitors = PodMonitors(cluster, Namespaces(), 60, clock)  # type: ignore[arg-type]
        asking = [asyncio.create_task(monitors.listed()) for _ in range(5)]
        await let_run()
        asking[0].cancel()  # its reconcile took too long: the others' do not
        await let_run()
        cluster.gate.set()
        _, *listed = await asyncio.gather(*asking, return_exceptions=True)
        assert (cluster.looks, cluster.lists) == (1, [None])
        for found in listed:
            assert isinstance(found, ListedObjects)
            assert found.of(KEY) == {observed_ref(monitor(1)): monitor(1)}
        await clock.advance_to(59)
        await monitors.listed()
        assert cluster.looks == 1
        await clock.advance_to(61)
        await monitors.listed()
        assert cluster.looks == 2

    asyncio.run(scene())


def test_a_list_that_was_under_way_when_it_was_to_be_forgotten_is_not_kept() -> None:
    async def scene() -> None:
        cluster = Monitored()
        cluster.is_away, cluster.monitors = False, [monitor(1)]
        monitors = PodMonitors(cluster, Namespaces(), 60, SimClock())  # type: ignore[arg-type]
        asking = asyncio.create_task(monitors.listed())
        await let_run()
        monitors.forget()
        cluster.gate.set()
        await asking
        await monitors.listed()
        assert cluster.looks == 2

    asyncio.run(scene())


def test_pods_of_a_deleted_service_of_the_same_name_do_not_count() -> None:
    """They answer for a while after another was made; their owners, ReplicaSets, are not watched."""
    index = Index()
    pods = [_pod("old", "2026-01-01T00:00:00Z"), _pod("new", "2026-01-01T00:00:09Z")]
    for uid in index.by_uid(kind_of("v1", "Pod")):
        index.drop(uid)
    for pod in pods:
        index.keep(KEY, IndexedObject.of(pod))
    cluster = Cluster(InProcessTransport(ApiServer(FakeCluster()).respond), Metrics(RoutingMemory()))
    observer = Observer(
        index,
        SimProber(Addresses("cluster.local")),
        PodMonitors(cluster, Namespaces(), 60, SimClock()),
        claims_of(cluster),
        JobRefusals(cluster, SimClock()),
    )
    service = live(gnnservice(), creationTimestamp="2026-01-01T00:00:05Z")
    seen = asyncio.run(observer.observe(KEY, service))
    assert [pod.name for pod in seen.observed.pods] == ["new"]
