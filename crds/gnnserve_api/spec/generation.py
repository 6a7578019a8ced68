"""The Job that trains and profiles."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import with_defaults
from gnnserve_api.spec.pods import Gpu, PodSettings, Resources


class Generation(PodSettings):
    """The Job that trains and profiles. In a cluster only."""

    default_audience = Audience.OPERATOR

    resources: Resources = with_defaults(Resources)
    """Processors and memory of each pod of the Job, as requests and limits. A resource that neither names is requested
    as the chart's `generation.resources` says: by default 500m CPU and 1Gi of memory."""
    gpu: Gpu | None = None
    """GPU that the Job trains on. Absent: the CPU."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Number of further attempts after one that failed for another reason than bad input."""
    deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = 86_400
    """Time for all attempts together, in seconds."""
