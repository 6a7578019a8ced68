"""What the watches have told so far: GNNServices, and everything that the operator made, by the service it is for.

Handlers of kopf's events fill and empty it; the rest of the operator reads it and knows nothing of kopf. Not kopf's own
indices: until all are full, each object that comes in wakes everybody who waits for that, and each of them looks at all
of them (8,500 objects took 113 s). What is stored is the object as JSON, without `managedFields`, which are most of it
and say nothing that the operator asks: a Deployment of ours is 21 KB as Python's dicts and 3 KB as JSON, which is read
in 26 µs.

A watch that was away for too long lists anew, and kopf does not notice what was deleted meanwhile. `bury` takes such
an object out, by its uid, which no other object will ever have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from sys import intern
from typing import Self

import msgspec

from gnnserve_api.status import ConditionType
from gnnserve_operator.kinds import GNNSERVICE, Kind, Manifest, ServiceKey
from gnnserve_operator.metrics import ConditionLabels


@dataclass(frozen=True, slots=True)
class Kept:
    """One object, and what is asked of all of them at once."""

    api_version: str
    kind: str
    uid: str
    version: str
    text: bytes
    """JSON."""

    @classmethod
    def of(cls, body: Manifest) -> Self:
        metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        text = msgspec.json.encode({**body, "metadata": metadata})
        return cls(intern(body["apiVersion"]), intern(body["kind"]), metadata["uid"], metadata["resourceVersion"], text)

    def body(self) -> Manifest:
        """Anew each time: nobody can change what is kept."""
        return dict(msgspec.json.decode(self.text))


Objects = dict[ServiceKey, dict[str, Kept]]
"""By uid, which comes once in all."""


@dataclass(slots=True)
class Index:
    _services: Objects = field(default_factory=dict)
    _children: Objects = field(default_factory=dict)
    _keys: dict[str, ServiceKey] = field(default_factory=dict)
    """By uid: whose object it is."""
    _buried: set[str] = field(default_factory=set)

    def keep(self, key: ServiceKey, kept: Kept) -> None:
        """In the place of what was known of this object, whomever it was for then."""
        if kept.uid in self._buried:
            return
        self.drop(kept.uid)
        self._keys[kept.uid] = key
        self._of_kind(kept).setdefault(key, {})[kept.uid] = kept

    def drop(self, uid: str) -> bool:
        """Whether it was there."""
        key = self._keys.pop(uid, None)
        if key is None:
            return False
        for objects in (self._services, self._children):
            found = objects.get(key, {})
            if found.pop(uid, None) is not None and not found:
                del objects[key]
        return True

    def bury(self, uid: str) -> None:
        """It is gone, whatever is still told of it."""
        self._buried.add(uid)
        self.drop(uid)

    def service_keys(self) -> list[ServiceKey]:
        return list(self._services)

    def service(self, key: ServiceKey) -> Manifest | None:
        # Two for a moment when one was deleted and made again: the newer is what counts.
        found = self._bodies(self._services, key)
        return max(found, key=lambda body: str(body["metadata"].get("creationTimestamp")), default=None)

    def children(self, key: ServiceKey, of: Kind | None = None) -> list[Manifest]:
        """All, or those of one kind."""
        found = self._children.get(key, {}).values()
        return [
            kept.body() for kept in found if of is None or (kept.api_version, kept.kind) == (of.api_version, of.name)
        ]

    def has_version(self, key: ServiceKey, service: Manifest) -> bool:
        """Whether the service is still what was told last."""
        kept, metadata = self._services.get(key, {}), service["metadata"]
        uid = metadata["uid"]
        return kept.keys() == {uid} and kept[uid].version == metadata["resourceVersion"]

    def versions(self, key: ServiceKey, kinds: Set[Kind]) -> frozenset[tuple[str, str]]:
        """Uid and resourceVersion of each child of these kinds: equal as long as nothing of them has changed."""
        names = {kind.name for kind in kinds}
        kept = self._children.get(key, {}).values()
        return frozenset((found.uid, found.version) for found in kept if found.kind in names)

    def by_uid(self, kind: Kind) -> dict[str, Kept]:
        return {
            uid: kept
            for objects in (self._services, self._children)
            for found in objects.values()
            for uid, kept in found.items()
            if (kept.api_version, kept.kind) == (kind.api_version, kind.name)
        }

    def count_by_ready(self) -> Mapping[str, int]:
        return Counter(_ready(body) for key in self._services for body in self._bodies(self._services, key))

    def declared_workers(self) -> Mapping[ServiceKey, int]:
        """That should answer by now: none of a suspended service, or of one whose first revision is not there yet."""
        return {key: _declared_workers(body) for key in self.service_keys() if (body := self.service(key)) is not None}

    def conditions(self) -> Mapping[ServiceKey, tuple[ConditionLabels, ...]]:
        """Ours only, as the status tells them."""
        ours = {kind.value for kind in ConditionType}
        return {
            key: tuple(
                ConditionLabels(told["type"], told["status"], told["reason"])
                for told in (body.get("status") or {}).get("conditions") or ()
                if told["type"] in ours
            )
            for key in self.service_keys()
            if (body := self.service(key)) is not None
        }

    def _of_kind(self, kept: Kept) -> Objects:
        is_service = (kept.api_version, kept.kind) == (GNNSERVICE.api_version, GNNSERVICE.name)
        return self._services if is_service else self._children

    @staticmethod
    def _bodies(objects: Objects, key: ServiceKey) -> Iterator[Manifest]:
        return (kept.body() for kept in objects.get(key, {}).values())


def _declared_workers(body: Manifest) -> int:
    spec = body["spec"]
    if spec.get("suspend") or not (body.get("status") or {}).get("revision"):
        return 0
    return int((spec.get("worker") or {}).get("replicas", 1))


def _ready(body: Manifest) -> str:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == ConditionType.READY), "Unknown")
