"""Routing: what the operator declares to workers, and what a worker says that it does.

The declaration is the key `routing.json` of a ConfigMap that workers watch; `gnnserve run` makes one from the
manifest. Choosing a variant by it is the worker's `serving/choice.py`.
"""

from __future__ import annotations

import msgspec

from gnnserve_api.batching import DEFAULT_BATCHING, Batching
from gnnserve_api.objective import NO_OBJECTIVE, Objective

ROUTING_KEY = "routing.json"


class RoutingTable(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Which revision a worker is to answer from, and how. A new one takes effect without a restart.

    A worker refuses what it does not know, rather than leave out what was asked for; defaults are not written, so that
    it meets only what was asked for.
    """

    revision: str
    recipe: str
    """Digest of the part of the spec that the revision was generated from."""
    objective: Objective = NO_OBJECTIVE
    """The service's own objective, for requests that state none."""
    batching: Batching = DEFAULT_BATCHING


class Route(msgspec.Struct, frozen=True, rename="camel"):
    """What `GET /v1/route` answers: the routing in effect, which follows a new table within seconds.

    An operator reads those of newer workers too.
    """

    revision: str
    """The one that answers now."""
    base_variant: str
    """Who answers a one-node request that states nothing, on an idle worker."""
    reason: str
    """Why that variant, in a sentence."""
    allowed_variants: tuple[str, ...]
    objective: Objective = NO_OBJECTIVE
    """The service's own objective, for requests that state none."""
    batching: Batching = DEFAULT_BATCHING
    problem: str | None = None
    """Why the declared table is not in effect, where it is not."""


def encode_routing(table: RoutingTable) -> str:
    """JSON with sorted fields: equal tables are equal texts."""
    return msgspec.json.encode(table, order="sorted").decode()


def decode_routing(text: str | bytes) -> RoutingTable:
    """Raises msgspec.DecodeError, which names the field."""
    return msgspec.json.decode(text, type=RoutingTable)
