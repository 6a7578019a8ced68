"""The pods that answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.device import SIZE, SIZE_REQUIREMENT, CachePolicy, Device
from gnnserve_api.limits import Batching
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, PoolName, text, with_defaults
from gnnserve_api.spec.placement import TopologySpreadConstraints
from gnnserve_api.spec.pods import Gpu, PodSettings
from gnnserve_api.spec.rules import all_empty, rule, server_rule


class BatchingSpec(ApiModel):
    max_seeds: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Largest number of nodes computed together; larger requests are split."""
    max_queued_seeds: Annotated[int, Field(ge=1, le=16_777_216)] = 65_536
    """Largest number of nodes that wait, and of one request; requests beyond are refused with 429."""

    def to_batching(self) -> Batching:
        return Batching(max_seeds=self.max_seeds, max_queued_seeds=self.max_queued_seeds)

    _queue_holds_a_batch = rule(
        "self.maxQueuedSeeds >= self.maxSeeds",
        "maxQueuedSeeds {self.maxQueuedSeeds} must be at least maxSeeds {self.maxSeeds}",
    )


class CacheSpec(ApiModel):
    """Cache of rows in the memory of a worker's GPU."""

    policy: CachePolicy = CachePolicy.FREQUENCY
    """Choice of the rows that a GPU's memory keeps of a table that does not fit."""


class Tracing(ApiModel):
    """Where workers send traces of predictions, by OTLP over HTTP. Headers, such as those that a receiver wants for
    access, and certificates are set by OpenTelemetry's variables in the chart's `worker.extraEnv`."""

    endpoint: Annotated[str, text(r"^https?://[^\s/?#]+(/[^\s?#]*)?$", "a URL such as http://collector:4318", 2048)]
    """Base URL of the receiver of traces; `/v1/traces` is added."""
    sampled_permille: Annotated[int, Field(ge=0, le=1000)] = 10
    """Share of the requests without a `traceparent` that is traced, in permille. Requests with one are traced where its
    flag says so."""


def field_of_pods(pool: str, name: str) -> str:
    """A field about worker pods where it can be set, for messages. `pool`: name of the pool that they are of; empty:
    none."""
    return f"spec.{name} of GNNWorkerPool {pool}" if pool else f"spec.worker.{name}"


class PoolRef(ApiModel):
    name: PoolName
    """Name of a GNNWorkerPool in the namespace of the service."""


class RolloutSpec(ApiModel):
    """Replacement of worker pods by pods of another image or template."""

    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Number of worker pods that may stop before a successor of each is ready. 0: each successor gets ready first,
    which takes room for one pod more than there are workers. 1 or more: pods are replaced without such room; with one
    worker, no request is answered until the successor is ready. Absent: 0, or 1 for several workers with GPUs."""


Replicas = Annotated[int, Field(ge=0, le=1000)]
_OWN_MAPPINGS = ("nodeSelector", "tolerations", "podLabels", "podAnnotations", "topologySpreadConstraints")
_OWN_OBJECTS = ("rollout", "gpu", "gpuMemory", "runtimeClassName", "affinity", "priorityClassName")
_OF_POOLED_SERVICES = ("pool_ref", "share", "batching", "tracing")
_HAS_NO_PODS = " && ".join(
    (
        "self.replicas == 1 && self.device == 'Auto' && self.cache.policy == 'Frequency'",
        f"(!has(self.resources) || ({all_empty('self.resources.requests', 'self.resources.limits')}))",
        all_empty(*(f"self.{name}" for name in _OWN_MAPPINGS)),
        *(f"!has(self.{name})" for name in _OWN_OBJECTS),
    )
)
_PODS_ARE_THE_POOLS = (
    "replicas, resources, gpu and all else about pods must not be given with poolRef: they are the GNNWorkerPool's, "
    "whose workers compute on the CPU; set nothing here but poolRef, share, batching and tracing"
)


class Worker(PodSettings):
    """The pods that answer. But for `device`, `gpuMemory`, `cache`, `batching` and `share`, in a cluster only."""

    default_audience = Audience.PODS

    replicas: Annotated[Replicas, Audience.OPERATOR] = 1
    """Number of worker pods."""
    rollout: Annotated[RolloutSpec | None, Audience.OPERATOR] = None
    """Replacement of worker pods when the image or the template of the pods changes. Absent: a successor of each pod
    gets ready first."""
    device: Device = Device.AUTO
    """Device that workers compute on."""
    gpu: Gpu | None = None
    """GPU that each worker pod asks for. Absent: none."""
    gpu_memory: Annotated[str, text(SIZE, SIZE_REQUIREMENT, 9)] | None = None
    """Largest amount of GPU memory that a worker takes, as in 40Gi: weights, buffers, graph and tables, then the cache
    with what is left. Absent: all that is free."""
    cache: CacheSpec = with_defaults(CacheSpec)
    """Cache in the GPU's memory, for tables that do not fit there."""
    topology_spread_constraints: TopologySpreadConstraints = ()
    """Constraints on the spread of workers over zones or nodes; need a repository that pods of several nodes may mount.
    Absent: with such a repository they are spread over nodes where that is possible."""
    tracing: Tracing | None = None
    """Traces of predictions, sent by OTLP. Absent: none."""
    batching: Annotated[BatchingSpec, Audience.WORKERS] = with_defaults(BatchingSpec)
    """Limits of the queue of requests, and of batches."""
    pool_ref: Annotated[PoolRef | None, Audience.OPERATOR] = None
    """GNNWorkerPool whose pods answer for this service, beside others. Absent: the service has pods of its own."""
    share: Annotated[int, Field(ge=1, le=1000), Audience.WORKERS] = 1
    """Weight by which services that share the workers of a pool divide the workers' time, where all could use more."""

    @property
    def replicas_field(self) -> str:
        """The field that says how many workers there are, for messages."""
        return field_of_pods("" if self.pool_ref is None else self.pool_ref.name, "replicas")

    @rule(f"!has(self.poolRef) || ({_HAS_NO_PODS})", _PODS_ARE_THE_POOLS)
    def _pods_are_the_pools(self) -> str:
        own = {name: Worker.model_fields[name] for name in Worker.model_fields if name not in _OF_POOLED_SERVICES}
        given = [field.alias or name for name, field in own.items() if getattr(self, name) != field.get_default()]
        return f"{_PODS_ARE_THE_POOLS}; found {', '.join(given)}"

    _pool_is_fixed = server_rule(
        "has(self.poolRef) == has(oldSelf.poolRef) && (!has(self.poolRef) || self.poolRef.name == "
        "oldSelf.poolRef.name)",
        "poolRef is fixed, because the revisions are in the pool's repository: create another service to move",
    )

    _gpu_is_asked_for_where_it_is_used = rule(
        "self.device != 'GPU' || has(self.gpu)",
        "gpu must be given with device GPU, so that pods are placed where there is one: gpu: {} asks for one "
        "nvidia.com/gpu",
    )

    _gpu_is_used_where_it_is_asked_for = rule(
        "self.device != 'CPU' || !has(self.gpu)", "gpu must not be given with device CPU, which would leave it idle"
    )
