"""How much storage should the repository's claim ask for? Never less than it has: Kubernetes would refuse that.

An autoscaler of volumes, or a person, may have made the claim larger than the spec says.
"""

from __future__ import annotations

from decimal import Decimal

from gnnserve_api.quantity import parse_quantity
from gnnserve_api.spec.repository import RepositoryClaim
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.observed import ObservedClaim


def decide_claim_storage(spec: GNNServiceSpec, claim: ObservedClaim | None) -> str:
    """What to ask for. Less than before only while a larger volume was asked for and is not there yet: so Kubernetes
    lets an expansion be tried again that the storage cannot make."""
    declared = (spec.repository.claim or RepositoryClaim()).storage
    if claim is None or not claim.requested:
        return declared
    wanted, requested = _bytes(declared), _bytes(claim.requested)
    is_retry = bool(claim.capacity) and _bytes(claim.capacity) < wanted < requested
    return declared if wanted >= requested or is_retry else claim.requested


def least_storage(claim: ObservedClaim | None) -> str | None:
    """The least that the spec may go back to: what the claim was given, or asked for if that is less."""
    if claim is None or not claim.requested:
        return None
    if not claim.capacity:
        return claim.requested
    return min(claim.requested, claim.capacity, key=_bytes)


def _bytes(quantity: str) -> Decimal:
    return parse_quantity(quantity) or Decimal(0)
