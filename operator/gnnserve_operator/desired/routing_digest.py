"""How an edit of the routing ConfigMap by hand is told from what the operator wrote."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.generation import GENERATION_KEY
from gnnserve_api.routing import ROUTING_KEY
from gnnserve_operator.desired.metadata import digest_of


def routing_digest(data: Mapping[str, str]) -> str:
    """Over the two keys that are ours; what others add beside them changes nothing."""
    ours = {key: data.get(key, "") for key in (ROUTING_KEY, GENERATION_KEY)}
    return digest_of(ours)
