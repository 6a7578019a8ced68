"""A worker pool with its services, pods and reconciler, in memory."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Any

from tests.control.campaign.clock import SimClock
from tests.control.campaign.sim_operator import SimProber
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.kubernetes.in_process import InProcessTransport
from tests.support.operator.observed import make_route, make_settings

from gnnserve_api.pods.generation import GenerationResult, VariantSummary, encode_result
from gnnserve_api.pods.pool import SERVICES_KEY, PoolServices, decode_services
from gnnserve_api.pods.routing import ROUTING_KEY, decode_routing
from gnnserve_operator.apply import Applier
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.metadata import JOB_NAME
from gnnserve_operator.errors import ConflictError, RefusedError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.handlers.index import Index, IndexedObject, service_of
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import Namespaces
from gnnserve_operator.observe import JobRefusals, Observer, PodMonitors, PoolObserver, RepositoryClaims, UsersClaims
from gnnserve_operator.observed import ObservedPod, WorkerAnswer
from gnnserve_operator.probe import Addresses, Answers
from gnnserve_operator.reconcile import Reconciler, reconciled_kinds
from gnnserve_operator.report import Reporter
from gnnserve_operator.slow_loop import RoutingMemory, SlowLoop

Manifest = dict[str, Any]
MIB = 2**20
NAMESPACE = "default"
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."
POOL = {"resources": {"limits": {"memory": "2Gi"}}, "replicas": 2}


class Scene:
    """A namespace with a pool: Jobs end, pods start and workers load whatever they are told, each at once."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.cluster = FakeCluster(clock=self.clock.utc)
        self._api = ApiServer(self.cluster)
        self.index = Index()
        self._keys: dict[ServiceKey, None] = {}
        """All that was ever there: what is deleted is looked at too."""
        self.sizes: dict[str, int] = {}
        """Bytes of each service's revision; 100 MiB where none is said."""
        self.silent: set[str] = set()
        """Services that workers do not load."""
        self.is_without_room = False
        """Whether the node has no room for a pod beside those that are there."""
        settings, memory = make_settings(), RoutingMemory()
        metrics = Metrics(memory)
        cluster = Cluster(InProcessTransport(self._api.respond), metrics)
        monitors = PodMonitors(cluster, Namespaces(), 60, self.clock)
        claims = RepositoryClaims(cluster, UsersClaims(cluster, 60, self.clock))
        fleet = Fleet(self.index.reconciled_keys, self.index.standings, lambda _: None, max_jobs=0, max_rollouts=0)
        prober = SimProber(Addresses("cluster.local"), answer=self.answer)
        kinds = reconciled_kinds(
            Observer(self.index, prober, monitors, claims, JobRefusals(cluster, self.clock)),
            PoolObserver(self.index, monitors, claims),
        )
        self._reconciler = Reconciler(
            settings, self.index, cluster, kinds, monitors, Applier(cluster), Reporter(cluster), self.clock,
            SlowLoop(_never, lambda _: None, self.clock), memory, fleet,
        )  # fmt: skip

    # What people do

    def add_pool(self, name: str = "shared", **spec: Any) -> None:
        self.cluster.create(_object("GNNWorkerPool", name, copy.deepcopy({**POOL, **spec})))

    def add(self, name: str, **spec: Any) -> None:
        worker = {"poolRef": {"name": "shared"}, **spec.pop("worker", {})}
        graph = {"source": {"builtin": "Digits"}}
        self.cluster.create(_object("GNNService", name, {"graph": graph, "worker": worker, **spec}))

    def edit(self, kind: str, name: str, **spec: Any) -> None:
        self.cluster.replace(kind, name, lambda found: found["spec"].update(copy.deepcopy(spec)))

    # What there is

    def of_kind(self, kind: str) -> dict[str, Manifest]:
        return {key[2]: found for key, found in self.cluster.objects.items() if key[0] == kind}

    def condition(self, name: str, which: str, kind: str = "GNNService") -> tuple[str, str, str]:
        found = self.of_kind(kind)[name].get("status", {}).get("conditions", ())
        (told,) = [one for one in found if one["type"] == which]
        return told["status"], told["reason"], told["message"]

    def services(self, pool: str = "shared") -> PoolServices:
        return decode_services(self.of_kind("ConfigMap")[f"{pool}-pool-services"]["data"][SERVICES_KEY])

    def pool_status(self, name: str = "shared") -> Manifest:
        return dict(self.of_kind("GNNWorkerPool")[name]["status"])

    # What happens

    def settle(self, rounds: int = 12) -> None:
        """Have everything looked at, and the cluster act, until nothing changes."""

        async def run() -> None:
            for _ in range(rounds):
                before = self.cluster.version
                self._watch()
                self._keys |= dict.fromkeys(self.index.reconciled_keys())
                for key in (*self._keys,):
                    try:
                        await self._reconciler.reconcile(key)
                    except ConflictError:
                        pass  # it is looked at again
                    except RefusedError:
                        pass
                    self._watch()
                self._act()
                if self.cluster.version == before:
                    return
            raise AssertionError("it does not come to rest")

        asyncio.run(run())

    def _watch(self) -> None:
        live = {found["metadata"]["uid"] for found in self.cluster.objects.values()}
        for kept in (*self.index._keys,):
            if kept not in live:
                self.index.drop(kept)
        for found in self.cluster.objects.values():
            if found["kind"] not in {"Event", "ReplicaSet"}:
                self.index.keep(service_of(found), IndexedObject.of(found))

    def _act(self) -> None:
        for job in self.of_kind("Job").values():
            if not job.get("status") and not job["spec"].get("suspend"):
                self._end_job(job)
        for deployment in self.of_kind("Deployment").values():
            self._run_pods(deployment)

    def _end_job(self, job: Manifest) -> None:
        labels = job["metadata"]["labels"]
        name, recipe = labels["gnnserve.dev/service"], labels["gnnserve.dev/recipe"]
        result = GenerationResult(
            f"r-{recipe[:8]}", recipe, "graph", (VariantSummary("x1", 64, 970.0, 1.0),),
            memory_bytes=self.sizes.get(name, 100 * MIB),
        )  # fmt: skip
        ended = {"terminated": {"exitCode": 0, "message": encode_result(result)}}
        job_name = job["metadata"]["name"]
        pod = _pod(f"{job_name}-0", job["spec"]["template"], {JOB_NAME: job_name})
        pod["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": "generate", "state": ended}]}
        self.cluster.create(pod)
        done = {
            "type": "Complete",
            "status": "True",
            "lastTransitionTime": self.clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.cluster.replace("Job", job_name, lambda found: found.update(status={"conditions": [done]}))

    def _run_pods(self, deployment: Manifest) -> None:
        """Replace pods by those of the newest template."""
        spec, name = deployment["spec"], deployment["metadata"]["name"]
        generation = deployment["metadata"]["generation"]
        if (deployment.get("status") or {}).get("observedGeneration") == generation:
            return
        if self.is_without_room:
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_ROOM}
            pod = _pod(f"{name}-{generation}-0", spec["template"])
            self.cluster.create({**pod, "status": {"phase": "Pending", "conditions": [waits]}})
            status = {"observedGeneration": generation, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1}
            self.cluster.replace("Deployment", name, lambda found: found.update(status=status))
            return
        for pod in self.of_kind("Pod"):
            if pod.startswith(f"{name}-"):
                self.cluster.delete("Pod", pod)
        for number in range(spec["replicas"]):
            pod = _pod(f"{name}-{generation}-{number}", spec["template"])
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            running = {"name": "worker", "state": {"running": {}}}
            pod["status"] = {
                "phase": "Running", "podIP": f"10.0.0.{number}", "conditions": [ready], "containerStatuses": [running]
            }  # fmt: skip
            self.cluster.create(pod)
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), spec["replicas"])
        status = {"observedGeneration": generation, **counts}
        self.cluster.replace("Deployment", name, lambda found: found.update(status=status))

    def _port_of(self, name: str) -> int | None:
        """The port at which workers answer for a service: also that of a list which is gone."""
        if "shared-pool-services" in self.of_kind("ConfigMap"):
            entry = self.services().of(name)
            return None if entry is None else entry.port
        service = self.of_kind("Service").get(name)
        return None if service is None else int(service["spec"]["ports"][0]["targetPort"])

    def answer(self, key: ServiceKey, pods: Iterable[ObservedPod]) -> Answers:
        asked = [pod for pod in pods if pod.can_be_asked]
        told = self.of_kind("ConfigMap").get(f"{key.name}-routing")
        port = self._port_of(key.name)
        if told is None or port is None or key.name in self.silent:
            return Answers(tuple(WorkerAnswer(pod.name, None, "it is loading") for pod in asked))
        route = make_route(decode_routing(told["data"][ROUTING_KEY]))
        if any(pod.port != port for pod in asked):
            # The list of a pool that was made again may give it another than that to which its Service leads.
            return Answers(
                tuple(WorkerAnswer(pod.name, None, "it takes no connection", is_silent=True) for pod in asked)
            )
        is_reached = key.name in self.of_kind("Service") and bool(asked)
        return Answers(tuple(WorkerAnswer(pod.name, route) for pod in asked), route if is_reached else None)


async def _never(*_: Any) -> Any:
    raise AssertionError("no Prometheus is named")


def _object(kind: str, name: str, spec: Manifest) -> Manifest:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "gnnserve.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _pod(name: str, template: Manifest, labels: dict[str, str] | None = None) -> Manifest:
    metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
    metadata["labels"] = {**template["metadata"]["labels"], **(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template["spec"])}
