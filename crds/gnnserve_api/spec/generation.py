"""The Job that trains and profiles."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.endpoint import is_no_secret_of_endpoint
from gnnserve_api.spec.fields import ApiModel, ObjectName, with_defaults
from gnnserve_api.spec.pods import Gpu, PodSettings, Resources
from gnnserve_api.spec.rules import rule


class HubAccess(ApiModel):
    """Access to repositories of the Hugging Face Hub that are private, or given to some accounts alone."""

    secret_name: ObjectName
    """Name of a Secret in the namespace of the service, whose key `token` is a token that may read the repositories."""


class Generation(PodSettings):
    """The Job that trains and profiles. In a cluster only."""

    default_audience = Audience.OPERATOR

    resources: Resources = with_defaults(Resources)
    """Processors and memory of each pod of the Job, as requests and limits. A resource that neither names is requested
    as the chart's `generation.resources` says: by default 500m CPU and 1Gi of memory."""
    gpu: Gpu | None = None
    """GPU that the Job trains on. Absent: the CPU."""
    hub: HubAccess | None = None
    """Access to private repositories of `hf://` addresses. Elsewhere the variable `HF_TOKEN` has the token. Absent:
    public repositories alone."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Number of further attempts after one that failed for another reason than bad input."""
    deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = 86_400
    """Time for all attempts together, in seconds."""


hub_has_a_secret_of_its_own = rule(
    f"!has(self.generation.hub) || ({is_no_secret_of_endpoint('self.generation.hub.secretName')})",
    "generation.hub must name a Secret of its own[, and {self.generation.hub.secretName} is one of endpoint's]: each "
    "value of those of endpoint is a token or a key",
)
