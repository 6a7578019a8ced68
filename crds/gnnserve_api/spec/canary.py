"""A canary: a second revision that answers a share of the requests, beside the one that answers the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.pods.routing import Canary
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, RevisionName
from gnnserve_api.spec.rules import rule


class CanarySpec(ApiModel):
    """A second published revision, which answers a share of the requests. With `updates` it follows the log of changes
    as the first one does, and keeps up to `maxDelta` of its own."""

    revision: Annotated[RevisionName, Audience.WORKERS | Audience.GENERATION | Audience.RETURN]
    """Name of the second revision. While it is the one that answers anyway, this changes nothing."""
    percent: Annotated[int, Field(ge=0, le=100), Audience.WORKERS]
    """Percent of the requests that the second revision answers. 0: it is loaded, and gets none."""

    def beside(self, revision: str) -> Canary | None:
        """What workers are told while they answer from that revision; None: it is the same one."""
        return None if self.revision == revision else Canary(self.revision, self.percent)


_LIMITS = "self.worker.resources.limits"
_DELTA = "quantity(self.updates.maxDelta)"


changes_of_both_fit_memory = rule(
    f"!has(self.routing.canary) || !has(self.updates) || !has({_LIMITS}) || !('memory' in {_LIMITS}) || "
    f"!isQuantity(string({_LIMITS}['memory'])) || "
    f"{_DELTA}.add({_DELTA}).compareTo(quantity(string({_LIMITS}['memory']))) < 0",
    "updates.maxDelta {self.updates.maxDelta} must be less than half of worker.resources.limits.memory "
    "{self.worker.resources.limits['memory']} with routing.canary, whose revision keeps the changes too: lower the "
    "one, or raise the other",
)


canaries_are_not_in_pools = rule(
    "!has(self.routing.canary) || !has(self.worker.poolRef)",
    "routing.canary must not be given with worker.poolRef: a pool's memory is counted by one revision for each service",
)
