"""How decisions answer: a reason for machines, a sentence for people, and whether somebody has to act."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Of conditions and events. Each is one state, so that a script may wait for it."""

    # All is well.
    SERVING = "Serving"
    """Every worker answers as declared, and so does the endpoint."""
    PUBLISHED = "Published"
    """The revision of this spec is there."""
    WORKERS_READY = "WorkersReady"
    """As many as asked for."""
    CREDENTIALS_IN_USE = "CredentialsInUse"
    """Workers use all that is in the Secrets of spec.endpoint."""
    REPOSITORY_KEPT = "RepositoryKept"
    """The claim with the revisions is not being deleted."""
    SETTLED = "Settled"
    """Nothing is under way."""
    PROGRESSING = "Progressing"
    """Wait; Ready tells for what."""

    # As asked for.
    SUSPENDED = "Suspended"
    """Set spec.suspend to false to go on."""
    SCALED_TO_ZERO = "ScaledToZero"
    """Raise spec.worker.replicas to serve."""

    # Under way.
    GENERATING = "Generating"
    """Wait for the Job."""
    QUEUED = "Queued"
    """Wait for other services' Jobs, or raise the chart's generation.maxConcurrentJobs."""
    WAITING_FOR_REVISION = "WaitingForRevision"
    """Workers start with the first revision."""
    WORKERS_STARTING = "WorkersStarting"
    """Wait for the pods."""
    ROLLING_OUT = "RollingOut"
    """Wait: pods are being replaced one by one."""
    ROLLOUT_QUEUED = "RolloutQueued"
    """Wait for other services' pods to be replaced, or raise the chart's rollout.maxConcurrentServices."""
    REVISION_SWITCHING = "RevisionSwitching"
    """Wait: workers are loading what was declared."""
    ENDPOINT_UNREACHABLE = "EndpointUnreachable"
    """Wait; if it lasts, look at kube-proxy, DNS and network policies."""
    VOLUME_CLAIM_PENDING = "VolumeClaimPending"
    """Wait for the volume; if it lasts, look at the claim's events."""
    UNSCHEDULABLE = "Unschedulable"
    """Wait for a node; if it lasts, ask for less or add nodes."""
    WORKER_CRASHING = "WorkerCrashing"
    """Read the message; Kubernetes restarts the pod with growing delays."""
    REVISION_DAMAGED = "RevisionDamaged"
    """Wait: the revision is generated again. If Stalled says so, look at the volume: it damages files."""
    REVISION_NOT_LOADED = "RevisionNotLoaded"
    """Look at the repository; workers try again by themselves."""
    CREDENTIALS_UNKNOWN = "CredentialsUnknown"
    """Give spec.image the operator's version: older workers do not tell of their credentials."""

    # What is measured, and what follows from it.
    MEASURED = "Measured"
    """Prometheus tells of the workers' load."""
    OBJECTIVE_MET = "ObjectiveMet"
    """As many requests as asked for are answered in time."""
    OBJECTIVE_MISSED = "ObjectiveMissed"
    """See CapacitySufficient: more workers, a longer latency or a larger tolerance help."""
    MOST_ACCURATE = "MostAccurate"
    """The load lets the most accurate variant answer."""
    STEPPED_DOWN = "SteppedDown"
    """More workers would bring a more accurate variant back."""
    SCALE_OUT = "ScaleOut"
    """Raise spec.worker.replicas to the number in the message."""
    OUT_OF_REACH = "OutOfReach"
    """Allow a longer latency or a larger tolerance; workers do not help."""
    DECLARED = "Declared"
    """The spec says who answers, and the workers carry the load."""
    NOT_SERVING = "NotServing"
    """Wait until a worker answers; nothing is measured before."""
    NOT_MEASURED = "NotMeasured"
    """Wait for the next look at Prometheus, or see MetricsAvailable."""
    NO_OBJECTIVE = "NoObjective"
    """Set spec.objective.latencyMs to have it watched."""
    NO_TRAFFIC = "NoTraffic"
    """Nothing was asked within a latency lately."""
    NOT_CONFIGURED = "NotConfigured"
    """Set spec.routing.prometheus.url, or the chart's prometheus.url."""
    NO_DATA = "NoData"
    """Wait for the first scrapes; if it lasts, have Prometheus scrape the workers' pods."""
    STALE = "Stale"
    """See in Prometheus why its scrapes of the workers fail."""
    PARTIAL = "Partial"
    """Have Prometheus scrape every worker pod."""
    UNREACHABLE = "Unreachable"
    """Correct the address, or look at DNS, network policies and Prometheus itself."""
    INVALID = "Invalid"
    """Correct what the message names: the address, or the samples."""

    # Somebody must act.
    VARIANT_UNKNOWN = "VariantUnknown"
    """Name variants in spec.routing that spec.variants generates and the revision has."""
    GENERATION_FAILED = "GenerationFailed"
    """Change the spec, or delete the Job."""
    RESULT_UNREADABLE = "ResultUnreadable"
    """Give the operator and spec.image the same version."""
    NAME_TAKEN = "NameTaken"
    """Delete or rename the objects or the GNNService, or have it take them over."""
    CHILD_REFUSED = "ChildRefused"
    """Change what the API server's message names."""
    INVALID_SPEC = "InvalidSpec"
    """Change the field that the message names."""
    VOLUME_CLAIM_MISSING = "VolumeClaimMissing"
    """Create the claim, or name another."""
    VOLUME_CLAIM_TERMINATING = "VolumeClaimTerminating"
    """Do what RepositoryKept says: it tells what is lost with the claim, and how to keep it."""
    GPU_UNAVAILABLE = "GpuUnavailable"
    """Add a node with that resource or name another; where a worker says it, look at its node's driver."""
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    """Correct the image or its pull secrets."""
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    """Create the Secret or ConfigMap that the message names."""
    PODS_FORBIDDEN = "PodsForbidden"
    """Raise the quota, or relax the namespace's policy."""
    OUT_OF_MEMORY = "OutOfMemory"
    """Raise the memory limit."""
    CREDENTIALS_REFUSED = "CredentialsRefused"
    """Correct the Secret that the message names; requests are answered meanwhile."""
    CREDENTIALS_UNUSABLE = "CredentialsUnusable"
    """Create or correct the Secret that the message names; no request is answered before."""
    TOKENS_NOT_CHECKED = "TokensNotChecked"
    """Give spec.image a version that knows tokens, or take spec.endpoint.tokens away."""
    WORKERS_NOT_STARTING = "WorkersNotStarting"
    """Read the pods' events and logs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a condition holds, and why."""

    holds: bool | None
    """None: nobody knows."""
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something does not go on."""

    reason: Reason
    message: str
    needs_person: bool
    """Whether waiting is of no use."""

    def to_verdict(self) -> Verdict:
        return Verdict(False, self.reason, self.message)


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def sentence(text: str) -> str:
    """Somebody else's words on one line, without the full stop, so that ours can go on after them."""
    return " ".join(text.split()).rstrip(".;, ")
