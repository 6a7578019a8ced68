"""The `GNNWorkerPool` resource: worker pods that answer for several services. In a cluster only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import NAME_PATTERN, ApiModel, ImageReference, ObjectName, with_defaults
from gnnserve_api.spec.placement import TopologySpreadConstraints
from gnnserve_api.spec.pods import PodSettings
from gnnserve_api.spec.repository import RepositoryPlace
from gnnserve_api.spec.rules import rule, server_rule
from gnnserve_api.spec.service import GNNServiceSpec, Metadata
from gnnserve_api.spec.worker import Replicas, RolloutSpec, Worker

POOL_KIND = "GNNWorkerPool"
_NO_DEVICES = (
    "resources must not name a device, such as nvidia.com/gpu, which would be idle: the workers of a pool compute on "
    "the CPU; leave it out, and give a service that needs a GPU workers of its own: spec.worker.gpu of the GNNService, "
    "without poolRef"
)


class GNNWorkerPoolSpec(PodSettings):
    default_audience = Audience.PODS

    replicas: Annotated[Replicas, Audience.OPERATOR] = 1
    """Number of worker pods, each of which answers for all services of the pool."""
    rollout: Annotated[RolloutSpec | None, Audience.OPERATOR] = None
    """Replacement of worker pods when the image or the template of the pods changes. Absent: a successor of each pod
    gets ready first."""
    topology_spread_constraints: TopologySpreadConstraints = ()
    """Constraints on the spread of workers over zones or nodes; need a repository that pods of several nodes may mount.
    Absent: with such a repository they are spread over nodes where that is possible."""
    repository: RepositoryPlace = with_defaults(RepositoryPlace)
    """Repository of the revisions of all services of the pool, each service's in folders of its own."""
    image: ImageReference | None = None
    """Image of the workers, and of the services' generation pods. Absent: the operator's setting."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    """Names of the Secrets to pull the image with, in the namespace of the pool. Absent: none."""

    _workers_may_spread = rule(
        "!has(self.topologySpreadConstraints) || size(self.topologySpreadConstraints) == 0 || "
        "has(self.repository.claimName) || "
        "(has(self.repository.claim) && self.repository.claim.accessMode == 'ReadWriteMany')",
        "topologySpreadConstraints may be given with a repository that pods of several nodes may mount only: "
        "repository.claimName, or repository.claim.accessMode ReadWriteMany",
    )

    @rule(
        "!has(self.resources) || ("
        + " && ".join(
            f"(!has(self.resources.{field}) || self.resources.{field}.all(name, !name.contains('/')))"
            for field in ("requests", "limits")
        )
        + ")",
        _NO_DEVICES,
    )
    def _workers_have_no_device(self) -> str:
        asked = {"requests": self.resources.requests, "limits": self.resources.limits}
        found = next(f"{field}.{name}" for field, named in asked.items() for name in named if "/" in name)
        return f"{_NO_DEVICES}; found resources.{found}"

    def lend(self, spec: GNNServiceSpec, claim: str) -> GNNServiceSpec:
        """The spec of a service of this pool as if the pool's pods were its own. `claim`: name of the pool's claim."""
        # Those are what a pool has of a service, or of its workers.
        own = {name: getattr(self, name) for name in type(self).model_fields if name != "repository"}
        of_workers = {name: value for name, value in own.items() if name in Worker.model_fields}
        of_service = {name: value for name, value in own.items() if name in GNNServiceSpec.model_fields}
        return spec.model_copy(
            update={
                **of_service,
                "worker": spec.worker.model_copy(update=of_workers),
                "repository": spec.repository.model_copy(update={"claim_name": claim}),
            }
        )


class GNNWorkerPool(ApiModel):
    """Workers that answer for several services: one process in each pod, with a port and a queue for each service."""

    api_version: Literal["gnnserve.dev/v1alpha1"]
    kind: Literal["GNNWorkerPool"]
    metadata: Metadata
    spec: GNNWorkerPoolSpec = with_defaults(GNNWorkerPoolSpec)

    _name_is_a_labels = server_rule(
        f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= 63",
        "metadata.name must be at most 63 lower-case letters, digits and '-', a letter first",
    )
