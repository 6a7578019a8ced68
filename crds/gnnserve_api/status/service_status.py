"""`status` of a GNNService: what the operator says, and only says; nothing in it triggers anything.

Conditions follow Kubernetes' conventions (kstatus): `Ready` is the answer, `Reconciling` and `Stalled` are true
while something is under way or cannot go on. Values that change by the second stay in metrics.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.variants import MAX_VARIANT_NAME, MAX_VARIANTS


class ConditionType(StrEnum):
    READY = "Ready"
    """All is as declared: every worker asked for answers from the revision that the spec declares, and so does the
    endpoint."""
    AVAILABLE = "Available"
    """The endpoint answers, from whatever revision; Ready tells whether from what is declared."""
    RECONCILING = "Reconciling"
    """Something is under way; wait."""
    STALLED = "Stalled"
    """Nothing goes on until a person acts, or nothing has changed for 15 minutes; the message says who and how."""
    VARIANTS_GENERATED = "VariantsGenerated"
    """A revision of this spec is published, in a claim that stays."""
    WORKERS_AVAILABLE = "WorkersAvailable"
    """As many workers as asked for are ready."""
    CREDENTIALS_VALID = "CredentialsValid"
    """Workers use all that is in the Secrets of spec.endpoint and spec.updates; absent where these name none."""
    REPOSITORY_KEPT = "RepositoryKept"
    """The claim with the revisions stays: it is not being deleted, and one of yours not with another object; else the
    message says what is lost with it."""
    ACCURACY_HOLDS = "AccuracyHolds"
    """By the labels that clients sent, no variant is significantly less accurate in service than its profile promised;
    absent where spec.endpoint names no writeTokens."""
    UPDATES_FOLLOWED = "UpdatesFollowed"
    """Workers follow the log of changes, and what is written to it lasts; absent without spec.updates."""
    EMBEDDINGS_PUBLISHED = "EmbeddingsPublished"
    """The index and the databases of spec.embeddings have the embeddings of the published revision; absent without
    spec.embeddings."""
    CANARY_ANSWERS = "CanaryAnswers"
    """The second revision of spec.routing.canary answers its share of the requests on every worker; absent without
    it."""
    PROGRAM_HEALTHY = "ProgramHealthy"
    """The program that workers run as the model gives scores; absent where they run none."""
    REPLICAS_UNCONTESTED = "ReplicasUncontested"
    """An autoscaler or the manifest sets the number of workers, and not both, each of which undoes what the other did;
    absent where no autoscaler has set it."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """Prometheus tells of the workers' load."""
    OBJECTIVE_MET = "ObjectiveMet"
    """As many requests as `objective.percentile` says are answered in time."""
    CAPACITY_SUFFICIENT = "CapacitySufficient"
    """The workers carry the load, if need be with a less accurate variant; the reason says with which."""


class ConditionStatus(StrEnum):
    TRUE = "True"
    """It holds."""
    FALSE = "False"
    """It does not."""
    UNKNOWN = "Unknown"
    """Not known."""


class Condition(ApiModel):
    type: Annotated[str, Field(max_length=316)]
    """Type of the condition, as in Ready."""
    status: ConditionStatus
    """Whether the condition holds."""
    reason: Annotated[str, Field(max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Reason of the condition's status, in a word for programs."""
    message: Annotated[str, Field(max_length=32_768)]
    """Explanation of the condition's status, and what to do."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """Time at which the condition's status last changed."""
    observed_generation: Annotated[int, Field(ge=0)]
    """metadata.generation of the object that the condition is about."""


class VariantStatus(ApiModel):
    name: Annotated[str, Field(max_length=MAX_VARIANT_NAME)]
    """Name of the variant."""
    columns: Annotated[int, Field(ge=0)]
    """Number of columns that the variant reads of a table."""
    accuracy: Annotated[str, Field(max_length=16)]
    """Validation accuracy of the variant, as a fraction of 1."""
    latency_ms: Annotated[str, Field(max_length=16)]
    """Predicted p99 latency of a request of one node on an idle worker, in milliseconds."""
    factor: Annotated[int, Field(ge=1)] | None = None
    """Factor k of a pruned variant, which reads 1/k of the feature columns. Absent of other variants."""
    size_bytes: Annotated[int, Field(ge=0)] | None = None
    """Size of the serialised weights, in bytes. Absent: not measured."""
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    """Memory of the weights and of the table's columns that the variant reads, in bytes. Absent: not measured."""
    tier_permille: Annotated[int, Field(ge=0)] | None = None
    """Accuracy tolerance, in permille, from which on the variant answers; absent where another is as accurate and
    faster."""
    accuracy_in_service: Annotated[str, Field(max_length=16)] | None = None
    """Share of the last labelled nodes that the variant answers correctly, as a fraction of 1 to the percent, by the
    worker that got the most labels; absent without labels."""


class WorkersStatus(ApiModel):
    replicas: Annotated[int, Field(ge=0)] = 0
    """Number of worker pods that exist."""
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Number of worker pods that are ready."""
    ready: Annotated[str, Field(max_length=32)] = "0/0"
    """Ready worker pods over wanted ones, as in 2/3."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the worker pods, for autoscalers."""


class UpdatesStatus(ApiModel):
    last: Annotated[int, Field(ge=0)]
    """Last offset of the log of changes; 0: nothing was ever written."""
    applied: Annotated[int, Field(ge=0)]
    """Offset of the log up to which every worker has applied the changes."""
    staleness_seconds: Annotated[int, Field(ge=0)]
    """Time in seconds for which a worker has not had all that the log has; of several the longest. 0: all of them have
    it."""
    base: Annotated[int, Field(ge=0)] | None = None
    """Offset of the log up to which changes are compacted into the stored graph of the published revision. Absent: none
    are."""
    as_of: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """Time at which workers told the offsets. Figures that change are written once a minute at most; metrics have those
    of now."""


class GNNServiceStatus(ApiModel):
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """metadata.generation of the object that the status is about."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=24,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """Conditions of the service, each with reason and message: Ready, Available, Reconciling, Stalled,
    VariantsGenerated, WorkersAvailable, RepositoryKept, CredentialsValid, AccuracyHolds, UpdatesFollowed,
    EmbeddingsPublished, CanaryAnswers, ProgramHealthy, ReplicasUncontested, MetricsAvailable, ObjectiveMet,
    CapacitySufficient. Empty: the operator has not looked at the service yet."""
    endpoint: Annotated[str, Field(max_length=512)] | None = None
    """URL of the service inside the cluster. Absent: the Service is not made yet."""
    revision: Annotated[str, Field(max_length=63)] | None = None
    """Name of the published revision that workers are told to answer from. Absent: none is published yet."""
    base_variant: Annotated[str, Field(max_length=MAX_VARIANT_NAME)] | None = None
    """Variant that the slow loop chose for the present load; without such a choice, the variant that answers a one-node
    request that states no objective, as workers tell. Absent: neither is known."""
    variant_names: Annotated[str, Field(max_length=MAX_VARIANTS * (MAX_VARIANT_NAME + 1))] | None = None
    """Names of the revision's variants, as one line. Absent: no revision is published yet."""
    variants: Annotated[
        tuple[VariantStatus, ...],
        Field(
            max_length=MAX_VARIANTS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Variants of the published revision, with accuracy and latency. Empty: none is published yet."""
    workers: WorkersStatus | None = None
    """Worker pods of the service, in numbers. Absent: not counted yet."""
    updates: UpdatesStatus | None = None
    """Offsets up to which workers have followed the log of changes. Absent without spec.updates, or without workers."""
    repository_storage: Annotated[str, Field(max_length=32)] | None = None
    """Size that the claim of the repository has: the least that `spec.repository.claim.storage` may be set to. Absent:
    the claim is not made yet, or is one of yours."""
