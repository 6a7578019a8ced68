"""`status` of a GNNWorkerPool: what the operator says of the pods, and of each service that they answer for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.pods.pool import MOST_SERVICES
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.status.service_status import Condition, WorkersStatus


class PoolConditionType(StrEnum):
    READY = "Ready"
    """As many workers as asked for are ready, and of the newest template."""
    AVAILABLE = "Available"
    """At least one worker is ready and answers for the services, of whatever template; Ready tells whether all are."""
    RECONCILING = "Reconciling"
    """Something is under way; wait."""
    STALLED = "Stalled"
    """Nothing goes on until a person acts; the message says who and how."""
    REPOSITORY_KEPT = "RepositoryKept"
    """The claim with the models of the services stays: it is not being deleted; else the message says what is lost with
    it."""
    REPLICAS_UNCONTESTED = "ReplicasUncontested"
    """An autoscaler or the manifest sets the number of workers, and not both, each of which undoes what the other did;
    absent where no autoscaler has set it."""
    SERVICES_FIT = "ServicesFit"
    """The workers have room for every service; else the message names those that are refused, and why."""


class PoolServiceStatus(ApiModel):
    name: Annotated[str, Field(max_length=63)]
    """Name of the service."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port at which the pool's pods answer for the service, to which the Service leads. Absent: none is assigned yet.
    """
    share: Annotated[int, Field(ge=1, le=1000)] = 1
    """Weight by which the service divides the workers' time with the others."""
    ready: bool = False
    """Whether the service's own condition Ready is true."""
    available: bool = False
    """Whether the service's own condition Available is true: the endpoint answers."""
    revision: Annotated[str, Field(max_length=63)] | None = None
    """Name of the revision that the workers are told to answer from; absent: none."""
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    """Memory in bytes that is counted for the service: revision, changes and buffers. Absent: nothing is answered from.
    """
    message: Annotated[str, Field(max_length=1024)] | None = None
    """Reason why the service is not in the pool, or not ready. Absent: there is none."""


class GNNWorkerPoolStatus(ApiModel):
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """metadata.generation of the object that the status is about."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """Conditions of the pool, each with reason and message: Ready, Available, Reconciling, Stalled,
    RepositoryKept, ReplicasUncontested, ServicesFit. Empty: the operator has not looked at the pool yet."""
    service_names: Annotated[str, Field(max_length=64 * (MOST_SERVICES + 1))] | None = None
    """Names of the services of the pool, as one line. Absent: there are none."""
    services: Annotated[
        tuple[PoolServiceStatus, ...],
        Field(
            max_length=4 * MOST_SERVICES,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Services that name the pool. Empty: there are none."""
    memory: Annotated[str, Field(max_length=64)] | None = None
    """Memory that is counted for all services and the process, of what a worker may use, in MiB. Absent: not counted
    yet."""
    workers: WorkersStatus | None = None
    """Worker pods of the pool, in numbers. Absent: not counted yet."""
