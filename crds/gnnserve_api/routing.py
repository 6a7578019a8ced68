"""The routing table: what a worker is told about choosing a variant, and what `GET /v1/route` answers."""

from __future__ import annotations

import msgspec

from gnnserve_api.objective import NO_OBJECTIVE, Objective


class RoutingTable(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    revision: str
    base_variant: str
    """Who answers a one-node request that states nothing, on an idle worker."""
    reason: str
    """Why that variant, in a sentence."""
    allowed_variants: tuple[str, ...]
    objective: Objective = NO_OBJECTIVE
    """The service's own objective, for requests that state none."""
