"""What is seen of a service: its own pods, and not those of a namesake that was there before."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.control.campaign.clock import SimClock
from tests.control.campaign.sim_operator import SimProber
from tests.support.api_server import ApiServer
from tests.support.fake_cluster import FakeCluster
from tests.support.in_process import InProcessTransport
from tests.support.operator import KEY, gnnservice, live

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.handlers.index import Index, Kept
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.observe import Observer
from gnnserve_operator.probe import Addresses
from gnnserve_operator.routing_memory import RoutingMemory


def _pod(name: str, created_at: str) -> dict[str, Any]:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {}}
    return live(pod, creationTimestamp=created_at)


def test_pods_of_a_deleted_service_of_the_same_name_do_not_count() -> None:
    """They answer for a while after another was made; their owners, ReplicaSets, are not watched."""
    index = Index()
    pods = [_pod("old", "2026-01-01T00:00:00Z"), _pod("new", "2026-01-01T00:00:09Z")]
    index.attach({}, {KEY: [Kept.of(pod) for pod in pods]})
    cluster = Cluster(InProcessTransport(ApiServer(FakeCluster()).respond), Metrics(RoutingMemory()))
    observer = Observer(index, cluster, SimProber(Addresses("cluster.local")), SimClock())
    service = live(gnnservice(), creationTimestamp="2026-01-01T00:00:05Z")
    seen = asyncio.run(observer.observe(KEY, service, (), None, None))
    assert [pod.name for pod in seen.observed.pods] == ["new"]
