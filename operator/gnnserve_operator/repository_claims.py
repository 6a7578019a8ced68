"""The claims of a service's repository, also those that no watch tells of.

A claim that the user names has none of the operator's labels, so it is asked for at each look. And before the operator
makes a claim, the API server is asked for those that are there: a watch that is behind must not lead to two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import CHILDREN_SELECTOR, SERVICE
from gnnserve_operator.kinds import CLAIM, Manifest, ServiceKey
from gnnserve_operator.observed import ObjectRef, controller_of


class RepositoryClaims:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of(self, key: ServiceKey, service: Manifest, told: Sequence[Manifest]) -> list[Manifest]:
        """`service` is the live GNNService, `told` its own claims by the watch. Raises OperatorError."""
        named = (service["spec"].get("repository") or {}).get("claimName")
        if named:
            found = await self._cluster.get(ObjectRef(CLAIM.api_version, CLAIM.name, key.namespace, named))
            return [] if found is None else [found]
        if any(not claim["metadata"].get("deletionTimestamp") for claim in told):
            return list(told)
        selector = f"{CHILDREN_SELECTOR},{SERVICE}={key.name}"
        listed = await self._cluster.list_objects(CLAIM, key.namespace, selector)
        uid = service["metadata"]["uid"]
        return [claim for claim in listed if _counts(claim, uid)]


def _counts(claim: Manifest, service_uid: str) -> bool:
    """One that an orphaned service left, under whichever of its names, is to be said to be there and may be taken
    over: another in its place would hide it, and the revisions in it."""
    owner = controller_of(claim)
    if owner is None:
        return not claim["metadata"].get("deletionTimestamp")
    return bool(owner["uid"] == service_uid)
