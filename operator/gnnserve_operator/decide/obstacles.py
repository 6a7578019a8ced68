"""Which children cannot be applied, because their name is taken or the API server refuses them?

A child that builds on one of somebody else's is not applied either: a worker must not mount a foreign claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnnserve_operator.decide.claim_storage import least_storage
from gnnserve_operator.decide.verdict import Problem, Reason, sentence
from gnnserve_operator.observed import Conflict, ObjectRef, Observed, Rejection

_BUILT_ON = {
    "RoleBinding": ("Role", "ServiceAccount"),
    "Deployment": ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim"),
    "Job": ("PersistentVolumeClaim",),
}


def builds_on(ref: ObjectRef, kinds: Iterable[str]) -> bool:
    """On a child of one of these kinds; each service has at most one of those that others build on."""
    return not set(kinds).isdisjoint(_BUILT_ON.get(ref.kind, ()))


def decide_appliable(refs: Iterable[ObjectRef], conflicts: Iterable[Conflict]) -> frozenset[ObjectRef]:
    """Those that are not taken, and build on nothing that is."""
    taken = {conflict.ref for conflict in conflicts}
    all_refs = list(refs)
    taken_kinds = {ref.kind for ref in all_refs if ref in taken}
    return frozenset(ref for ref in all_refs if ref not in taken and not builds_on(ref, taken_kinds))


def decide_obstacle(refs: Iterable[ObjectRef], service: str, observed: Observed) -> Problem | None:
    """The first in the order of the children."""
    conflicts = {conflict.ref: conflict for conflict in observed.conflicts}
    rejections = {rejection.ref: rejection for rejection in observed.rejections}
    wanted = list(refs)
    taken = next((conflicts[ref] for ref in wanted if ref in conflicts), None)
    if taken is not None:
        return _taken(taken, service)
    refused = next((rejections[ref] for ref in wanted if ref in rejections), None)
    return None if refused is None else _refused(refused, observed)


def _taken(conflict: Conflict, service: str) -> Problem:
    owner = f"belongs to {conflict.owner}" if conflict.owner else "belongs to nobody"
    return Problem(
        Reason.NAME_TAKEN,
        f"{conflict.ref} exists already and {owner}, so it is left alone. Delete or rename it, or give GNNService "
        f"{service} another name.",
        needs_person=True,
    )


def _refused(rejection: Rejection, observed: Observed) -> Problem:
    cure = "Change what it names in the spec, or what forbids it."
    least = least_storage(observed.claim)
    if rejection.ref.kind == "PersistentVolumeClaim" and least is not None:
        cure = (
            f"The claim has {least}: set spec.repository.claim.storage back to that, or have its storage class allow "
            "expansion."
        )
    message = f"The API server refuses {rejection.ref}: {sentence(rejection.message)}. {cure}"
    return Problem(Reason.CHILD_REFUSED, message, needs_person=True)
