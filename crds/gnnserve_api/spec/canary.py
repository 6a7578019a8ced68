"""A canary: a second revision that answers a share of the requests, beside the one that answers the others."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from gnnserve_api.pods.routing import Canary
from gnnserve_api.quantity import is_more
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, RevisionName
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_api.spec.worker import Worker


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


class _Routing(Protocol):
    canary: CanarySpec | None


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that these rules read."""

    @property
    def routing(self) -> _Routing: ...

    updates: UpdatesSpec | None
    worker: Worker


_LIMITS = "self.worker.resources.limits"
_DELTA = "quantity(self.updates.maxDelta)"


@rule(
    f"!has(self.routing.canary) || !has(self.updates) || !has({_LIMITS}) || !('memory' in {_LIMITS}) || "
    f"!isQuantity(string({_LIMITS}['memory'])) || "
    f"{_DELTA}.add({_DELTA}).compareTo(quantity(string({_LIMITS}['memory']))) < 0",
    "updates.maxDelta must be less than half of worker.resources.limits.memory with routing.canary, whose revision "
    "keeps the changes too: lower the one, or raise the other",
)
def changes_of_both_fit_memory(spec: _Spec) -> bool | str:
    limit = spec.worker.resources.limits.get("memory")
    if spec.routing.canary is None or spec.updates is None or limit is None:
        return True
    if is_more(limit, spec.updates.max_delta, times=2):
        return True
    return (
        f"updates.maxDelta {spec.updates.max_delta} must be less than half of worker.resources.limits.memory {limit} "
        "with routing.canary, whose revision keeps the changes too: lower the one, or raise the other"
    )


@rule(
    "!has(self.routing.canary) || !has(self.worker.poolRef)",
    "routing.canary must not be given with worker.poolRef: a pool's memory is counted by one revision for each service",
)
def canaries_are_not_in_pools(spec: _Spec) -> bool:
    return spec.routing.canary is None or spec.worker.pool_ref is None
