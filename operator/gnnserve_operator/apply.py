"""From what should exist to requests: finds what is in its place, and applies what differs.

Three things would go wrong with a plain "apply everything": an idle operator would write for ever, an object of
somebody else that happens to have the name would be taken over, and a child would be made anew for a service that is
just being deleted. Which objects should exist, and what a refusal means to the user, is the plan's.

A decision holds for the version of an object that it was made on. Each write names it, so that the API server refuses
(409) what follows from a stale view, or from a leader that was overtaken.

The API server fills in defaults, rewrites quantities and leaves out what is empty, so a live object never equals its
manifest: what is declared must be found (`is_declared`), and more may be there. A field that a manifest no longer
declares is noticed by the digest of what was applied last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from gnnserve_api.quantity import parse_quantity
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.children import kinds_under
from gnnserve_operator.desired.labels import ADOPT_ANNOTATION, APPLIED_ANNOTATION
from gnnserve_operator.desired.metadata import digest_of
from gnnserve_operator.errors import RefusedError
from gnnserve_operator.kinds import GNNSERVICE, Manifest, ServiceKey
from gnnserve_operator.logs import about
from gnnserve_operator.observed import Conflict, ObjectRef, Rejection, controller_of, observed_conflict, observed_ref

_NEVER = "1"
"""A resourceVersion that no object has, an empty etcd having it already: an apply with it creates what is not there,
and conflicts (409) with whatever is (tests/support/api_contract.py)."""
_NOT_CONTENT = {"resourceVersion", "generation", "managedFields", "creationTimestamp"}

_KNOWS_NO_TRIALS = "does not support dry run"
"""In the API server's refusal where an admission webhook has side effects: it says nothing about the object."""

logger = logging.getLogger(__name__)


class Place(Enum):
    """What is where a child should be."""

    FREE = auto()
    OURS = auto()
    """It belongs to this service, or may be taken over by it."""
    LEAVING = auto()
    """It is being deleted, or belongs to a deleted service of the same name: soon it is gone."""
    TAKEN = auto()
    """Somebody else's; never touched."""


def classify_place(live: Manifest | None, service: str, uid: str) -> Place:
    if live is None:
        return Place.FREE
    if live["metadata"].get("deletionTimestamp"):
        return Place.LEAVING
    owner = controller_of(live)
    if owner is not None and owner["uid"] == uid:
        return Place.OURS
    if owner is not None and (owner["kind"], owner["name"]) == (GNNSERVICE.name, service):
        return Place.LEAVING
    if owner is None and (live["metadata"].get("annotations") or {}).get(ADOPT_ANNOTATION) == service:
        return Place.OURS
    return Place.TAKEN


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in the places of the children that should exist."""

    live: Mapping[ObjectRef, Manifest | None]
    places: Mapping[ObjectRef, Place]
    conflicts: tuple[Conflict, ...]

    @property
    def leaving(self) -> tuple[ObjectRef, ...]:
        return tuple(ref for ref, place in self.places.items() if place is Place.LEAVING)


class Versions(Protocol):
    """Of an object that we wrote."""

    @property
    def version(self) -> str: ...

    @property
    def overtaken(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Applied:
    """So that what the server makes of a manifest, and a watch that lags behind, do not make us apply it again."""

    desired: str
    """Digest of the manifest."""
    version: str
    """Of the object as we left it."""
    overtaken: frozenset[str]
    """The versions before it, in an unbroken row of our own writes: a watch that tells of one lags behind."""
    content_after: str


@dataclass(frozen=True, slots=True)
class Change:
    """An object that has to be applied."""

    ref: ObjectRef
    manifest: Manifest
    digest: str
    """Of what is desired, without the annotation and the precondition that `manifest` has."""
    is_new: bool
    overtaken: frozenset[str]
    """The versions that it comes after."""


@dataclass(slots=True)
class Applier:
    cluster: Cluster
    _applied: dict[ServiceKey, dict[ObjectRef, Applied]] = field(default_factory=dict)

    def forget(self, service: ServiceKey) -> None:
        self._applied.pop(service, None)

    async def survey(
        self, service: ServiceKey, uid: str, desired: Iterable[Manifest], known: Mapping[ObjectRef, Manifest | None]
    ) -> Survey:
        """Asks the API server only about children that nobody has told of."""
        refs = [observed_ref(manifest) for manifest in desired]
        unknown = [ref for ref in refs if ref not in known]
        fetched = dict(zip(unknown, await asyncio.gather(*map(self.cluster.get, unknown)), strict=True))
        live = {ref: fetched[ref] if ref in fetched else known[ref] for ref in refs}
        places = {ref: classify_place(found, service.name, uid) for ref, found in live.items()}
        found = [
            observed_conflict(ref, raw, uid)
            for ref, raw in live.items()
            if raw is not None and places[ref] is Place.TAKEN
        ]
        return Survey(live, places, tuple(conflict for conflict in found if conflict is not None))

    def changes(self, service: ServiceKey, desired: Iterable[Manifest], survey: Survey) -> tuple[Change, ...]:
        """What differs, in order. Forgets what is desired no longer."""
        found = []
        before = self._applied.get(service, {})
        after = self._applied[service] = {}
        leaving = {ref.kind for ref, place in survey.places.items() if place is Place.LEAVING}
        for manifest in desired:
            ref = observed_ref(manifest)
            if survey.places[ref] not in {Place.FREE, Place.OURS}:
                continue
            live, digest = survey.live[ref], digest_of(manifest)
            if live is None and kinds_under(ref.kind) & leaving:
                # A Job that is older than its claim would be taken for one of a claim that is lost.
                continue
            if ref in before:
                after[ref] = before[ref]
            if is_needed(manifest, digest, live, before.get(ref)):
                found.append(_change(ref, manifest, digest, live, before.get(ref)))
        return tuple(found)

    async def apply(self, service: ServiceKey, changes: Iterable[Change]) -> tuple[Rejection, ...]:
        """In order; one that is refused does not keep the others back. Raises RetryLaterError, and ConflictError where
        an object is another by now: what else was decided with it is not to be trusted either."""
        rejections = []
        for change in changes:
            try:
                applied = await self.cluster.apply(change.manifest)
            except RefusedError as error:
                rejections.append(Rejection(change.ref, error.message))
                continue
            version = applied["metadata"]["resourceVersion"]
            self._applied[service][change.ref] = Applied(
                change.digest, version, change.overtaken - {version}, digest_of_content(applied)
            )
            verb = "created" if change.is_new else "changed"
            logger.info("%s %s", verb, change.ref, extra=about(service, reason="Applied"))
        return tuple(rejections)

    async def try_out(self, desired: Iterable[Manifest], survey: Survey) -> tuple[Rejection, ...]:
        """Which of the children that are to come the API server would refuse. Raises as `apply` does."""
        rejections = []
        for manifest in desired:
            ref = observed_ref(manifest)
            if survey.places[ref] is not Place.FREE:
                continue  # told as a conflict, or about to be gone
            change = _change(ref, manifest, digest_of(manifest), None, None)
            try:
                await self.cluster.apply(change.manifest, is_trial=True)
            except RefusedError as error:
                if _KNOWS_NO_TRIALS not in error.message:
                    rejections.append(Rejection(ref, error.message))
        return tuple(rejections)


def is_needed(desired: Manifest, digest: str, live: Manifest | None, before: Applied | None) -> bool:
    if live is None:
        return True
    if before is not None and before.desired == digest:
        if live["metadata"]["resourceVersion"] in before.overtaken:
            return False  # the watch has not told of our own write yet
        if digest_of_content(live) == before.content_after:
            return False  # the server made of it what it makes of it
    annotations = live["metadata"].get("annotations") or {}
    return annotations.get(APPLIED_ANNOTATION) != digest or not is_declared(desired, live)


def _change(ref: ObjectRef, desired: Manifest, digest: str, live: Manifest | None, before: Applied | None) -> Change:
    metadata = dict(desired["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), APPLIED_ANNOTATION: digest}
    overtaken = frozenset[str]()
    if live is None:
        metadata["resourceVersion"] = _NEVER
    else:
        version, overtaken = last_version(live["metadata"]["resourceVersion"], before)
        # Refused where somebody has put another object there since, or has changed it.
        metadata |= {"uid": live["metadata"]["uid"], "resourceVersion": version}
    return Change(ref, {**desired, "metadata": metadata}, digest, live is None, overtaken)


def last_version(told: str, before: Versions | None) -> tuple[str, frozenset[str]]:
    """The version that a write follows, and all that it overtakes; `told`: by the watch, which may lag behind us."""
    if before is None or told not in before.overtaken:
        return told, frozenset({told})
    return before.version, before.overtaken | {before.version}


def digest_of_content(live: Manifest) -> str:
    """Of what a person could have edited; a status that moves on changes nothing."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _NOT_CONTENT}
    return digest_of({**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata})


_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
"""Fields that hold quantities; elsewhere "1" and "1000m" are two texts."""
_WHOLE = {"selector", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector", "matchLabels"}
"""Fields that one manager owns as a whole (atomic, to server-side apply): one label more, and others are selected."""


def is_declared(desired: object, live: object, field: str = "", *, holds_quantities: bool = False) -> bool:
    """Whether everything in `desired` is in `live`; lists are compared by position. `field` is where they are."""
    holds_quantities = holds_quantities or field in _QUANTITIES
    if isinstance(desired, dict):
        found = live if isinstance(live, dict) else {}
        if (desired and live is not found) or (field in _WHOLE and not found.keys() <= desired.keys()):
            return False
        return all(
            is_declared(value, found.get(key), key, holds_quantities=holds_quantities) for key, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        entries = live if isinstance(live, list | tuple) else ()
        return len(entries) == len(desired) and all(
            is_declared(ours, theirs, holds_quantities=holds_quantities)
            for ours, theirs in zip(desired, entries, strict=True)
        )
    if desired is None or desired == "":  # which the API server leaves out
        return live is None or live == ""
    return _is_equal(desired, live, holds_quantities=holds_quantities)


def _is_equal(desired: object, live: object, *, holds_quantities: bool) -> bool:
    if holds_quantities and live is not None:
        ours, theirs = parse_quantity(desired), parse_quantity(live)
        if ours is not None and theirs is not None:
            return ours == theirs
    return desired == live and isinstance(desired, bool) == isinstance(live, bool)


def without_empty(value: Any) -> Any:
    """The value as the API server would keep it: no nulls and no empty texts, lists or mappings in mappings."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [without_empty(item) for item in value]
    return value
