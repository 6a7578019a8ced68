"""Finds the children that cannot be applied, because their name is taken or the API server refuses them.

A child that depends on an object with another owner is not applied either: a worker must not mount a foreign claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gnnserve_api.spec.service import KIND
from gnnserve_api.status.reasons import Reason
from gnnserve_operator.decide.repository import least_storage
from gnnserve_operator.desired.children import kinds_under
from gnnserve_operator.desired.metadata import ADOPT_ANNOTATION, Conflict
from gnnserve_operator.kinds import CLAIM, ObjectRef
from gnnserve_operator.observed import ObservedState, Rejection
from gnnserve_operator.turns import Stance, Standing
from gnnserve_routing.verdict import Problem, join_words, sentence

_NAMES_GOOD_S = 300.0
"""Seconds for which a name counts as free while a Job computes."""


def decide_appliable(refs: Iterable[ObjectRef], conflicts: Iterable[Conflict]) -> frozenset[ObjectRef]:
    """Children whose names are free, and which depend on no taken one."""
    taken = {conflict.ref for conflict in conflicts}
    all_refs = list(refs)
    taken_kinds = {ref.kind for ref in all_refs if ref in taken}
    return frozenset(ref for ref in all_refs if ref not in taken and kinds_under(ref.kind).isdisjoint(taken_kinds))


def may_begin(refs: Iterable[ObjectRef], to_come: Iterable[ObjectRef], observed: ObservedState) -> bool:
    """Whether a Job may begin: hours of training are lost on a service whose children cannot be made. A refusal of a
    child that is applied now says the same, but it is tried again with the Job, whose own refusal it may be."""
    taken = {conflict.ref for conflict in observed.conflicts}
    refused = {rejection.ref for rejection in observed.rejections}
    return taken.isdisjoint(refs) and refused.isdisjoint(to_come)


def decide_names_good_s(generation: Standing, *, begins: bool) -> float:
    """Seconds for which the name of a child to come counts as free, once no object was found there. While nothing is
    generated it counts as free until a Job is about to begin, so that a service at rest asks for nothing. `begins`: one
    is, and nothing hinders it."""
    if begins:
        return 0.0  # hours of training are lost where the name is taken
    return _NAMES_GOOD_S if generation.stance is Stance.UNDER_WAY else math.inf


def decide_obstacle(
    refs: Iterable[ObjectRef], service: str, observed: ObservedState, kind: str = KIND
) -> Problem | None:  # fmt: skip
    """The obstacle: all taken names at once; else the first refusal, in the order of the children. `service`, `kind`:
    of what has them."""
    conflicts = {conflict.ref: conflict for conflict in observed.conflicts}
    rejections = {rejection.ref: rejection for rejection in observed.rejections}
    wanted = list(refs)
    taken = [conflicts[ref] for ref in wanted if ref in conflicts]
    if taken:
        return _taken(taken, service, kind)
    refused = next((rejections[ref] for ref in wanted if ref in rejections), None)
    return None if refused is None else _refused(refused, observed)


def _taken(conflicts: list[Conflict], service: str, kind: str) -> Problem:
    retained = [conflict for conflict in conflicts if conflict.to_bring_back]
    others = [conflict for conflict in conflicts if not conflict.to_bring_back]
    said = [_words_of_retained(conflict, service, kind) for conflict in retained]
    if not others:
        return Problem(Reason.REPOSITORY_RETAINED, " ".join(said), needs_person=True)
    return Problem(Reason.NAME_TAKEN, " ".join([*_words_of_taken(others, service, kind), *said]), needs_person=True)


def _words_of_taken(conflicts: list[Conflict], service: str, kind: str) -> list[str]:
    free = [conflict.ref for conflict in conflicts if conflict.owner is None]
    owned = [conflict for conflict in conflicts if conflict.owner is not None]
    said = [
        f"{conflict.ref} exists already and belongs to {conflict.owner}, so it is left alone." for conflict in owned
    ]
    if free:
        exist, are = ("exist already and have", "they are") if free[1:] else ("exists already and has", "it is")
        said.append(f"{join_words(map(str, free))} {exist} no owner, so {are} left alone.")
    those = "them" if conflicts[1:] else "it"
    said.append(f"Delete or rename {those}, or give {kind} {service} another name.")
    if free:
        which = those if not owned else "those that have no owner"
        said.append(f"To have it take over {which}, with what is in them: `{_adoption(free, service)}`.")
    return said


def _words_of_retained(conflict: Conflict, service: str, kind: str) -> str:
    """The way back to what is in the claim, and the way to begin anew: a new claim in its place would hide it."""
    claim = conflict.ref
    return (
        f"{claim} holds the repository of an earlier {kind} {service}, which was deleted: it is left alone, and none "
        f"is begun in its place. To go on with what is in it, delete this {kind} and make it again with "
        f"{conflict.to_bring_back}; or set no more than spec.updates.adopt, where that is among these, and have this "
        f"one take the claim over: `{_adoption([claim], conflict.owner_uid)}`. To begin anew, delete the claim, with "
        f"all that is in it: `kubectl delete -n {claim.namespace} {_path(claim)}`."
    )


def _adoption(refs: list[ObjectRef], permission: str) -> str:
    names = " ".join(map(_path, refs))
    return f"kubectl annotate -n {refs[0].namespace} {names} {ADOPT_ANNOTATION}={permission}"


def _path(ref: ObjectRef) -> str:
    return f"{ref.kind.lower()}/{ref.name}"


def _refused(rejection: Rejection, observed: ObservedState) -> Problem:
    cure = "Change what it names in the spec, or what forbids it."
    least = least_storage(next((claim for claim in observed.claims if claim.name == rejection.ref.name), None))
    if rejection.ref.kind == CLAIM.name and least is not None:
        cure = (
            f"The claim has {least}: set spec.repository.claim.storage back to that, or have its storage class allow "
            "expansion."
        )
    message = f"The API server refuses {rejection.ref}: {sentence(rejection.message)}. {cure}"
    return Problem(Reason.CHILD_REFUSED, message, needs_person=True)
