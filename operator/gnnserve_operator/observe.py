"""What is there for one GNNService: what the watches told, what the workers say, and what the API server offers.

The only I/O before the plan. Turning live objects into observations is `observed.py`, judging them is the plan's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.routing import RoutingDecision
from gnnserve_operator.decide.signals import Answer, Silence
from gnnserve_operator.desired.names import repository_claim_name, routing_name, worker_name
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import POD_MONITOR, Manifest, ServiceKey
from gnnserve_operator.loop import Clock
from gnnserve_operator.observed import (
    ObjectRef,
    Observed,
    ObservedPod,
    Rejection,
    controller_of,
    observed_claim,
    observed_deployment,
    observed_job,
    observed_pod,
    observed_ref,
    observed_routing,
)
from gnnserve_operator.probe import Answers, Prober

_API_MEMORY_S = 60.0
"""How long an answer to "is there a PodMonitor API" is good."""


@dataclass(frozen=True, slots=True)
class Seen:
    observed: Observed
    known: Mapping[ObjectRef, Manifest | None]
    """The objects themselves, for telling what differs from them; None: looked for, and not there."""


class Observer:
    def __init__(self, index: Index, cluster: Cluster, prober: Prober, clock: Clock) -> None:
        self._index = index
        self._cluster = cluster
        self._prober = prober
        self._clock = clock
        self._has_pod_monitors = False
        self._asked_at: float | None = None

    async def observe(
        self,
        key: ServiceKey,
        service: Manifest,
        rejections: tuple[Rejection, ...],
        routed: RoutingDecision | None,
        measured: Answer | Silence | None,
    ) -> Seen:
        """`service` is the live GNNService; what follows is remembered."""
        pods = tuple(
            observed_pod(raw)
            for raw in self._index.children(key)
            if raw["kind"] == "Pod" and not _is_older(raw, service)
        )
        answers, pod_monitors = await asyncio.gather(
            self._prober.ask(key, pods, tls=_wants_tls(service)), self._pod_monitors(key)
        )
        # After the asking, which may take seconds: a write holds only for the version that it was decided on.
        known = {observed_ref(raw): raw for raw in self._index.children(key) if raw["kind"] != "Pod"} | pod_monitors
        uid = service["metadata"]["uid"]
        owned = {ref: raw for ref, raw in known.items() if raw is not None and _is_controlled(raw, uid)}
        observed = self._observed(key, owned, pods, answers)
        return Seen(replace(observed, rejections=rejections, routed=routed, measured=measured), known)

    def _observed(
        self, key: ServiceKey, owned: Mapping[ObjectRef, Manifest],
        pods: tuple[ObservedPod, ...], answers: Answers,
    ) -> Observed:  # fmt: skip
        routing = _named(owned, "ConfigMap", routing_name(key.name))
        deployment = _named(owned, "Deployment", worker_name(key.name))
        claim = _named(owned, "PersistentVolumeClaim", repository_claim_name(key.name))
        return Observed(
            routing=None if routing is None else observed_routing(routing),
            jobs=tuple(observed_job(raw) for ref, raw in owned.items() if ref.kind == "Job"),
            deployment=None if deployment is None else observed_deployment(deployment),
            pods=pods,
            answers=answers.workers,
            owned=tuple(owned),
            claim=None if claim is None else observed_claim(claim),
            pod_monitor_available=self._has_pod_monitors,
            endpoint_answers=answers.endpoint,
        )

    async def _pod_monitors(self, key: ServiceKey) -> dict[ObjectRef, Manifest | None]:
        """Not watched, since the API is not everywhere."""
        now = self._clock.now()
        if self._asked_at is None or now - self._asked_at > _API_MEMORY_S:
            self._asked_at = now
            self._has_pod_monitors = await self._cluster.has_pod_monitors()
        if not self._has_pod_monitors:
            return {}
        ref = ObjectRef(POD_MONITOR.api_version, POD_MONITOR.name, key.namespace, worker_name(key.name))
        return {ref: await self._cluster.get(ref)}


def _named(owned: Mapping[ObjectRef, Manifest], kind: str, name: str) -> Manifest | None:
    return next((raw for ref, raw in owned.items() if (ref.kind, ref.name) == (kind, name)), None)


def _wants_tls(service: Manifest) -> bool:
    return bool((service["spec"].get("endpoint") or {}).get("tls"))


def _is_controlled(raw: Manifest, uid: str) -> bool:
    owner = controller_of(raw)
    return owner is not None and owner["uid"] == uid


def _is_older(pod: Manifest, service: Manifest) -> bool:
    """A pod of a deleted service of the same name. Pods are owned by ReplicaSets, which are not watched."""
    return bool(pod["metadata"]["creationTimestamp"] < service["metadata"]["creationTimestamp"])
