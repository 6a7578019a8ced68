"""Applying desired objects: finding the live object in each one's place, and writing what differs.

A plain "apply everything" would have three defects: an idle operator would write for ever, another owner's object of
the same name would be taken over, and a child would be created again for a service that is being deleted. The plan
decides which objects should exist, and what a refusal means to the user.

A decision is valid for the version of an object that it was made on. Each write names that version, so that the API
server refuses (409) a write that follows from a stale view, or from an overtaken leader.

What differs is asked field by field (`kinds.py`). A field that a manifest no longer declares is noticed by the
digest of what was applied last.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.contests import RevertLog, find_reverts, may_be_reverted
from gnnserve_operator.desired.children import kinds_under
from gnnserve_operator.desired.metadata import (
    ADOPT_ANNOTATION,
    APPLIED_ANNOTATION,
    CLAIM_ANNOTATION,
    Conflict,
    belongs_to,
    digest_of,
    observed_conflict,
    owner_of,
)
from gnnserve_operator.errors import OperatorError, RefusedError
from gnnserve_operator.kinds import (
    CLAIM,
    GNNSERVICE,
    JOB,
    Manifest,
    ObjectRef,
    ServiceKey,
    content_of,
    is_declared,
    observed_ref,
)
from gnnserve_operator.observed import Rejection

_NEVER = "1"
"""A resourceVersion that no object has, since an empty etcd has it already: an apply with it creates a missing object,
and conflicts (409) with an existing one (tests/support/kubernetes/api_contract.py)."""

_KNOWS_NO_TRIALS = "does not support dry run"
"""Part of the API server's refusal of a dry run where an admission webhook has side effects; it says nothing about the
object."""

logger = logging.getLogger(__name__)


class NameOccupancy(Enum):
    """The live object under a desired child's name, if there is one."""

    FREE = auto()
    OURS = auto()
    """It belongs to this service, or may be taken over by it."""
    LEAVING = auto()
    """It is being deleted, or belongs to a deleted service of the same name: it will be gone soon."""
    RETAINED = auto()
    """A claim that a deleted service of the same name left: it stays, and is never touched."""
    TAKEN = auto()
    """It has another owner, and is never touched."""


def classify_place(  # noqa: PLR0911 - a ladder, one rung an owner
    live: Manifest | None, service: str, uid: str, kind: str = GNNSERVICE.name
) -> NameOccupancy:
    """`service`, `uid`, `kind`: of what the object should belong to."""
    if live is None:
        return NameOccupancy.FREE
    if live["metadata"].get("deletionTimestamp"):
        return NameOccupancy.LEAVING
    owner = owner_of(live)
    adoption = (live["metadata"].get("annotations") or {}).get(ADOPT_ANNOTATION)
    if owner is None:
        return NameOccupancy.OURS if adoption == service else NameOccupancy.TAKEN
    if owner.uid == uid:
        return NameOccupancy.OURS
    if (owner.kind, owner.name) != (kind, service):
        return NameOccupancy.TAKEN
    if owner.is_bound:
        return NameOccupancy.LEAVING
    # By uid, which holds once: the annotation stays, and the next service of that name must not hide what is there.
    return NameOccupancy.OURS if adoption == owner.uid else NameOccupancy.RETAINED


@dataclass(frozen=True, slots=True)
class Ahead:
    """Children that are applied later, whose names are looked up ahead."""

    manifests: tuple[Manifest, ...] = ()
    now: float = 0.0
    not_before: float = -math.inf
    """A name that was found free earlier than that is looked up again."""


NOTHING_AHEAD = Ahead()


@dataclass(frozen=True, slots=True)
class Survey:
    """The live objects under the names of the children that should exist."""

    live: Mapping[ObjectRef, Manifest | None]
    places: Mapping[ObjectRef, NameOccupancy]
    conflicts: tuple[Conflict, ...]

    @property
    def leaving(self) -> tuple[ObjectRef, ...]:
        return tuple(ref for ref, place in self.places.items() if place is NameOccupancy.LEAVING)


class Versions(Protocol):
    """Versions of an object that the operator wrote."""

    @property
    def version(self) -> str: ...

    @property
    def overtaken(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class AppliedObject:
    """Object as it was applied last, so that the server's normalisation, or a watch that lags behind, does not cause
    another apply."""

    desired: str
    """Digest of the manifest."""
    version: str
    """Version of the object after the operator's last write."""
    overtaken: frozenset[str]
    """Versions before the last one of an unbroken series of the operator's own writes: a watch that reports one lags
    behind."""
    content_after: str


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An object that has to be applied."""

    ref: ObjectRef
    manifest: Manifest
    digest: str
    """Digest of the desired object, without the annotation and the precondition that `manifest` has."""
    is_new: bool
    overtaken: frozenset[str]
    """The versions that this write overtakes."""
    live: Manifest | None
    """The object as it was when the change was found; None: there was none."""


@dataclass(slots=True)
class Applier:
    cluster: Cluster
    _applied: dict[ServiceKey, dict[ObjectRef, AppliedObject]] = field(default_factory=dict)
    _free: dict[ServiceKey, dict[ObjectRef, float]] = field(default_factory=dict)
    """When the API server said that there is no object in the place of a child to come."""
    reverts: RevertLog = field(default_factory=RevertLog)

    def forget(self, service: ServiceKey) -> None:
        self._applied.pop(service, None)
        self._free.pop(service, None)
        self.reverts.forget(service)

    async def survey(
        self,
        service: ServiceKey,
        uid: str,
        desired: Iterable[Manifest],
        known: Mapping[ObjectRef, Manifest | None],
        ahead: Ahead | None = None,
    ) -> Survey:
        """Survey the children. The API server is asked only about those that no watch has reported: an object of
        another owner may be in their place. One that is about to be applied is asked for at once, and one of `ahead`
        only where that was not done lately."""
        refs, ahead = [observed_ref(manifest) for manifest in desired], ahead or NOTHING_AHEAD
        refs_ahead = [observed_ref(manifest) for manifest in ahead.manifests]
        before = self._free.pop(service, {})
        still_free = {ref: before[ref] for ref in refs_ahead if ref in before and before[ref] >= ahead.not_before}
        live = await self._fetch((*refs, *refs_ahead), known, still_free)
        found_free = {ref: ahead.now for ref in refs_ahead if ref not in still_free and live[ref] is None}
        if still_free or found_free:
            self._free[service] = still_free | found_free
        return _survey_of(service, uid, live)

    async def look_again(
        self, service: ServiceKey, uid: str, taken: Iterable[ObjectRef], known: Mapping[ObjectRef, Manifest | None]
    ) -> Survey:
        """Survey places that had another owner before, and no others."""
        return _survey_of(service, uid, await self._fetch(tuple(taken), known))

    async def _fetch(
        self, refs: Sequence[ObjectRef], known: Mapping[ObjectRef, Manifest | None], free: Container[ObjectRef] = ()
    ) -> dict[ObjectRef, Manifest | None]:
        """The live objects, those from the API server that no watch has reported; `free`: names without one."""
        unknown = [ref for ref in refs if ref not in known and ref not in free]
        fetched = dict(zip(unknown, await asyncio.gather(*map(self.cluster.get, unknown)), strict=True))
        return {ref: fetched[ref] if ref in fetched else known.get(ref) for ref in refs}

    def changes(self, service: ServiceKey, desired: Iterable[Manifest], survey: Survey) -> tuple[ObjectChange, ...]:
        """The objects that differ, in order. Drops records of objects that are no longer desired."""
        found = []
        before = self._applied.get(service, {})
        after = self._applied[service] = {}
        leaving = {ref.kind for ref, place in survey.places.items() if place is NameOccupancy.LEAVING}
        for manifest in desired:
            ref = observed_ref(manifest)
            if survey.places[ref] not in {NameOccupancy.FREE, NameOccupancy.OURS}:
                continue
            live, digest = survey.live[ref], digest_of(manifest)
            if live is None and kinds_under(ref.kind) & leaving:
                # A Job that is older than its claim would be taken for one of a lost claim.
                continue
            if ref in before:
                after[ref] = before[ref]
            if is_needed(manifest, digest, live, before.get(ref)):
                found.append(_change(ref, manifest, digest, live, before.get(ref)))
        return tuple(found)

    async def apply(self, service: ServiceKey, changes: Iterable[ObjectChange]) -> tuple[Rejection, ...]:
        """Apply in order. A refused child does not hold up the others, except new ones that build on a child which is
        missing for it. Raises RetryLaterError, and ConflictError if an object has changed since: other decisions that
        rest on the same view are not to be trusted either."""
        rejections: list[Rejection] = []
        missing: dict[str, ObjectRef] = {}
        for change in changes:
            under = next((missing[kind] for kind in kinds_under(change.ref.kind) if kind in missing), None)
            if change.is_new and under is not None:
                # A Job that is older than its claim would be taken for one of a claim that is lost.
                rejections.append(Rejection(change.ref, f"{under}, on which it builds, is refused"))
                missing[change.ref.kind] = change.ref
                continue
            try:
                await self._write(service, change)
            except RefusedError as error:
                rejections.append(Rejection(change.ref, error.message))
                if change.is_new:
                    missing[change.ref.kind] = change.ref
        return tuple(rejections)

    async def apply_ahead(self, service: ServiceKey, manifest: Manifest, live: Manifest) -> None:
        """Apply one child that is there, before the others are looked at. Raises as `Cluster.apply` does."""
        ref, digest = observed_ref(manifest), digest_of(manifest)
        before = self._applied.setdefault(service, {}).get(ref)
        if is_needed(manifest, digest, live, before):
            await self._write(service, _change(ref, manifest, digest, live, before))

    async def _write(self, service: ServiceKey, change: ObjectChange) -> None:
        changed = await self._changed_by_others(change)
        applied = await self.cluster.apply(change.manifest)
        version = applied["metadata"]["resourceVersion"]
        self._applied[service][change.ref] = AppliedObject(
            change.digest, version, change.overtaken - {version}, digest_of_content(applied)
        )
        if changed is not None:
            self.reverts.note(service, find_reverts(change.ref, change.manifest, changed, applied))
        verb = "created" if change.is_new else "changed"
        logger.info("%s %s", verb, change.ref, extra=service.about(reason="Applied"))

    async def _changed_by_others(self, change: ObjectChange) -> Manifest | None:
        """The live object, with the managers of its fields, where others have changed what is about to be applied."""
        if change.live is None or not may_be_reverted(change.live, change.digest):
            return None
        try:
            # Only now: the watches drop the managers, which are most of an object's text.
            found = await self.cluster.get(change.ref)
        except OperatorError:
            found = None
        # Another version is refused at once by the precondition of the apply.
        return change.live if found is None else found

    async def try_out(self, desired: Iterable[Manifest], survey: Survey) -> tuple[Rejection, ...]:
        """Dry run of the children to come: returns those that the API server would refuse. Raises as `apply` does."""
        rejections = []
        for manifest in desired:
            ref = observed_ref(manifest)
            if survey.places[ref] is not NameOccupancy.FREE:
                continue  # reported as a conflict, or about to be gone
            change = _change(ref, manifest, digest_of(manifest), None, None)
            try:
                await self.cluster.apply(change.manifest, is_trial=True)
            except RefusedError as error:
                if _KNOWS_NO_TRIALS not in error.message:
                    rejections.append(Rejection(ref, error.message))
        return tuple(rejections)


def _survey_of(service: ServiceKey, uid: str, live: Mapping[ObjectRef, Manifest | None]) -> Survey:
    ours = _named_claims(uid, live.values())
    places = {
        ref: NameOccupancy.OURS if _is_lost(found, ours) else classify_place(found, service.name, uid, service.kind)
        for ref, found in live.items()
    }
    found = [
        observed_conflict(ref, raw, uid, is_retained=places[ref] is NameOccupancy.RETAINED)
        for ref, raw in live.items()
        if raw is not None and places[ref] in {NameOccupancy.TAKEN, NameOccupancy.RETAINED}
    ]
    return Survey(live, places, tuple(conflict for conflict in found if conflict is not None))


def _named_claims(uid: str, live: Iterable[Manifest | None]) -> frozenset[str]:
    """The uids of claims that children of the owner with `uid` name as the one that they use."""
    own = (raw["metadata"].get("annotations") or {} for raw in live if raw is not None and belongs_to(raw, uid))
    return frozenset(found for annotations in own if (found := annotations.get(CLAIM_ANNOTATION)))


def _is_lost(live: Manifest | None, ours: Container[str]) -> bool:
    """Whether a live claim is one of `ours` that has lost the label which tells whose it is."""
    if live is None or live["kind"] != CLAIM.name or live["metadata"].get("deletionTimestamp"):
        return False
    return owner_of(live) is None and live["metadata"]["uid"] in ours


def is_needed(desired: Manifest, digest: str, live: Manifest | None, before: AppliedObject | None) -> bool:
    if live is None:
        return True
    if before is not None and before.desired == digest:
        if live["metadata"]["resourceVersion"] in before.overtaken:
            return False  # the watch has not reported our own write yet
        if digest_of_content(live) == before.content_after:
            return False  # the difference is the server's own normalisation
    annotations = live["metadata"].get("annotations") or {}
    return annotations.get(APPLIED_ANNOTATION) != digest or not is_declared(_with_kept_template(desired, live), live)


def _change(
    ref: ObjectRef, desired: Manifest, digest: str, live: Manifest | None, before: AppliedObject | None
) -> ObjectChange:
    metadata = dict(desired["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), APPLIED_ANNOTATION: digest}
    overtaken = frozenset[str]()
    if live is None:
        metadata["resourceVersion"] = _NEVER
    else:
        version, overtaken = last_version(live["metadata"]["resourceVersion"], before)
        # Refused where another object has taken the name since, or the object was changed.
        metadata |= {"uid": live["metadata"]["uid"], "resourceVersion": version}
        desired = _with_kept_template(desired, live)
    return ObjectChange(ref, {**desired, "metadata": metadata}, digest, live is None, overtaken, live)


def _with_kept_template(desired: Manifest, live: Manifest) -> Manifest:
    """The desired object; of a Job with the pod template that it has. The operator never changes one, since a Job is
    named after it; what a queue of the cluster, or a webhook, made of it stays, and could not be changed back while the
    Job runs."""
    if desired["kind"] != JOB.name or is_declared(desired["spec"]["template"], live["spec"]["template"]):
        return desired
    return {**desired, "spec": {**desired["spec"], "template": live["spec"]["template"]}}


def deletable(unwanted: Iterable[ObjectRef], known: Mapping[ObjectRef, Manifest | None]) -> list[Manifest]:
    """Unwanted objects that exist and are not being deleted already."""
    found = [live for ref in unwanted if (live := known.get(ref)) is not None]
    return [live for live in found if not live["metadata"].get("deletionTimestamp")]


def last_version(told: str, before: Versions | None) -> tuple[str, frozenset[str]]:
    """The version that a write follows, and those that it overtakes. `told`: the watch's version, which may lag
    behind."""
    if before is None or told not in before.overtaken:
        return told, frozenset({told})
    return before.version, before.overtaken | {before.version}


def digest_of_content(live: Manifest) -> str:
    """Digest of the fields that a person could have edited; a changing status does not change it."""
    return digest_of(content_of(live))
